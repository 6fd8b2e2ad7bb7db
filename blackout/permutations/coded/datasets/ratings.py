"""Rankings of rated items: some items of a user in random order, and the user's order of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.splits import split_samples
from blackout.errors import UserError, refuse
from blackout.permutations.coded.data import PermutationData, check_length, repetition_streams
from blackout.permutations.metrics import MAX_RELEVANCE, ndcg_scores
from blackout.protocols import Samples
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import check_size, open_regular, reading, stored_bytes

COLUMNS = ("userId", "movieId", "rating")
DEFAULT_LENGTH = 10  # Severo et al. 2025, section 5.3, smallest setting
DEFAULT_MIN_RATERS = 1000  # Severo et al. 2025, section 5.3; at most a tenth of the users
MIN_USERS = 2  # one for training and one for testing

# the synthetic ratings: mean + scale (popularity weight * popularity + taste . character + noise)
MEAN_STARS = 2.75
STARS_PER_SCORE = 1.1
POPULARITY_WEIGHT = 0.7
NOISE_DEVIATION = 0.5
POPULARITY_BIAS = 0.5  # log-weight of popularity in which items a user rates


class Ratings(NamedTuple):
    """Ratings of items by users: int64 [N], int64 [N], float32 [N]."""

    user: Tensor
    item: Tensor
    rating: Tensor


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """How rankings are made from ratings; see `rankings` for the fields."""

    length: int | None
    min_raters: int
    random_movies: bool
    num_movies: int
    holdout: float
    validation: float
    seed: int


def read_ratings(file: Path) -> Ratings:
    """Read a .csv file of ratings, with a header that has userId, movieId and rating.

    Other columns are ignored.

    Raises:
        UserError: a missing file or column, or a value that is no finite number or no rating from 0
            to 30.
    """
    with reading(file, "not a table of ratings"):
        check_size(file, file.stat().st_size, stored_bytes(file))
        with open_regular(file) as raw:
            header = [name.strip().strip('"') for name in raw.readline().decode().split(",")]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise UserError(
                f"{file}: the header must have {', '.join(COLUMNS)}: {missing[0]} is not in "
                f"{', '.join(header)[:100]}"
            )
        columns = [header.index(name) for name in COLUMNS]
        table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    refuse(not len(table), f"{file}: holds no ratings: a line for each must follow the header")
    finite = np.isfinite(table).all(axis=1)
    refuse(
        not finite.all(),
        f"{file}: row {int(finite.argmin()) + 1} holds NaN or infinity: leave it out",
    )
    ids = table[:, :2]
    rating = table[:, 2]
    if rating.min() < 0 or rating.max() > MAX_RELEVANCE:
        raise UserError(
            f"{file}: ratings must be from 0 to {MAX_RELEVANCE}, "
            f"not from {rating.min():g} to {rating.max():g}"
        )
    refuse((ids != np.floor(ids)).any(), f"{file}: userId and movieId must be whole numbers")
    user, item = torch.from_numpy(ids.T.astype(np.int64))
    return Ratings(user, item, torch.from_numpy(rating.astype(np.float32)))


def draw_rankings(
    num_ratings: Tensor, ratings: Ratings, users: Tensor, length: int, streams: StepStreams
) -> dict[str, Tensor]:
    """Draw rated items of users in random order, and their order of them.

    The order is by falling rating, with ties in a random order that is independent of the order of
    the items. Otherwise a model that keeps the order of the items would know the order of ties.

    Args:
        num_ratings: of every user, int64 [all users].
        ratings: sorted by user.
        users: int64 [b].
        length: n.
        streams: random numbers of the users.

    Returns:
        `items` and `ratings` [b, n], and the permutation `x` [b, n]: items[x] is the user's order.

    References: Severo et al. 2025, section 5.3.
    """
    # 1. choose items, by sorting one uniform for each rating of the user
    u = streams.next_draw().uniform((len(users), int(num_ratings[users].max())))
    is_padding = torch.arange(u.shape[1]) >= num_ratings[users].unsqueeze(1)
    choice = u.masked_fill_(is_padding, 2.0).argsort(dim=1)[:, :length]
    first_row = (num_ratings.cumsum(0) - num_ratings)[users].unsqueeze(1)
    row = first_row + choice
    # 2. a stable sort by rating, after a random shuffle that breaks ties
    shuffle = streams.next_draw().uniform(tuple(row.shape)).argsort(dim=1)
    shuffled_ratings = ratings.rating[row].gather(1, shuffle)
    x = shuffle.gather(1, shuffled_ratings.argsort(dim=1, descending=True, stable=True))
    return {"x": x, "items": ratings.item[row], "ratings": ratings.rating[row]}


@component("dataset", command_line="dataset=rankings dataset.path=<file>")
def rankings(  # noqa: PLR0913 - built from YAML
    path: str | Path,
    length: int | None = None,
    min_raters: int | None = None,
    movies: Literal["most_rated", "random"] = "most_rated",
    num_movies: int = 1000,
    holdout: float = 0.2,
    seed: int = 0,
    validation: float = 0.1,
) -> PermutationData:
    """Read rankings from ratings with columns userId, movieId and rating, such as MovieLens'.

    Args:
        path: the .csv file.
        length: rated items of a ranking; None for 10, or the number that half of the users rated if
            it is smaller.
        min_raters: smallest number of raters of an item; None for 1000, or a tenth of the users if
            it is smaller.
        movies: whether the most rated of these items or random ones are used.
        num_movies: how many are used.
        holdout: share of the users for testing.
        seed: of the split and the random choice of items.
        validation: share or number of the users by which checkpoint and sharpness are chosen; 0 for
            none.

    Raises:
        UserError: a file that is missing or damaged, a user who rates an item twice, or too few
            items or users; the message says how many remain.
        ValueError: values out of range.

    References: Severo et al. 2025, section 5.3.
    """
    check_length("rankings", 2 if length is None else length)
    if (min_raters is not None and min_raters < 1) or num_movies < (length or 2):
        raise ValueError(
            f"rankings: min_raters must be positive and num_movies at least {length or 2}, the "
            f"length, not {min_raters} and {num_movies}"
        )
    file = Path(path).expanduser()
    ratings = read_ratings(file)
    if min_raters is None:
        num_users = len(ratings.user.unique())
        min_raters = min(DEFAULT_MIN_RATERS, max(1, num_users // 10))
    options = RankingOptions(
        length=length,
        min_raters=min_raters,
        random_movies=movies == "random",
        num_movies=num_movies,
        holdout=holdout,
        validation=validation,
        seed=seed,
    )
    return data_from_ratings(file.stem, ratings, options)


def data_from_ratings(name: str, ratings: Ratings, options: RankingOptions) -> PermutationData:
    """Return the rankings of ratings.

    Args:
        name: of the data set.
        ratings: in any order.
        options: see `rankings`.

    Raises:
        UserError: see `rankings`.

    References: Severo et al. 2025, section 5.3.
    """
    # 1. Items, and the ratings of them.
    item_names, item, chosen_items = _choose_items(name, ratings, options)
    num_items = len(chosen_items)
    is_chosen = torch.isin(item, chosen_items)
    user_names, user = ratings.user[is_chosen].unique(return_inverse=True)
    order = user.argsort(stable=True)
    num_ratings = torch.bincount(user, minlength=len(user_names))
    ratings = Ratings(
        user[order],
        torch.searchsorted(chosen_items, item[is_chosen][order]),
        ratings.rating[is_chosen][order],
    )
    _check_distinct(name, ratings, user_names, item_names[chosen_items])

    # 2. Users with enough ratings, some of whom are held out.
    users, length = _choose_users(name, num_ratings, num_items, options.length)
    split = split_samples(len(users), options.validation, options.holdout, options.seed)
    train_users = users[split.train]

    # 3. Rankings.
    def make(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """Draw training rankings."""
        streams = repetition_streams(options.seed, index, augment)
        return draw_rankings(num_ratings, ratings, train_users[index], length, streams)

    def held_out(rows: Tensor, first_key: int) -> dict[str, Tensor]:
        """Draw test or validation rankings, whose keys are negative."""
        keys = -1 - first_key - torch.arange(len(rows))
        streams = SampleStreams(options.seed, keys).step(0)
        return draw_rankings(num_ratings, ratings, users[rows], length, streams)

    is_train = torch.isin(ratings.user, train_users)
    popularity = torch.bincount(ratings.item[is_train], minlength=num_items)
    return PermutationData(
        name,
        make,
        held_out(split.test, 0),
        num_tokens=num_items,
        kind="rankings",
        sample_scores=ranking_scores,
        train_size=len(split.train),
        buffers={"item_names": item_names[chosen_items], "popularity": popularity},
        code="insertion",
        validation=held_out(split.val, len(split.test)) if len(split.val) else None,
    )


def _check_distinct(name: str, ratings: Ratings, user_names: Tensor, item_names: Tensor) -> None:
    """Refuse several ratings of one item by one user.

    Raises:
        UserError: names user and item.
    """
    num_items = len(item_names)
    pairs = (ratings.user * num_items + ratings.item).sort().values
    repeated_pairs = pairs[1:][pairs.diff() == 0].tolist()
    if repeated_pairs:
        pair = repeated_pairs[0]
        user_name = user_names[pair // num_items]
        item_name = item_names[pair % num_items]
        raise UserError(
            f"{name}: user {user_name} rates item {item_name} more than once: "
            "leave one rating of each"
        )


def _choose_users(
    name: str, num_ratings: Tensor, num_items: int, length: int | None
) -> tuple[Tensor, int]:
    """Return the users who rated `length` items or more, int64 [U], and the length.

    Args:
        name: of the data set.
        num_ratings: of every user, int64 [users].
        num_items: number of chosen items, for the message.
        length: of a ranking; None for the default of `rankings`.

    Raises:
        UserError: too few users.
    """
    median = int(num_ratings.sort().values[(len(num_ratings) - 1) // 2])
    default_length = max(2, min(DEFAULT_LENGTH, median))
    length = default_length if length is None else length
    users = (num_ratings >= length).nonzero().squeeze(1)
    if len(users) < MIN_USERS:
        num_remaining = int((num_ratings >= default_length).sum())
        raise UserError(
            f"{name}: {len(users)} users rated {length} or more of the {num_items} items; "
            f"{MIN_USERS} are needed: dataset.length={default_length} leaves {num_remaining}"
        )
    return users, length


def _choose_items(
    name: str, ratings: Ratings, options: RankingOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the items of rankings.

    Returns:
        Names of all items, the index of the item of every rating, and the sorted indices of the
        chosen items.

    Raises:
        UserError: too few items with enough raters.
    """
    item_names, item, num_raters = ratings.item.unique(return_inverse=True, return_counts=True)
    candidates = (num_raters >= options.min_raters).nonzero().squeeze(1)
    min_items = options.length or 2
    if len(candidates) < min_items:
        second_most = int(num_raters.sort().values[-2:][0])
        raise UserError(
            f"{name}: {len(candidates)} items have {options.min_raters} raters or more, fewer than "
            f"length={min_items}: dataset.min_raters={second_most} leaves 2"
        )
    if options.random_movies:
        generator = torch.Generator().manual_seed(options.seed)
        order = torch.randperm(len(candidates), generator=generator)
    else:
        order = num_raters[candidates].argsort(descending=True, stable=True)
    return item_names, item, candidates[order[: options.num_movies]].sort().values


