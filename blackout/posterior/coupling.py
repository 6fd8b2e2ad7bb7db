"""The coupling K_t of data and states in split Gibbs sampling, and likelihoods of states.

References: Chu et al. 2025, eq. 7 and 10; the corrections: this project, checked in
tests/verification/posterior_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from blackout.diffusion.processes import Absorbing, Process, PureDeath
from blackout.posterior.problem import InverseProblem, Problem
from blackout.random import RandomSource

MAX_TABLE_LEVELS = 4096  # data levels up to which K_t is tabulated
MAX_COMPLETIONS = 8  # levels tried in place of masked elements


@dataclass(frozen=True)
class Coupling:
    """The forward transition K_t(x, z), in place of the potential exp(-D) of the publication.

    Args:
        process: forward process.
        mismatch_factor: factor of K_t off its diagonal. 1 is right. N - 1 is the published
            potential of the uniform process, whose two conditionals do not belong to one joint
            distribution.
        rescaled: whether states of pure death, which are darker than data, are read as e^t z.

    References: Chu et al. 2025, eq. 7 and 10.
    """

    process: Process
    mismatch_factor: float = 1.0
    rescaled: bool = True

    def draw(self, x: Tensor, t: float, source: RandomSource = None) -> Tensor:
        """Draw z ~ K_t(x, .), states of x's shape [n, *shape]."""
        time = torch.tensor(t, dtype=torch.float64, device=x.device)
        return self.process.sample(x, time, source)

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """Return log K_t(x, z) of one element, float64 [max_count + 1, num_states].

        Raises:
            ValueError: too many levels for a table.
        """
        if self.process.max_count >= MAX_TABLE_LEVELS:
            raise ValueError(
                f"counts above {MAX_TABLE_LEVELS - 1} are too many for the heat bath: "
                "use posterior.likelihood_step=metropolis"
            )
        levels = torch.arange(self.process.max_count + 1, device=device)
        time = torch.tensor(t, dtype=torch.float64, device=device)
        table = self.process.pmf(levels, time).log()
        if self.mismatch_factor != 1.0:
            off_diagonal = ~torch.eye(*table.shape, dtype=torch.bool, device=device)
            table = table + off_diagonal * math.log(self.mismatch_factor)
        return table

    def relax(self, problem: Problem, shape: tuple[int, ...], t: float) -> RelaxedLikelihood:
        """Return L_t, the likelihood of states.

        - Pure death: a likelihood of z whose average over K_t is L, if the problem knows one
          (`InverseProblem.thin`); this level then has no bias. Otherwise L(min(e^t z, max_count)),
          or L(z) if L is defined for integers only.
        - Absorption: the geometric mean of L over completions, in which all masked elements have
          the same level; at most eight levels.
        - Other processes: L(min(z, max_count)).

        References: this project; checked in tests/verification/posterior_claims.py.
        """
        max_count = self.process.max_count
        is_smooth = getattr(problem, "smooth", True)
        scale = 1.0
        if isinstance(self.process, PureDeath) and self.rescaled and is_smooth:
            thin = getattr(problem, "thin", None)
            thinned = None if thin is None else thin(math.exp(-t), shape, max_count)
            if thinned is None:
                scale = math.exp(t)
            else:
                problem = thinned
        elif isinstance(self.process, Absorbing):
            mask = self.process.mask
            num_levels = min(max_count + 1, MAX_COMPLETIONS)
            levels = torch.linspace(0, max_count, num_levels).round().tolist()

            def complete(z: Tensor) -> list[Tensor]:
                return [torch.where(z == mask, level, z.double()) for level in levels]

            return RelaxedLikelihood(problem, complete)

        def rescale(z: Tensor) -> list[Tensor]:
            return [(z.double() * scale).clamp(max=max_count)]

        return RelaxedLikelihood(problem, rescale)


@dataclass(frozen=True)
class RelaxedLikelihood:
    """A likelihood L_t of states; see `Coupling.relax`.

    Args:
        problem: with the likelihood of data.
        to_data: states [n, *shape] -> one or several data, float64 [n, *shape] each, over which
            log L is averaged.
    """

    problem: Problem
    to_data: Callable[[Tensor], list[Tensor]]

    def log_likelihood(self, z: Tensor) -> Tensor:
        """Return log L_t(z), float64 [n], of states [n, *shape]."""
        return self._average([self.problem.log_likelihood(x) for x in self.to_data(z)])

    def terms(self, z: Tensor, elements: Tensor, num_states: int) -> Tensor:
        """Return the terms of log L_t with some elements at 0, at 1, ..., all at the same level.

        Args:
            z: states [n, *shape].
            elements: indices of the elements, int64 [E].
            num_states: number of levels.

        Returns:
            float64 [num_states n, K]. If the operator is linear, each level costs one sum.

        References: this project; see `Coupling.relax`.
        """
        problem = cast(InverseProblem, self.problem)
        shape = tuple(z.shape[1:])
        levels = torch.arange(num_states, device=z.device)
        if not problem.operator.linear:
            states = z.flatten(1).expand(num_states, -1, -1).clone()
            states[:, :, elements] = levels.to(z.dtype).view(-1, 1, 1)
            data = self.to_data(states.view(-1, *shape))
            return self._average([problem.terms(x) for x in data])

        # G(x) = G(x without the elements) + level G(indicator of the elements)
        indices = torch.arange(z[0].numel(), device=z.device)
        is_chosen = torch.isin(indices, elements).view(1, *shape)
        m_unit = problem.operator(is_chosen.double())
        terms = []
        for x, x_levels in zip(self.to_data(z), self.to_data(levels), strict=True):
            m_others = problem.operator(x * ~is_chosen)
            m = m_others + x_levels.view(-1, *[1] * m_unit.ndim) * m_unit
            terms.append(problem.terms_at(m.flatten(0, 1), shape))
        return self._average(terms)

    def _average(self, log_likelihoods: list[Tensor]) -> Tensor:
        """Return the mean of log L [...] over completions, of the same shape.

        Where one L is 0 it is the log of the mean of L, unless L is not smooth, as for exact y.

        References: this project; see `Coupling.relax`.
        """
        if len(log_likelihoods) == 1:
            return log_likelihoods[0]
        stacked = torch.stack(log_likelihoods)
        if not getattr(self.problem, "smooth", True):
            return stacked.mean(0)
        log_mean = torch.logsumexp(stacked, 0) - math.log(len(stacked))
        return torch.where(torch.isneginf(stacked).any(0), log_mean, stacked.mean(0))
