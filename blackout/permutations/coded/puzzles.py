"""Puzzles as permutations to be coded: the items as they are given, and the permutation that puts them right."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blackout.family import Samples, Split
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.datasets import Puzzles
from blackout.permutations.group import inverse
from blackout.permutations.metrics import arranged, puzzle_scores


def from_puzzles(puzzles: Puzzles) -> PermutationData:
    """The same source for models of codes: `x` solves the puzzle `items`, [b, n] and [b, n, ...]."""

    def batch(split: Split, index: Tensor) -> dict[str, Tensor]:
        made = puzzles.batch(split, index)
        given = made["given"]
        return {"x": inverse(given), "items": arranged(made["items"], given), "ties": made["ties"]}

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        if "target" not in samples:
            return {}
        ties = samples.get("ties")
        scores = puzzle_scores(puzzles.kind, samples["items"], samples["samples"], samples["target"], ties)
        return {name: values.double() for name, values in scores.items()}

    return PermutationData(
        puzzles.name,
        lambda index, _: batch("train", index),
        batch("test", torch.arange(puzzles.held_out)),
        kind=puzzles.kind,
        puzzles=puzzles,
        item_facts=puzzles.facts,
        judge=judge,
    )
