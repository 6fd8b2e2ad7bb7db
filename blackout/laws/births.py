"""What the kernels of pure death should do: exact births of one step, and the chains these make on a toy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from blackout.laws.toys import Array, Beliefs, Toy, _shift, binomial_pmf

Births = Callable[[Beliefs, float], Array]
"""(beliefs of R elements, step fraction r) -> P(births = d), [R, max_count + 1]; what is missing from 1 is clipped."""


def nearest_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded to the nearest whole number, halves to the even one."""
    n = np.minimum(np.round(beliefs.mean), beliefs.headroom).astype(int)
    return binomial_pmf(n[:, None], r, _top(beliefs))


def stochastic_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial bridge, y rounded up with the probability of its fractional part."""
    low = np.floor(beliefs.mean)
    up = (beliefs.mean - low)[:, None]
    lower, upper = (np.minimum(n, beliefs.headroom).astype(int)[:, None] for n in (low, low + 1))
    top = _top(beliefs)
    return (1 - up) * binomial_pmf(lower, r, top) + up * binomial_pmf(upper, r, top)


def poisson_births(beliefs: Beliefs, r: float) -> Array:
    """Poisson(y r)."""
    return poisson_pmf(beliefs.mean * r, _top(beliefs))


def panjer_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial, Poisson or negative binomial of mean y r, by the dispersion F."""
    y, dispersion, top = beliefs.mean, beliefs.dispersion, _top(beliefs)
    births = poisson_births(beliefs, r)
    under, over = dispersion < 1 - 1e-3, (dispersion > 1 + 1e-3) & (y > 0)
    trials = np.where(under, y / np.where(under, 1 - dispersion, 1), 0)
    few = under & (trials < 1)
    births[few] = 0
    births[few, 0], births[few, 1] = 1 - y[few] * r, y[few] * r
    many = under & ~few
    low = np.floor(trials[many])
    up = (trials[many] - low)[:, None]
    chance = (r * (1 - dispersion[many]))[:, None]
    levels = np.arange(top + 1)
    births[many] = (1 - up) * stats.binom.pmf(levels, low[:, None], chance) + up * stats.binom.pmf(
        levels, low[:, None] + 1, chance
    )
    size = (y[over] / (dispersion[over] - 1))[:, None]
    births[over] = stats.nbinom.pmf(levels, size, 1 / (1 + r * (dispersion[over, None] - 1)))
    return births


def posterior_births(beliefs: Beliefs, r: float) -> Array:
    """Binomial(N, r) with N from its exact distribution."""
    top = _top(beliefs)
    return beliefs.missing @ binomial_pmf(np.arange(top + 1)[:, None], r, top)


def poisson_pmf(rate: Array, top: int) -> Array:
    """P(d) for d = 0..top, [R, top + 1]."""
    return stats.poisson.pmf(np.arange(top + 1), rate[:, None])


BIRTHS: dict[str, Births] = {
    "nearest": nearest_births,
    "stochastic": stochastic_births,
    "poisson": poisson_births,
    "panjer": panjer_births,
    "posterior": posterior_births,
}


def step_matrix(toy: Toy, births: Births, q_s: float, q_t: float) -> Array:
    """P(X_s | X_t) of a kernel that treats elements independently given X_t, [m, n]."""
    beliefs = toy.beliefs(q_t)
    levels = landing(births(beliefs, fraction(q_s, q_t)), toy.max_count - beliefs.headroom)
    return independent(levels.reshape(-1, toy.pixels, toy.max_count + 1))


def step_law(toy: Toy, law: Array, q_s: float, q_t: float, births: Births) -> Array:
    """The distribution of X_s when X_t has the given one."""
    return law @ step_matrix(toy, births, q_s, q_t)


def trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float, floor: float = 0.0) -> Array:
    """The same for the theta-trapezoidal step (for any theta), whose second stage looks at both X_t and X_rho."""
    if q_s == 1:
        return step_law(toy, law, q_s, q_t, poisson_births)
    q_rho = 1 - np.sqrt((1 - q_s) * (1 - q_t))
    first, second = fraction(q_rho, q_t), fraction(q_s, q_rho)
    d1, d2 = -np.log1p(-first), -np.log1p(-second)
    theta = d1 / (d1 + d2)
    a1 = 1 / (2 * theta * (1 - theta))
    y, y_rho = (toy.beliefs(q).mean.reshape(-1, toy.pixels) for q in (q_t, q_rho))
    weight = law[:, None] * step_matrix(toy, poisson_births, q_rho, q_t)
    before, between = np.nonzero(weight > 1e-14 * weight.max())
    rate = np.maximum(a1 * y_rho[between] - (a1 - 1) * (1 - first) * y[before], floor * y_rho[between]) * second
    reached = [landing(poisson_pmf(rate[:, i], toy.max_count), toy.states[between, i]) for i in range(toy.pixels)]
    return _together(weight[before, between], reached)


