"""Default recipes compute the stored values; `python -m tests.golden --renew` updates them."""

import pytest

from tests import golden, processes

# the quick tests compare the first steps of one family, the deep ones all stored steps
CASES = [
    ("blackout", 8),
    *(pytest.param(name, 50, marks=pytest.mark.deep) for name in golden.RECIPES),
]


@pytest.mark.parametrize("family, steps", CASES)
def test_first_steps_equal_the_stored_values(family, steps):
    process = processes.run("tests/golden", family, "--first", steps)
    assert process.returncode == 0, process.stdout + process.stderr


def test_changed_values_are_described():
    stored = {"losses": [1.0, -2.0], "gradient norms": [3.0]}
    assert golden.differences(stored, {"losses": [1.000001, -2.0], "gradient norms": [3.0]}) == []
    assert golden.differences(stored, {"losses": [1.0, -2.0001], "gradient norms": [3.1]}) == [
        "losses: -2 of step 2 is now -2.0001",
        "gradient norms: 3 of step 1 is now 3.1",
    ]
