"""Claims about flows, checked against enumerated targets.

They cover simulations, weights, refinement moves and likelihoods. `Enumeration` holds the
generators, kernels and optimal rates of a small target as arrays over all its states.

References: this project; checked in tests/verification/test_flow_claims.py.
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

_TOLERANCE = 1e-10  # relative, of the ODE solver
_CHAINS = 20_000  # samples for a chi-square test or a standard error
_STEPS = (16, 32, 64)  # numbers of time steps, for orders of convergence


class Enumeration:
    """All states of a target and their neighbours.

    Args:
        target: a target with few states.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.states = States.evaluate(target, all_states(target.levels, target.sites))
        self.number = len(self.states.x)
        places = target.levels ** torch.arange(target.sites - 1, -1, -1)
        states = torch.arange(target.levels)
        row = torch.arange(self.number)
        # index of Swap(x, i, tau), int64 [n, d, S]
        self.swapped = (
            row[:, None, None] + (states - self.states.x.long()[..., None]) * places[:, None]
        )
        self.time_derivatives = self.states.dlogp_dt
        self.log_z = float(torch.logsumexp(self.states.log_density, 0))

    def index(self, x: Tensor) -> Tensor:
        """Return the indices of states [B, d], int64 [B]."""
        return torch.from_numpy(state_numbers(x, self.target.levels))

    def distribution(self, t: float) -> Tensor:
        """Return p_t, float64 [n]."""
        return torch.softmax(t * self.states.log_density, 0)

    def lookup(self, table: Callable[[float], Tensor]) -> NetRates:
        """Turn a table of the net rates of all states at a time, [n, d, S], into a network."""
        return lambda states, t: table(t)[self.index(states.x)]

    @cached_property
    def _potential(self) -> Tensor:
        """The matrix that maps d p_t / dt to phi, [n, n].

        It is the inverse of the Laplacian, whose null space is the constants.
        """
        steps = self.swapped.flatten(1)
        ones = torch.ones((), dtype=torch.float64)
        neighbours = torch.zeros(self.number, self.number, dtype=torch.float64)
        neighbours.scatter_add_(1, steps, ones.expand(steps.shape))
        return torch.linalg.inv(torch.diag(neighbours.sum(1)) - neighbours + 1 / self.number)

    def best_net_rates(self, t: float) -> Tensor:
        """Return the net rates G that transport p_t with the least squared flux, [n, d, S].

        The flux into y from x is phi(y) - phi(x), and the Laplacian of phi is d p_t / dt.
        """
        distribution = self.distribution(t)
        phi = self._potential @ (
            distribution * (self.time_derivatives - distribution @ self.time_derivatives)
        )
        flux = phi[self.swapped] - phi[:, None, None]
        return torch.where(
            flux > 0, flux / distribution[:, None, None], flux / distribution[self.swapped]
        )

    def propagate(self, scores: Callable[[float], Tensor], steps: int, weighted: bool) -> Tensor:
        """Return the mass of every state at t = 1, with rates frozen at the middle of each
        interval.

        With `weighted`, each path counts with its weight e^w, otherwise with 1.
        """
        mass = torch.full((self.number,), 1.0 / self.number, dtype=torch.float64).numpy()
        for k in range(steps):
            a = k / steps
            b = (k + 1) / steps
            table = scores((a + b) / 2)
            rates = outgoing_rates(table)
            total = rates.sum((1, 2)).numpy()
            # a jump from a neighbour into this state uses that neighbour's rate to this state's
            # value
            values = self.states.x.long()[:, :, None].expand(-1, -1, self.target.levels)
            sites = torch.arange(self.target.sites)[None, :, None]
            inflow = rates[self.swapped, sites, values].flatten(1).numpy()
            source = self.swapped.flatten(1).numpy()

            arguments = table, total, inflow, source, weighted
            mass = solve_ivp(
                self._change, (a, b), mass, "DOP853", rtol=_TOLERANCE, atol=1e-13, args=arguments
            ).y[:, -1]
        return torch.from_numpy(mass)

    def _change(
        self,
        t: float,
        mass: Array,
        table: Tensor,
        total: Array,
        inflow: Array,
        source: NDArray[np.int64],
        weighted: bool,
    ) -> Array:
        """Return d mass / dt: Kolmogorov's forward equation, plus the Feynman-Kac potential xi if
        weighted."""
        change: Array = (inflow * mass[source]).sum(1) - total * mass
        if weighted:
            change += (
                forward_residual(self.time_derivatives, table, t * self.states.log_ratios).numpy()
                * mass
            )
        return change

    def leap_kernel(self, table: Tensor, length: float) -> Tensor:
        """Return the transition probabilities of the factorised step, [n, n]."""
        rates = outgoing_rates(table)
        total = rates.sum(-1, keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        current = torch.nn.functional.one_hot(self.states.x.long(), self.target.levels)
        probabilities = moves + current * torch.exp(-length * total)
        return torch.from_numpy(joint_distribution(probabilities.numpy()))

    def single_kernel(self, table: Tensor, length: float) -> Tensor:
        """Return the transition probabilities of at most one jump, [n, n]."""
        rates = outgoing_rates(table)
        total = rates.sum((1, 2), keepdim=True)
        moves = -torch.expm1(-length * total) * rates / total.clamp(min=1e-300)
        kernel = torch.diag((-length * total).exp().flatten())
        return kernel.scatter_add_(1, self.swapped.flatten(1), moves.flatten(1))


def untrained(
    target: Target, heat_bath: bool = False, scale: float = 5.0
) -> Callable[[float], Tensor]:
    """Return a randomly initialised network as a function of time: G of all states, float64."""
    torch.manual_seed(0)
    network = LESite(target.sites, target.levels, 8, 1, heat_bath=heat_bath).double()
    with torch.no_grad():
        network.omega.mul_(scale)
    enumeration = Enumeration(target)

    def table(t: float) -> Tensor:
        times = torch.full((enumeration.number,), t, dtype=torch.float64)
        with torch.no_grad():
            scores: Tensor = network(enumeration.states.x, times, enumeration.states.log_ratios)
        return scores

    return table


def claims() -> Iterator[Claim]:
    """Yield every claim about flows."""
    yield from _events()
    yield from _time_steps()
    yield from _weights()
    yield from _residuals()
    yield from _invariance()


def _events() -> Iterator[Claim]:
    strong: tuple[tuple[str, Target], ...] = (
        ("Ising 3x3", Ising(3, 0.4)),
        ("Potts 3x3, q = 3", Potts(3, 3, 0.7)),
    )
    for name, target in strong:
        toy = Enumeration(target)
        table = untrained(target)
        rho = toy.states.log_density.exp()
        for steps in (1, 2, 8):
            mass = toy.propagate(table, steps, weighted=True)
            error = float(((mass - rho).abs() / rho.max()).max())
            yield Claim(f"events, {name}, {steps} steps: mass of e^w is rho", error, 1e-8)
    weak: tuple[tuple[str, Target], ...] = (
        ("Ising 3x3", Ising(3, 0.2)),
        ("Potts 3x3, q = 3", Potts(3, 3, 0.3)),
    )
    # the weights of stronger couplings are too heavy-tailed for a standard error
    for name, target in weak:
        toy = Enumeration(target)
        paths = Events(1).run(
            target, toy.lookup(untrained(target, scale=1.0)), torch.arange(_CHAINS), 0
        )
        deviation = _standard_errors_from_one(paths.log_weights - toy.log_z)
        yield Claim(
            f"events, {name}, 1 step: E e^(w - log Z) = 1, in standard errors", deviation, 4
        )
    toy = Enumeration(Ising(3, 0.4))
    table = untrained(Ising(3, 0.4))
    samples = Events(2).run(toy.target, toy.lookup(table), torch.arange(_CHAINS), 1).states.x
    yield Claim(
        "events, Ising 3x3, 2 steps: sampled states",
        _p_value(toy, samples, toy.propagate(table, 2, False)),
        None,
    )
    end = toy.states.x[77].repeat(_CHAINS, 1)
    weights, _ = run_reverse(toy.target, toy.lookup(table), end, 2, torch.arange(_CHAINS), 0)
    probability = float(toy.propagate(table, 2, weighted=False)[77])
    yield Claim(
        "reverse chain: E e^a = p(x), in standard errors",
        _standard_errors_from_one(weights - math.log(probability)),
        4,
    )


def _time_steps() -> Iterator[Claim]:
    toys = (
        ("Ising 3x3", Enumeration(Ising(3, 0.4))),
        ("Potts 2x3, q = 3", Enumeration(Potts([2, 3], 3, 0.7))),
    )
    for name, toy in toys:
        for kind, kernel in (("leap", toy.leap_kernel), ("single", toy.single_kernel)):
            errors = [_marginal_error(toy, kernel, steps) for steps in _STEPS]
            order = math.log2(errors[-2] / errors[-1])
            yield Claim(
                f"{kind}, {name}: order 1 of the marginal, observed {order:.2f}",
                abs(order - 1),
                0.15,
            )
    toy = toys[0][1]
    table = toy.best_net_rates(0.5)
    for kind, simulation, kernel in (
        ("leap", Leap(1), toy.leap_kernel),
        ("single", Single(1), toy.single_kernel),
    ):
        start = torch.full((_CHAINS,), 77)
        stream = SampleStreams(2, torch.arange(_CHAINS)).step(0)
        rates = table[start].clamp(min=0)
        samples = simulation.jump(toy.states.x[start], rates, 0.3, stream)
        yield Claim(
            f"{kind}: samples of one step", _p_value(toy, samples, kernel(table, 0.3)[77]), None
        )


def log_z_bias(
    toy: Enumeration, kernel: Callable[[Tensor, float], Tensor], share: float, steps: int
) -> float:
    """Return log E e^w - log Z of time steps with trapezoidal weights, by matrix products.

    Args:
        toy: the enumerated target.
        kernel: `toy.leap_kernel` or `toy.single_kernel`.
        share: the factor of the best net rates; with 1, w is the same for every chain.
        steps: the number of time steps.
    """
    mass = toy.distribution(0.0)
    for k in range(steps):
        start = k / steps
        end = (k + 1) / steps
        tables = [share * toy.best_net_rates(t) for t in (start, end)]
        first, last = (
            forward_residual(toy.time_derivatives, table, t * toy.states.log_ratios)
            for table, t in zip(tables, (start, end), strict=True)
        )
        mass = (
            (mass * (first / (2 * steps)).exp())
            @ kernel(tables[0], 1 / steps)
            * (last / (2 * steps)).exp()
        )
    return float(mass.sum().log()) - toy.log_z


def _weights() -> Iterator[Claim]:
    toy = Enumeration(Ising(3, 0.4))
    for kind, kernel in (("leap", toy.leap_kernel), ("single", toy.single_kernel)):
        biases = [log_z_bias(toy, kernel, 0.5, steps) for steps in _STEPS]
        order = math.log2(biases[-2] / biases[-1])
        yield Claim(
            f"{kind}, half of the best rates: the bias of log Z has order 1, observed {order:.2f}",
            abs(order - 1),
            0.15,
        )
    scores = toy.lookup(toy.best_net_rates)
    chains = torch.arange(32)

    def error(simulation: Simulation) -> float:
        weights = simulation.run(toy.target, scores, chains, 0).log_weights
        return float((weights - toy.log_z).abs().max())  # with optimal rates all chains agree

    order = math.log2(error(Leap(16)) / error(Leap(32)))
    yield Claim(f"trapezoidal weights: order 2, observed {order:.2f}", abs(order - 2), 0.1)
    yield Claim("trapezoid, 16 steps, Ising 3x3: log Z", error(Leap(16)), 2e-3)


def _residuals() -> Iterator[Claim]:
    for name, target in (("Ising 3x3", Ising(3, 0.4)), ("Potts 2x3, q = 3", Potts([2, 3], 3, 0.7))):
        toy = Enumeration(target)
        xi = forward_residual(
            toy.time_derivatives, toy.best_net_rates(0.6), 0.6 * toy.states.log_ratios
        )
        deviation = float((xi - toy.distribution(0.6) @ toy.time_derivatives).abs().max())
        yield Claim(f"xi of the optimal rates is d log Z / dt, {name}", deviation, 1e-9)
        table = untrained(target)(0.6)
        control = stein_control_variate(table, 0.6 * toy.states.log_ratios)
        yield Claim(
            f"mean of the Stein control variate, {name}",
            abs(float(toy.distribution(0.6) @ control)),
            1e-10,
        )
        nodes, weights = np.polynomial.legendre.leggauss(20)
        points = [
            (float(0.3 + 0.1 * u), float(0.1 * w)) for u, w in zip(nodes, weights, strict=True)
        ]
        numeric = sum(
            w * forward_residual(toy.time_derivatives, table, t * toy.states.log_ratios)
            for t, w in points
        )
        a = torch.full((toy.number,), 0.2, dtype=torch.float64)
        b = torch.full((toy.number,), 0.4, dtype=torch.float64)
        exact = integrated_residual(toy.time_derivatives, table, toy.states.log_ratios, a, b)
        yield Claim(f"integral of xi, {name}", float((exact - numeric).abs().max()), 1e-10)
    for levels in (2, 4):
        product = _Product(levels)
        toy = Enumeration(product)
        xi = forward_residual(
            toy.time_derivatives,
            untrained(product, True, 0.0)(0.7) * 2,
            0.7 * toy.states.log_ratios,
        )
        yield Claim(
            f"heat bath solves a product target, S = {levels}: spread of xi", float(xi.std()), 1e-12
        )


def _invariance() -> Iterator[Claim]:
    glass = SpinGlass([2, 3], seed=1)
    ferromagnet = Ising([2, 3], 0.4)
    field = Couplings(ferromagnet.pair, [0.3, -0.2, 0.1, 0.0, 0.0, 0.2])
    moves: tuple[tuple[Target, Refinement], ...] = (
        (glass, Gibbs()),
        (glass, LocallyInformed(2)),
        (glass, DMALA(2)),
        (field, Clusters()),
        (ferromagnet, Clusters(single=True)),
        (Potts([2, 3], 3, 0.7), Clusters()),
        (Potts([2, 3], 3, 0.7), Clusters(single=True)),
    )
    for target, move in moves:
        toy = Enumeration(target)
        streams = SampleStreams(5, torch.arange(_CHAINS))
        start = torch.multinomial(
            toy.distribution(0.8), _CHAINS, True, generator=torch.Generator().manual_seed(0)
        )
        moved = move(target, toy.states.select(start), 0.8, streams.step(0))
        kind = ", single" if getattr(move, "single", False) else ""
        name = f"{type(move).__name__}{kind}, {type(target).__name__}"
        yield Claim(
            f"{name} leaves p_t invariant", _p_value(toy, moved.x, toy.distribution(0.8)), None
        )
        from_first_state = move(
            target, toy.states.select(torch.zeros_like(start)), 0.8, streams.step(1)
        )
        stay = float((from_first_state.x == toy.states.x[0]).all(1).double().mean())
        yield Claim(f"{name} moves: fraction of chains that stay", stay, 0.9)


class _Product(Target):
    """Independent sites with random log-weights."""

    def __init__(self, levels: int) -> None:
        super().__init__(levels, [4])
        self.logits = torch.randn(
            4, levels, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )

    def log_density(self, x: Tensor) -> Tensor:
        return self.logits[torch.arange(4), x.long()].sum(-1)


def _marginal_error(
    toy: Enumeration, kernel: Callable[[Tensor, float], Tensor], steps: int
) -> float:
    """Return the total variation at t = 1 between the stepped chain and the target."""
    distribution = toy.distribution(0.0)
    for k in range(steps):
        distribution = distribution @ kernel(toy.best_net_rates(k / steps), 1 / steps)
    return float((distribution - toy.distribution(1.0)).abs().sum() / 2)


def _standard_errors_from_one(log_ratios: Tensor) -> float:
    """Return how many standard errors the mean of e^w is from 1."""
    values = log_ratios.exp()
    return float((values.mean() - 1).abs() / values.std() * math.sqrt(len(values)))


def _p_value(toy: Enumeration, samples: Tensor, distribution: Tensor) -> float:
    """Return the chi-square p-value of samples against a distribution."""
    return p_value(
        count_states(samples, toy.target.levels), distribution.numpy() / float(distribution.sum())
    )
