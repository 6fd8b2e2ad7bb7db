"""Claims about posterior sampling.

Stationary distributions are computed from whole matrices, and the package's own samples are checked
by chi-square tests. `SplitToy` has the matrices of split Gibbs sampling and related chains on a
tiny space, without a line of `blackout.posterior`. A `Case` combines it with the package's process
and measurement, whose samplers then run with exact reverse runs (`ExactPrior`).

References: Chu et al. 2025, section 3, for split Gibbs sampling; the rest is this project's.
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
from blackout.diffusion.time_grids import logit_times
from blackout.posterior import NoiseDenoise
from blackout.posterior.auto import Direct, conjugate_state
from blackout.posterior.coupling import Coupling
from blackout.posterior.noise import Binomial, Exact, Flips, Poisson
from blackout.posterior.operators import Identity, Inpaint, Matrix, Pool
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.problem import InverseProblem
from blackout.posterior.split_gibbs import SplitGibbs
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

_EXACT = 1e-9  # total variation allowed between exact distributions
_LEVELS = (1.0, 0.5, 0.1, 0.01, 0.001)  # coupling times t
# total variation between the split distribution and the posterior at `_LEVELS`, for the uniform
# process, four levels and two elements
_SPLIT_ERRORS = (0.2409, 0.1711, 0.0478, 0.00519, 0.00052)
# error of the published potential of Chu et al. 2025 at levels 0.01 and 0.001
_PUBLISHED_ERRORS = (0.1839, 0.1941)
# error of restarted Metropolis proposals at level 0.01: (number of proposals, total variation)
_RESTARTED_ERRORS = ((1, 0.2697), (4, 0.1424), (8, 0.0725), (32, 0.0056))
# units of the known pixel of a pair -> error of the other one if the known one is overwritten
_OVERWRITING_ERRORS = {2: 0.284, 5: 0.153, 8: 0.258, 12: 0.101}
_CHAINS = 20_000  # samples of every chi-square test
_Y = 3.0  # observed count
_EXPOSURE = 0.5  # expected counts per unit
_BACKGROUND = 0.3  # expected counts without signal

# coupling time -> transition matrix of one element, [levels, states]
Element = Callable[[float], Array]


def uniform_element(levels: int) -> Element:
    """Return the uniform process: e^-t I + (1 - e^-t) / N."""
    return lambda t: math.exp(-t) * np.eye(levels) - math.expm1(-t) / levels


def death_element(levels: int) -> Element:
    """Return pure death: Binomial(x, e^-t)."""
    return lambda t: thinning(levels - 1, math.exp(-t))


def absorbing_element(levels: int) -> Element:
    """Return the absorbing process: a level stays, or becomes the mask, state number `levels`."""
    return lambda t: np.hstack(
        [math.exp(-t) * np.eye(levels), np.full((levels, 1), -math.expm1(-t))]
    )


_PROCESSES: dict[str, tuple[Process, Element]] = {
    "uniform": (Uniform(3), uniform_element(4)),
    "pure death": (PureDeath(3), death_element(4)),
    "absorbing": (Absorbing(3), absorbing_element(4)),
}


@dataclass(frozen=True)
class SplitToy:
    """A prior and a likelihood on levels ** elements, coupled by a process.

    Args:
        p: the prior, [levels ** elements].
        likelihood: L of the data, the same shape.
        levels: number of levels of one element.
        elements: number of elements.
        element: the process.
        relaxed: level -> Lt of states, [states ** elements]; None uses L itself.
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
        return _normalise(self.p * self.likelihood)

    @property
    def states(self) -> int:
        """Number of states of one element of z."""
        return self.element(1.0).shape[1]

    def forward(self, t: float, factor: float = 1.0) -> Array:
        """Return K_t(x, z), [x, z].

        Args:
            t: the coupling time.
            factor: multiplies K_t of one element off its diagonal; N - 1 is the published
                potential.
        """
        matrix = self.element(t)
        off_diagonal = 1 - np.eye(*matrix.shape)
        return reduce(np.kron, [matrix * (1 + (factor - 1) * off_diagonal)] * self.elements)

    def relaxed_likelihood(self, t: float) -> Array:
        """Return Lt(z)."""
        return self.likelihood if self.relaxed is None else self.relaxed(t)

    def split(self, t: float) -> Array:
        """Return the x-marginal of p(x) Lt(z) K_t(x, z): p (K_t Lt) / Z."""
        return _normalise(self.p * (self.forward(t) @ self.relaxed_likelihood(t)))

    def denoise(self, t: float) -> Array:
        """Return p(x | z), [z, x]; the prior for states that cannot occur."""
        return normalise_rows((self.p[:, None] * self.forward(t)).T, _normalise(self.p))

    def likelihood_step(self, t: float, factor: float = 1.0) -> Array:
        """Return P(z | x), proportional to Lt(z) K_t(x, z), [x, z]; `factor` as in `forward`."""
        return normalise_rows(
            self.forward(t, factor) * self.relaxed_likelihood(t),
            _normalise(self.relaxed_likelihood(t)),
        )

    def sweep(self, t: float, factor: float = 1.0) -> Array:
        """Return one sweep x -> z -> x', [x, x']."""
        return self.likelihood_step(t, factor) @ self.denoise(t)

    def metropolis(self, x: int, t: float, factor: float = 1.0) -> Array:
        """Return one Metropolis step given x, [z, z']: a random element proposes a random state."""
        proposal = (
            np.mean([self._differs_only_at(site) for site in range(self.elements)], 0) / self.states
        )
        return self._metropolis_accept(
            proposal, self.forward(t, factor)[x] * self.relaxed_likelihood(t)
        )

    def site_by_site(self, x: int, t: float) -> Array:
        """Return one pass of the heat bath given x, one element after the other, [z, z']."""
        target = self.forward(t)[x] * self.relaxed_likelihood(t)
        sites = range(self.elements)
        steps = (
            normalise_rows(
                self._differs_only_at(site) * target, self._differs_only_at(site) / self.states
            )
            for site in sites
        )
        return reduce(np.matmul, steps)

    def _differs_only_at(self, site: int) -> Array:
        """Return [z, z'], 1 where at most this element differs, else 0."""
        identity = np.eye(self.states)
        ones = np.ones((self.states, self.states))
        return reduce(
            np.kron, [ones if element == site else identity for element in range(self.elements)]
        )

    def persistent(self, t: float, step: Callable[[int, float], Array], times: int = 1) -> Array:
        """Return the x-marginal of the joint chain (x, z).

        z moves by `step` given x, then x is drawn given z.
        """
        denoise = self.denoise(t)
        moves = [np.linalg.matrix_power(step(x, t), times) for x in range(len(self.p))]
        joint = np.einsum("xzw,wy->xzyw", np.stack(moves), denoise)
        size = len(self.p) * len(denoise)
        return stationary(joint.reshape(size, size)).reshape(len(self.p), -1).sum(1)

    def restarted(self, t: float, times: int) -> Array:
        """Return the stationary distribution of x if every sweep restarts Metropolis at z = x."""
        rows = [np.linalg.matrix_power(self.metropolis(x, t), times)[x] for x in range(len(self.p))]
        return stationary(np.stack(rows) @ self.denoise(t))

    def noise_denoise(self, t: float) -> Array:
        """Return the noise-denoise move, [x, x'].

        z ~ K_t(x, .) and x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)).
        """
        return self._metropolis_accept(self.forward(t) @ self.denoise(t), self.likelihood)

    def corrected(self, t: float) -> Array:
        """Return a sweep with a Metropolis correction, [x, x'].

        It is accepted with probability min(1, w(x') / w(x)), w = L / (K_t Lt).
        """
        return self._metropolis_accept(
            self.sweep(t), self.likelihood / (self.forward(t) @ self.relaxed_likelihood(t))
        )

    @staticmethod
    def _metropolis_accept(proposal: Array, weight: Array) -> Array:
        """Return the Metropolis chain of a proposal, [x, x'], with the given target ratios."""
        moved = proposal * np.minimum(1.0, divide_or_default(weight[None], weight[:, None], 1.0))
        return moved + np.diag(1 - moved.sum(1))

    def error(self, distribution: Array) -> float:
        """Return the total variation between a distribution and the posterior."""
        return total_variation(distribution, self.posterior)

    def divergences(self, t: float, sweeps: int) -> list[float]:
        """Return the KL from the split distribution to that after each sweep, from the prior on."""
        distributions = accumulate(range(sweeps), lambda p, _: p @ self.sweep(t), initial=self.p)
        return [float(special.rel_entr(p, self.split(t)).sum()) for p in distributions]


