"""Data that match the labels of generated samples: fractions of classes, ranges of covariates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.data.labels import decode_labels, make_classes
from blackout.errors import UserError


def test_labels_count_the_last_covariate_fastest() -> None:
    labels = torch.arange(2 * 3 * 5)
    parts = decode_labels(labels, [3, 5])
    assert [len(part.unique()) for part in parts] == [2, 3, 5] and torch.equal(parts[2], labels % 5)
    assert torch.equal((parts[0] * 3 + parts[1]) * 5 + parts[2], labels) and torch.equal(
        parts[1], labels // 5 % 3
    )


LEVELS = {"dose": (0.0, 1.0, 2.0, 4.0)}


def make_labelled(
    number: int, weights: tuple[int, ...], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make counts that are the number of their sample, and labels of classes and random doses."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.tensor([kind for kind, times in enumerate(weights) for _ in range(times)])
    classes = classes[torch.randint(len(classes), (number,), generator=generator)]
    dose = torch.randint(4, (number,), generator=generator)
    return torch.arange(number)[:, None].expand(number, 2), classes * 4 + dose


TRAIN = make_labelled(800, (1, 6, 3), 0)
TEST = make_labelled(400, (1, 6, 3), 1)
DATA = CountData(
    "made",
    TRAIN[0],
    TEST[0],
    800,
    TRAIN[1],
    TEST[1],
    class_names=("a", "b", "c"),
    covariates=LEVELS,
)


def test_one_class_is_all_of_its_samples_and_no_other() -> None:
    part = DATA.select_condition(torch.arange(4))
    for split, (counts, labels) in (("train", TRAIN), ("test", TEST)):
        assert torch.equal(getattr(part, split).long(), counts[labels // 4 == 0])
    assert part.condition == {"classes": ["a"], "dose": [0.0, 4.0]} and not DATA.condition
    assert part.max_count == DATA.max_count and part.fingerprint("test") != DATA.fingerprint("test")


def test_classes_have_the_requested_fractions_to_within_half_a_sample() -> None:
    """Three quarters are of class a, although held-out data have a third as many of a as of c."""
    part = DATA.select_condition(torch.tensor([0, 3, 1, 8]))
    assert part.test_labels is not None
    kinds, times = (part.test_labels // 4).unique(return_counts=True)
    rare = int((TEST[1] // 4 == 0).sum())
    assert (
        kinds.tolist() == [0, 2] and int(times[0]) == rare and abs(int(times[1]) - rare / 3) <= 0.5
    )
    one_class = DATA.select_condition(TEST[1])
    assert torch.equal(one_class.test, DATA.test)


def test_covariates_lie_between_the_requested_levels() -> None:
    part = DATA.select_condition(torch.tensor([4 + 1, 4 + 2, 4 + 2]))
    assert torch.equal(part.test.long(), TEST[0][torch.isin(TEST[1], torch.tensor([5, 6]))])
    assert part.condition == {"classes": ["b"], "dose": [1.0, 2.0]}
    words = replace(DATA, covariates={"batch": ("p", "q", "r", "s")})
    part = words.select_condition(torch.tensor([4 + 1, 4 + 3]))
    assert torch.equal(part.test.long(), TEST[0][torch.isin(TEST[1], torch.tensor([5, 7]))])
    assert part.condition == {"classes": ["b"], "batch": ["q", "s"]}


def test_too_few_matching_samples_are_refused_in_one_line() -> None:
    small = CountData(
        "few", TRAIN[0][:60], TEST[0][:60], 800, TRAIN[1][:60] // 4, TEST[1][:60] // 4
    )
    with pytest.raises(
        UserError, match=r"few: only \d training samples have .*at least 10.*evaluate"
    ) as error:
        small.select_condition(torch.tensor([0]))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"no labels.*dataset\.labels"):
        CountData("none", TRAIN[0], TEST[0], 800).select_condition(torch.tensor([0]))


def test_facts_have_label_counts_where_there_are_covariates() -> None:
    counts = DATA.facts["label_counts"]
    assert len(counts) == 12 and sum(counts) == 800 and counts[5] == int((TRAIN[1] == 5).sum())
    assert (
        "label_counts"
        not in CountData("plain", TRAIN[0], TEST[0], 800, TRAIN[1] // 4, TEST[1] // 4).facts
    )


def test_a_number_on_the_edge_of_two_bins_is_in_the_upper_one() -> None:
    x = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
    codes, words, _ = make_classes(["x"], {"x": x, "total": x}, bins=2)
    assert codes.tolist() == [0, 0, 1, 1, 1] and words == ("x 0.5..1", "x 2..4")
