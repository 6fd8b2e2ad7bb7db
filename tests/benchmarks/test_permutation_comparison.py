"""The comparison of all methods on one jigsaw has a row for each way of solving."""

import json

import pytest
import torch

from benchmarks import permutation_sedd
from benchmarks.permutation_comparison import SCALES, methods
from benchmarks.permutations import main


@pytest.mark.parametrize(
    "only, rows",
    [
        ("inline, masked", 3),
        ("lehmer, autoregressive", 1),
        ("GeneralizedPlackettLuce shuffle", 2),
        ("Gumbel", 1),
    ],
)
def test_methods_are_trained_and_evaluated(only, rows, tmp_path, capsys):
    main(
        [
            "fair",
            "--quick",
            "--seconds",
            "0.1",
            "--only",
            only,
            "--json",
            str(tmp_path / "fair.json"),
        ]
    )
    result_rows = json.loads((tmp_path / "fair.json").read_text())["rows"]
    assert len(result_rows) == rows and all(
        only in row["method"] and row["training steps"] > 0 for row in result_rows
    )
    assert all(0 <= row["solved %"] <= row["correct %"] <= 100 for row in result_rows)
    capsys.readouterr()


def test_all_methods_are_listed():
    names = [name for name, _ in methods(SCALES["quick"].puzzles(), SCALES["quick"], "cpu")]
    assert len(names) == len(set(names)) == 14


@pytest.mark.deep
def test_one_permutation_is_memorised_by_shuffles_and_by_sedd(tmp_path, capsys):
    permutation_sedd.main(["--quick", "--length", "5", "--json", str(tmp_path / "one.json")])
    shuffles, sedd = json.loads((tmp_path / "one.json").read_text())["rows"]
    assert shuffles["permutations %"] == 100 and 0 <= sedd["accuracy %"] <= sedd["correct %"] <= 100


def test_samples_of_one_permutation_are_scored():
    samples = torch.tensor([[2, 0, 1], [0, 2, 1], [2, 2, 1]])
    fractions = permutation_sedd.score_samples(samples, torch.tensor([2, 0, 1]))
    assert fractions == pytest.approx(
        {"accuracy %": 100 / 3, "correct %": 600 / 9, "permutations %": 200 / 3}
    )
