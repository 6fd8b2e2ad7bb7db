"""Permutations that are a single cycle, some of them held out.

References: Severo et al. 2025, section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.coded.data import PermutationData, check_length
from blackout.permutations.codes import FisherYates
from blackout.permutations.group import lexicographic_rank, num_cycles
from blackout.protocols import Samples
from blackout.random import SampleStreams

MAX_CYCLE_LENGTH = 10  # items of which all cycles (362,880) are held in memory
MAX_HELD_OUT_CYCLES = 2000  # in each of validation and test


@component("dataset")
def cycles(length: int = 10, train_share: float = 0.2, seed: int = 0) -> PermutationData:
    """Return the permutations that are a single cycle, some of them held out.

    A hash of the permutation decides whether it is for training. The training set is therefore the
    same everywhere, and no list is needed to look a sample up. Up to 4,000 of the others, evenly
    spaced, are validation and test permutations in turn.

    Args:
        length: items, 2 to 10.
        train_share: share of the (length - 1)! cycles for training, in (0, 1]; 1 trains on all,
            those for validation and test included.
        seed: of the hash.

    Raises:
        ValueError: values out of range, or a `train_share` that leaves no training or fewer than
            two held-out permutations.

    References: Severo et al. 2025, section 5.2.

    Example:
        >>> data = cycles(5, train_share=0.5)
        >>> data.length, data.size("train") + data.size("val") + data.size("test")
        (5, 24)
    """
    check_length("cycles", length)
    ensure(0 < train_share <= 1, f"cycles: train_share must be in (0, 1], not {train_share}")
    ensure(
        length <= MAX_CYCLE_LENGTH,
        f"cycles: length must be at most {MAX_CYCLE_LENGTH}: all are held in memory; not {length}",
    )
    # 1. split
    x = all_cycles(length)
    num_cycles_total = len(x)
    in_training = hash_to_uniform(lexicographic_rank(x), seed) < train_share
    ensure(
        bool(in_training.any()),
        f"cycles: train_share={train_share} of {num_cycles_total} cycles leaves none to train on",
    )
    train = x[in_training]
    candidates = x if train_share == 1 else x[~in_training]
    ensure(
        len(candidates) >= 2,
        f"cycles: train_share={train_share} of {num_cycles_total} cycles leaves "
        f"{len(candidates)} for validation and test, which need 2",
    )
    num_held_out = min(len(candidates), 2 * MAX_HELD_OUT_CYCLES)
    held_out = candidates[torch.linspace(0, len(candidates) - 1, num_held_out).long()]

    # 2. scores and the true distribution
    def sample_scores(samples: Samples) -> Mapping[str, Tensor]:
        """Return whether samples [b, n] are a single cycle, and in the training set."""
        is_cycle = num_cycles(samples["samples"]) == 1
        u = hash_to_uniform(lexicographic_rank(samples["samples"]), seed)
        return {"cyclic": is_cycle.double(), "in_train": (is_cycle & (u < train_share)).double()}

    def log_prob(context: Mapping[str, Tensor], permutations: Tensor) -> Tensor:
        """Return -log (n - 1)! for cycles, -inf for other permutations [m, n]."""
        log_p = torch.full((len(permutations),), -math.log(num_cycles_total), dtype=torch.float64)
        return log_p.masked_fill(num_cycles(permutations) != 1, -math.inf)

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Return training permutations."""
        return {"x": train[index]}

    return PermutationData(
        "cycles",
        make,
        {"x": held_out[::2]},
        sample_scores=sample_scores,
        log_prob=log_prob,
        members=x,
        train_size=len(train),
        validation={"x": held_out[1::2]},
    )


def all_cycles(n: int) -> Tensor:
    """Return the (n - 1)! permutations that are a single cycle, int64 [(n - 1)!, n].

    No Fisher-Yates digit of them but the last is 0.

    References: Sattolo 1986; Severo et al. 2025, section 5.2.
    """
    digits = torch.cartesian_prod(*(torch.arange(1, n - i) for i in range(n - 1)))
    digits = digits.reshape(-1, n - 1)
    last_digit = torch.zeros(len(digits), 1, dtype=torch.int64)
    return FisherYates.decode(torch.cat([digits, last_digit], 1))


def hash_to_uniform(keys: Tensor, seed: int) -> Tensor:
    """Return a uniform number for each key int64 [N], float64 [N], the same on every machine."""
    return SampleStreams(seed, keys).step(0).next_draw().uniform((len(keys), 1)).squeeze(1)
