"""Immigration and death: units decay at rate 1 while new ones arrive, and replace them.

X_t = S + I: survivors S ~ Binomial(X_0, q) and immigrants I ~ Poisson(a (1 - q)), q = e^-t. With
the mean of the data as the stationary mean a, the total brightness stays, where pure death (a = 0)
goes black.

References: Santos et al. 2023, appendix G, for birth and death; this process and its formulas are
    this project's, checked in tests/verification/test_bounds_and_losses.py.
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
from blackout.diffusion.survival import missing_fraction, step_fraction
from blackout.errors import ensure
from blackout.random import RandomSource, binomial, categorical, poisson


@component("process")
@dataclass(frozen=True)
class BirthDeath(CountProcess):
    """Immigration-death process: deaths at rate 1 per unit, births at rate `mean`.

    Its stationary distribution is Poisson(mean).

    Reverse jumps are of two types, +1 and -1, with rates E[X_0 - S | X_t] q / (1 - q) + a (1 - q)
    and E[I | X_t] / (1 - q): the statistic is the pair (X_0 - S, I), both O(1 - q).

    References: this project; checked in tests/verification/test_bounds_and_losses.py.

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
        """Number of counts; more immigrants have probability below 1e-20 and are cut off."""
        return self.max_count + math.ceil(self.mean + 10 * math.sqrt(self.mean) + 30)

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """Draw X_t | X_0 = Binomial(X_0, q) + Poisson(a (1 - q)), of x0's shape [B, ...]."""
        return self.observe(x0, t, generator)[0]

    def observe(
        self, x0: Tensor, t: Time, generator: RandomSource = None
    ) -> tuple[Tensor, Observation]:
        """Draw X_t [B, ...], and return it with the target (X_0 - S, I), int64 [B, 2, ...]."""
        t = expand_time(t, x0)
        decay = -torch.expm1(-t)
        survivors = binomial(x0, torch.exp(-t), generator, complement=decay).long()
        immigrants = poisson((self.mean * decay).expand(x0.shape), generator).long()
        immigrants = torch.minimum(immigrants, self.num_states - 1 - survivors)
        xt = (survivors + immigrants).to(self.dtype)
        statistic = torch.stack([x0.long() - survivors, immigrants], dim=1)
        return xt, Observation(self, x0, xt, statistic)

    def _log_joint(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Return log P(S = k, X_t | X_0) for k = 0..max_count on a new last axis.

        It is the log of Binomial(k; X_0, q) Poisson(X_t - k; a (1 - q)), float64
        [B, ..., max_count + 1].
        """
        k = torch.arange(self.max_count + 1, device=x0.device, dtype=torch.float64)
        t = t[..., None]
        decay = -torch.expm1(-t)
        data = x0.double()[..., None]
        deaths = data - k
        immigrants = xt.double()[..., None] - k
        possible = (deaths >= 0) & (immigrants >= 0)
        deaths = deaths.clamp(min=0)
        immigrants = immigrants.clamp(min=0)
        log_ways = torch.lgamma(data + 1) - torch.lgamma(k + 1) - torch.lgamma(deaths + 1)
        log_survive = log_ways - k * t
        log_arrive = torch.special.xlogy(immigrants, self.mean * decay) - self.mean * decay
        log_arrive = log_arrive - torch.lgamma(immigrants + 1)
        log_joint = log_survive + torch.special.xlogy(deaths, decay) + log_arrive
        return torch.where(possible, log_joint, -math.inf)

    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Return log P(X_t | X_0), float64 [B, ...]: the sum of `_log_joint` over the survivors."""
        return torch.logsumexp(self._log_joint(x0, xt, t), -1)

    def bridge(
        self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None
    ) -> Tensor:
        """Draw X_s | X_0, X_t, of xt's shape: first the survivors among X_t, then `bridge_from`."""
        joint = torch.exp(self._log_joint(x0, xt, expand_time(t, x0)))
        survivors = categorical(joint, generator)
        missing = x0.long() - survivors
        immigrants = xt.long() - survivors
        return self.bridge_from(missing, immigrants, xt, s, t, generator)

    def bridge_from(
        self,
        missing: Tensor,
        immigrants: Tensor,
        xt: Tensor,
        s: Time,
        t: Time,
        generator: RandomSource = None,
    ) -> Tensor:
        """Draw X_s given N = X_0 - S and I.

        X_s = X_t + Binomial(N, r) - Binomial(I, 1 - f) + Poisson(b):
        r = (q_s - q_t) / (1 - q_t) of the missing died after s;
        f = (1 - q_s) (q_t / q_s) / (1 - q_t) of the immigrants came before s;
        b = a (1 - q_s) (1 - q_t / q_s) immigrants came before s and died before t.

        Args:
            missing: N, integers [B, ...].
            immigrants: I, integers [B, ...].
            xt: states [B, ...].
            s: time of the result.
            t: time of `xt`, after s.
            generator: source of random numbers.
        """
        s = expand_time(s, xt)
        t = expand_time(t, xt)
        decay = -torch.expm1(s - t)  # from s to t
        before = missing_fraction(s, t)
        births = binomial(missing, step_fraction(s, t), generator, complement=before).long()
        arrived_after = decay / -torch.expm1(-t)
        arrived_before = before * torch.exp(s - t)
        arrivals = binomial(immigrants, arrived_after, generator, complement=arrived_before).long()
        passing_mean = (self.mean * -torch.expm1(-s) * decay).expand(xt.shape)
        passing = poisson(passing_mean, generator).long()
        xs = xt.long() + births - arrivals + passing
        return xs.clamp_(0, self.num_states - 1).to(self.dtype)

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return rates of X -> X + 1 and X -> X - 1, float64 [B, 2, ...].

        Args:
            expected: E[(X_0 - S, I) | X_t], [B, 2, ...].
            xt: states [B, ...].
            t: times.
        """
        t = expand_time(t, xt)
        decay = -torch.expm1(-t)
        missing, immigrants = expected.double().unbind(1)
        births = missing * torch.exp(-t) / decay + self.mean * decay
        return torch.stack([births, immigrants / decay], dim=1)

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return `rates` given X_0, by the mean of S given X_0 and X_t: float64 [B, 2, ...]."""
        joint = self._log_joint(x0, xt, expand_time(t, x0))
        k = torch.arange(self.max_count + 1, device=x0.device, dtype=torch.float64)
        survivors = torch.softmax(joint, -1) @ k
        statistic = torch.stack([x0 - survivors, xt - survivors], dim=1)
        return self.rates(statistic.clamp(min=0.0), xt, t)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Return rates X_t of death and a of birth, float64 [B, 2, ...]."""
        births = torch.full_like(xt, self.mean, dtype=torch.float64)
        return torch.stack([xt.double(), births], dim=1)

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """Return KL(X_t given X_0 || Poisson(a)), float64 of x0's shape.

        Over the data that is KL(Poisson(m) || Poisson(a)) >= 0 more than from the start of `prior`
        given their mean, at m = q E[X_0] + a (1 - q): a bound with it holds for that start as well.

        References: this project; checked in tests/verification/test_reverse_rates.py.
        """
        p = self.pmf(torch.arange(self.max_count + 1, device=x0.device), t)
        states = torch.arange(self.num_states, device=x0.device, dtype=torch.float64)
        log_prior = states * math.log(self.mean) - self.mean - torch.lgamma(states + 1)
        divergence = (torch.special.xlogy(p, p) - p * log_prior).sum(-1).clamp(min=0.0)
        return divergence[x0.long()]
