"""The table of all methods on one jigsaw is made, a row for each way of solving."""

import json

import pytest
import torch

from benchmarks import permutation_sedd
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


@pytest.mark.deep
def test_one_permutation_is_memorised_by_shuffles_and_by_sedd(tmp_path, capsys):
    permutation_sedd.main(["--quick", "--length", "5", "--json", str(tmp_path / "one.json")])
    shuffles, sedd = json.loads((tmp_path / "one.json").read_text())["rows"]
    assert shuffles["permutations %"] == 100 and 0 <= sedd["accuracy %"] <= sedd["correct %"] <= 100


def test_samples_of_one_permutation_are_judged():
    found = torch.tensor([[2, 0, 1], [0, 2, 1], [2, 2, 1]])
    judged = permutation_sedd.judged(found, torch.tensor([2, 0, 1]))
    assert judged == pytest.approx({"accuracy %": 100 / 3, "correct %": 600 / 9, "permutations %": 200 / 3})
