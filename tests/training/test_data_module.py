"""The order of the data depends on the seed alone, whatever Lightning prefetches or continues."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from blackout.data import CountData
from blackout.protocols import Split
from blackout.training.data_module import EvalLoader, SourceDataModule, TrainLoader

# Lightning talks about workers, loggers and lengths that these trainers do without
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def indices(stream: TrainLoader, batches: int) -> torch.Tensor:
    return torch.cat([batch["index"] for batch in islice(stream, batches)])


@pytest.mark.parametrize("batch_size", [1, 5, 23, 50])
def test_every_epoch_is_a_permutation_and_epochs_differ(
    numbered: CountData, batch_size: int
) -> None:
    served = indices(TrainLoader(numbered, batch_size, seed=3), 3 * 23 // batch_size + 1)
    epochs = served[: 3 * 23].view(3, 23)
    assert (epochs.sort(1).values == torch.arange(23)).all()
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_the_order_does_not_depend_on_the_batch_size(numbered: CountData) -> None:
    assert torch.equal(indices(TrainLoader(numbered, 4), 30), indices(TrainLoader(numbered, 60), 2))


def test_seeds_give_unrelated_orders(numbered: CountData) -> None:
    # neither the same order nor the same order an epoch later, as seed + epoch would give
    first, second = (
        indices(TrainLoader(numbered, 23, seed=seed), 3).view(3, 23) for seed in (0, 1)
    )
    assert not (first[:, None] == second).all(-1).any()


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_processes_share_the_global_batch(numbered: CountData, world_size: int, flip: bool) -> None:
    data = replace(numbered, flip=flip)
    uninterrupted = TrainLoader(data, 8, seed=1)
    parts = [TrainLoader(data, 8, 1, rank, world_size) for rank in range(world_size)]
    for expected, shares in islice(zip(uninterrupted, zip(*parts, strict=True), strict=False), 12):
        positions = torch.cat([share["position"] for share in shares])
        assert positions.sort().values.tolist() == list(range(8))
        for key in ("x0", "index", "label"):
            joined = torch.cat([share[key] for share in shares])
            assert torch.equal(joined, expected[key][positions])
        assert {share["batch_number"] for share in shares} == {expected["batch_number"]}
        assert {share["batch_size"] for share in shares} == {8}


def test_batches_hold_the_samples_they_name(numbered: CountData) -> None:
    for batch in islice(TrainLoader(numbered, 5), 10):
        assert torch.equal(batch["x0"], numbered.train[batch["index"]])
        assert numbered.train_labels is not None
        assert torch.equal(batch["label"], numbered.train_labels[batch["index"]])


def test_half_of_the_images_are_mirrored_and_differently_in_each_epoch(numbered: CountData) -> None:
    mirrored = []
    for batch in islice(TrainLoader(replace(numbered, flip=True), 23), 100):
        original = numbered.train[batch["index"]]
        turned = (batch["x0"] == original.flip(-1)).flatten(1).all(1)
        assert ((batch["x0"] == original).flatten(1).all(1) ^ turned).all()
        mirrored.append(turned[batch["index"].argsort()])
    coins = torch.stack(mirrored).double()
    assert coins.mean().item() == pytest.approx(0.5, abs=0.04)  # four standard deviations
    assert coins.mean(0).min() > 0.25 and coins.mean(0).max() < 0.75


def test_batches_are_copies_of_the_data(numbered: CountData) -> None:
    before = numbered.train.clone()
    for batch in islice(TrainLoader(replace(numbered, flip=True), 5), 10):
        batch["x0"].zero_()
    assert torch.equal(numbered.train, before)


def test_batches_can_start_at_any_number_and_continue(numbered: CountData) -> None:
    uninterrupted = indices(TrainLoader(numbered, 5), 20)
    assert torch.equal(indices(TrainLoader(numbered, 5, start_batch=13), 7), uninterrupted[65:])
    interrupted = TrainLoader(numbered, 5)
    assert torch.equal(
        torch.cat([indices(interrupted, 3), indices(interrupted, 17)]), uninterrupted
    )


def test_a_period_repeats_the_first_batches(numbered: CountData) -> None:
    batches = list(islice(TrainLoader(replace(numbered, flip=True), 5, period=2), 6))
    assert [batch["batch_number"] for batch in batches] == list(range(6))
    for key in ("x0", "index"):
        first, second, *later_batches = (batch[key] for batch in batches)
        assert not torch.equal(first, second)
        assert all(
            torch.equal(batch, (first, second)[k % 2]) for k, batch in enumerate(later_batches)
        )


def test_vectors_have_no_labels_and_cannot_be_mirrored() -> None:
    data = CountData("vectors", torch.arange(12).view(4, 3), torch.arange(6).view(2, 3), 11)
    assert "label" not in TrainLoader(data, 2).batch(0)
    assert "label" not in next(iter(EvalLoader(data, 2)))
    with pytest.raises(ValueError, match=r"flip mirrors images \[C, H, W\]"):
        replace(data, flip=True)


@pytest.mark.parametrize(
    ("batch_size", "rank", "world_size"), [(0, 0, 1), (-4, 0, 2), (5, 0, 2), (4, 2, 2), (4, -1, 2)]
)
def test_impossible_sharding_is_refused(
    numbered: CountData, batch_size: int, rank: int, world_size: int
) -> None:
    for kind in (TrainLoader, EvalLoader):
        with pytest.raises(
            ValueError, match=r"batch_size, the samples of all processes|rank must be between"
        ):
            kind(numbered, batch_size, rank=rank, world_size=world_size)


@pytest.mark.parametrize(("split", "size"), [("val", 7), ("test", 9)])
@pytest.mark.parametrize("world_size", [1, 2, 4, 7])
@pytest.mark.parametrize("per_process", [1, 2, 3, 100])
def test_held_out_samples_are_served_exactly_once(
    numbered: CountData, world_size: int, per_process: int, split: Split, size: int
) -> None:
    shards = [
        EvalLoader(numbered, per_process * world_size, rank, world_size, split)
        for rank in range(world_size)
    ]
    assert len({len(shard) for shard in shards}) == 1
    for rank, shard in enumerate(shards):
        batches = list(shard)
        assert len(batches) == len(shard)
        assert all(len(batch["index"]) > 0 for batch in batches)
        assert torch.cat([batch["index"] for batch in batches]).tolist() == list(
            range(rank, size, world_size)
        )
        assert all(
            torch.equal(batch["x0"], getattr(numbered, split)[batch["index"]]) for batch in batches
        )
        # another pass begins with the same batch
        assert torch.equal(batches[0]["index"], next(iter(shard))["index"])


def test_a_single_process_keeps_to_the_batch_size(numbered: CountData) -> None:
    assert max(len(batch["index"]) for batch in EvalLoader(numbered, 4, split="train")) <= 4
    assert sum(len(batch["index"]) for batch in EvalLoader(numbered, 4, split="train")) == 23


def test_more_processes_than_samples_are_refused(numbered: CountData) -> None:
    with pytest.raises(
        ValueError, match="numbered has 9 test samples, fewer than the 10 processes"
    ):
        EvalLoader(numbered, 10, 0, 10)
    with pytest.raises(
        ValueError, match="numbered has 7 validation samples, fewer than the 10 processes"
    ):
        EvalLoader(numbered, 10, 0, 10, "val")


def test_resuming_another_stream_is_refused(numbered: CountData) -> None:
    state = TrainLoader(numbered, 6, seed=1).state_dict()
    TrainLoader(numbered, 6, seed=1, rank=1, world_size=2, start_batch=4).load_state_dict(state)
    other_data = CountData("other", numbered.train.flip(0), numbered.test, 30)
    for stream, name in [
        (TrainLoader(numbered, 7, seed=1), "batch_size=6"),
        (TrainLoader(numbered, 6, seed=2), "seed=1"),
        (TrainLoader(other_data, 6, seed=1), "data="),
    ]:
        with pytest.raises(
            ValueError, match=f"cannot resume: the checkpoint was trained with {name}"
        ):
            stream.load_state_dict(state)


def test_a_state_with_the_flip_of_the_data_is_accepted(numbered: CountData) -> None:
    stream = TrainLoader(numbered, 6, seed=1)
    stream.load_state_dict({**stream.state_dict(), "flip": True})


class Endless:
    """An energy: there are no data, only numbers of samples."""

    name = "endless"
    facts: ClassVar[dict[str, Any]] = {"num_sites": 4}

    def __str__(self) -> str:
        return self.name

    def size(self, split: Split) -> int | None:
        return None

    def batch(
        self, split: Split, index: torch.Tensor, augment: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        assert split == "train" and augment is None
        return {"twice": 2 * index}

    def fingerprint(self, split: Split) -> str:
        return "endless"

    def to(self, device: torch.device) -> Endless:
        return self


def test_a_source_without_end_is_served_by_position() -> None:
    streams = [
        TrainLoader(Endless(), 4, rank=rank, world_size=2, start_batch=3) for rank in range(2)
    ]
    first, second = (next(iter(stream)) for stream in streams)
    assert first["index"].tolist() == [12, 14] and second["twice"].tolist() == [26, 30]
    assert TrainLoader(Endless(), 4, period=2).batch(7)["index"].tolist() == [4, 5, 6, 7]
    shard = EvalLoader(Endless(), 4, 1, 2)
    assert len(shard) == 0 and list(shard) == []


class Recorder(pl.LightningModule):
    """Module that records the samples of each step, and dies within the step of batch `die_at`."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.die_at = die_at
        self.trained: list[tuple[int, list[int]]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        if batch["batch_number"] == self.die_at:
            raise KeyboardInterrupt
        self.trained.append((batch["batch_number"], batch["index"].tolist()))
        return (self.weight - batch["x0"].float().mean()).square()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validated.append(batch["index"].tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(
    data: CountData,
    folder: Path,
    model: Recorder,
    ckpt: Path | None = None,
    seed: int = 5,
    **trainer: Any,
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
    built.fit(
        model,
        datamodule=SourceDataModule(replace(data, flip=True), batch_size=5, seed=seed),
        ckpt_path=ckpt,
    )
    return built


def saver(folder: Path, **settings: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **settings)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", [3, 7])
def test_a_resumed_run_trains_on_the_same_batches_as_an_uninterrupted_one(
    numbered: CountData, tmp_path: Path, accumulate: int, stop: int
) -> None:
    uninterrupted = Recorder()
    first = Recorder()
    second = Recorder()
    fit(numbered, tmp_path, uninterrupted, accumulate_grad_batches=accumulate)
    assert [batch for batch, _ in uninterrupted.trained] == list(range(12 * accumulate))

    fit(
        numbered,
        tmp_path,
        first,
        accumulate_grad_batches=accumulate,
        callbacks=[saver(tmp_path, every_n_train_steps=stop)],
    )
    resumed = fit(
        numbered,
        tmp_path,
        second,
        tmp_path / f"step={stop}.ckpt",
        accumulate_grad_batches=accumulate,
    )
    assert second.trained == uninterrupted.trained[stop * accumulate :]
    assert resumed.global_step == 12
    assert torch.equal(second.weight, uninterrupted.weight)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_checkpoint_of_a_validation_resumes_too(
    numbered: CountData, tmp_path: Path, stop: int
) -> None:
    validate: dict[str, Any] = {
        "limit_val_batches": 1.0,
        "val_check_interval": 2,
        "check_val_every_n_epoch": None,
    }
    uninterrupted = Recorder()
    second = Recorder()
    fit(numbered, tmp_path, uninterrupted, callbacks=[saver(tmp_path)], **validate)
    assert [index for batch in uninterrupted.validated[:2] for index in batch] == list(range(7))
    assert len(uninterrupted.validated) == 6 * 2
    fit(numbered, tmp_path, second, tmp_path / f"step={stop}.ckpt", **validate)
    assert second.trained == uninterrupted.trained[stop:]
    assert torch.equal(second.weight, uninterrupted.weight)


def test_a_step_that_was_cut_short_is_repeated(numbered: CountData, tmp_path: Path) -> None:
    uninterrupted = Recorder()
    first = Recorder(die_at=7)
    second = Recorder()
    fit(numbered, tmp_path, uninterrupted)
    on_exception = saver(tmp_path, every_n_train_steps=100, save_on_exception=True)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(numbered, tmp_path, first, callbacks=[on_exception])
    (saved,) = tmp_path.glob("*.ckpt")
    fit(numbered, tmp_path, second, saved)
    assert first.trained + second.trained == uninterrupted.trained
    assert torch.equal(second.weight, uninterrupted.weight)


def test_bounded_epochs_neither_skip_nor_repeat(numbered: CountData, tmp_path: Path) -> None:
    uninterrupted = Recorder()
    epochs = Recorder()
    second = Recorder()
    fit(numbered, tmp_path, uninterrupted)
    fit(
        numbered,
        tmp_path,
        epochs,
        limit_train_batches=5,
        callbacks=[saver(tmp_path, every_n_train_steps=7)],
    )
    assert epochs.trained == uninterrupted.trained
    fit(numbered, tmp_path, second, tmp_path / "step=7.ckpt", limit_train_batches=5)
    assert second.trained == uninterrupted.trained[7:]


def test_overfitting_repeats_the_first_batch(numbered: CountData, tmp_path: Path) -> None:
    model = Recorder()
    fit(numbered, tmp_path, model, overfit_batches=1, limit_val_batches=0)
    assert len(model.trained) == 12
    assert {tuple(index) for _, index in model.trained} == {tuple(model.trained[0][1])}


def test_resuming_with_another_seed_is_refused(numbered: CountData, tmp_path: Path) -> None:
    fit(numbered, tmp_path, Recorder(), callbacks=[saver(tmp_path, every_n_train_steps=12)])
    with pytest.raises(
        ValueError,
        match="cannot resume: the checkpoint was trained with seed=5, this run has seed=6",
    ):
        fit(numbered, tmp_path, Recorder(), tmp_path / "step=12.ckpt", seed=6)


def test_checkpoints_need_no_pickle(numbered: CountData, tmp_path: Path) -> None:
    fit(
        numbered,
        tmp_path,
        Recorder(),
        max_steps=1,
        callbacks=[saver(tmp_path, every_n_train_steps=1)],
    )
    torch.load(tmp_path / "step=1.ckpt", weights_only=True)


def test_without_a_trainer_everything_is_served_here(numbered: CountData) -> None:
    module = SourceDataModule(numbered, 4)
    assert next(iter(module.train_dataloader()))["batch_number"] == 0
    for loader, counts in (
        (module.val_dataloader(), numbered.val),
        (module.test_dataloader(), numbered.test),
    ):
        assert torch.equal(torch.cat([batch["x0"] for batch in loader]), counts)


@pytest.mark.parametrize(("batch_size", "flip"), [(0, False), (4, True)])
def test_bad_values_are_refused_at_once(batch_size: int, flip: bool) -> None:
    data = CountData("vectors", torch.arange(12).view(4, 3), torch.arange(6).view(2, 3), 11)
    with pytest.raises(ValueError, match=r"positive multiple|flip mirrors"):
        SourceDataModule(replace(data, flip=flip), batch_size)


def test_a_source_without_data_trains_and_has_no_validation(tmp_path: Path) -> None:
    class Counting(Recorder):
        def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
            self.trained.append((batch["batch_number"], batch["twice"].tolist()))
            return (self.weight - 1).square()

    model = Counting()
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "max_steps": 3,
    }
    settings |= {
        "val_check_interval": 1,
        "check_val_every_n_epoch": None,
        "enable_checkpointing": False,
    }
    pl.Trainer(**settings, enable_model_summary=False, default_root_dir=tmp_path).fit(
        model, SourceDataModule(Endless(), 2)
    )
    assert model.trained == [(0, [0, 2]), (1, [4, 6]), (2, [8, 10])] and model.validated == []
