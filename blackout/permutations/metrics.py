"""Scores of solved puzzles and rankings, their upper limits, and distances between distributions.

A solution and the truth are permutations int64 [b, n] that take the items of a puzzle to an order:
items[truth] is the right one. Kendall's tau is reported of *ranks* (pairs of items in the right
order), and of *index lists* as in Zhang et al. 2025, where a single swap of neighbours can cost
much more.

References: Zhang et al. 2025 (SymmetricDiffusers), section 4; Kendall 1938; Järvelin and
Kekäläinen 2002.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blackout.errors import ensure, refuse
from blackout.permutations.group import compose, inverse, kendall_distance
from blackout.protocols import MetricDescription

TOUR_TOLERANCE = 1e-6  # relative; the lengths of equal tours are float32 sums of different order
NDCG_CUTOFFS = (1, 5, 10)  # the k of the reported NDCG@k; those above the length are left out

# what the metrics of models of permutations mean, by name
NLL_METRICS = {
    "nll_bits": MetricDescription("bits per permutation", "lower"),
    "nll_bits_test": MetricDescription("bits per permutation", "lower"),
}
PUZZLE_METRICS = {
    "accuracy": MetricDescription("share of puzzles", "higher"),
    "accuracy_up_to_ties": MetricDescription("share of puzzles", "higher"),
    "greedy_accuracy": MetricDescription("share of puzzles", "higher"),
    "optimal": MetricDescription("share of tours", "higher"),
    "certified": MetricDescription("share of puzzles", "higher"),
    "correct": MetricDescription("share of places", "higher"),
    "greedy_correct": MetricDescription("share of places", "higher"),
    "kendall_ranks": MetricDescription(better="higher"),
    "kendall_lists": MetricDescription(better="higher"),
    **{f"ndcg_at_{k}": MetricDescription(better="higher") for k in NDCG_CUTOFFS},
    "rmse": MetricDescription("values of items", "lower"),
    "mae": MetricDescription("values of items", "lower"),
    "rmse_normalised": MetricDescription("standard deviations", "lower"),
    "mae_normalised": MetricDescription("standard deviations", "lower"),
    "gap": MetricDescription("relative", "lower"),
    "tour_length": MetricDescription(better="lower"),
}
# scores of samples that a data set of permutations may define
SAMPLE_METRICS = {
    "valid": MetricDescription("share of samples", "higher"),
    "unique": MetricDescription("share of samples", "reference"),
    "cyclic": MetricDescription("share of samples", "higher"),
    "in_train": MetricDescription("share of samples", "reference"),
    "distance": MetricDescription("adjacent swaps", "reference"),
    **PUZZLE_METRICS,
}
# factors of logits and scores from which the best on validation data is chosen; 0 is uniform
SHARPNESS_CHOICES = (1.0, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.0)
MAX_RELEVANCE = 30  # above it, gains of 2^relevance - 1 tell only which item is best


def read_sharpness(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the fitted sharpness among the tensors of a model, float64; 1 if there is none.

    Raises:
        UserError: it is not a number from 0 to 1.
    """
    sharpness = tensors.get("sharpness", torch.ones((), dtype=torch.float64))
    valid = sharpness.ndim == 0 and sharpness.is_floating_point() and 0 <= float(sharpness) <= 1
    refuse(not valid, "the tensor `sharpness` of the model must be one number from 0 to 1")
    return sharpness.double()


def validate_sharpness(sharpness: float | None) -> float | None:
    """Return the setting `sharpness` as a float; None chooses it on validation data.

    Raises:
        ValueError: it is not a number from 0 to 1.
    """
    if sharpness is None:
        return None
    is_number = isinstance(sharpness, int | float) and not isinstance(sharpness, bool)
    ensure(
        is_number and 0 <= sharpness <= 1,
        f"sharpness must be a number from 0 to 1, or null, not {sharpness!r}",
    )
    return float(sharpness)


def order_scores(solution: Tensor, truth: Tensor, ties: Tensor | None = None) -> dict[str, Tensor]:
    """Return the scores of solutions, float32 [b] each.

    Args:
        solution: int64 [b, n].
        truth: int64 [b, n].
        ties: for every position of the right order, the first position with an equal item, int64
            [b, n]; None if all items differ.

    Returns:
        `accuracy` (all positions right), `correct` (share of right positions), `kendall_ranks` and
        `kendall_lists` (-1 to 1); with ties also `accuracy_up_to_ties` and the scores of
        `score_ceilings`.

    References: Zhang et al. 2025, section 4; Kendall 1938.
    """
    is_right = solution == truth
    num_pairs = max(1, math.comb(solution.shape[-1], 2))
    scores = {
        "accuracy": is_right.all(-1),
        "correct": is_right.float().mean(-1),
        "kendall_ranks": 1 - 2 * kendall_distance(inverse(solution), inverse(truth)) / num_pairs,
        "kendall_lists": 1 - 2 * kendall_distance(solution, truth) / num_pairs,
    }
    if ties is not None:
        scores["accuracy_up_to_ties"] = ~wrong_positions(solution, truth, ties).any(-1)
        scores |= score_ceilings(ties)
    return {name: values.float() for name, values in scores.items()}


def wrong_positions(solution: Tensor, truth: Tensor, ties: Tensor | None = None) -> Tensor:
    """Return the positions whose item neither is the right one nor equals it, bool [b, n].

    Arguments are as for `order_scores`.

    References: this project; checked in tests/permutations/datasets/test_puzzles.py.
    """
    if ties is None:
        return solution != truth
    right_position = compose(inverse(truth), solution)  # of the item that the solution puts here
    return ties.gather(-1, right_position) != ties


