"""The results of a finished run are never lost: a new start changes nothing, or adds to them."""

import csv
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml

from blackout.cli.finished_runs import add_earlier_results, finished_steps, read_results
from blackout.cli.report_page import save_report
from blackout.cli.run_results import read_scores
from blackout.safe_reading import read_rows
from blackout.training.checkpoint_files import read_checkpoint
from tests import processes
from tests.cli.conftest import TINY
from tests.fuzz.families import FAMILIES
from tests.killed import outcome

pytestmark = pytest.mark.deep

UNSCORED = (*TINY, "callbacks.scores.num_samples=20")
SCORED = (*UNSCORED, "metrics.scores=[fd]")
RENAMES = 40  # more than the end of a run makes


def state(folder):
    """Content and time of every file and folder below a folder, hidden ones too."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def timeless(run_directory):
    """The results of a run without clock and command line."""
    results = read_results(run_directory)
    return {
        name: value for name, value in results.items() if name not in ("date", "seconds", "command")
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def finished(run, runs, tmp_path):
    """A copy of a scored run of four steps in `digits/a`."""
    if not (runs / "digits").exists():
        done = run("train", *SCORED, "trainer.max_steps=4", f"runs_dir={runs}", "run_id=a")
        assert done.code == 0, done.err
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "digits" / "a"


@pytest.fixture
def start(run, finished):
    """Start the finished run again, with these further settings."""

    def start(*words):
        common = UNSCORED if "metrics=none" in words else SCORED
        return run("train", *common, f"runs_dir={finished.parents[1]}", "run_id=a", *words)

    return start


def test_a_finished_run_says_so_in_its_results(finished):
    results = read_results(finished)
    assert results["finished"] is True and finished_steps(results) == 4
    assert "finished" in (finished / "report.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("metrics=none",),
        ("sampler.num_steps=5",),
        ("callbacks.scores.num_samples=10", "metrics.scores=[is]"),
        ("logger=tensorboard",),
        ("callbacks.samples=null", "+callbacks.order._target_=tests.soak.callbacks.OrderHash"),
        ("trainer.val_check_interval=1",),
    ],
)
def test_starting_a_finished_run_again_changes_nothing(start, finished, words):
    before = state(finished.parents[1])
    outcome = start("trainer.max_steps=4", *words)
    assert outcome.code == 0, outcome.err
    assert (
        "has ended after 4 steps" in outcome.out and str(finished / "metrics.json") in outcome.out
    )
    assert "trainer.max_steps" in outcome.out and "run_id" in outcome.out
    groups = {word.lstrip("+").partition("=")[0].partition(".")[0] for word in words} - {"logger"}
    ignored = [line for line in outcome.out.splitlines() if line.startswith("ignored:")]
    assert len(ignored) == bool(groups) and all(group in ignored[0] for group in groups)
    assert state(finished.parents[1]) == before


@pytest.mark.parametrize(
    "words, message",
    [
        (("trainer.max_steps=3", "metrics=none"), ("trainer.max_steps=3", "4 steps", "run_id")),
        (("trainer.max_steps=4", "optimizer.lr=0.5"), ("optimizer.lr",)),
        (("trainer.max_steps=6", "optimizer.lr=0.5"), ("optimizer.lr",)),
        (("trainer.max_steps=4", "seed=5"), ("seed",)),
    ],
)
def test_a_start_that_does_not_fit_a_finished_run_is_refused_and_changes_nothing(
    start, finished, words, message
):
    before = state(finished.parents[1])
    start(*words).assert_refused(*message)
    assert state(finished.parents[1]) == before


@pytest.mark.parametrize(
    "words",
    [
        ("+callbacks.odd._target_=tests.no_such_module.Callback",),
        ("trainer.strategy=no_such_strategy",),
        ("callbacks.scores.every_n_steps=2", "metrics=none"),
    ],
)
def test_a_longer_start_that_fails_leaves_the_record_of_the_finished_run(start, finished, words):
    def record():
        return [
            (finished / name).read_bytes()
            for name in ("config.yaml", "metrics.json", "metrics.csv")
        ]

    before = record()
    start("trainer.max_steps=6", *words).assert_refused()
    assert record() == before
    assert "has ended" in start("trainer.max_steps=4").out


def test_a_longer_length_continues_and_scores_of_the_shorter_one_stay(start, finished):
    before, rows = read_results(finished), read_rows(finished / "metrics.csv")
    longer = start("trainer.max_steps=6", "metrics=none")
    assert longer.code == 0 and "(continued)" in longer.out, longer.err
    results = read_results(finished)
    assert finished_steps(results) == 6 and "frechet_distance_digits" not in results["values"]
    (earlier,) = results["earlier"]
    assert (
        earlier["training_steps"] == 4
        and earlier["values"] == before["values"]
        and "finished" not in earlier
    )
    final_rows = read_rows(finished / "metrics.csv")
    assert (
        final_rows[4].keys() >= rows[4].keys()
        and final_rows[4]["frechet_distance_digits"] == rows[4]["frechet_distance_digits"]
        and 6 in final_rows
    )
    assert yaml.safe_load((finished / "config.yaml").read_text())["trainer"]["max_steps"] == 6
    assert read_checkpoint(finished / "checkpoints/last.ckpt")["global_step"] == 6
    assert f"{before['values']['frechet_distance_digits']:.4g}" in save_report(finished).read_text()
    assert [place for place in read_scores(finished) if "step 4" in place]
    start("trainer.max_steps=4").assert_refused("6 steps")
    assert start("trainer.max_steps=8").code == 0
    assert [results["training_steps"] for results in read_results(finished)["earlier"]] == [4, 6]


def test_a_run_that_has_stopped_early_has_ended(run, tmp_path):
    stop = (
        "+callbacks.stop={_target_: pytorch_lightning.callbacks.EarlyStopping, "
        "monitor: val/bits_per_dim, divergence_threshold: 0.0, check_on_train_epoch_end: false}"
    )
    words = (*UNSCORED, "metrics=none", stop, f"runs_dir={tmp_path}", "run_id=a")
    done = run("train", *words, "trainer.max_steps=8")
    assert done.code == 0 and finished_steps(read_results(tmp_path / "digits/a")) == 2, done.err
    before = state(tmp_path)
    assert "has ended after 2 steps" in run("train", *words, "trainer.max_steps=8").out
    assert state(tmp_path) == before
    assert "(continued)" in run("train", *words, "trainer.max_steps=9").out


def test_a_length_below_the_steps_of_a_checkpoint_is_refused(start, run, finished):
    """In a run that has not finished, and in one that goes on from another's checkpoint."""
    results = read_results(finished)
    (finished / "metrics.json").write_text(json.dumps({**results, "finished": False}))
    settings = (finished / "config.yaml").read_bytes()
    start("trainer.max_steps=3").assert_refused("trainer.max_steps=3", "4 steps")
    assert (finished / "config.yaml").read_bytes() == settings
    options = (*SCORED, f"runs_dir={finished.parents[1]}", "run_id=b", f"ckpt_path={finished}")
    run("train", *options, "trainer.max_steps=2").assert_refused(
        "trainer.max_steps=2", "last.ckpt", "4 steps"
    )
    assert not (finished.parent / "b").exists()


