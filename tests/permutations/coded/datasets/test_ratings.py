"""Rankings of rated items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations.coded import rankings
from blackout.permutations.group import is_permutation, lexicographic_rank


def write_ratings(path, rows, header="userId,movieId,rating,timestamp"):
    """Write a table of ratings."""
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_rankings_sort_the_items_a_user_rated(tmp_path):
    rng = np.random.default_rng(0)
    stars = {
        (u, m): rng.integers(1, 11) / 2 for u in range(40) for m in rng.choice(12, 8, replace=False)
    }
    path = write_ratings(
        tmp_path / "ratings.csv", [(u + 5, 100 + 7 * m, r, 0) for (u, m), r in stars.items()]
    )
    source = rankings(path, length=5, min_raters=3, num_movies=10)
    assert (
        source.facts["num_tokens"] == 10
        and sum(source.size(split) for split in ("train", "val", "test")) <= 40
    )
    names = source.buffers["item_names"]
    assert bool((names[1:] > names[:-1]).all()) and set(names.tolist()) <= {
        100 + 7 * m for m in range(12)
    }
    raters = [sum(m == (name - 100) // 7 for _, m in stars) for name in names.tolist()]
    # the ten items with the most ratings
    assert min(raters) >= sorted([sum(m == i for _, m in stars) for i in range(12)])[2]
    index = torch.arange(source.size("train"))
    batch = source.batch("train", index, torch.rand(len(index)))
    ranked = batch["ratings"].gather(1, batch["x"])
    assert bool((ranked[:, 1:] <= ranked[:, :-1]).all()) and bool(is_permutation(batch["x"]).all())
    by_user = [
        {names[i].item(): r.item() for i, r in zip(*row, strict=True)}
        for row in zip(batch["items"], batch["ratings"], strict=True)
    ]
    people = [{100 + 7 * m: r for (v, m), r in stars.items() if v == u} for u in range(40)]
    assert all(
        any(rankings_of_user.items() <= person.items() for person in people)
        and len(rankings_of_user) == 5
        for rankings_of_user in by_user
    )
    next_epoch = source.batch("train", index, torch.rand(len(index)))
    assert not torch.equal(next_epoch["items"], batch["items"])  # other items of the same users
    single = source.batch("train", index[3:4], torch.tensor([0.5]))
    assert torch.equal(
        single["items"], source.batch("train", index[:6], torch.full((6,), 0.5))["items"][3:4]
    )


def test_equal_ratings_are_ordered_at_random(tmp_path):
    """If all ratings are equal, all orders are equally frequent, so no model beats uniform
    orders."""
    path = write_ratings(
        tmp_path / "ratings.csv", [(u, m, 3.0, 0) for u in range(60) for m in range(3)]
    )
    source = rankings(path, length=3)
    index = torch.arange(source.size("train")).repeat(100)
    x = source.batch(
        "train", index, torch.rand(len(index), generator=torch.Generator().manual_seed(0))
    )["x"]
    counts = torch.bincount(lexicographic_rank(x), minlength=6)
    expected = len(x) / 6
    # chi-square with 5 degrees of freedom, p = 0.001
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5


@pytest.mark.parametrize(
    "rows, header, arguments, word",
    [
        ([(1, 2, 3.0)], "user,movieId,rating", {}, "userId is not in"),
        ([(1, 2, "nan")], "userId,movieId,rating", {}, "NaN"),
        ([(1, 2, "good")], "userId,movieId,rating", {}, "good"),
        ([(1, 2, 99.0)], "userId,movieId,rating", {}, "from 0 to 30"),
        ([(1, m, 3.0) for m in range(9)], "userId,movieId,rating", {}, "1 users rated 5 or more"),
        (
            [(1, m, 3.0) for m in range(9)],
            "userId,movieId,rating",
            {"min_raters": 2},
            "0 items have 2 raters",
        ),
        (
            [(u, m % 7, 3.0) for m in range(9) for u in (4, 5)],
            "userId,movieId,rating",
            {},
            "user 4 rates item 0 more than",
        ),
    ],
)
def test_invalid_ratings_are_refused(tmp_path, rows, header, arguments, word):
    path = write_ratings(tmp_path / "ratings.csv", rows, header)
    with pytest.raises(UserError, match=word):
        rankings(path, **{"length": 5, "min_raters": 1, **arguments})


def test_a_possible_length_is_chosen_for_ratings_with_gaps(tmp_path):
    rows = [
        (user, item, 1.0 + (user * item) % 3)
        for user in range(40)
        for item in range(8)
        if (user + item) % 4
    ]
    path = write_ratings(tmp_path / "gaps.csv", rows)
    source = rankings(path)  # every user rated six of the eight items, with ties
    assert source.length == 6 and source.num_tokens == 8
    with pytest.raises(UserError, match=r"0 users rated 8 or more.*dataset.length=6 leaves 40"):
        rankings(path, length=8)
    with pytest.raises(UserError, match=r"dataset.min_raters=30 leaves 2"):
        rankings(path, min_raters=1000)