def score_ceilings(ties: Tensor) -> dict[str, Tensor]:
    """Return the expected scores of a perfect solver that orders equal items at random.

    These are its expected accuracy and share of right positions. A group of k equal items is in the
    right order with probability 1 / k!, and one of its positions is right with probability 1 / k.

    Args:
        ties: int64 [b, n], see `order_scores`.

    Returns:
        `accuracy_ceiling` and `correct_ceiling`, float32 [b] each.

    References: this project; checked by enumeration in tests/permutations/test_metrics.py.
    """
    is_equal = (ties.unsqueeze(-1) == ties.unsqueeze(-2)).float()
    # the j-th item of its group contributes 1 / j, so that the group contributes 1 / k!
    index_in_group = is_equal.tril().sum(-1)
    return {
        "accuracy_ceiling": (1 / index_in_group).prod(-1),
        "correct_ceiling": (1 / is_equal.sum(-1)).mean(-1),
    }


def tour_length(points: Tensor) -> Tensor:
    """Return the length of closed tours, float32 [...].

    Points [..., n, 2] are in the order of the visit.
    """
    return (points - points.roll(-1, -2)).norm(dim=-1).sum(-1)


def rearrange(items: Tensor, order: Tensor) -> Tensor:
    """Return items[order] of every list: position i gets item order[i].

    Args:
        items: [b, n, ...].
        order: int64 [b, n].
    """
    index = order.view(*order.shape, *[1] * (items.ndim - 2))
    return items.gather(1, index.expand(-1, -1, *items.shape[2:]))


def puzzle_scores(
    kind: str, items: Tensor, solution: Tensor, truth: Tensor, ties: Tensor | None = None
) -> dict[str, Tensor]:
    """Return all scores of puzzles of a kind, float32 [b] each.

    They are those of `order_scores`; for pixels also the mean squared and absolute errors, and for
    tours their length, the relative gap to the right tour, and whether they are optimal.

    Args:
        kind: of `Puzzles`.
        items: as in the puzzle, [b, n, ...].
        solution: int64 [b, n].
        truth: int64 [b, n].
        ties: see `order_scores`.

    References: Zhang et al. 2025, section 4; checked in
    tests/permutations/datasets/test_puzzles.py.
    """
    scores = order_scores(solution, truth, ties)
    solved_items = rearrange(items, solution)
    true_items = rearrange(items, truth)
    if kind in ("pieces", "strips"):
        error = (solved_items.float() - true_items.float()).flatten(1)
        scores["mse"] = error.square().mean(1)
        scores["mae"] = error.abs().mean(1)
    if kind == "points":
        length = tour_length(solved_items)
        exact_length = tour_length(true_items)
        gap = length / exact_length - 1
        scores["tour_length"] = length
        scores["tour_length_exact"] = exact_length
        scores["gap"] = gap.clamp(min=0.0)
        scores["optimal"] = (gap < TOUR_TOLERANCE).float()
    return scores


def mean_scores(sums: Mapping[str, float], num_puzzles: int, std: float) -> dict[str, float]:
    """Return mean scores of puzzles from their sums.

    Errors of pixels are `rmse` and `mae`, also in units of the standard deviation.

    Args:
        sums: of `puzzle_scores` over the puzzles.
        num_puzzles: how many.
        std: standard deviation of all values of the items.

    References: Zhang et al. 2025, section 4.2.
    """
    means = {name: total / num_puzzles for name, total in sums.items()}
    if "mse" in means:
        means["rmse"] = math.sqrt(means.pop("mse"))
        means["mae"] = means.pop("mae")
        for name in ("rmse", "mae"):
            means[f"{name}_normalised"] = means[name] / std
    return means


def ndcg(ranking: Tensor, relevance: Tensor, k: int) -> Tensor:
    """Return the normalised discounted cumulative gain at k, float64 [b].

    The gain is 2^relevance - 1, and the discount log2(position + 1). It is 1 if all rankings are
    equally good.

    Args:
        ranking: items, the best first, int64 [b, n].
        relevance: of item 0, 1, ..., [b, n], at most 30.
        k: 1..n.

    References: Jarvelin and Kekalainen 2002, with the gain of Burges et al. 2005.
    """
    gain = torch.exp2(relevance.double()) - 1
    positions = torch.arange(2, k + 2, dtype=torch.float64, device=ranking.device)
    discount = 1 / torch.log2(positions)
    dcg = (gain.gather(1, ranking)[:, :k] * discount).sum(1)
    ideal_dcg = (gain.sort(dim=1, descending=True).values[:, :k] * discount).sum(1)
    return torch.where(ideal_dcg > 0, dcg / ideal_dcg, torch.ones_like(ideal_dcg))


def ndcg_scores(ranking: Tensor, relevance: Tensor) -> dict[str, Tensor]:
    """Return the NDCG at 1, 5 and 10, as far as these are at most n, by name, float64 [b] each.

    Arguments are as for `ndcg`.
    """
    return {
        f"ndcg_at_{k}": ndcg(ranking, relevance, k) for k in NDCG_CUTOFFS if k <= ranking.shape[1]
    }


def expected_unique_share(size: int, draws: int) -> float:
    """Return the expected share of distinct values among uniform draws from `size` values.

    It is size (1 - (1 - 1 / size)^draws) / draws.

    References: this project; checked in tests/permutations/coded/test_report.py.
    """
    if size == 1:
        return 1 / draws
    return size * -math.expm1(draws * math.log1p(-1 / size)) / draws


def kl_bits(log_p: Tensor, log_q: Tensor) -> float:
    """Return the divergence KL(p || q) in bits of log-probabilities [m] in nats."""
    terms = log_p.exp() * (log_p - log_q)
    return float(terms.masked_fill(log_p == -math.inf, 0.0).sum()) / math.log(2)
