"""Data that energies are learned from: points of the plane in bits, or samples of a law that is known.

Seven densities in the plane are laws on 32 bits, 16 Gray-coded bits a coordinate [Ou 2025, sections 4.1 and 4.2]; the
densities are those of [Dai 2020].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from blackout.component import component
from blackout.data import CountData
from blackout.errors import refuse
from blackout.files import memory
from blackout.flows.annealed_importance import samples_of
from blackout.flows.targets import Target
from blackout.flows.targets.energy_network import BITS, encode
from blackout.random import fold_seed

_SIZES = 5000
"""Points whose largest coordinate decides the scale."""
Points = NDArray[np.float64]


def code_scale(density: str) -> float:
    """2^15 / (largest coordinate of 5,000 points [n, 2] + 2), a float: as for `encode` [Ou 2025, section 4.1]."""
    return float(2 ** (BITS - 1) / (np.abs(sample_density(density, _SIZES, 1)).max() + 2))


def sample_density(density: str, number: int, seed: int) -> Points:
    """Points of a density, float64 [number, 2], a function of the seed."""
    return DENSITIES[density](np.random.default_rng(seed), number)


def _spirals(rng: np.random.Generator, n: int) -> Points:
    """Two spirals, n points [n, 2] [Dai 2020]."""
    turn = np.sqrt(rng.random(n)) * 540 * 2 * np.pi / 360
    arm = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    x, y = -np.cos(turn) * turn + rng.random(n) * 0.5, np.sin(turn) * turn + rng.random(n) * 0.5
    return np.stack([arm * x, arm * y], 1) / 3 + 0.1 * rng.standard_normal((n, 2))


def _gaussians(rng: np.random.Generator, n: int) -> Points:
    """Eight normal laws on a circle, n points [n, 2] [Dai 2020]."""
    angle = rng.integers(8, size=n) * np.pi / 4
    centre = 4 * np.stack([np.cos(angle), np.sin(angle)], 1)
    return (centre + 0.5 * rng.standard_normal((n, 2))) / np.sqrt(2)


def _circles(rng: np.random.Generator, n: int) -> Points:
    """Two circles, n points [n, 2] [Dai 2020]."""
    angle, radius = 2 * np.pi * rng.random(n), np.where(rng.random(n) < 0.5, 1.0, 0.5)
    ring = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return 3 * (ring + 0.08 * rng.standard_normal((n, 2)))


def _moons(rng: np.random.Generator, n: int) -> Points:
    """Two half-moons, n points [n, 2] [Dai 2020]."""
    angle, lower = np.pi * rng.random(n), rng.random(n) < 0.5
    x = np.where(lower, 1 - np.cos(angle), np.cos(angle))
    y = np.where(lower, 0.5 - np.sin(angle), np.sin(angle))
    return (np.stack([x, y], 1) + 0.1 * rng.standard_normal((n, 2))) * 2 + np.array([-1.0, -0.2])


def _pinwheel(rng: np.random.Generator, n: int) -> Points:
    """Five bent arms, n points [n, 2] [Dai 2020]."""
    arm = rng.integers(5, size=n) * 2 * np.pi / 5
    along, across = 1 + 0.3 * rng.standard_normal(n), 0.1 * rng.standard_normal(n)
    angle = arm + 0.25 * np.exp(along)
    x, y = along * np.cos(angle) - across * np.sin(angle), along * np.sin(angle) + across * np.cos(angle)
    return 2 * np.stack([x, y], 1)


def _swissroll(rng: np.random.Generator, n: int) -> Points:
    """A spiral, n points [n, 2] [Dai 2020]."""
    turn = 1.5 * np.pi * (1 + 2 * rng.random(n))
    return (np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1) + rng.standard_normal((n, 2))) / 5


def _checkerboard(rng: np.random.Generator, n: int) -> Points:
    """Every other square of a board, n points [n, 2] [Dai 2020]."""
    x = 4 * rng.random(n) - 2
    y = rng.random(n) - 2 * rng.integers(2, size=n) + np.floor(x) % 2
    return 2 * np.stack([x, y], 1)


Density: TypeAlias = Literal["2spirals", "8gaussians", "circles", "moons", "pinwheel", "swissroll", "checkerboard"]
DENSITIES: dict[str, Callable[[np.random.Generator, int], Points]] = dict(
    zip(get_args(Density), (_spirals, _gaussians, _circles, _moons, _pinwheel, _swissroll, _checkerboard), strict=True)
)

_HELD_OUT = 4000
"""Validation points, and test points, as many as [Ou 2025, appendix E.2] tests on."""
_SWEEPS = 1000
"""Of the Gibbs chains that samples of a law out of reach of enumeration come from."""


@component("dataset")
def planar_points(density: Density = "moons", number: int = 100_000, seed: int = 0) -> CountData:
    """Points of one of seven densities in the plane, 16 Gray-coded bits a coordinate.

    4,000 more are validation data, and 4,000 test data.

    Points [n, 2] of [Dai 2020] as bits [n, 32] [Ou 2025, section 4.1].

    Args:
        density: see `blackout.flows.energies.data`.
        number: of points to train on.
        seed: of all points.

    Raises:
        UserError: no points.
    """
    refuse(not 1 <= number <= memory() // 256, f"dataset.number must be at least 1 and fit into memory, not {number}")
    scale = code_scale(density)
    # different streams: seed 1 decides the scale
    seeds = {"train": seed * 2 + 2, "test": seed * 2 + 3, "val": fold_seed(seed, 2)}
    sizes = {"train": number, "test": _HELD_OUT, "val": _HELD_OUT}
    points = {split: sample_density(density, sizes[split], seeds[split]) for split in seeds}
    bits = {split: encode(torch.from_numpy(points[split]), scale) for split in seeds}
    return CountData(density, bits["train"], bits["test"], 1, val=bits["val"])


@dataclass(frozen=True, eq=False)
class StateData(CountData):
    """Counts as vectors of states, with what energies and samplers ask for.

    Attributes:
        truth: the law that they are samples of, where it is known.
    """

    truth: Target | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """`levels` and `sites`."""
        return {"levels": self.max_count + 1, "sites": math.prod(self.shape)}


def known_samples(target: Target, number: int, seed: int, name: str) -> StateData:
    """Samples of a target, uint8 [number, d], and as many for validation and for the test: see `samples_of`."""
    train, test, val = (samples_of(target, number, _SWEEPS, fold_seed(seed, k)) for k in (0, 1, 2))
    return StateData(name, train, test, target.levels - 1, val=val, truth=target)
