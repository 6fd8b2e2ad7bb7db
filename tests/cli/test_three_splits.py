"""Validation data choose, test data report: through `train.py` as a user runs it."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

import blackout.data
from blackout.component import component
from blackout.data import CountData
from blackout.diffusion.family import CountDiffusion
from blackout.training.checkpoint_callback import Checkpoints
from tests.cli.conftest import TINY

RUN = (*TINY, "trainer.max_steps=8", "run_id=a")
# scores at every validation
OFTEN = ("callbacks.scores.every_n_steps=2", "callbacks.scores.num_samples=40")
digits = blackout.data.digits


class Guarded(CountData):
    """A dataset whose test data nobody may read while they are guarded."""

    guarded: ClassVar[bool] = False
    splits: ClassVar[list[str]] = []
    """Of the batches that were read."""

    def batch(
        self, split: Any, index: torch.Tensor, augment: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        self.splits.append(split)
        assert split != "test" or not self.guarded, "a batch of test data was read during training"
        return super().batch(split, index, augment)

    def __getattribute__(self, name: str) -> Any:
        guarded = name in ("test", "test_labels") and Guarded.guarded
        assert not guarded, "test data were read during training"
        return super().__getattribute__(name)

    def size(self, split: Any) -> int:
        return len(object.__getattribute__(self, split))

    def __str__(self) -> str:
        return self.name

    @property
    def num_classes(self) -> int:
        return 10

    def merge_validation(self) -> CountData:
        """The test data are not read, but handed on."""
        guarded, Guarded.guarded = Guarded.guarded, False
        try:
            return super().merge_validation()
        finally:
            Guarded.guarded = guarded


class LiftTheGuard(pl.Callback):
    """Lets test data be read from the test of the final model on."""

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        Guarded.guarded = False


@component("dataset")
def guarded_digits(holdout: float = 0.2, seed: int = 0, validation: float = 0.1) -> CountData:
    data = digits(holdout, seed, validation)
    names = [name for name in vars(data) if not name.startswith("_")]
    return Guarded(
        **{name: getattr(data, name) for name in names if name in CountData.__dataclass_fields__}
    )


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse access to the test data until the final model is tested."""
    source = CountDiffusion.source

    def guarded(self: CountDiffusion, *arguments: Any, **options: Any) -> CountData:
        data = source(self, *arguments, **options)
        Guarded.guarded = True
        return data

    monkeypatch.setattr(CountDiffusion, "source", guarded)
    monkeypatch.setattr(Guarded, "guarded", False)
    Guarded.splits.clear()


