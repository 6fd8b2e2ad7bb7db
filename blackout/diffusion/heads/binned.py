"""A head that follows from a distribution of X_0 over bins of counts, by Bayes' rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.counts import per_sample_time
from blackout.diffusion.predictions import NEVER, TINY, CountPrediction
from blackout.diffusion.survival import logit_survival, time_of_logit
from blackout.errors import ensure

MAX_BINNED_COUNT = 1023  # the tables hold all pairs of counts
SMALLEST_MEAN = 1e-30  # float32 numbers are at least this before their logarithm is taken
NODES_PER_LOGIT = 32  # nodes of the tables per unit of logit(q): 0.01 nats of error up to 255
LAST_NODE = 16  # the nodes cover logit(q) from -16 to 16
MAX_TILT = 50.0  # |b| of e^(-b n), beyond which all probability is at one end
BISECTIONS = 60  # halvings of 2 MAX_TILT, down to float64's precision


@component("head", "base")
@dataclass(frozen=True)
class BinnedHead:
    """Head that predicts a distribution of X_0 over bins, and by Bayes' rule the missing count.

    The network predicts what the other elements say about an element: a logit for every bin of its
    count. The element's own count enters by its exact binomial likelihood, so that the network need
    not learn how fast y falls with single units near 0 and max_count. With N = X_0 - X_t,

        P(bin | x) ~ e^logit P(bin) P(x | bin, t),    y = sum over bins of P(bin | x) E[N | bin, x].

    Bins are equally wide in asin(sqrt(n / max_count)), on which binomial counts are about equally
    noisy. With 24 intervals, 0 and max_count are alone in their bins up to max_count 933. Within a
    bin, and for a network of zeros, counts have the maximum-entropy distribution of the data's
    mean, P(n) ~ e^(-b n).

    P(x | bin, t) and E[N | bin, x] come from tables over time, which are built at the first call on
    a device: 52 MB for counts up to 255, 210 MB up to 1,023.

    References: Austin et al. 2021, section 3.3, for the likelihood in the head; the bins are this
        project's, checked in tests/diffusion/test_binned_head.py.

    Args:
        mean: C, the mean count of the data.
        max_count: the largest count.
        intervals: number of bins less one; bins without a count are left out.

    Raises:
        ValueError: the mean is not between 0 and max_count, there are fewer than two intervals, or
            max_count is above 1,023.
    """

    mean: float
    max_count: int
    intervals: int = 24
    _tables: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        ensure(
            0 < self.mean < self.max_count,
            f"the head needs a mean count between 0 and {self.max_count}, not {self.mean}: "
            "are the data all zeros, or all max_count?",
        )
        ensure(
            self.intervals >= 2,
            f"head.intervals must be at least 2, not {self.intervals}: use the default, 24",
        )
        ensure(
            self.max_count <= MAX_BINNED_COUNT,
            f"head=binned takes counts up to {MAX_BINNED_COUNT:,}, not {self.max_count:,}: "
            "use head=bounded or head=gamma",
        )

    @cached_property
    def bins(self) -> Tensor:
        """Which counts are in which bin: 0 or 1, float64 [bins, levels]."""
        levels = torch.arange(self.max_count + 1, dtype=torch.float64)
        angles = torch.asin(torch.sqrt(levels / self.max_count)) * (2 / math.pi)
        is_member = F.one_hot(torch.round(angles * self.intervals).long()).T
        return is_member[is_member.sum(1) > 0].double()

    @cached_property
    def log_prior(self) -> Tensor:
        """Log P(n) of a network of zeros, float64 [levels]."""
        return max_entropy_log_probs(self.mean, self.max_count)

    @property
    def outputs(self) -> int:
        """One logit per bin."""
        return len(self.bins)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        # 1. log P(bin, x | t) and E[N | bin, x, t] for every x: [B or 1, levels, bins].
        log_joint, missing = self._interpolate(per_sample_time(t, xt))

        # 2. Those of the elements' own counts, [B, elements, bins]. States above max_count, such as
        #    an absorbing one, belong to processes whose losses refuse this head.
        num_elements = xt[0].numel()
        x = xt.reshape(len(xt), -1).long().clamp(max=self.max_count)
        if len(log_joint) > 1:
            x = x + len(log_joint[0]) * torch.arange(len(x), device=x.device)[:, None]
        rows = x.flatten()
        shape = (len(xt), num_elements, -1)
        log_joint = log_joint.flatten(0, 1)[rows].view(shape)
        missing = missing.flatten(0, 1)[rows].view(shape)

        # 3. Mean over bins, by their posterior.
        logits = raw[:, : self.outputs].float().flatten(2).movedim(1, 2)
        posterior = F.softmax(logits + log_joint, dim=2)
        y = (posterior * missing).sum(2).view(xt.shape)
        log_y = torch.log(y.clamp(min=SMALLEST_MEAN))
        return CountPrediction(y, torch.where(y > 0, log_y, NEVER))

    @torch.no_grad()
    def _interpolate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P(bin, x | t), up to a function of x and t, and E[N | bin, x, t].

        The logarithm and E[N] / (1 - q), q = e^-t, are interpolated linearly in logit(q).

        Args:
            t: times, float64 [B].

        Returns:
            float32 [B, levels, bins] each.
        """
        nodes = self._tables_on(t.device)
        position = (logit_survival(t).clamp(-LAST_NODE, LAST_NODE) + LAST_NODE) * NODES_PER_LOGIT
        lower = position.long().clamp(max=len(nodes[0]) - 2)
        fraction = (position - lower).float()[:, None, None]
        log_joint, scaled_mean = (
            torch.lerp(values[lower], values[lower + 1], fraction) for values in nodes
        )
        return log_joint, scaled_mean * -torch.expm1(-t).float()[:, None, None]

    def _tables_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return what `_table_at` returns at all nodes, float32 [nodes, levels, bins] each."""
        if device not in self._tables:
            num_nodes = 2 * LAST_NODE * NODES_PER_LOGIT + 1
            logits = torch.linspace(-LAST_NODE, LAST_NODE, num_nodes, dtype=torch.float64)
            parts = [self._table_at(t) for t in time_of_logit(logits)]
            log_joint, scaled_mean = (
                torch.stack(values).to(device) for values in zip(*parts, strict=True)
            )
            self._tables[device] = (log_joint, scaled_mean)
        return self._tables[device]

    def _table_at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P(bin, x | t), up to a function of x, and E[N | bin, x, t] / (1 - q).

        Args:
            t: a node, a float64 scalar.

        Returns:
            float32 [levels, bins] each.
        """
        # 1. P(n) P(x | n) over its largest value for every x; q^x is the same for all n. Without
        #    P(n) here, counts far above the mean of sparse data would underflow.
        log_choose, missing = self._log_choose
        log_joint = self.log_prior + log_choose + missing * torch.log(-torch.expm1(-t))
        joint = torch.exp(log_joint - log_joint.amax(1, keepdim=True))

        # 2. Sums over the counts of a bin.
        total = (joint @ self.bins.T).clamp(min=TINY)
        mean = (joint * missing) @ self.bins.T / total
        return torch.log(total).float(), (mean / -torch.expm1(-t)).float()

    @cached_property
    def _log_choose(self) -> tuple[Tensor, Tensor]:
        """Log C(n, x), and n - x or 0, float64 [x, n] each."""
        n = torch.arange(self.max_count + 1, dtype=torch.float64)
        missing = (n - n[:, None]).clamp(min=0)
        log_choose = torch.lgamma(n + 1) - torch.lgamma(n[:, None] + 1) - torch.lgamma(missing + 1)
        return torch.where(n >= n[:, None], log_choose, -math.inf), missing


def max_entropy_log_probs(mean: float, max_count: int) -> Tensor:
    """Return log P(n) of the maximum-entropy distribution over 0..max_count with a mean.

    It is P(n) ~ e^(-b n), where b follows by bisection.

    Returns:
        float64 [max_count + 1].

    References: Cover and Thomas 2006, section 12.1.
    """
    n = torch.arange(max_count + 1, dtype=torch.float64)
    low = -MAX_TILT
    high = MAX_TILT
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        if float(torch.softmax(-tilt * n, 0) @ n) > mean:
            low = tilt
        else:
            high = tilt
    return torch.log_softmax(-(low + high) / 2 * n, 0)
