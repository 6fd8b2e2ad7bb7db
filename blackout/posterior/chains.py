"""What all posterior samplers have in common: chains, their starts, and the trace they leave."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import LocalProblem, Problem
from blackout.random import RandomSource, SampleStreams

Seen: TypeAlias = Callable[[int, int, Tensor, Tensor, float], None]
"""Called with (sweep, number of sweeps, x, z, level) after every sweep."""
FIELDS = ("log_likelihood", "moved", "acceptance", "total")
"""What is kept of every chain and sweep, in this order; `moved` is the share of elements in which z differs from x,
`total` the sum of x."""


@dataclass
class Posterior:
    """Samples of p(x | y).

    Attributes:
        samples: counts [n, *shape].
        log_likelihood: of them, float64 [n].
        trace: of every sweep its `level`, the chains' mean `log_likelihood`, `moved`, `acceptance` and `total`, the
            `evaluations` of the network and the `calls` of the likelihood it took for every chain, and `seconds`.
        chains: what is kept of every chain, float32 [n, sweeps, 4], see `FIELDS`.
    """

    samples: Tensor
    log_likelihood: Tensor
    trace: list[dict[str, float]] = field(default_factory=list)
    chains: Tensor = field(default_factory=lambda: torch.empty(0))


class Recorder:
    """Writes the trace.

    Args:
        prior: whose evaluations are counted.
        sweeps: how many there will be.
        seen: shown every sweep.
    """

    def __init__(self, prior: Prior, sweeps: int, seen: Seen | None = None) -> None:
        self._prior, self._sweeps, self._seen = prior, sweeps, seen
        self._trace: list[dict[str, float]] = []
        self._chains: list[Tensor] = []
        self._mark()

    def _mark(self) -> None:
        self._before, self._since = self._prior.evaluations, time.perf_counter()

    def add(self, level: float, x: Tensor, z: Tensor, log_likelihood: Tensor, acceptance: Tensor, calls: int) -> None:
        """The end of a sweep."""
        moved = (x != z).flatten(1).double().mean(1)
        kept = torch.stack([log_likelihood, moved, acceptance.double(), x.double().flatten(1).sum(1)], 1)
        means = {name: float(value) for name, value in zip(FIELDS, kept.mean(0), strict=True)}
        spent = {"evaluations": self._prior.evaluations - self._before, "calls": calls}
        seconds = time.perf_counter() - self._since
        self._trace.append({"sweep": len(self._trace), "level": level, **means, **spent, "seconds": seconds})
        self._chains.append(kept.float())
        if self._seen is not None:
            self._seen(len(self._trace), self._sweeps, x, z, level)
        self._mark()

    def result(self, x: Tensor, log_likelihood: Tensor) -> Posterior:
        """What came of it."""
        return Posterior(x, log_likelihood, self._trace, torch.stack(self._chains, 1))


class Method(ABC):
    """A posterior sampler."""

    def sample(
        self, prior: Prior, problem: Problem, num_samples: int, seed: int = 0, start: Tensor | None = None
    ) -> Posterior:
        """Samples 0..num_samples - 1 of a seed; sample k is a function of (seed, k).

        Args:
            prior: p(x).
            problem: p(y | x).
            start: counts [num_samples, *shape] to begin at; None for the method's own choice.

        Raises:
            ValueError: a problem that the method cannot solve.
        """
        streams = SampleStreams(seed, torch.arange(num_samples, device=prior.device))
        return self.run(prior, problem, num_samples, streams, start)

    @abstractmethod
    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        """The same from given random numbers, showing every sweep."""

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for what `run` would refuse, before anything long starts."""
        return

    @abstractmethod
    def sweeps(self, prior: Prior) -> int:
        """How many there are, as `seen` counts them."""

    @property
    def settings(self) -> dict[str, Any]:
        """Itself as plain values."""
        return {"method": type(self).__name__, **{k: _plain(v) for k, v in vars(self).items() if v is not None}}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def anneal(sweeps: int = 60, first: float = 3.0, last: float = 0.01) -> tuple[float, ...]:
    """Levels from `first` to `last`, evenly spaced in their logarithm  (Chu et al. 2025, section 4.3).

    Raises:
        ValueError: fewer than one, or levels that do not fall from first to last > 0.
    """
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, not {sweeps}")
    if not (math.inf > first >= last > 0):
        raise ValueError(f"levels must fall from first_level={first} to last_level={last}, which must be above 0")
    if sweeps == 1:
        return (float(first),)
    return tuple(first * (last / first) ** (k / (sweeps - 1)) for k in range(sweeps))


def check_levels(levels: tuple[float, ...], prior: Prior) -> None:
    """Raise ValueError for levels that are not positive or beyond what the prior knows."""
    if not levels or not all(0 < t < math.inf for t in levels):
        raise ValueError(f"levels must be positive, not {list(levels)}")
    if max(levels) > prior.final_time * (1 + 1e-9):
        raise ValueError(f"level {max(levels):g} is beyond the model's last time, {prior.final_time:.4g}")


def begin_chains(
    prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None, how: str
) -> Tensor:
    """Where chains begin, counts [number, *shape].

    Args:
        start: given counts.
        how: "data" for what the measurement suggests, where it does; "prior" for unconditional samples.

    Raises:
        ValueError: a start of another shape, or an unknown `how`.
    """
    if start is not None:
        if tuple(start.shape) != (number, *prior.shape) or start.is_floating_point():
            raise ValueError(f"the start must be counts of shape {(number, *prior.shape)}, not {tuple(start.shape)}")
        return start.to(prior.device, count_dtype(prior.process.max_count))
    if how not in ("data", "prior"):
        raise ValueError(f"start must be data or prior, not {how}")
    estimate = getattr(problem, "estimate", None)
    near = estimate(number, prior.shape) if how == "data" and estimate is not None else None
    if near is None:
        return prior.draw(number, folded(streams, -1))
    whole = near.to(prior.device).round().clamp(0, prior.process.max_count)
    return whole.to(count_dtype(prior.process.max_count))


