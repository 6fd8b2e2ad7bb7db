"""The claims about posterior sampling: stationary laws by whole matrices, and the package's own draws by chi-square."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.predictions import CategoricalPrediction, Prediction
from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.diffusion.schedules import logit_times
from blackout.laws.claims import SURE
from blackout.laws.kernels import p_value
from blackout.laws.overwriting import overwriting_errors
from blackout.laws.toys import Array, pixel_pair, thinning, total_variation
from blackout.posterior.chains import Coupling
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.noise import Binomial, Exact, Flips, Poisson
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.operators import Identity, Inpaint, Matrix, Pool
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.problem import Measured
from blackout.posterior.split_gibbs import SplitGibbs
from blackout.random import SampleStreams, categorical

# --- Whole matrices of split Gibbs sampling and its relatives on a tiny space, independent of `blackout.posterior`.

Element = Callable[[float], Array]
"""level -> transition matrix of one element, [levels, states]."""


def uniform_element(levels: int) -> Element:
    """e^-t I + (1 - e^-t) / N."""
    return lambda t: math.exp(-t) * np.eye(levels) - math.expm1(-t) / levels


def death_element(levels: int) -> Element:
    """Binomial(x, e^-t)."""
    return lambda t: thinning(levels - 1, math.exp(-t))


def absorbing_element(levels: int) -> Element:
    """Stays, or becomes the mask, state number `levels`."""
    return lambda t: np.hstack([math.exp(-t) * np.eye(levels), np.full((levels, 1), -math.expm1(-t))])


@dataclass(frozen=True)
class SplitToy:
    """A prior and a likelihood on levels ** elements, tied by a process.

    Args:
        p: prior, [levels ** elements].
        likelihood: L of data, the same shape.
        levels, elements: of the space.
        element: the process.
        relaxed: level -> Lt of states, [states ** elements]; None takes L itself.
    """

    p: Array
    likelihood: Array
    levels: int
    elements: int
    element: Element
    relaxed: Callable[[float], Array] | None = None

    @cached_property
    def posterior(self) -> Array:
        """p L / Z."""
        return _normal(self.p * self.likelihood)

    def forward(self, t: float) -> Array:
        """K_t(x, z), [x, z]."""
        return reduce(np.kron, [self.element(t)] * self.elements)

    def of_states(self, t: float) -> Array:
        """Lt(z)."""
        return self.likelihood if self.relaxed is None else self.relaxed(t)

    def split(self, t: float) -> Array:
        """The x-marginal of p(x) Lt(z) K_t(x, z): p (K_t Lt) / Z."""
        return _normal(self.p * (self.forward(t) @ self.of_states(t)))

    def denoise(self, t: float) -> Array:
        """p(x | z), [z, x]; of states that cannot be, the prior."""
        joint = (self.p[:, None] * self.forward(t)).T
        return _rows(joint, self.p)

    def likelihood_step(self, t: float, factor: float = 1.0) -> Array:
        """P(z | x) in proportion to Lt(z) K_t(x, z), [x, z].

        Args:
            factor: on K_t of one element off its diagonal; N - 1 is the published potential.
        """
        return _rows(self._kernel(t, factor) * self.of_states(t), self.of_states(t))

    def _kernel(self, t: float, factor: float) -> Array:
        one = self.element(t)
        away = 1 - np.eye(*one.shape)
        return reduce(np.kron, [one * (1 + (factor - 1) * away)] * self.elements)

    def sweep(self, t: float, factor: float = 1.0) -> Array:
        """x -> z -> x', [x, x']."""
        return self.likelihood_step(t, factor) @ self.denoise(t)

    def metropolis(self, x: int, t: float, factor: float = 1.0) -> Array:
        """One proposal given x: an element at random, one of the states at random, [z, z']."""
        states = round(len(self.of_states(t)) ** (1 / self.elements))
        target = self._kernel(t, factor)[x] * self.of_states(t)
        size, matrix = len(target), np.zeros((len(target), len(target)))
        numbers = np.stack(np.unravel_index(np.arange(size), (states,) * self.elements), 1)
        for z in range(size):
            for site in range(self.elements):
                for value in range(states):
                    other = numbers[z].copy()
                    other[site] = value
                    to = int(np.ravel_multi_index(tuple(other), (states,) * self.elements))
                    accept = 1.0 if target[z] == 0 else min(1.0, target[to] / target[z])
                    matrix[z, to] += accept / self.elements / states
        return matrix + np.diag(1 - matrix.sum(1))

    def site_by_site(self, x: int, t: float) -> Array:
        """One pass of the heat bath given x, one element after the other, [z, z']."""
        states = round(len(self.of_states(t)) ** (1 / self.elements))
        target = (self.forward(t)[x] * self.of_states(t)).reshape((states,) * self.elements)
        size, matrix = target.size, np.eye(target.size)
        for site in range(self.elements):
            conditional = _rows(np.moveaxis(target, site, -1), np.ones(states))
            step = np.zeros((size, size))
            for z, number in enumerate(np.ndindex(target.shape)):
                rest = number[:site] + number[site + 1 :]
                for value in range(states):
                    to = np.ravel_multi_index((*number[:site], value, *number[site + 1 :]), target.shape)
                    step[z, to] += conditional[(*rest, value)]
            matrix = matrix @ step
        return matrix

    def persistent(self, t: float, step: Callable[[int, float], Array], times: int = 1) -> Array:
        """The x-marginal of the joint chain (x, z): z moves by `step` given x, then x is drawn given z."""
        denoise, moves = self.denoise(t), [np.linalg.matrix_power(step(x, t), times) for x in range(len(self.p))]
        joint = np.einsum("xzw,wy->xzyw", np.stack(moves), denoise)
        size = len(self.p) * len(denoise)
        return stationary(joint.reshape(size, size)).reshape(len(self.p), -1).sum(1)

    def restarted(self, t: float, times: int) -> Array:
        """The stationary law of x where Metropolis starts at z = x in every sweep."""
        rows = [np.linalg.matrix_power(self.metropolis(x, t), times)[x] for x in range(len(self.p))]
        return stationary(np.stack(rows) @ self.denoise(t))

    def noise_denoise(self, t: float) -> Array:
        """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)): [x, x']."""
        return self._accepted(self.forward(t) @ self.denoise(t), self.likelihood)

    def corrected(self, t: float) -> Array:
        """A sweep, accepted with probability min(1, w(x') / w(x)), w = L / (K_t Lt): [x, x']."""
        return self._accepted(self.sweep(t), self.likelihood / (self.forward(t) @ self.of_states(t)))

    @staticmethod
    def _accepted(proposal: Array, weight: Array) -> Array:
        ratio = np.where(weight[:, None] > 0, weight[None] / np.where(weight > 0, weight, 1)[:, None], 1.0)
        moved = proposal * np.minimum(1.0, ratio)
        return moved + np.diag(1 - moved.sum(1))

    def error(self, law: Array) -> float:
        """Total variation to the posterior."""
        return total_variation(law, self.posterior)

    def divergences(self, t: float, sweeps: int) -> list[float]:
        """KL of the law after each sweep at a level from the split law, from the prior on."""
        law, target, found = self.p, self.split(t), []
        for _ in range(sweeps + 1):
            there = law > 0
            found.append(float((law[there] * np.log(law[there] / target[there])).sum()))
            law = law @ self.sweep(t)
        return found


def stationary(matrix: Array) -> Array:
    """The stationary law of a chain, by solving for it."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def random_toy(element: Element, levels: int = 4, elements: int = 2, **more: Callable[[float], Array]) -> SplitToy:
    """A random prior and likelihood: Dirichlet, then exp(-3 uniform), of numpy's generator 0."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(levels**elements))
    return SplitToy(p, np.exp(-3 * rng.random(levels**elements)), levels, elements, element, **more)


def _normal(weights: Array) -> Array:
    return weights / weights.sum()


def _rows(weights: Array, instead: Array) -> Array:
    """Rows that sum to 1; where all is 0, another law."""
    mass = weights.sum(-1, keepdims=True)
    return np.where(mass > 0, weights / np.where(mass > 0, mass, 1), _normal(instead))


# --- The package's own posterior samplers on tiny spaces, with reverse runs from whole matrices.

_Y, _EXPOSURE, _BACKGROUND = 3.0, 0.5, 0.3


@dataclass(frozen=True)
class ExactPrior(Prior):
    """A prior whose reverse runs are draws from Bayes' rule.

    Args:
        toy: prior and process.
    """

    toy: SplitToy = field(kw_only=True)

    def reverse(self, z: Tensor, t: float, source: Streams = None, steps: int | None = None) -> Tensor:
        states = round(len(self.toy.of_states(t)) ** (1 / self.toy.elements))
        rows = torch.from_numpy(self.toy.denoise(t))[_number(z, states)]
        return self._states(categorical(rows, source.at(0) if isinstance(source, SampleStreams) else source))

    def draw(self, number: int, source: Streams = None) -> Tensor:
        rows = torch.from_numpy(self.toy.p).expand(number, -1)
        return self._states(categorical(rows, source.at(0) if isinstance(source, SampleStreams) else source))

    def _states(self, number: Tensor) -> Tensor:
        shape = (self.toy.levels,) * self.toy.elements
        return torch.stack([torch.from_numpy(a) for a in np.unravel_index(number.numpy(), shape)], 1).to(torch.uint8)


@dataclass(frozen=True)
class BlackBoxed:
    """A problem of which only the likelihood is shown.

    Args:
        problem: the whole of it.
    """

    problem: Measured

    def log_likelihood(self, x: Tensor) -> Tensor:
        """The problem's."""
        return self.problem.log_likelihood(x)


@dataclass(frozen=True)
class Case:
    """A process with a measurement that matrices and package know.

    Args:
        name: of the process.
        process: the package's.
        toy: the same in matrices.
        problem: likewise the measurement.
    """

    name: str
    process: Process[Any]
    toy: SplitToy
    problem: Measured

    @property
    def prior(self) -> ExactPrior:
        """With exact reverse runs."""
        return ExactPrior(_no_denoiser, self.process, (self.toy.elements,), toy=self.toy)


def cases(separable: bool, levels: int = 4) -> list[Case]:
    """A noisy count of two elements of `levels` levels, each by itself or summed with weights 1 and 2."""
    operator = Identity() if separable else Matrix(torch.tensor([[1.0, 2.0]]))
    y = torch.tensor([_Y, 1.0] if separable else [_Y])
    problem = Measured(operator, Poisson(_EXPOSURE, _BACKGROUND), y)
    p = np.random.default_rng(0).dirichlet(np.ones(levels**2))
    made = []
    for name, process, element in (
        ("uniform", Uniform(levels - 1), uniform_element(levels)),
        ("pure death", PureDeath(levels - 1), death_element(levels)),
        ("absorbing", Absorbing(levels - 1), absorbing_element(levels)),
    ):
        made.append(Case(name, process, _toy(name, p, element, levels, separable), problem))
    return made


def _toy(name: str, p: Array, element: Element, levels: int, separable: bool) -> SplitToy:
    def likelihood(a: Array, b: Array) -> Array:
        rates = [_EXPOSURE * m + _BACKGROUND for m in ((a, b) if separable else (a + 2 * b,))]
        return np.prod([stats.poisson.pmf(y, rate) for y, rate in zip((_Y, 1.0), rates, strict=False)], 0)

    def grid(states: int) -> tuple[Array, Array]:
        a, b = np.meshgrid(np.arange(states), np.arange(states), indexing="ij")
        return a.ravel() * 1.0, b.ravel() * 1.0

    def relaxed(t: float) -> Array:
        if name == "uniform":
            return likelihood(*grid(levels))
        if name == "pure death":  # of counts read as e^t z
            return likelihood(*(np.minimum(np.exp(t) * axis, levels - 1) for axis in grid(levels)))
        a, b = grid(levels + 1)  # masked ones take all levels in turn
        tried = [likelihood(np.where(a == levels, v, a), np.where(b == levels, v, b)) for v in range(levels)]
        return np.exp(np.mean(np.log(tried), 0))

    return SplitToy(p, likelihood(*grid(levels)), levels, 2, element, relaxed)


def law_of(x: Tensor, levels: int) -> Array:
    """How often each state is among x [n, elements], int64 [levels ** elements]."""
    return np.bincount(_number(x, levels).numpy(), minlength=levels ** x.shape[1])


def _number(x: Tensor, states: int) -> Tensor:
    number = torch.zeros(len(x), dtype=torch.int64)
    for column in x.long().unbind(1):
        number = number * states + column
    return number


def _no_denoiser(xt: Tensor, t: Tensor) -> Prediction:
    """Never evaluated."""
    return CategoricalPrediction(torch.zeros(0))


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
