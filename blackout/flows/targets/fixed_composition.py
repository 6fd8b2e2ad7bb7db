"""Targets restricted to states of a fixed composition, sampled by exchanges of two sites."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.errors import UserError
from blackout.flows.targets.base import Target


class FixedComposition(Target):
    """A target restricted to states with fixed numbers of sites per level, as a lattice gas.

    Its sweeps exchange the values of two sites.

    Args:
        unrestricted: the target.
        counts: number of sites at level 0, 1, ...

    Raises:
        ValueError: counts that do not add up to the number of sites.

    References: Kawasaki 1966; checked in tests/flows/test_annealing.py.

    Example:
        >>> from blackout.flows import Ising
        >>> target = FixedComposition(Ising(2), counts=[2, 2])
        >>> target.log_density(torch.tensor([[0, 0, 0, 1]], dtype=torch.uint8)).tolist()
        [-inf]
    """

    allows_single_flips = False

    def __init__(self, unrestricted: Target, counts: Sequence[int]) -> None:
        super().__init__(unrestricted.levels, unrestricted.shape)
        if len(counts) != self.levels or min(counts) < 0 or sum(counts) != self.sites:
            raise ValueError(
                f"counts of {self.levels} levels must add up to {self.sites}, not {list(counts)}",
            )
        self.unrestricted = unrestricted
        self.counts = torch.tensor(list(counts))
        # every site is exchanged with the next one and with a fixed distant one
        generator = torch.Generator().manual_seed(0)
        distant = torch.randperm(self.sites, generator=generator).tolist()
        self._exchanges = list[tuple[int, int]]()
        for i in range(self.sites):
            self._exchanges.append((i, (i + 1) % self.sites))
            self._exchanges.append((i, distant[i]))

    @property
    def log_num_states(self) -> float:
        """The log of the multinomial coefficient d! / (n_0! n_1! ...).

        References: this project; checked in tests/flows/test_annealing.py.
        """
        log_permutations = sum(math.lgamma(n + 1) for n in self.counts.tolist())
        return math.lgamma(self.sites + 1) - log_permutations

    def sample_initial(self, uniforms: Tensor) -> Tensor:
        """Draw uniform states of this composition by the ranks of uniforms [B, d]: uint8 [B, d].

        References: this project; checked in tests/flows/test_annealing.py.
        """
        edges = self.counts.cumsum(0)[:-1]
        ranks = uniforms.argsort(1).argsort(1)
        return torch.searchsorted(edges, ranks, right=True).to(torch.uint8)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log rho of states [..., d], minus infinity for other compositions: [...].

        References: this project; checked in tests/flows/test_annealing.py.
        """
        counts = F.one_hot(x.long(), self.levels).sum(-2)
        outside = (counts != self.counts).any(-1)
        return self.unrestricted.log_density(x).masked_fill(outside, -math.inf)

    def log_ratios(self, x: Tensor) -> Tensor:
        """Refuse: a single flip changes the composition.

        Raises:
            UserError: always.
        """
        raise UserError(
            "a target of fixed composition moves by exchanges; sample it with blackout anneal",
        )

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Exchange every site with the next one and a distant one by heat baths, [B, d].

        References: Kawasaki 1966; checked in tests/flows/test_annealing.py.
        """
        x = x.clone()
        rows = torch.arange(len(x))
        for k, (i, j) in enumerate(self._exchanges):
            # the low bits of a uniform are a second, independent one
            u = uniforms[:, i] if k % 2 == 0 else uniforms[:, i] * 2**26 % 1
            a = x[:, i].clone()
            b = x[:, j].clone()
            log_ratio_i = self.unrestricted.log_ratios_at(x, torch.tensor([i]))
            log_ratio = log_ratio_i[rows, 0, b.long()].double()
            x[:, i] = b
            log_ratio_j = self.unrestricted.log_ratios_at(x, torch.tensor([j]))
            log_ratio = log_ratio + log_ratio_j[rows, 0, a.long()]
            rejected = u >= torch.sigmoid(t * log_ratio)
            x[:, i] = torch.where(rejected, a, b)
            x[:, j] = torch.where(rejected, b, a)
        return x

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the statistics of the unrestricted target, of states [B, d]: [B] each."""
        return self.unrestricted.statistics(x)