def stationary(matrix: Array) -> Array:
    """Return the stationary distribution of a chain by solving for it."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def _normalise(weights: Array) -> Array:
    return weights / weights.sum()


@dataclass(frozen=True)
class ExactPrior(Prior):
    """A prior whose reverse runs are samples from Bayes' rule.

    Args:
        toy: prior and process.
    """

    toy: SplitToy = field(kw_only=True)

    def reverse(
        self, z: Tensor, t: float, source: Streams = None, num_steps: int | None = None
    ) -> Tensor:
        return self._draw_states(self.toy.denoise(t)[state_numbers(z, self.toy.states)], source)

    def draw(self, number: int, source: Streams = None) -> Tensor:
        return self._draw_states(np.tile(self.toy.p, (number, 1)), source)

    def _draw_states(self, distributions: Array, source: Streams) -> Tensor:
        """Sample one state of each distribution [n, states], uint8 [n, elements]."""
        states = categorical(
            torch.from_numpy(distributions),
            source.step(0) if isinstance(source, SampleStreams) else source,
        )
        levels = np.unravel_index(states.numpy(), (self.toy.levels,) * self.toy.elements)
        return torch.from_numpy(np.stack(levels, 1)).to(torch.uint8)


@dataclass(frozen=True)
class BlackBoxed:
    """A problem that only exposes its likelihood.

    Args:
        problem: the wrapped problem.
    """

    problem: InverseProblem

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return the log-likelihood of the wrapped problem."""
        return self.problem.log_likelihood(x)


