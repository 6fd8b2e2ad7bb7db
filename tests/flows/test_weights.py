"""Estimators of d log Z / dt, and estimates from weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from benchmarks.flow_tables import OptimalStein, TrajectoryBalance, paths_of
from blackout.flows import Clusters, FlowSampler, Rollout
from blackout.flows.annealed_importance import anneal, draw_reference_samples
from blackout.flows.diagnostics import check_estimates, evidence_upper_bound, find_modes
from blackout.flows.path import States, estimate_along_path
from blackout.flows.plots import save_path
from blackout.flows.replay import ReplayBuffer
from blackout.flows.simulation import Paths, Resampling
from blackout.flows.targets import Ising, Potts, Target, enumerate_states, exact_values
from blackout.flows.weights import (
    effective_sample_size,
    error_floor,
    estimate_target,
    jackknife_error,
    log_mean_exp,
    pareto_shape,
    potential_scale_reduction,
    weighted_mean,
)
from blackout.networks import LESite
from blackout.random import systematic_resampling


def test_the_control_variate_reduces_the_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    control = torch.randn(2000, 50, generator=generator, dtype=torch.float64)
    derivatives = (
        3 + 0.7 * control + 0.3 * torch.randn(2000, 50, generator=generator, dtype=torch.float64)
    )
    rollouts = (Rollout(estimator="plain"), Rollout(), OptimalStein())
    estimates = [rollout.estimate_dlogz_dt(derivatives, control) for rollout in rollouts]
    spread = [float(estimate.std()) for estimate in estimates]
    assert spread[2] < spread[1] < spread[0]
    assert all(abs(float(estimate.mean()) - 3) < 0.01 for estimate in estimates)


def test_r_hat_compares_chains_by_means_and_variances() -> None:
    """R-hat^2 = (n - 1) / n + B / n W; an incomplete group is ignored.

    References: Gelman and Rubin 1992.
    """
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 9.0])
    within = 5 / 3
    between = 0.5
    r_hat = potential_scale_reduction(values, torch.tensor([0] * 4 + [1] * 4 + [2]))
    assert abs(r_hat**2 - (3 / 4 + between / within)) < 1e-12
    assert math.isnan(potential_scale_reduction(values[:4], torch.zeros(4)))


def test_groups_are_resampled_only_below_the_threshold() -> None:
    target = Ising(2, 0.2)
    states = States.evaluate(
        target, torch.randint(2, (8, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    )
    # the ESS of the first group is 64 / 28 of 4
    weights = torch.tensor([1.0, 1, 1, 5] + [1.0] * 4).double().log()
    for threshold, resampled in ((0.57, False), (0.58, True)):
        resampling = Resampling(torch.arange(8), seed=0, threshold=threshold, group_size=4)
        moved, log_weights = resampling(states, weights, 0)
        assert torch.equal(log_weights[4:], weights[4:]) and torch.equal(moved.x[4:], states.x[4:])
        expected = torch.full((4,), 2.0).double().log() if resampled else weights[:4]
        assert torch.allclose(log_weights[:4], expected)


def test_the_horizon_grows_to_the_end_and_stays_there() -> None:
    rollout = Rollout(num_times=5, horizon=0.5, horizon_steps=10)
    ends = [rollout.times(number) for number in (0, 5, 10, 99)]
    assert [float(grid[-1]) for grid in ends] == [0.5, 0.75, 1.0, 1.0]
    assert torch.allclose(ends[1], torch.linspace(0, 0.75, 5).double())


def test_a_replay_buffer_replaces_the_oldest_rollout() -> None:
    rollout = Rollout(num_times=2, chains=3, buffer_size=2)
    replay = ReplayBuffer(rollout, 2, 4)
    stored = set[int]()
    uniforms = torch.cartesian_prod(*[torch.linspace(0, 0.999, 9)] * 3)
    for number in (1, 2, 3):
        x = torch.full((2, 3, 4), number, dtype=torch.uint8)
        replay.add(
            rollout.times(0), x, torch.zeros(2, 3, 4, 2), torch.zeros(2, 3), torch.zeros(2, 1)
        )
        stored = {*stored, number} - {number - 2}
        assert set(replay.sample(uniforms).x.unique().tolist()) == stored


def test_effective_sample_size_and_means_of_weights() -> None:
    log_weights = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (
        abs(
            float(effective_sample_size(log_weights))
            - float(log_weights.exp().sum() ** 2 / log_weights.mul(2).exp().sum() / 300)
        )
        < 1e-12
    )
    assert (
        abs(
            float(effective_sample_size(log_weights + 700))
            - float(effective_sample_size(log_weights))
        )
        < 1e-9
    )
    assert (
        abs(float(log_mean_exp(log_weights + 700)) - 700 - float(log_weights.exp().mean().log()))
        < 1e-9
    )
    assert abs(weighted_mean(torch.ones(300), log_weights)[0] - 1) < 1e-12


def test_systematic_resampling_is_unbiased_with_low_variance() -> None:
    log_weights = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    uniforms = (torch.arange(4000) + 0.5).double() / 4000
    probabilities = torch.softmax(log_weights, 0)
    indices = systematic_resampling(probabilities.expand(4000, 40), uniforms[:, None])
    counts = torch.stack([torch.bincount(row, minlength=40) for row in indices]).double()
    expected = 40 * probabilities
    assert float((counts.mean(0) - expected).abs().max()) < 1e-3
    assert bool((counts - expected).abs().max() < 1 + 1e-9)


def test_confidence_intervals_of_resampled_chains_cover_the_exact_value() -> None:
    target = Ising(3, 0.4)
    covered = 0
    covered_without_groups = 0
    ess_ratio = 0.0
    exact = exact_values(target)
    assert exact is not None
    groups = torch.arange(256) // 16
    for seed in range(60):
        paths = anneal(target, 256, 4, seed, resample_below=0.95)
        values = estimate_target(
            target, paths.states.x, paths.log_weights, paths.states.log_density, groups
        )
        deviation = abs(values["log_z"] - exact["log_z"])
        covered += deviation < 1.96 * values["log_z_error"]
        covered_without_groups += deviation < 1.96 * jackknife_error(paths.log_weights)
        ess_ratio = max(ess_ratio, values["ess"] / float(effective_sample_size(paths.log_weights)))
        assert values["r_hat"] < 1.5 and values["mean_energy_error"] > 0
    assert covered >= 56 and covered_without_groups < 45 and ess_ratio < 0.9


def test_errors_of_few_or_skewed_groups_cover_nominally() -> None:
    log_weights = (
        torch.randn(400, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1.2
        - 0.72
    )
    covered = [float(log_mean_exp(row).abs() < 1.96 * jackknife_error(row)) for row in log_weights]
    assert 0.93 < sum(covered) / 400 < 0.99  # 0.90 without skewness
    covered_by_groups = [
        float(log_mean_exp(row).abs() < 1.96 * jackknife_error(row, torch.arange(64) // 16))
        for row in log_weights
    ]
    assert 0.93 < sum(covered_by_groups) / 400 < 1  # 0.84 with the normal quantile
    assert jackknife_error(log_weights[0], torch.zeros(64, dtype=torch.int64)) == math.inf


def test_pareto_shapes_of_known_tails() -> None:
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for shape in (0.3, 0.8, 1.2):
        assert abs(pareto_shape(-shape * u.log()) - shape) < 0.1
    assert pareto_shape(torch.zeros(100)) == -math.inf and pareto_shape(u) < 0.2


def test_the_pareto_shape_of_few_weights_matches_the_published_estimate() -> None:
    """Computed one candidate at a time, shrunk to 1/2 as if by ten more weights.

    References: Zhang and Stephens 2009; Vehtari et al. 2024, appendix C.
    """
    log_weights = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tail = sorted(log_weights.tolist())[-13:]
    x = [math.exp(value - tail[0]) - 1 for value in tail[1:]]
    rows = []
    for j in range(1, 31 + math.isqrt(12)):
        b = 1 / x[-1] + (1 - math.sqrt((30 + math.isqrt(12)) / (j - 0.5))) / (3 * x[2])
        k = -sum(math.log(1 - b * value) for value in x) / 12
        rows.append((b, 12 * (math.log(b / k) + k - 1)))
    total = sum(math.exp(log_l) for _, log_l in rows)
    b = sum(b * math.exp(log_l) / total for b, log_l in rows)
    shape = sum(math.log(1 - b * value) for value in x) / 12
    assert abs(pareto_shape(log_weights) - (12 * shape + 5) / 22) < 1e-9


class _FirstOrderTransition(Target):
    """Few ordered states of 2^16 have most of the mass, and no single site leads to them."""

    def log_density(self, x: torch.Tensor) -> torch.Tensor:
        return 12.5 * (2 * x.double().mean(-1) - 1) ** 4


@pytest.mark.deep
def test_a_missed_mode_is_flagged_and_complete_samples_are_not() -> None:
    for target in (Ising(4, 1.0), _FirstOrderTransition(2, [16])):
        states, log_density = enumerate_states(target)
        magnetisation = 2 * states.double().mean(1) - 1
        sampled_half = magnetisation > 0 if isinstance(target, Ising) else magnetisation.abs() < 0.7
        for covered in (torch.ones_like(sampled_half), sampled_half):
            probabilities = torch.softmax(torch.where(covered, log_density, -torch.inf), 0)
            indices = torch.multinomial(
                probabilities, 64, True, generator=torch.Generator().manual_seed(0)
            )
            weights = torch.logsumexp(log_density[covered], 0).expand(64).clone()  # ESS 1
            x = states[indices]
            true_log_z = float(torch.logsumexp(log_density, 0))
            values = estimate_target(target, x, weights, log_density[indices])
            flags = check_estimates(target, x, weights, values, 1)
            complete = bool(covered.all())
            annealed_upper = values["log_z_annealed"] + 1.96 * values["log_z_annealed_error"]
            # 64 weights are too few to estimate their own error
            assert values["log_z_ci_high"] >= annealed_upper - 1e-9
            assert ("missed_mode" in flags) != complete and bool(flags) != complete
            assert abs(values["log_z"] - true_log_z) < 1.96 * values["log_z_error"] + 0.02
    assert len(find_modes(Ising(4, 1.0), states[:1], 0)) >= 2


def test_an_annealing_with_few_effective_samples_flags_no_estimate_above_it() -> None:
    target = Ising(10, 0.4406868)
    x = draw_reference_samples(target, 128, 32, 0, Clusters())
    weights = torch.full((128,), 93.6103, dtype=torch.float64)
    values = estimate_target(target, x, weights, target.log_density(x))
    flags = check_estimates(target, x, weights, values, 5)
    gap = 93.6103 - values["log_z_annealed"]
    assert gap > 3 * values["log_z_annealed_error"]  # the weights of such annealings are skewed
    assert not flags and values["log_z_error"] == pytest.approx(error_floor(128))


def test_equal_weights_and_values_have_an_error() -> None:
    """Equal weights leave a share of 3.7 / N of the chains open.

    They occur with 40 sites when no chain finds the ball of radius 0.
    """
    target = Ising(2)
    weights = torch.full((100,), 3.0, dtype=torch.float64)
    x = torch.zeros(100, 4, dtype=torch.uint8)
    for shifted in (weights, weights + 1e-14 * torch.arange(100)):
        values = estimate_target(target, x, shifted, torch.full((100,), -2.5, dtype=torch.float64))
        assert 1.96 * values["log_z_error"] == pytest.approx(1 - 0.025**0.01)
        assert values["log_z_ci_low"] < 3 - 0.03 and values["log_z_ci_high"] > 3 + 0.03
        assert 1.96 * values["mean_energy_error"] == pytest.approx(2.5 * (1 - 0.025**0.01))
        assert values["mean_energy_ci_low"] < 2.45 and values["mean_energy_ci_high"] > 2.55
    assert error_floor(100, torch.arange(100.0)) == 0


def test_contradictions_with_exact_values_are_flagged() -> None:
    target = Ising(3, 0.4)
    weights = torch.full((64,), 1.0, dtype=torch.float64)
    x = torch.zeros(64, 9, dtype=torch.uint8)
    values = estimate_target(target, x, weights, target.log_density(x)) | {"log_z_exact": 8.456}
    flags = check_estimates(target, x, weights, values, 0, torch.zeros(64, dtype=torch.int64))
    assert {"exact_value_mismatch", "single_group", "annealing_disagrees"} <= flags.keys()
    assert "8.4" in flags["exact_value_mismatch"] and math.isfinite(values["log_z_error"])


@pytest.mark.deep
def test_observables_at_every_temperature_are_estimated_from_weights(tmp_path: Path) -> None:
    target = Ising([3, 4], 0.6, 0.1)
    states, log_density = enumerate_states(target)
    times = [0.0, 0.3, 0.8, 1.0]
    # every state once, as chains that never move
    uniform = States.evaluate(target, states)
    no_jumps = torch.zeros(len(states), dtype=torch.int64)
    paths = Paths(uniform, uniform.dlogp_dt, no_jumps, no_jumps)
    for t in times:
        paths.record(t, t * uniform.dlogp_dt, uniform)
    rows = estimate_along_path(target, times, paths.observables(target))
    assert [row["t"] for row in rows] == times[1:]
    for row, t in zip(rows, times[1:], strict=True):
        probabilities = torch.softmax(t * log_density, 0)
        energy = -log_density
        m = target.statistics(states)["magnetisation"]
        mean = probabilities @ energy
        spins = 12 * (probabilities @ m.square() - (probabilities @ m).square())
        expected = {
            "log_z": torch.logsumexp(t * log_density, 0),
            "energy": mean,
            "magnetisation": probabilities @ m,
            "heat_capacity": t**2 * (probabilities @ energy.square() - mean**2),
            "magnetisation_susceptibility": spins,
        }
        for name, value in expected.items():
            assert abs(row[name] - float(value)) < 1e-4 * max(1, abs(float(value))), name
        assert (
            abs(row["log_z"] - row["log_z_exact"]) < 1e-4
            and abs(row["energy"] - row["energy_exact"]) < 1e-3
        )
    assert save_path(target, times, paths.observables(target), tmp_path)["temperatures"] == 3
    assert (tmp_path / "path.csv").read_text().startswith("t,ess,log_z") and (
        tmp_path / "path.png"
    ).exists()
    for lattice in (Ising(4, 0.4), Ising([3, 5], 0.4, 0.1), Potts(3, 3, 0.7)):
        closed_form = lattice.closed_form(0.7)
        exact = exact_values(lattice, 0.7)
        assert closed_form is not None and exact is not None
        assert all(
            abs(closed_form[name] - exact[name]) < 1e-5 * abs(exact[name]) for name in closed_form
        )


def test_the_evidence_upper_bound_is_above_log_z() -> None:
    torch.manual_seed(0)
    target = Ising(3, 0.4)
    exact = exact_values(target)
    assert exact is not None
    bound = evidence_upper_bound(FlowSampler(LESite(9, 2, 4, 1), target), 0)
    assert bound["eubo"] - 4 * bound["eubo_error"] > exact["log_z"]
    heat_bath = evidence_upper_bound(FlowSampler(LESite(9, 2, 4, 1, heat_bath=True), target), 0)
    assert exact["log_z"] - 4 * heat_bath["eubo_error"] < heat_bath["eubo"] < bound["eubo"]
    large = Ising(5, 0.3)  # sampled by clusters
    by_clusters = evidence_upper_bound(FlowSampler(LESite(25, 2, 4, 1, heat_bath=True), large), 0)
    assert (
        by_clusters["eubo"] + 4 * by_clusters["eubo_error"] > (large.closed_form() or {})["log_z"]
    )


def test_only_exact_rates_balance_paths() -> None:
    """Trajectory balance on a target without couplings.

    The loss is zero for the exact solution and otherwise the variance of the weights.
    """
    target = Ising(2, 0.0, field=0.4)
    rollout = Rollout(num_times=9, chains=32)
    networks = {
        "exact": LESite(4, 2, 8, 1, [2, 2], heat_bath=True),
        "none": LESite(4, 2, 8, 1, [2, 2]),
    }
    losses = {}
    for name, network in networks.items():
        # with zero weights, only the heat-bath term remains
        for parameter in network.parameters():
            torch.nn.init.zeros_(parameter)
        if network.gate is not None:
            torch.nn.init.constant_(network.gate.bias, 60.0)  # a = 1
        model = FlowSampler(network, target, objective=TrajectoryBalance(9), rollout=rollout)
        assert model.replay_buffer is not None
        model.roll_out(rollout, model.replay_buffer, 3, 0)
        batch = paths_of(model.replay_buffer, torch.full((54, 3), 0.4))
        assert batch.x.shape == (54, 4) and torch.equal(batch.t[:9], batch.t[9:18])
        chains = (int(0.4 * 32) + torch.arange(6)) % 32
        assert torch.equal(
            batch.x.view(6, 9, 4), model.replay_buffer.x[0][:, chains].transpose(0, 1)
        )
        squared, _ = model.objective(network, batch)
        losses[name] = squared.detach()
        # with zero rates a path never moves, and its weight is rho of its state
        if name == "none":
            assert torch.equal(batch.x[::9], batch.x[8::9])
            density = target.log_density(batch.x[::9])
            expected = (density - density.mean()).square()
            torch.testing.assert_close(
                losses[name].double(), expected.double(), rtol=1e-5, atol=1e-6
            )
    assert float(losses["exact"].max()) < 1e-10 < 0.1 < float(losses["none"].mean())
