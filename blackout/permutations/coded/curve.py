"""Figures of samples over the number of passes, beside what a perfect network would get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.family import Draw, Samples
from blackout.files import replacing
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.exact import MOST_ITEMS, perfect_mass
from blackout.permutations.coded.interface import CodedModel
from blackout.permutations.coded.scores import CodeScorer

_SAMPLES = 2000
_EACH = 10
"""Numbers of passes up to here are all drawn; above it some."""


class CurveOutputs:
    """`passes.png` and the figures in it, of samples drawn at every number of passes.

    Args:
        at: number of passes -> how samples are drawn in so many.
        model: drawn from.
        seed: of the samples.
    """

    def __init__(self, at: Callable[[int], Draw], model: CodedModel, seed: int) -> None:
        self._at, self._model, self._seed = at, model, seed

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Nothing: other samples are drawn."""

    def write(self, directory: Path) -> dict[str, Any]:
        """Draw and write the curve."""
        n, source = self._model.length, self._model.require_source()
        assert isinstance(source, PermutationData)
        rows = {}
        for passes in [k for k in (*range(1, _EACH + 1), 15, 20, 30, 50, n) if k <= n]:
            scores = CodeScorer().begin(source, _SAMPLES)
            for indices, samples in self._at(passes).batches(torch.arange(_SAMPLES), self._seed):
                scores.update(samples, indices)
            rows[passes] = scores.compute()
        perfect = reference(self._model, source, list(rows))
        _plot(rows, perfect, self._model.code.__name__, directory / "passes.png")
        return {"curve": {"samples": _SAMPLES, "passes": rows, "perfect": perfect}}


def reference(model: CodedModel, source: PermutationData, passes: list[int]) -> dict[int, float]:
    """Probability that a perfect network gives the permutations that occur, by number of passes.

    To 7 items averaged over all random orders; above only in one pass, where the order is of no matter.
    """
    if source.members is None:
        return {}
    codes = model.encode(source.members)
    random = model.passes.order != "left_to_right"
    return {k: perfect_mass(codes, k, random=random) for k in passes if k == 1 or source.length <= MOST_ITEMS}


def _plot(rows: Mapping[int, Mapping[str, float]], perfect: Mapping[int, float], code: str, path: Path) -> None:
    from matplotlib.figure import Figure  # only here: importing it takes a second

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name in next(iter(rows.values())):
        values = [row[name] for row in rows.values()]
        if all(0 <= value <= 1 for value in values):
            axes.plot(list(rows), values, marker="o", markersize=3, label=name.replace("_", " "))
    if perfect:
        axes.plot(list(perfect), list(perfect.values()), "k--", marker="x", label="right, perfect network")
    axes.set(xlabel="passes", ylim=(-0.02, 1.02), title=f"{code}: shares of {_SAMPLES:,} samples")
    axes.legend(fontsize=7)
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=110)
