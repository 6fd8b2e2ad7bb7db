"""Weights of particles that share the path of known elements: samples of p(x | known elements).

Known elements follow a path of the forward process that ends in their values (`KnownPath`). The
ratio of the model's probability of that path to the probability it was drawn with turns particles
into the distribution given these elements.

References: this project; checked in tests/verification/test_particles.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from blackout.counts import per_sample
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.finite_states import step_distribution
from blackout.diffusion.particles.potentials import Stage, Step
from blackout.diffusion.predictions import TINY, CountPrediction
from blackout.diffusion.processes import FiniteProcess, Process, PureDeath
from blackout.diffusion.survival import missing_fraction

# None of these changes the limit of many steps: the look-ahead is divided out again, and
# extrapolated counts approach predicted ones as steps become short.

# Power of the predicted probability of the data, which ignores correlations. On exact toys 0, 0.5
# and 1 are alike (benchmarks/results/known_probability.json).
LOOK_AHEAD_POWER = 0.5
MIN_PROBABILITY = 1e-3  # of the look-ahead: a bad prediction alone drops no particle
MIN_RATE_SHARE = 0.1  # of the predicted count: extrapolation must not make known births impossible


def has_step_probability(process: Process) -> bool:
    """Return whether `KnownWeight` can compute the probability of a step of this process."""
    return isinstance(process, PureDeath | FiniteProcess)


@dataclass
class KnownWeight:
    """Importance weight of a particle: the model's probability of the known path, over the path's.

    Births of a stage are Poisson(y r), those of finitely many states follow `step_distribution`.
    The path's own probability, of a bridge to X_0, is the same for all particles of a sample: it
    makes the mean weight an estimate of p(known).

    Until the last step, particles are also weighted by the probability that the last prediction
    gives to the known elements' data, to the power `look_ahead`. Particles that lead elsewhere are
    then dropped early. Every step divides by the look-ahead of the step before, and none is left at
    s = 0: the limit, and the expectation of the estimate, are the same as without a look-ahead.

    References: Pitt and Shephard 1999 (look-ahead); this project, checked in
        tests/verification/test_particles.py.

    Args:
        process: that is reversed; see `has_step_probability`.
        x0: counts [rows, ...].
        mask: whether an element is observed, bool [rows, ...].
        look_ahead: the power.
    """

    process: Process
    x0: Tensor
    mask: Tensor
    look_ahead: float = LOOK_AHEAD_POWER
    _look_ahead: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def __call__(self, step: Step) -> Tensor:
        """Return the log weights of a step, float64 [rows]."""
        log_weight = -self._look_ahead.to(step.after.device)
        for stage in step.stages():
            if isinstance(self.process, PureDeath):
                log_ratio = self._births_log_ratio(stage)
            else:
                log_ratio = self._levels_log_ratio(stage)
            log_weight = log_weight + per_sample(torch.where(self.mask, log_ratio, 0.0))
        power = self.look_ahead if float(step.s) > 0 else 0.0
        log_data = torch.where(self.mask, self._data_log_probability(stage), 0.0)
        self._look_ahead = power * per_sample(log_data)
        return log_weight + self._look_ahead

    def select(self, rows: Tensor) -> None:
        """Keep the look-ahead of the particles that survive resampling, int64 [rows]."""
        self._look_ahead = self._look_ahead[rows]

    def _data_log_probability(self, stage: Stage) -> Tensor:
        """Return log p(X_0) of every element as the stage predicts it, float64 [rows, ...].

        Up to what all particles share. Remaining births are Poisson; levels follow
        `step_distribution` to s = 0.
        """
        if isinstance(self.process, FiniteProcess):
            zero = torch.zeros_like(stage.s)
            pmf = step_distribution(self.process, stage.prediction, stage.before, zero, stage.t)
            probability = pmf.gather(-1, self.x0.long()[..., None]).squeeze(-1)
            return probability.clamp(min=MIN_PROBABILITY).log()
        remaining = stage.prediction.expected * (1 - stage.fraction)
        remaining = remaining.clamp(min=MIN_PROBABILITY)
        return (self.x0.double() - stage.after) * remaining.log() - remaining

    def _births_log_ratio(self, stage: Stage) -> Tensor:
        """Return log Poisson(births; y r) / Binomial(births; missing, r), float64 [rows, ...]."""
        assert isinstance(stage.prediction, CountPrediction)
        r = stage.fraction
        births = (stage.after.long() - stage.before.long()).double()
        missing = (self.x0.long() - stage.before.long()).clamp(min=0).double()
        y = stage.prediction.expected
        extrapolated = stage.extrapolate(lambda stage: stage.prediction.expected)
        rate = torch.maximum(extrapolated, MIN_RATE_SHARE * y)
        # where nothing is extrapolated, the mean's own logarithm is finite even if the mean
        # underflows
        log_mean = stage.prediction.log_mean.double()
        log_rate = torch.where(rate == y, log_mean, rate.clamp(min=TINY).log())
        # births! cancels between the two distributions
        still_missing = missing - births
        log_ways = torch.lgamma(missing + 1) - torch.lgamma(still_missing.clamp(min=0) + 1)
        log_bridge = log_ways + births * r.log()
        log_bridge = log_bridge + torch.special.xlogy(
            still_missing, missing_fraction(stage.s, stage.t)
        )
        return births * (log_rate + r.log()) - rate * r - log_bridge

    def _levels_log_ratio(self, stage: Stage) -> Tensor:
        """Return log of `step_distribution` over `bridge_pmf` at X_s, float64 [rows, ...]."""
        assert isinstance(self.process, FiniteProcess)
        pmf = step_distribution(self.process, stage.prediction, stage.before, stage.s, stage.t)
        if isinstance(stage.prediction, GuidedPair):
            pmf = pmf / pmf.sum(-1, keepdim=True).clamp(min=TINY)
        bridge = self.process.bridge_pmf(self.x0, stage.before, stage.s, stage.t).view(pmf.shape)
        index = stage.after.long()[..., None]
        log_model = pmf.gather(-1, index).squeeze(-1).clamp(min=TINY).log()
        log_bridge = bridge.gather(-1, index).squeeze(-1).clamp(min=TINY).log()
        return log_model - log_bridge
