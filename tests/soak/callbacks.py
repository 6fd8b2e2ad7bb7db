"""Callbacks that disturb runs: `+callbacks.x._target_=tests.soak.callbacks.OrderHash`."""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback


class OrderHash(Callback):
    """A chain of hashes over the indices of all training batches.

    A skipped or repeated batch changes it.
    """

    def __init__(self) -> None:
        self._chain = ""

    def state_dict(self) -> dict[str, Any]:
        return {"chain": self._chain}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._chain = state_dict["chain"]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        link = f"{self._chain} {batch['batch_number']} {batch['index'].tolist()}"
        self._chain = hashlib.sha256(link.encode()).hexdigest()


class SignalAt(Callback):
    """Sends this process a signal once, in a training step or in the validation after it."""

    def __init__(self, step: int, name: str = "SIGTERM", during: str = "training") -> None:
        self._step = step
        self._signal = signal.Signals[name]
        self._during = during

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strike(trainer, "training")

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._strike(trainer, "validation")

    def _strike(self, trainer: pl.Trainer, during: str) -> None:
        if (trainer.global_step, during) == (self._step, self._during):
            os.kill(os.getpid(), self._signal)


class KilledOnce(Callback):
    """Kills a process of torchrun's group at one of `steps` after every start.

    The last and the first process are killed in turn.
    """

    def __init__(self, steps: list[int]) -> None:
        self._steps = steps

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        num_restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        rank = (num_restarts + 1) % trainer.world_size
        if num_restarts < len(self._steps) and (trainer.global_step, trainer.global_rank) == (
            self._steps[num_restarts],
            rank,
        ):
            os.kill(os.getpid(), signal.SIGKILL)


class KilledAtEnd(Callback):
    """Kills the process after training, just before the n-th file or folder appears by renaming."""

    def __init__(self, number: int) -> None:
        self._left = number

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        replace = os.replace

        def kill_before_replace(*args: Any, **kwargs: Any) -> None:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*args, **kwargs)

        os.replace = kill_before_replace  # type: ignore[assignment]  # until this process ends


class FailsAt(Callback):
    """Raises an error after a training step, in one process."""

    def __init__(self, step: int, rank: int = 0) -> None:
        self._step = step
        self._rank = rank

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if (trainer.global_step, trainer.global_rank) == (self._step, self._rank):
            raise RuntimeError("a fault of one process")


class ThreadsAtExit(Callback):
    """Writes the names of the threads that are alive when the interpreter shuts down, a line each.

    Each process writes a file of its own, named by its rank.
    """

    def __init__(self, folder: str) -> None:
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
        atexit.register(write_thread_names, Path(folder) / f"rank_{rank}.txt")


def write_thread_names(path: Path) -> None:
    """Write the names of this process's threads, those of libraries too."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    path.write_text("\n".join(names))


class Poison(Callback):
    """Makes one gradient infinite before an optimiser step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == self._step:
            next(p for p in pl_module.parameters() if p.grad is not None).grad.view(-1)[0] = (
                torch.inf
            )  # type: ignore[union-attr]


class LiveTensors(Callback):
    """Counts the live tensors at some training steps, and writes a line per step to `path`."""

    def __init__(self, path: str, steps: list[int]) -> None:
        self._path = Path(path)
        self._steps = steps
        self._counts = list[int]()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step in self._steps:
            # wait for a pending save, which keeps a copy alive
            trainer.strategy.checkpoint_io.teardown()
            self._counts.append(live_tensors())

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._path.write_text("\n".join(map(str, self._counts)))


def live_tensors() -> int:
    """Return the number of live tensors."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
