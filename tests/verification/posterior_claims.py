"""The claims about posterior sampling: stationary laws by whole matrices, and the package's own draws by chi-square.

`SplitToy` has the matrices of split Gibbs sampling [Chu 2025, section 3] and its relatives on a tiny space, without a
line of `blackout.posterior`. A `Case` is one with the same process and measurement as the package has them, whose
samplers then run with exact reverse runs (`ExactPrior`). Ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.diffusion.schedules import logit_times
from blackout.posterior import NoiseDenoise
from blackout.posterior.auto import Direct, conjugate_state
from blackout.posterior.noise import Binomial, Exact, Flips, Poisson
from blackout.posterior.operators import Identity, Inpaint, Matrix, Pool
from blackout.posterior.problem import InverseProblem, Prior, Streams
from blackout.posterior.split_gibbs import Coupling, SplitGibbs
from blackout.random import SampleStreams, categorical
from blackout.verification.draws import count_states, p_value, state_numbers
from blackout.verification.toys import (
    Array,
    Toy,
    divide_or_default,
    normalise_rows,
    pixel_pair,
    thinning,
    total_variation,
)
from tests.verification.claim import Claim

_EXACT = 1e-9
_LEVELS = (1.0, 0.5, 0.1, 0.01, 0.001)
_TOGETHER = (0.2409, 0.1711, 0.0478, 0.00519, 0.00052)
"""Total variation of the split law to the posterior at these levels, uniform process, four levels, two elements."""
_POTENTIAL, _RESTARTED = (0.1839, 0.1941), ((1, 0.2697), (4, 0.1424), (8, 0.0725), (32, 0.0056))
"""Of the two errors of Chu et al. 2025 at small levels."""
_OVERWRITING = {2: 0.284, 5: 0.153, 8: 0.258, 12: 0.101}
"""Of the other pixel of a pair, where one has so many units."""
_CHAINS = 20_000
_Y, _EXPOSURE, _BACKGROUND = 3.0, 0.5, 0.3

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


_PROCESSES: dict[str, tuple[Process, Element]] = {
    "uniform": (Uniform(3), uniform_element(4)),
    "pure death": (PureDeath(3), death_element(4)),
    "absorbing": (Absorbing(3), absorbing_element(4)),
}


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

    @property
    def states(self) -> int:
        """Of one element of z."""
        return self.element(1.0).shape[1]

    def forward(self, t: float, factor: float = 1.0) -> Array:
        """K_t(x, z), [x, z].

        Args:
            factor: on K_t of one element off its diagonal; N - 1 is the published potential.
        """
        one = self.element(t)
        away = 1 - np.eye(*one.shape)
        return reduce(np.kron, [one * (1 + (factor - 1) * away)] * self.elements)

    def of_states(self, t: float) -> Array:
        """Lt(z)."""
        return self.likelihood if self.relaxed is None else self.relaxed(t)

    def split(self, t: float) -> Array:
        """The x-marginal of p(x) Lt(z) K_t(x, z): p (K_t Lt) / Z."""
        return _normal(self.p * (self.forward(t) @ self.of_states(t)))

    def denoise(self, t: float) -> Array:
        """p(x | z), [z, x]; of states that cannot be, the prior."""
        return normalise_rows((self.p[:, None] * self.forward(t)).T, _normal(self.p))

    def likelihood_step(self, t: float, factor: float = 1.0) -> Array:
        """P(z | x) in proportion to Lt(z) K_t(x, z), [x, z]; `factor` as in `forward`."""
        return normalise_rows(self.forward(t, factor) * self.of_states(t), _normal(self.of_states(t)))

    def sweep(self, t: float, factor: float = 1.0) -> Array:
        """x -> z -> x', [x, x']."""
        return self.likelihood_step(t, factor) @ self.denoise(t)

    def metropolis(self, x: int, t: float, factor: float = 1.0) -> Array:
        """One proposal given x: an element at random, one of the states at random, [z, z']."""
        proposal = np.mean([self._alone(site) for site in range(self.elements)], 0) / self.states
        return self._accepted(proposal, self.forward(t, factor)[x] * self.of_states(t))

    def site_by_site(self, x: int, t: float) -> Array:
        """One pass of the heat bath given x, one element after the other, [z, z']."""
        target, sites = self.forward(t)[x] * self.of_states(t), range(self.elements)
        steps = (normalise_rows(self._alone(site) * target, self._alone(site) / self.states) for site in sites)
        return reduce(np.matmul, steps)

    def _alone(self, site: int) -> Array:
        """1 where no element but this one differs, else 0: [z, z']."""
        one, all_of_them = np.eye(self.states), np.ones((self.states, self.states))
        return reduce(np.kron, [all_of_them if element == site else one for element in range(self.elements)])

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
        moved = proposal * np.minimum(1.0, divide_or_default(weight[None], weight[:, None], 1.0))
        return moved + np.diag(1 - moved.sum(1))

    def error(self, law: Array) -> float:
        """Total variation to the posterior."""
        return total_variation(law, self.posterior)

    def divergences(self, t: float, sweeps: int) -> list[float]:
        """KL of the law after each sweep at a level from the split law, from the prior on."""
        laws = accumulate(range(sweeps), lambda law, _: law @ self.sweep(t), initial=self.p)
        return [float(special.rel_entr(law, self.split(t)).sum()) for law in laws]


def stationary(matrix: Array) -> Array:
    """The stationary law of a chain, by solving for it."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def _normal(weights: Array) -> Array:
    return weights / weights.sum()


@dataclass(frozen=True)
class ExactPrior(Prior):
    """A prior whose reverse runs are draws from Bayes' rule.

    Args:
        toy: prior and process.
    """

    toy: SplitToy = field(kw_only=True)

    def reverse(self, z: Tensor, t: float, source: Streams = None, num_steps: int | None = None) -> Tensor:
        return self._drawn(self.toy.denoise(t)[state_numbers(z, self.toy.states)], source)

    def draw(self, number: int, source: Streams = None) -> Tensor:
        return self._drawn(np.tile(self.toy.p, (number, 1)), source)

    def _drawn(self, laws: Array, source: Streams) -> Tensor:
        """One state of each law [n, states], uint8 [n, elements]."""
        drawn = categorical(torch.from_numpy(laws), source.step(0) if isinstance(source, SampleStreams) else source)
        states = np.unravel_index(drawn.numpy(), (self.toy.levels,) * self.toy.elements)
        return torch.from_numpy(np.stack(states, 1)).to(torch.uint8)


@dataclass(frozen=True)
class BlackBoxed:
    """A problem of which only the likelihood is shown.

    Args:
        problem: the whole of it.
    """

    problem: InverseProblem

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
    process: Process
    toy: SplitToy
    problem: InverseProblem

    @property
    def prior(self) -> ExactPrior:
        """With exact reverse runs."""
        return ExactPrior(None, self.process, (self.toy.elements,), toy=self.toy)  # type: ignore[arg-type]


def cases(separable: bool) -> list[Case]:
    """A noisy count of two elements of four levels, each by itself or summed with weights 1 and 2."""
    operator = Identity() if separable else Matrix(torch.tensor([[1.0, 2.0]]))
    y = (_Y, 1.0) if separable else (_Y,)
    problem = InverseProblem(operator, Poisson(_EXPOSURE, _BACKGROUND), torch.tensor(y))
    p = np.random.default_rng(0).dirichlet(np.ones(16))

    def likelihood(a: Array, b: Array) -> Array:
        rates = [_EXPOSURE * mean + _BACKGROUND for mean in ((a, b) if separable else (a + 2 * b,))]
        return np.prod([stats.poisson.pmf(*pair) for pair in zip(y, rates, strict=True)], 0)

    def relaxed(name: str, t: float) -> Array:
        if name == "absorbing":  # masked ones take all levels in turn
            a, b = _axes(5)
            tried = [likelihood(np.where(a == 4, v, a), np.where(b == 4, v, b)) for v in range(4)]
            return np.exp(np.mean(np.log(tried), 0))
        stretched = math.exp(t) if name == "pure death" else 1.0  # counts are read as e^t z
        return likelihood(*np.minimum(stretched * _axes(4), 3))

    return [
        Case(name, process, SplitToy(p, likelihood(*_axes(4)), 4, 2, element, partial(relaxed, name)), problem)
        for name, (process, element) in _PROCESSES.items()
    ]


def _axes(states: int) -> Array:
    """Both elements of every state of a pair, float64 [2, states ** 2]."""
    return np.indices((states, states)).reshape(2, -1) * 1.0


def matrices() -> Iterator[Claim]:
    """What holds of the chains, without a line of `blackout.posterior`."""
    toys = {name: _random_toy(name, element) for name, (_, element) in _PROCESSES.items()}
    for name, toy in toys.items():
        worst = max(total_variation(stationary(toy.sweep(t)), toy.split(t)) for t in _LEVELS)
        yield _below(f"{name}: sweeps leave p (K_t L) / Z", worst)
        law = toy.split(0.1)
        for title, step in (("with one proposal", toy.metropolis), ("with the heat bath", toy.site_by_site)):
            yield _below(f"{name}: so do sweeps {title}", total_variation(toy.persistent(0.1, step), law))
        worst = max(toy.error(stationary(toy.noise_denoise(t))) for t in (1.0, 0.1))
        yield _below(f"{name}: noise-denoise moves leave the posterior", worst)
        worst = max(toy.error(stationary(toy.corrected(t))) for t in (1.0, 0.1))
        yield _below(f"{name}: so do corrected sweeps", worst)
        falls = np.diff(toy.divergences(0.5, 20))
        yield Claim(f"{name}: the divergence never rises", float(falls.max()), 1e-12)
    yield from _figures(toys["uniform"])


def _figures(toy: SplitToy) -> Iterator[Claim]:
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


def overwriting_errors(toy: Toy, times: Array, known: tuple[int, ...]) -> list[float]:
    """What overwriting of known elements samples, a wrong law however many steps are taken, by whole matrices.

    Total variation to the law of the second element given the first, for pure death with exact reverse steps.

    Args:
        toy: two elements.
        times: grid of the sampler, [T + 1].
        known: values of the first element.
    """
    survival, levels = np.exp(-times), toy.levels
    start = toy.marginal(survival[-1]).reshape(levels, levels).sum(0)
    laws = {y: np.outer(thinning(levels - 1, survival[-1])[y], start) for y in known}
    for s, t in zip(survival[-2::-1], survival[:0:-1], strict=True):
        # the second element's step given both; the first follows its own bridge to y
        reverse = toy.reverse(s, t).reshape([levels] * 4).sum(2)
        births = thinning(levels - 1, (s - t) / (1 - t))
        for y, law in laws.items():
            bridge = np.zeros((levels, levels))
            for state in range(y + 1):
                bridge[state, state : y + 1] = births[y - state, : y - state + 1]
            laws[y] = np.einsum("ku,kuv,kj->jv", law, reverse, bridge, optimize=True)
    exact = toy.cube / toy.cube.sum(1, keepdims=True)
    return [total_variation(law[y], exact[y]) for y, law in laws.items()]


def _random_toy(name: str, element: Element) -> SplitToy:
    """A random prior and likelihood of two elements of four levels: Dirichlet, and exp(-3 uniform).

    L of masked states is the geometric mean over levels.
    """
    rng = np.random.default_rng(0)
    p, likelihood = rng.dirichlet(np.ones(16)), np.exp(-3 * rng.random(16))
    square = np.log(likelihood).reshape(4, 4)
    wide = np.block([[square, square.mean(1, keepdims=True)], [square.mean(0, keepdims=True), square.mean()]])
    masked = (lambda t: np.exp(wide.ravel())) if name == "absorbing" else None
    return SplitToy(p, likelihood, 4, 2, element, masked)


def likelihoods() -> Iterator[Claim]:
    """What `blackout.posterior` makes of processes and measurements, against brute force."""
    for name, (process, element) in _PROCESSES.items():
        off = max(float(np.abs(Coupling(process).log_table(t).exp().numpy() - element(t)).max()) for t in _LEVELS)
        yield _below(f"{name}: the coupling is the process's law", off)
    for case in cases(separable=False):
        for t in (1.0, 0.1):
            off = float(np.abs(_relaxed(case.process, BlackBoxed(case.problem), t) - case.toy.of_states(t)).max())
            yield _below(f"{case.name}: likelihood of states, {t:g}", off)
    for title, problem, t in (
        ("thinning", InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0])), 0.7),
        ("photons", InverseProblem(Identity(), Poisson(0.8, 0.4), torch.tensor([3.0, 0.0])), 0.5),
        ("pooled photons", InverseProblem(Pool(2), Poisson(0.8), torch.tensor([4.0])), 0.5),
    ):
        forward = np.kron(death_element(6)(t), death_element(6)(t))
        likelihood = problem.log_likelihood(_all_states(6).double()).exp().numpy()
        off = float(np.abs(forward @ _relaxed(PureDeath(5), problem, t) - likelihood).max())
        yield _below(f"{title}: thinned likelihood averages to L", off)
    yield from _conjugate()


def _conjugate() -> Iterator[Claim]:
    """L(x) is proportional to K_t(x, z) where `conjugate_state` says that one reverse run is enough."""
    mask = torch.tensor([True, False])
    for name, process, problem in (
        ("pure death, thinning", PureDeath(3), InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0]))),
        ("uniform, flips", Uniform(3), InverseProblem(Identity(), Flips(1.5), torch.tensor([1.0, 2.0]))),
        ("absorbing, erasures", Absorbing(3), InverseProblem(Inpaint(mask), Exact(), torch.tensor([1.0, 0.0]))),
    ):
        found = conjugate_state(process, problem, (2,))
        assert found is not None
        (state,), t = found
        x = _all_states(4)
        reached = process.pmf(x, torch.tensor(t, dtype=torch.float64)).gather(2, state.expand(len(x), 2)[..., None])
        of_path = reached[..., 0].prod(1).numpy()
        of_data = problem.log_likelihood(x.double()).exp().numpy()
        yield _below(f"direct, {name}", total_variation(of_path / of_path.sum(), of_data / of_data.sum()))


def draws(n: int = _CHAINS) -> Iterator[Claim]:
    """The package's samplers with exact reverse runs: chi-square of their draws against products of matrices."""
    levels = (1.0, 0.5, 0.2)
    start = torch.zeros(n, 2, dtype=torch.uint8)
    for case in cases(separable=True):
        toy = case.toy
        if case.name == "pure death":  # where the package thins the problem
            toy = replace(toy, relaxed=partial(_relaxed, case.process, case.problem))
        law = reduce(np.matmul, map(toy.sweep, levels), np.eye(16)[0])
        found = SplitGibbs(levels).sample(case.prior, case.problem, n, start=start).samples
        yield _likely(f"{case.name}: sweeps of a separable problem", p_value(count_states(found, 4), law))
    for case in cases(separable=False):
        for title, step, method in (
            ("the heat bath", case.toy.site_by_site, SplitGibbs(levels, passes=1)),
            ("Metropolis", case.toy.metropolis, SplitGibbs(levels, "metropolis", 1)),
        ):
            if title == "Metropolis" and case.name != "uniform":
                continue  # other processes propose draws of K_t, which no matrix here describes
            law = joint_law(case.toy, levels, step)
            found = method.sample(case.prior, case.problem, n, start=start).samples
            yield _likely(f"{case.name}: sweeps with {title}", p_value(count_states(found, 4), law))
        law = reduce(np.matmul, map(case.toy.noise_denoise, (*levels, levels[0])), np.eye(16)[0])
        found = NoiseDenoise(levels, 4).sample(case.prior, case.problem, n, start=start).samples
        yield _likely(f"{case.name}: noise-denoise moves", p_value(count_states(found, 4), law))
    yield _published(start)
    case = cases(separable=True)[1]
    problem = InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0]))
    found = Direct().sample(case.prior, problem, n).samples
    weight = case.toy.p * problem.log_likelihood(_all_states(4).double()).exp().numpy()
    yield _likely("pure death: direct", p_value(count_states(found, 4), weight / weight.sum()))


