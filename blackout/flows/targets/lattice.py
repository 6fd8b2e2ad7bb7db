"""Ising and Potts models on periodic square lattices, with exact free energies by transfer matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.flows.targets.base import Target, own_state_zero

_LARGEST_MATRIX = 1100
"""Rows of a transfer matrix that is diagonalised."""


def neighbours(shape: Sequence[int]) -> Tensor:
    """The distinct sites beside each site of a torus [H, W], itself where there are fewer than four: int64 [d, 4]."""
    height, width = shape
    number = torch.arange(height * width).view(height, width)
    sides = [number.roll(1, 0), number.roll(-1, 0), number.roll(1, 1), number.roll(-1, 1)]
    found = torch.stack(sides, -1).flatten(0, 1)
    own = number.flatten()
    for k in range(4):
        repeated = (found[:, :k] == found[:, k : k + 1]).any(1)
        found[:, k] = torch.where(repeated, own, found[:, k])
    return found


def bonds(shape: Sequence[int]) -> Tensor:
    """Pairs of sites beside each other on a torus, each once: int64 [n, 2]."""
    if len(shape) != 2 or any(type(n) is not int or n < 1 for n in shape):
        raise ValueError(f"a lattice has a size, or [height, width], of at least 1, not {list(shape)}")
    beside = neighbours(shape)
    own = torch.arange(len(beside))[:, None].expand(-1, 4)
    pairs = torch.stack([own, beside], -1).flatten(0, 1)
    return pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0)


def coloured(adjacent: Tensor) -> list[Tensor]:
    """Sites in groups without neighbours, by the greedy colouring of a graph, bool [d, d]."""
    d = len(adjacent)
    colour = torch.full((d,), -1)
    for site in range(d):
        taken = set(colour[adjacent[site].cpu()].tolist())
        colour[site] = next(c for c in range(d) if c not in taken)
    return [torch.nonzero(colour == c).flatten() for c in range(int(colour.max()) + 1)]


class Potts(Target):
    """Potts model on a torus: log rho = beta * (number of bonds between equal states), each bond counted once.

    Args:
        size: side of the lattice, or [H, W].
        q: number of states.
        beta: inverse temperature; log(1 + sqrt q) is critical.

    Raises:
        ValueError: an impossible size, or q below 2.
    """

    beside: Tensor
    beta: Tensor

    def __init__(self, size: int | Sequence[int] = 4, q: int = 3, beta: float = 1.0) -> None:
        shape = [size, size] if isinstance(size, int) else list(size)
        pairs = bonds(shape)
        super().__init__(q, shape)
        self.register_buffer("beta", torch.tensor(float(beta), dtype=torch.float64))
        joined = torch.zeros(self.sites, self.sites, dtype=torch.float64)
        joined[pairs[:, 0], pairs[:, 1]] = 1
        self.register_buffer("beside", joined + joined.T)

    @property
    def lattice(self) -> list[int] | None:
        return list(self.shape)

    def log_density(self, x: Tensor) -> Tensor:
        of_state = self._one_hot(x)
        return self.beta * ((self.beside @ of_state) * of_state).sum((-1, -2)) / 2

    def log_ratios(self, x: Tensor) -> Tensor:
        """beta (n_i(tau) - n_i(x_i)), n_i the number of neighbours in a state."""
        return own_state_zero(self.beta * (self.beside @ self._one_hot(x)), x)

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        return own_state_zero(self.beta * (self.beside[where] @ self._one_hot(x)), x[:, where])

    def independent_sites(self) -> list[Tensor]:
        return coloured(self.beside != 0)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Order parameter (q max_k share_k - 1) / (q - 1)."""
        largest = self._one_hot(x).mean(-2).amax(-1)
        return {"order_parameter": (self.levels * largest - 1) / (self.levels - 1)}

    def exact(self) -> dict[str, float] | None:
        q = self.levels
        return transfer_matrix(float(self.beta) * torch.eye(q, dtype=torch.float64), torch.zeros(q), self.shape)

    def _one_hot(self, x: Tensor) -> Tensor:
        return F.one_hot(x.long(), self.levels).to(self.beta.dtype)


def transfer_matrix(pair: Tensor, field: Tensor, shape: Sequence[int]) -> dict[str, float] | None:
    """log Z, and E[log rho] as its derivative in the inverse temperature, of a homogeneous model on a torus.

    Args:
        pair: log-weight of a bond, [S, S] symmetric.
        field: log-weight of a state, [S].
        shape: [H, W]; None is returned where the shorter side is too long, or shorter than 3.
    """
    length, width = max(shape), min(shape)
    if width < 3 or len(field) ** width > _LARGEST_MATRIX:
        return None
    grid = torch.cartesian_prod(*[torch.arange(len(field))] * width)
    within = pair[grid, grid.roll(1, 1)].sum(1) + field.double()[grid].sum(1)
    between = sum(pair[grid[:, k][:, None], grid[:, k][None]] for k in range(width))
    log_matrix = between + (within[:, None] + within[None]) / 2

    top_weight = log_matrix.max()
    matrix = (log_matrix - top_weight).exp()
    values, vectors = torch.linalg.eigh(matrix)
    powers = (values / values.abs().max()) ** (length - 1)
    total = powers @ values
    # log Z = log tr M^L, and its derivative is L tr (M^(L-1) M log M) / tr M^L
    slopes = ((matrix * log_matrix) @ vectors * vectors).sum(0)
    log_z = length * top_weight + (length - 1) * values.abs().max().log() + total.log()
    return {"log_z": float(log_z), "mean_log_density": float(length * (powers @ slopes) / total)}
