"""The table at the end of a sweep: what varies, means over seeds, and the best."""

import csv
import json

import pytest

from blackout.cli import compare
from blackout.cli.sweep_table import group_jobs, is_sweep, summarise
from tests.cli.conftest import TINY


def make_sweep(folder, better):
    """A sweep of two learning rates with two seeds each, and a job that failed."""
    rows = []
    for number, (lr, seed, score) in enumerate(
        [(0.1, 1, 3.0), (0.1, 2, 5.0), (0.2, 1, 1.0), (0.2, 2, 1.5)]
    ):
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        run.joinpath("config.yaml").write_text(f"seed: {seed}\noptimizer: {{lr: {lr}}}\n")
        descriptions = {"test/score": {"unit": "bits", "better": better}}
        content = {"values": {"test/score": score}, "metric_descriptions": descriptions}
        run.joinpath("metrics.json").write_text(json.dumps(content))
        words = f"optimizer.lr={lr} seed={seed} 'dataset.path=a b.npy'"
        rows.append(
            {
                "job": number + 1,
                "state": "done",
                "overrides": words,
                "run": run,
                "test/score": score,
            }
        )
    rows.append(
        {"job": 5, "state": "failed", "error": "a bug", "overrides": "optimizer.lr=0.3 seed=1"}
    )
    sweep = folder / "sweep"
    sweep.mkdir()
    with (sweep / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["job", "state", "error", "overrides", "run", "seconds", "test/score"]
        )
        writer.writeheader()
        writer.writerows(rows)
    return sweep


@pytest.mark.parametrize("better, best", [("lower", "0.2"), ("higher", "0.1"), ("", None)])
def test_means_over_seeds_with_the_best_marked(tmp_path, better, best):
    sweep = make_sweep(tmp_path, better)
    lines = summarise(sweep)
    rows = list(csv.DictReader((sweep / "summary.csv").open()))
    assert [row["optimizer.lr"] for row in rows] == ["0.1", "0.2"] and "seed" not in rows[0]
    assert [float(row["test/score"]) for row in rows] == [4.0, 1.25]
    assert [float(row["test/score_standard_error"]) for row in rows] == [1.0, 0.25]
    assert [row["optimizer.lr"] for row in rows if row["best_of"] == "test/score"] == (
        [best] if best else []
    )
    assert [row["jobs"] for row in rows] == ["2", "2"]
    assert lines[1].split()[-3:] == ["*4.0" if best == "0.1" else "4.0", "±", "1"]
    assert lines[2].split()[-3:] == ["*1.25" if best == "0.2" else "1.25", "±", "0.25"]
    assert lines[-1] == f"table: {sweep / 'summary.csv'}"


def test_a_setting_with_spaces_is_one_setting(tmp_path):
    jobs = [
        {"overrides": "'dataset.path=a b.npy' seed=1", "bits": "2.0"},
        {"overrides": "dataset.path=c.npy seed=1", "bits": ""},
    ]
    groups = group_jobs(jobs)
    assert [group.settings for group in groups] == [
        {"dataset.path": "a b.npy"},
        {"dataset.path": "c.npy"},
    ]
    assert [group.means for group in groups] == [{"bits": 2.0}, {}]


def test_compare_takes_the_folder_of_a_sweep_and_shows_scores_first(tmp_path, capsys):
    sweep = make_sweep(tmp_path, "lower")
    assert is_sweep(sweep) and not is_sweep(tmp_path / "run0")
    compare.main([str(sweep), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert page.index("<th>test/score</th>") < page.index("<th data-setting>optimizer.lr</th>")
    assert page.count('class="number best"') == 2 and "run3" in page


def test_a_sweep_without_runs_here_is_refused(tmp_path, capsys):
    sweep = make_sweep(tmp_path, "lower")
    for number in range(4):
        (tmp_path / f"run{number}" / "config.yaml").unlink()
    with pytest.raises(SystemExit, match="2"):
        compare.main([str(sweep)])
    assert "none of the runs of this sweep is there" in capsys.readouterr().err


@pytest.mark.deep
def test_a_sweep_ends_with_its_table(run, tmp_path):
    words = [
        *TINY,
        "trainer.max_steps=2",
        "seed=1,2",
        "optimizer.lr=0.001,0.01",
        f"runs_dir={tmp_path}",
    ]
    outcome = run("train", "-m", *words)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("job ")] == [
        f"job {k} ({k + 1} of 4)" for k in range(4)
    ]
    (table,) = tmp_path.glob("sweeps/*/summary.csv")
    assert lines[-1] == f"table: {table}"
    assert "test/bits_per_dim: bits per dimension, lower is better" in lines
    rows = list(csv.DictReader(table.open()))
    assert {row["optimizer.lr"] for row in rows} == {"0.001", "0.01"}
    assert [row["jobs"] for row in rows] == ["2", "2"] and float(
        rows[0]["test/bits_per_dim_standard_error"]
    ) > 0