def _published(start: Tensor) -> Claim:
    """One sweep of four restarted proposals under the published potential, of the uniform process."""
    case = cases(separable=False)[0]
    chain = SplitGibbs((0.5,), proposals=4, published=True)
    found = chain.sample(case.prior, case.problem, len(start), start=start).samples
    z = np.linalg.matrix_power(case.toy.metropolis(0, 0.5, 3.0), 4)[0]
    return _likely("uniform: a sweep as published", p_value(count_states(found, 4), z @ case.toy.denoise(0.5)))


def joint_law(toy: SplitToy, levels: tuple[float, ...], step: Callable[[int, float], Array]) -> Array:
    """The law of x where z goes on from sweep to sweep, from x = 0 and z of its level."""
    joint = np.zeros((len(toy.p), len(toy.of_states(levels[0]))))
    joint[0] = toy.forward(levels[0])[0]
    for t in levels:
        of_z = np.stack([joint[x] @ step(x, t) for x in range(len(toy.p))]).sum(0)
        joint = toy.denoise(t).T * of_z
    return joint.sum(1)


def _relaxed(process: Process, problem: Any, t: float) -> Array:
    """What the package takes for Lt, of all states of two elements."""
    states = _all_states(process.num_states)
    return Coupling(process).relax(problem, (2,), t).log_likelihood(states).exp().numpy()


def _all_states(states: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(states)] * 2)


def _below(claim: str, value: float) -> Claim:
    return Claim(claim, value, _EXACT)


def _near(claim: str, value: float, known: float, within: float = 5.1e-5) -> Claim:
    return Claim(f"{claim}: {known:g}", abs(value - known), within)


def _likely(claim: str, p: float) -> Claim:
    return Claim(f"{claim}, p", p, None)
