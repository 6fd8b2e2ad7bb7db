"""What is claimed of flows: simulations, weights, moves and likelihoods, against enumerated targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from blackout.flows.likelihood import run_backwards
from blackout.flows.refinement import DMALA, Gibbs, LocallyInformed, Refinement
from blackout.flows.residual import integrated_residual, residual, stein
from blackout.flows.simulation import Events, Leap, Simulation, Single
from blackout.flows.targets import Ising, Potts, SpinGlass, Target
from blackout.laws.draws import p_value
from blackout.laws.flow_toys import Enumeration
from blackout.laws.permutations import Claim
from blackout.laws.verify import SURE
from blackout.networks import LESite
from blackout.random import SampleStreams

_CHAINS = 20_000
_STEPS = (16, 32, 64)


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
            scores: Tensor = network(everything.states.x, times, everything.states.ratios)
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
    strong: tuple[tuple[str, Target], ...] = (("Ising 3x3", Ising(3, 0.2)), ("Potts 3x3, q = 3", Potts(3, 3, 0.7)))
    for name, target in strong:
        toy, table = Enumeration(target), untrained(target)
        rho = toy.states.log_density.exp()
        for steps in (1, 2, 8):
            mass = toy.transported(table, steps, weighted=True)
            wrong = float(((mass - rho).abs() / rho.max()).max())
            yield Claim(f"events, {name}, {steps} steps: mass of e^w is rho", wrong, 1e-8)
    weak: tuple[tuple[str, Target], ...] = (("Ising 3x3", Ising(3, 0.1)), ("Potts 3x3, q = 3", Potts(3, 3, 0.3)))
    for name, target in weak:  # stronger ones have weights too heavy for a standard error
        toy = Enumeration(target)
        paths = Events(1).run(target, toy.lookup(untrained(target, scale=1.0)), torch.arange(_CHAINS), 0)
        off = _off(paths.log_weights - toy.log_z)
        yield Claim(f"events, {name}, 1 step: E e^(w - log Z) = 1, in standard errors", off, 4)
    toy, table = Enumeration(Ising(3, 0.2)), untrained(Ising(3, 0.2))
    drawn = Events(2).run(toy.target, toy.lookup(table), torch.arange(_CHAINS), 1).states.x
    yield Claim("events, Ising 3x3, 2 steps: the states drawn", _p(toy, drawn, toy.transported(table, 2, False)), None)
    weights = run_backwards(
        toy.target, toy.lookup(table), toy.states.x[77].repeat(_CHAINS, 1), 2, torch.arange(_CHAINS), 0
    )
    likely = float(toy.transported(table, 2, weighted=False)[77])
    yield Claim("reverse chain: E e^a = p(x), in standard errors", _off(weights.log_weights - math.log(likely)), 4)


def _time_steps() -> Iterator[Claim]:
    toys = (("Ising 3x3", Enumeration(Ising(3, 0.2))), ("Potts 2x3, q = 3", Enumeration(Potts([2, 3], 3, 0.7))))
    for name, toy in toys:
        for kind, kernel in (("leap", toy.leap_kernel), ("single", toy.single_kernel)):
            errors = [_marginal_error(toy, kernel, steps) for steps in _STEPS]
            order = math.log2(errors[-2] / errors[-1])
            yield Claim(f"{kind}, {name}: order 1 of the marginal, found {order:.2f}", abs(order - 1), 0.15)
    toy = toys[0][1]
    table = toy.best_scores(0.5)
    for kind, simulation, kernel in (("leap", Leap(1), toy.leap_kernel), ("single", Single(1), toy.single_kernel)):
        start = torch.full((_CHAINS,), 77)
        stream = SampleStreams(2, torch.arange(_CHAINS)).at(0)
        rates = table[start].clamp(min=0)
        drawn = simulation.jump(toy.states.x[start], rates, 0.3, stream)
        yield Claim(f"{kind}: draws of one step", _p(toy, drawn, kernel(table, 0.3)[77]), None)


def _weights() -> Iterator[Claim]:
    toy = Enumeration(Ising(3, 0.2))
    scores = toy.lookup(toy.best_scores)
    chains = torch.arange(32)

    def error(simulation: Simulation) -> float:
        weights = simulation.run(toy.target, scores, chains, 0).log_weights
        return float((weights - toy.log_z).abs().max())  # the best rates: the same for every chain

    for rule, order in (("riemann", 1), ("trapezoid", 2)):
        coarse, fine = error(Leap(16, quadrature=rule)), error(Leap(32, quadrature=rule))  # type: ignore[arg-type]
        found = math.log2(coarse / fine)
        yield Claim(f"weights by {rule}: order {order}, found {found:.2f}", abs(found - order), 0.1)
    yield Claim("trapezoid, 16 steps, Ising 3x3: log Z", error(Leap(16)), 2e-3)


def _residuals() -> Iterator[Claim]:
    for name, target in (("Ising 3x3", Ising(3, 0.2)), ("Potts 2x3, q = 3", Potts([2, 3], 3, 0.7))):
        toy = Enumeration(target)
        xi = residual(toy.slopes, toy.best_scores(0.6), 0.6 * toy.states.ratios)
        yield Claim(
            f"xi of the best rates is d log Z / dt, {name}", float((xi - toy.law(0.6) @ toy.slopes).abs().max()), 1e-9
        )
        table = untrained(target)(0.6)
        control = stein(table, 0.6 * toy.states.ratios)
        yield Claim(f"mean of the Stein control variate, {name}", abs(float(toy.law(0.6) @ control)), 1e-10)
        nodes, weights = np.polynomial.legendre.leggauss(20)
        points = [(float(0.3 + 0.1 * u), float(0.1 * w)) for u, w in zip(nodes, weights, strict=True)]
        numeric = sum(w * residual(toy.slopes, table, t * toy.states.ratios) for t, w in points)
        a, b = (torch.full((toy.number,), end, dtype=torch.float64) for end in (0.2, 0.4))
        exact = integrated_residual(toy.slopes, table, toy.states.ratios, a, b)
        yield Claim(f"integral of xi, {name}", float((exact - numeric).abs().max()), 1e-10)
    for levels in (2, 4):
        product = _Product(levels)
        toy = Enumeration(product)
        xi = residual(toy.slopes, untrained(product, True, 0.0)(0.7) * 2, 0.7 * toy.states.ratios)
        yield Claim(f"heat bath solves a product target, S = {levels}: spread of xi", float(xi.std()), 1e-12)


def _invariance() -> Iterator[Claim]:
    target = SpinGlass([2, 3], seed=1)
    toy = Enumeration(target)
    moves: tuple[Refinement, ...] = (Gibbs(), LocallyInformed(2), DMALA(2))
    for move in moves:
        streams = SampleStreams(5, torch.arange(_CHAINS))
        start = torch.multinomial(toy.law(0.8), _CHAINS, True, generator=torch.Generator().manual_seed(0))
        moved = move(target, toy.states.rows(start), 0.8, streams.at(0))
        name = type(move).__name__
        yield Claim(f"{name} leaves p_t as it is: draws", _p(toy, moved.x, toy.law(0.8)), None)
        one = move(target, toy.states.rows(torch.zeros_like(start)), 0.8, streams.at(1))
        yield Claim(
            f"{name} moves: share of chains that stay", float((one.x == toy.states.x[0]).all(1).double().mean()), 0.9
        )


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
        law = law @ kernel(toy.best_scores(k / steps), 1 / steps)
    return float((law - toy.law(1.0)).abs().sum() / 2)


def _off(log_ratios: Tensor) -> float:
    """How many standard errors the mean of e^w is from 1."""
    values = log_ratios.exp()
    return float((values.mean() - 1).abs() / values.std() * math.sqrt(len(values)))


def _p(toy: Enumeration, drawn: Tensor, law: Tensor) -> float:
    counts = np.bincount(toy.index(drawn).numpy(), minlength=toy.number)
    return p_value(counts, law.numpy() / float(law.sum()))


def verify_flows(show: Callable[[str], None] = print) -> bool:
    """Check every claim, showing one line for each. True when all hold."""
    good = True
    show("\nflow, enumerated targets: deviations, and draws: p of chi-square")
    for claim in claims():
        allowed = f">= {SURE:g}" if claim.allowed is None else f"<= {claim.allowed:g}"
        show(f"  {claim.name:<76}{claim.error:>9.2g}  {allowed}{'' if claim.holds else '   FAILS'}")
        good &= claim.holds
    return good
