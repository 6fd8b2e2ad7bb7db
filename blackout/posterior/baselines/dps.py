"""DPS on discrete states (Chu et al. 2025, appendix C.2): reverse rates weighed by what every jump is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.kernels.jumps import leap, reverse_rates
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction, Prediction
from blackout.diffusion.processes import JumpProcess, PureDeath
from blackout.diffusion.samplers import begin
from blackout.diffusion.schedules import step_fraction
from blackout.posterior.chains import Method, Posterior, Recorder, Seen
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.problem import Measured, Problem
from blackout.random import RandomSource, SampleStreams, poisson

_LARGEST = 20.0
"""Of the logarithm of a ratio of likelihoods."""
_AT_ONCE = 4096
_MOST = 20_000
"""Neighbours of one state: their number is that of network evaluations of each step."""


@dataclass(frozen=True)
class DPS(Method):
    """Rates times p(y | x') / p(y | x) for every neighbour x', where p(y | x_t) is L at the expected data.

    Each step evaluates the network once for every neighbour.
    """

    def sweeps(self, prior: Prior) -> int:
        return len(prior.times) - 1

    def check(self, prior: Prior, problem: Problem) -> None:
        if self._neighbours(prior) > _MOST:
            raise ValueError(f"posterior=dps would evaluate {self._neighbours(prior)} neighbours in every step")

    @staticmethod
    def _neighbours(prior: Prior) -> int:
        types = 1 if isinstance(prior.process, PureDeath) else prior.process.num_states
        return types * math.prod(prior.shape)

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        assert prior.kernel is not None
        recorder, times = Recorder(prior, self.sweeps(prior), seen), prior.times.to(prior.device)
        shape = (number, *prior.shape)
        x = begin(prior.process, times, shape, streams, prior.mean, None, torch.device(prior.device))
        for k in range(len(times) - 2, -1, -1):
            s, t = times[k], times[k + 1]
            source = streams.at(k + 1) if isinstance(streams, SampleStreams) else streams
            x = self._step(prior, problem, x, s, t, source)
            spent = self._neighbours(prior) + 1
            log_l = problem.log_likelihood(x.double().clamp(max=prior.process.max_count))
            recorder.add(float(t), x, x, log_l, torch.ones_like(log_l), spent)
        x = x.clamp(max=prior.process.max_count)
        found = recorder.result(x, problem.log_likelihood(x.double()))
        for sweep in found.trace:
            sweep["evaluations"] = sweep["calls"]  # of each sample; several neighbours make up a batch
        return found

    def _step(self, prior: Prior, problem: Problem, x: Tensor, s: Tensor, t: Tensor, source: RandomSource) -> Tensor:
        process = prior.process
        assert isinstance(process, JumpProcess)
        prediction = prior.denoiser(x, t)
        now = problem.log_likelihood(_expected(prediction, x, process.max_count))
        jumps = process.reverse_jumps(x)
        rates = reverse_rates(process, prediction, x, t)
        jumps = jumps.expand(rates.shape)
        ratio = self._ratios(prior, problem, x, jumps, now, t)
        if isinstance(process, PureDeath):
            assert isinstance(prediction, CountPrediction)
            births = poisson(prediction.mean.double() * step_fraction(s, t) * ratio[:, 0], source)
            return (x + births).clamp(max=process.max_count).to(x.dtype)
        return leap(process, x, [(rates * ratio, jumps)], float(t - s), source)

    @staticmethod
    def _ratios(prior: Prior, problem: Problem, x: Tensor, jumps: Tensor, now: Tensor, t: Tensor) -> Tensor:
        """L at the expected data after every jump over that before it, float64 of jumps' shape."""
        n, types, elements = len(x), jumps.shape[1], math.prod(prior.shape)
        flat, steps = x.flatten(1).long(), jumps.flatten(2)
        row = torch.arange(n).repeat_interleave(types * elements).to(x.device)
        kind = torch.arange(types).repeat_interleave(elements).repeat(n).to(x.device)
        element = torch.arange(elements).repeat(n * types).to(x.device)
        found = []
        for part in torch.arange(len(row), device=x.device).split(_AT_ONCE):
            moved = flat[row[part]].clone()
            here = torch.arange(len(part), device=x.device)
            moved[here, element[part]] += steps[row[part], kind[part], element[part]]
            moved = moved.clamp_(0, prior.process.num_states - 1).to(x.dtype).view(-1, *prior.shape)
            of_part = problem.select(row[part], prior.shape) if isinstance(problem, Measured) else problem
            expected = _expected(prior.denoiser(moved, t), moved, prior.process.max_count)
            found.append(of_part.log_likelihood(expected) - now[row[part]])
        log_ratio = torch.nan_to_num(torch.cat(found), nan=0.0).clamp(-_LARGEST, _LARGEST)
        return log_ratio.exp().view(jumps.shape)


def _expected(prediction: Prediction, x: Tensor, max_count: int) -> Tensor:
    """The data expected given X_t, float64: a mean of counts, the likeliest level of names."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.argmax(1).double()
    if isinstance(prediction, CountPrediction):
        return (x.double() + prediction.expected).clamp(max=max_count)
    missing, immigrants = prediction.expected.unbind(1)
    return (x.double() + missing - immigrants).clamp(0, max_count)
