"""Scores of orders and rankings."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from blackout.permutations.metrics import ndcg, order_scores, score_ceilings


def test_ceilings_are_the_mean_over_all_tie_breaks():
    ties = torch.tensor([[0, 1, 1, 3, 3, 3]])
    tie_break_scores = [
        order_scores(torch.tensor([[0, *a, *b]]), torch.arange(6)[None])
        for a in itertools.permutations((1, 2))
        for b in itertools.permutations((3, 4, 5))
    ]
    for name in ("accuracy", "correct"):
        mean = sum(float(score[name]) for score in tie_break_scores) / len(tie_break_scores)
        assert float(score_ceilings(ties)[f"{name}_ceiling"]) == pytest.approx(mean)
    swapped = order_scores(torch.tensor([[0, 2, 1, 3, 4, 5]]), torch.arange(6)[None], ties)
    assert swapped["accuracy"] == 0 and swapped["accuracy_up_to_ties"] == 1


def test_swapping_neighbours_costs_little_in_ranks_and_much_in_lists():
    truth = torch.randperm(52, generator=torch.Generator().manual_seed(0))[None]
    solution = truth.clone()
    solution[:, [20, 21]] = truth[:, [21, 20]]
    scores = order_scores(solution, truth)
    assert float(scores["kendall_ranks"]) == pytest.approx(1 - 2 / 1326)
    assert float(scores["kendall_lists"]) < float(scores["kendall_ranks"])


def test_ndcg_matches_a_calculation_by_hand():
    ratings = torch.tensor([[1.0, 3.0, 2.0]])
    gains = [2**r - 1 for r in (3.0, 1.0, 2.0)]
    gain = gains[0] + gains[1] / math.log2(3)
    best_gain = gains[0] + gains[2] / math.log2(3)
    assert float(ndcg(torch.tensor([[1, 0, 2]]), ratings, 2)) == pytest.approx(gain / best_gain)
    assert float(ndcg(torch.tensor([[1, 2, 0]]), ratings, 3)) == pytest.approx(1)
    assert float(ndcg(torch.tensor([[1, 2, 0]]), torch.zeros(1, 3), 1)) == 1
