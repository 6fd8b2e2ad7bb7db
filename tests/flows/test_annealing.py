"""Classical samplers: compiled sweeps and clusters, compared with exact free energies."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from blackout.errors import UserError
from blackout.flows import Clusters, FlowFamily, Gibbs
from blackout.flows.annealed_importance import (
    _make_annealing,
    adaptive_times,
    anneal,
    draw_reference_samples,
    parallel_tempering,
)
from blackout.flows.annealing import Annealing
from blackout.flows.diagnostics import check_estimates
from blackout.flows.path import PathFromState, States, estimate_along_path
from blackout.flows.plots import correlations
from blackout.flows.refinement import Refinement
from blackout.flows.targets import (
    Couplings,
    FixedComposition,
    Ising,
    Potts,
    SpinGlass,
    Target,
    enumerate_states,
)
from blackout.flows.weights import estimate_target, exact_references, log_mean_exp
from blackout.random import SampleStreams

COMPILED = [
    Ising([3, 4], 0.6, 0.1),
    SpinGlass(3),
    Ising(3, -0.2),
    Couplings(h=[0.3, -1.0]),
    Potts([2, 3], 3, 0.8),
]


@pytest.mark.parametrize("target", COMPILED)
def test_compiled_sweeps_equal_plain_sweeps(target: Target) -> None:
    centre = torch.randint(
        target.levels, (target.sites,), generator=torch.Generator().manual_seed(0)
    )
    for path, threshold in ((target, None), (target, 0.9), (PathFromState(target, centre), None)):
        compiled = anneal(path, 50, 40, 3, threshold)
        plain = anneal(path, 50, 40, 3, threshold, refine=Gibbs())
        assert torch.equal(compiled.states.x, plain.states.x)
        torch.testing.assert_close(compiled.log_weights, plain.log_weights, rtol=0, atol=1e-11)
        torch.testing.assert_close(
            compiled.states.log_density, path.log_density(compiled.states.x), rtol=0, atol=1e-11
        )


@pytest.mark.parametrize("target", COMPILED[::2])
@pytest.mark.parametrize("refine", [None, Gibbs()])
def test_chains_may_have_different_times(target: Target, refine: Gibbs | None) -> None:
    times = torch.tensor([[0.1, 0.4], [0.7, 0.8]], dtype=torch.float64)
    streams = SampleStreams(0, torch.arange(140))
    states = States.evaluate(target, draw_reference_samples(target, 140, 0, 1))
    walk = _make_annealing(target, refine)
    moved, gain = walk(states, times, streams, 1)
    for rows, row_times in zip(torch.arange(140).view(2, 70), times, strict=True):
        separate, separate_gain = walk(states.select(rows), row_times, streams.select(rows), 1)
        assert torch.equal(separate.x, moved.x[rows]) and torch.allclose(separate_gain, gain[rows])


class ForbiddingTarget(Target):
    """Eight bits, of which neither two nor six may be set.

    States that are checked before annealing are far from these.
    """

    def __init__(self) -> None:
        super().__init__(2, [8])

    def log_density(self, x: Tensor) -> Tensor:
        num_set = x.double().sum(-1)
        return torch.where((num_set == 2) | (num_set == 6), -math.inf, num_set)


def test_targets_with_forbidden_states_are_refused_during_annealing(tmp_path: Path) -> None:
    annealing = FlowFamily().annealing(f"{__name__}.ForbiddingTarget", {}, chains=64, sweeps=4)
    with pytest.raises(UserError, match="not finite at some state"):
        annealing.run(tmp_path)
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tempering": 4, "sweeps": 8}, "sweeps must be at least 16 with tempering, not 8"),
        ({"moves": "wolff"}, "moves must be gibbs or clusters, not wolff"),
    ],
)
def test_settings_that_nothing_could_follow_are_refused(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        Annealing(Ising(3), chains=64, **settings)


def test_the_number_of_samples_of_tempering_is_that_of_the_file(tmp_path: Path) -> None:
    Annealing(Ising(3), chains=64, sweeps=32, tempering=4).run(tmp_path)
    content = json.loads((tmp_path / "metrics.json").read_text())
    with np.load(tmp_path / "samples.npz") as arrays:
        assert content["num_samples"] == len(arrays["samples"])


@pytest.mark.parametrize("refine", [None, Clusters()])
def test_parallel_tempering_estimates_log_z_and_its_error(refine: Refinement | None) -> None:
    target = Ising([3, 4], 0.5)
    paths, sets, errors = parallel_tempering(target, 40, 6, 160, 0, refine)
    exact = exact_references(target)
    last = errors[-1]
    values = estimate_target(
        target, paths.states.x, paths.log_weights, paths.states.log_density, sets, last
    )
    assert errors[0] == 0 and abs(values["log_z"] - exact["log_z_exact"]) < 3 * last < 0.3
    assert (
        abs(values["mean_energy"] - exact["mean_energy_exact"]) < 3.5 * values["mean_energy_error"]
    )
    assert (
        abs(values["mean_magnetisation"]) < 3.5 * values["mean_magnetisation_error"]
        and values["ess"] > 0.1
    )
    rows = estimate_along_path(target, paths.times, paths.observables(target), sets, errors)
    assert all(abs(row["log_z"] - row["log_z_exact"]) < 3.5 * row["log_z_error"] for row in rows)


def test_cluster_moves_return_the_log_density_of_the_new_states() -> None:
    for target, moves in (
        (Ising([3, 4], 0.3, 0.05), Clusters()),
        (Potts([2, 3], 3, 0.8), Clusters(single=True)),
    ):
        start = States.evaluate(target, draw_reference_samples(target, 200, 0, 2))
        moved = moves(target, start, 0.9, SampleStreams(1, torch.arange(200)).step(0))
        torch.testing.assert_close(
            moved.log_density, target.log_density(moved.x), rtol=0, atol=1e-10
        )
        assert float((moved.x != start.x).double().mean()) > 0.1


def test_annealing_estimates_log_z_of_a_large_lattice() -> None:
    for refine, sweeps in ((None, 2048), (Clusters(), 128)):
        paths = anneal(Ising(10, 0.4407), 64, sweeps, 0, refine=refine)
        assert abs(float(log_mean_exp(paths.log_weights)) - 93.612250) < 0.15


def test_adaptive_times_are_dense_near_a_phase_transition() -> None:
    # critical at t = 0.37
    target = Ising(6, 1.2)
    gaps = []
    times = adaptive_times(target, 128)
    assert times[0] == 0 and times[-1] == 1 and bool((times.diff() > 0).all())
    # compared with the times 1 - (1 - s)^2
    assert int(((times > 0.2) & (times < 0.5)).sum()) > 1.5 * 128 * (0.8**0.5 - 0.5**0.5)
    for power in (2, None):
        w = anneal(target, 256, 128, 1, power=power).log_weights
        gaps.append(float(log_mean_exp(w) - w.mean()))
    assert gaps[1] < 0.7 * gaps[0]


def test_long_chains_sample_the_target() -> None:
    for target, refine in (
        (Ising(8, 0.3), None),
        (Ising(10, 0.4407), Clusters()),
        (Ising(8, 1.0), Clusters()),
    ):
        x = draw_reference_samples(target, 200, 48, 0, refine)
        exact = target.closed_form()
        density = target.log_density(x)
        assert exact is not None
        assert (
            abs(float(density.mean()) + exact["mean_energy"]) < 4 * float(density.std()) / 200**0.5
        )
        assert abs(float(target.statistics(x)["magnetisation"].mean())) < 4 / 200**0.5  # both signs


def test_clusters_refuse_targets_that_do_not_attract() -> None:
    for target, clusters in (
        (SpinGlass(3), Clusters()),
        (Ising(3, 0.2, 0.2), Clusters(single=True)),
    ):
        with pytest.raises(UserError, match="; use refine"):
            anneal(target, 4, 2, refine=clusters)


def test_exchanges_leave_the_distribution_at_fixed_composition_invariant() -> None:
    target = FixedComposition(Potts([2, 3], 3, 0.8), [1, 2, 3])
    states, log_density = enumerate_states(target)
    probabilities = torch.softmax(log_density, 0)
    assert int((probabilities > 0).sum()) == round(math.exp(target.log_num_states)) == 60
    x = draw_reference_samples(target, 40_000, 0, 0)
    moved = target.gibbs_sweep(
        x,
        torch.rand(40_000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        1.0,
    )
    assert float((moved != x).double().mean()) > 0.3
    ranks = (moved.long() * 3 ** torch.arange(5, -1, -1)).sum(1)
    counts = ranks.bincount(minlength=len(states))[probabilities > 0]
    expected = 40_000 * probabilities[probabilities > 0]
    assert stats.chi2.sf(float(((counts - expected) ** 2 / expected).sum()), 59) > 1e-3


@pytest.mark.deep
def test_annealing_estimates_log_z_of_a_lattice_gas_at_half_filling() -> None:
    target = FixedComposition(Ising([3, 4], 0.5), [6, 6])
    log_z = float(enumerate_states(target)[1].logsumexp(0))
    paths = anneal(target, 1000, 32, 0)
    values = estimate_target(target, paths.states.x, paths.log_weights, paths.states.log_density)
    assert abs(values["log_z"] - log_z) < 3 * values["log_z_error"] < 0.15
    flags = check_estimates(
        target, paths.states.x, paths.log_weights, values | exact_references(target), 1
    )
    assert not flags and abs(exact_references(target)["log_z_exact"] - log_z) < 1e-9
    with pytest.raises(UserError, match="exchanges"):
        target.log_ratios(paths.states.x)
    with pytest.raises(ValueError, match="add up to 12"):
        FixedComposition(target.unrestricted, [6, 5])


@pytest.mark.parametrize("target", [Ising(3, 0.6), Potts(3, 2, 0.7), Potts(3, 3, 0.8)])
def test_the_correlation_of_neighbours_follows_from_the_mean_energy(target: Ising | Potts) -> None:
    """It is (q P(two neighbours are equal) - 1) / (q - 1), by enumeration.

    E[log rho] is linear in that probability.
    """
    states, log_p = enumerate_states(target)
    probabilities = torch.softmax(log_p.double(), 0)
    q = target.levels
    mean = float(probabilities @ target.log_density(states).double())
    bonds = 18
    strength = 0.6
    equal_probability = (
        (mean / (bonds * strength) + 1) / 2
        if isinstance(target, Ising)
        else mean / (bonds * float(target.beta))
    )
    values = correlations(states.view(-1, 3, 3), q, probabilities.numpy())
    assert values == pytest.approx([1.0, (q * equal_probability - 1) / (q - 1)], abs=1e-9)
    assert correlations(states.view(-1, 3, 3), q) == pytest.approx([1.0, 0.0], abs=1e-12)


def test_times_follow_the_spread_of_weights_in_a_pilot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spread grows three times as fast from the middle on.

    The first half then gets a quarter of the pilot's times, 0.29 by the rule.
    """
    times = [k / 1000 for k in range(1001)]
    log_weights = [torch.tensor([-1.0, 1.0]) * (min(t, 0.5) + 3 * max(t - 0.5, 0)) for t in times]
    pilot = SimpleNamespace(times=times, recorded_log_weights=log_weights)
    monkeypatch.setattr("blackout.flows.annealed_importance.anneal", lambda *_, **__: pilot)
    middle = 0.8 / 4 + 0.2 * (1 - math.sqrt(0.5))
    assert abs(float(adaptive_times(Ising(2, 0.2), 1000)[round(1000 * middle)]) - 0.5) < 2e-3
