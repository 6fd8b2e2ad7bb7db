"""A data set of one permutation, for memorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.component import component
from blackout.permutations.datasets.puzzles import StoredPuzzles
from blackout.protocols import Split
from blackout.random import fold_seed

PERMUTATION_KEY = 3  # the order of `one_permutation`


@component("dataset")
def one_permutation(length: int = 10, num_test: int = 1000, seed: int = 0) -> StoredPuzzles:
    """Return one random order of tokens 0..length - 1, to be memorised.

    Args:
        length: tokens.
        num_test: number of validation and of test puzzles, the permutation in other random orders.
        seed: of the permutation and the puzzles.

    Raises:
        ValueError: values out of range.

    References: Zhang et al. 2025, appendix G.1.
    """
    generator = torch.Generator().manual_seed(fold_seed(seed, PERMUTATION_KEY))
    permutation = torch.randperm(length, generator=generator)
    facts = {
        "num_tokens": length,
        "mean": 0.0,
        "std": 1.0,
        "encoder": {"_target_": "blackout.networks.TokenEncoder"},
    }
    copies = permutation.repeat(max(num_test, 0), 1)
    lists: dict[Split, Tensor] = {"train": permutation[None], "val": copies, "test": copies}
    return StoredPuzzles("one_permutation", "tokens", lists, seed, facts)
