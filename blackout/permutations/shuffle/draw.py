"""What `sample.py` asks of a shuffle diffusion: held-out puzzles, or a user's, solved by a decoder.

Beside the solutions: how good they are and, of lists of up to five items, the whole law of the first at every scheduled
time, by enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import BaseDraw, Drawn, OutputNames, Samples, Watch, refuse_unknown
from blackout.files import save_picture
from blackout.permutations.datasets import Puzzles, read_puzzles
from blackout.permutations.distributions.matching import Matching
from blackout.permutations.group import all_permutations, compose, number
from blackout.permutations.metrics import arranged
from blackout.permutations.plots import NAMES, lists, solved_puzzles
from blackout.permutations.shuffle.baselines import Seams
from blackout.permutations.shuffle.decoding import Decoder, Sample
from blackout.permutations.shuffle.model import BATCH, ShuffleDiffusion
from blackout.permutations.shuffle.reverse import Denoiser, with_first
from blackout.random import SampleStreams
from blackout.training.components import make

if TYPE_CHECKING:
    from PIL import Image

MOST_ITEMS, _ORDERS = 5, 24
"""Up to here all orders are gone through."""


@dataclass(frozen=True)
class ShuffleDraw(BaseDraw):
    """Solutions of puzzles: sample k is the k-th held-out puzzle (counted round), or the k-th of the user's file.

    Args:
        model: trained.
        decoder: how to solve.
        description: the decoder as plain values.
        own: `items` [N, n, ...] and perhaps `truth` [N, n] of the user's puzzles; None for held-out ones.
        top: so many solutions of each, and how likely every item is at every place by all that were found.
    """

    model: ShuffleDiffusion
    decoder: Decoder
    description: Mapping[str, Any]
    own: Mapping[str, Tensor] | None = None
    top: int = 1
    batch_size: int = BATCH
    resumable = True

    @property
    def names(self) -> OutputNames:  # type: ignore[override]
        """permutations.npz, and the picture of what was solved."""
        return OutputNames("samples", "permutations", "permutation", NAMES.get(self.model.data["kind"], "solved"))

    def rows(self, num_samples: int) -> int:
        """All of the user's puzzles."""
        return num_samples if self.own is None else len(self.own["items"])

    @property
    def steps(self) -> int:
        return self.model.shuffle.steps

    @property
    def nfe(self) -> int:
        facts = self.model.data
        return self.decoder.evaluations(self.steps, facts["num_items"] - int(facts["first_fixed"]))

    def outputs(self, seed: int) -> SolvedPuzzles | None:
        """How well puzzles were solved, where their solution is known."""
        if self.own is not None and "truth" not in self.own:
            return None
        labels = bool(self.model.loss.labels) and self.nfe > 0  # who asks no network has learned nothing
        how = {"labels": labels, "decoding": type(self.decoder).__name__.lower(), "evaluations": self.nfe}
        return SolvedPuzzles(self.model, how)

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """See `ShuffleDiffusion.batches`."""
        return self.model.batches(indices, seed, batch_size, self.decoder, self.own, watch, self.top)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Solved puzzles, or lists as they lie where samples are items."""
        kind = self.model.data["kind"]
        if "items" not in samples:
            return lists(kind, samples["samples"], columns)
        truth, ties = samples.get("truth"), samples.get("ties")
        return solved_puzzles(kind, samples["items"], samples["samples"], truth, ties, columns)


class SolvedPuzzles:
    """Scores of the puzzles solved, with what decides whether they can be compared with others'.

    Of lists of up to five items it also draws `laws.png`: the whole law of the first at every scheduled time.
    """

    def __init__(self, model: ShuffleDiffusion, how: Mapping[str, Any]) -> None:
        self._model, self._scores, self._how = model, model.scores(), how
        self._first: Samples = {}
        self._sure: list[Tensor] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add solved puzzles."""
        self._first = self._first or {name: samples[name][:1] for name in ("items", "truth")}
        self._sure += [samples["sure"].double()] if "sure" in samples else []
        self._scores.update(samples["items"], samples["samples"], samples["truth"], samples.get("ties"))

    def write(self, directory: Path) -> dict[str, Any]:
        """The values, and how they came about."""
        if self._first and self._how["evaluations"]:
            with self._model.using():
                denoiser = self._model.denoiser(self._first["items"].to(self._model.device))
                times, kind = self._model.shuffle.times, self._model.data["kind"]
                draw_laws(denoiser, times, kind, self._first["truth"], directory / "laws.png")
        sure = {"surely_most_probable": float(torch.cat(self._sure).mean())} if self._sure else {}
        return {"values": self._scores.compute() | sure, "puzzles": self._scores.number, **self._how}


