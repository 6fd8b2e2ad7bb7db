"""Inverse problems: rows of measurements, impossible ones, and repaired elements."""

import pytest
import torch

from blackout.posterior import (
    Binomial,
    Identity,
    InverseProblem,
    Matrix,
    Poisson,
    Xor,
)
from blackout.posterior.problem import repeat_rows


@pytest.mark.parametrize(
    "operator, noise, y",
    [
        (Matrix(torch.tensor([[1.0, -1.0]])), Poisson(), [3.0]),
        (Xor(0.5), Binomial(0.9), [1.0]),
    ],
)
def test_measured_differences_of_elements_are_not_called_impossible(operator, noise, y):
    """Uniform data give a measurement of 0, and only other data the difference."""
    InverseProblem(operator, noise, torch.tensor(y)).check((2,), 1)
    with pytest.raises(ValueError, match="y = 4, element 0 of measurement 0, is impossible"):
        InverseProblem(operator, Binomial(0.5), torch.tensor([4.0])).check((2,), 1)


def test_impossible_elements_are_repaired():
    problem = InverseProblem(Identity(), Binomial(0.5), torch.tensor([3.0, 0.0]))
    assert problem.repair(torch.tensor([[1, 2], [4, 0]], dtype=torch.uint8)).tolist() == [
        [3, 2],
        [4, 0],
    ]


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_rows_repeat_to_any_number(n):
    rows = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert torch.equal(repeat_rows(rows, n), torch.stack([rows[r % 3] for r in range(n)]))
    assert torch.equal(repeat_rows(rows[:1], n), rows[:1])
