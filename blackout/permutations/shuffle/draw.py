"""Solutions of puzzles as `sample.py` requests them, and their scores.

Puzzles are held-out ones or those of the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from blackout.component import Plain
from blackout.config.instantiate import instantiate
from blackout.errors import refuse
from blackout.permutations.borders import grid_side
from blackout.permutations.datasets import Puzzles, read_puzzles
from blackout.permutations.metrics import (
    NDCG_CUTOFFS,
    NLL_METRICS,
    PUZZLE_METRICS,
    mean_scores,
    ndcg_scores,
    puzzle_scores,
    rearrange,
)
from blackout.permutations.plots import PICTURE_NAMES, plot_samples
from blackout.permutations.queries import Condition, read_integer
from blackout.permutations.shuffle.decoding import Borders, Decoder
from blackout.permutations.shuffle.model import BATCH, Query, ShuffleDiffusion
from blackout.permutations.tours import heuristic_gaps
from blackout.protocols import Draw, Drawn, OutputNames, References, Samples, Watch, refuse_unknown
from blackout.representation import format_fields

if TYPE_CHECKING:
    from PIL import Image

PERFECT_SCORES = {
    "accuracy": 1.0,
    "accuracy_up_to_ties": 1.0,
    "correct": 1.0,
    "optimal": 1.0,
    "greedy_accuracy": 1.0,
    "greedy_correct": 1.0,
    "certified": 1.0,
    "kendall_ranks": 1.0,
    "kendall_lists": 1.0,
    **{f"ndcg_at_{k}": 1.0 for k in NDCG_CUTOFFS},
    "rmse": 0.0,
    "rmse_normalised": 0.0,
    "mae": 0.0,
    "mae_normalised": 0.0,
    "gap": 0.0,
}


@dataclass(frozen=True)
class ShuffleDraw(Draw):
    """Solutions of held-out puzzles or of the user's.

    Sample k is the k-th held-out puzzle, modulo their number, or the k-th puzzle of a file.

    Args:
        model: trained.
        decoder: how lists are ordered.
        description: the decoder as plain values.
        puzzles: `items` [N, n, ...] and perhaps `truth` [N, n] of the user's puzzles; None for
            held-out ones.
        query: further queries about each puzzle.
        batch_size: puzzles that are solved together.
    """

    references = References(
        suffixes=(*References().suffixes, "by_borders", "of_polar_tour_with_two_opt"),
        ideal=PERFECT_SCORES,
        metrics={**NLL_METRICS, **PUZZLE_METRICS},
    )

    model: ShuffleDiffusion
    decoder: Decoder
    description: Mapping[str, Any]
    puzzles: Mapping[str, Tensor] | None
    query: Query
    batch_size: int = BATCH
    resumable = True

    __repr__ = format_fields

    @property
    def names(self) -> OutputNames:  # type: ignore[override]
        """The names of permutations.npz and of the picture of the solutions."""
        picture_name = PICTURE_NAMES.get(self.model.data["kind"], "solved")
        return OutputNames("samples", "permutations", "permutation", picture_name)

    def rows(self, num_samples: int) -> int:
        """Return the number of samples: all of the user's puzzles, or `num_samples`."""
        return num_samples if self.puzzles is None else len(self.puzzles["items"])

    @property
    def steps(self) -> int:
        """The steps of the schedule."""
        return len(self.model.shuffle.times)

    @property
    def nfe(self) -> int:
        """The largest number of network evaluations of a puzzle."""
        facts = self.model.data
        num_free = facts["num_items"] - int(facts["first_fixed"])
        return self.decoder.evaluations(self.steps, num_free)

    def outputs(self, seed: int) -> SolvedPuzzles | None:
        """Return the scores of solutions; None if the right orders are unknown."""
        if self.puzzles is not None and "truth" not in self.puzzles:
            return None
        settings: dict[str, Any] = {
            # decoders without a network have learned nothing from labels
            "labels": bool(self.model.loss.labels) and self.nfe > 0,
            "decoding": type(self.decoder).__name__.lower(),
            "evaluations": self.nfe,
        }
        if self.model.reverse.prefix:
            # a pointer network also evaluates its decoder, for every position of every list
            settings["decoder_evaluations"] = self.nfe * self.model.data["num_items"]
        return SolvedPuzzles(self.model.data, settings)

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Solve puzzles, see `ShuffleDiffusion.batches`."""
        return self.model.batches(
            indices, seed, batch_size, self.decoder, self.puzzles, watch, self.query
        )

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Return a picture of solutions, or of lists where samples are items."""
        return plot_samples(samples, self.model.data, columns)


