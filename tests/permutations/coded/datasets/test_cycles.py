"""Permutations that are a single cycle."""

from __future__ import annotations

import math

import pytest
import torch

from blackout.permutations import all_permutations
from blackout.permutations.coded import cycles
from blackout.permutations.group import lexicographic_rank, num_cycles


def test_cycles_are_split_by_a_hash():
    source = cycles(7, train_share=0.3)
    assert len(source.members) == 720 and bool((num_cycles(source.members) == 1).all())
    train, validation, test = (
        set(lexicographic_rank(source.batch(split, torch.arange(source.size(split)))["x"]).tolist())
        for split in ("train", "val", "test")
    )
    assert not train & test and not train & validation and not validation & test
    assert len(train | validation | test) == 720 and 0.25 < len(train) / 720 < 0.35
    assert abs(len(validation) - len(test)) <= 1
    scores = source.sample_scores({"samples": source.members})
    assert float(scores["in_train"].sum()) == len(train) and float(scores["cyclic"].mean()) == 1
    scores_of_all = source.sample_scores({"samples": all_permutations(7)})
    assert float(scores_of_all["cyclic"].sum()) == 720 and float(
        scores_of_all["in_train"].sum()
    ) == len(train)
    log_p = source.log_prob({}, all_permutations(7))
    assert float(log_p.exp().sum()) == pytest.approx(1)
    assert cycles(7, train_share=0.3).fingerprint("train") == source.fingerprint("train")
    assert cycles(7, train_share=0.3, seed=1).fingerprint("train") != source.fingerprint("train")


@pytest.mark.parametrize(
    "arguments, word",
    [
        ({"length": 1}, "length must be at least 2"),
        ({"length": 11}, "at most 10"),
        ({"train_share": 0.0}, "in \\(0, 1\\]"),
        ({"train_share": 1.5}, "in \\(0, 1\\]"),
        ({"train_share": math.nan}, "in \\(0, 1\\]"),
        ({"length": 4, "train_share": 1e-9}, "leaves none"),
        ({"length": 3, "train_share": 0.9}, "for validation and test"),
    ],
)
def test_invalid_cycles_are_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        cycles(**arguments)
