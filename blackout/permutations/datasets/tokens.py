"""A single permutation to be memorised: n tokens in one fixed order."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.family import Split
from blackout.permutations.datasets.base import Puzzles
from blackout.random import StepStreams, fold_seed

_ORDER = 3


class OnePermutation(Puzzles):
    """The tokens 0..length - 1, always in the same right order, a random one."""

    def __init__(self, length: int, held_out: int, seed: int) -> None:
        facts = {
            "num_tokens": length, "mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.TokenEncoder"},
        }  # fmt: skip
        super().__init__("one_permutation", "tokens", length, (), held_out, seed, facts)
        self.order = torch.randperm(length, generator=torch.Generator().manual_seed(fold_seed(seed, _ORDER)))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        return {"items": self.order.repeat(len(index), 1)}


def one_permutation(length: int = 10, held_out: int = 1000, seed: int = 0) -> OnePermutation:
    """One permutation of `length` tokens, shuffled in every puzzle.

    Args:
        length: tokens.
        held_out: number of test puzzles.
        seed: of the permutation and the puzzles.

    Raises:
        ValueError: values out of range.
    """
    return OnePermutation(length, held_out, seed)