# --- What ties the halves of a split chain: the process's own law at a level, and a likelihood made fit for its states.
#
# The split target is p(x) Lt(z) K_t(x, z), K_t the forward law (Chu et al. 2025, eq. 6, with a normalised potential): x
# given z is then exactly X_0 given X_t = z, and the x-marginal is p(x) (K_t Lt)(x), which tends to p(x) L(x) as t -> 0
# for any Lt that tends to L.

LARGEST_TABLE = 4096
"""Data levels up to which K_t is tabulated."""
_COMPLETIONS = 8


@dataclass(frozen=True)
class Coupling:
    """K_t of a process.

    Args:
        process: forward.
        mismatch: factor on K_t off its diagonal. 1 is right; N - 1 is what the potential of Chu et al. (eq. 10) has for
            the uniform process, whose two conditionals then do not belong to one law.
        rescaled: whether states of pure death are read as e^t z; they are darker than data.
    """

    process: Process
    mismatch: float = 1.0
    rescaled: bool = True

    def draw(self, x: Tensor, t: float, source: RandomSource = None) -> Tensor:
        """z ~ K_t(x, .), states [n, *shape]."""
        return self.process.sample(x, torch.tensor(t, dtype=torch.float64, device=x.device), source)

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """log K_t(x, z) of one element, float64 [max_count + 1, num_states].

        Raises:
            ValueError: too many levels for a table.
        """
        if self.process.max_count >= LARGEST_TABLE:
            raise ValueError(f"counts above {LARGEST_TABLE - 1} are too many for exact steps: step=metropolis")
        levels = torch.arange(self.process.max_count + 1, device=device)
        table = self.process.pmf(levels, torch.tensor(t, dtype=torch.float64, device=device)).log()
        if self.mismatch != 1.0:
            away = ~torch.eye(*table.shape, dtype=torch.bool, device=device)
            table = table + away * math.log(self.mismatch)
        return table

    def relaxed(self, problem: Problem, shape: tuple[int, ...], t: float) -> Relaxed:
        """Lt: the likelihood of states.

        Pure death: where the problem knows a likelihood of z whose average over K_t is L itself, that one, and no bias
        is left at this level; else L(min(e^t z, max_count)), or L(z) for likelihoods of whole counts alone.
        Absorption into a state of its own: the geometric mean of L over completions, masked elements taking one level
        after the other, at most eight. Others: L(min(z, max_count)).
        """
        largest, real = self.process.max_count, getattr(problem, "real", True)
        if isinstance(self.process, PureDeath) and self.rescaled and real:
            thinned = getattr(problem, "thinned", None)
            exact = None if thinned is None else thinned(math.exp(-t), shape, largest)
            if exact is not None:
                return Relaxed(exact, largest)
            return Relaxed(problem, largest, scale=math.exp(t))
        if isinstance(self.process, Absorbing) and self.process.mask > largest:
            levels = torch.linspace(0, largest, min(largest + 1, _COMPLETIONS)).round().tolist()
            return Relaxed(problem, largest, mask=self.process.mask, completions=tuple(levels))
        return Relaxed(problem, largest)

    @property
    def symmetric(self) -> bool:
        """Whether a uniform value is a fair proposal: the process draws all values alike."""
        return isinstance(self.process, Uniform)


@dataclass(frozen=True)
class Relaxed:
    """A likelihood of states; see `Coupling.relaxed`.

    Args:
        problem: whose likelihood of data is used.
        largest: count of data.
        scale: of states.
        mask: a state that stands for any of `completions`.
        completions: levels.
    """

    problem: Problem
    largest: int
    scale: float = 1.0
    mask: int | None = None
    completions: tuple[float, ...] = ()

    def log_likelihood(self, z: Tensor) -> Tensor:
        """log Lt(z), float64 [n]."""
        return self._mean([self.problem.log_likelihood(view) for view in self._views(z)])

    def terms(self, z: Tensor) -> Tensor:
        """Of a local problem, term by term: float64 [n, K]."""
        problem = cast(LocalProblem, self.problem)
        return self._mean([problem.terms(view) for view in self._views(z)])

    def select(self, rows: Tensor, shape: tuple[int, ...]) -> Relaxed:
        """That of some rows of a local problem."""
        return replace(self, problem=cast(LocalProblem, self.problem).select(rows, shape))

    def _views(self, z: Tensor) -> list[Tensor]:
        """The data, float64 [n, *shape], that states stand for."""
        if self.mask is not None:
            return [torch.where(z == self.mask, level, z.double()) for level in self.completions]
        return [(z.double() * self.scale).clamp(max=self.largest)]

    def _mean(self, values: list[Tensor]) -> Tensor:
        """Of logarithms; of the values themselves where one of them is 0, unless y is exact and 0 all there is."""
        if len(values) == 1:
            return values[0]
        stacked = torch.stack(values)
        if not getattr(self.problem, "real", True):
            return stacked.mean(0)
        arithmetic = torch.logsumexp(stacked, 0) - math.log(len(values))
        return torch.where(torch.isneginf(stacked).any(0), arithmetic, stacked.mean(0))
