"""exp(Q tau) for a generator Q and many tau, by scaling and squaring."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import torch
from torch import Tensor

_CACHED_FROM = 64
"""States from which matrices are worth keeping between calls."""
_CACHE_BYTES = 640 << 20
"""Enough for 1,000 times of 256 states in float64."""
_TERMS = 20
"""Taylor terms of exp(x), x <= 1, to 1 / 20! = 4e-19."""
_Key: TypeAlias = tuple[torch.device, float]


class MatrixExponential:
    """tau -> exp(Q tau), for tau of any shape.

    Uniformisation, e^(-x) exp(x (I + Q / rate)), x = rate tau: all terms are non-negative, so that small probabilities
    keep their relative accuracy. (The eigenvectors of a reversible Q take one product instead of log2(x), but are right
    to an absolute 1e-16 only.)

    Args:
        generator: float64 [S, S] on the CPU, rows summing to 0.
    """

    def __init__(self, generator: Tensor) -> None:
        self.generator = generator
        self.rate = float(-generator.diagonal().min())
        self._powers: dict[torch.device, Tensor] = {}
        self._cache: OrderedDict[_Key, Tensor] = OrderedDict()

    def __call__(self, tau: Tensor) -> Tensor:
        """float64 [*tau.shape, S, S] on tau's device, rows summing to 1."""
        if len(self.generator) < _CACHED_FROM:
            return self._compute(tau.reshape(-1)).view(*tau.shape, *self.generator.shape)
        keys = [(tau.device, value) for value in tau.reshape(-1).tolist()]
        computed = self._missing(keys, tau.device)
        stacked = torch.stack([computed[key] if key in computed else self._cache[key] for key in keys])
        for key, matrix in computed.items():
            self._cache[key] = matrix.clone()  # on its own, not a view that keeps its whole batch alive
        while len(self._cache) * 8 * self.generator.numel() > _CACHE_BYTES:
            self._cache.popitem(last=False)
        return stacked.view(*tau.shape, *self.generator.shape)

    def _missing(self, keys: list[_Key], device: torch.device) -> dict[_Key, Tensor]:
        """The matrices [S, S] that are not in the cache yet, each time worked out once."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._cache]
        computed: dict[_Key, Tensor] = {}
        for start in range(0, len(missing), 64):
            part = missing[start : start + 64]
            times = torch.tensor([value for _, value in part], dtype=torch.float64, device=device)
            computed.update(zip(part, self._compute(times).unbind(), strict=True))
        return computed

    def _compute(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        if tau.device not in self._powers:
            self._powers[tau.device] = _powers(self.generator, self.rate).to(tau.device)
        matrix = _by_squaring(tau * self.rate, self._powers[tau.device])
        return matrix / matrix.sum(-1, keepdim=True)


def _by_squaring(x: Tensor, powers: Tensor) -> Tensor:
    """exp(x (A - I)) from A^k / k! [K, S, S]."""
    # every element is halved until x <= 1 / 4, those done drop out of the squaring; twice at least, so that what takes
    # more jumps than there are terms is there as well
    need = torch.ceil(torch.log2(x.clamp(min=1e-300))).clamp_(min=0).long() + 2
    squarings = int(need.max()) if len(need) else 0
    y = x / 2.0**need
    k = torch.arange(_TERMS + 1, dtype=x.dtype, device=x.device)
    coefficients = torch.exp(-y)[:, None] * y[:, None] ** k
    size = powers.shape[-1]
    matrix = (coefficients @ powers.view(len(powers), -1)).view(-1, size, size)
    for done in range(squarings):
        go_on = (need > done).nonzero().squeeze(1)
        squared = matrix[go_on] @ matrix[go_on]
        matrix[go_on] = squared / squared.sum(-1, keepdim=True)
    return matrix


def _powers(generator: Tensor, rate: float) -> Tensor:
    """A^k / k!, k = 0..20, of A = I + Q / rate >= 0."""
    identity = torch.eye(len(generator), dtype=torch.float64)
    jump = (identity + generator / rate).clamp_(min=0.0) if rate > 0 else identity
    powers = [identity]
    for k in range(1, _TERMS + 1):
        powers.append(powers[-1] @ jump / k)
    return torch.stack(powers)