def test_scores_of_the_same_step_that_a_report_lacks_stay(tmp_path):
    def write(values, steps, **more):
        report = add_earlier_results({"values": values, "training_steps": steps, **more}, tmp_path)
        (tmp_path / "metrics.json").write_text(json.dumps(report))
        return [
            (results["training_steps"], results["values"]) for results in report.get("earlier", ())
        ]

    assert write({"bits": 2.0, "fid": 3.0}, 90) == []
    assert write({"bits": 2.0, "fid": 3.0}, 90) == []
    assert write({"bits": 2.0}, 90) == [(90, {"bits": 2.0, "fid": 3.0})]
    assert write({"bits": 2.0, "fid": 3.0, "kid": 4.0}, 90) == []
    assert write({"bits": 1.0}, 120) == [(90, {"bits": 2.0, "fid": 3.0, "kid": 4.0})]


def test_a_finished_run_without_checkpoints_is_not_started_again(start, finished):
    shutil.rmtree(finished / "checkpoints")
    before = state(finished.parents[1])
    assert "has ended" in start("trainer.max_steps=4").out
    start("trainer.max_steps=6").assert_refused("no checkpoint", "run_id")
    assert state(finished.parents[1]) == before


def test_other_data_under_the_same_name_are_refused(run, tmp_path):
    counts = np.random.default_rng(0).integers(0, 9, (60, 1, 4, 4))
    words = (
        *TINY,
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        "metrics=none",
        "trainer.max_steps=2",
    )
    words += (f"runs_dir={tmp_path / 'runs'}", "run_id=a")
    np.save(tmp_path / "x.npy", counts)
    assert run("train", *words).code == 0
    before = state(tmp_path / "runs")
    np.save(tmp_path / "x.npy", counts[::-1])
    run("train", *words).assert_refused("trained on other data", "run_id")
    assert state(tmp_path / "runs") == before
    np.save(tmp_path / "x.npy", counts)
    assert "has ended" in run("train", *words).out


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_finished_runs_of_every_family(run, tmp_path, family):
    words = (*FAMILIES[family], f"runs_dir={tmp_path}", "experiment_name=x", "run_id=a")
    done = run("train", *words)
    assert done.code == 0, done.err
    before = state(tmp_path)
    outcome = run("train", *words)
    assert outcome.code == 0 and "has ended after 1 steps" in outcome.out, outcome.err
    assert state(tmp_path) == before
    longer = run("train", *words, "trainer.max_steps=2")
    assert longer.code == 0 and "(continued)" in longer.out, longer.err
    assert finished_steps(read_results(tmp_path / "x/a")) == 2
    run("train", *words).assert_refused("trainer.max_steps=1")


