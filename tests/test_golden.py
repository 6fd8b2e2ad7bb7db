"""What the default recipes compute is what is stored; `python -m tests.golden --renew` stores it anew."""

import json

import pytest

from tests import golden

STORED = json.loads(golden.FILE.read_text())


@pytest.mark.parametrize("family", golden.RECIPES)
def test_first_steps_are_the_stored_ones(family):
    assert golden.differences(STORED[family], golden.recorded(family)) == []


def test_a_change_is_told():
    stored = {"losses": [1.0, -2.0], "gradient norms": [3.0]}
    assert golden.differences(stored, {"losses": [1.000001, -2.0], "gradient norms": [3.0]}) == []
    assert golden.differences(stored, {"losses": [1.0, -2.0001], "gradient norms": [3.1]}) == [
        "losses: -2 of step 2 is now -2.0001", "gradient norms: 3 of step 1 is now 3.1",
    ]  # fmt: skip
