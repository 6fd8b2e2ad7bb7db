"""The data module inside a real Trainer: what Lightning prefetches and saves must not change what is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from blackout.data import CountData
from blackout.training.data_module import SourceDataModule
from tests.training.test_stream import Endless

# Lightning talks about workers, loggers and lengths that these trainers do without
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Recorder(pl.LightningModule):
    """Writes down which samples each step sees; dies at batch ``die_at``, in the middle of the step."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.die_at = die_at
        self.trained: list[tuple[int, list[int]]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if batch["batch"] == self.die_at:
            raise KeyboardInterrupt
        self.trained.append((batch["batch"], batch["index"].tolist()))
        return (self.weight - batch["x0"].float().mean()).square()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validated.append(batch["index"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(
    data: CountData, folder: Path, model: Recorder, ckpt: Path | None = None, seed: int = 5, **trainer: Any
) -> pl.Trainer:
    settings: dict[str, Any] = {
        "max_steps": 12,
        "max_epochs": -1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "enable_checkpointing": "callbacks" in trainer,
        "default_root_dir": folder,
    }
    built = pl.Trainer(**settings | trainer)
    built.fit(model, datamodule=SourceDataModule(replace(data, flip=True), batch_size=5, seed=seed), ckpt_path=ckpt)
    return built


def saver(folder: Path, **settings: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **settings)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", [3, 7])
def test_a_resumed_run_sees_what_the_uninterrupted_one_saw(
    numbered: CountData, tmp_path: Path, accumulate: int, stop: int
) -> None:
    whole, first, second = Recorder(), Recorder(), Recorder()
    fit(numbered, tmp_path, whole, accumulate_grad_batches=accumulate)
    assert [batch for batch, _ in whole.trained] == list(range(12 * accumulate))

    fit(
        numbered,
        tmp_path,
        first,
        accumulate_grad_batches=accumulate,
        callbacks=[saver(tmp_path, every_n_train_steps=stop)],
    )
    resumed = fit(numbered, tmp_path, second, tmp_path / f"step={stop}.ckpt", accumulate_grad_batches=accumulate)
    assert second.trained == whole.trained[stop * accumulate :]
    assert resumed.global_step == 12
    assert torch.equal(second.weight, whole.weight)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_checkpoint_of_a_validation_resumes_too(numbered: CountData, tmp_path: Path, stop: int) -> None:
    validate: dict[str, Any] = {"limit_val_batches": 1.0, "val_check_interval": 2, "check_val_every_n_epoch": None}
    whole, second = Recorder(), Recorder()
    fit(numbered, tmp_path, whole, callbacks=[saver(tmp_path)], **validate)
    assert [index for batch in whole.validated[:2] for index in batch] == list(range(9))
    assert len(whole.validated) == 6 * 2
    fit(numbered, tmp_path, second, tmp_path / f"step={stop}.ckpt", **validate)
    assert second.trained == whole.trained[stop:]
    assert torch.equal(second.weight, whole.weight)


def test_a_step_that_was_cut_short_is_repeated(numbered: CountData, tmp_path: Path) -> None:
    whole, first, second = Recorder(), Recorder(die_at=7), Recorder()
    fit(numbered, tmp_path, whole)
    on_exception = saver(tmp_path, every_n_train_steps=100, save_on_exception=True)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(numbered, tmp_path, first, callbacks=[on_exception])
    (saved,) = tmp_path.glob("*.ckpt")
    fit(numbered, tmp_path, second, saved)
    assert first.trained + second.trained == whole.trained
    assert torch.equal(second.weight, whole.weight)


def test_bounded_epochs_neither_skip_nor_repeat(numbered: CountData, tmp_path: Path) -> None:
    whole, epochs, second = Recorder(), Recorder(), Recorder()
    fit(numbered, tmp_path, whole)
    fit(numbered, tmp_path, epochs, limit_train_batches=5, callbacks=[saver(tmp_path, every_n_train_steps=7)])
    assert epochs.trained == whole.trained
    fit(numbered, tmp_path, second, tmp_path / "step=7.ckpt", limit_train_batches=5)
    assert second.trained == whole.trained[7:]


def test_overfitting_repeats_the_first_batch(numbered: CountData, tmp_path: Path) -> None:
    model = Recorder()
    fit(numbered, tmp_path, model, overfit_batches=1, limit_val_batches=0)
    assert len(model.trained) == 12
    assert {tuple(index) for _, index in model.trained} == {tuple(model.trained[0][1])}


def test_resuming_with_another_seed_is_refused(numbered: CountData, tmp_path: Path) -> None:
    fit(numbered, tmp_path, Recorder(), callbacks=[saver(tmp_path, every_n_train_steps=12)])
    with pytest.raises(ValueError, match="cannot resume: the checkpoint was trained with seed=5, this run has seed=6"):
        fit(numbered, tmp_path, Recorder(), tmp_path / "step=12.ckpt", seed=6)


def test_checkpoints_need_no_pickle(numbered: CountData, tmp_path: Path) -> None:
    fit(numbered, tmp_path, Recorder(), max_steps=1, callbacks=[saver(tmp_path, every_n_train_steps=1)])
    torch.load(tmp_path / "step=1.ckpt", weights_only=True)


def test_without_a_trainer_everything_is_served_here(numbered: CountData) -> None:
    module = SourceDataModule(numbered, 4)
    assert next(iter(module.train_dataloader()))["batch"] == 0
    assert sum(len(batch["index"]) for batch in module.val_dataloader()) == 9
    assert sum(len(batch["index"]) for batch in module.test_dataloader()) == 9


@pytest.mark.parametrize(("batch_size", "flip"), [(0, False), (4, True)])
def test_bad_values_are_refused_at_once(batch_size: int, flip: bool) -> None:
    data = CountData("vectors", torch.arange(12).view(4, 3), torch.arange(6).view(2, 3), 11)
    with pytest.raises(ValueError, match=r"positive multiple|flip mirrors"):
        SourceDataModule(replace(data, flip=flip), batch_size)


def test_a_source_without_data_trains_and_has_no_validation(tmp_path: Path) -> None:
    class Counting(Recorder):
        def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
            self.trained.append((batch["batch"], batch["twice"].tolist()))
            return (self.weight - 1).square()

    model = Counting()
    settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "max_steps": 3}
    settings |= {"val_check_interval": 1, "check_val_every_n_epoch": None, "enable_checkpointing": False}
    pl.Trainer(**settings, enable_model_summary=False, default_root_dir=tmp_path).fit(
        model, SourceDataModule(Endless(), 2)
    )
    assert model.trained == [(0, [0, 2]), (1, [4, 6]), (2, [8, 10])] and model.validated == []