class SolvedPuzzles:
    """Mean scores of solved puzzles, with the settings that a comparison needs.

    Args:
        data: facts of the puzzles: their kind, and the standard deviation of all values of the
            items.
        settings: how the puzzles were solved, for metrics.json.
    """

    def __init__(self, data: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._kind = data["kind"]
        self._std = data["std"]
        self._settings = settings
        self._sums: dict[str, float] = {}
        self._num_puzzles = 0

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add solved puzzles, with solutions int64 [b, n]."""
        items = samples["items"]
        solution = samples["samples"]
        truth = samples["truth"]
        scores = puzzle_scores(self._kind, items, solution, truth, samples.get("ties"))
        if "certified" in samples:
            scores["certified"] = samples["certified"]
        if "relevance" in samples:
            scores |= ndcg_scores(solution, samples["relevance"])
        if self._kind == "points":
            scores |= heuristic_gaps(rearrange(items, truth))
        for name, values in scores.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())
        self._num_puzzles += len(solution)

    def write(self, directory: Path) -> dict[str, Any]:
        """Return the mean scores and the settings they were computed with."""
        values = mean_scores(self._sums, self._num_puzzles, self._std)
        return {"values": values, "puzzles": self._num_puzzles, **self._settings}


def make_decoder(description: Plain, kind: str, num_items: int) -> Decoder:
    """Make a decoder from its description.

    Args:
        description: `_target_` and arguments.
        kind: of the items, see `Puzzles`.
        num_items: in a list.

    Raises:
        UserError: the description is not that of a decoder, or of one for other items.
    """
    decoder = instantiate(description, "decoder")
    allowed = "best, greedy, beam, sample, borders or two_opt"
    refuse(not isinstance(decoder, Decoder), f"decoder: this model is decoded by {allowed}")
    refuse(
        decoder.item_kind not in (None, kind),
        f"decoder: {type(decoder).__name__} puts {decoder.item_kind} in order, not {kind}",
    )
    if isinstance(decoder, Borders):
        grid_side(num_items)
    return decoder


def build_draw(model: ShuffleDiffusion, request: Mapping[str, Any]) -> ShuffleDraw:
    """Return the draw that the settings of `sample.py` request.

    Args:
        model: trained.
        request: `decoder` (a description, or fields that replace the model's own), `input`, `top`,
            `condition`, `draws`.

    Raises:
        UserError: another option, or a decoder or a file that does not fit the model.
    """
    refuse_unknown(request, "decoder", "input", "top", "condition", "draws")
    # 1. queries
    condition = None
    if "condition" in request:
        condition = Condition.read(str(request["condition"]), model.data["num_items"])
    query = Query(read_integer(request, "top"), condition, read_integer(request, "draws", 0))
    # 2. decoder
    decoder = model.decoder
    description = model.config.get("model", {}).get("decoder", {})
    options = request.get("decoder") or {}
    options = {name: value for name, value in options.items() if value is not None}
    if options:
        description = options if "_target_" in options else {**description, **options}
        decoder = make_decoder(description, model.data["kind"], model.data["num_items"])
    # 3. puzzles
    puzzles = None
    if request.get("input") is not None:
        source = cast(Puzzles, model.require_source())
        puzzles = read_puzzles(str(request["input"]), source)
    return ShuffleDraw(model, decoder, description, puzzles, query)
