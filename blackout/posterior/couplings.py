"""What ties the halves of a split chain: the process's own law at a level, and a likelihood made fit for its states.

The split target is p(x) Lt(z) K_t(x, z), K_t the forward law (Chu et al. 2025, eq. 6, with a normalised potential): x
given z is then exactly X_0 given X_t = z, and the x-marginal is p(x) (K_t Lt)(x), which tends to p(x) L(x) as t -> 0
for any Lt that tends to L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.posterior.problem import LocalProblem, Problem
from blackout.random import RandomSource

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
