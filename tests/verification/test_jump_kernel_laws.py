"""Every kernel of every process but pure death: its draws follow the exact law of its step, and it keeps its order."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from blackout.diffusion.correctors import LevelCorrector
from blackout.diffusion.kernels import BirthDeathBridge, LevelBridge, ReverseStep, TauLeap
from blackout.diffusion.predictions import BirthDeathPrediction
from blackout.diffusion.processes import BirthDeath
from blackout.diffusion.schedules import logit_times
from blackout.random import SampleStreams
from blackout.verification import claims
from blackout.verification.draws import MIN_P_VALUE
from blackout.verification.toys import total_variation

CLAIMS = [process for process in claims.CLAIMS if process != "pure_death"]


def subject_of(process, name):
    return next(study.subject for study in claims.studies([process]) if study.subject.name == name)


@pytest.mark.parametrize("process", CLAIMS)
def test_every_claim_of_the_law_command_holds(process):
    studies = list(claims.studies([process]))
    assert [row for study in studies for row in claims.measure_orders(study) if not row.holds] == []
    for subject in {(s.subject.process_name, s.subject.name): s.subject for s in studies}.values():
        for kernel in subject.kernels:
            assert claims.check_draws(subject, kernel, 4000)[1] > 1e-4


def test_what_is_claimed():
    claimed = {
        (study.subject.process_name, kernel, order)
        for process in CLAIMS
        for study in claims.studies([process])
        if study.subject.name == "one pixel"
        for kernel, order in study.orders.items()
    }
    bridges = {(process, order) for process, kernel, order in claimed if kernel == "level_bridge"}
    assert len(bridges) == 9 and {order for _, order in bridges} == {math.inf}
    assert {p for p, kernel, order in claimed if kernel == "tau_leap" and order == math.inf} == {"absorbing"}


@dataclass(frozen=True)
class TooLong(LevelBridge):
    """A leap of 4 % too much time."""

    def __call__(self, at):
        return TauLeap()(replace(at, t=at.s + 1.04 * (at.t - at.s))) if at.s > 0 else at.x


@dataclass(frozen=True)
class Astray(LevelBridge):
    """A bridge to a slightly wrong time."""

    def __call__(self, at):
        return super().__call__(replace(at, s=1.3 * at.s))


@pytest.mark.parametrize("process", ["uniform", "absorbing", "ordinal", "generator"])
@pytest.mark.parametrize("kernel, wrong", [("level_bridge", Astray()), ("tau_leap", TooLong())])
def test_the_law_command_finds_a_wrong_kernel(process, kernel, wrong):
    subject = subject_of(process, "one pixel")
    assert claims.check_draws(replace(subject, kernels={kernel: wrong}), kernel)[1] < MIN_P_VALUE


def test_the_law_command_finds_a_process_that_is_not_what_it_should_be():
    subject = subject_of("birth_death", "one pixel")
    for kernel in subject.kernels:
        assert claims.check_draws(replace(subject, process=BirthDeath(7, 3.2)), kernel)[1] < MIN_P_VALUE


def test_the_law_command_finds_a_lost_order():
    subject = subject_of("uniform", "two pixels")
    study = claims.Study(subject, "logit grid", lambda n: logit_times(n, 6.0, -12.0), (8, 16), {"level_bridge": 1.5})
    assert [row.holds for row in claims.measure_orders(study)] == [False]


@pytest.mark.parametrize("process", ["uniform", "absorbing", "ordinal", "birth_death"])
def test_correctors_bring_a_wrong_law_to_that_of_their_level(process):
    subject = subject_of(process, "one pixel")
    n, toy, t = 10_000, subject.toy, torch.tensor(0.9, dtype=torch.float64)
    law, denoiser = toy.marginal(0.9), subject.denoiser
    x, streams = torch.zeros(n, 1, dtype=torch.uint8), SampleStreams(2, torch.arange(n))
    corrector = LevelCorrector(0.1)
    assert total_variation(np.eye(toy.size)[0], law) > 0.3
    for k in range(60):
        x = corrector(TauLeap(), ReverseStep(denoiser, subject.process, x, t, t + 1.0, streams.step(k)))
    reached = np.bincount(x.flatten().numpy(), minlength=toy.size) / n
    assert total_variation(reached, law) < 0.06


def test_a_bridge_of_levels_needs_a_law_of_levels_even_where_there_are_two():
    """Of black and white pixels immigration and death predicts two numbers, which are no law of two levels."""
    process, n = BirthDeath(1, 0.5), 2000
    s, t = torch.tensor([0.0, 0.2], dtype=torch.float64)
    xt = process.sample(torch.zeros(n, 1, dtype=torch.uint8), t, SampleStreams(0, torch.arange(n)).step(0))

    def denoiser(x, time):
        nothing_missing = torch.stack([torch.full_like(x, 1e-30, dtype=torch.float64), x.double()], dim=1)
        return BirthDeathPrediction(nothing_missing, nothing_missing.clamp(min=1e-30).log())

    with pytest.raises(ValueError, match="distribution over levels"):
        LevelBridge()(ReverseStep(denoiser, process, xt, s, t))
    x0 = BirthDeathBridge()(ReverseStep(denoiser, process, xt, s, t, SampleStreams(0, torch.arange(n)).step(1)))
    assert int(x0.max()) == 0
    leapt = TauLeap()(ReverseStep(denoiser, process, xt, s, t, SampleStreams(0, torch.arange(n)).step(1)))
    assert float(leapt.double().mean()) < float(xt.double().mean()) + process.mean * 0.2


def test_a_sum_of_leaps_is_cut_off_at_the_states():
    subject = subject_of("ordinal", "one pixel")
    x = torch.full((500, 1), 2, dtype=torch.uint8)
    s, t = torch.tensor([0.5, 9.0], dtype=torch.float64)
    leapt = TauLeap()(ReverseStep(subject.denoiser, subject.process, x, s, t, SampleStreams(0, torch.arange(500)).step(0)))
    assert leapt.dtype == torch.uint8 and int(leapt.max()) == 4 and int(leapt.min()) == 0


CONTINUOUS = [process for process in CLAIMS if not process.startswith("discrete")]


@pytest.mark.parametrize("process", CONTINUOUS)
@pytest.mark.parametrize("t", [0.02, 0.8, 3.0])
def test_rates_from_the_exact_denoiser_are_those_of_the_reversed_process(process, t):
    """Q[j, m] p(j) / p(m) for every state of all elements; and flows that carry p_t back exactly as it came."""
    subjects = (study.subject for study in claims.studies([process]))
    for subject in {subject.name: subject for subject in subjects if subject.loop_grid is not None}.values():
        toy, time = subject.toy, torch.tensor(t, dtype=torch.float64)
        x = torch.from_numpy(toy.states)
        y = subject.denoiser(x, time).mean
        found = subject.process.rates(y, x, time).movedim(1, -1)
        into = (x[:, None] + subject.process.reverse_jumps(x)).movedim(1, -1)
        inside = (into >= 0) & (into < toy.size)
        rates = np.zeros((*toy.states.shape, toy.size + 1))
        np.put_along_axis(rates, torch.where(inside, into, toy.size).numpy(), found.numpy(), -1)
        marginal, exact = toy.marginal(t), toy.reverse_rates(t)
        likely = marginal > 1e-9
        np.testing.assert_allclose(rates[likely, :, :-1], exact[likely], rtol=1e-9, atol=1e-9)

        forward = (toy.forward_rates() * marginal[:, None, None]).sum()
        assert (rates[..., :-1] * marginal[:, None, None]).sum() == pytest.approx(forward, rel=1e-8)
        for element in range(toy.elements):  # net flow of the element's own law
            own = np.eye(toy.size)[toy.states[:, element]]
            gone_back = marginal @ (rates[:, element, :-1] - own * rates[:, element, :-1].sum(-1, keepdims=True))
            came = marginal @ own @ toy.rates
            assert np.abs(gone_back + came).max() < 1e-9
