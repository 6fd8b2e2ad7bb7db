"""Reverse steps for any process, from y = E[target | X_t]: leaps, exact bridges, and corrections at a fixed level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.diffusion.categorical import categorical, uniform
from blackout.diffusion.counts import poisson
from blackout.diffusion.kernels import Denoiser, Kernel, OneEvaluation, Rounding, stochastic_rounding
from blackout.diffusion.processes import DiscreteTimeChain, FiniteProcess
from blackout.diffusion.streams import RandomSource


@dataclass(frozen=True)
class LevelBridge(OneEvaluation):
    """Draw X_0 from the predicted distribution, then X_s from the exact bridge between X_0 and X_t.

    For distribution heads, in continuous and discrete time. Exact for a single element whatever the step; elements
    are drawn independently, which costs O(step).
    """

    def __call__(
        self, denoiser: Denoiser, process: Any, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        y = denoiser(xt, t).mean
        if not _over_levels(y, xt, process):
            raise ValueError(
                "level_bridge needs a process of finitely many states and a head that predicts a distribution over "
                "levels, such as process=uniform head=levels"
            )
        x0 = categorical(y.movedim(1, -1).double(), generator)
        return process.bridge(x0, xt, s, t, generator)


@dataclass(frozen=True)
class BirthDeathBridge(OneEvaluation):
    """Round the two predicted numbers of `BirthDeath` to whole ones, then take the exact bridge they fix."""

    rounding: Rounding = stochastic_rounding

    def __call__(
        self, denoiser: Denoiser, process: Any, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        y = denoiser(xt, t).mean
        x = xt.long()
        immigrants = torch.minimum(self.rounding(y[:, 1], generator).long(), x)
        room = (process.max_count - (x - immigrants)).clamp(min=0)
        missing = torch.minimum(self.rounding(y[:, 0], generator).long(), room)
        return process.bridge_from(missing, immigrants, xt, s, t, generator)


@dataclass(frozen=True)
class TauLeap(OneEvaluation):
    """Leaps of every reverse type at frozen rates for t - s (Algorithm 4 with the time increment it lacks).

    Types of ordered processes add up, Poisson each, clipped to the state space (Campbell et al. 2022); of unordered
    ones at most one happens. The last step, to s = 0, draws X_0 itself from a distribution head.
    """

    def __call__(
        self, denoiser: Denoiser, process: Any, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None
    ) -> Tensor:
        y = denoiser(xt, t).mean
        if float(s) == 0.0 and _over_levels(y, xt, process):
            return categorical(y.movedim(1, -1).double(), generator).to(xt.dtype)
        return _leap(process, xt, [(process.rates(y, xt, t), process.reverse_jumps(xt))], float(t - s), generator)


@dataclass(frozen=True)
class LevelCorrector:
    """A stay at level s: forward and reverse jumps together for a while leave the law p_s as it is.

    The rates are those of both generators at s, frozen for `fraction` (t - s) (Campbell et al. 2022, section 4.4).
    A perfect network gains nothing by it; an imperfect one is brought nearer to its own law at s.

    Args:
        fraction: length of the stay in units of the step t - s.

    Raises:
        ValueError: fraction is not positive; when called, a chain in discrete time.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not self.fraction > 0:
            raise ValueError(f"the corrector's fraction of a step must be positive, not {self.fraction}")

    def __call__(
        self,
        kernel: Kernel,
        denoiser: Denoiser,
        process: Any,
        xs: Tensor,
        s: Tensor,
        t: Tensor,
        generator: RandomSource = None,
    ) -> Tensor:
        """Another X_s, after the predictor's step from t to s; the predictor `kernel` is not used."""
        if isinstance(process, DiscreteTimeChain):
            raise ValueError("correctors at a level need a process in continuous time: a chain of steps has no rates")
        y = denoiser(xs, s).mean
        moves = [
            (process.rates(y, xs, s), process.reverse_jumps(xs)),
            (process.forward_rates(xs, s), process.forward_jumps(xs)),
        ]
        return _leap(process, xs, moves, self.fraction * float(t - s), generator)

    def evaluations(self, kernel: Kernel, s: float) -> int:
        return 1


def _over_levels(y: Tensor, xt: Tensor, process: Any) -> bool:
    return isinstance(process, FiniteProcess) and y.ndim == xt.ndim + 1 and y.shape[1] == process.max_count + 1


def _leap(
    process: Any, xt: Tensor, moves: list[tuple[Tensor, Tensor]], duration: float, generator: RandomSource
) -> Tensor:
    if process.ordered:
        total = sum((poisson(rates * duration, generator) * jumps).sum(1) for rates, jumps in moves)
        return (xt + total).clamp(0, process.num_states - 1).to(xt.dtype)
    rates = torch.cat([r for r, _ in moves], dim=1).movedim(1, -1)
    jumps = torch.cat([j.expand(r.shape) for r, j in moves], dim=1)
    exit_rate = rates.sum(-1)
    stays = uniform(tuple(xt.shape), generator, xt.device) < torch.exp(-exit_rate * duration)
    # where nothing can happen any weights will do
    chosen = categorical(torch.where(exit_rate[..., None] > 0, rates, 1.0), generator)
    jump = jumps.gather(1, chosen[:, None]).squeeze(1)
    return torch.where(stays | (exit_rate == 0), xt.long(), xt + jump).to(xt.dtype)
