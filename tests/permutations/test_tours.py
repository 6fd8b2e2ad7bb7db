"""Exact solvers of tours, and baselines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from blackout.permutations.datasets import tsp
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import rearrange, tour_length
from blackout.permutations.tours import (
    counter_clockwise,
    held_karp,
    heuristic_gaps,
    integer_programme,
    polar_tours,
    shortest_tours,
    two_opt,
)


def test_exact_solvers_find_the_shortest_tours():
    points = torch.rand(12, 7, 2, generator=torch.Generator().manual_seed(1))
    distances = torch.cdist(points.double(), points.double()).numpy()
    all_tours = torch.tensor([(0, *rest) for rest in itertools.permutations(range(1, 7))])
    best = torch.stack([tour_length(points[i][all_tours]).min() for i in range(12)])
    programme = torch.from_numpy(np.stack([integer_programme(matrix) for matrix in distances]))
    for tours in (shortest_tours(points), torch.from_numpy(held_karp(distances)), programme):
        torch.testing.assert_close(tour_length(rearrange(points, tours)), best)
    optimal = shortest_tours(points)
    assert torch.equal(
        counter_clockwise(points, torch.cat([optimal[:, :1], optimal[:, 1:].flip(1)], 1)), optimal
    )


def test_tour_baselines_have_their_known_gaps():
    points = tsp(10, num_test=300).batch("test", torch.arange(300))["items"]
    polar = polar_tours(points)
    improved = two_opt(points, polar)
    assert is_permutation(improved).all() and (improved[:, 0] == 0).all()
    # the result does not depend on the unit, and moves never cycle
    assert torch.equal(two_opt(1024 * points, polar), improved)
    assert (
        tour_length(rearrange(points, improved)) <= tour_length(rearrange(points, polar)) + 1e-6
    ).all()
    gaps = {name: float(values.mean()) for name, values in heuristic_gaps(points).items()}
    assert gaps["gap_of_polar_tour"] == pytest.approx(0.0355, abs=0.006)
    assert 0 <= gaps["gap_of_polar_tour_with_two_opt"] < 0.006
    square = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    assert float(
        tour_length(rearrange(square, two_opt(square, torch.arange(4)[None])))
    ) == pytest.approx(4)
