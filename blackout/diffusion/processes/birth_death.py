"""Immigration and death: units decay at rate 1 while new ones arrive, until only newcomers are left.

X_t = S + I: survivors S ~ Binomial(X_0, q) and immigrants I ~ Poisson(a (1 - q)), q = e^-t. The mean of the data as
the stationary mean a keeps the total brightness, where pure death (a = 0) goes black. [Santos 2023] mention birth and
death (appendix G); this one and its formulas are ours (tests/verification/test_process_laws.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import Time, expand_time
from blackout.diffusion.predictions import BirthDeathPrediction
from blackout.diffusion.processes.base import CountProcess, Observation, check_max_count
from blackout.diffusion.schedules import missing_fraction, step_fraction
from blackout.errors import ensure
from blackout.random import RandomSource, binomial, categorical, poisson


@component("process")
@dataclass(frozen=True)
class BirthDeath(CountProcess):
    """Deaths at rate 1 per unit, births at rate `mean`: the stationary distribution is Poisson(mean).

    Reverse jumps are of two types, +1 and -1, with rates E[X_0 - S | X_t] q / (1 - q) + a (1 - q) and
    E[I | X_t] / (1 - q): the statistic is the pair (X_0 - S, I), both O(1 - q). All formulas are ours
    (tests/verification/test_process_laws.py).

    Args:
        max_count: largest data level.
        mean: a, in counts.

    Raises:
        ValueError: max_count is not a positive integer below 2^31, or mean is not positive.
    """

    max_count: int = 255
    mean: float = 1.0
    prediction: ClassVar[type[BirthDeathPrediction]] = BirthDeathPrediction
    jumps: ClassVar[tuple[int, ...]] = (1, -1)

    def __post_init__(self) -> None:
        check_max_count(self.max_count)
        ensure(0 < self.mean < math.inf, f"the stationary mean must be positive, not {self.mean}")

    @property
    def num_states(self) -> int:  # type: ignore[override]
        """Counts up to here; more immigrants than this have probability below 1e-20 and are cut off.

        Ours, see the class.
        """
        return self.max_count + math.ceil(self.mean + 10 * math.sqrt(self.mean) + 30)

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """X_t | X_0 = Binomial(X_0, q) + Poisson(a (1 - q)), of x0's shape [B, ...]. Ours, see the class."""
        return self.observe(x0, t, generator)[0]

    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Observation]:
        """X_t [B, ...] as in `sample`, with the target (X_0 - S, I), int64 [B, 2, ...]."""
        t = expand_time(t, x0)
        gone = -torch.expm1(-t)
        survivors = binomial(x0, torch.exp(-t), generator, complement=gone).long()
        immigrants = poisson((self.mean * gone).expand(x0.shape), generator).long()
        immigrants = torch.minimum(immigrants, self.num_states - 1 - survivors)
        xt = (survivors + immigrants).to(self.dtype)
        return xt, Observation(self, x0, xt, torch.stack([x0.long() - survivors, immigrants], dim=1))

    def _log_joint(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """log P(S = k, X_t | X_0) for k = 0..max_count on a new last axis, float64 [B, ..., max_count + 1].

        Logarithms of Binomial(k; X_0, q) and Poisson(X_t - k; a (1 - q)). Ours, see the class.
        """
        k = torch.arange(self.max_count + 1, device=x0.device, dtype=torch.float64)
        o, m, t = x0.double()[..., None], xt.double()[..., None], t[..., None]
        gone = -torch.expm1(-t)
        died, came = o - k, m - k
        possible = (died >= 0) & (came >= 0)
        died, came = died.clamp(min=0), came.clamp(min=0)
        survive = torch.lgamma(o + 1) - torch.lgamma(k + 1) - torch.lgamma(died + 1) - k * t
        arrive = torch.special.xlogy(came, self.mean * gone) - self.mean * gone - torch.lgamma(came + 1)
        return torch.where(possible, survive + torch.special.xlogy(died, gone) + arrive, -math.inf)

    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """log P(X_t | X_0), float64 [B, ...]: the sum of `_log_joint` over the survivors."""
        return torch.logsumexp(self._log_joint(x0, xt, t), -1)

    def bridge(self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None) -> Tensor:
        """X_s | X_0, X_t, of xt's shape: draw the survivors among X_t, then split all by when they died or came.

        Ours, see the class; the second part is `bridge_from`.
        """
        survivors = categorical(torch.exp(self._log_joint(x0, xt, expand_time(t, x0))), generator)
        return self.bridge_from(x0.long() - survivors, xt.long() - survivors, xt, s, t, generator)

    def bridge_from(
        self, missing: Tensor, immigrants: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None
    ) -> Tensor:
        """X_s given N = X_0 - S and I: X_t + Binomial(N, r) - Binomial(I, 1 - f) + Poisson(came and went since s).

        r = (q_s - q_t) / (1 - q_t) of the missing died after s; f = (1 - q_s) (q_t / q_s) / (1 - q_t) of the immigrants
        came before s; a (1 - q_s) (1 - q_t / q_s) on average came before s and went before t. All are integers
        [B, ...]. Ours, see the class.
        """
        s, t = expand_time(s, xt), expand_time(t, xt)
        after, before = -torch.expm1(s - t), missing_fraction(s, t)
        born = binomial(missing, step_fraction(s, t), generator, complement=before).long()
        kept = before * torch.exp(s - t)
        gone = binomial(immigrants, after / -torch.expm1(-t), generator, complement=kept).long()
        passing = poisson((self.mean * -torch.expm1(-s) * after).expand(xt.shape), generator).long()
        return (xt.long() + born - gone + passing).clamp_(0, self.num_states - 1).to(self.dtype)

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Rates of X -> X + 1 and X -> X - 1 given E[(X_0 - S, I) | X_t] [B, 2, ...], float64 [B, 2, ...].

        Ours, see the class.
        """
        t = expand_time(t, xt)
        gone, missing, immigrants = -torch.expm1(-t), *expected.double().unbind(1)
        return torch.stack([missing * torch.exp(-t) / gone + self.mean * gone, immigrants / gone], dim=1)

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """`rates` given X_0 [B, ...], from the mean of S given X_0 and X_t: float64 [B, 2, ...].

        Ours, see the class.
        """
        joint = self._log_joint(x0, xt, expand_time(t, x0))
        k = torch.arange(self.max_count + 1, device=x0.device, dtype=torch.float64)
        survivors = torch.softmax(joint, -1) @ k
        return self.rates(torch.stack([x0 - survivors, xt - survivors], dim=1).clamp(min=0.0), xt, t)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Rates X_t of death and a of birth, float64 [B, 2, ...]: the process's definition."""
        return torch.stack([xt.double(), torch.full_like(xt, self.mean, dtype=torch.float64)], dim=1)

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """KL(X_t given X_0 || Poisson(a)), float64 of x0's shape. Ours (tests/verification/test_scores_and_limits.py).

        Over the data that is KL(Poisson(m) || Poisson(a)) >= 0 more than from where `prior` starts given their mean, at
        m = q E[X_0] + a (1 - q): a bound with it holds for that start as well.
        """
        p = self.pmf(torch.arange(self.max_count + 1, device=x0.device), t)
        m = torch.arange(self.num_states, device=x0.device, dtype=torch.float64)
        log_prior = m * math.log(self.mean) - self.mean - torch.lgamma(m + 1)
        return (torch.special.xlogy(p, p) - p * log_prior).sum(-1).clamp(min=0.0)[x0.long()]
