"""What all posterior samplers have in common: a method, as the command line chooses it, and its run with the trace.

Also what steps of chains share: levels, the Metropolis acceptance, whole samples by rows.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from blackout.counts import count_dtype, per_row
from blackout.diffusion.sampler import Sampler
from blackout.errors import ensure
from blackout.posterior.diagnostics import FIELDS, projections
from blackout.posterior.draw import PosteriorDraw, requested
from blackout.posterior.problem import Prior, Problem
from blackout.random import SampleStreams

Observer: TypeAlias = Callable[[int, int, Tensor, Tensor, float], None]
"""Called with (sweep, number of sweeps, x, z, level) after every sweep."""


@dataclass
class Posterior:
    """Samples of p(x | y).

    Attributes:
        samples: counts [n, *shape].
        log_likelihood: of them, float64 [n].
        trace: of every sweep its `level`, the chains' mean `log_likelihood`, `moved`, `acceptance` and `total`, the
            `evaluations` of the network and the `calls` of the likelihood it took for every chain, and `seconds`.
        chains: what is kept of every chain, float32 [n, sweeps, 4 + projections], see `FIELDS`.
        pasted: elements of each sample that contradicted y and were put where it allows them, int64 [n].
        log_evidence: of methods that weigh particles, the logarithm of an unbiased estimate of p(y) by those of each
            sample, float64 [n]; else empty.
    """

    samples: Tensor
    log_likelihood: Tensor
    trace: list[dict[str, float]] = field(default_factory=list)
    chains: Tensor = field(default_factory=lambda: torch.empty(0))
    pasted: Tensor = field(default_factory=lambda: torch.empty(0))
    log_evidence: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class Run:
    """One run of a method: what it is given, and the trace it leaves.

    Args:
        prior: p(x); its evaluations are counted.
        problem: p(y | x).
        number: of samples, n.
        streams: of random numbers.
        start: counts [n, *shape] to begin at; None for the method's own choice.
        sweeps: how many there will be.
        observer: shown every sweep.
    """

    prior: Prior
    problem: Problem
    number: int
    streams: SampleStreams
    start: Tensor | None
    sweeps: int
    observer: Observer | None = None
    trace: list[dict[str, float]] = field(default_factory=list)
    chains: list[Tensor] = field(default_factory=list)
    log_evidence: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        self._mark()

    def _mark(self) -> None:
        self._before, self._since = self.prior.evaluations, time.perf_counter()

    @property
    def spent(self) -> int:
        """Evaluations of the network since the last sweep."""
        return self.prior.evaluations - self._before

    def begin(self, how: str) -> Tensor:
        """Where chains begin, counts [n, *shape].

        Args:
            how: "data" for what the measurement suggests, where it does; "prior" for unconditional samples.

        Raises:
            ValueError: a start of another shape.
        """
        prior, shape = self.prior, (self.number, *self.prior.shape)
        dtype = count_dtype(prior.process.max_count)
        if self.start is not None:
            if tuple(self.start.shape) != shape or self.start.is_floating_point():
                raise ValueError(f"the start must be counts of shape {shape}, not {tuple(self.start.shape)}")
            return self.start.to(prior.device, dtype)
        near = suggested(self.problem, self.number, prior.shape) if how == "data" else None
        if near is None:
            return prior.draw(self.number, self.streams.fold_in(-1))
        return near.to(prior.device).round().clamp(0, prior.process.max_count).to(dtype)

    def record(
        self,
        level: float,
        x: Tensor,
        z: Tensor | None = None,
        log_likelihood: Tensor | None = None,
        acceptance: Tensor | float = 1.0,
        calls: int = 1,
        evaluations: int | None = None,
    ) -> None:
        """The end of a sweep: shares, means and projections of it, see `FIELDS`.

        Args:
            level: it was at.
            x, z: states [n, *shape]; z is x where there is none.
            log_likelihood: of x, float64 [n]; None to ask for it.
            acceptance: of every chain, [n].
            calls: of the likelihood for every chain.
            evaluations: of the network for every chain; None for those of batches since the last sweep.
        """
        z = x if z is None else z
        if log_likelihood is None:
            log_likelihood = self.problem.log_likelihood(x.double().clamp(max=self.prior.process.max_count))
        flat = x.double().flatten(1)
        moved, total = (x != z).flatten(1).double().mean(1), flat.sum(1)
        kept = torch.stack([log_likelihood, moved, torch.ones_like(moved) * acceptance, total], 1)
        means = dict(zip(FIELDS, kept.mean(0).tolist(), strict=True))
        spent = {"evaluations": self.spent if evaluations is None else evaluations, "calls": calls}
        seconds = time.perf_counter() - self._since
        self.trace.append({"sweep": len(self.trace), "level": level, **means, **spent, "seconds": seconds})
        self.chains.append(torch.cat([kept, flat @ projections(flat.shape[1]).to(flat.device)], 1).float())
        if self.observer is not None:
            self.observer(len(self.trace), self.sweeps, x, z, level)
        self._mark()


def suggested(problem: Problem, number: int, shape: tuple[int, ...]) -> Tensor | None:
    """Data that a problem's measurement suggests, float64 [number, *shape]; None where it knows none."""
    estimate = getattr(problem, "estimate", None)
    return None if estimate is None else estimate(number, shape)


