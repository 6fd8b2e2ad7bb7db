"""Simple methods on tasks of permutations, and the table of networks next to them."""

import json

import numpy as np
import pytest
import torch

from benchmarks.permutation_winners import (
    best_two_opt,
    main,
    mallows_votes,
    nearest_neighbour_tours,
    sort_by_classifier,
    spatial_votes,
    summary,
)
from blackout.permutations.datasets import tsp
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import tour_length


def test_tours_go_to_the_nearest_city_left():
    points = torch.tensor([[[0.0, 0.0], [0.5, 0.0], [0.1, 0.0], [0.9, 0.0]]])
    assert nearest_neighbour_tours(points, 0).tolist() == [[0, 2, 1, 3]]
    assert nearest_neighbour_tours(points, 3).tolist() == [[3, 1, 2, 0]]


def test_two_opt_from_every_city_finds_nearly_all_shortest_tours():
    points = tsp(cities=8, num_test=100).batch("test", torch.arange(100))["items"]
    gaps = best_two_opt(points) / tour_length(points) - 1
    assert float(gaps.min()) > -1e-5 and float((gaps < 1e-5).double().mean()) > 0.95


def test_a_classifier_of_digits_sorts_most_lists():
    assert sort_by_classifier(200) > 0.8


@pytest.mark.parametrize("make", [mallows_votes, spatial_votes])
def test_votes_are_orders_that_agree_more_than_uniform_ones(make):
    votes = torch.from_numpy(make(400, np.random.default_rng(0)))
    assert bool(is_permutation(votes).all())
    ranks = votes.argsort(1).double()
    # uniform ranks of eight items have a variance of 5.25 and uncorrelated differences
    assert float(ranks.T.cov().abs().fill_diagonal_(0).max()) > 1.5


@pytest.mark.deep
@pytest.mark.parametrize("task", ["tours", "sorting", "jigsaws", "rankings"])
def test_every_task_has_rows(task, tmp_path, capsys):
    main(["--quick", "--only", task, "--json", str(tmp_path / "quick.json")])
    rows = json.loads((tmp_path / "quick.json").read_text())["rows"]
    expected = {"tours": 2, "sorting": 2, "jigsaws": 3, "rankings": 10}[task]
    assert len(rows) == expected
    assert all(row["value"] > -1e-4 for row in rows)  # float32 rounds tours of 2-opt
    capsys.readouterr()


def test_a_summary_has_the_best_network_and_the_best_simple_method():
    names = ("task", "method", "score", "value", "error", "seconds")
    rows = [
        dict(zip(names, ("sorting", method, "lists sorted, %", value, 1.0, 2.0), strict=True))
        for method, value in (("network", 60.0), ("Gumbel-Sinkhorn", 70.0), ("classifier", 50.0))
    ]
    text = summary({"rows": rows})
    assert "| Gumbel-Sinkhorn | 70.00 ± 1 | 2 | classifier | 50.00 ± 1 | 2 | 100 |" in text
