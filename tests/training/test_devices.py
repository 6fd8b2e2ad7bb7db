"""Devices and processes of a run: how many there are, and how often they wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blackout.cli.build_trainer import check_batch_size, unused_devices
from blackout.config.settings import configure_libraries
from blackout.distributed import find_device
from blackout.errors import UserError
from blackout.preemption import signals
from blackout.training.data_module import check_sharding
from blackout.training.step_callbacks import StepCallback


@pytest.mark.parametrize(
    ("batch_size", "num_processes", "nearest"),
    [(130, 4, "128 or 132"), (3, 8, "8"), (257, 2, "256 or 258")],
)
def test_a_batch_that_processes_cannot_share_is_refused_with_the_nearest(
    batch_size: int, num_processes: int, nearest: str
) -> None:
    trainer: Any = SimpleNamespace(world_size=num_processes)
    with pytest.raises(UserError, match=f"not {batch_size}; nearest: {nearest}$"):
        check_batch_size(batch_size, trainer)
    check_batch_size(batch_size * num_processes, trainer)


@pytest.mark.parametrize("batch_size", [0, -1, -130])
def test_a_batch_without_samples_is_refused_with_the_smallest_possible(batch_size: int) -> None:
    with pytest.raises(ValueError, match=f"not {batch_size}; nearest: 4$"):
        check_sharding(batch_size, 0, 4)


def test_gpus_that_a_run_does_not_use_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    line = unused_devices({"devices": 1})
    assert line == "1 of 3 GPUs; trainer.devices=3 also uses cuda:1 card 1, cuda:2 card 2"
    assert not unused_devices({"devices": 2}) and not unused_devices({"devices": "auto"})
    assert not unused_devices({"devices": 1, "accelerator": "cpu"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not unused_devices({"devices": 1})


class Waiting(StepCallback):
    """Records the steps after which it acts."""

    reacts_to_signals = True
    signal_interval = 10

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_boundary(self, trainer: Any, pl_module: Any) -> None:
        """Record the step."""
        self.steps.append(self.boundary)


class Preview(Waiting):
    """Work that a signal can interrupt."""

    reacts_to_signals = False
    stops_on_signals = True
    every = 7


@pytest.mark.parametrize("received", [None, 15])
def test_several_processes_agree_on_signals_every_ten_steps_and_after_previews(
    received: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has a signal does not ask alone: it would wait for the others."""
    monkeypatch.setattr(signals, "received", received)
    callback = Waiting()
    module: Any = None
    trainer: Any = SimpleNamespace(world_size=2, callbacks=[Preview(), callback])
    for trainer.global_step in range(1, 21):
        callback.on_train_batch_start(trainer, module)
    assert callback.steps == [7, 10, 14, 20]


def test_a_single_process_reacts_to_a_signal_after_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callback = Waiting()
    module: Any = None
    trainer: Any = SimpleNamespace(world_size=1, callbacks=[callback])
    for trainer.global_step in range(1, 5):
        monkeypatch.setattr(signals, "received", 15 if trainer.global_step == 3 else None)
        callback.on_train_batch_start(trainer, module)
    assert callback.steps == [3]


@pytest.fixture
def _restored_precision() -> Iterator[None]:
    cudnn = torch.backends.cudnn.allow_tf32
    yield
    configure_libraries()
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.mark.usefixtures("_restored_precision")
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_has_all_digits_unless_tf32_is_set(tf32: bool) -> None:
    configure_libraries(tf32)
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_processes_share_gpus_if_there_are_more_processes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: SimpleNamespace(item=lambda: 0.0))
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_device(name) == torch.device("cuda", 1)
