"""Data that energies are learned from: points of the plane in bits, or samples of a law that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData
from blackout.errors import UserError
from blackout.family import Source, Split
from blackout.flows.annealing import samples_of
from blackout.flows.planar import code_scale, encode, sample_density
from blackout.flows.targets import Target
from blackout.random import fold_seed

_HELD_OUT = 4000
"""Points that are held out, as many as [Ou 2025, appendix E.2] tests on."""
_SWEEPS = 1000
"""Of the Gibbs chains that samples of a law out of reach of enumeration come from."""

Density: TypeAlias = Literal[
    "2spirals", "8gaussians", "circles", "moons", "pinwheel", "swissroll", "checkerboard"
]  # fmt: skip


@component("dataset")
def planar_points(density: Density = "moons", number: int = 100_000, seed: int = 0) -> CountData:
    """Points of one of seven densities in the plane, 16 Gray-coded bits a coordinate; 4,000 more are held out.

    Args:
        density: see `blackout.flows.planar`.
        number: of points to train on.
        seed: of all points.

    Raises:
        UserError: no points.
    """
    if number < 1:
        raise UserError(f"dataset.number must be at least 1, not {number}")
    scale = code_scale(density)
    # different streams: seed 1 decides the scale
    splits = [sample_density(density, n, seed * 2 + k + 2) for k, n in enumerate((number, _HELD_OUT))]
    bits = [encode(torch.from_numpy(points), scale) for points in splits]
    return CountData(density, bits[0], bits[1], 1)


@dataclass(frozen=True)
class BinaryData:
    """Counts as vectors of states, with what energies and samplers ask for.

    Args:
        counts: of any shape.
        truth: the law that they are samples of, where it is known.
    """

    counts: CountData
    truth: Target | None = None

    @property
    def name(self) -> str:
        return self.counts.name

    @property
    def facts(self) -> Mapping[str, Any]:
        """`levels` and `sites`."""
        return {"levels": self.counts.max_count + 1, "sites": int(torch.Size(self.counts.shape).numel())}

    def __str__(self) -> str:
        return str(self.counts)

    def size(self, split: Split) -> int | None:
        return self.counts.size(split)

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """`x0`, states uint8 [b, d]."""
        return {"x0": self.counts.batch(split, index)["x0"].flatten(1)}

    def fingerprint(self, split: Split) -> str:
        return self.counts.fingerprint(split)

    def to(self, device: torch.device) -> Source:
        return replace(self, counts=self.counts.to(device))


def known_samples(target: Target, number: int, seed: int, name: str) -> BinaryData:
    """Samples of a target, and as many held out."""
    splits = [samples_of(target, number, _SWEEPS, fold_seed(seed, k)) for k in (0, 1)]
    return BinaryData(CountData(name, splits[0], splits[1], target.levels - 1), target)
