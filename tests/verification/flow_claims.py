"""What is claimed of flows: simulations, weights, moves and likelihoods, against enumerated targets.

`Enumeration` has the generators, kernels and best rates of a small target as arrays over all its states. Ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from torch import Tensor

from benchmarks.proposals import LocallyInformed
from blackout.flows.path import (
    States,
    forward_residual,
    integrated_residual,
    outgoing_rates,
    stein_control_variate,
)
from blackout.flows.refinement import DMALA, Clusters, Gibbs, Refinement
from blackout.flows.simulation import Events, Leap, NetRates, Simulation, Single, run_reverse
from blackout.flows.targets import Couplings, Ising, Potts, SpinGlass, Target, all_states
from blackout.networks import LESite
from blackout.random import SampleStreams
from blackout.verification.draws import count_states, p_value, state_numbers
from blackout.verification.exact_steps import joint_distribution
from blackout.verification.toys import Array
from tests.verification.claim import Claim

_TOLERANCE = 1e-10
_CHAINS = 20_000
_STEPS = (16, 32, 64)


class Enumeration:
    """All states of a target, and which are neighbours.

    Args:
        target: with few states.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.states = States.evaluate(target, all_states(target.levels, target.sites))
        self.number = len(self.states.x)
        places = target.levels ** torch.arange(target.sites - 1, -1, -1)
        states = torch.arange(target.levels)
        row = torch.arange(self.number)
        # the number of Swap(x, i, tau), int64 [n, d, S]
        self.swapped = row[:, None, None] + (states - self.states.x.long()[..., None]) * places[:, None]
        self.slopes = self.states.dlogp_dt
        self.log_z = float(torch.logsumexp(self.states.log_density, 0))

    def index(self, x: Tensor) -> Tensor:
        """The numbers of states [B, d], int64 [B]."""
        return torch.from_numpy(state_numbers(x, self.target.levels))

    def law(self, t: float) -> Tensor:
        """p_t, float64 [n]."""
        return torch.softmax(t * self.states.log_density, 0)

    def lookup(self, table: Callable[[float], Tensor]) -> NetRates:
        """Net rates from a table of all states at a time, [n, d, S]."""
        return lambda states, t: table(t)[self.index(states.x)]

    @cached_property
    def _potential(self) -> Tensor:
        """What takes d p_t / dt to phi, [n, n]: the inverse of the Laplacian, whose null space the constants are."""
        steps, one = self.swapped.flatten(1), torch.ones((), dtype=torch.float64)
        neighbours = torch.zeros(self.number, self.number, dtype=torch.float64)
        neighbours.scatter_add_(1, steps, one.expand(steps.shape))
        return torch.linalg.inv(torch.diag(neighbours.sum(1)) - neighbours + 1 / self.number)

    def best_net_rates(self, t: float) -> Tensor:
        """G that carries p_t with the least squared flux: [n, d, S].

        The flux into y from x is phi(y) - phi(x), the Laplacian of phi is d p_t / dt.
        """
        law = self.law(t)
        phi = self._potential @ (law * (self.slopes - law @ self.slopes))
        flux = phi[self.swapped] - phi[:, None, None]
        return torch.where(flux > 0, flux / law[:, None, None], flux / law[self.swapped])

    def transported(self, scores: Callable[[float], Tensor], steps: int, weighted: bool) -> Tensor:
        """The mass of e^w at every state at t = 1, or of 1, when rates are frozen at the middle of each interval."""
        mass = torch.full((self.number,), 1.0 / self.number, dtype=torch.float64).numpy()
        for k in range(steps):
            a, b = k / steps, (k + 1) / steps
            table = scores((a + b) / 2)
            rates = outgoing_rates(table)
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
            change += forward_residual(self.slopes, table, t * self.states.log_ratios).numpy() * mass
        return change

    def leap_kernel(self, table: Tensor, length: float) -> Tensor:
        """Transition probabilities of the factorised step, [n, n]."""
        rates = outgoing_rates(table)
        total = rates.sum(-1, keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        own = torch.nn.functional.one_hot(self.states.x.long(), self.target.levels)
        law = moves + own * torch.exp(-length * total)
        return torch.from_numpy(joint_distribution(law.numpy()))

    def single_kernel(self, table: Tensor, length: float) -> Tensor:
        """Transition probabilities of at most one jump, [n, n]."""
        rates = outgoing_rates(table)
        total = rates.sum((1, 2), keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        kernel = torch.diag((-length * total).exp().flatten())
        return kernel.scatter_add_(1, self.swapped.flatten(1), moves.flatten(1))


def untrained(target: Target, heat_bath: bool = False, scale: float = 5.0) -> Callable[[float], Tensor]:
    """A random network of the target as a function of time: G of all states, float64."""
    torch.manual_seed(0)
    network = LESite(target.sites, target.levels, 8, 1, heat_bath=heat_bath).double()
    with torch.no_grad():
        network.omega.mul_(scale)
    everything = Enumeration(target)

    def table(t: float) -> Tensor:
        times = torch.full((everything.number,), t, dtype=torch.float64)
        with torch.no_grad():
            scores: Tensor = network(everything.states.x, times, everything.states.log_ratios)
        return scores

    return table


def claims() -> Iterator[Claim]:
    """Everything that is claimed."""
    yield from _events()
    yield from _time_steps()
    yield from _weights()
    yield from _residuals()
    yield from _invariance()


def _events() -> Iterator[Claim]:
    strong: tuple[tuple[str, Target], ...] = (("Ising 3x3", Ising(3, 0.4)), ("Potts 3x3, q = 3", Potts(3, 3, 0.7)))
    for name, target in strong:
        toy, table = Enumeration(target), untrained(target)
        rho = toy.states.log_density.exp()
        for steps in (1, 2, 8):
            mass = toy.transported(table, steps, weighted=True)
            wrong = float(((mass - rho).abs() / rho.max()).max())
            yield Claim(f"events, {name}, {steps} steps: mass of e^w is rho", wrong, 1e-8)
    weak: tuple[tuple[str, Target], ...] = (("Ising 3x3", Ising(3, 0.2)), ("Potts 3x3, q = 3", Potts(3, 3, 0.3)))
    for name, target in weak:  # stronger ones have weights too heavy for a standard error
        toy = Enumeration(target)
        paths = Events(1).run(target, toy.lookup(untrained(target, scale=1.0)), torch.arange(_CHAINS), 0)
        off = _off(paths.log_weights - toy.log_z)
        yield Claim(f"events, {name}, 1 step: E e^(w - log Z) = 1, in standard errors", off, 4)
    toy, table = Enumeration(Ising(3, 0.4)), untrained(Ising(3, 0.4))
    drawn = Events(2).run(toy.target, toy.lookup(table), torch.arange(_CHAINS), 1).states.x
    yield Claim("events, Ising 3x3, 2 steps: the states drawn", _p(toy, drawn, toy.transported(table, 2, False)), None)
    end = toy.states.x[77].repeat(_CHAINS, 1)
    weights, _ = run_reverse(toy.target, toy.lookup(table), end, 2, torch.arange(_CHAINS), 0)
    likely = float(toy.transported(table, 2, weighted=False)[77])
    yield Claim("reverse chain: E e^a = p(x), in standard errors", _off(weights - math.log(likely)), 4)


def _time_steps() -> Iterator[Claim]:
    toys = (("Ising 3x3", Enumeration(Ising(3, 0.4))), ("Potts 2x3, q = 3", Enumeration(Potts([2, 3], 3, 0.7))))
    for name, toy in toys:
        for kind, kernel in (("leap", toy.leap_kernel), ("single", toy.single_kernel)):
            errors = [_marginal_error(toy, kernel, steps) for steps in _STEPS]
            order = math.log2(errors[-2] / errors[-1])
            yield Claim(f"{kind}, {name}: order 1 of the marginal, found {order:.2f}", abs(order - 1), 0.15)
    toy = toys[0][1]
    table = toy.best_net_rates(0.5)
    for kind, simulation, kernel in (("leap", Leap(1), toy.leap_kernel), ("single", Single(1), toy.single_kernel)):
        start = torch.full((_CHAINS,), 77)
        stream = SampleStreams(2, torch.arange(_CHAINS)).step(0)
        rates = table[start].clamp(min=0)
        drawn = simulation.jump(toy.states.x[start], rates, 0.3, stream)
        yield Claim(f"{kind}: draws of one step", _p(toy, drawn, kernel(table, 0.3)[77]), None)


def log_z_bias(toy: Enumeration, kernel: Callable[[Tensor, float], Tensor], share: float, steps: int) -> float:
    """Return log E e^w of time steps with weights by the trapezoid, less log Z, by whole matrices.

    Args:
        toy: with its best rates.
        kernel: of a step.
        share: of the best rates, which are taken; 1 makes w the same for every chain.
        steps: of the simulation.
    """
    mass = toy.law(0.0)
    for k in range(steps):
        start, end = k / steps, (k + 1) / steps
        tables = [share * toy.best_net_rates(t) for t in (start, end)]
        first, last = (
            forward_residual(toy.slopes, table, t * toy.states.log_ratios)
            for table, t in zip(tables, (start, end), strict=True)
        )
        mass = (mass * (first / (2 * steps)).exp()) @ kernel(tables[0], 1 / steps) * (last / (2 * steps)).exp()
    return float(mass.sum().log()) - toy.log_z


def _weights() -> Iterator[Claim]:
    toy = Enumeration(Ising(3, 0.4))
    for kind, kernel in (("leap", toy.leap_kernel), ("single", toy.single_kernel)):
        biases = [log_z_bias(toy, kernel, 0.5, steps) for steps in _STEPS]
        order = math.log2(biases[-2] / biases[-1])
        yield Claim(f"{kind}, half of the best rates: log Z is off by order 1, found {order:.2f}", abs(order - 1), 0.15)
    scores = toy.lookup(toy.best_net_rates)
    chains = torch.arange(32)

    def error(simulation: Simulation) -> float:
        weights = simulation.run(toy.target, scores, chains, 0).log_weights
        return float((weights - toy.log_z).abs().max())  # the best rates: the same for every chain

    found = math.log2(error(Leap(16)) / error(Leap(32)))
    yield Claim(f"weights by trapezoid: order 2, found {found:.2f}", abs(found - 2), 0.1)
    yield Claim("trapezoid, 16 steps, Ising 3x3: log Z", error(Leap(16)), 2e-3)


def _residuals() -> Iterator[Claim]:
    for name, target in (("Ising 3x3", Ising(3, 0.4)), ("Potts 2x3, q = 3", Potts([2, 3], 3, 0.7))):
        toy = Enumeration(target)
        xi = forward_residual(toy.slopes, toy.best_net_rates(0.6), 0.6 * toy.states.log_ratios)
        off = float((xi - toy.law(0.6) @ toy.slopes).abs().max())
        yield Claim(f"xi of the best rates is d log Z / dt, {name}", off, 1e-9)
        table = untrained(target)(0.6)
        control = stein_control_variate(table, 0.6 * toy.states.log_ratios)
        yield Claim(f"mean of the Stein control variate, {name}", abs(float(toy.law(0.6) @ control)), 1e-10)
        nodes, weights = np.polynomial.legendre.leggauss(20)
        points = [(float(0.3 + 0.1 * u), float(0.1 * w)) for u, w in zip(nodes, weights, strict=True)]
        numeric = sum(w * forward_residual(toy.slopes, table, t * toy.states.log_ratios) for t, w in points)
        a, b = (torch.full((toy.number,), end, dtype=torch.float64) for end in (0.2, 0.4))
        exact = integrated_residual(toy.slopes, table, toy.states.log_ratios, a, b)
        yield Claim(f"integral of xi, {name}", float((exact - numeric).abs().max()), 1e-10)
    for levels in (2, 4):
        product = _Product(levels)
        toy = Enumeration(product)
        xi = forward_residual(toy.slopes, untrained(product, True, 0.0)(0.7) * 2, 0.7 * toy.states.log_ratios)
        yield Claim(f"heat bath solves a product target, S = {levels}: spread of xi", float(xi.std()), 1e-12)


def _invariance() -> Iterator[Claim]:
    glass, ferromagnet = SpinGlass([2, 3], seed=1), Ising([2, 3], 0.4)
    in_field = Couplings(ferromagnet.pair, [0.3, -0.2, 0.1, 0.0, 0.0, 0.2])
    moves: tuple[tuple[Target, Refinement], ...] = (
        (glass, Gibbs()),
        (glass, LocallyInformed(2)),
        (glass, DMALA(2)),
        (in_field, Clusters()),
        (ferromagnet, Clusters(single=True)),
        (Potts([2, 3], 3, 0.7), Clusters()),
        (Potts([2, 3], 3, 0.7), Clusters(single=True)),
    )
    for target, move in moves:
        toy = Enumeration(target)
        streams = SampleStreams(5, torch.arange(_CHAINS))
        start = torch.multinomial(toy.law(0.8), _CHAINS, True, generator=torch.Generator().manual_seed(0))
        moved = move(target, toy.states.select(start), 0.8, streams.step(0))
        name = f"{type(move).__name__}{', single' if getattr(move, 'single', False) else ''}, {type(target).__name__}"
        yield Claim(f"{name} leaves p_t as it is: draws", _p(toy, moved.x, toy.law(0.8)), None)
        one = move(target, toy.states.select(torch.zeros_like(start)), 0.8, streams.step(1))
        stay = float((one.x == toy.states.x[0]).all(1).double().mean())
        yield Claim(f"{name} moves: share of chains that stay", stay, 0.9)


class _Product(Target):
    """Independent sites with random log-weights."""

    def __init__(self, levels: int) -> None:
        super().__init__(levels, [4])
        self.logits = torch.randn(4, levels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def log_density(self, x: Tensor) -> Tensor:
        return self.logits[torch.arange(4), x.long()].sum(-1)


def _marginal_error(toy: Enumeration, kernel: Callable[[Tensor, float], Tensor], steps: int) -> float:
    law = toy.law(0.0)
    for k in range(steps):
        law = law @ kernel(toy.best_net_rates(k / steps), 1 / steps)
    return float((law - toy.law(1.0)).abs().sum() / 2)


def _off(log_ratios: Tensor) -> float:
    """How many standard errors the mean of e^w is from 1."""
    values = log_ratios.exp()
    return float((values.mean() - 1).abs() / values.std() * math.sqrt(len(values)))


def _p(toy: Enumeration, drawn: Tensor, law: Tensor) -> float:
    return p_value(count_states(drawn, toy.target.levels), law.numpy() / float(law.sum()))