@dataclass(frozen=True)
class Case:
    """A process and a measurement, once in the package and once in matrices.

    Args:
        name: of the process.
        process: the package's process.
        toy: the same process and measurement in matrices.
        problem: the package's measurement.
    """

    name: str
    process: Process
    toy: SplitToy
    problem: InverseProblem

    @property
    def prior(self) -> ExactPrior:
        """The prior with exact reverse runs."""
        return ExactPrior(None, self.process, (self.toy.elements,), toy=self.toy)  # type: ignore[arg-type]


def cases(separable: bool) -> list[Case]:
    """Return cases with a noisy count of two elements of four levels.

    Args:
        separable: whether each element is measured separately, or their sum with weights 1 and 2.
    """
    operator = Identity() if separable else Matrix(torch.tensor([[1.0, 2.0]]))
    y = (_Y, 1.0) if separable else (_Y,)
    problem = InverseProblem(operator, Poisson(_EXPOSURE, _BACKGROUND), torch.tensor(y))
    p = np.random.default_rng(0).dirichlet(np.ones(16))

    def likelihood(a: Array, b: Array) -> Array:
        rates = [_EXPOSURE * mean + _BACKGROUND for mean in ((a, b) if separable else (a + 2 * b,))]
        return np.prod([stats.poisson.pmf(*pair) for pair in zip(y, rates, strict=True)], 0)

    def relaxed(name: str, t: float) -> Array:
        if name == "absorbing":  # the geometric mean over all levels of masked elements
            a, b = _axes(5)
            likelihoods = [
                likelihood(np.where(a == 4, v, a), np.where(b == 4, v, b)) for v in range(4)
            ]
            return np.exp(np.mean(np.log(likelihoods), 0))
        # pure death reads counts as e^t z
        scale = math.exp(t) if name == "pure death" else 1.0
        return likelihood(*np.minimum(scale * _axes(4), 3))

    return [
        Case(
            name,
            process,
            SplitToy(p, likelihood(*_axes(4)), 4, 2, element, partial(relaxed, name)),
            problem,
        )
        for name, (process, element) in _PROCESSES.items()
    ]


