"""The family of shuffle diffusions: from settings to a model, and back from its description.

References: Zhang et al. 2025 (SymmetricDiffusers).
"""

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
from blackout.permutations.forward_process import default_schedule
from blackout.permutations.group import inverse
from blackout.permutations.metrics import order_scores, read_sharpness, rearrange, score_ceilings
from blackout.permutations.picture_pieces import (
    Arrangements,
    arrange_pieces,
    join_pieces,
    read_pieces,
)
from blackout.permutations.shuffle.draw import build_draw, make_decoder
from blackout.permutations.shuffle.model import VALIDATION_KEY, ShuffleDiffusion
from blackout.permutations.shuffle.reverse import Reverse
from blackout.permutations.shuffles import Shuffle
from blackout.permutations.tours import heuristic_gaps
from blackout.protocols import Draw
from blackout.random import SampleStreams, fold_seed
from blackout.training.family import ComponentFamily, make_dataset
from blackout.training.model import evaluating

REPORT_BATCH = 256  # held-out puzzles of a report that are evaluated together

# facts of the puzzles in the description of a model, with their types
FACT_TYPES = {
    "num_items": int,
    "item_shape": list[int],
    "first_fixed": bool,
    "std": float,
    "kind": str,
}


@component("family")
@dataclass(frozen=True)
class ShuffleFamily(ComponentFamily):
    """Shuffle diffusion on permutations.

    Args:
        monitor: validation metric that chooses the best checkpoint.

    References: Zhang et al. 2025.
    """

    monitor: str = "val/nll_bits"
    parts = ("network", "shuffle", "reverse", "loss", "decoder")
    values: ClassVar[Plain] = {f"data.{name}": kind for name, kind in FACT_TYPES.items()}
    title = "A shuffle diffusion"
    usage = (
        "orders = model.sample(16, seed=0)  # of held-out puzzles; "
        "`python sample.py ckpt=... input=...` for others"
    )

    def source(
        self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()
    ) -> Puzzles:
        """Return the puzzles of the settings, or of a model's description.

        Args:
            settings: of the run.
            description: of a model that the puzzles must fit; None for a new model.
            trusted: see `make_dataset`.

        Raises:
            UserError: no puzzles, puzzles that cannot be made, or puzzles that do not fit the
                model.
        """
        source = make_dataset(settings, description, trusted)
        if not isinstance(source, Puzzles):
            raise UserError(
                f"dataset: {type(source).__name__} has no puzzles: choose dataset=jigsaw_digits, "
                "dataset=tsp, ..."
            )
        if description is not None:
            data = description["data"]
            expected = f"{data['num_items']} {data['kind']} of shape {list(data['item_shape'])}"
            actual = f"{source.num_items} {source.kind} of shape {list(source.item_shape)}"
            refuse(
                actual != expected,
                f"the model puts {expected} in order, but {source.name} has {actual}",
            )
        return source

    def describe_parts(self, settings: Plain, source: Puzzles) -> dict[str, Any]:
        """Return every component with all its arguments, the schedule included.

        Raises:
            UserError: components that do not fit together.
        """
        # 1. all parts but the network, whose statistics depend on them
        parts = {
            name: complete_description(settings[name], source.facts, name)
            for name in self.parts
            if name != "network"
        }
        reverse: Reverse = instantiate(parts["reverse"], "reverse")
        if reverse.prefix and source.facts["first_fixed"]:
            raise UserError(
                "reverse=pointer moves all items, but the first city of a tour must stay first: "
                "choose reverse=gpl or reverse=pl"
            )
        _check_parts({**parts, "network": settings["network"]})
        make_decoder(parts["decoder"], source.kind, source.num_items)
        # 2. the network, in two steps: the encoder that is filled in asks for statistics itself
        stats = {
            **source.facts,
            "places": reverse.places,
            "swap": reverse.swap,
            "prefix": reverse.prefix,
        }
        network = fill_statistics(settings["network"], stats, "network")
        parts["network"] = complete_description(network, stats, "network")
        # 3. the schedule
        parts["shuffle"] = _describe_shuffle(parts["shuffle"], reverse, source)
        needs_labels = instantiate(parts["loss"], "loss").labels
        if not needs_labels and source.kind in ("points", "tokens"):
            raise UserError(
                f"loss: label_free needs items with pixels, not {source.kind}: "
                "choose loss=trajectory"
            )
        return parts

    def describe_data(self, settings: Plain, source: Puzzles) -> dict[str, Any]:
        """Return the description of the puzzles.

        It does not have the data set if that is a file of the user.
        """
        facts = {name: source.facts[name] for name in FACT_TYPES if name != "kind"}
        data = {"data": {"name": source.name, "kind": source.kind, **facts}}
        from_file = bool((settings.get("dataset") or {}).get("path"))
        return {**data, "dataset": {}} if from_file else data

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return the settings of training beyond the common ones: `sharpness`."""
        return {"sharpness": settings.get("sharpness")}

    def assemble(
        self, description: Plain, tensors: Mapping[str, Tensor], **training: Any
    ) -> ShuffleDiffusion:
        """Return the model of a description."""
        data = description["data"]
        possible = (
            min(data["item_shape"], default=1) > 0 and data["num_items"] > 1 and data["std"] > 0
        )
        refuse(
            not possible,
            "the model's puzzles must have at least 2 items, positive sizes and std > 0",
        )
        parts = self.build_parts(description, *self.parts)
        sharpness = read_sharpness(tensors)
        return ShuffleDiffusion(data=data, fitted_sharpness=sharpness, **parts, **training)

    def draw(self, model: ShuffleDiffusion, request: Plain) -> Draw:
        """Return the solutions that `sample.py` requests, see `build_draw`."""
        return build_draw(model, request)

    def report(self, model: ShuffleDiffusion, source: Puzzles, settings: Plain) -> dict[str, Any]:
        """Return the bound on held-out puzzles, score ceilings, and baselines without learning.

        Ceilings say what a perfect solver would reach if equal items cannot be told apart.

        References: Zhang et al. 2025, eq. 12.
        """
        sums: dict[str, float] = defaultdict(float)
        bits = torch.zeros(source.num_test, dtype=torch.float64)
        with torch.no_grad(), evaluating(model.averaged):
            for index in torch.arange(source.num_test).split(REPORT_BATCH):
                batch = source.batch("test", index)
                streams = SampleStreams(fold_seed(model.seed, VALIDATION_KEY), index).step(0)
                bits[index] = model.nll_bits(batch["items"].to(model.device), streams).cpu()
                scores = score_ceilings(batch["ties"])
                scores |= _heuristic_scores(source.kind, batch)
                for name, score in scores.items():
                    sums[name] += float(score.double().sum())
        values = {"nll_bits": float(bits.mean())}
        values |= {name: total / source.num_test for name, total in sums.items()}
        if len(bits) > 1:
            values["nll_bits_error"] = float(bits.std()) / math.sqrt(len(bits))
        sample_bits = SampleValues(torch.arange(len(bits)), bits, "upper bound")
        return {
            "values": values,
            "held_out_puzzles": source.num_test,
            "sample_values": {"nll_bits": sample_bits},
        }

    def sample_values(
        self, model: ShuffleDiffusion, source: Puzzles, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Return the bound on the bits of each right order, for `test/nll_bits`."""
        return SampleValues(index, values, "upper bound") if name == "test/nll_bits" else None

    def baselines(
        self, source: Puzzles, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Return the bits of the right order under the uniform distribution.

        They are log2 m! for m free items.

        References: Zhang et al. 2025, section 3.4, p(X_T).
        """
        num_free = source.facts["num_items"] - source.facts["first_fixed"]
        bits = math.lgamma(num_free + 1) / math.log(2)
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


def _heuristic_scores(kind: str, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return scores [b] of baselines without learning, for tours and for square pictures.

    References: this project; checked in tests/permutations/test_tours.py and
    tests/permutations/test_borders.py.
    """
    items = batch["items"]
    if kind == "points":
        return heuristic_gaps(items)
    num_items = items.shape[1]
    columns = math.isqrt(num_items)
    if kind != "pieces" or columns**2 != num_items:
        return {}
    puzzle_order = batch["puzzle_order"]
    pieces = rearrange(items, puzzle_order)
    orders, _ = solve_by_borders(neighbour_scores(pieces), columns)
    scores = order_scores(orders[:, 0], inverse(puzzle_order), batch["ties"])
    names = ("accuracy", "correct", "accuracy_up_to_ties")
    return {f"{name}_by_borders": scores[name] for name in names}


def _check_parts(parts: Plain) -> None:
    """Refuse parts of other families of models.

    Raises:
        UserError: a loss or a network of another family.
    """
    requirements = (
        ("loss", "labels", "trajectory, random_time, label_free or sinkhorn"),
        ("network", "scores", "set_transformer"),
    )
    for name, attribute, allowed in requirements:
        target = find_target(parts[name], name)
        if not hasattr(target, attribute):
            raise UserError(
                f"{name}: {target.__name__} is of another family of models; here it is {allowed}"
            )


def _describe_shuffle(part: Plain, reverse: Reverse, source: Puzzles) -> dict[str, Any]:
    """Return the description of the forward process with its schedule.

    Raises:
        UserError: a reverse distribution that cannot undo the steps.
    """
    method: Shuffle = instantiate(part.get("method"), "shuffle.method")
    num_free = source.num_items - int(source.facts["first_fixed"])
    single_steps = reverse.inverts is not None
    name = type(reverse).__name__
    if reverse.inverts is not None and not isinstance(method, reverse.inverts):
        raise UserError(
            f"reverse: {name} undoes {reverse.inverts.__name__}, not {type(method).__name__}; "
            "reverse=gpl undoes any shuffle"
        )
    schedule = part.get("schedule")
    if schedule is None:
        schedule = default_schedule(method, num_free, every_step=single_steps)
    description = {**part, "schedule": schedule}
    process = instantiate(description, "shuffle")
    refuse(
        single_steps and max(process.increments) > 1,
        f"shuffle.schedule: {name} undoes single shuffles: [0,1,2,...] in steps of 1, not "
        f"{schedule} (reverse=gpl and reverse=pl undo any number)",
    )
    return description