def test_a_sweep_of_finished_runs_reports_their_values(run, tmp_path):
    words = ("-m", *SCORED, "seed=1,2", "trainer.max_steps=4", f"runs_dir={tmp_path}")
    tables = []
    for sweep in range(2):
        before = state(tmp_path / "digits") if sweep else {}
        done = run("train", *words)
        assert done.code == 0 and done.out.count("has ended") == 2 * sweep, done.err
        assert state(tmp_path / "digits") == before or not sweep
        (table,) = (path for path in tmp_path.glob("sweeps/*/results.csv") if path not in tables)
        tables.append(table)
    first, second = (list(csv.DictReader(table.open())) for table in tables)
    assert [{**row, "seconds": ""} for row in first] == [{**row, "seconds": ""} for row in second]
    assert all(
        row["state"] == "done" and float(row["frechet_distance_digits"]) > 0 for row in second
    )


def test_two_processes_agree_that_a_run_has_ended(tmp_path):
    words = (
        *TINY,
        "metrics=none",
        "trainer.max_steps=2",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
    )
    words += ("trainer.strategy=ddp", f"runs_dir={tmp_path}", "run_id=a")
    first = processes.run_distributed("train", *words)
    assert first.returncode == 0, first.stderr
    before = state(tmp_path)
    outcome = processes.run_distributed("train", *words)
    assert outcome.returncode == 0 and outcome.stdout.count("has ended") == 1, outcome.stderr
    assert state(tmp_path) == before


def killed_at_end(finished_like, folder, number):
    """Train in a process that is killed before the n-th rename after training; its exit code."""
    kill = f"+callbacks.kill={{_target_: tests.soak.callbacks.KilledAtEnd, number: {number}}}"
    return processes.run("train", *finished_like, f"runs_dir={folder}", "run_id=a", kill).returncode


