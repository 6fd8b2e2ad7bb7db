"""When a run is saved and how it continues.

Checkpoints are saved at boundaries between optimiser steps, after the previews due there. A run
that continues with other versions or devices prints a warning.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
from pytorch_lightning.callbacks import Checkpoint

from blackout.errors import UserError, check_at_least_one, ensure
from blackout.preemption import signals
from blackout.random import compiler_version
from blackout.training.checkpoint_files import BEST, LAST, read_checkpoint, write_checkpoint
from blackout.training.host_copies import HostCopy, copy_to_host
from blackout.training.loggers import MetricsCSV, Wandb
from blackout.training.step_callbacks import StepCallback, check_finite


class AtomicCheckpointIO(CheckpointIO):
    """Checkpoint storage of the trainer: a thread writes a copy, so no step waits for the disk.

    Nor does a step wait for an accelerator to copy its tensors: the thread does, see `HostCopy`.
    Lightning's `AsyncCheckpointIO` raises an error only in the first process, which writes, and the
    other processes would wait forever. Here `failure` returns the error, and `Checkpoints`
    broadcasts it.

    Args:
        on_save: called by the thread after each checkpoint.
    """

    def __init__(self, on_save: Callable[[], None] = lambda: None) -> None:
        self._on_save = on_save
        self._executor = ThreadPoolExecutor(max_workers=1)  # its thread ends with the program
        self._futures: dict[Path, Future[None]] = {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint atomically in the thread, see `write_checkpoint`."""
        copy = copy_to_host(checkpoint)
        self._futures[Path(path)] = self._executor.submit(self._write, copy, Path(path))

    def _write(self, copy: HostCopy, path: Path) -> None:
        copy.wait()
        write_checkpoint(copy.content, path)
        self._on_save()

    def failure(self, *paths: Path) -> str | None:
        """Wait for the last writes to these paths, and return the reason if one has failed.

        Args:
            paths: of checkpoints; none for all.

        Returns:
            The file and the reason; None if all checkpoints are written.
        """
        for path in paths or tuple(self._futures):
            future = self._futures.pop(path, None)
            if future is None:
                continue
            try:
                future.result()
            except UserError as error:  # `Checkpoints` stops all processes together
                return str(error)
            except OSError as error:
                return f"{path}: {error.strerror or error}"
        return None

    def teardown(self) -> None:
        """Wait for all writes, before another process may use the run directory."""
        wait(self._futures.values())

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return tensors and plain containers, on the CPU, whatever Lightning asks for."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(StepCallback, Checkpoint):
    """Saves `last.ckpt` regularly, at the end and on a signal, and `best.ckpt` by a metric.

    Lightning's `ModelCheckpoint` saves within a step, before the validation and the previews due at
    it. A run that continues from there would leave these out.

    Args:
        directory: of the checkpoints.
        every_n_steps: optimiser steps between two saves of `last.ckpt`.
        monitor: the metric by which the best checkpoint is chosen; None for no best checkpoint.
        mode: "min" if smaller values are better, "max" if larger ones are.
        restore_best: whether the model has the best weights at the end, not the last ones (early
            stopping).
        signals_every_n_steps: optimiser steps, or batches of a validation, between two exchanges of
            several processes about signals; a signal takes effect with the next exchange. A single
            process reacts to it after the step.

    Raises:
        ValueError: every_n_steps or signals_every_n_steps below 1, or an unknown mode.
    """

    reacts_to_signals = True

    def __init__(
        self,
        directory: str | Path,
        every_n_steps: int = 500,
        monitor: str | None = "val/bits_per_dim",
        mode: str = "min",
        restore_best: bool = False,
        signals_every_n_steps: int = 10,
    ) -> None:
        check_at_least_one(every_n_steps=every_n_steps, signals_every_n_steps=signals_every_n_steps)
        ensure(mode in ("min", "max"), f"mode must be min or max, not {mode}")
        self._directory = Path(directory)
        self.every = every_n_steps
        self.signal_interval = signals_every_n_steps
        self._monitor = monitor
        self._is_better = operator.lt if mode == "min" else operator.gt
        self._restore_best = restore_best
        self._best: float | None = None
        self._last_saved_step = -1  # of last.ckpt
        self._is_validating = False  # in a validation within training
        self._has_warned = False
        self._validation_is_due = False  # the loaded checkpoint was saved in the middle of one

    @property
    def best(self) -> dict[str, float]:
        """The best value so far of the monitored metric, as `best/<metric>`; empty without one."""
        return {} if self._best is None else {f"best/{self._monitor}": self._best}

    def restore_best(self, model: pl.LightningModule, last: Mapping[str, float]) -> int | None:
        """Load the weights of `best.ckpt`, if this is wanted and their score is better.

        Args:
            model: in training.
            last: metrics of its present weights.

        Returns:
            The step of the loaded weights; None if the present weights stay.
        """
        path = self._directory / BEST
        last_score = last.get(self._monitor or "")
        if not self._restore_best or self._best is None or last_score is None:
            return None
        if not path.exists() or not self._is_better(self._best, last_score):
            return None
        checkpoint = read_checkpoint(path)
        model.load_state_dict(checkpoint["state_dict"])
        return int(checkpoint["global_step"])

    # --- content of checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the best score so far, and whether a validation is running."""
        return {"best": self._best, "validating": self._is_validating}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; other content raises an error, and the checkpoint is then refused."""
        self._best = state_dict["best"]
        self._validation_is_due = bool(state_dict["validating"])

    def on_save_checkpoint(
        self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record versions, devices and the W&B run, and count batches as at a boundary."""
        checkpoint["made_with"] = environment(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, Wandb) and trainer.is_global_zero:
                checkpoint["wandb_run"] = logger.version
        # at a boundary Lightning already counts the batch that is about to start
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in progress.values():
            if isinstance(counts, dict):
                num_completed = counts["completed"]
                counts["ready"] = num_completed
                counts["started"] = num_completed
                counts["processed"] = num_completed

    def on_load_checkpoint(
        self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Warn if versions or devices have changed."""
        old = checkpoint.get("made_with", {})
        changes = []
        for name, value in environment(trainer).items():
            if name in old and old[name] != value:
                changes.append(f"{name} {old[name]} -> {value}")
        if changes and trainer.is_global_zero:
            print(f"warning: not continued bit for bit: {', '.join(changes)}", file=sys.stderr)

    # --- training

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the signal handlers, and repeat a validation that the checkpoint interrupted."""
        super().on_train_start(trainer, pl_module)
        signals.install()
        signals.join_group()
        self._last_saved_step = trainer.global_step
        loop = trainer.fit_loop.epoch_loop
        # Every checkpoint is of a boundary, so Lightning need not guess its place within a step.
        loop.restarting = False
        if self._validation_is_due:
            self._validation_is_due = False
            trainer.validating = True
            loop.val_loop.run()
            trainer.training = True
            # Lightning counts a step after its validation, at which the checkpoint was saved.
            state = loop.on_save_checkpoint()
            num_steps = state["_batches_that_stepped"] + 1
            loop.on_load_checkpoint({**state, "_batches_that_stepped": num_steps})

    def on_step_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if it is due or a signal has arrived, and stop the run on a signal."""
        signum = signals.agreed()
        if signum or self.boundary % self.every == 0:
            self._save(trainer, LAST)
        if signum:
            self._wait_and_stop(trainer, signum)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store whether this validation is one within training."""
        self._is_validating = trainer.state.fn == "fit" and not trainer.sanity_checking

    def on_validation_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Stop the run on a signal: validation changes no weights, and is repeated on resume.

        The last validation of a run is completed first. Lightning would find nothing left to do,
        and never repeat it.
        """
        is_last_step = 0 < trainer.max_steps <= trainer.global_step
        if not self._is_validating or is_last_step:
            return
        if trainer.world_size > 1 and batch_idx % self.signal_interval:
            return
        signum = signals.agreed()
        if signum:
            self._save(trainer, LAST)
            self._wait_and_stop(trainer, signum)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the best checkpoint; warn once if the metric to choose it by does not exist."""
        was_validating = self._is_validating
        self._is_validating = False
        if not was_validating or self._monitor is None:
            return
        metrics = trainer.callback_metrics
        if self._monitor in metrics:
            score = float(metrics[self._monitor])
            is_best = self._best is None or self._is_better(score, self._best)
            if is_best and not math.isnan(score):
                self._best = score
                self._save(trainer, BEST)
        elif not self._has_warned and trainer.is_global_zero:
            self._has_warned = True
            names = ", ".join(sorted(metrics)) or "none"
            print(
                f"warning: no best checkpoint is kept: {self._monitor} is not among the metrics "
                f"{names}",
                file=sys.stderr,
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last step, and stop the run if a signal has arrived."""
        if trainer.global_step != self._last_saved_step:
            self._save(trainer, LAST)
        self._wait_and_stop(trainer, signals.agreed())

    # --- writing

    def _wait_and_stop(self, trainer: pl.Trainer, signum: int | None) -> None:
        """Wait until all checkpoints are on the disk, then stop the run if there was a signal."""
        self._check_written(trainer)
        if signum:
            signals.leave(signum, trainer.global_step)

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        """Save on all processes together; the first one writes while training goes on.

        Raises:
            UserError: the earlier checkpoint of this name could not be written.
        """
        check_finite(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                logger.flush()
        self._check_written(trainer, self._directory / name)
        trainer.save_checkpoint(self._directory / name)
        if name == LAST:
            self._last_saved_step = trainer.global_step

    def _check_written(self, trainer: pl.Trainer, *paths: Path) -> None:
        """Wait until the checkpoints at these paths, or all of them, are on the disk.

        Raises:
            UserError: one cannot be written. The file that was there is unchanged.
        """
        checkpoint_io = trainer.strategy.checkpoint_io
        assert isinstance(checkpoint_io, AtomicCheckpointIO)
        failure = trainer.strategy.broadcast(checkpoint_io.failure(*paths))
        if not failure:
            return
        if not trainer.is_global_zero:
            sys.exit(0)  # the first process prints the error
        last = self._directory / LAST
        remaining = "nothing was saved before"
        if last.exists():
            remaining = f"the checkpoint saved before is untouched: {last}"
        raise UserError(
            f"cannot save {failure}; training stopped at step {trainer.global_step}, {remaining}"
        )


def environment(trainer: pl.Trainer) -> dict[str, Any]:
    """Return versions, devices and threads; if they are equal, a run continues bit for bit."""
    device_type = trainer.strategy.root_device.type
    is_cpu = device_type == "cpu"
    return {
        "torch": str(torch.__version__),
        "pytorch_lightning": pl.__version__,
        "processes": trainer.world_size,
        "device": device_type,
        "instruction set": torch.backends.cpu.get_cpu_capability() if is_cpu else "",
        "threads": torch.get_num_threads() if is_cpu else 0,
        "draws": compiler_version(),
    }
