"""Seven densities in the plane as laws on 32 bits, 16 Gray-coded bits a coordinate, and energy networks for them.

[Ou 2025, sections 4.1 and 4.2]; the densities are those of [Dai 2020].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.component import component
from blackout.errors import UserError
from blackout.flows.targets.base import read_arrays
from blackout.flows.targets.energies import EnergyNetwork, read_energy_network

BITS = 16
"""Of a coordinate: a sign, and the Gray code of the size."""
_SIZES = 5000
"""Points whose largest coordinate decides the scale."""
Points = NDArray[np.float64]


@component("target")
class Planar(EnergyNetwork):
    """An energy network on the 32 bits of a point of the plane.

    Args:
        widths: of the hidden layers.
        scale: units of the code per unit of length.
    """

    def __init__(self, widths: list[int], scale: float) -> None:
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be positive, not {scale}")
        super().__init__(2 * BITS, widths)
        self.scale = float(scale)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """The coordinates, [B] each."""
        points = decode(x, self.scale)
        return {"first_coordinate": points[:, 0], "second_coordinate": points[:, 1]}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"_target_": "blackout.flows.Planar", "widths": self.widths, "scale": self.scale}


@component("target", ask="target=planar target.path=...")
def read_planar(path: str | Path, density: str = "moons") -> Planar:
    """The energy network of a density in the plane, as `python -m benchmarks.energy_discrepancy` writes it.

    Raises:
        UserError: the file is missing or holds something else.
    """
    if density not in DENSITIES:
        raise UserError(f"target.density={density}: no such density; one of {', '.join(DENSITIES)}")
    if not Path(path).is_file():
        command = f"python -m benchmarks.energy_discrepancy {density} --out {path}"
        raise UserError(f"target.path: {path} does not exist; make it by {command}")
    network = read_energy_network(path)
    stored = read_arrays(path).get("scale", np.zeros(()))
    scale = float(stored) if stored.size == 1 and stored.dtype.kind in "iuf" else math.nan
    if network.sites != 2 * BITS or not scale > 0:
        raise UserError(f"target.path: {path} is no energy network of a density in the plane (32 bits and a scale)")
    planar = Planar(network.widths, scale)
    planar.load_state_dict(network.state_dict())
    return planar.requires_grad_(False)


def encode(points: Tensor, scale: float) -> Tensor:
    """Points [n, 2] as bits, uint8 [n, 32]: of each coordinate a sign and 15 bits of Gray code, the highest first.

    [Ou 2025, section 4.1], as the authors' code does it.
    """
    size = (points.abs() * scale).long().clamp(max=2 ** (BITS - 1) - 1)
    gray = size ^ (size >> 1)
    places = torch.arange(BITS - 2, -1, -1)
    bits = torch.cat([(points < 0).long()[..., None], (gray[..., None] >> places) & 1], -1)
    return bits.flatten(1).to(torch.uint8)


def decode(x: Tensor, scale: float) -> Tensor:
    """The middles of the cells of states [n, 32]: float64 [n, 2]."""
    bits = x.long().view(-1, 2, BITS)
    # a Gray code is undone by running exclusive ors from the highest bit
    binary = bits[..., 1:].cumsum(-1) % 2
    size = (binary << torch.arange(BITS - 2, -1, -1, device=x.device)).sum(-1)
    return (1 - 2 * bits[..., 0]) * (size.double() + 0.5) / scale


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