def posterior_trapezoidal_law(toy: Toy, law: Array, q_s: float, q_t: float) -> Array:
    """The same for the trapezoidal step of whole distributions: bridges in both stages, the second extrapolated."""
    if q_s == 1:
        return step_law(toy, law, q_s, q_t, posterior_births)
    q_rho = 1 - np.sqrt((1 - q_s) * (1 - q_t))
    first, second = fraction(q_rho, q_t), fraction(q_s, q_rho)
    weight = law[:, None] * step_matrix(toy, posterior_births, q_rho, q_t)
    before, between = np.nonzero(weight > 1e-14 * weight.max())
    levels = np.arange(toy.max_count + 1)
    missing, missing_rho = (toy.beliefs(q).missing.reshape(-1, toy.pixels, len(levels)) for q in (q_t, q_rho))
    chances, bridge = (binomial_pmf(levels[:, None], r, toy.max_count) for r in (first, second))
    reached = []
    for i in range(toy.pixels):
        births = toy.states[between, i] - toy.states[before, i]
        total = births[:, None] + levels
        inside = total.clip(max=toy.max_count)
        left = np.take_along_axis(missing[before, i], inside, 1) * chances[inside, births[:, None]]
        left = np.where(total <= toy.max_count, left, 0)
        extrapolated = np.clip(2 * missing_rho[between, i] - left / left.sum(1, keepdims=True), 0, None)
        drawn = (extrapolated / extrapolated.sum(1, keepdims=True)) @ bridge
        reached.append(landing(drawn, toy.states[between, i]))
    return _together(weight[before, between], reached)


def _together(weight: Array, reached: list[Array]) -> Array:
    """sum over rows of weight [R] times the product of the elements' distributions [R, levels]: [states]."""
    letters = "abcdefgh"[: len(reached)]
    subscripts = ",".join(["r", *(f"r{x}" for x in letters)]) + "->" + letters
    return np.einsum(subscripts, weight, *reached, optimize=True).reshape(-1)


def walk(toy: Toy, survivals: Array, step: Callable[[Toy, Array, float, float], Array]) -> Iterator[tuple[int, Array]]:
    """(k, distribution of X_{t_k}) of a sampler that starts from Poisson(q_T E[X_0]), k = T down to 0.

    Args:
        toy: the data.
        survivals: q at every time of the grid, survivals[0] = 1.
        step: (toy, distribution of X_t, q_s, q_t) -> that of X_s.
    """
    law = np.ones(1)
    for pixel in landing(poisson_pmf(toy.mean * survivals[-1], toy.max_count), np.zeros(toy.pixels, int)):
        law = np.outer(law, pixel).reshape(-1)
    yield len(survivals) - 1, law
    for k in range(len(survivals) - 1, 0, -1):
        law = step(toy, law, survivals[k - 1], survivals[k])
        yield k - 1, law


def final_law(toy: Toy, survivals: Array, step: Callable[[Toy, Array, float, float], Array]) -> Array:
    """The distribution of what a sampler returns, [S]."""
    law = np.zeros(0)
    for _, law in walk(toy, survivals, step):  # noqa: B007
        pass
    return law


def fraction(q_s: float, q_t: float) -> float:
    """r = (q_s - q_t) / (1 - q_t)."""
    return (q_s - q_t) / (1 - q_t)


def landing(births: Array, start: Array) -> Array:
    """Distribution of the level reached, [R, levels]; what would go beyond the top stays there."""
    reached = _shift(births, start)
    reached[:, -1] += np.clip(1 - reached.sum(1), 0, None)
    return reached


def independent(levels: Array) -> Array:
    """Distributions of every element [..., elements, levels] -> of all [..., levels ** elements]."""
    joint = levels[..., 0, :]
    for element in range(1, levels.shape[-2]):
        joint = (joint[..., :, None] * levels[..., element, None, :]).reshape(*joint.shape[:-1], -1)
    return joint


def _top(beliefs: Beliefs) -> int:
    return beliefs.missing.shape[1] - 1
