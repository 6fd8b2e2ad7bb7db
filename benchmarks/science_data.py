"""Simulated counts like those of the sciences: `python -m benchmarks.science_data cells cells.npz`.

Nothing is measured. Every kind has the difficulties of such data: cells have overdispersion, excess
zeros and genes of very different scales; photons are spots on a dim background; spikes have bursts
with a heavy tail; detectors record the same pulses; names have unordered levels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Maker = Callable[..., dict[str, Array]]
_GENES = 200
_TYPES = 6
_LETTERS = 27
_LENGTH = 16


def cells(random: np.random.Generator, number: int = 3600) -> dict[str, Array]:
    """Return cells by 200 genes, gamma-Poisson with dropout; labels are names of cell types."""
    base = random.normal(0.3, 1.5, _GENES)
    effects = random.normal(0, 1.1, (_TYPES, _GENES)) * (random.random((_TYPES, _GENES)) < 0.35)
    share = random.dirichlet(np.full(_TYPES, 4.0))
    kind = random.choice(_TYPES, number, p=share)
    depth = random.lognormal(0.0, 0.45, number)
    mean = np.exp(base + effects[kind]) * depth[:, None]
    concentration = np.exp(random.normal(0.4, 0.5, _GENES))
    is_detected = random.random((number, _GENES)) > 0.6 / (1 + np.exp(0.8 * (np.log(mean) - 0.5)))
    counts = random.poisson(random.gamma(concentration, mean / concentration)) * is_detected
    return {"counts": counts, "labels": np.array([f"type {letter}" for letter in "ABCDEF"])[kind]}


def treated(random: np.random.Generator, number: int = 4800) -> dict[str, Array]:
    """Return cells of four donors, half of them treated; each type responds in its own way."""
    base = random.normal(0.3, 1.5, _GENES)
    effects = random.normal(0, 1.1, (_TYPES, _GENES)) * (random.random((_TYPES, _GENES)) < 0.35)
    program = random.normal(0, 0.8, _GENES) * (random.random(_GENES) < 0.4)
    type_effects = random.normal(0, 0.3, (_TYPES, _GENES)) * (random.random((_TYPES, _GENES)) < 0.1)
    response = random.uniform(0.8, 1.2, (_TYPES, 1)) * program + type_effects
    donor_effects = random.normal(0, 0.2, (4, _GENES))
    kind, donor, treated = (
        random.integers(0, number_of_values, number) for number_of_values in (_TYPES, 4, 2)
    )
    depth = random.lognormal(0.0, 0.45, (number, 1))
    mean = (
        np.exp(base + effects[kind] + donor_effects[donor] + treated[:, None] * response[kind])
        * depth
    )
    concentration = np.exp(random.normal(0.4, 0.5, _GENES))
    counts = random.poisson(random.gamma(concentration, mean / concentration))
    words = [
        np.array(list("ABCDEF")),
        np.array(["d1", "d2", "d3", "d4"]),
        np.array(["control", "treated"]),
    ]
    return {
        "counts": counts,
        "type": words[0][kind],
        "donor": words[1][donor],
        "condition": words[2][treated],
    }


def photons(random: np.random.Generator, number: int = 3000, side: int = 32) -> dict[str, Array]:
    """Return microscope images [1, 32, 32]: one to five blurred spots of varying brightness."""
    y, x = np.mgrid[:side, :side]
    images = np.empty((number, 1, side, side))
    for image in images:
        image[0] = random.gamma(8.0, 0.15)
        for _ in range(random.integers(1, 6)):
            centre = random.uniform(3, side - 3, 2)
            width = random.uniform(1.2, 3.0)
            square = (y - centre[0]) ** 2 + (x - centre[1]) ** 2
            image[0] += random.gamma(4.0, 6.0) * np.exp(-square / (2 * width**2))
    return {"counts": random.poisson(images)}


def camera(random: np.random.Generator, number: int = 3000, side: int = 16) -> dict[str, Array]:
    """Return camera images [1, 16, 16]: spots, gain 2.2, offset 12 and readout noise 1.3."""
    light = photons(random, number, side)["counts"]
    return {
        "counts": np.clip(
            np.rint(12 + 2.2 * light + random.normal(0, 1.3, light.shape)), 0, None
        ).astype(np.int64)
    }


def spikes(random: np.random.Generator, number: int = 4000, bins: int = 64) -> dict[str, Array]:
    """Return spike counts in 64 bins: oscillations of random phase and gain, with occasional
    bursts."""
    time = np.arange(bins)
    phase = random.uniform(0, 2 * np.pi, (number, 1))
    period = random.choice([16.0, 32.0], (number, 1))
    rate = random.gamma(2.0, 1.0, (number, 1)) * np.exp(
        0.9 * np.cos(2 * np.pi * time / period + phase)
    )
    onset = random.uniform(0, bins, (number, 1))
    height = random.gamma(1.5, 9.0, (number, 1))
    elapsed = np.clip(time - onset, 0, None)
    burst = (
        height
        * np.where(time >= onset, np.exp(-elapsed / 3.0), 0.0)
        * (random.random((number, 1)) < 0.4)
    )
    return {"counts": random.poisson(rate + burst)}


def detectors(
    random: np.random.Generator, number: int = 3000, length: int = 128
) -> dict[str, Array]:
    """Return waveforms of three detectors [3, 128]: common decaying pulses, later and weaker in
    each."""
    time = np.arange(length)
    rate = np.full((number, 3, length), 0.4) * random.gamma(6.0, 1 / 6, (number, 3, 1))
    for _ in range(3):
        onset = random.uniform(0, length, (number, 1, 1))
        height = random.gamma(1.2, 14.0, (number, 1, 1))
        delay = np.array([0.0, 4.0, 9.0])[:, None]
        share = np.array([1.0, 0.5, 0.2])[:, None]
        elapsed = time - onset - delay
        rate += (
            height
            * share
            * np.exp(-np.clip(elapsed, 0, None) / 7.0)
            * (elapsed >= 0)
            * (random.random(onset.shape) < 0.6)
        )
    return {"counts": random.poisson(rate)}


def names(random: np.random.Generator, number: int = 6000) -> dict[str, Array]:
    """Return words of 16 letters, a Markov chain with few likely successors; 2.1 bits per
    letter."""
    chain = np.stack([random.permutation(row) for row in np.tile(_successors(), (_LETTERS, 1))])
    reached = np.cumsum(chain, axis=1)
    words = np.empty((number, _LENGTH), dtype=np.int64)
    words[:, 0] = random.integers(0, _LETTERS, number)
    for place in range(1, _LENGTH):
        passed = reached[words[:, place - 1]] < random.random((number, 1))
        words[:, place] = np.minimum(passed.sum(1), _LETTERS - 1)
    return {"counts": words}


def _successors() -> Array:
    share = np.exp(-0.8 * np.arange(_LETTERS)) + 0.0005
    return share / share.sum()


MAKERS: dict[str, Maker] = {
    "cells": cells,
    "treated": treated,
    "photons": photons,
    "camera": camera,
    "spikes": spikes,
    "detectors": detectors,
    "names": names,
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=list(MAKERS))
    parser.add_argument("path", type=Path, help="of the .npz to write")
    parser.add_argument("--number", type=int, default=None, help="of samples")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    arguments = {} if options.number is None else {"number": options.number}
    arrays = MAKERS[options.kind](np.random.default_rng(options.seed), **arguments)
    np.savez_compressed(options.path, **arrays)  # type: ignore[arg-type]
    counts = arrays["counts"]
    print(
        f"{options.path}: {list(counts.shape)}, largest {counts.max()}, "
        f"zeros {(counts == 0).mean():.2f}"
    )


if __name__ == "__main__":
    main()
