"""The checks of a GPU refuse to start without one, and run with tiny sizes on a CPU."""

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

from benchmarks.gpu.__main__ import format_table, main
from benchmarks.gpu.first_run import (
    CIFAR10_FOLDER,
    NOTE,
    measure_first_run,
    sampling_arguments,
)
from benchmarks.gpu.numerics import MIN_P_VALUE, chi_square_p_value
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.report import Report, Setup

ROOT = Path(__file__).parents[2]


class ResultList:
    """Collects the results of a part."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def send(self, row: dict[str, Any], /) -> None:
        """Add a result."""
        self.rows.append(row)


def test_without_a_gpu_the_command_ends_with_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "no GPU" in captured.err


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--seconds", "many"]])
def test_wrong_options_are_refused(arguments):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_time_limits_allow_every_part_to_start():
    assert all(part.max_seconds >= part.min_seconds for part in PARTS.values())


@pytest.mark.parametrize(
    "distribution",
    [stats.binom(7, 0.01), stats.poisson(30), stats.binom(200, 1e-6)],
    ids=["few values", "many values", "one value"],
)
def test_exact_draws_pass_and_others_fail(distribution):
    x = distribution.rvs(20_000, random_state=0)
    assert chi_square_p_value(x, distribution) > 1e-3
    shifted = x + np.arange(len(x)) % 2
    assert chi_square_p_value(shifted, distribution) < MIN_P_VALUE


def test_a_failing_case_is_reported_and_the_part_continues():
    results = ResultList()
    report = Report(results, frozenset({"earlier"}))
    with report.case("broken"):
        raise ValueError("no such thing")
    report.add("measured", None, seconds=1.23456789, shape=(1, 2))
    broken, measured = results.rows
    assert broken["passed"] is False and "no such thing" in broken["error"]
    assert measured == {"case": "measured", "passed": None, "seconds": 1.235, "shape": [1, 2]}
    assert report.is_finished("earlier") and not report.is_finished("broken")
    lines = list(format_table([{"part": "draws", **row} for row in results.rows]))
    assert "FAILS" in lines[0] and lines[-1] == "0 passed, 1 failed, 1 measured"


def test_no_first_run_without_its_data_or_as_one_of_the_paper(tmp_path):
    results = ResultList()
    setup = Setup(torch.device("cpu"), quick=False, folder=tmp_path, data=tmp_path)
    measure_first_run(setup, Report(results))
    (row,) = results.rows
    assert row["passed"] is None and "skipped" in row["note"] and CIFAR10_FOLDER in row["note"]
    scored = sampling_arguments(setup, tmp_path, scored=True)
    assert {"num_samples=5000", "metrics.scores=[fid,is]", "evaluate=true"} <= set(scored)
    assert "not a figure of the paper" in NOTE


@pytest.mark.deep
@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs_on_a_cpu(name, tmp_path):
    results = ResultList()
    PARTS[name].run(Setup(torch.device("cpu"), quick=True, folder=tmp_path), Report(results))
    assert results.rows and [row for row in results.rows if row["passed"] is False] == []
    if name == "first_run":
        assert len(results.rows) == 2 and all(row["note"].startswith(NOTE) for row in results.rows)


@pytest.mark.deep
def test_the_command_writes_lines_of_json(tmp_path):
    file = tmp_path / "results.jsonl"
    options = ["--cpu-smoke", "--only", "process_group,two_devices"]
    command = [sys.executable, "-m", "benchmarks.gpu", *options, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["part"] for row in rows} == {"process_group", "two_devices"}
    assert "1 passed, 0 failed" in result.stdout
