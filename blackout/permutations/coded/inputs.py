"""Files that samples are drawn for: contexts, and partly known codes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.permutations.coded.interface import CodedModel
from blackout.permutations.datasets import read_puzzles
from blackout.permutations.factorized import check_given


def observed_digits(given: Any, support: Tensor) -> int | Tensor:
    """The setting `given`: how many first digits of held-out samples are observed, or a file of digits.

    Args:
        given: a whole number 0..n, or an `.npy` file of integers [n] or [m, n], -1 where a digit is to be drawn.
        support: bool [n, n].

    Returns:
        The number, or digits int64 [m, n], n where one is to be drawn.

    Raises:
        UserError: anything else, or digits outside their support.
    """
    n = len(support)
    if type(given) is int:
        if not 0 <= given <= n:
            raise UserError(f"given must be 0..{n} observed digits, or a file of them; not {given}")
        return given
    if not isinstance(given, str):
        raise UserError(f"given must be a whole number 0..{n} or a file, not {given!r}")
    values = _read(Path(given).expanduser())
    if values.dtype.kind not in "iu" or values.ndim not in (1, 2):
        raise UserError(f"{given}: integers [{n}] or [m, {n}] are needed, -1 where a digit is to be drawn")
    digits = torch.from_numpy(values.astype(np.int64)).reshape(-1, values.shape[-1])
    if bool((digits >= n).any()):
        raise UserError(f"{given}: digit {int(digits[digits >= n][0])} is outside its support")
    try:
        return check_given(torch.where(digits == -1, n, digits), support.cpu())
    except ValueError as error:
        raise UserError(f"{given}: {error}") from None


def read_contexts(path: Any, data: Mapping[str, Any], model: CodedModel) -> dict[str, Tensor]:
    """The contexts in a file, by the facts of the model's data.

    Puzzles as `blackout.permutations.datasets.read_puzzles` reads them. Otherwise an `.npy` file of one array, or an
    `.npz` with `items` or `condition`: tokens are the numbers that the user's own file gave them; letters may come as
    words in a text file.

    Args:
        path: the setting `input`.
        data: facts of the model.
        model: which may keep the user's numbers of tokens, `item_names`, and knows its source.

    Raises:
        UserError: a model without contexts, a file that cannot be read, or arrays of another shape.
    """
    if not isinstance(path, str):
        raise UserError(f"input must be the name of a file, not {path!r}")
    if not any(name in data for name in ("item_shape", "num_conditions")):
        raise UserError("input: this model has no context")
    file = Path(path).expanduser()
    if data.get("kind") not in (None, "words", "rankings"):
        source = model.require_source()
        found = read_puzzles(file, source.puzzles)  # type: ignore[attr-defined]
        return {"x" if name == "truth" else name: values for name, values in found.items()}
    wanted = "condition" if "num_conditions" in data else "items"
    values = _letters(file) if file.suffix == ".txt" else _array(file, wanted)
    if wanted == "condition":
        return {"condition": _shaped(file, values, (data["num_conditions"],)).float()}
    tokens = _shaped(file, values, (data["num_items"],)).long()
    return {"items": _numbered(file, tokens, model.tensors(), data["num_tokens"])}


def _numbered(file: Path, tokens: Tensor, kept: Mapping[str, Tensor], num_tokens: int) -> Tensor:
    """The model's numbers of items from the user's."""
    names = kept.get("item_names")
    found = tokens if names is None else torch.searchsorted(names, tokens).clamp(max=len(names) - 1)
    known = (tokens >= 0) & (tokens < num_tokens) if names is None else names[found] == tokens
    if not bool(known.all()):
        raise UserError(f"{file}: the model knows no item {int(tokens[~known][0])}")
    return found


def _shaped(file: Path, values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Tensor:
    if values.dtype.kind not in "iuf":
        raise UserError(f"{file}: numbers are needed, not {values.dtype}")
    if values.ndim == len(shape):
        values = values[:, None] if shape == (1,) else values[None]
    if values.shape[1:] != shape or not len(values):
        raise UserError(f"{file}: an array [m, {', '.join(map(str, shape))}] is needed, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise UserError(f"{file}: holds numbers that are not finite")
    return torch.from_numpy(np.ascontiguousarray(values))


def _letters(file: Path) -> np.ndarray[Any, Any]:
    """Words, one a line, as letters 0..25."""
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    words = file.read_text(errors="replace").lower().split()
    if not words or len({len(word) for word in words}) > 1 or not all(w.isascii() and w.isalpha() for w in words):
        raise UserError(f"{file}: words of one length, a to z, one a line, are needed")
    return np.array([[ord(letter) - ord("a") for letter in word] for word in words])


def _array(file: Path, name: str) -> np.ndarray[Any, Any]:
    """The array in an .npy file, or that of this name in an .npz."""
    loaded = _read(file, archive=True)
    if not isinstance(loaded, np.ndarray) and name not in loaded:
        raise UserError(f"{file}: holds no array `{name}`, but {', '.join(sorted(loaded)) or 'nothing'}")
    array: np.ndarray[Any, Any] = loaded if isinstance(loaded, np.ndarray) else loaded[name]
    return array


def _read(file: Path, archive: bool = False) -> Any:
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise UserError(f"{file}: not a readable .npy or .npz file") from error
    if not archive:
        raise UserError(f"{file}: an .npy file is needed")
    return arrays