def laws(denoiser: Denoiser, times: Sequence[int], start: Tensor | None = None) -> Tensor:
    """The laws of the order at t_k, ..., t_1 and 0 that the reverse steps lead to, float64 [k + 1, b, m!].

    [Zhang 2025, eq. 11], summed over all lists.

    Args:
        denoiser: of b lists.
        times: t_1, ..., t_k.
        start: float64 [m!], the law at t_k in lexicographic order; None is uniform.
    """
    every, b = all_permutations(denoiser.free).to(denoiser.features.device), len(denoiser.features)
    size = len(every)
    start = torch.full((size,), 1 / size, dtype=torch.float64) if start is None else start
    found = [start.to(every.device).expand(b, size)]
    moved = number(compose(every.unsqueeze(1), every.unsqueeze(0))).flatten()
    for t in reversed(times):
        step = denoiser(every.expand(b, *every.shape), t)
        probability = torch.stack([step.log_prob(sigma.expand(b, size, -1)).double().exp() for sigma in every], -1)
        mass = (found[-1].unsqueeze(-1) * probability).flatten(1)
        found.append(torch.zeros_like(found[-1]).index_add(1, moved, mass))
    return torch.stack(found)


def draw_laws(denoiser: Denoiser, times: Sequence[int], kind: str, truth: Tensor, path: Path) -> None:
    """A picture of the laws of one list, from uniform to the model's answer, over a list drawn at every time.

    That of [Zhang 2025, figure 1]; none where lists are too long, or steps have no law.

    Args:
        denoiser: of one list, with its items.
        kind: of items, see `blackout.permutations.datasets.Puzzles`.
        truth: int64 [1, n], the right order, which is marked.
    """
    if denoiser.free > MOST_ITEMS or isinstance(denoiser(truth.new_zeros(1, 0, denoiser.free), times[0]), Matching):
        return
    states, items, fixed = list[Tensor](), denoiser.items, denoiser.first_fixed
    assert items is not None
    streams = SampleStreams(0, torch.zeros(1, dtype=torch.int64))
    Sample()(denoiser, times, streams, lambda _, order: states.append(order))
    from matplotlib.figure import Figure  # only here: importing it takes a second

    every, found = with_first(all_permutations(denoiser.free), fixed), laws(denoiser, times)[:, 0].cpu()
    few = found[-1].topk(min(_ORDERS, len(every))).indices.sort().values  # bars that can be told apart
    told = f"the {len(every)} orders" if len(few) == len(every) else f"the {len(few)} likeliest orders"
    every, found = every[few], found[:, few]
    figure = Figure(figsize=(2.2 * len(found), 3.6), layout="constrained")
    rows = figure.subplots(2, len(found), sharey="row", squeeze=False)
    colours = ["tab:green" if bool(right) else "tab:blue" for right in (every == truth.cpu()).all(1)]
    for column, (t, law) in enumerate(zip([*reversed(times), 0], found.tolist(), strict=True)):
        rows[0, column].bar(range(len(law)), law, color=colours)
        rows[0, column].set(title=f"t = {t}", ylim=(0, 1), xlabel=told, xticks=[])
        rows[1, column].axis("off")
        if (picture := lists(kind, arranged(items, with_first(states[column], fixed)), 1)) is not None:
            rows[1, column].imshow(picture)
    save_picture(figure, path, dpi=110)


def check_kind(decoder: Decoder, kind: str) -> None:
    """Raises UserError unless the decoder is one for items of this kind."""
    if decoder.only not in (None, kind):
        raise UserError(f"sampler: {type(decoder).__name__} puts {decoder.only} in order, not {kind}")


def requested(model: ShuffleDiffusion, request: Mapping[str, Any]) -> ShuffleDraw:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `sampler` (a description, or fields that replace the model's own), `input`, `top`.

    Raises:
        UserError: another option, a sampler that is none, or a file that does not fit.
    """
    refuse_unknown(request, "sampler", "input", "top")
    if type(top := request.get("top", 1)) is not int or top < 1:
        raise UserError(f"top must be a whole number of at least 1, not {top!r}")
    description = model.config.get("model", {}).get("sampler", {})
    given = {name: value for name, value in (request.get("sampler") or {}).items() if value is not None}
    decoder = model.sampler
    if given:
        description = given if "_target_" in given else {**description, **given}
        decoder = make(description, "sampler")
        if not hasattr(decoder, "evaluations"):
            raise UserError("sampler: this model is decoded by greedy, beam, sample or seams")
        check_kind(decoder, model.data["kind"])
        if isinstance(decoder, Seams) and decoder.weight is None:
            decoder = decoder.fitted(cast(Puzzles, model.require_source()))
            description = {**description, "weight": decoder.weight}
    puzzles = None
    if request.get("input") is not None:
        source = model.require_source()
        assert isinstance(source, Puzzles)
        puzzles = read_puzzles(str(request["input"]), source)
    return ShuffleDraw(model, decoder, description, puzzles, top)