def ranking_scores(samples: Samples) -> Mapping[str, Tensor]:
    """Return NDCG@k, float64 [b], of rankings `samples` [b, n]; empty without `ratings`.

    References: Järvelin and Kekäläinen 2002, see `ndcg`.
    """
    return ndcg_scores(samples["samples"], samples["ratings"]) if "ratings" in samples else {}


@component("dataset")
def synthetic_rankings(
    length: int = 8,
    num_movies: int = 60,
    users: int = 4000,
    taste: int = 4,
    seed: int = 0,
    validation: float = 0.1,
) -> PermutationData:
    """Make synthetic rankings: users with few dimensions of taste rate items of any popularity.

    A rating is 2.75 + 1.1 (0.7 popularity + taste . character + noise of standard deviation 0.5),
    rounded to half stars from 0.5 to 5. Each user rates 3 * length items, popular ones more often.

    Args:
        length: rated items of a ranking.
        num_movies: items in total.
        users: in total, a fifth of them for testing.
        taste: dimensions of the tastes.
        seed: of everything.
        validation: share or number of the users by which checkpoint and sharpness are chosen; 0 for
            none.

    Raises:
        ValueError: values out of range.

    References: this project; checked in tests/permutations/coded/datasets/test_ratings.py.
    """
    check_length("synthetic_rankings", length)
    if num_movies < length or users < MIN_USERS or taste < 1:
        raise ValueError(
            f"synthetic_rankings: num_movies={num_movies} must be at least length={length}, "
            f"users={users} at least {MIN_USERS}, and taste={taste} at least 1"
        )
    # 1. ratings of all items by all users
    generator = torch.Generator().manual_seed(seed)
    popularity = torch.randn(num_movies, generator=generator)
    character = torch.randn(num_movies, taste, generator=generator) / taste**0.5
    tastes = torch.randn(users, taste, generator=generator)
    noise = NOISE_DEVIATION * torch.randn(users, num_movies, generator=generator)
    score = POPULARITY_WEIGHT * popularity + tastes @ character.T + noise
    half_stars = (MEAN_STARS + STARS_PER_SCORE * score).mul(2).round().clamp(1, 10)
    stars = half_stars.div(2)
    # 2. the items that each user rates, without replacement
    num_rated = min(3 * length, num_movies)
    u = torch.rand(users, num_movies, generator=generator).clamp(min=1e-12)
    gumbel = -u.log().neg().log()
    items = (POPULARITY_BIAS * popularity + gumbel).topk(num_rated, dim=1).indices
    user = torch.arange(users).repeat_interleave(num_rated)
    ratings = Ratings(user, items.flatten(), stars.gather(1, items).flatten())
    options = RankingOptions(
        length=length,
        min_raters=1,
        random_movies=False,
        num_movies=num_movies,
        holdout=0.2,
        validation=validation,
        seed=seed,
    )
    return data_from_ratings("synthetic_rankings", ratings, options)
