"""Rankings of films that users rated: some items of one user in a random order, and that user's order of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.splits import split_samples
from blackout.errors import UserError, refuse
from blackout.permutations.coded.data import PermutationData, check_length, repeated
from blackout.permutations.metrics import MOST_RELEVANT, ndcgs
from blackout.protocols import Samples
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import check_size, open_regular, reading, stored_bytes

_COLUMNS = ("userId", "movieId", "rating")
_LENGTH, _RATERS = 10, 1000
_FEWEST_USERS = 2  # one to train on and one to test on


class Ratings(NamedTuple):
    """Who rated what how: int64 [N], int64 [N], float32 [N]."""

    user: Tensor
    item: Tensor
    rating: Tensor


def read_ratings(file: Path) -> Ratings:
    """A .csv with a header that names userId, movieId and rating; other columns are not looked at.

    Raises:
        UserError: no such file, a missing column, or what is no number, NaN, or no rating from 0 to 30.
    """
    with reading(file, "not a table of ratings"):
        check_size(file, file.stat().st_size, stored_bytes(file))
        with open_regular(file) as raw:
            header = [name.strip().strip('"') for name in raw.readline().decode().split(",")]
        if missing := [name for name in _COLUMNS if name not in header]:
            raise UserError(f"{file}: the column {missing[0]} is missing; found {', '.join(header)[:100]}")
        columns = [header.index(name) for name in _COLUMNS]
        table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    refuse(not len(table), f"{file}: holds no ratings")
    finite = np.isfinite(table).all(axis=1)
    refuse(not finite.all(), f"{file}: row {int(finite.argmin()) + 1} holds NaN or infinity")
    who, rating = table[:, :2], table[:, 2]
    if rating.min() < 0 or rating.max() > MOST_RELEVANT:
        raise UserError(f"{file}: ratings must be from 0 to {MOST_RELEVANT}: {rating.min():g} to {rating.max():g}")
    refuse((who != np.floor(who)).any(), f"{file}: userId and movieId must be whole numbers")
    user, item = torch.from_numpy(who.T.astype(np.int64))
    return Ratings(user, item, torch.from_numpy(rating.astype(np.float32)))


def user_lists(sizes: Tensor, given: Ratings, users: Tensor, length: int, streams: StepStreams) -> dict[str, Tensor]:
    """`items` and `ratings` [b, n] of `length` rated items of each user, in a random order, and `x` [b, n].

    [Severo 2025, section 5.3].

    items[x] is the user's order: falling ratings, equal ones in a random order of their own, which the order of the
    items given tells nothing of: else whoever keeps to it knew the ties.

    Args:
        sizes: ratings of every user, int64 [all users].
        given: all ratings, user by user.
        users: int64 [b].
        length: n.
        streams: of the users.
    """
    u = streams.next_draw().uniform((len(users), int(sizes[users].max())))
    absent = torch.arange(u.shape[1]) >= sizes[users].unsqueeze(1)
    at = (sizes.cumsum(0) - sizes)[users].unsqueeze(1) + u.masked_fill_(absent, 2.0).argsort(dim=1)[:, :length]
    anew = streams.next_draw().uniform(tuple(at.shape)).argsort(dim=1)
    x = anew.gather(1, given.rating[at].gather(1, anew).argsort(dim=1, descending=True, stable=True))
    return {"x": x, "items": given.item[at], "ratings": given.rating[at]}


@component("dataset", ask="dataset=rankings dataset.path=<file>")
def rankings(
    path: str | Path,
    length: int | None = None,
    min_raters: int | None = None,
    movies: Literal["most_rated", "random"] = "most_rated",
    num_movies: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> PermutationData:
    """A ratings file with columns userId, movieId, rating, such as MovieLens' [Severo 2025, section 5.3].

    Args:
        path: of the .csv.
        length: rated items in a ranking; None for 10, or as many as half of the users rated.
        min_raters: an item needs so many; None for 1000, or a tenth of the users.
        movies: of those, the most rated ones or random ones are kept.
        num_movies: how many are kept.
        holdout: share of the users to test on.
        seed: of split and choice.
        validation: share or number of the users by which checkpoint and sharpness are chosen; 0 for none.

    Raises:
        UserError: a file that is missing, lacks a column or holds NaN, or in which a user rates an item twice; too few
            items or users are left. The message says how many remain.
        ValueError: values out of range.
    """
    check_length("rankings", 2 if length is None else length)
    if (min_raters is not None and min_raters < 1) or num_movies < (length or 2):
        raise ValueError(f"rankings: min_raters must be positive and num_movies at least the length, {length or 2}")
    file = Path(path).expanduser()
    ratings = read_ratings(file)
    if min_raters is None:
        min_raters = min(_RATERS, max(1, len(ratings.user.unique()) // 10))
    at_random = movies == "random"
    return from_ratings(file.stem, ratings, length, min_raters, at_random, num_movies, holdout, validation, seed)


def from_ratings(
    name: str, given: Ratings, length: int | None, min_raters: int, at_random: bool, num_movies: int, holdout: float,
    validation: float, seed: int,
) -> PermutationData:  # fmt: skip
    """As `rankings`, of ratings in memory.

    The choices of [Severo 2025, section 5.3], of ratings [N].
    """
    names, item, raters = given.item.unique(return_inverse=True, return_counts=True)
    enough = (raters >= min_raters).nonzero().squeeze(1)
    if len(enough) < (length or 2):
        told = f"{len(enough)} items have {min_raters} raters or more, fewer than length={length or 2}"
        raise UserError(f"{name}: {told}: dataset.min_raters={int(raters.sort().values[-2:][0])} leaves 2")
    order = raters[enough].argsort(descending=True, stable=True)
    if at_random:
        order = torch.randperm(len(enough), generator=torch.Generator().manual_seed(seed))
    kept = enough[order[:num_movies]].sort().values
    own = torch.isin(item, kept)
    users, rows = given.user[own].unique(return_inverse=True)
    order = rows.argsort(stable=True)
    sizes = torch.bincount(rows, minlength=len(users))
    given = Ratings(rows[order], torch.searchsorted(kept, item[own][order]), given.rating[own][order])
    pairs = (given.user * len(kept) + given.item).sort().values
    for pair in pairs[1:][pairs.diff() == 0].tolist()[:1]:
        user, twice = users[pair // len(kept)], names[kept[pair % len(kept)]]
        raise UserError(f"{name}: user {user} rates item {twice} more than once: leave one rating of each")
    usual = max(2, min(_LENGTH, int(sizes.sort().values[(len(sizes) - 1) // 2])))
    length = usual if length is None else length
    active = (sizes >= length).nonzero().squeeze(1)
    if len(active) < _FEWEST_USERS:
        told = f"{len(active)} users rated {length} or more of the {len(kept)} items; {_FEWEST_USERS} are needed"
        raise UserError(f"{name}: {told}: dataset.length={usual} leaves {int((sizes >= usual).sum())}")
    train, chosen, test = split_samples(len(active), validation, holdout, seed)
    mine = active[train]

    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return user_lists(sizes, given, mine[index], length, repeated(seed, index, augment))

    # numbers below 0 are those of no training sample
    held_out = [
        user_lists(
            sizes,
            given,
            active[rows],
            length,
            SampleStreams(seed, -1 - first - torch.arange(len(rows))).step(0),
        )
        for rows, first in ((test, 0), (chosen, len(test)))
        if len(rows)
    ]
    popularity = torch.bincount(given.item[torch.isin(given.user, mine)], minlength=len(kept))
    return PermutationData(
        name, make, held_out[0], num_tokens=len(kept), kind="rankings", judge=judge, train_size=len(train),
        kept={"item_names": names[kept], "popularity": popularity}, code="insertion",
        validation=held_out[1] if len(chosen) else None,
    )  # fmt: skip


def judge(samples: Samples) -> Mapping[str, Tensor]:
    """NDCG@k, [b], of rankings `samples` [b, n] of rated items [Jarvelin 2002]; nothing where there are no ratings."""
    return ndcgs(samples["samples"], samples["ratings"]) if "ratings" in samples else {}


@component("dataset")
def synthetic_rankings(
    length: int = 8,
    num_movies: int = 60,
    users: int = 4000,
    taste: int = 4,
    seed: int = 0,
    validation: float = 0.1,
) -> PermutationData:
    """Made up, and embedded: users with tastes of a few dimensions rate items that are also more or less popular.

    Rating = 2.75 + 1.1 (.7 popularity + taste . character + noise of deviation .5), in ten steps of a half from .5 to
    5. Ours (tests/permutations/coded/test_data.py): normal numbers [num_movies], [users, taste] and
    [num_movies, taste]. Each user rates 3 * length items, popular ones more often.

    Args:
        length: rated items in a ranking.
        num_movies: items in all.
        users: of whom a fifth is tested on.
        taste: dimensions.
        seed: of everything.
        validation: share or number of the users by which checkpoint and sharpness are chosen; 0 for none.

    Raises:
        ValueError: values out of range.
    """
    check_length("synthetic_rankings", length)
    if num_movies < length or users < _FEWEST_USERS or taste < 1:
        needed = f"at least {length} items, {_FEWEST_USERS} users and 1 dimension of taste are needed"
        raise ValueError(f"synthetic_rankings: {needed}")
    g = torch.Generator().manual_seed(seed)
    popularity = torch.randn(num_movies, generator=g)
    character = torch.randn(num_movies, taste, generator=g) / taste**0.5
    tastes = torch.randn(users, taste, generator=g)
    score = 0.7 * popularity + tastes @ character.T + 0.5 * torch.randn(users, num_movies, generator=g)
    stars = (2.75 + 1.1 * score).mul(2).round().clamp(1, 10).div(2)
    each = min(3 * length, num_movies)
    gumbel = -torch.rand(users, num_movies, generator=g).clamp(min=1e-12).log().neg().log()
    rated = (0.5 * popularity + gumbel).topk(each, dim=1).indices
    made = Ratings(torch.arange(users).repeat_interleave(each), rated.flatten(), stars.gather(1, rated).flatten())
    return from_ratings("synthetic_rankings", made, length, 1, False, num_movies, 0.2, validation, seed)
