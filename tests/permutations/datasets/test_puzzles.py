"""Puzzles are functions of (seed, split, index) with correct solutions and known ties."""

from __future__ import annotations

import itertools

import pytest
import torch

from blackout.config.descriptions import fill_statistics
from blackout.config.instantiate import instantiate
from blackout.data import digits
from blackout.permutations import inverse
from blackout.permutations.datasets import jigsaw_digits, one_permutation, sort_digits, tsp
from blackout.permutations.datasets.puzzles import first_equal_index
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import puzzle_scores, rearrange
from blackout.permutations.plots import plot_lists, plot_samples

SOURCES = {
    "jigsaw": lambda: jigsaw_digits(num_test=20),
    "sort": lambda: sort_digits(length=6, num_test=20),
    "token": lambda: one_permutation(7, num_test=20),
    "tour": lambda: tsp(6, num_test=20),
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_a_puzzle_depends_on_split_and_index_only(source):
    for split in ("train", "val", "test"):
        batch = source.batch(split, torch.arange(20))
        rows = source.batch(split, torch.tensor([13, 4]))
        assert all(torch.equal(values[[13, 4]], rows[name]) for name, values in batch.items())
        assert is_permutation(batch["puzzle_order"]).all()
    assert source.size("train") is None and source.size("val") == source.size("test") == 20
    hashes = [source.fingerprint(split) for split in ("train", "val", "test")]
    assert len(set(hashes)) == 3 and source.fingerprint("train") == hashes[0]


def test_splits_share_no_puzzles(source):
    """No order of items is in two splits, and no list either.

    The list of `one_permutation`, which is to be memorised, is the same everywhere.
    """
    batches = [source.batch(split, torch.arange(20)) for split in ("train", "val", "test")]
    for first, second in itertools.combinations(batches, 2):
        assert not torch.equal(first["puzzle_order"], second["puzzle_order"])
        if source.kind != "tokens":
            equal_lists = (
                first["items"].flatten(1).unsqueeze(1) == second["items"].flatten(1)
            ).all(-1)
            assert not equal_lists.any()


def test_puzzles_use_the_images_of_their_split():
    images = digits(0.2)
    jigsaws = jigsaw_digits(pieces=2, num_test=10)
    for split in ("val", "test"):
        cut = jigsaws.batch(split, torch.arange(10))["items"]
        full = images.batch(split, torch.arange(10))["x0"].float() / 16
        assert torch.equal(cut[:, 0, 0], full[:, 0, :4, :4])


def test_true_solutions_score_perfectly_and_encoders_accept_the_items(source):
    batch = source.batch("test", torch.arange(20))
    shuffled_items = rearrange(batch["items"], batch["puzzle_order"])
    truth = inverse(batch["puzzle_order"])
    scores = puzzle_scores(source.kind, shuffled_items, truth, truth, batch["ties"])
    assert all(
        (scores[name] == 1).all()
        for name in ("accuracy", "correct", "kendall_ranks", "kendall_lists")
    )
    features = instantiate(
        fill_statistics(source.facts["encoder"], source.facts, "encoder"), "encoder"
    )(batch["items"])
    assert features.shape == (20, source.num_items, 96)
    figure_data = {"samples": truth, "items": shuffled_items, "truth": truth, "ties": batch["ties"]}
    assert plot_samples(figure_data, {"kind": source.kind}) is not None
    assert plot_lists(source.kind, shuffled_items) is not None


@pytest.mark.parametrize("shape", [(3, 1), (4, 30), (2, 12, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_the_first_equal_entry_is_the_first_of_all_comparisons(shape, dtype):
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = [
        [next(k for k in range(len(row)) if torch.equal(row[k], entry)) for entry in row]
        for row in x
    ]
    assert first_equal_index(x).tolist() == expected


@pytest.mark.parametrize(
    "make_dataset",
    [
        lambda: jigsaw_digits(pieces=1),
        lambda: jigsaw_digits(pieces=9),
        lambda: sort_digits(length=1),
        lambda: sort_digits(digits=0),
        lambda: tsp(2),
        lambda: tsp(500),
        lambda: one_permutation(1),
        lambda: jigsaw_digits(num_test=0),
    ],
)
def test_invalid_datasets_are_refused(make_dataset):
    with pytest.raises(ValueError):
        make_dataset()
