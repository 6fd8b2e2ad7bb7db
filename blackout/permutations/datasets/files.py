"""A user's own items: to train on, and puzzles to be solved."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import held_out_split
from blackout.errors import UserError
from blackout.family import Split
from blackout.files import load_arrays
from blackout.permutations.datasets.base import Kind, Puzzles, chosen, first_equal
from blackout.permutations.group import is_permutation
from blackout.random import StepStreams


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path, ~ expanded.

    Raises:
        UserError: there is no such file.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    return file


class StoredPuzzles(Puzzles):
    """Puzzles of lists in memory, training ones in random order; see `Puzzles` for the other arguments.

    Args:
        values: lists [N, n, ...] in their right order, of training and held-out puzzles.
    """

    def __init__(
        self, name: str, kind: Kind, values: tuple[Tensor, Tensor], seed: int, facts: Mapping[str, Any]
    ) -> None:
        self._rows: dict[Split, Tensor] = {"train": values[0], "test": values[1]}
        super().__init__(name, kind, values[0].shape[1], tuple(values[0].shape[2:]), len(values[1]), seed, facts)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        lists = self._lists(split, index, streams)
        return {"items": lists, "ties": first_equal(lists)}

    def _lists(self, split: Split, index: Tensor, streams: StepStreams) -> Tensor:
        rows = self._rows[split]
        return rows[chosen(streams, (len(index),), len(rows)) if split == "train" else index]

    def _content(self, split: Split) -> str:
        return hashlib.sha256(self._rows[split].numpy().tobytes()).hexdigest()


@component("dataset", ask="dataset=items dataset.path=<file>")
def items(path: str | os.PathLike[str], holdout: float = 0.1, seed: int = 0) -> StoredPuzzles:
    """Your own lists, in their right order: an .npz with `items` [N, n, ...], numbers of any kind.

    Images [N, n, C, h, w] or [N, n, h, w] are pieces, everything else plain numbers.

    Args:
        path: of the file.
        holdout: share of the lists that is held out.
        seed: of split and puzzles.

    Raises:
        UserError: no such file, or not of this form.
        ValueError: a share out of range.
    """
    file = Path(path).expanduser()
    values = _numbers(_read(file), file)
    if values.ndim < 2 or values.shape[0] < 2 or values.shape[1] < 2 or not values.numel():
        raise UserError(f"{file}: items must be [N, n, ...], N and n at least 2, not {list(values.shape)}")
    if values.ndim in (2, 4):  # single numbers, and grey images without their channel
        values = values.unsqueeze(2)
    values = values.float().contiguous()
    train, test = (values[rows] for rows in held_out_split(len(values), holdout, seed))
    image = values.ndim == 5 and values.shape[2] in (1, 3)
    std = float(train.double().std(correction=0))
    facts = {
        "mean": float(train.double().mean()),
        "std": std if std > 0 else 1.0,
        "encoder": {"_target_": f"blackout.networks.{'PieceEncoder' if image else 'ItemEncoder'}"},
    }
    return StoredPuzzles(file.stem, "pieces" if image else "items", (train, test), seed, facts)


def read_puzzles(path: str | os.PathLike[str], source: Puzzles) -> dict[str, Tensor]:
    """Puzzles to be solved: an .npz with `items` [N, n, ...] as they lie, and `truth` [N, n] where it is known.

    Whole numbers are counts, divided by the source's scale; fractions are taken as they are.

    Returns:
        `items` [N, n, *item_shape] and, if given, `truth`, the permutations that take them to their right order.

    Raises:
        UserError: no such file, or not puzzles of the source's kind.
    """
    file = Path(path).expanduser()
    arrays = _read(file)
    values = _numbers(arrays, file)
    expected = (source.num_items, *source.item_shape)
    if values.ndim == len(expected) and source.item_shape[:1] == (1,):
        values = values.unsqueeze(2)  # grey images without their channel
    if values.ndim < 2 or tuple(values.shape[1:]) != expected or not len(values):
        raise UserError(f"{file}: items must be [N, {', '.join(map(str, expected))}], not {list(values.shape)}")
    if source.kind == "tokens":
        if values.is_floating_point() or not bool(is_permutation(values).all()):
            raise UserError(f"{file}: items must be tokens, each of 0..{source.num_items - 1} once in a list")
    else:
        values = values.float() if values.is_floating_point() else values.float() / source.scale
        low, high = (float(end) for end in values.aminmax())
        # noise reaches a little beyond black and white
        if source.scale > 1 and not -0.5 <= low <= high <= 1.5:
            allowed = f"whole numbers 0..{source.scale:.0f} or fractions of 1"
            raise UserError(f"{file}: items must be {allowed}, but reach {low:g}..{high:g}")
    if "truth" not in arrays:
        return {"items": values}
    truth = torch.from_numpy(arrays["truth"].astype(np.int64)) if arrays["truth"].dtype.kind in "iu" else None
    if truth is None or truth.shape != values.shape[:2] or not bool(is_permutation(truth).all()):
        raise UserError(f"{file}: truth must be permutations, whole numbers {list(values.shape[:2])}")
    return {"items": values, "truth": truth}


def _read(file: Path) -> dict[str, np.ndarray]:
    arrays = load_arrays(existing_file(file))
    if not isinstance(arrays, dict):
        raise UserError(f"{file}: not an .npz file of arrays")
    return arrays


def _numbers(arrays: dict[str, np.ndarray], file: Path) -> Tensor:
    """The array `items` as float64 or int64, all finite."""
    if "items" not in arrays:
        raise UserError(f"{file}: an array `items` is needed, found {', '.join(arrays) or 'nothing'}")
    array = arrays["items"]
    if array.dtype.kind not in "iufb":
        raise UserError(f"{file}: items must be numbers, not {array.dtype}")
    if array.dtype.kind == "f" and not math.isfinite(float(np.abs(array, dtype=np.float64).sum())):
        raise UserError(f"{file}: items must be finite")
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