@pytest.mark.parametrize(
    "numbers",
    [(0, 3, -1), pytest.param(tuple(range(RENAMES)), marks=pytest.mark.deep)],
    ids=["few", "all"],
)
def test_a_run_that_is_killed_at_its_end_repeats_the_end(run, finished, tmp_path, numbers):
    """At some, or at all, renamings; -1 is the last one, which records the run as finished."""
    words = (*SCORED, "trainer.max_steps=4")
    complete = False
    for number in numbers:
        folder = tmp_path / f"killed-{number}"
        if number < 0:  # as if it had been killed before the record
            shutil.copytree(finished.parents[1], folder, ignore=shutil.ignore_patterns("killed-*"))
            results = read_results(folder / "digits/a")
            (folder / "digits/a/metrics.json").write_text(
                json.dumps({**results, "finished": False})
            )
        else:
            code = killed_at_end(words, folder, number)
            assert code in (0, -signal.SIGKILL)
            if complete := code == 0:
                break
        if number > 0 and finished_steps(read_results(folder / "digits/a")) is not None:
            complete = True  # after the record only the page is written once more
            assert outcome(folder / "digits/a") == outcome(finished)
            break
        assert finished_steps(read_results(folder / "digits/a")) is None
        restarted = run("train", *words, f"runs_dir={folder}", "run_id=a")
        assert restarted.code == 0 and "has ended" not in restarted.out, restarted.err
        assert outcome(folder / "digits/a") == outcome(finished)
        assert timeless(folder / "digits/a") == timeless(finished)
        assert "has ended" in run("train", *words, f"runs_dir={folder}", "run_id=a").out
    assert complete or len(numbers) < RENAMES


def test_scores_that_a_killed_end_has_written_stay(run, finished, tmp_path):
    """A run that is killed when its scores are written, and goes on without scores, keeps them."""
    words = (*UNSCORED, "trainer.max_steps=4", f"runs_dir={tmp_path / 'killed'}", "run_id=a")
    shutil.copytree(finished, tmp_path / "killed/digits/a")
    results = read_results(finished)
    (tmp_path / "killed/digits/a/metrics.json").write_text(
        json.dumps({**results, "finished": False})
    )
    done = run("train", *words, "metrics=none")
    assert done.code == 0, done.err
    final_results = read_results(tmp_path / "killed/digits/a")
    assert (
        finished_steps(final_results) == 4
        and final_results["earlier"][0]["values"] == results["values"]
    )
    rows = [
        read_rows(folder / "metrics.csv")[4] for folder in (finished, tmp_path / "killed/digits/a")
    ]
    assert rows[0]["frechet_distance_digits"] == rows[1]["frechet_distance_digits"]


def test_samples_scored_against_other_data_go_to_another_folder(run, tmp_path):
    """Though the file has the same name, size and time."""
    counts = np.random.default_rng(0).integers(0, 9, (80, 1, 4, 4))

    def save(content):
        np.save(tmp_path / "x.npy", content)
        os.utime(tmp_path / "x.npy", (1, 1))

    save(counts)
    data = ("dataset=counts", f"dataset.path={tmp_path / 'x.npy'}")
    words = (
        *TINY,
        *data,
        "metrics=none",
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert run("train", *words).code == 0
    model = tmp_path / "x/a/model"
    sample = ("sample", f"ckpt={model}", "num_samples=20", "evaluate=true", "metrics=counts", *data)
    sample += ("likelihood.images=0",)
    score = (
        "sample",
        f"samples={model.parent / 'samples' / 'samples.npz'}",
        *data,
        "metrics=counts",
        "device=cpu",
    )
    for command in (sample, score):
        places = []
        for content in (counts, counts, counts[::-1]):
            save(content)
            before = {path: path.read_bytes() for path in places}
            done = run(*command)
            assert done.code == 0, done.err
            places.append(Path(re.findall(r"^scores .*in (.+)$", done.out, re.MULTILINE)[-1]))
            assert content is counts or {path: path.read_bytes() for path in before} == before
        assert places[0] == places[1] != places[2]


def test_small_images_of_a_model_without_scores_get_those_of_their_data(run, tmp_path):
    words = (*UNSCORED, "metrics=none", "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a")
    assert run("train", *words).code == 0
    sampled = (
        "sample",
        f"ckpt={tmp_path / 'digits/a'}",
        "num_samples=20",
        "evaluate=true",
        "likelihood.images=8",
    )
    done = run(*sampled, f"out={tmp_path / 'out'}")
    assert done.code == 0, done.err
    values = read_results(tmp_path / "out")["values"]
    assert values.keys() >= {"bits_per_dim_test", "frechet_distance_digits"} and "fid" not in values
