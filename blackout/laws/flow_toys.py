"""Small targets whose states are enumerated: generators, kernels and the best rates as arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.residual import outgoing, residual
from blackout.flows.simulation import Scores
from blackout.flows.targets import Target, all_states
from blackout.laws.toys import Array

_TOLERANCE = 1e-10


class Enumeration:
    """All states of a target, and which are neighbours.

    Args:
        target: with few states.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.states = States.of(target, all_states(target.levels, target.sites))
        self.number = len(self.states.x)
        places = target.levels ** torch.arange(target.sites - 1, -1, -1)
        states = torch.arange(target.levels)
        self._places = places
        row = torch.arange(self.number)
        # the number of Swap(x, i, tau), int64 [n, d, S]
        self.swapped = row[:, None, None] + (states - self.states.x.long()[..., None]) * places[:, None]
        self.slopes = self.states.slopes
        self.log_z = float(torch.logsumexp(self.states.log_density, 0))

    def index(self, x: Tensor) -> Tensor:
        """The numbers of states [B, d], int64 [B]."""
        return (x.long() * self._places).sum(-1)

    def law(self, t: float) -> Tensor:
        """p_t, float64 [n]."""
        return torch.softmax(t * self.states.log_density, 0)

    def lookup(self, table: Callable[[float], Tensor]) -> Scores:
        """Scores from a table of all states at a time, [n, d, S]."""
        return lambda states, t: table(t)[self.index(states.x)]

    def best_scores(self, t: float) -> Tensor:
        """G that carries p_t with the least squared flux: [n, d, S].

        The flux into y from x is phi(y) - phi(x), the Laplacian of phi is d p_t / dt; it is diagonal in Fourier space.
        """
        levels, sites, law = self.target.levels, self.target.sites, self.law(t)
        change = (law * (self.slopes - law @ self.slopes)).view([levels] * sites)
        waves = torch.stack(torch.meshgrid(*[torch.arange(levels)] * sites, indexing="ij"))
        eigenvalue = levels * (waves != 0).sum(0).double()
        spectrum = change.to(torch.complex128)
        for site in range(sites):  # one by one: libraries refuse many dimensions at once
            spectrum = torch.fft.fft(spectrum, dim=site)
        spectrum = spectrum / eigenvalue.clamp(min=1)
        for site in range(sites):
            spectrum = torch.fft.ifft(spectrum, dim=site)
        phi = spectrum.real.flatten()
        flux = phi[self.swapped] - phi[:, None, None]
        return torch.where(flux > 0, flux / law[:, None, None], flux / law[self.swapped])

    def transported(self, scores: Callable[[float], Tensor], steps: int, weighted: bool) -> Tensor:
        """The mass of e^w at every state at t = 1, or of 1, when rates are frozen at the middle of each interval."""
        mass = torch.full((self.number,), 1.0 / self.number, dtype=torch.float64).numpy()
        for k in range(steps):
            a, b = k / steps, (k + 1) / steps
            table = scores((a + b) / 2)
            rates = outgoing(table)
            total = rates.sum((1, 2)).numpy()
            # a jump from the swapped state to this one has that state's rate to this one's value
            own = self.states.x.long()[:, :, None].expand(-1, -1, self.target.levels)
            sites = torch.arange(self.target.sites)[None, :, None]
            into = rates[self.swapped, sites, own].flatten(1).numpy()
            source = self.swapped.flatten(1).numpy()

            parts = table, total, into, source, weighted
            mass = solve_ivp(self._change, (a, b), mass, "DOP853", rtol=_TOLERANCE, atol=1e-13, args=parts).y[:, -1]
        return torch.from_numpy(mass)

    def _change(
        self, t: float, mass: Array, table: Tensor, total: Array, into: Array, source: NDArray[np.int64], weighted: bool
    ) -> Array:
        """d mass / dt, by Kolmogorov's forward equation and, with weights, Feynman and Kac's potential xi."""
        change: Array = (into * mass[source]).sum(1) - total * mass
        if weighted:
            change += residual(self.slopes, table, t * self.states.ratios).numpy() * mass
        return change

    def leap_kernel(self, table: Tensor, length: float) -> Tensor:
        """Transition probabilities of the factorised step, [n, n]."""
        rates = outgoing(table)
        total = rates.sum(-1, keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        own = torch.nn.functional.one_hot(self.states.x.long(), self.target.levels)
        law = moves + own * torch.exp(-length * total)
        kernel = torch.ones(self.number, 1, dtype=torch.float64)
        for site in range(self.target.sites):
            kernel = (kernel[:, :, None] * law[:, site, None, :]).flatten(1)
        return kernel

    def single_kernel(self, table: Tensor, length: float) -> Tensor:
        """Transition probabilities of at most one jump, [n, n]."""
        rates = outgoing(table)
        total = rates.sum((1, 2), keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        kernel = torch.diag((-length * total).exp().flatten())
        return kernel.scatter_add_(1, self.swapped.flatten(1), moves.flatten(1))
