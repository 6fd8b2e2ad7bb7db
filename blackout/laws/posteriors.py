"""The claims about posterior sampling: stationary laws by whole matrices, and the package's own draws by chi-square."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from blackout.diffusion.processes import Absorbing, PureDeath, Uniform
from blackout.diffusion.schedules import logit_times
from blackout.laws.draws import p_value
from blackout.laws.overwriting import overwriting_errors
from blackout.laws.posterior_draws import BlackBoxed, Case, cases, law_of
from blackout.laws.posterior_toys import (
    Element,
    SplitToy,
    absorbing_element,
    death_element,
    random_toy,
    stationary,
    uniform_element,
)
from blackout.laws.toys import Array, pixel_pair, total_variation
from blackout.laws.verify import SURE
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.couplings import Coupling
from blackout.posterior.noise import Binomial, Exact, Flips, Poisson
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.operators import Identity, Inpaint, Pool
from blackout.posterior.problem import Measured
from blackout.posterior.split_gibbs import SplitGibbs

EXACT = 1e-9
_LEVELS = (1.0, 0.5, 0.1, 0.01, 0.001)
_TOGETHER = (0.2409, 0.1711, 0.0478, 0.00519, 0.00052)
"""Total variation of the split law to the posterior at these levels, uniform process, four levels, two elements."""
_POTENTIAL, _RESTARTED = (0.1839, 0.1941), ((1, 0.2697), (4, 0.1424), (8, 0.0725), (32, 0.0056))
"""Of the two errors of Chu et al. 2025 at small levels."""
_OVERWRITING = {2: 0.284, 5: 0.153, 8: 0.258, 12: 0.101}
"""Of the other pixel of a pair, where one has so many units."""
_PROCESSES: dict[str, Element] = {
    "uniform": uniform_element(4), "pure death": death_element(4), "absorbing": absorbing_element(4),
}  # fmt: skip
_CHAINS = 20_000


@dataclass(frozen=True)
class Finding:
    """What was found of one claim.

    Args:
        claim: in words.
        value: found.
        holds: whether it is as claimed.
    """

    claim: str
    value: float
    holds: bool


def matrices() -> Iterator[Finding]:
    """What holds of the chains, without a line of `blackout.posterior`."""
    toys = {name: _with_states(name, element) for name, element in _PROCESSES.items()}
    for name, toy in toys.items():
        yield _below(f"{name}: sweeps leave p (K_t L) / Z", max(_off(toy.sweep(t), toy.split(t)) for t in _LEVELS))
        law = toy.split(0.1)
        for title, step in (("with one proposal", toy.metropolis), ("with the heat bath", toy.site_by_site)):
            yield _below(f"{name}: so do sweeps {title}", total_variation(toy.persistent(0.1, step), law))
        worst = max(toy.error(stationary(toy.noise_denoise(t))) for t in (1.0, 0.1))
        yield _below(f"{name}: noise-denoise moves leave the posterior", worst)
        worst = max(toy.error(stationary(toy.corrected(t))) for t in (1.0, 0.1))
        yield _below(f"{name}: so do corrected sweeps", worst)
        falls = np.diff(toy.divergences(0.5, 20))
        yield Finding(f"{name}: the divergence never rises", float(falls.max()), bool((falls <= 1e-12).all()))
    yield from _figures(toys["uniform"])


def _figures(toy: SplitToy) -> Iterator[Finding]:
    """The numbers that are known, of what is right and of what is wrong."""
    for t, known in zip(_LEVELS, _TOGETHER, strict=True):
        yield _near(f"split law at level {t:g}", toy.error(toy.split(t)), known)
    for t, known in zip((0.01, 0.001), _POTENTIAL, strict=True):
        yield _near(f"the published potential, level {t:g}", toy.error(stationary(toy.sweep(t, 3.0))), known)
    for times, known in _RESTARTED:
        yield _near(f"{times} restarted proposals", toy.error(toy.restarted(0.01, times)), known)
    times_, known_ = logit_times(100, 7.0, -10.0).numpy(), tuple(_OVERWRITING)
    for y, off in zip(known_, overwriting_errors(pixel_pair(), times_, known_), strict=True):
        yield _near(f"overwriting a pixel of {y} units, 100 steps", off, _OVERWRITING[y], 5e-4)


def _with_states(name: str, element: Element) -> SplitToy:
    """The random toy, with L of masked states the geometric mean over levels."""
    toy = random_toy(element)
    if name != "absorbing":
        return toy
    square = np.log(toy.likelihood).reshape(4, 4)
    wide = np.block([[square, square.mean(1, keepdims=True)], [square.mean(0, keepdims=True), square.mean()]])
    return replace(toy, relaxed=lambda t: np.exp(wide.ravel()))


def likelihoods() -> Iterator[Finding]:
    """What `blackout.posterior` makes of processes and measurements, against brute force."""
    for name, process, element in (
        ("uniform", Uniform(3), uniform_element(4)), ("pure death", PureDeath(3), death_element(4)),
        ("absorbing", Absorbing(3), absorbing_element(4)),
    ):  # fmt: skip
        off = max(float(np.abs(Coupling(process).log_table(t).exp().numpy() - element(t)).max()) for t in _LEVELS)
        yield _below(f"{name}: the coupling is the process's law", off)
    for case in cases(separable=False):
        for t in (1.0, 0.1):
            z = _all_states(case.process.num_states, 2)
            found = Coupling(case.process).relaxed(BlackBoxed(case.problem), (2,), t).log_likelihood(z)
            off = float(np.abs(found.exp().numpy() - case.toy.of_states(t)).max())
            yield _below(f"{case.name}: likelihood of states, {t:g}", off)
    for title, problem, t in (
        ("thinning", Measured(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0])), 0.7),
        ("photons", Measured(Identity(), Poisson(0.8, 0.4), torch.tensor([3.0, 0.0])), 0.5),
        ("pooled photons", Measured(Pool(2), Poisson(0.8), torch.tensor([4.0])), 0.5),
    ):
        yield _below(f"{title}: thinned likelihood averages to L", _average_off(problem, t))
    yield from _conjugate()


def _average_off(problem: Measured, t: float, levels: int = 6) -> float:
    """|K_t Lt - L| at most, pure death, two elements."""
    x = _all_states(levels, 2)
    relaxed = Coupling(PureDeath(levels - 1)).relaxed(problem, (2,), t)
    assert relaxed.problem is not problem
    forward = np.kron(death_element(levels)(t), death_element(levels)(t))
    averaged = forward @ relaxed.log_likelihood(x).exp().numpy()
    return float(np.abs(averaged - problem.log_likelihood(x.double()).exp().numpy()).max())


def _conjugate() -> Iterator[Finding]:
    """L(x) is proportional to K_t(x, z) where `conjugate` says that one reverse run is enough."""
    mask = torch.tensor([True, False])
    for name, process, problem in (
        ("pure death, thinning", PureDeath(3), Measured(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0]))),
        ("uniform, flips", Uniform(3), Measured(Identity(), Flips(1.5), torch.tensor([1.0, 2.0]))),
        ("absorbing, erasures", Absorbing(3), Measured(Inpaint(mask), Exact(), torch.tensor([1.0, 0.0]))),
    ):
        found = conjugate(process, problem, (2,))
        assert found is not None
        (state,), t = found
        x = _all_states(4, 2)
        reached = process.pmf(x, torch.tensor(t, dtype=torch.float64)).gather(2, state.expand(len(x), 2)[..., None])
        of_path = reached[..., 0].prod(1).numpy()
        of_data = problem.log_likelihood(x.double()).exp().numpy()
        yield _below(f"direct, {name}", total_variation(of_path / of_path.sum(), of_data / of_data.sum()))


def draws(n: int = _CHAINS) -> Iterator[Finding]:
    """The package's samplers with exact reverse runs: chi-square of their draws against products of matrices."""
    levels = (1.0, 0.5, 0.2)
    start = torch.zeros(n, 2, dtype=torch.uint8)
    for case in cases(separable=True):
        toy = replace(case.toy, relaxed=_thinned(case)) if case.name == "pure death" else case.toy
        law = np.eye(16)[0]
        for t in levels:
            law = law @ toy.sweep(t)
        found = SplitGibbs(levels).sample(case.prior, case.problem, n, start=start).samples
        yield _likely(f"{case.name}: sweeps of a separable problem", p_value(law_of(found, 4), law))
    for case in cases(separable=False):
        for title, step, method in (
            ("the heat bath", case.toy.site_by_site, SplitGibbs(levels, passes=1)),
            ("Metropolis", case.toy.metropolis, SplitGibbs(levels, "metropolis", 1)),
        ):
            if title == "Metropolis" and case.name != "uniform":
                continue  # other processes propose draws of K_t, which no matrix here describes
            law = joint_law(case.toy, levels, step)
            found = method.sample(case.prior, case.problem, n, start=start).samples
            yield _likely(f"{case.name}: sweeps with {title}", p_value(law_of(found, 4), law))
        law = np.eye(16)[0]
        for t in (*levels, levels[0]):
            law = law @ case.toy.noise_denoise(t)
        found = NoiseDenoise(levels, 4).sample(case.prior, case.problem, n, start=start).samples
        yield _likely(f"{case.name}: noise-denoise moves", p_value(law_of(found, 4), law))
    yield _published(start)
    case = cases(separable=True)[1]
    problem = Measured(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0]))
    found = Direct().sample(case.prior, problem, n).samples
    weight = case.toy.p * problem.log_likelihood(_all_states(4, 2).double()).exp().numpy()
    yield _likely("pure death: direct", p_value(law_of(found, 4), weight / weight.sum()))


