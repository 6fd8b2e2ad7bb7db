"""Runs stopped by a signal, numbers that are not finite or a full disk can be continued."""

import csv
import json
import resource
import shutil

import pytest
import torch

from blackout.data import digits
from blackout.safe_reading import read_rows
from blackout.training.checkpoint_files import read_checkpoint
from blackout.training.loggers import MetricsCSV
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.soak.result import assert_whole, result

LONG = [option for option in TINY if not option.startswith("trainer.val_check")]
LONG += ["trainer.max_steps=8", "trainer.val_check_interval=4"]
LONG += ["+callbacks.order._target_=tests.soak.callbacks.OrderHash"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return tmp_path_factory.mktemp("undisturbed"), {}


def expected(run, undisturbed, *options):  # noqa: F811
    folder, expected = undisturbed
    if options not in expected:
        outcome = run("train", *LONG, *options, f"runs_dir={folder}", f"run_id={len(expected)}")
        assert outcome.code == 0, outcome.err
        expected[options] = result(folder / "digits" / str(len(expected)))
    return expected[options]


@pytest.mark.parametrize(
    "step, name, during, code",
    [
        (3, "SIGTERM", "training", 75),
        (4, "SIGUSR1", "validation", 75),
        (4, "SIGINT", "training", 130),
        pytest.param(5, "SIGHUP", "training", 75, marks=pytest.mark.deep),
        pytest.param(8, "SIGTERM", "validation", 75, marks=pytest.mark.deep),
    ],
)
def test_a_run_stopped_by_a_signal_saves_and_can_be_continued(
    run,  # noqa: F811
    tmp_path,
    undisturbed,
    step,
    name,
    during,
    code,
):
    # saved by the signal alone, neither at a multiple of the interval nor at the end
    options = ["callbacks.checkpoints.every_n_steps=100"]
    signal = f"step: {step}, name: {name}, during: {during}"
    leaving = [f"+callbacks.signal={{_target_: tests.soak.callbacks.SignalAt, {signal}}}"]
    run_settings = [f"runs_dir={tmp_path}", "run_id=a"]
    outcome = run("train", *LONG, *options, *leaving, *run_settings)
    assert outcome.code == code, (outcome.code, outcome.err)
    assert outcome.err.strip().splitlines()[-1].startswith("stopped by signal")
    checkpoint = read_checkpoint(tmp_path / "digits/a/checkpoints/last.ckpt")
    assert checkpoint["global_step"] == step
    assert_whole(tmp_path / "digits/a")
    outcome = run("train", *LONG, *options, *run_settings)
    assert outcome.code == 0, outcome.err
    assert result(tmp_path / "digits/a") == expected(run, undisturbed, *options)


def test_a_signal_before_training_stops_the_run_at_once(run, tmp_path):  # noqa: F811
    leaving = "+callbacks.signal._target_=tests.soak.interrupted_import.Anything"
    outcome = run("train", *LONG, leaving, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 75, (outcome.code, outcome.err)
    assert outcome.err.strip() == "stopped outside training: the same command continues"


def test_the_launchers_signal_handler_is_called_after_saving(run, tmp_path):  # noqa: F811
    import signal

    called = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: called.append(number))
    try:
        leaving = (
            "+callbacks.signal={_target_: tests.soak.callbacks.SignalAt, step: 3, name: SIGUSR2}"
        )
        outcome = run("train", *LONG, leaving, f"runs_dir={tmp_path}", "run_id=a")
        assert outcome.code == 75 and called == [signal.SIGUSR2]
        # the launcher's handler is back
        assert signal.getsignal(signal.SIGUSR2) is not before
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert read_checkpoint(tmp_path / "digits/a/checkpoints/last.ckpt")["global_step"] == 3


def test_the_row_of_an_end_stays_until_the_run_has_gone_on(tmp_path):
    path = tmp_path / "metrics.csv"
    log = MetricsCSV(path)
    log.log_metrics({"train/loss": 1.0, "val/loss": 3.0}, 3)
    log.close(3)
    log.log_metrics({"val/loss": 2.0, "fid": 5.0}, 3)
    log.flush()
    row = read_rows(path)[3]
    for finish in (lambda log: log.finalize("failed"), MetricsCSV.save, MetricsCSV.flush):
        assert (
            read_rows(path)[3]
            == row
            == {"step": "3", "train/loss": "1.0", "val/loss": "2.0", "fid": "5.0"}
        )
        log = MetricsCSV(path)
        log.log_metrics({"train/loss": float("nan")}, 4)
        finish(log)
    # what training had logged is as in a longer run, and the scores of the end stay
    assert read_rows(path)[3] == {"step": "3", "train/loss": "1.0", "val/loss": "3.0", "fid": "5.0"}


def test_a_gradient_that_is_not_finite_stops_the_run(run, tmp_path):  # noqa: F811
    poison = "+callbacks.poison={_target_: tests.soak.callbacks.Poison, step: 3}"
    outcome = run(
        "train",
        *LONG,
        poison,
        "trainer.accumulate_grad_batches=2",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    outcome.assert_refused("not finite at step 3", "nonfinite_step_0000003.json")
    directory = tmp_path / "digits/a"
    dump = json.loads((directory / "nonfinite_step_0000003.json").read_text())
    assert dump["step"] == 3 and [batch["batch"] for batch in dump["batches"]] == [6, 7]
    from blackout.training.data_module import TrainLoader

    served = TrainLoader(digits(), 64).batch(7)
    assert dump["batches"][1]["index"] == served["index"].tolist()
    assert (
        dump["batches"][1]["t"] == sorted(dump["batches"][1]["t"])
        and len(dump["batches"][1]["t"]) == 64
    )
    checkpoint = read_checkpoint(directory / "checkpoints/last.ckpt")
    assert checkpoint["global_step"] == 2
    assert all(value.isfinite().all() for value in checkpoint["state_dict"].values())


def test_a_step_that_is_not_finite_can_be_skipped(run, tmp_path):  # noqa: F811
    poison = "+callbacks.poison={_target_: tests.soak.callbacks.Poison, step: 3}"
    every = [
        "callbacks.checkpoints.every_n_steps=1",
        "on_nonfinite=skip",
        "trainer.max_steps=4",
        "ema_decay=0.5",
    ]
    outcome = run("train", *LONG, poison, *every, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    before = read_checkpoint(tmp_path / "digits/a/checkpoints/previous.ckpt")
    after = read_checkpoint(tmp_path / "digits/a/checkpoints/last.ckpt")
    assert (before["global_step"], after["global_step"]) == (3, 4)
    weights = [name for name in before["state_dict"] if name.startswith("network.")]
    assert weights and all(
        torch.equal(before["state_dict"][name], after["state_dict"][name]) for name in weights
    )
    moments = [c["optimizer_states"][0]["state"][0]["exp_avg"] for c in (before, after)]
    assert torch.equal(*moments)
    rows = list(csv.DictReader((tmp_path / "digits/a/metrics.csv").open()))
    assert float(rows[3]["train/skipped_steps"]) == 1


@pytest.mark.deep
def test_a_disk_that_takes_no_more_leaves_the_checkpoint_before(run, tmp_path):  # noqa: F811
    run_settings = [f"runs_dir={tmp_path}", "run_id=a"]
    assert run("train", *LONG, *run_settings, "trainer.max_steps=2").code == 0
    checkpoints = tmp_path / "digits/a/checkpoints"
    before = (checkpoints / "last.ckpt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        outcome = run("train", *LONG, *run_settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    outcome.assert_refused("cannot save", "last.ckpt", "File too large", "untouched")
    assert (checkpoints / "last.ckpt").read_bytes() == before
    assert_whole(tmp_path / "digits/a")
    assert run("train", *LONG, *run_settings).code == 0


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda c: c["blackout"]["data"].update(max_count=15), "data.max_count"),
        (lambda c: c["blackout"].update(format=99), "format 99"),
        (lambda c: c["blackout"]["model"]["process"].update(max_count=255), "process.max_count"),
        (lambda c: c["state_dict"].pop("data_mean"), "mean"),
        (lambda c: c.pop("loops"), "cannot be continued"),
        (lambda c: c.update(optimizer_states=[{"state": 3}]), "cannot be continued"),
        (lambda c: c["loops"].update(fit_loop=7), "cannot be continued"),
        (lambda c: c["callbacks"].update(Checkpoints=3), "cannot be continued"),
        (
            lambda c: c["optimizer_states"][0]["param_groups"][0].update(lr="x"),
            "cannot be continued",
        ),
        (lambda c: c["lr_schedulers"][0].update(last_epoch="x"), "cannot be continued"),
        (
            lambda c: c["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"].update(
                completed=None
            ),
            "completed is no",
        ),
    ],
)
def test_a_checkpoint_of_another_program_is_refused(
    run,  # noqa: F811
    tmp_path_factory,
    tmp_path,
    change,
    word,
):
    trained = tmp_path_factory.getbasetemp() / "trained"
    if not trained.exists():
        assert (
            run("train", *LONG, "trainer.max_steps=2", f"runs_dir={trained}", "run_id=a").code == 0
        )
    shutil.copytree(trained / "digits/a", tmp_path / "digits/a")
    path = tmp_path / "digits/a/checkpoints/last.ckpt"
    checkpoint = read_checkpoint(path)
    change(checkpoint)
    for checkpoint_file in path.parent.glob("*"):
        checkpoint_file.unlink()
    torch.save(checkpoint, path)
    files = [path, tmp_path / "digits/a/metrics.csv", tmp_path / "digits/a/report.html"]
    before = [file.read_bytes() for file in files]
    run("train", *LONG, f"runs_dir={tmp_path}", "run_id=a").assert_refused("last.ckpt", word)
    assert [file.read_bytes() for file in files] == before


def test_rows_after_the_checkpoint_are_dropped_when_a_run_continues(tmp_path):
    path = tmp_path / "metrics.csv"
    for steps, loss in (((2, 4, 5), 1.0), ((4,), 2.0)):
        logger = MetricsCSV(path)
        for step in steps:
            logger.log_metrics({"train/loss": loss}, step)
        logger.flush()
    assert {step: row["train/loss"] for step, row in read_rows(path).items()} == {
        2: "1.0",
        4: "2.0",
    }
