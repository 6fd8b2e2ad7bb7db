"""How samples are drawn from a model of codes: passes, order, observed digits, contexts, and files of the last two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import BaseDraw, Drawn, OutputNames, Samples, Watch, refuse_unknown
from blackout.files import load_arrays, read_text
from blackout.permutations.coded.model import BATCH, CodeModel, Passes
from blackout.permutations.codes import Inline
from blackout.permutations.datasets import read_puzzles
from blackout.permutations.datasets.files import existing_file
from blackout.permutations.factorized import check_given

if TYPE_CHECKING:
    from PIL import Image

_KINDS: dict[str, tuple[type, str]] = {
    "passes": (int, "a whole number"), "order": (str, "a name"),
    "distinct": (bool, "true or false"), "greedy": (bool, "true or false"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class CodeDraw(BaseDraw):
    """Samples of a model, in some number of passes.

    Sample k has context k, modulo their number: the held-out ones, or those of a file.

    Args:
        model: drawn from.
        passes: how.
        given: digits that are observed: the first so many of the held-out sample, or digits [m, n], n where unknown;
            None for none.
        contexts: arrays [m, ...] in place of the held-out samples'; None for those.
    """

    model: CodeModel
    passes: Passes
    given: int | Tensor | None = None
    contexts: Mapping[str, Tensor] | None = None
    names = OutputNames("samples", "permutations", "permutation", "permutations")
    batch_size = BATCH

    @property
    def steps(self) -> int:
        """Passes a batch takes: no more than there are digits to draw."""
        return self.model.steps(self.passes, self.given)

    @property
    def nfe(self) -> int:
        """Network evaluations per sample."""
        return self.steps

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        """Only where nothing but the model decides samples: data and files may have changed since."""
        return self.contexts is None and not self.model.conditional and self.given is None

    @property
    def description(self) -> Mapping[str, Any]:
        """Code, objective, passes and order, for metrics.json."""
        given = "file" if isinstance(self.given, Tensor) else self.given
        described = {"code": self.model.code.__name__, "objective": self.model.objective, **asdict(self.passes)}
        contexts = "file" if self.contexts is not None else "held out" if self.model.conditional else None
        return {**described, "given": given, "contexts": contexts}

    @property
    def condition(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The user's own digits and contexts; held-out ones are those of what samples are compared with."""
        own = {"given": isinstance(self.given, Tensor), "input": self.contexts is not None}
        return {name: "file" for name, is_own in own.items() if is_own}

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """See `CodeModel.batches`."""
        return self.model.batches(indices, seed, batch_size, self.passes, self.given, self.contexts, watch)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Cycle diagrams of bare permutations; words, rankings and puzzles as what they are of."""
        from blackout.permutations.plots import picture  # here: a model that is loaded needs no Pillow

        return picture(samples, self.model.config.get("data", {}), columns)


def requested(model: CodeModel, request: Mapping[str, Any]) -> CodeDraw:
    """The draw that the settings of `sample.py` ask for.

    Raises:
        UserError: something that the model cannot do, or another option.
    """
    refuse_unknown(request, "passes", "order", "given", "input", "distinct", "sampler")
    passes = _passes(model, request)
    contexts = None
    if "input" in request:
        contexts = read_contexts(request["input"], model.config.get("data", {}), model)
    given = observed_digits(request["given"], model.support) if "given" in request else None
    if model.objective == "autoregressive" and isinstance(given, Tensor):
        unknown = given == model.length
        if bool((unknown[:, :-1] & ~unknown[:, 1:]).any()):
            raise UserError("given: an autoregressive model draws from left to right: observed digits must come first")
    return CodeDraw(model, passes, given, contexts)


def _passes(model: CodeModel, request: Mapping[str, Any]) -> Passes:
    """The model's own way of drawing, with what the request replaces."""
    options = {name: value for name, value in (request.get("sampler") or {}).items() if value is not None}
    if wrong := sorted(options.keys() - {"greedy"}):
        raise UserError(f"sampler.{wrong[0]}: no such option")
    chosen = {**options, **{name: request[name] for name in ("passes", "order", "distinct") if name in request}}
    for name, value in chosen.items():
        kind, said = _KINDS[name]
        if type(value) is not kind:
            raise UserError(f"{name} must be {said}, not {value!r}")
    try:
        return replace(model.passes, **chosen).checked(model.length, model.objective, model.code is Inline)
    except ValueError as error:
        raise UserError(str(error)) from None


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
    file = Path(given).expanduser()
    values = load_arrays(existing_file(file))
    if isinstance(values, dict):
        raise UserError(f"{file}: an .npy file is needed")
    if values.dtype.kind not in "iu" or values.ndim not in (1, 2):
        raise UserError(f"{given}: integers [{n}] or [m, {n}] are needed, -1 where a digit is to be drawn")
    digits = torch.from_numpy(values.astype(np.int64)).reshape(-1, values.shape[-1])
    if bool((digits >= n).any()):
        raise UserError(f"{given}: digit {int(digits[digits >= n][0])} is outside its support")
    try:
        return check_given(torch.where(digits == -1, n, digits), support.cpu())
    except ValueError as error:
        raise UserError(f"{given}: {error}") from None


def read_contexts(path: Any, data: Mapping[str, Any], model: CodeModel) -> dict[str, Tensor]:
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
    name, width = ("condition", data["num_conditions"]) if "num_conditions" in data else ("items", data["num_items"])
    values = _letters(file) if file.suffix == ".txt" else load_arrays(existing_file(file))
    if isinstance(values, dict):
        if name not in values:
            raise UserError(f"{file}: holds no array `{name}`, but {', '.join(sorted(values)) or 'nothing'}")
        values = values[name]
    if values.dtype.kind not in "iuf":
        raise UserError(f"{file}: numbers are needed, not {values.dtype}")
    if values.ndim == 1:
        values = values[:, None] if width == 1 else values[None]
    if values.shape[1:] != (width,) or not len(values):
        raise UserError(f"{file}: an array [m, {width}] is needed, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise UserError(f"{file}: holds numbers that are not finite")
    array = torch.from_numpy(np.ascontiguousarray(values))
    if name == "condition":
        return {name: array.float()}
    # the model's numbers of items from the user's
    tokens, names = array.long(), model.tensors().get("item_names", torch.arange(data["num_tokens"]))
    numbers = torch.searchsorted(names, tokens).clamp(max=len(names) - 1)
    if not bool((known := names[numbers] == tokens).all()):
        raise UserError(f"{file}: the model knows no item {int(tokens[~known][0])}")
    return {name: numbers}


def _letters(file: Path) -> np.ndarray[Any, Any]:
    """Words, one a line, as letters 0..25."""
    words = read_text(existing_file(file)).lower().split()
    if not words or len({len(word) for word in words}) > 1 or not all(w.isascii() and w.isalpha() for w in words):
        raise UserError(f"{file}: words of one length, a to z, one a line, are needed")
    return np.array([[ord(letter) - ord("a") for letter in word] for word in words])
