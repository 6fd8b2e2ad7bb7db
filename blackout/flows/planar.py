"""Seven densities in the plane as laws on 32 bits, 16 Gray-coded bits a coordinate.

[Ou 2025, sections 4.1 and 4.2]; the densities are those of [Dai 2020].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS = 16
"""Of a coordinate: a sign, and the Gray code of the size."""
_SIZES = 5000
"""Points whose largest coordinate decides the scale."""
Points = NDArray[np.float64]


def encode(points: Tensor, scale: float) -> Tensor:
    """Points [n, 2] as bits, uint8 [n, 32]: of each coordinate a sign and 15 bits of Gray code, the highest first.

    [Ou 2025, section 4.1], as the authors' code does it.
    """
    size = (points.abs() * scale).long().clamp(max=2 ** (BITS - 1) - 1)
    gray = size ^ (size >> 1)
    places = torch.arange(BITS - 2, -1, -1)
    bits = torch.cat([(points < 0).long()[..., None], (gray[..., None] >> places) & 1], -1)
    return bits.flatten(1).to(torch.uint8)


def code_scale(density: str) -> float:
    """2^15 / (largest coordinate of 5,000 points + 2)."""
    return float(2 ** (BITS - 1) / (np.abs(sample_density(density, _SIZES, 1)).max() + 2))


def sample_density(density: str, number: int, seed: int) -> Points:
    """Points of a density, float64 [number, 2], a function of the seed."""
    return DENSITIES[density](np.random.default_rng(seed), number)


def _spirals(rng: np.random.Generator, n: int) -> Points:
    turn = np.sqrt(rng.random(n)) * 540 * 2 * np.pi / 360
    arm = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    x, y = -np.cos(turn) * turn + rng.random(n) * 0.5, np.sin(turn) * turn + rng.random(n) * 0.5
    return np.stack([arm * x, arm * y], 1) / 3 + 0.1 * rng.standard_normal((n, 2))


def _gaussians(rng: np.random.Generator, n: int) -> Points:
    angle = rng.integers(8, size=n) * np.pi / 4
    centre = 4 * np.stack([np.cos(angle), np.sin(angle)], 1)
    return (centre + 0.5 * rng.standard_normal((n, 2))) / np.sqrt(2)


def _circles(rng: np.random.Generator, n: int) -> Points:
    angle, radius = 2 * np.pi * rng.random(n), np.where(rng.random(n) < 0.5, 1.0, 0.5)
    ring = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return 3 * (ring + 0.08 * rng.standard_normal((n, 2)))


def _moons(rng: np.random.Generator, n: int) -> Points:
    angle, lower = np.pi * rng.random(n), rng.random(n) < 0.5
    x = np.where(lower, 1 - np.cos(angle), np.cos(angle))
    y = np.where(lower, 0.5 - np.sin(angle), np.sin(angle))
    return (np.stack([x, y], 1) + 0.1 * rng.standard_normal((n, 2))) * 2 + np.array([-1.0, -0.2])


def _pinwheel(rng: np.random.Generator, n: int) -> Points:
    arm = rng.integers(5, size=n) * 2 * np.pi / 5
    along, across = 1 + 0.3 * rng.standard_normal(n), 0.1 * rng.standard_normal(n)
    angle = arm + 0.25 * np.exp(along)
    x, y = along * np.cos(angle) - across * np.sin(angle), along * np.sin(angle) + across * np.cos(angle)
    return 2 * np.stack([x, y], 1)


def _swissroll(rng: np.random.Generator, n: int) -> Points:
    turn = 1.5 * np.pi * (1 + 2 * rng.random(n))
    return (np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1) + rng.standard_normal((n, 2))) / 5


def _checkerboard(rng: np.random.Generator, n: int) -> Points:
    x = 4 * rng.random(n) - 2
    y = rng.random(n) - 2 * rng.integers(2, size=n) + np.floor(x) % 2
    return 2 * np.stack([x, y], 1)


DENSITIES: dict[str, Callable[[np.random.Generator, int], Points]] = {
    "2spirals": _spirals,
    "8gaussians": _gaussians,
    "circles": _circles,
    "moons": _moons,
    "pinwheel": _pinwheel,
    "swissroll": _swissroll,
    "checkerboard": _checkerboard,
}