@pytest.mark.parametrize(
    "options",
    [
        ("metrics=digits", *OFTEN),
        ("metrics=counts", *OFTEN, "callbacks.checkpoints.restore_best=true", "conditional=true"),
        (
            "metrics=none",
            "recipe=blackout/counts",
            "network=counts",
            "~network.body.width",
            "~network.body.depth",
        ),
    ],
)
def test_no_test_data_are_read_before_the_final_test(run, tmp_path, guard, options):  # type: ignore[no-untyped-def]
    callback = "+callbacks.guard._target_=tests.cli.test_three_splits.LiftTheGuard"
    dataset = "dataset._target_=tests.cli.test_three_splits.guarded_digits"
    chosen = [option for option in options if not option.startswith("~")]
    removed = {option.removeprefix("~") for option in options if option.startswith("~")}
    settings = [
        setting
        for setting in RUN
        if setting.split("=")[0] not in removed and setting != "network=mlp"
    ]
    if not removed:
        settings.insert(0, "network=mlp")
    outcome = run("train", *settings, *chosen, callback, dataset, f"runs_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert not Guarded.guarded and {"train", "val", "test"} == set(Guarded.splits)
    values = json.loads((tmp_path / "digits/a/metrics.json").read_text())["values"]
    assert next(iter(values)) == "test/bits_per_dim"
    assert {"val/bits_per_dim", "test/bits_per_dim_error"} <= values.keys()


@pytest.mark.deep
@pytest.mark.parametrize("reference", ["train", "test"])
def test_test_data_change_nothing_but_the_numbers_of_the_final_test(
    run, tmp_path, monkeypatch, reference
):  # type: ignore[no-untyped-def]
    """Weights, chosen checkpoint, curves and validation metrics are the same for any test data."""
    options = (
        "metrics=digits",
        *OFTEN,
        "callbacks.checkpoints.restore_best=true",
        "optimizer.lr=0.3",
    )
    options += (f"metrics.reference={reference}",)
    for name, share in (("plain", 1), ("dark", 0)):

        def changed(
            holdout: float = 0.2, seed: int = 0, validation: float = 0.1, share: int = share
        ) -> CountData:
            data = digits(holdout, seed, validation)
            return replace(data, test=data.test * share)

        changed.__module__, changed.__qualname__ = "blackout.data", "digits"
        monkeypatch.setattr(
            blackout.data, "digits", component("dataset", partial_for=("source",))(changed)
        )
        outcome = run("train", *RUN, *options, f"runs_dir={tmp_path / name}")
        assert outcome.code == 0, outcome.err
    plain, dark = (tmp_path / name / "digits/a" for name in ("plain", "dark"))
    assert (plain / "model/model.safetensors").read_bytes() == (
        dark / "model/model.safetensors"
    ).read_bytes()
    values = [
        json.loads((folder / "metrics.json").read_text())["values"] for folder in (plain, dark)
    ]
    assert values[0]["test/bits_per_dim"] > values[1]["test/bits_per_dim"] + 0.1
    shared_names = [
        name for name in values[0] if not name.startswith("test/") and "_test" not in name
    ]
    score = "frechet_distance_digits" if reference == "train" else "frechet_distance_digits_val"
    assert "val/bits_per_dim" in shared_names and score in shared_names
    assert all(values[0][name] == values[1][name] for name in shared_names)
    curves = []
    for folder in (plain, dark):
        with (folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        timed = re.compile("second|test")
        curves.append(
            [{name: x for name, x in row.items() if not timed.search(name)} for row in rows]
        )
    assert curves[0] == curves[1]


@pytest.mark.deep
def test_the_checkpoint_is_the_best_of_validation_and_the_test_is_of_its_model(run, tmp_path):  # type: ignore[no-untyped-def]
    """Of most bits, which the first weights have, so that the last weights are not the model."""
    options = (
        "metrics=none",
        "callbacks.checkpoints.restore_best=true",
        "callbacks.checkpoints.mode=max",
    )
    outcome = run(
        "train", *RUN, *options, "ema_decay=0", "optimizer.warmup_steps=1", f"runs_dir={tmp_path}"
    )
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "digits/a"
    with (folder / "metrics.csv").open() as file:
        bits = {
            int(row["step"]) + 1: float(row["val/bits_per_dim"])
            for row in csv.DictReader(file)
            if row["val/bits_per_dim"] and int(row["step"]) < 7
        }
    values = json.loads((folder / "metrics.json").read_text())["values"]
    assert values["val/bits_per_dim"] == pytest.approx(bits[2], rel=1e-3) and bits[2] == max(
        bits.values()
    )
    assert "which is best on validation data" in outcome.out
    sampled = run(
        "sample",
        f"ckpt={folder}",
        "num_samples=2",
        "evaluate=true",
        "metrics=none",
        "likelihood.repeats=8",
        "likelihood.images=359",
        f"out={tmp_path / 'out'}",
    )
    assert sampled.code == 0, sampled.err
    repeated = json.loads((tmp_path / "out/metrics.json").read_text())["values"][
        "bits_per_dim_test"
    ]
    assert values["test/bits_per_dim"] == pytest.approx(repeated, rel=0.05)


@pytest.mark.deep
def test_without_validation_data_nothing_is_validated_or_chosen(run, tmp_path):  # type: ignore[no-untyped-def]
    settings = (*RUN, "metrics=digits", *OFTEN, "dataset.validation=0", f"runs_dir={tmp_path}")
    outcome = run("train", *settings)
    assert outcome.code == 0, outcome.err
    assert "1,438 training + 0 validation + 359 test samples" in outcome.out
    folder = tmp_path / "digits/a"
    values = json.loads((folder / "metrics.json").read_text())["values"]
    assert "test/bits_per_dim" in values and not [
        name for name in values if name.startswith("val/")
    ]
    assert not (folder / "checkpoints/best.ckpt").exists()
    with (folder / "metrics.csv").open() as file:
        scored = [
            int(row["step"]) + 1 for row in csv.DictReader(file) if row["frechet_distance_digits"]
        ]
    assert scored[:3] == [2, 4, 6]  # between steps, where there is no validation
    run("train", *settings, "callbacks.checkpoints.restore_best=true").assert_refused(
        "the best checkpoint is chosen on validation data, and digits has none",
        "dataset.validation=0.1",
    )
    monitor = "callbacks.checkpoints.monitor=frechet_distance_digits"
    run("train", *settings, monitor).assert_refused("omit callbacks.checkpoints")
    counts = ("metrics=counts", "callbacks.scores.every_n_steps=2", "run_id=b")
    run("train", *settings, *counts).assert_refused(
        "no validation data to compare samples with during training"
    )


def test_the_summary_and_the_inspection_of_a_file_state_all_sizes(run, tmp_path, capsys):  # type: ignore[no-untyped-def]
    from blackout.cli.inspect import inspect

    counts = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(2.0, 3.0, (40, 5)))
    np.save(tmp_path / "x.npy", counts)
    inspect(tmp_path / "x.npy", ["dataset.validation=0.2"])
    assert "x, 28 training + 8 validation + 4 test samples, shape (5,)" in capsys.readouterr().out
    np.save(tmp_path / "one.npy", counts[:1])
    inspect(tmp_path / "one.npy", [])
    output = capsys.readouterr().out
    assert (
        "finding: there is only one sample: it is used for training, validation and test" in output
    )


def test_a_checkpoint_is_saved_by_validations_of_training_alone() -> None:
    """The final validation and the test choose nothing."""
    checkpoints = Checkpoints("nowhere")
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    checkpoints.on_validation_start(trainer, None)  # type: ignore[arg-type]
    checkpoints.on_validation_end(trainer, None)  # type: ignore[arg-type]
    assert checkpoints.best == {}


@pytest.mark.deep
def test_real_files_keep_their_own_splits(run, tmp_path: Path):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    sizes = {"train": 30, "val": 7, "test": 5}
    np.savez(
        tmp_path / "x.npz", **{split: rng.poisson(3, (size, 4)) for split, size in sizes.items()}
    )
    options = (
        "family=blackout",
        "recipe=blackout/counts",
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npz'}",
    )
    outcome = run(
        "train",
        *options,
        "metrics=none",
        "trainer.max_steps=2",
        "callbacks.progress=null",
        "trainer.val_check_interval=2",
        "callbacks.samples=null",
        f"runs_dir={tmp_path}",
    )
    assert outcome.code == 0, outcome.err
    assert "x, 30 training + 7 validation + 5 test samples" in outcome.out
