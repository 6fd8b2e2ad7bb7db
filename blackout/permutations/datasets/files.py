"""A user's own items: to train on, and puzzles to be solved."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import held_out_split
from blackout.data.readers import file_error
from blackout.errors import UserError
from blackout.family import Split
from blackout.permutations.datasets.base import Kind, Puzzles, chosen, first_equal
from blackout.permutations.group import is_permutation
from blackout.random import StepStreams


class OwnItems(Puzzles):
    """Puzzles of items in a file; images [.., C, h, w] or [.., h, w] are pieces, everything else plain numbers."""

    def __init__(self, path: Path, values: Tensor, holdout: float, seed: int) -> None:
        train, test = held_out_split(len(values), holdout, seed)
        self._train, self._test = values[train], values[test]
        image = values.ndim == 5 and values.shape[2] in (1, 3)
        kind: Kind = "pieces" if image else "items"
        name = "PieceEncoder" if image else "ItemEncoder"
        std = float(self._train.double().std(correction=0))
        facts = {
            "mean": float(self._train.double().mean()), "std": std if std > 0 else 1.0,
            "encoder": {"_target_": f"blackout.networks.{name}"},
        }  # fmt: skip
        shape = tuple(values.shape[2:])
        super().__init__(path.stem, kind, values.shape[1], shape, len(test), seed, facts)

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        rows = self._train if split == "train" else self._test
        number = chosen(streams, (len(index),), len(rows)) if split == "train" else index
        return {"items": rows[number], "ties": first_equal(rows[number])}

    def _content(self, split: Split) -> str:
        rows = self._train if split == "train" else self._test
        return hashlib.sha256(rows.numpy().tobytes()).hexdigest()


@component("dataset", ask="dataset=items dataset.path=<file>")
def items(path: str | os.PathLike[str], holdout: float = 0.1, seed: int = 0) -> OwnItems:
    """Your own lists, in their right order: an .npz with `items` [N, n, ...], numbers of any kind.

    Args:
        path: of the file.
        holdout: share of the lists that is held out.
        seed: of split and puzzles.

    Raises:
        UserError: no such file, or not of this form.
        ValueError: a share out of range.
    """
    file = Path(path).expanduser()
    values = _numbers(_read(file), "items", file)
    if values.ndim < 2 or values.shape[0] < 2 or values.shape[1] < 2 or not values.numel():
        raise UserError(f"{file}: items must be [N, n, ...], N and n at least 2, not {list(values.shape)}")
    if values.ndim == 2:
        values = values.unsqueeze(-1)
    if values.ndim == 4:
        values = values.unsqueeze(2)  # grey images
    return OwnItems(file, values.float().contiguous(), holdout, seed)


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
    values = _numbers(arrays, "items", file)
    expected = (source.num_items, *source.item_shape)
    if values.ndim == len(expected) and source.item_shape[:1] == (1,):
        values = values.unsqueeze(2)  # grey images without their channel
    if values.ndim < 2 or tuple(values.shape[1:]) != expected or not len(values):
        raise UserError(f"{file}: items must be [N, {', '.join(map(str, expected))}], not {list(values.shape)}")
    found = {"items": _as_items(values, source, file)}
    if "truth" in arrays:
        found["truth"] = _permutations(arrays["truth"], tuple(values.shape[:2]), file)
    return found


def _permutations(array: np.ndarray, shape: tuple[int, ...], file: Path) -> Tensor:
    truth = torch.from_numpy(array.astype(np.int64)) if array.dtype.kind in "iu" else None
    if truth is None or truth.shape != shape or not bool(is_permutation(truth).all()):
        raise UserError(f"{file}: truth must be permutations, whole numbers {list(shape)}")
    return truth


def _as_items(values: Tensor, source: Puzzles, file: Path) -> Tensor:
    if source.kind == "tokens":
        whole = not values.is_floating_point()
        if not whole or not bool(is_permutation(values).all()):
            raise UserError(f"{file}: items must be tokens, each of 0..{source.num_items - 1} once in a list")
        return values
    scaled = values.float() if values.is_floating_point() else values.float() / source.scale
    low, high = (float(end) for end in scaled.aminmax())
    # noise reaches a little beyond black and white
    if source.scale > 1 and not -0.5 <= low <= high <= 1.5:
        raise UserError(
            f"{file}: items must be whole numbers 0..{source.scale:.0f} or fractions of 1, but reach {low:g}..{high:g}"
        )
    return scaled


def _read(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    try:
        with np.load(file, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise file_error(file, "not a readable .npz file of numbers", error) from error


def _numbers(arrays: dict[str, np.ndarray], name: str, file: Path) -> Tensor:
    """An array as float64 or int64, all finite."""
    if name not in arrays:
        raise UserError(f"{file}: an array `{name}` is needed, found {', '.join(arrays) or 'nothing'}")
    array = arrays[name]
    if array.dtype.kind not in "iufb":
        raise UserError(f"{file}: {name} must be numbers, not {array.dtype}")
    if array.dtype.kind == "f" and not math.isfinite(float(np.abs(array, dtype=np.float64).sum())):
        raise UserError(f"{file}: {name} must be finite")
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
