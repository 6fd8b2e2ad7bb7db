"""The table of all methods on one jigsaw is made, a row for each way of solving."""

import json

import pytest

from benchmarks.permutation_fair import SCALES, methods
from benchmarks.permutations import main


@pytest.mark.parametrize("only, rows", [
    ("inline, masked", 3), ("lehmer, autoregressive", 1), ("GeneralizedPlackettLuce shuffle", 2), ("Gumbel", 1),
])  # fmt: skip
def test_methods_are_trained_and_tested(only, rows, tmp_path, capsys):
    main(["fair", "--quick", "--seconds", "0.1", "--only", only, "--json", str(tmp_path / "fair.json")])
    found = json.loads((tmp_path / "fair.json").read_text())["rows"]
    assert len(found) == rows and all(only in row["method"] and row["training steps"] > 0 for row in found)
    assert all(0 <= row["solved %"] <= row["correct %"] <= 100 for row in found)
    capsys.readouterr()


def test_all_methods_are_there():
    names = [name for name, _ in methods(SCALES["quick"].puzzles(), SCALES["quick"], "cpu")]
    assert len(names) == len(set(names)) == 14