def _axes(states: int) -> Array:
    """Return both elements of every state of a pair, float64 [2, states ** 2]."""
    return np.indices((states, states)).reshape(2, -1) * 1.0


def matrices() -> Iterator[Claim]:
    """Yield claims about the chains, without a line of `blackout.posterior`."""
    toys = {name: _random_toy(name, element) for name, (_, element) in _PROCESSES.items()}
    for name, toy in toys.items():
        worst = max(total_variation(stationary(toy.sweep(t)), toy.split(t)) for t in _LEVELS)
        yield _is_negligible(f"{name}: sweeps leave p (K_t L) / Z invariant", worst)
        split = toy.split(0.1)
        for title, step in (
            ("with one proposal", toy.metropolis),
            ("with the heat bath", toy.site_by_site),
        ):
            yield _is_negligible(
                f"{name}: so do sweeps {title}", total_variation(toy.persistent(0.1, step), split)
            )
        worst = max(toy.error(stationary(toy.noise_denoise(t))) for t in (1.0, 0.1))
        yield _is_negligible(f"{name}: noise-denoise moves leave the posterior invariant", worst)
        worst = max(toy.error(stationary(toy.corrected(t))) for t in (1.0, 0.1))
        yield _is_negligible(f"{name}: so do corrected sweeps", worst)
        increments = np.diff(toy.divergences(0.5, 20))
        yield Claim(f"{name}: the divergence never increases", float(increments.max()), 1e-12)
    yield from _figures(toys["uniform"])


def _figures(toy: SplitToy) -> Iterator[Claim]:
    """Yield the known numbers, both of correct chains and of incorrect ones."""
    for t, published_error in zip(_LEVELS, _SPLIT_ERRORS, strict=True):
        yield _is_close_to(
            f"split distribution at level {t:g}", toy.error(toy.split(t)), published_error
        )
    for t, published_error in zip((0.01, 0.001), _PUBLISHED_ERRORS, strict=True):
        yield _is_close_to(
            f"the published potential, level {t:g}",
            toy.error(stationary(toy.sweep(t, 3.0))),
            published_error,
        )
    for times, published_error in _RESTARTED_ERRORS:
        yield _is_close_to(
            f"{times} restarted proposals", toy.error(toy.restarted(0.01, times)), published_error
        )
    grid = logit_times(100, 7.0, -10.0).numpy()
    known_counts = tuple(_OVERWRITING_ERRORS)
    for y, deviation in zip(
        known_counts, overwriting_errors(pixel_pair(), grid, known_counts), strict=True
    ):
        yield _is_close_to(
            f"overwriting a pixel of {y} units, 100 steps", deviation, _OVERWRITING_ERRORS[y], 5e-4
        )


def overwriting_errors(toy: Toy, times: Array, known: tuple[int, ...]) -> list[float]:
    """Return the errors of overwriting known elements, by whole matrices.

    Its samples have the wrong distribution however many steps are taken. The error is the total
    variation to the distribution of the second element given the first, for pure death with exact
    reverse steps.

    Args:
        toy: two elements.
        times: grid of the sampler, [T + 1].
        known: values of the first element.
    """
    survival = np.exp(-times)
    levels = toy.levels
    start = toy.marginal(survival[-1]).reshape(levels, levels).sum(0)
    distributions = {y: np.outer(thinning(levels - 1, survival[-1])[y], start) for y in known}
    for s, t in zip(survival[-2::-1], survival[:0:-1], strict=True):
        # the second element takes an exact step given both; the first follows its own bridge to y
        reverse = toy.reverse(s, t).reshape([levels] * 4).sum(2)
        births = thinning(levels - 1, (s - t) / (1 - t))
        for y, distribution in distributions.items():
            bridge = np.zeros((levels, levels))
            for state in range(y + 1):
                bridge[state, state : y + 1] = births[y - state, : y - state + 1]
            distributions[y] = np.einsum(
                "ku,kuv,kj->jv", distribution, reverse, bridge, optimize=True
            )
    exact = toy.cube / toy.cube.sum(1, keepdims=True)
    return [total_variation(distribution[y], exact[y]) for y, distribution in distributions.items()]


