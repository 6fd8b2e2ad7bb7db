"""The family of shuffle diffusions: from settings and puzzles to a model, and back from its description."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component
from blackout.config.descriptions import complete_description, fill_statistics
from blackout.config.instantiate import find_target, instantiate
from blackout.errors import UserError, refuse
from blackout.permutations.borders import neighbour_scores, solve_by_borders
from blackout.permutations.datasets import Puzzles
from blackout.permutations.distributions import Reverse
from blackout.permutations.group import inverse
from blackout.permutations.metrics import arranged, ceilings, order_scores, read_sharpness
from blackout.permutations.picture_pieces import (
    Arrangements,
    arrange_pieces,
    join_pieces,
    read_pieces,
)
from blackout.permutations.shuffle.draw import make_decoder, requested
from blackout.permutations.shuffle.model import VALIDATION, ShuffleDiffusion
from blackout.permutations.shuffles import Shuffle, default_schedule
from blackout.permutations.tours import gaps_without_learning
from blackout.protocols import Draw
from blackout.random import SampleStreams, fold_seed
from blackout.training.family import ComponentFamily, make_dataset
from blackout.training.model import evaluating

_AT_ONCE = 256
_FACTS = {"num_items": int, "item_shape": list[int], "first_fixed": bool, "std": float, "kind": str}


@component("family")
@dataclass(frozen=True)
class ShuffleFamily(ComponentFamily):
    """Shuffle diffusion on permutations [Zhang 2025].

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/nll_bits"
    parts = ("network", "shuffle", "reverse", "loss", "decoder")
    values: ClassVar[Plain] = {f"data.{name}": kind for name, kind in _FACTS.items()}
    title = "A shuffle diffusion"
    usage = "orders = model.sample(16, seed=0)  # of held-out puzzles; `python sample.py ckpt=... input=...` for others"

    def source(self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()) -> Puzzles:
        """The puzzles chosen in the settings, else those in a model's description, which they must fit.

        Raises:
            UserError: there are none, they cannot be made, or they do not fit the model.
        """
        source = make_dataset(settings, description, trusted)
        if not isinstance(source, Puzzles):
            raise UserError(f"dataset: {type(source).__name__} has no puzzles: choose jigsaw_digits, tsp, ...")
        if description is not None:
            data = description["data"]
            theirs = f"{data['num_items']} {data['kind']} of shape {list(data['item_shape'])}"
            mine = f"{source.num_items} {source.kind} of shape {list(source.item_shape)}"
            refuse(mine != theirs, f"the model puts {theirs} in order, but {source.name} has {mine}")
        return source

    def describe_parts(self, settings: Plain, source: Puzzles) -> dict[str, Any]:
        """Every component with all its arguments, the schedule among them.

        Raises:
            UserError: components that do not go together.
        """
        parts = {
            name: complete_description(settings[name], source.facts, name)
            for name in self.parts
            if name != "network"
        }
        reverse: Reverse = instantiate(parts["reverse"], "reverse")
        if reverse.prefix and source.facts["first_fixed"]:
            raise UserError("reverse: pointer puts all items in order: tours, whose first city stays, need gpl or pl")
        stats = {**source.facts, "places": reverse.places, "swap": reverse.swap, "prefix": reverse.prefix}
        _check_parts({**parts, "network": settings["network"]})
        make_decoder(parts["decoder"], source.kind, source.num_items)
        # what is filled in, the encoder, has statistics of its own to ask for
        network = fill_statistics(settings["network"], stats, "network")
        parts["network"] = complete_description(network, stats, "network")
        parts["shuffle"] = _with_schedule(parts["shuffle"], reverse, source)
        if not instantiate(parts["loss"], "loss").labels and source.kind in ("points", "tokens"):
            raise UserError(f"loss: learning without labels needs items with pixels, not {source.kind}")
        return parts

    def describe_data(self, settings: Plain, source: Puzzles) -> dict[str, Any]:
        """What the puzzles are; no dataset where they came from the user's own file."""
        own_file = bool((settings.get("dataset") or {}).get("path"))
        kept = {name: source.facts[name] for name in _FACTS if name != "kind"}
        data = {"data": {"name": source.name, "kind": source.kind, **kept}}
        return {**data, "dataset": {}} if own_file else data

    def training(self, settings: Plain) -> dict[str, Any]:
        """`sharpness`."""
        return {"sharpness": settings.get("sharpness")}

    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> ShuffleDiffusion:
        """The model of a description."""
        data = description["data"]
        possible = min(data["item_shape"], default=1) > 0 and data["num_items"] > 1 and data["std"] > 0
        refuse(not possible, "the description of the puzzles a model is of is impossible")
        parts = self.build_parts(description, *self.parts)
        return ShuffleDiffusion(data=data, fitted_sharpness=read_sharpness(tensors), **parts, **training)

    def draw(self, model: ShuffleDiffusion, request: Plain) -> Draw:
        """Solved puzzles: held-out ones or, with `input`, the user's, by the model's own decoder or `decoder`."""
        return requested(model, request)

    def report(self, model: ShuffleDiffusion, source: Puzzles, settings: Plain) -> dict[str, Any]:
        """The bound on held-out puzzles, ceilings by items that are alike, tours and jigsaws without learning.

        Means, floats by name, of `nll_bits` [Zhang 2025, eq. 12] and figures [b] of `ceilings` and the like.
        """
        scores: dict[str, float] = defaultdict(float)
        bits = torch.zeros(source.held_out, dtype=torch.float64)
        with torch.no_grad(), evaluating(model.averaged):
            for index in torch.arange(source.held_out).split(_AT_ONCE):
                batch = source.batch("test", index)
                streams = SampleStreams(fold_seed(model.seed, VALIDATION), index).step(0)
                bits[index] = model.nll_bits(batch["items"].to(model.device), streams).cpu()
                for name, each in {**ceilings(batch["ties"]), **_without_learning(source.kind, batch)}.items():
                    scores[name] += float(each.double().sum())
        means = {name: total / source.held_out for name, total in scores.items()}
        values = {"nll_bits": float(bits.mean()), **means}
        if len(bits) > 1:
            values["nll_bits_error"] = float(bits.std()) / math.sqrt(len(bits))
        compared = SampleValues(torch.arange(len(bits)), bits, "upper bound")
        return {
            "values": values,
            "held_out_puzzles": source.held_out,
            "sample_values": {"nll_bits": compared},
        }

    def sample_values(
        self, model: ShuffleDiffusion, source: Puzzles, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """The bound on the bits of each right order."""
        return SampleValues(index, values, "upper bound") if name == "test/nll_bits" else None

    def baselines(self, source: Puzzles, size: int, settings: Plain) -> dict[str, dict[str, Baseline]]:
        """Bits of the right order where all orders of the items that move are as likely; one that is sure has none.

        log2 m!, a float: -log2 of the uniform law, p(X_T) of [Zhang 2025, section 3.4].
        """
        free = source.facts["num_items"] - source.facts["first_fixed"]
        bits = math.lgamma(free + 1) / math.log(2)
        uniform = {"uniform": Baseline(torch.full((size,), bits, dtype=torch.float64), bits)}
        return {"test/nll_bits": uniform, "nll_bits": uniform}

    def read_pieces(self, path: Path, grid: str | None) -> tuple[Tensor, int]:
        """Return the pieces of a picture and their columns, see `picture_pieces.read_pieces`."""
        return read_pieces(path, grid)

    def arrange_pieces(self, pieces: Tensor, columns: int) -> Arrangements:
        """Arrange pieces by their borders, see `picture_pieces.arrange_pieces`."""
        return arrange_pieces(pieces, columns)

    def join_pieces(self, pieces: Tensor, columns: int) -> Image.Image:
        """Return the picture that pieces [n, 3, h, w] make, row by row."""
        return join_pieces(pieces, columns)


def _without_learning(kind: str, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Figures of puzzles in a batch [b] by who learns nothing: tours, and pictures of a square number of pieces.

    Ours (tests/permutations/test_datasets.py and tests/permutations/test_borders.py).
    """
    items, given = batch["items"], batch["given"]
    if kind == "points":
        return gaps_without_learning(items)
    if kind != "pieces" or math.isqrt(items.shape[1]) ** 2 != items.shape[1]:
        return {}
    orders, _ = solve_by_borders(neighbour_scores(arranged(items, given)), math.isqrt(items.shape[1]))
    found = order_scores(orders[:, 0], inverse(given), batch["ties"])
    return {f"{name}_by_borders": found[name] for name in ("accuracy", "correct", "accuracy_up_to_ties")}


def _check_parts(parts: Plain) -> None:
    """Refuse what belongs to another family of models.

    Raises:
        UserError: a loss or a network of another kind.
    """
    for name, attribute, words in (
        ("loss", "labels", "trajectory, random_time, label_free or sinkhorn"),
        ("network", "scores", "set_transformer"),
    ):
        if not hasattr(chosen := find_target(parts[name], name), attribute):
            raise UserError(f"{name}: {chosen.__name__} is of another family of models; here it is {words}")


def _with_schedule(part: Plain, reverse: Reverse, source: Puzzles) -> dict[str, Any]:
    """A description of the forward process with its schedule written out.

    Raises:
        UserError: a reverse law that cannot undo its steps.
    """
    law: Shuffle = instantiate(part.get("law"), "shuffle.law")
    free = source.num_items - int(source.facts["first_fixed"])
    if reverse.undoes is not None and not isinstance(law, reverse.undoes):
        raise UserError(f"reverse: {type(reverse).__name__} undoes {reverse.undoes.__name__}, not {type(law).__name__}")
    schedule = part.get("schedule")
    if schedule is None:
        schedule = default_schedule(law, free, reverse.undoes is not None)
    described = {**part, "schedule": schedule}
    process = instantiate(described, "shuffle")
    told = f"{type(reverse).__name__} undoes single shuffles: [0,1,2,...] in steps of 1, not {schedule}"
    several = reverse.undoes is not None and max(process.gaps) > 1
    refuse(several, f"shuffle.schedule: {told} (reverse=gpl and reverse=pl undo any number)")
    return described
