"""What overwriting of known elements samples, by whole matrices: a wrong law, however many steps are taken."""

from __future__ import annotations

import numpy as np

from blackout.laws.toys import Array, Toy, thinning, total_variation


def overwriting_errors(toy: Toy, times: Array, known: tuple[int, ...]) -> list[float]:
    """Total variation to the law of the second element given the first, for pure death with exact reverse steps.

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