def _random_toy(name: str, element: Element) -> SplitToy:
    """Return a random prior and likelihood of two elements of four levels.

    They are Dirichlet and exp(-3 uniform). L of masked states is the geometric mean over levels.
    """
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(16))
    likelihood = np.exp(-3 * rng.random(16))
    square = np.log(likelihood).reshape(4, 4)
    extended = np.block(
        [[square, square.mean(1, keepdims=True)], [square.mean(0, keepdims=True), square.mean()]]
    )
    masked = (lambda t: np.exp(extended.ravel())) if name == "absorbing" else None
    return SplitToy(p, likelihood, 4, 2, element, masked)


def likelihoods() -> Iterator[Claim]:
    """Yield claims that compare couplings and likelihoods of the package with brute force."""
    for name, (process, element) in _PROCESSES.items():
        deviation = max(
            float(np.abs(Coupling(process).log_table(t).exp().numpy() - element(t)).max())
            for t in _LEVELS
        )
        yield _is_negligible(f"{name}: the coupling is the process's transition matrix", deviation)
    for case in cases(separable=False):
        for t in (1.0, 0.1):
            deviation = float(
                np.abs(
                    _relaxed(case.process, BlackBoxed(case.problem), t)
                    - case.toy.relaxed_likelihood(t)
                ).max()
            )
            yield _is_negligible(f"{case.name}: likelihood of states, {t:g}", deviation)
    for title, problem, t in (
        ("thinning", InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0])), 0.7),
        ("photons", InverseProblem(Identity(), Poisson(0.8, 0.4), torch.tensor([3.0, 0.0])), 0.5),
        ("pooled photons", InverseProblem(Pool(2), Poisson(0.8), torch.tensor([4.0])), 0.5),
    ):
        forward = np.kron(death_element(6)(t), death_element(6)(t))
        likelihood = problem.log_likelihood(_all_states(6).double()).exp().numpy()
        deviation = float(np.abs(forward @ _relaxed(PureDeath(5), problem, t) - likelihood).max())
        yield _is_negligible(f"{title}: the thinned likelihood averages to L", deviation)
    yield from _conjugate()


def _conjugate() -> Iterator[Claim]:
    """Yield claims that L(x) is proportional to K_t(x, z) where `conjugate_state` applies.

    One reverse run is enough there.
    """
    mask = torch.tensor([True, False])
    for name, process, problem in (
        (
            "pure death, thinning",
            PureDeath(3),
            InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0])),
        ),
        (
            "uniform, flips",
            Uniform(3),
            InverseProblem(Identity(), Flips(1.5), torch.tensor([1.0, 2.0])),
        ),
        (
            "absorbing, erasures",
            Absorbing(3),
            InverseProblem(Inpaint(mask), Exact(), torch.tensor([1.0, 0.0])),
        ),
    ):
        conjugate = conjugate_state(process, problem, (2,))
        assert conjugate is not None
        (state,), t = conjugate
        x = _all_states(4)
        reach_probability = process.pmf(x, torch.tensor(t, dtype=torch.float64)).gather(
            2, state.expand(len(x), 2)[..., None]
        )
        path_weights = reach_probability[..., 0].prod(1).numpy()
        data_weights = problem.log_likelihood(x.double()).exp().numpy()
        yield _is_negligible(
            f"direct, {name}",
            total_variation(path_weights / path_weights.sum(), data_weights / data_weights.sum()),
        )


