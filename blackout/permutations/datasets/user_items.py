"""Lists of items in files of the user: `dataset=items` to train on, and puzzles to solve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.formats import load_arrays
from blackout.data.images import StrPath
from blackout.errors import UserError, error_context, refuse
from blackout.permutations.datasets.array_files import (
    finite_numbers,
    read_samples,
    split_rows,
    to_float32,
    warn_of_unused_arrays,
)
from blackout.permutations.datasets.puzzles import Puzzles, StoredPuzzles
from blackout.permutations.datasets.ranked_lists import (
    LIST_SUFFIXES,
    RankedLists,
    read_ranked_lists,
    read_ranked_puzzles,
)
from blackout.permutations.group import is_permutation


@component("dataset", command_line="dataset=items dataset.path=<file>")
def items(path: StrPath, holdout: float = 0.1, seed: int = 0, validation: float = 0.1) -> Puzzles:
    """Read lists of the user, which are in their right order.

    An .npz file has `items` [N, n, ...], numbers of any kind. Images [N, n, C, h, w] or [N, n, h,
    w] are pieces, and everything else plain numbers. An .npz with `train` and `test`, and perhaps
    `val`, keeps these splits. An svmlight file has lists of any length by falling relevance, see
    `RankedLists`.

    Args:
        path: the file.
        holdout: share of the lists for testing; a file with `test` has its own.
        seed: of the split and the puzzles.
        validation: share or number of the lists for validation; 0 for none.

    Raises:
        UserError: a file that is missing or in another format.
        ValueError: a share out of range.
    """
    file = Path(path).expanduser()
    if file.suffix in LIST_SUFFIXES:
        return RankedLists(file.stem, read_ranked_lists(file), holdout, validation, seed)
    # 1. read
    values, rows = read_samples(file, "items", validation, holdout, seed)
    if values.ndim < 2 or values.shape[0] < 2 or values.shape[1] < 2 or not values.numel():
        raise UserError(
            f"{file}: items must be [N, n, ...], N and n at least 2, not {list(values.shape)}"
        )
    if values.ndim in (2, 4):
        values = values.unsqueeze(2)  # single numbers, and grey images without their channel
    lists = split_rows(to_float32(values, file).contiguous(), rows)
    # 2. describe
    train = lists["train"]
    are_images = train.ndim == 5 and train.shape[2] in (1, 3)
    encoder = "PieceEncoder" if are_images else "ItemEncoder"
    std = float(train.double().std(correction=0))
    facts = {
        "mean": float(train.double().mean()),
        "std": std if std > 0 else 1.0,
        "encoder": {"_target_": f"blackout.networks.{encoder}"},
    }
    return StoredPuzzles(file.stem, "pieces" if are_images else "items", lists, seed, facts)


def read_puzzles(path: StrPath, source: Puzzles) -> dict[str, Tensor]:
    """Read puzzles of the user.

    An .npz file has `items` [N, n, ...] as they lie, and `truth` [N, n] if it is known. Integers
    are counts, which are divided by the source's scale; fractions are used as they are. For
    `RankedLists` it is an svmlight file.

    Args:
        path: the file.
        source: of the model, whose kind of puzzles the file must have.

    Returns:
        `items` [N, n, *item_shape] and perhaps `truth`, the permutations that take them to their
        right order.

    Raises:
        UserError: a file that is missing, or that does not hold puzzles of the source's kind.
    """
    file = Path(path).expanduser()
    if file.suffix in LIST_SUFFIXES and isinstance(source, RankedLists):
        return read_ranked_puzzles(file, source)
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {"items": loaded}
    names = ", ".join(arrays) or "nothing"
    refuse("items" not in arrays, f"{file}: must have an array `items`; it has {names}")
    warn_of_unused_arrays(arrays, {"items", "truth"})
    items = _read_items(arrays["items"], file, source)
    if "truth" not in arrays:
        return {"items": items}
    is_integer = arrays["truth"].dtype.kind in "iu"
    truth = torch.from_numpy(arrays["truth"].astype(np.int64)) if is_integer else None
    if truth is None or truth.shape != items.shape[:2] or not bool(is_permutation(truth).all()):
        raise UserError(
            f"{file}: truth must be permutations, whole numbers {list(items.shape[:2])}"
        )
    return {"items": items, "truth": truth}


def _read_items(array: np.ndarray, file: Path, source: Puzzles) -> Tensor:
    """Return the items of puzzles, [N, n, *item_shape].

    Raises:
        UserError: another shape, tokens that are no permutation, points in other units, or pixels
            far outside their range.
    """
    values = finite_numbers(array, file)
    expected = (source.num_items, *source.item_shape)
    if values.ndim == len(expected) and source.item_shape[:1] == (1,):
        values = values.unsqueeze(2)  # grey images without their channel
    if values.ndim < 2 or tuple(values.shape[1:]) != expected or not len(values):
        shape = ", ".join(map(str, expected))
        raise UserError(f"{file}: items must be [N, {shape}], not {list(values.shape)}")
    if source.kind == "tokens":
        if values.is_floating_point() or not bool(is_permutation(values).all()):
            raise UserError(
                f"{file}: items must be tokens, each of 0..{source.num_items - 1} once in a list"
            )
        return values
    are_counts = not values.is_floating_point()
    if source.kind == "points":
        with error_context(str(file)):
            return source.convert_units(values).float()
    values = to_float32(values, file)
    if are_counts:
        values = values / source.scale
    low, high = (float(end) for end in values.aminmax())
    # noise reaches a little beyond black and white
    if source.scale > 1 and not -0.5 <= low <= high <= 1.5:
        raise UserError(
            f"{file}: items must be whole numbers 0..{source.scale:.0f} or fractions of 1, "
            f"but reach {low:g}..{high:g}"
        )
    return values
