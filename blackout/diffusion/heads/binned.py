"""A head that follows from a distribution of X_0 over bins of counts, by Bayes' rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.diffusion.predictions import (
    NEVER,
    CountPrediction,
)
from blackout.diffusion.schedules import logit_survival, time_of_logit
from blackout.errors import ensure

MAX_BINNED_COUNT = 1023  # `BinnedHead` has tables of all pairs of counts
SMALLEST_MEAN = 1e-30  # of float32 numbers before their logarithm
NODES_PER_LOGIT = 32  # of its tables in time; logarithms are then right to 0.01 nats up to 255
LAST_NODE = 16  # logit of survival, up to which it interpolates
MAX_TILT = 50.0  # of e^(-b n), beyond which one end has everything
BISECTIONS = 60  # to float64's precision


@component("head", "base")
@dataclass(frozen=True)
class BinnedHead:
    """y = E[X_0 | X_t] - X_t, by Bayes' rule from a predicted distribution of X_0 over bins.

    The network says what the other elements tell about an element: a probability for every bin of
    its count. The element's own count enters by its exact likelihood, P(X_t | bin, t), so that the
    network need not learn how fast y falls with single units near 0 and max_count. Missing counts
    of a bin follow from likelihoods alone: E[N | x] = (x + 1) (1 - q) / q P(x + 1) / P(x).

    Bins are equally wide in asin(sqrt(n / max_count)), on which binomial counts are about equally
    noisy; 0 and max_count have their own. Within a bin, and for a network of zeros, counts have
    the distribution of largest entropy with the data's mean, P(n) ~ e^(-b n).

    References: Robbins 1956 for E[N | x]; Austin et al. 2021, section 3.3, for the likelihood in
        the head; the bins are this project's, checked in tests/diffusion/test_binned_head.py.

    Args:
        mean: C, the mean count of the data.
        max_count: the largest count.
        intervals: number of bins less one; bins without a count are left out.

    Raises:
        ValueError: the mean is not between 0 and max_count, there are less than two intervals, or
            counts go beyond 1,023.
    """

    mean: float
    max_count: int
    intervals: int = 24
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        ensure(
            0 < self.mean < self.max_count,
            f"the head needs a mean count between 0 and {self.max_count}, not {self.mean}",
        )
        ensure(self.intervals >= 2, f"the head needs at least 2 intervals, not {self.intervals}")
        ensure(
            self.max_count <= MAX_BINNED_COUNT,
            f"head=binned takes counts up to {MAX_BINNED_COUNT:,}, not {self.max_count:,}",
        )

    @cached_property
    def bins(self) -> Tensor:
        """Distributions of the bins over counts with their prior weight, float64 [bins, levels]."""
        levels = torch.arange(self.max_count + 1, dtype=torch.float64)
        angles = torch.asin(torch.sqrt(levels / self.max_count)) * (2 / math.pi)
        numbers = torch.round(angles * self.intervals).long()
        joint = F.one_hot(numbers).T * largest_entropy(self.mean, self.max_count)
        return joint[joint.sum(1) > 0]

    @property
    def outputs(self) -> int:
        """One logit per bin."""
        return len(self.bins)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        # 1. log P(bin, x | t) and E[N | bin, x, t] for every x: [B or 1, levels, bins].
        log_evidence, missing = self._tables(t.reshape(-1))

        # 2. Those of the elements' own counts, [B, bins, ...].
        size = xt[0].numel()
        x = xt.reshape(len(xt), -1).long()
        if len(log_evidence) > 1:
            x = x + len(log_evidence[0]) * torch.arange(len(x), device=x.device)[:, None]
        rows = x.flatten()
        shape = (len(xt), size, -1)
        log_evidence = log_evidence.flatten(0, 1)[rows].view(shape)
        missing = missing.flatten(0, 1)[rows].view(shape)

        # 3. Mean over bins, by their posterior.
        logits = raw[:, : self.outputs].float().flatten(2).movedim(1, 2)
        posterior = F.softmax(logits + log_evidence, dim=2)
        y = (posterior * missing).sum(2).view(xt.shape)
        log_y = torch.log(y.clamp(min=SMALLEST_MEAN))
        return CountPrediction(y, torch.where(y > 0, log_y, NEVER))

    @torch.no_grad()
    def _tables(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P(x | bin, t) P(bin) and E[N | bin, x, t] at times t, float64 [B].

        Both are interpolated linearly in the logit of survival, E[N] over 1 - q. Logarithms are up
        to a function of x and t.

        Returns:
            float32 [B, levels, bins] each.
        """
        nodes = self._nodes_on(t.device)
        position = (logit_survival(t).clamp(-LAST_NODE, LAST_NODE) + LAST_NODE) * NODES_PER_LOGIT
        lower = position.long().clamp(max=len(nodes[0]) - 2)
        fraction = (position - lower).float()[:, None, None]
        log_evidence, share = (
            torch.lerp(values[lower], values[lower + 1], fraction) for values in nodes
        )
        return log_evidence, share * -torch.expm1(-t).float()[:, None, None]

    def _nodes_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tables at the nodes of the interpolation, [nodes, levels, bins]."""
        if device not in self._copies:
            number = 2 * LAST_NODE * NODES_PER_LOGIT + 1
            logits = torch.linspace(-LAST_NODE, LAST_NODE, number, dtype=torch.float64)
            parts = [self._table_at(t) for t in time_of_logit(logits)]
            log_evidence, share = (
                torch.stack(values).to(device) for values in zip(*parts, strict=True)
            )
            self._copies[device] = (log_evidence, share)
        return self._copies[device]

    def _table_at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm, and E[N | bin, x] / (1 - q), at a node t, [levels, bins]."""
        # 1. P(x | n) of all x and n over the largest of every x; q^x is the same for all n.
        log_ways, missing = self._log_ways
        log_lost = torch.log(-torch.expm1(-t))
        log_pmf = log_ways + missing * log_lost
        pmf = torch.exp(log_pmf - log_pmf.amax(1, keepdim=True))

        # 2. Sums over the counts of a bin.
        joint = (pmf @ self.bins.T).clamp(min=SMALLEST_MEAN)
        mean = (pmf * missing) @ self.bins.T / joint
        return torch.log(joint).float(), (mean / -torch.expm1(-t)).float()

    @cached_property
    def _log_ways(self) -> tuple[Tensor, Tensor]:
        """Logarithms of n over x, and n - x or 0, float64 [x, n]."""
        n = torch.arange(self.max_count + 1, dtype=torch.float64)
        missing = (n - n[:, None]).clamp(min=0)
        log_ways = torch.lgamma(n + 1) - torch.lgamma(n[:, None] + 1) - torch.lgamma(missing + 1)
        return torch.where(n >= n[:, None], log_ways, -math.inf), missing


def largest_entropy(mean: float, max_count: int) -> Tensor:
    """Return the distribution of largest entropy over 0..max_count with a mean.

    It is P(n) ~ e^(-b n), where b follows by bisection.

    Returns:
        float64 [max_count + 1].

    References: Cover and Thomas 2006, section 12.1.
    """
    n = torch.arange(max_count + 1, dtype=torch.float64)
    low, high = -MAX_TILT, MAX_TILT
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        if float(torch.softmax(-tilt * n, 0) @ n) > mean:
            low = tilt
        else:
            high = tilt
    return torch.softmax(-(low + high) / 2 * n, 0)
