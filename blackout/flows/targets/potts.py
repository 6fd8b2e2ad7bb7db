"""The Potts model on a square lattice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.flows.targets.base import Target
from blackout.flows.targets.lattice import Size, lattice_bonds, transfer_matrix


@component("target")
class Potts(Target):
    """Potts model on a torus: log rho = beta * (number of bonds between equal values).

    Each bond is counted once. The critical point is beta = log(1 + sqrt(q)), 1.00505254 for q = 3.

    References: Wu 1982.

    Args:
        size: side of the lattice, or [H, W].
        q: number of values of a site.
        beta: inverse temperature.

    Raises:
        ValueError: an impossible size, or q below 2.

    Example:
        >>> Potts(size=3, q=2, beta=0.5).log_density(torch.zeros(9, dtype=torch.uint8)).item()
        9.0
    """

    def __init__(self, size: Size = 4, q: int = 3, beta: float = 1.0) -> None:
        shape, bonds = lattice_bonds(size)
        super().__init__(q, shape)
        self.lattice = shape
        self.beta = nn.Buffer(torch.tensor(float(beta), dtype=torch.float64))
        upper = torch.zeros(self.sites, self.sites)
        upper = upper.index_put(bonds.unbind(1), torch.tensor(1.0)).double()
        self.adjacency = nn.Buffer(upper + upper.T)  # [d, d]

    def log_density(self, x: Tensor) -> Tensor:
        """Return beta times the number of bonds between equal values, [...] of x [..., d].

        References: Wu 1982.
        """
        one_hot = self._one_hot(x)
        return self.beta * ((self.adjacency @ one_hot) * one_hot).sum((-1, -2)) / 2

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return beta (n_i(tau) - n_i(x_i)), n_i the number of neighbours by value: [B, n, S].

        References: this project; checked in tests/flows/test_targets.py.
        """
        energy = self.beta * (self.adjacency[sites] @ self._one_hot(x))
        return energy - energy.gather(-1, x[:, sites].long()[..., None])

    def pairwise_terms(self) -> tuple[Tensor, Tensor]:
        """Return w = beta A, [d, d], and f = 0, [d, S]; see `Target.pairwise_terms`."""
        field = torch.zeros(self.sites, self.levels, dtype=torch.float64, device=self.device)
        return self.beta * self.adjacency, field

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the order parameter (q max_k fraction_k - 1) / (q - 1), [B].

        References: Wu 1982.
        """
        largest = self._one_hot(x).mean(-2).amax(-1)
        return {"order_parameter": (self.levels * largest - 1) / (self.levels - 1)}

    def closed_form(self, t: float = 1.0) -> dict[str, float] | None:
        """Return `log_z` and `mean_energy` of rho^t by `transfer_matrix`."""
        bond = float(self.beta) * torch.eye(self.levels, dtype=torch.float64)
        return transfer_matrix(bond, torch.zeros(self.levels), self.shape, t)

    def _one_hot(self, x: Tensor) -> Tensor:
        """Return states [..., d] as one-hot vectors, [..., d, S]."""
        return F.one_hot(x.long(), self.levels).to(self.beta.dtype)
