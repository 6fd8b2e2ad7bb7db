"""How well puzzles were solved (Kendall's tau, places that are right), and how well they can be; how far laws are
apart, and how many samples differ.

A solution and the truth are permutations int64 [b, n] that take the items given to an order: given[truth] is the right
one. Kendall's tau is reported of *ranks* (which item pairs lie in the right order) and of *index lists* as in [Zhang
2025] and its published code, where one swap of neighbours can cost much more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blackout.errors import ensure, refuse
from blackout.permutations.group import compose, inverse, kendall_distance

_SHORTEST = 1e-6
"""Relative difference below which two tours are equally long: their lengths are float32 sums."""
CUTOFFS = (1, 5, 10)
"""The k of the reported NDCG@k; those above the length are left out."""
SHARPNESS = (1.0, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.0)
"""By what logits and scores may be multiplied, so that validation orders are likeliest; by 0 all are alike."""
MOST_RELEVANT = 30
"""Above it gains of 2^relevance - 1 say nothing but which item is the best."""


def read_sharpness(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the fitted sharpness among the tensors of a model, float64; 1 if there is none.

    Raises:
        UserError: it is not a number from 0 to 1.
    """
    sharpness = tensors.get("sharpness", torch.ones((), dtype=torch.float64))
    valid = sharpness.ndim == 0 and sharpness.is_floating_point() and 0 <= float(sharpness) <= 1
    refuse(not valid, "the sharpness of the model is not a number from 0 to 1")
    return sharpness.double()


def checked_sharpness(sharpness: float | None) -> float | None:
    """Return what logits are multiplied by after training as a float; None to choose it on validation data.

    Raises:
        ValueError: it is no number from 0 to 1.
    """
    if sharpness is None:
        return None
    whole = isinstance(sharpness, int | float) and not isinstance(sharpness, bool)
    ensure(whole and 0 <= sharpness <= 1, f"sharpness must be a number from 0 to 1, or null, not {sharpness!r}")
    return float(sharpness)


def order_scores(solution: Tensor, truth: Tensor, ties: Tensor | None = None) -> dict[str, Tensor]:
    """Scores of permutations [b, n], each float32 [b]; Kendall's tau by inversions [Kendall 1938].

    Args:
        ties: for every place of the right order the first place whose item is alike; None where all differ.

    Returns:
        accuracy (all places right), correct (share of places right), kendall_ranks and kendall_lists (1 to -1), and
        with ties accuracy_up_to_ties, and the ceilings, in expectation, of who guesses among items that are alike.
    """
    right = solution == truth
    pairs = max(1, math.comb(solution.shape[-1], 2))
    scores = {
        "accuracy": right.all(-1),
        "correct": right.float().mean(-1),
        "kendall_ranks": 1 - 2 * kendall_distance(inverse(solution), inverse(truth)) / pairs,
        "kendall_lists": 1 - 2 * kendall_distance(solution, truth) / pairs,
    }
    if ties is not None:
        scores["accuracy_up_to_ties"] = ~wrong_places(solution, truth, ties).any(-1)
        scores |= ceilings(ties)
    return {name: values.float() for name, values in scores.items()}


def wrong_places(solution: Tensor, truth: Tensor, ties: Tensor | None = None) -> Tensor:
    """Places with the wrong item, or one that is not like the right one, bool [b, n]; arguments as `order_scores`.

    Ours (tests/permutations/test_datasets.py).
    """
    if ties is None:
        return solution != truth
    belongs = compose(inverse(truth), solution)  # the right place of the item that the solution puts there
    return ties.gather(-1, belongs) != ties


def ceilings(ties: Tensor) -> dict[str, Tensor]:
    """What guessing among items that are alike leaves of accuracy and correct, float32 [b] each.

    A group of k alike is in the right order once in k! times, and one of its places in k is right on average. Ours;
    checked by enumeration in `tests.permutations.test_datasets`.
    """
    alike = (ties.unsqueeze(-1) == ties.unsqueeze(-2)).float()
    # an item that is the j-th of its group contributes 1 / j, the group 1 / k!
    number = alike.tril().sum(-1)
    return {"accuracy_ceiling": (1 / number).prod(-1), "correct_ceiling": (1 / alike.sum(-1)).mean(-1)}


def tour_length(points: Tensor) -> Tensor:
    """Of closed tours [..., n, 2] in the order they are visited, float32 [...]: the sum of distances.

    Ours (tests/permutations/test_datasets.py).
    """
    return (points - points.roll(-1, -2)).norm(dim=-1).sum(-1)


