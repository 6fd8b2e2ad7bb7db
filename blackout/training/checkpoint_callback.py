"""When a run is saved, and how it continues, with a warning if elsewhere: only at boundaries between optimiser steps,
after previews due there.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Checkpoint

from blackout.errors import UserError, check_at_least_one, ensure
from blackout.preemption import signals
from blackout.random import compiler_version
from blackout.training.checkpoint_files import BEST, LAST, read_checkpoint, write_checkpoint
from blackout.training.lightning_module import StepCallback, check_finite
from blackout.training.loggers import MetricsCSV, Wandb


class AtomicCheckpointIO(CheckpointIO):
    """How the trainer stores checkpoints: a thread writes a copy, and no step waits for the disk.

    Lightning's `AsyncCheckpointIO` raises an error in the first process alone, which is the one that writes, and the
    other processes would wait forever. Here a failure is told by `failure`, and `Checkpoints` broadcasts it.

    Args:
        saved: called by the thread after each.
    """

    def __init__(self, saved: Callable[[], None] = lambda: None) -> None:
        self._saved = saved
        self._writer = ThreadPoolExecutor(max_workers=1)  # whose thread ends with the program, not before
        self._writing: dict[Path, Future[None]] = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write atomically, beside what follows; `last.ckpt` becomes `previous.ckpt` first."""
        copied = apply_to_collection(checkpoint, torch.Tensor, lambda x: x.detach().to("cpu", copy=True))
        self._writing[Path(path)] = self._writer.submit(self._write, copied, Path(path))

    def _write(self, checkpoint: dict[str, Any], path: Path) -> None:
        write_checkpoint(checkpoint, path)
        self._saved()

    def failure(self, *paths: Path) -> str | None:
        """Why what was last saved there, or anywhere, could not be written; waits until it is."""
        for path in paths or tuple(self._writing):
            try:
                if (writing := self._writing.pop(path, None)) is not None:
                    writing.result()
            except (OSError, UserError) as error:  # the caller tells all processes, which stop together
                return str(error) if isinstance(error, UserError) else f"{path}: {error.strerror or error}"
        return None

    def teardown(self) -> None:
        """Wait for what is being written, before the run directory is anybody else's."""
        wait(self._writing.values())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Tensors and plain containers, on the CPU, whatever Lightning asks for."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(StepCallback, Checkpoint):
    """`last.ckpt` every `every_n_steps` steps, at the end, and when a signal arrives; `best.ckpt` by a metric.

    Lightning's `ModelCheckpoint` saves within a step, before the validation and the previews due at it, which a run
    that goes on from there would leave out.

    Args:
        directory: where they go.
        every_n_steps: optimiser steps between two saves of `last.ckpt`.
        monitor: the metric by which the best is chosen; None for no best.
        mode: whether less ("min") or more ("max") of it is better.
        restore_best: whether the best of the weights, not the last, are the model at the end (early stopping).

    Raises:
        ValueError: every_n_steps below 1, or an unknown mode.
    """

    reacts_to_signals = True

    def __init__(
        self,
        directory: str | Path,
        every_n_steps: int = 500,
        monitor: str | None = "val/bits_per_dim",
        mode: str = "min",
        restore_best: bool = False,
    ) -> None:
        check_at_least_one(every_n_steps=every_n_steps)
        ensure(mode in ("min", "max"), f"mode must be min or max, not {mode}")
        self._directory, self.every, self._monitor = Path(directory), every_n_steps, monitor
        self._better = operator.lt if mode == "min" else operator.gt
        self._restores = restore_best
        self._best: float | None = None
        self._saved_at = -1  # step of the last save
        self._validating = False  # a validation within training is going on
        self._warned = False
        self._validation_is_due = False  # the loaded checkpoint was saved in the middle of one

    @property
    def best(self) -> dict[str, float]:
        """The best value so far of the monitored metric, as `best/<its name>`."""
        return {} if self._best is None else {f"best/{self._monitor}": self._best}

    def restore_best(self, model: pl.LightningModule, last: Mapping[str, float]) -> int | None:
        """Load the weights of `best.ckpt` where its score is better than that of the last ones, where that is wanted.

        Args:
            model: in training.
            last: metrics of its present weights.

        Returns:
            The step of the weights; None where the present ones stay.
        """
        path, now, best = self._directory / BEST, last.get(self._monitor or ""), self._best
        if not self._restores or best is None or now is None or not path.exists() or not self._better(best, now):
            return None
        saved = read_checkpoint(path)
        model.load_state_dict(saved["state_dict"])
        return int(saved["global_step"])

    def state_dict(self) -> dict[str, Any]:
        """The best score so far, and whether a validation is going on."""
        return {"best": self._best, "validating": self._validating}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; any other content raises, and the checkpoint is then refused."""
        self._best, self._validation_is_due = state_dict["best"], bool(state_dict["validating"])

    def on_save_checkpoint(self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Record versions, devices and the W&B run, and count batches as at a boundary."""
        checkpoint["made_with"] = circumstances(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, Wandb) and trainer.is_global_zero:
                checkpoint["wandb_run"] = logger.version
        # at a boundary Lightning already counts the batch that is about to start
        for counts in checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].values():
            if isinstance(counts, dict):
                counts["ready"] = counts["started"] = counts["processed"] = counts["completed"]

    def on_load_checkpoint(self, trainer: pl.Trainer, _: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Warn where versions or devices have changed."""
        made, here = checkpoint.get("made_with", {}), circumstances(trainer)
        changed = [f"{name} {made[name]} -> {here[name]}" for name in here if name in made and made[name] != here[name]]
        if changed and trainer.is_global_zero:
            print(f"warning: not continued bit for bit: {', '.join(changed)}", file=sys.stderr)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals, and repeat a validation in the middle of which the checkpoint was saved."""
        super().on_train_start(trainer, pl_module)
        signals.install()
        self._saved_at = trainer.global_step
        loop = trainer.fit_loop.epoch_loop
        # a checkpoint is always of a boundary, so that Lightning need not guess where within a step it was saved
        loop.restarting = False
        if self._validation_is_due:
            self._validation_is_due = False
            trainer.validating = True
            loop.val_loop.run()
            trainer.training = True
            # Lightning counts the step after its validation, at which the checkpoint was saved.
            state = loop.on_save_checkpoint()
            loop.on_load_checkpoint({**state, "_batches_that_stepped": state["_batches_that_stepped"] + 1})

    def at_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save when it is time to or a signal asks for it, and then leave."""
        signum = signals.agreed()
        if signum or self.boundary % self.every == 0:
            self._save(trainer, LAST)
        if signum:
            self._leave(trainer, signum)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Know a validation within training from others."""
        self._validating = trainer.state.fn == "fit" and not trainer.sanity_checking

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Leave if a signal asks for it: validation changes no weights, and is repeated when the run continues.

        The run's last validation is finished first: Lightning would see nothing left to do, and never repeat it.
        """
        last = 0 < trainer.max_steps <= trainer.global_step
        if self._validating and not last and (signum := signals.agreed()):
            self._save(trainer, LAST)
            self._leave(trainer, signum)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the best, or say once that there is no such metric to choose it by."""
        validated, self._validating = self._validating, False
        if not validated or self._monitor is None:
            return
        if self._monitor in trainer.callback_metrics:
            score = float(trainer.callback_metrics[self._monitor])
            if score == score and (self._best is None or self._better(score, self._best)):
                self._best = score
                self._save(trainer, BEST)
        elif not self._warned and trainer.is_global_zero:
            self._warned = True
            there = f"{self._monitor} is not among the metrics {', '.join(sorted(trainer.callback_metrics)) or 'none'}"
            print(f"warning: no best checkpoint is kept: {there}", file=sys.stderr)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last step, and leave if a signal asked for it."""
        if trainer.global_step != self._saved_at:
            self._save(trainer, LAST)
        self._leave(trainer, signals.agreed())

    def _leave(self, trainer: pl.Trainer, signum: int | None) -> None:
        """Wait for the disk, and leave if a signal asked for it."""
        self._check_written(trainer)
        if signum:
            signals.leave(signum, trainer.global_step)

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        """Save on all processes together; the first one writes, while training goes on.

        Raises:
            UserError: see `_check_written`, of the file before.
        """
        check_finite(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                logger.flush()
        self._check_written(trainer, self._directory / name)
        trainer.save_checkpoint(self._directory / name)
        if name == LAST:
            self._saved_at = trainer.global_step

    def _check_written(self, trainer: pl.Trainer, *paths: Path) -> None:
        """Wait until what was last saved there, or anywhere, is on the disk.

        Raises:
            UserError: it cannot be written. The file before is untouched.
        """
        store = trainer.strategy.checkpoint_io
        assert isinstance(store, AtomicCheckpointIO)
        if failure := trainer.strategy.broadcast(store.failure(*paths)):
            if not trainer.is_global_zero:
                sys.exit(0)
            last = self._directory / LAST
            left = f"the checkpoint saved before is untouched: {last}" if last.exists() else "nothing was saved before"
            raise UserError(f"cannot save {failure}; training stopped at step {trainer.global_step}, {left}")


def circumstances(trainer: pl.Trainer) -> dict[str, Any]:
    """Versions, devices and threads that must be the same for a run to continue bit for bit."""
    on_cpu = trainer.strategy.root_device.type == "cpu"
    return {
        "torch": str(torch.__version__),
        "pytorch_lightning": pl.__version__,
        "processes": trainer.world_size,
        "device": trainer.strategy.root_device.type,
        "instruction set": torch.backends.cpu.get_cpu_capability() if on_cpu else "",
        "threads": torch.get_num_threads() if on_cpu else 0,
        "draws": compiler_version(),
    }
