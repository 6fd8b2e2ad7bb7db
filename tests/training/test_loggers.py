"""Dashboards show what a run did: what W&B and TensorBoard keep on disk is read back."""

import csv
import http.server
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import wandb
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.wandb_file import read_run
from blackout import from_data
from blackout.diffusion.model import BlackoutDiffusion
from blackout.training.loggers import MetricsCSV, Wandb, dashboards, find_mode, log_results
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.training.test_python import BODY, COUNTS

SCORED = (*TINY, "metrics.scores=[fd]", "callbacks.scores.num_samples=40", "sampler.num_steps=4")
NO_SERVER = "http://127.0.0.1:9"
KEY = "k" * 40


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", NO_SERVER)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.setup()  # which keeps the mode that it finds first for the whole process


def offline_runs(folder):
    return [read_run(path) for path in sorted(folder.glob("wandb/offline-run-*"))]


def metrics(folder):
    return list(csv.DictReader((folder / "metrics.csv").open()))


@pytest.mark.deep
def test_an_offline_wandb_run_has_all_values_and_continues_with_the_run(run, tmp_path):  # noqa: F811
    directory = tmp_path / "digits" / "a"
    lines = []
    options = (*SCORED, "logger=wandb", f"runs_dir={tmp_path}", "run_id=a")
    for steps in (6, 8):
        outcome = run("train", *options, f"trainer.max_steps={steps}")
        assert outcome.code == 0, outcome.err
        lines += [line for line in outcome.out.splitlines() if line.startswith("wandb:")]
    folders = sorted(directory.glob("wandb/offline-run-*"))
    assert len(lines) == len(folders) == 2
    for line, folder in zip(lines, folders, strict=True):
        assert "no key" in line and line.endswith(f"wandb sync {folder}")

    first, second = offline_runs(directory)
    assert first.id == second.id != "" and first.exit_code == second.exit_code == 0
    checkpoint = torch.load(directory / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["wandb_run"] == first.id
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert {name: second.config[name] for name in config} == config

    steps = [
        row["trainer/global_step"] for row in first.history + second.history if "train/loss" in row
    ]
    assert steps == list(range(8))
    logged = {
        row["trainer/global_step"]: row["train/loss"]
        for row in second.history
        if "train/loss" in row
    }
    assert {int(row["step"]): float(row["train/loss"]) for row in metrics(directory)[6:8]} == logged
    assert any("train/samples_per_second" in row for row in first.history)
    for name in ("val/bits_per_dim", "frechet_distance_digits"):
        assert second.summary[name] > 0 and second.summary[name] != first.summary[name]
        assert second.summary[name] == pytest.approx(float(metrics(directory)[-1][name]), rel=1e-6)

    (picture,) = second.summary["samples/filenames"]
    logged_picture = Image.open(folders[1] / "files" / picture)
    saved_picture = Image.open(directory / "samples" / "final.png")
    assert np.array_equal(
        np.asarray(logged_picture.convert("RGB")), np.asarray(saved_picture.convert("RGB"))
    )
    for described, folder in zip((first, second), folders, strict=True):
        (artifact,) = described.artifacts
        assert artifact.type == "model" and artifact.name == f"model-{first.id}"
        paths = {entry.path: entry.local_path for entry in artifact.manifest.contents}
        assert set(paths) == {"README.md", "config.json", "model.safetensors"}
        assert all(path.startswith(str(folder)) for path in paths.values())
    model = (directory / "model" / "model.safetensors").read_bytes()
    exported = [(folder / "model" / "model.safetensors").read_bytes() for folder in folders]
    assert exported[1] == model != exported[0]


@pytest.mark.deep
def test_the_jobs_of_a_sweep_are_runs_of_one_group(run, tmp_path):  # noqa: F811
    outcome = run(
        "train",
        "-m",
        *TINY,
        "metrics=none",
        "logger=wandb",
        "seed=1,2",
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
        f"hydra.sweep.dir={tmp_path}/sweeps/seeds",
    )
    assert outcome.code == 0, outcome.err
    runs = [run for folder in (tmp_path / "digits").iterdir() for run in offline_runs(folder)]
    assert len(runs) == 2 and len({run.id for run in runs}) == 2
    assert {run.config["seed"] for run in runs} == {1, 2}
    assert {run.name for run in runs} == {folder.name for folder in (tmp_path / "digits").iterdir()}
    assert {run.group for run in runs} == {"seeds"} and {run.exit_code for run in runs} == {0}


def test_a_run_that_fails_is_closed_as_failed(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        dashboards([Wandb(str(tmp_path), mode="offline")], {"seed": 3}),
    ):
        raise ZeroDivisionError
    assert wandb.run is None
    (run_record,) = offline_runs(tmp_path)
    assert (
        run_record.exit_code == 1
        and run_record.config["seed"] == 3
        and run_record.name == tmp_path.name
    )


def test_other_processes_make_no_run(tmp_path, monkeypatch):
    from pytorch_lightning.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with dashboards([Wandb(str(tmp_path), mode="offline")], {}):
        pass
    assert not list(tmp_path.iterdir())


@pytest.fixture
def server():
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("key", ["environment", "netrc", "settings"])
def test_wandb_is_online_with_a_key_and_a_network(monkeypatch, tmp_path, server, key):
    settings = SimpleNamespace(
        mode="online", base_url=server, api_key=KEY if key == "settings" else None
    )
    monkeypatch.delenv("WANDB_BASE_URL")
    if key == "environment":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    if key == "netrc":
        (tmp_path / "netrc").write_text(
            f"machine {server.removeprefix('http://')} login user password {KEY}\n"
        )
        (tmp_path / "netrc").chmod(0o600)
    assert find_mode(settings) == ("online", "")
    monkeypatch.setenv("WANDB_BASE_URL", NO_SERVER)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    mode, reason = find_mode(settings)
    assert mode == "offline" and NO_SERVER in reason
    monkeypatch.setenv("WANDB_MODE", "online")
    assert find_mode(settings) == ("online", "")


@pytest.mark.deep
def test_wandb_settings_choose_online_offline_or_disabled(run, monkeypatch, tmp_path):  # noqa: F811
    settings = SimpleNamespace(mode="online", base_url=NO_SERVER, api_key=None)
    assert find_mode(settings)[0] == "offline"
    assert find_mode(SimpleNamespace(**{**vars(settings), "mode": "disabled"})) == ("disabled", "")
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    assert find_mode(settings) == ("offline", "")
    options = (
        *TINY,
        "metrics=none",
        "logger=wandb",
        "trainer.max_steps=2",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    run("train", *options, "logger.wandb.mode=on").assert_refused(
        "logger", "online, offline, disabled"
    )
    run("train", *options, "logger.wandb.mode=online").assert_refused(
        "logger=wandb", "key", "logger.wandb.mode=offline"
    )
    outcome = run("train", *options, "logger.wandb.mode=disabled")
    assert outcome.code == 0 and "wandb:" not in outcome.out + outcome.err, outcome.err


def test_tensorboard_shows_curves_samples_and_settings(run, tmp_path):  # noqa: F811
    outcome = run(
        "train",
        *SCORED,
        "logger=tensorboard",
        "trainer.max_steps=6",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert outcome.code == 0, outcome.err
    directory = tmp_path / "digits" / "a"
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {
        "train/loss",
        "train/samples_per_second",
        "val/bits_per_dim",
        "frechet_distance_digits",
    } <= set(tags["scalars"])
    logged = [(event.step, event.value) for event in events.Scalars("train/loss")]
    written = [
        (int(row["step"]), float(row["train/loss"]))
        for row in metrics(directory)
        if row["train/loss"]
    ]
    assert logged == [(step, pytest.approx(loss)) for step, loss in written]
    assert [event.step for event in events.Images("samples")] == [4, 6]
    (text,) = events.Tensors("config/text_summary")
    assert "max_steps: 6" in text.tensor_proto.string_val[0].decode()


def test_tensorboard_that_is_not_installed_is_one_clear_line(run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    outcome = run(
        "train", *TINY, "logger=tensorboard", "trainer.max_steps=2", f"runs_dir={tmp_path}"
    )
    outcome.assert_refused("logger=tensorboard", "pip install tensorboard")


class Clock(pl.Callback):
    """Time in which a step takes one second and everything that is not training a hundred."""

    now = 0.0

    @classmethod
    def advance(cls, seconds):
        cls.now += seconds

    def on_train_batch_end(self, *args):
        self.advance(1)

    def on_validation_end(self, *args):
        self.advance(100)

    def on_save_checkpoint(self, *args):
        self.advance(100)


@pytest.mark.deep
@pytest.mark.parametrize("log, accumulate", [(1, 1), (3, 2)])
def test_throughput_leaves_out_everything_but_training(run, tmp_path, monkeypatch, log, accumulate):  # noqa: F811
    draw = BlackoutDiffusion.sample
    monkeypatch.setattr(
        BlackoutDiffusion, "sample", lambda *args, **kw: (Clock.advance(100), draw(*args, **kw))[1]
    )
    monkeypatch.setattr(
        "blackout.training.callbacks.throughput.time",
        SimpleNamespace(perf_counter=lambda: Clock.now),
    )
    options = [option for option in TINY if not option.startswith("trainer.val_check")]
    outcome = run(
        "train",
        *options,
        "metrics=none",
        "+callbacks.clock._target_=tests.training.test_loggers.Clock",
        f"trainer.log_every_n_steps={log}",
        f"trainer.accumulate_grad_batches={accumulate}",
        "trainer.max_steps=12",
        "trainer.val_check_interval=10",
        "callbacks.checkpoints.every_n_steps=5",
        "callbacks.samples.every_n_steps=7",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert outcome.code == 0, outcome.err
    rates = {
        int(row["step"]): row["train/samples_per_second"]
        for row in metrics(tmp_path / "digits" / "a")
    }
    logged = {step: float(rate) for step, rate in rates.items() if rate}
    assert len(logged) >= 3 and set(logged.values()) == {64.0}, logged
    assert all((step + 1) % log == 0 for step in logged)


def test_a_run_without_pictures_is_logged_too(tmp_path):
    trainer = SimpleNamespace(loggers=[SimpleNamespace()], callbacks=[], global_step=5)
    log_results(trainer, {"val/kl": 1.0}, tmp_path)


def test_a_value_is_logged_in_the_step_that_has_it_and_in_no_other(tmp_path, monkeypatch):
    module = from_data(COUNTS, BODY, batch_size=16, seed=0)
    model = module.model
    training_step = model.training_step

    def sometimes(batch):
        if batch["batch_number"] == 1:
            model.log("train/extra", torch.tensor(0.5))
        return training_step(batch)

    monkeypatch.setattr(model, "training_step", sometimes)
    logger = MetricsCSV(tmp_path / "metrics.csv")
    quiet = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    steps = {"max_steps": 4, "limit_val_batches": 0, "log_every_n_steps": 1}
    trainer = pl.Trainer(**quiet, **steps, accelerator="cpu", logger=logger)
    trainer.fit(module)
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["train/extra"] for row in rows] == ["", "0.5", "", ""]
    assert all(
        row["train/loss"] and row["train/learning_rate"] and row["train/gradient_norm"]
        for row in rows
    )
    assert {"train/loss", "train/extra"} <= trainer.callback_metrics.keys()
