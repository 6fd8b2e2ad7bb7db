"""Permutations and votes in files of the user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations import all_permutations
from blackout.permutations.coded import permutations
from blackout.permutations.datasets import items


def test_permutations_of_the_user_are_read_or_refused(tmp_path):
    path = tmp_path / "mine.npy"
    np.save(path, all_permutations(4).numpy())
    source = permutations(path, holdout=0.25)
    sizes = {split: source.size(split) for split in ("train", "val", "test")}
    assert sizes == {"train": 16, "val": 2, "test": 6} and source.facts == {"num_items": 4}
    rows = torch.cat(
        [source.batch(split, torch.arange(size))["x"] for split, size in sizes.items()]
    )
    assert len(rows.unique(dim=0)) == 24
    without_validation = permutations(path, holdout=0.25, validation=0)
    assert without_validation.size("train") == 18 and without_validation.size("val") == 0
    for content, word in (
        (np.array([[0, 1], [1, 1]]), "row 1 is no permutation"),
        (np.zeros((3, 1), int), "at least 2"),
        (np.full((3, 4), 0.5), "integers"),
        (np.array([[0, 1]]), "at least 2 samples"),
    ):
        np.save(path, content)
        with pytest.raises(UserError, match=word):
            permutations(path)
    for name in ("not.npy", "not.csv", "not.soc"):
        with pytest.raises(UserError, match=f"{name}: no such file"):
            permutations(tmp_path / name)


@pytest.mark.parametrize("name", ["permutations", "items"])
def test_splits_of_a_file_are_kept(tmp_path, name):
    """With and without separate validation samples, of permutations and of lists."""
    x = all_permutations(4)
    parts = {"train": x[:12], "val": x[12:15], "test": x[15:]}
    path = tmp_path / "mine.npz"
    read_file = permutations if name == "permutations" else items

    def samples(source, split):
        size = source.size(split)
        batch = source.batch(split, torch.arange(200 if size is None else size))
        return batch["x"] if name == "permutations" else batch["items"].squeeze(-1).long()

    np.savez(path, **{split: part.numpy() for split, part in parts.items()})
    with pytest.raises(UserError, match=r"holdout=0\.4 is not used"):
        read_file(path, holdout=0.4)
    source = read_file(path)
    for split, part in parts.items():
        assert torch.equal(samples(source, split).unique(dim=0), part.unique(dim=0))
    np.savez(path, train=x[:12].numpy(), test=x[15:].numpy())
    source = read_file(path, validation=2)
    training, validation = (samples(source, split).unique(dim=0) for split in ("train", "val"))
    assert (
        len(training) == 10
        and len(validation) == 2
        and torch.equal(torch.cat([training, validation]).unique(dim=0), x[:12])
    )
    assert read_file(path, validation=0).size("val") == 0
    for invalid in ({"train": x}, {"train": x, "test": x[:, :3]}, {"train": x, "test": x[:0]}):
        np.savez(path, **{split: part.numpy() for split, part in invalid.items()})
        with pytest.raises(UserError, match=r"must come together|of one shape"):
            read_file(path)


def test_votes_in_preflib_format_are_read(tmp_path):
    """Ties and missing items are in random order, new in every epoch; votes are counted."""
    path = tmp_path / "votes.toi"
    names = "".join(
        f"# ALTERNATIVE NAME {i}: {name}\n"
        for i, name in enumerate(("Ann", "Bob", "Cem", "Dora"), 1)
    )
    path.write_text(
        f"# FILE NAME: votes.toi\n# NUMBER ALTERNATIVES: 4\n{names}300: 1,{{2,3}},4\n200: 4,2\n"
    )
    source = permutations(path)
    assert source.labels == ("Ann", "Bob", "Cem", "Dora") and source.size("train") == 400
    index = torch.arange(400)
    x = torch.cat([source.batch("train", index, torch.full((400,), u))["x"] for u in (0.1, 0.6)])
    counts = {
        tuple(row): number
        for row, number in zip(
            *(t.tolist() for t in x.unique(dim=0, return_counts=True)), strict=True
        )
    }
    assert set(counts) == {(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2), (3, 1, 2, 0)}
    assert all(number > 130 for number in counts.values()) and (x[:400] != x[400:]).any()
    path = tmp_path / "votes.soc"
    names = "".join(f"# ALTERNATIVE NAME {i}: {i}\n" for i in (1, 2, 3))
    # alternatives are identified by their numbers
    path.write_text("".join(reversed(names.splitlines(True))) + "10: 2,1,3\n2: 3,2,1\n")
    complete_orders = permutations(path, holdout=0.5, validation=0)
    assert complete_orders.labels == ("1", "2", "3")
    assert torch.equal(
        complete_orders.batch("train", torch.arange(6))["x"].unique(dim=0),
        torch.tensor([[1, 0, 2], [2, 1, 0]]),
    )
    for text, word in (
        (f"{names}9: 1,2,4\n", "line 4: a vote must be"),
        (names, "3 alternatives and 0 votes"),
        (f"{names}9: 1,1\n", "at most once"),
        ("3\n1,a\n9,1,2\n", "0 alternatives"),
        ("", "not a file of PrefLib"),
        (f"{names}999999999: 1,2\n", "votes times alternatives"),
        (names.replace("3:", "4:") + "9: 1,2\n", "numbered 1, 2, "),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            permutations(path)


def test_a_table_of_names_is_read_as_votes(tmp_path):
    """Every line is an order, best first; items are sorted alphabetically."""
    path = tmp_path / "votes.csv"
    path.write_text("pear, fig,kiwi\n" * 9 + "fig,kiwi,pear\n" * 9 + "\n")
    source = permutations(path)
    assert source.labels == ("fig", "kiwi", "pear")
    orders = source.batch("train", torch.arange(source.size("train")))["x"].unique(dim=0)
    assert torch.equal(orders, torch.tensor([[0, 1, 2], [2, 0, 1]]))
    for text, word in (
        ("a,b,c\na,b\n", "line 2: must list each name of the first line"),
        ("a,a\n", "line 1"),
        ("a,b\n1,2\n", "line 2"),
        ("", "two names"),
        ("a\n", "two names"),
        ("a,b,\nb,a,\n", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            permutations(path)


def test_stated_sizes_of_votes_are_compared_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.soc"
    names = "".join(f"# ALTERNATIVE NAME {k}: {k}\n" for k in (1, 2, 3))
    votes = "4: 1,2,3\n6: 3,2,1\n"
    path.write_text(
        f"# NUMBER ALTERNATIVES: 3\n# NUMBER VOTERS: 10\n# NUMBER UNIQUE ORDERS: 2\n{names}{votes}"
    )
    assert permutations(path).train_size == 8
    for line, message in (
        ("VOTERS: 11", "states 11 voters, but has 10"),
        ("UNIQUE ORDERS: 3", "but has 2"),
    ):
        path.write_text(f"# NUMBER {line}\n{names}{votes}")
        with pytest.raises(UserError, match=message):
            permutations(path)
