"""Shares of orders in which items precede others, and their figure."""

from __future__ import annotations

import torch

from blackout.permutations.plots import precedence_figure, precedence_shares


def test_pairwise_wins_are_shares_of_the_orders_with_both_items():
    orders = torch.tensor([[0, 1, 2], [2, 0, 1], [0, 3, 1]])
    expected = {(0, 1): 1.0, (0, 2): 0.5, (1, 2): 0.5, (0, 3): 1.0, (1, 3): 0.0}
    wins = precedence_shares(orders, 4)
    assert {
        pair: float(wins[pair]) for pair in expected
    } == expected and wins.isnan().sum() == 4 + 2
    assert torch.equal((wins + wins.T).nan_to_num(1), torch.ones(4, 4).double())
    panels = precedence_figure({"held out": wins, "samples": wins}, ["a", "b", "c", "d"]).axes
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert (labels[0], labels[-1], len(labels)) == ("a", "b", 4)
