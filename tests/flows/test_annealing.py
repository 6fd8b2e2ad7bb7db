"""Classical samplers: compiled sweeps and clusters, and what they are worth against exact free energies."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

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

COMPILED = [Ising([3, 4], 0.6, 0.1), SpinGlass(3), Ising(3, -0.2), Couplings(h=[0.3, -1.0]), Potts([2, 3], 3, 0.8)]


@pytest.mark.parametrize("target", COMPILED)
def test_compiled_sweeps_draw_what_sweeps_draw(target: Target) -> None:
    centre = torch.randint(target.levels, (target.sites,), generator=torch.Generator().manual_seed(0))
    for law, below in ((target, None), (target, 0.9), (PathFromState(target, centre), None)):
        quick, slow = anneal(law, 50, 40, 3, below), anneal(law, 50, 40, 3, below, refine=Gibbs())
        assert torch.equal(quick.states.x, slow.states.x)
        torch.testing.assert_close(quick.log_weights, slow.log_weights, rtol=0, atol=1e-11)
        torch.testing.assert_close(quick.states.log_density, law.log_density(quick.states.x), rtol=0, atol=1e-11)


@pytest.mark.parametrize("target", COMPILED[::2])
@pytest.mark.parametrize("refine", [None, Gibbs()])
def test_parts_of_the_chains_may_be_at_times_of_their_own(target: Target, refine: Gibbs | None) -> None:
    times, streams = torch.tensor([[0.1, 0.4], [0.7, 0.8]], dtype=torch.float64), SampleStreams(0, torch.arange(140))
    states, walk = States.evaluate(target, draw_reference_samples(target, 140, 0, 1)), _make_annealing(target, refine)
    moved, gain = walk(states, times, streams, 1)
    for rows, own in zip(torch.arange(140).view(2, 70), times, strict=True):
        alone, its = walk(states.select(rows), own, streams.select(rows), 1)
        assert torch.equal(alone.x, moved.x[rows]) and torch.allclose(its, gain[rows])


class Forbidding(Target):
    """Eight bits, of which neither two nor six may be set; what is looked at before annealing is far from these."""

    def __init__(self) -> None:
        super().__init__(2, [8])

    def log_density(self, x: Tensor) -> Tensor:
        set_ = x.double().sum(-1)
        return torch.where((set_ == 2) | (set_ == 6), -math.inf, set_)


def test_a_law_is_refused_where_annealing_meets_states_that_it_forbids(tmp_path: Path) -> None:
    annealing = FlowFamily().annealing(f"{__name__}.Forbidding", {}, chains=64, sweeps=4)
    with pytest.raises(UserError, match="not finite at some state"):
        annealing.run(tmp_path)
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize("refine", [None, Clusters()])
def test_parallel_tempering_knows_log_z_and_its_error(refine: Refinement | None) -> None:
    target = Ising([3, 4], 0.5)
    (paths, sets, errors), exact = parallel_tempering(target, 40, 6, 160, 0, refine), exact_references(target)
    last = errors[-1]
    values = estimate_target(target, paths.states.x, paths.log_weights, paths.states.log_density, sets, last)
    assert errors[0] == 0 and abs(values["log_z"] - exact["log_z_exact"]) < 3 * last < 0.3
    assert abs(values["mean_energy"] - exact["mean_energy_exact"]) < 3.5 * values["mean_energy_error"]
    assert abs(values["mean_magnetisation"]) < 3.5 * values["mean_magnetisation_error"] and values["ess"] > 0.1
    rows = estimate_along_path(target, paths.times, paths.observables(target), sets, errors)
    assert all(abs(row["log_z"] - row["log_z_exact"]) < 3.5 * row["log_z_error"] for row in rows)


def test_clusters_know_log_rho_of_what_they_move() -> None:
    for target, moves in ((Ising([3, 4], 0.3, 0.05), Clusters()), (Potts([2, 3], 3, 0.8), Clusters(single=True))):
        start = States.evaluate(target, draw_reference_samples(target, 200, 0, 2))
        moved = moves(target, start, 0.9, SampleStreams(1, torch.arange(200)).step(0))
        torch.testing.assert_close(moved.log_density, target.log_density(moved.x), rtol=0, atol=1e-10)
        assert float((moved.x != start.x).double().mean()) > 0.1


def test_annealing_finds_log_z_of_a_large_lattice() -> None:
    for refine, sweeps in ((None, 2048), (Clusters(), 128)):
        found = anneal(Ising(10, 0.4407), 64, sweeps, 0, refine=refine)
        assert abs(float(log_mean_exp(found.log_weights)) - 93.612250) < 0.15


def test_a_path_takes_its_time_where_it_passes_a_transition() -> None:
    target, apart = Ising(6, 1.2), []  # critical at t = .37
    times = adaptive_times(target, 128)
    assert times[0] == 0 and times[-1] == 1 and bool((times.diff() > 0).all())
    assert int(((times > 0.2) & (times < 0.5)).sum()) > 1.5 * 128 * (0.8**0.5 - 0.5**0.5)  # of 1 - (1 - s)^2
    for power in (2, None):
        w = anneal(target, 256, 128, 1, power=power).log_weights
        apart.append(float(log_mean_exp(w) - w.mean()))
    assert apart[1] < 0.7 * apart[0]


def test_long_chains_are_of_their_law() -> None:
    for target, refine in ((Ising(8, 0.3), None), (Ising(10, 0.4407), Clusters()), (Ising(8, 1.0), Clusters())):
        x, exact = draw_reference_samples(target, 200, 48, 0, refine), target.closed_form()
        density = target.log_density(x)
        assert exact is not None
        assert abs(float(density.mean()) + exact["mean_energy"]) < 4 * float(density.std()) / 200**0.5
        assert abs(float(target.statistics(x)["magnetisation"].mean())) < 4 / 200**0.5  # both signs


def test_clusters_are_for_what_attracts() -> None:
    for target, clusters in ((SpinGlass(3), Clusters()), (Ising(3, 0.2, 0.2), Clusters(single=True))):
        with pytest.raises(UserError, match="; use refine"):
            anneal(target, 4, 2, refine=clusters)


def test_exchanges_leave_the_law_of_a_composition_as_it_is() -> None:
    law = FixedComposition(Potts([2, 3], 3, 0.8), [1, 2, 3])
    states, log_density = enumerate_states(law)
    share = torch.softmax(log_density, 0)
    assert int((share > 0).sum()) == round(math.exp(law.log_num_states)) == 60
    x = draw_reference_samples(law, 40_000, 0, 0)
    moved = law.gibbs_sweep(
        x, torch.rand(40_000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 1.0
    )
    assert float((moved != x).double().mean()) > 0.3
    place = (moved.long() * 3 ** torch.arange(5, -1, -1)).sum(1)
    seen, wanted = place.bincount(minlength=len(states))[share > 0], 40_000 * share[share > 0]
    assert stats.chi2.sf(float(((seen - wanted) ** 2 / wanted).sum()), 59) > 1e-3


@pytest.mark.deep
def test_a_lattice_gas_at_half_filling_has_its_log_z() -> None:
    law = FixedComposition(Ising([3, 4], 0.5), [6, 6])
    log_z = float(enumerate_states(law)[1].logsumexp(0))
    paths = anneal(law, 1000, 32, 0)
    values = estimate_target(law, paths.states.x, paths.log_weights, paths.states.log_density)
    assert abs(values["log_z"] - log_z) < 3 * values["log_z_error"] < 0.15
    flags = check_estimates(law, paths.states.x, paths.log_weights, values | exact_references(law), 1)
    assert not flags and abs(exact_references(law)["log_z_exact"] - log_z) < 1e-9
    with pytest.raises(UserError, match="exchanges"):
        law.log_ratios(paths.states.x)
    with pytest.raises(ValueError, match="add up to 12"):
        FixedComposition(law.unrestricted, [6, 5])


@pytest.mark.parametrize("target", [Ising(3, 0.6), Potts(3, 2, 0.7), Potts(3, 3, 0.8)])
def test_the_correlation_of_neighbours_is_what_the_mean_energy_says(target: Ising | Potts) -> None:
    """(q P(two neighbours are alike) - 1) / (q - 1), by all states; E[log rho] is linear in that probability."""
    states, log_p = enumerate_states(target)
    share, q = torch.softmax(log_p.double(), 0), target.levels
    mean = float(share @ target.log_density(states).double())
    bonds, strength = 18, 0.6
    alike = (mean / (bonds * strength) + 1) / 2 if isinstance(target, Ising) else mean / (bonds * float(target.beta))
    found = correlations(states.view(-1, 3, 3), q, share.numpy())
    assert found == pytest.approx([1.0, (q * alike - 1) / (q - 1)], abs=1e-9)
    assert correlations(states.view(-1, 3, 3), q) == pytest.approx([1.0, 0.0], abs=1e-12)


def test_times_follow_the_deviation_of_what_weights_gain_in_a_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as much from the middle on: until there a quarter of the pilot's times, .29 by the rule."""
    times = [k / 1000 for k in range(1001)]
    gained = [torch.tensor([-1.0, 1.0]) * (min(t, 0.5) + 3 * max(t - 0.5, 0)) for t in times]
    pilot = SimpleNamespace(times=times, recorded_log_weights=gained)
    monkeypatch.setattr("blackout.flows.annealed_importance.anneal", lambda *_, **__: pilot)
    middle = 0.8 / 4 + 0.2 * (1 - math.sqrt(0.5))
    assert abs(float(adaptive_times(Ising(2, 0.2), 1000)[round(1000 * middle)]) - 0.5) < 2e-3