def arranged(items: Tensor, order: Tensor) -> Tensor:
    """Items [b, n, ...] in the order int64 [b, n]: place i gets item order[i]; of the items' shape."""
    return items.gather(1, order.view(*order.shape, *[1] * (items.ndim - 2)).expand(-1, -1, *items.shape[2:]))


def puzzle_scores(
    kind: str, items: Tensor, solution: Tensor, truth: Tensor, ties: Tensor | None = None
) -> dict[str, Tensor]:
    """All scores that puzzles of a kind have, float32 [b] each.

    [Zhang 2025, section 4], and what is ours (tests/permutations/test_datasets.py).

    Beside `order_scores`: of pixels the mean square and absolute error, of tours [b, n, 2] their length, the relative
    gap to the right one, and whether they are optimal.

    Args:
        kind: of `Puzzles`.
        items: [b, n, ...] as they were given.
        solution: int64 [b, n].
        truth: int64 [b, n].
        ties: see `order_scores`.
    """
    scores = order_scores(solution, truth, ties)
    solved, right = arranged(items, solution), arranged(items, truth)
    if kind in ("pieces", "strips"):
        difference = (solved.float() - right.float()).flatten(1)
        scores |= {"mse": difference.square().mean(1), "mae": difference.abs().mean(1)}
    if kind == "points":
        length, shortest = tour_length(solved), tour_length(right)
        gap = length / shortest - 1
        scores |= {"tour_length": length, "tour_length_exact": shortest}
        scores |= {"gap": gap.clamp(min=0.0), "optimal": (gap < _SHORTEST).float()}
    return scores


def mean_scores(sums: Mapping[str, float], number: int, std: float) -> dict[str, float]:
    """Means over so many puzzles, floats by name [Zhang 2025, section 4.2]; of pixels rmse and mae as they are and
    (`_normalised`) in units of the deviation.

    Args:
        sums: of `puzzle_scores` over the puzzles.
        number: of puzzles.
        std: the deviation of all numbers in the items.
    """
    values = {name: total / number for name, total in sums.items()}
    if "mse" in values:
        values |= {"rmse": math.sqrt(values.pop("mse")), "mae": values.pop("mae")}
        values |= {f"{name}_normalised": values[name] / std for name in ("rmse", "mae")}
    return values


def ndcg(x: Tensor, relevance: Tensor, k: int) -> Tensor:
    """Normalised discounted cumulative gain at k, float64 [b]: gain 2^relevance - 1, discount log2(place + 1).

    1 where every order is as good. [Jarvelin 2002], with the gain of [Burges 2005].

    Args:
        x: int64 [b, n], the items in order.
        relevance: of the items as they are given, [b, n], at most 30.
        k: 1..n.
    """
    gain = torch.exp2(relevance.double()) - 1
    discount = 1 / torch.log2(torch.arange(2, k + 2, dtype=torch.float64, device=x.device))
    found = (gain.gather(1, x)[:, :k] * discount).sum(1)
    best = (gain.sort(dim=1, descending=True).values[:, :k] * discount).sum(1)
    return torch.where(best > 0, found / best, torch.ones_like(best))


def ndcgs(x: Tensor, relevance: Tensor) -> dict[str, Tensor]:
    """`ndcg` at 1, 5 and 10, those up to n, by name, [b] each, of orders int64 [b, n] and relevance [b, n]."""
    return {f"ndcg_at_{k}": ndcg(x, relevance, k) for k in CUTOFFS if k <= x.shape[1]}


def expected_unique(size: int, draws: int) -> float:
    """Expected share of different values among uniform draws from `size` of them.

    size (1 - (1 - 1 / size)^draws) / draws, a float. Ours; checked in `tests.permutations.coded.test_data`.
    """
    return size * -math.expm1(draws * math.log1p(-1 / size)) / draws if size > 1 else 1 / draws


def kl_bits(log_p: Tensor, log_q: Tensor) -> float:
    """KL(p || q) = sum p log2(p / q) in bits, a float, of log-probabilities [m] in nats: its definition.

    Ours (tests/permutations/coded/test_model.py).
    """
    terms = log_p.exp() * (log_p - log_q)
    return float(terms.masked_fill(log_p == -math.inf, 0.0).sum()) / math.log(2)