def draws(n: int = _CHAINS) -> Iterator[Claim]:
    """Yield chi-square tests of the package's samplers with exact reverse runs.

    Samples are compared with products of matrices.
    """
    levels = (1.0, 0.5, 0.2)
    start = torch.zeros(n, 2, dtype=torch.uint8)
    for case in cases(separable=True):
        toy = case.toy
        if case.name == "pure death":  # the package thins the problem
            toy = replace(toy, relaxed=partial(_relaxed, case.process, case.problem))
        expected = reduce(np.matmul, map(toy.sweep, levels), np.eye(16)[0])
        samples = SplitGibbs(levels).sample(case.prior, case.problem, n, start=start).samples
        yield _is_plausible(
            f"{case.name}: sweeps of a separable problem",
            p_value(count_states(samples, 4), expected),
        )
    for case in cases(separable=False):
        for title, step, method in (
            ("the heat bath", case.toy.site_by_site, SplitGibbs(levels, passes=1)),
            ("Metropolis", case.toy.metropolis, SplitGibbs(levels, "metropolis", 1)),
        ):
            if title == "Metropolis" and case.name != "uniform":
                continue  # other processes propose from K_t, for which there is no matrix here
            expected = persistent_distribution(case.toy, levels, step)
            samples = method.sample(case.prior, case.problem, n, start=start).samples
            yield _is_plausible(
                f"{case.name}: sweeps with {title}", p_value(count_states(samples, 4), expected)
            )
        expected = reduce(
            np.matmul, map(case.toy.noise_denoise, (*levels, levels[0])), np.eye(16)[0]
        )
        samples = NoiseDenoise(levels, 4).sample(case.prior, case.problem, n, start=start).samples
        yield _is_plausible(
            f"{case.name}: noise-denoise moves", p_value(count_states(samples, 4), expected)
        )
    yield _published_sweep(start)
    case = cases(separable=True)[1]
    problem = InverseProblem(Identity(), Binomial(0.3), torch.tensor([1.0, 2.0]))
    samples = Direct().sample(case.prior, problem, n).samples
    weight = case.toy.p * problem.log_likelihood(_all_states(4).double()).exp().numpy()
    yield _is_plausible(
        "pure death: direct", p_value(count_states(samples, 4), weight / weight.sum())
    )


def _published_sweep(start: Tensor) -> Claim:
    """Test one sweep of four restarted proposals under the published potential, uniform process."""
    case = cases(separable=False)[0]
    chain = SplitGibbs((0.5,), proposals=4, published=True)
    samples = chain.sample(case.prior, case.problem, len(start), start=start).samples
    z = np.linalg.matrix_power(case.toy.metropolis(0, 0.5, 3.0), 4)[0]
    return _is_plausible(
        "uniform: a sweep as published",
        p_value(count_states(samples, 4), z @ case.toy.denoise(0.5)),
    )


def persistent_distribution(
    toy: SplitToy, levels: tuple[float, ...], step: Callable[[int, float], Array]
) -> Array:
    """Return the distribution of x if z persists from sweep to sweep.

    The chain starts at x = 0 and z drawn at its level.
    """
    joint = np.zeros((len(toy.p), len(toy.relaxed_likelihood(levels[0]))))
    joint[0] = toy.forward(levels[0])[0]
    for t in levels:
        z_mass = np.stack([joint[x] @ step(x, t) for x in range(len(toy.p))]).sum(0)
        joint = toy.denoise(t).T * z_mass
    return joint.sum(1)


def _relaxed(process: Process, problem: Any, t: float) -> Array:
    """Return the package's relaxed likelihood Lt of all states of two elements."""
    states = _all_states(process.num_states)
    return Coupling(process).relax(problem, (2,), t).log_likelihood(states).exp().numpy()


def _all_states(states: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(states)] * 2)


def _is_negligible(claim: str, value: float) -> Claim:
    """Claim that a deviation is zero up to rounding."""
    return Claim(claim, value, _EXACT)


def _is_close_to(claim: str, value: float, known: float, within: float = 5.1e-5) -> Claim:
    """Claim that a value equals a known one."""
    return Claim(f"{claim}: {known:g}", abs(value - known), within)


def _is_plausible(claim: str, p: float) -> Claim:
    """Claim that a p-value is not too small."""
    return Claim(f"{claim}, p", p, None)
