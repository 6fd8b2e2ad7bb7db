"""Kernels of every process except pure death.

Samples of a step follow its exact distribution, and every kernel has its order of convergence.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.kernels import BirthDeathBridge, LevelBridge, ReverseStep, TauLeap
from blackout.diffusion.predictions import BirthDeathPrediction
from blackout.diffusion.processes import BirthDeath
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams
from blackout.verification import claims
from blackout.verification.draws import MIN_P_VALUE
from blackout.verification.toys import total_variation

PROCESSES = [process for process in claims.CLAIMS if process != "pure_death"]


def find_subject(process, name):
    """Return the subject of a study by process and name."""
    return next(study.subject for study in claims.studies([process]) if study.subject.name == name)


@pytest.mark.parametrize("process", PROCESSES)
def test_every_claim_of_the_verify_command_holds(process):
    studies = list(claims.studies([process]))
    assert [row for study in studies for row in claims.measure_orders(study) if not row.holds] == []
    for subject in {(s.subject.process_name, s.subject.name): s.subject for s in studies}.values():
        for kernel in subject.kernels:
            assert claims.check_draws(subject, kernel, 4000)[1] > 1e-4


def test_level_bridges_of_nine_processes_are_claimed_to_be_exact():
    """Of tau leaps, only those of the absorbing process are claimed to be exact."""
    claimed = {
        (study.subject.process_name, kernel, order)
        for process in PROCESSES
        for study in claims.studies([process])
        if study.subject.name == "one pixel"
        for kernel, order in study.orders.items()
    }
    bridges = {(process, order) for process, kernel, order in claimed if kernel == "level_bridge"}
    assert len(bridges) == 9 and {order for _, order in bridges} == {math.inf}
    assert {p for p, kernel, order in claimed if kernel == "tau_leap" and order == math.inf} == {
        "absorbing"
    }


@dataclass(frozen=True)
class TooLongLeap(LevelBridge):
    """A leap over 4 % too much time."""

    def __call__(self, at):
        return TauLeap()(replace(at, t=at.s + 1.04 * (at.t - at.s))) if at.s > 0 else at.x


@dataclass(frozen=True)
class MisplacedBridge(LevelBridge):
    """A bridge to a slightly wrong time."""

    def __call__(self, at):
        return super().__call__(replace(at, s=1.3 * at.s))


@pytest.mark.parametrize("process", ["uniform", "absorbing", "ordinal", "generator"])
@pytest.mark.parametrize(
    "kernel, wrong_kernel", [("level_bridge", MisplacedBridge()), ("tau_leap", TooLongLeap())]
)
def test_the_verify_command_detects_a_wrong_kernel(process, kernel, wrong_kernel):
    subject = find_subject(process, "one pixel")
    assert (
        claims.check_draws(replace(subject, kernels={kernel: wrong_kernel}), kernel)[1]
        < MIN_P_VALUE
    )


def test_the_verify_command_detects_a_wrong_process():
    subject = find_subject("birth_death", "one pixel")
    for kernel in subject.kernels:
        assert (
            claims.check_draws(replace(subject, process=BirthDeath(7, 3.2)), kernel)[1]
            < MIN_P_VALUE
        )


def test_the_verify_command_detects_a_lower_order_than_claimed():
    subject = find_subject("uniform", "two pixels")
    study = claims.Study(
        subject, "logit grid", lambda n: logit_times(n, 6.0, -12.0), (8, 16), {"level_bridge": 1.5}
    )
    assert [row.holds for row in claims.measure_orders(study)] == [False]


@pytest.mark.parametrize("process", ["uniform", "absorbing", "ordinal", "birth_death"])
def test_correctors_bring_a_wrong_distribution_to_that_of_their_time(process):
    subject = find_subject(process, "one pixel")
    n = 10_000
    toy = subject.toy
    t = torch.tensor(0.9, dtype=torch.float64)
    marginal = toy.marginal(0.9)
    denoiser = subject.denoiser
    x = torch.zeros(n, 1, dtype=torch.uint8)
    streams = SampleStreams(2, torch.arange(n))
    corrector = LevelCorrector(0.1)
    assert total_variation(np.eye(toy.size)[0], marginal) > 0.3
    for k in range(60):
        x = corrector(
            TauLeap(), ReverseStep(denoiser, subject.process, x, t, t + 1.0, streams.step(k))
        )
    frequencies = np.bincount(x.flatten().numpy(), minlength=toy.size) / n
    assert total_variation(frequencies, marginal) < 0.06


def test_a_level_bridge_needs_a_distribution_over_levels_even_for_binary_pixels():
    """Immigration and death predicts two numbers per binary pixel, which are no distribution."""
    process = BirthDeath(1, 0.5)
    n = 2000
    s, t = torch.tensor([0.0, 0.2], dtype=torch.float64)
    xt = process.sample(
        torch.zeros(n, 1, dtype=torch.uint8), t, SampleStreams(0, torch.arange(n)).step(0)
    )

    def denoiser(x, time):
        nothing_missing = torch.stack(
            [torch.full_like(x, 1e-30, dtype=torch.float64), x.double()], dim=1
        )
        return BirthDeathPrediction(nothing_missing, nothing_missing.clamp(min=1e-30).log())

    with pytest.raises(ValueError, match="distribution over levels"):
        LevelBridge()(ReverseStep(denoiser, process, xt, s, t))
    x0 = BirthDeathBridge()(
        ReverseStep(denoiser, process, xt, s, t, SampleStreams(0, torch.arange(n)).step(1))
    )
    assert int(x0.max()) == 0
    leapt = TauLeap()(
        ReverseStep(denoiser, process, xt, s, t, SampleStreams(0, torch.arange(n)).step(1))
    )
    assert float(leapt.double().mean()) < float(xt.double().mean()) + process.mean * 0.2


def test_a_sum_of_leaps_is_clipped_to_the_states():
    subject = find_subject("ordinal", "one pixel")
    x = torch.full((500, 1), 2, dtype=torch.uint8)
    s, t = torch.tensor([0.5, 9.0], dtype=torch.float64)
    leapt = TauLeap()(
        ReverseStep(
            subject.denoiser, subject.process, x, s, t, SampleStreams(0, torch.arange(500)).step(0)
        )
    )
    assert leapt.dtype == torch.uint8 and int(leapt.max()) == 4 and int(leapt.min()) == 0


CONTINUOUS = [process for process in PROCESSES if not process.startswith("discrete")]


@pytest.mark.parametrize("process", CONTINUOUS)
@pytest.mark.parametrize("t", [0.02, 0.8, 3.0])
def test_rates_from_the_exact_denoiser_are_those_of_the_reverse_process(process, t):
    """Rates are Q[j, m] p(j) / p(m) for every state of all elements.

    Their flows reverse those of the forward process exactly.
    """
    subjects = (study.subject for study in claims.studies([process]))
    for subject in {
        subject.name: subject for subject in subjects if subject.loop_grid is not None
    }.values():
        toy = subject.toy
        time = torch.tensor(t, dtype=torch.float64)
        x = torch.from_numpy(toy.states)
        y = subject.denoiser(x, time).mean
        predicted_rates = subject.process.rates(y, x, time).movedim(1, -1)
        destinations = (x[:, None] + subject.process.reverse_jumps(x)).movedim(1, -1)
        inside = (destinations >= 0) & (destinations < toy.size)
        rates = np.zeros((*toy.states.shape, toy.size + 1))
        np.put_along_axis(
            rates, torch.where(inside, destinations, toy.size).numpy(), predicted_rates.numpy(), -1
        )
        marginal = toy.marginal(t)
        exact = toy.reverse_rates(t)
        likely = marginal > 1e-9
        np.testing.assert_allclose(rates[likely, :, :-1], exact[likely], rtol=1e-9, atol=1e-9)

        forward = (toy.forward_rates() * marginal[:, None, None]).sum()
        assert (rates[..., :-1] * marginal[:, None, None]).sum() == pytest.approx(forward, rel=1e-8)
        for element in range(toy.elements):  # net flow of the marginal of one element
            one_hot = np.eye(toy.size)[toy.states[:, element]]
            reverse_flow = marginal @ (
                rates[:, element, :-1] - one_hot * rates[:, element, :-1].sum(-1, keepdims=True)
            )
            forward_flow = marginal @ one_hot @ toy.rates
            assert np.abs(reverse_flow + forward_flow).max() < 1e-9
