"""What `sample.py` asks of a shuffle diffusion: held-out puzzles, or a user's, solved by a decoder.

Beside the solutions: how good they are.
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
from blackout.permutations.metrics import CUTOFFS, arranged, mean_scores, ndcgs, puzzle_scores
from blackout.permutations.plots import NAMES, picture
from blackout.permutations.queries import Condition, whole
from blackout.permutations.shuffle.decoding import Borders, Decoder
from blackout.permutations.shuffle.model import BATCH, Asked, ShuffleDiffusion
from blackout.permutations.tours import gaps_without_learning
from blackout.protocols import Draw, Drawn, OutputNames, References, Samples, Watch, refuse_unknown

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class ShuffleDraw(Draw):
    """Solutions of puzzles: sample k is the k-th held-out puzzle (counted round), or the k-th of the user's file.

    Args:
        model: trained.
        decoder: how to solve.
        description: the decoder as plain values.
        own: `items` [N, n, ...] and perhaps `truth` [N, n] of the user's puzzles; None for held-out ones.
        asked: of each besides a solution.
    """

    references = References(
        suffixes=(*References().suffixes, "by_borders", "of_polar_tour_with_two_opt"),
        ideal={
            **dict.fromkeys(("accuracy", "accuracy_up_to_ties", "correct", "optimal"), 1.0),
            **dict.fromkeys(("greedy_accuracy", "greedy_correct", "surely_most_probable"), 1.0),
            **dict.fromkeys(("kendall_ranks", "kendall_lists"), 1.0),
            **dict.fromkeys((f"ndcg_at_{k}" for k in CUTOFFS), 1.0),
            **dict.fromkeys(("rmse", "rmse_normalised", "mae", "mae_normalised", "gap"), 0.0),
        },
    )

    model: ShuffleDiffusion
    decoder: Decoder
    description: Mapping[str, Any]
    own: Mapping[str, Tensor] | None
    asked: Asked
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
        return len(self.model.shuffle.times)

    @property
    def nfe(self) -> int:
        facts = self.model.data
        return self.decoder.evaluations(self.steps, facts["num_items"] - int(facts["first_fixed"]))

    def outputs(self, seed: int) -> SolvedPuzzles | None:
        """How well puzzles were solved, where their solution is known."""
        if self.own is not None and "truth" not in self.own:
            return None
        labels = bool(self.model.loss.labels) and self.nfe > 0  # who asks no network has learned nothing
        how = dict[str, Any](labels=labels, decoding=type(self.decoder).__name__.lower(), evaluations=self.nfe)
        if self.model.reverse.prefix:  # of one token each, for every place of every list
            how["decoder_evaluations"] = self.nfe * self.model.data["num_items"]
        return SolvedPuzzles(self.model.data, how)

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """See `ShuffleDiffusion.batches`."""
        return self.model.batches(indices, seed, batch_size, self.decoder, self.own, watch, self.asked)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Solved puzzles, or lists as they lie where samples are items."""
        return picture(samples, self.model.data, columns)


class SolvedPuzzles:
    """Means of the scores of the puzzles solved, with what decides whether they can be compared with others'.

    Args:
        data: facts of the puzzles: their kind, and the deviation of all numbers in the items, for errors in its units.
        how: the puzzles were solved.
    """

    def __init__(self, data: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        self._kind, self._std, self._how = data["kind"], data["std"], how
        self._sums, self._number = dict[str, float](), 0

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add solved puzzles, orders [b, n]; see `puzzle_scores`."""
        items, solution, truth = (samples[name] for name in ("items", "samples", "truth"))
        figures = puzzle_scores(self._kind, items, solution, truth, samples.get("ties"))
        figures |= {"surely_most_probable": samples["sure"]} if "sure" in samples else {}
        figures |= ndcgs(solution, samples["relevance"]) if "relevance" in samples else {}
        figures |= gaps_without_learning(arranged(items, truth)) if self._kind == "points" else {}
        for name, values in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())
        self._number += len(samples["samples"])

    def write(self, directory: Path) -> dict[str, Any]:
        """The means, and how they came about."""
        return {"values": mean_scores(self._sums, self._number, self._std), "puzzles": self._number, **self._how}


def make_decoder(description: Plain, kind: str, num_items: int) -> Decoder:
    """Make a decoder from its description.

    Args:
        description: `_target_` and arguments.
        kind: of the items to be put in order, see `Puzzles`.
        num_items: in a list.

    Raises:
        UserError: the description is not that of a decoder, or of one for other items.
    """
    decoder = instantiate(description, "decoder")
    allowed = "best, greedy, beam, sample, borders or two_opt"
    refuse(not isinstance(decoder, Decoder), f"decoder: this model is decoded by {allowed}")
    name = type(decoder).__name__
    refuse(decoder.only not in (None, kind), f"decoder: {name} puts {decoder.only} in order, not {kind}")
    if isinstance(decoder, Borders):
        grid_side(num_items)
    return decoder


def requested(model: ShuffleDiffusion, request: Mapping[str, Any]) -> ShuffleDraw:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `decoder` (a description, or fields that replace the model's own), `input`, `top`, `given`, `draws`.

    Raises:
        UserError: another option, a decoder that does not fit, or a file that does not fit.
    """
    refuse_unknown(request, "decoder", "input", "top", "given", "draws")
    given = Condition.read(str(request["given"]), model.data["num_items"]) if "given" in request else None
    asked = Asked(whole(request, "top"), given, whole(request, "draws", 0))
    decoder, description = model.decoder, model.config.get("model", {}).get("decoder", {})
    chosen = {name: value for name, value in (request.get("decoder") or {}).items() if value is not None}
    if chosen:
        description = chosen if "_target_" in chosen else {**description, **chosen}
        decoder = make_decoder(description, model.data["kind"], model.data["num_items"])
    puzzles = None
    if request.get("input") is not None:
        puzzles = read_puzzles(str(request["input"]), cast(Puzzles, model.require_source()))
    return ShuffleDraw(model, decoder, description, puzzles, asked)