def _published(start: torch.Tensor) -> Finding:
    """One sweep of four restarted proposals under the published potential, of the uniform process."""
    case = cases(separable=False)[0]
    chain = SplitGibbs((0.5,), proposals=4, published=True)
    found = chain.sample(case.prior, case.problem, len(start), start=start).samples
    z = np.linalg.matrix_power(case.toy.metropolis(0, 0.5, 3.0), 4)[0]
    return _likely("uniform: a sweep as published", p_value(law_of(found, 4), z @ case.toy.denoise(0.5)))


def joint_law(toy: SplitToy, levels: tuple[float, ...], step: Callable[[int, float], Array]) -> Array:
    """The law of x where z goes on from sweep to sweep, from x = 0 and z of its level."""
    joint = np.zeros((len(toy.p), len(toy.of_states(levels[0]))))
    joint[0] = toy.forward(levels[0])[0]
    for t in levels:
        of_z = np.stack([joint[x] @ step(x, t) for x in range(len(toy.p))]).sum(0)
        joint = toy.denoise(t).T * of_z
    return joint.sum(1)


def _thinned(case: Case) -> Callable[[float], Array]:
    """Lt of pure death where the problem has one without bias."""

    def relaxed(t: float) -> Array:
        found = Coupling(case.process).relaxed(case.problem, (2,), t).log_likelihood(_all_states(4, 2))
        return found.exp().numpy()

    return relaxed


def _all_states(states: int, elements: int) -> torch.Tensor:
    return torch.cartesian_prod(*[torch.arange(states)] * elements)


def _off(matrix: Array, law: Array) -> float:
    return total_variation(stationary(matrix), law)


def _below(claim: str, value: float) -> Finding:
    return Finding(claim, value, value < EXACT)


def _near(claim: str, value: float, known: float, within: float = 5.1e-5) -> Finding:
    return Finding(f"{claim}: {known:g}", value, abs(value - known) <= within)


def _likely(claim: str, p: float) -> Finding:
    return Finding(f"{claim}, p", p, p >= SURE)


def verify_posteriors(show: Callable[[str], None] = print) -> bool:
    """Check every claim, showing one line for each. True when all hold."""
    good = True
    for title, found in (("matrices", matrices()), ("likelihoods", likelihoods()), ("draws", draws())):
        show(f"\nposteriors, {title}")
        for one in found:
            show(f"  {one.claim:<66}{one.value:>12.3g}{'' if one.holds else '   FAILS'}")
            good &= one.holds and math.isfinite(one.value)
    return good
