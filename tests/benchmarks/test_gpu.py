"""The checks of a GPU: they say where there is none, and run in miniature on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks import gpu, gpu_numbers, gpu_parts
from benchmarks.gpu_report import Report, Setup

ROOT = Path(__file__).parents[2]


class Rows:
    """Keeps what a part reports."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def send(self, row: dict[str, Any], /) -> None:
        """Keep a row."""
        self.rows.append(row)


def test_without_a_gpu_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "needs a GPU" in captured.err


def test_every_part_has_a_time_limit():
    assert list(gpu.PARTS) == list(gpu_parts.RUNS)
    assert all(limit >= least for limit, least in gpu.PARTS.values())


@pytest.mark.parametrize("words", [["--only", "nothing"], ["--device", "cpu"]])
def test_wrong_words_are_refused(words):
    with pytest.raises(SystemExit) as end:
        gpu.main(words)
    assert end.value.code == 2


@pytest.mark.parametrize(
    "name, law",
    [
        ("small", stats.binom(7, 0.01)),
        ("large", stats.poisson(30)),
        ("rare", stats.binom(200, 1e-6)),
    ],
)
def test_exact_draws_pass_and_others_do_not(name, law):
    x = law.rvs(20_000, random_state=0)
    assert gpu_numbers.p_value(x, law) > 1e-3
    wrong = x + (np.arange(len(x)) % 10 == 0)
    assert gpu_numbers.p_value(wrong, law) < gpu_numbers.LEAST_P_VALUE


def test_a_failing_case_is_a_result_and_the_part_goes_on():
    kept = Rows()
    report = Report(kept, {"earlier"})
    with report.case("broken"):
        raise ValueError("no such thing")
    report.add("measured", None, seconds=1.23456789, shape=(1, 2))
    broken, measured = kept.rows
    assert broken["passed"] is False and "no such thing" in broken["error"]
    assert measured == {"case": "measured", "passed": None, "seconds": 1.235, "shape": [1, 2]}
    assert report.is_done("earlier") and not report.is_done("broken")
    lines = [*gpu.table([{"part": "draws", **row} for row in kept.rows])]
    assert "FAILS" in lines[0] and lines[-1] == "0 passed, 1 failed, 1 measured"


@pytest.mark.deep
@pytest.mark.parametrize("name", gpu_parts.RUNS)
def test_parts_run_in_miniature(name, tmp_path):
    kept = Rows()
    gpu_parts.RUNS[name](Setup("cpu", True, str(tmp_path)), Report(kept, set()))
    assert kept.rows and [row for row in kept.rows if row["passed"] is False] == []


@pytest.mark.deep
def test_the_command_reports_in_lines_of_json(tmp_path):
    words = ["--device", "cpu", "--quick", "--only", "scores_in_a_group,two_devices"]
    command = [sys.executable, "-m", "benchmarks.gpu", *words, "--json", str(tmp_path / "rows")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert {row["part"] for row in rows} == {"scores_in_a_group", "two_devices"}
    assert "1 passed, 0 failed" in done.stdout