class Method(ABC):
    """A posterior sampler."""

    mixes: ClassVar[bool] = False
    """Whether its late sweeps are draws of Markov chains, of which R-hat and effective sizes say something."""
    walks: ClassVar[bool] = False
    """Whether it takes the steps of the sampler's grid, rather than only runs between its ends."""

    def sample(
        self,
        prior: Prior,
        problem: Problem,
        num_samples: int,
        seed: int | SampleStreams = 0,
        start: Tensor | None = None,
        observer: Observer | None = None,
    ) -> Posterior:
        """Samples 0..num_samples - 1 of a seed; sample k's random numbers are a function of (seed, k).

        Elements that y excludes, as chains at a positive level leave some, are put where it allows them and counted,
        where the problem says how (`Measured.repaired`).

        Args:
            prior: p(x).
            problem: p(y | x).
            seed: or the random numbers of each sample.
            start: counts [num_samples, *shape] to begin at; None for the method's own choice.
            observer: shown every sweep.

        Raises:
            ValueError: a problem that the method cannot solve.
        """
        self.check(prior, problem)
        own = SampleStreams(seed, torch.arange(num_samples, device=prior.device)) if isinstance(seed, int) else seed
        run = Run(prior, problem, num_samples, own, start, self.length(prior), observer)
        drawn = self.draw(run)
        repaired = getattr(problem, "repaired", None)
        x = drawn if repaired is None else repaired(drawn)
        pasted = (x != drawn).flatten(1).sum(1)
        log_l, kept = problem.log_likelihood(x.double()), torch.stack(run.chains, 1)
        return Posterior(x, log_l, run.trace, kept, pasted, run.log_evidence)

    def method(self, prior: Prior, problem: Problem) -> Method:
        """Itself, or what its settings, as the command line has them, make of such a problem."""
        return self

    def asked(self, model: Any, sampler: Sampler, request: Mapping[str, Any]) -> PosteriorDraw:
        """What `sample.py` draws, see `draw.requested`."""
        return requested(self, model, sampler, request)

    def takes_steps(self, prior: Prior, problem: Problem) -> bool:
        """Whether anything is drawn by steps of the sampler's grid: walks, or unconditional samples to start from."""
        walks = self.walks and getattr(self, "steps", None) is None
        start = getattr(self, "start", "data")
        return walks or start == "prior" or (self.mixes and suggested(problem, 1, prior.shape) is None)

    @abstractmethod
    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]; every sweep is recorded."""

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for what cannot be run, before anything long starts."""
        return

    def length(self, prior: Prior) -> int:
        """How many there are, as observers count them."""
        return 1


def check_levels(levels: Sequence[float], prior: Prior) -> None:
    """Raise ValueError for levels that are not positive or beyond what the prior knows."""
    ensure(levels and all(0 < t < math.inf for t in levels), f"levels must be positive, not {list(levels)}")
    if max(levels) > prior.final_time * (1 + 1e-9):
        raise ValueError(f"level {max(levels):g} is beyond the model's last time, {prior.final_time:.4g}")


def accepted(log_ratio: Tensor, now: Tensor, u: Tensor) -> Tensor:
    """Which proposals a Metropolis step takes, bool [n]: with probability min(1, ratio), out of L = 0 always.

    [Hastings 1970]; that no time is lost where L = 0 is ours.

    Args:
        log_ratio: log of the ratio, [n].
        now: log L of the states before, [n].
        u: uniforms [n, 1].
    """
    return u[:, 0].log() < torch.where(torch.isneginf(now), math.inf, log_ratio)


def where_rows(rows: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
    """Whole samples [n, *shape] of one or the other, by rows [n]."""
    return torch.where(per_row(rows, then), then, otherwise)
