"""The Ising model in the parametrisation of the discrete flow sampler papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from blackout.flows.targets.couplings import Couplings
from blackout.flows.targets.lattice import bonds, transfer_matrix


class Ising(Couplings):
    """Ising model on a torus: log rho = s' (sigma A) s + bias sum_i s_i, A the 0/1 adjacency: beta = 2 sigma a bond.

    Args:
        size: side of the lattice, or [H, W].
        sigma: strength; 0.22034340 is critical.
        bias: of every spin.
    """

    def __init__(self, size: int | Sequence[int] = 4, sigma: float = 0.1, bias: float = 0.0) -> None:
        shape = [size, size] if isinstance(size, int) else list(size)
        pairs = bonds(shape)
        sites = shape[0] * shape[1]
        matrix = torch.zeros(sites, sites, dtype=torch.float64)
        matrix[pairs[:, 0], pairs[:, 1]] = 2 * sigma
        super().__init__(matrix, torch.full((sites,), float(bias), dtype=torch.float64), shape)
        self._strength = 2 * sigma, bias

    @property
    def lattice(self) -> list[int] | None:
        return list(self.shape)

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        return given

    def exact(self) -> dict[str, float] | None:
        beta, bias = self._strength
        spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        return transfer_matrix(beta * spins[:, None] * spins, bias * spins, self.shape)
