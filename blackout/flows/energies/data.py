"""Data from which energies are learned: points of the plane as bits, or samples of a target.

The seven densities of the plane become distributions of 32 bits, a 16-bit Gray code per coordinate.

References: Ou et al. 2025, sections 4.1 and 4.2; the densities are those of Dai et al. 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from blackout.component import component
from blackout.data import CountData
from blackout.errors import refuse
from blackout.flows.annealed_importance import draw_reference_samples
from blackout.flows.targets import Target
from blackout.flows.targets.energy_network import BITS_PER_COORDINATE, encode
from blackout.random import fold_seed
from blackout.safe_reading import available_memory

Points = NDArray[np.float64]
Density: TypeAlias = Literal[
    "2spirals",
    "8gaussians",
    "circles",
    "moons",
    "pinwheel",
    "swissroll",
    "checkerboard",
]

# points of seed 1 whose largest coordinate decides the scale (Ou et al. 2025, section 4.1)
NUM_SCALE_POINTS = 5000
SCALE_SEED = 1
# validation points, and test points as in Ou et al. 2025, appendix E.2
NUM_HELD_OUT_POINTS = 4000
BYTES_PER_POINT = 256  # while points are encoded
GIBBS_SWEEPS = 1000  # of each sample of a target that cannot be enumerated


def code_scale(density: str) -> float:
    """Return the scale of `encode`, 2^15 / (largest coordinate of 5,000 points + 2).

    References: Ou et al. 2025, section 4.1.
    """
    points = sample_density(density, NUM_SCALE_POINTS, SCALE_SEED)
    return float(2 ** (BITS_PER_COORDINATE - 1) / (np.abs(points).max() + 2))


def sample_density(density: str, num_points: int, seed: int) -> Points:
    """Draw points of a density, float64 [num_points, 2]."""
    return DENSITIES[density](np.random.default_rng(seed), num_points)


def _sample_2spirals(rng: np.random.Generator, n: int) -> Points:
    """Draw points of two spirals, [n, 2].

    References: Dai et al. 2020.
    """
    turn = np.sqrt(rng.random(n)) * 540 * 2 * np.pi / 360
    arm = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    x = -np.cos(turn) * turn + rng.random(n) * 0.5
    y = np.sin(turn) * turn + rng.random(n) * 0.5
    return np.stack([arm * x, arm * y], 1) / 3 + 0.1 * rng.standard_normal((n, 2))


def _sample_8gaussians(rng: np.random.Generator, n: int) -> Points:
    """Draw points of eight normal distributions on a circle, [n, 2].

    References: Dai et al. 2020.
    """
    angle = rng.integers(8, size=n) * np.pi / 4
    centre = 4 * np.stack([np.cos(angle), np.sin(angle)], 1)
    return (centre + 0.5 * rng.standard_normal((n, 2))) / np.sqrt(2)


def _sample_circles(rng: np.random.Generator, n: int) -> Points:
    """Draw points of two concentric circles, [n, 2].

    References: Dai et al. 2020.
    """
    angle = 2 * np.pi * rng.random(n)
    radius = np.where(rng.random(n) < 0.5, 1.0, 0.5)
    ring = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return 3 * (ring + 0.08 * rng.standard_normal((n, 2)))


def _sample_moons(rng: np.random.Generator, n: int) -> Points:
    """Draw points of two half-moons, [n, 2].

    References: Dai et al. 2020.
    """
    angle = np.pi * rng.random(n)
    lower = rng.random(n) < 0.5
    x = np.where(lower, 1 - np.cos(angle), np.cos(angle))
    y = np.where(lower, 0.5 - np.sin(angle), np.sin(angle))
    noise = 0.1 * rng.standard_normal((n, 2))
    return (np.stack([x, y], 1) + noise) * 2 + np.array([-1.0, -0.2])


def _sample_pinwheel(rng: np.random.Generator, n: int) -> Points:
    """Draw points of five bent arms, [n, 2].

    References: Dai et al. 2020.
    """
    arm = rng.integers(5, size=n) * 2 * np.pi / 5
    radial = 1 + 0.3 * rng.standard_normal(n)
    tangential = 0.1 * rng.standard_normal(n)
    angle = arm + 0.25 * np.exp(radial)
    x = radial * np.cos(angle) - tangential * np.sin(angle)
    y = radial * np.sin(angle) + tangential * np.cos(angle)
    return 2 * np.stack([x, y], 1)


def _sample_swissroll(rng: np.random.Generator, n: int) -> Points:
    """Draw points of one spiral, [n, 2].

    References: Dai et al. 2020.
    """
    turn = 1.5 * np.pi * (1 + 2 * rng.random(n))
    spiral = np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1)
    return (spiral + rng.standard_normal((n, 2))) / 5


def _sample_checkerboard(rng: np.random.Generator, n: int) -> Points:
    """Draw points of every other square of a board, [n, 2].

    References: Dai et al. 2020.
    """
    x = 4 * rng.random(n) - 2
    y = rng.random(n) - 2 * rng.integers(2, size=n) + np.floor(x) % 2
    return 2 * np.stack([x, y], 1)


DENSITIES: dict[str, Callable[[np.random.Generator, int], Points]] = {
    "2spirals": _sample_2spirals,
    "8gaussians": _sample_8gaussians,
    "circles": _sample_circles,
    "moons": _sample_moons,
    "pinwheel": _sample_pinwheel,
    "swissroll": _sample_swissroll,
    "checkerboard": _sample_checkerboard,
}


@component("dataset")
def planar_points(
    density: Density = "moons",
    num_points: int = 100_000,
    seed: int = 0,
) -> CountData:
    """Draw points of one of seven densities of the plane, encoded as 32 bits each.

    4,000 more points are validation data, and 4,000 test data.

    References: Ou et al. 2025, section 4.1; Dai et al. 2020.

    Args:
        density: one of the seven names of `Density`.
        num_points: of the training data.
        seed: of all points.

    Raises:
        UserError: no points, or more than fit into memory.

    Example:
        >>> planar_points("moons", num_points=10).train.shape
        torch.Size([10, 32])
    """
    limit = available_memory() // BYTES_PER_POINT
    refuse(
        not 1 <= num_points <= limit,
        f"dataset.num_points must be 1 to {limit:,}, which fit into memory, not {num_points}",
    )
    scale = code_scale(density)
    # no split has the seed that decides the scale
    seeds = {"train": seed * 2 + 2, "test": seed * 2 + 3, "val": fold_seed(seed, 2)}
    sizes = {"train": num_points, "test": NUM_HELD_OUT_POINTS, "val": NUM_HELD_OUT_POINTS}
    bits = {}
    for split in seeds:
        points = sample_density(density, sizes[split], seeds[split])
        bits[split] = encode(torch.from_numpy(points), scale)
    return CountData(density, bits["train"], bits["test"], 1, val=bits["val"])


@dataclass(frozen=True, eq=False)
class StateData(CountData):
    """Data of states on discrete sites, with the values that energies and samplers need.

    Attributes:
        truth: the target that they are samples of, where it is known.
    """

    truth: Target | None = None

    __repr__ = CountData.__repr__  # a dataclass writes its own otherwise

    @property
    def facts(self) -> dict[str, Any]:
        """Values for components: `levels` and `sites`."""
        return {"levels": self.max_count + 1, "sites": math.prod(self.shape)}


def target_samples(target: Target, num_samples: int, seed: int, name: str) -> StateData:
    """Draw samples of a target, uint8 [num_samples, d], and as many for validation and test.

    See `draw_reference_samples`.
    """
    seeds = [fold_seed(seed, split) for split in (0, 1, 2)]
    train, test, val = (draw_reference_samples(target, num_samples, GIBBS_SWEEPS, k) for k in seeds)
    return StateData(name, train, test, target.levels - 1, val=val, truth=target)
