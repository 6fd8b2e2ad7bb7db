"""Loggers: metrics.csv, which every run has and continues, TensorBoard, and Weights & Biases, online or offline."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import netrc
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytorch_lightning as pl
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.errors import UserError
from blackout.files import write_table
from blackout.safe_reading import read_rows


class MetricsCSV(Logger):
    """A logger with one row per step, which keeps the rows up to the step from which a run continues.

    Lightning's `CSVLogger` removes the file of a run that continues, so this one appends to it.

    Args:
        path: the file; written atomically, at most every `seconds`.
        seconds: least time between two writes, after the first one.
        written: called after each.
    """

    name = "csv"
    """Of the logger, as Lightning asks for it."""
    version = ""
    """None: the file goes on."""

    def __init__(self, path: Path, seconds: float = 5.0, written: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._path, self._seconds, self._tell = path, seconds, written
        self._closing = path.with_name(".closing.csv")  # the row of the last step as it was before the run was closed
        self._rows: dict[int, dict[str, str | float]] = read_rows(path) if path.exists() else {}
        self._written, self._news = -math.inf, False
        self._ended: dict[int, dict[str, str | float]] = {}  # the row of the end until the run has gone on
        for step, row in read_rows(self._closing).items() if self._closing.exists() else ():
            if step in self._rows:
                self._ended[step] = self._rows[step]
            if len(row) > 1 or step in self._rows:  # scores that the end alone has stay when the run is extended
                self._rows[step] = self._rows.get(step, {}) | row

    @rank_zero_only
    def close(self, step: int) -> None:
        """Keep the row of the last step as training left it.

        What is logged from here on belongs to the end of the run. If the run is extended, it stays where training had
        logged nothing.
        """
        self._ended = {}
        self._write_rows(self._closing, {step: self._rows.get(step, {"step": step})})

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run directory's config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step, and drop the rows after it."""
        step = 0 if step is None else step
        for later in [s for s in self._rows if s > step]:  # written by a run that was killed past its last checkpoint
            del self._rows[later]
        self._ended = {s: row for s, row in self._ended.items() if s <= step}
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        self._rows.setdefault(step, {"step": step}).update(values)
        self._news = True

    @rank_zero_only
    def save(self) -> None:
        """Write, unless that was just done."""
        if time.monotonic() - self._written > self._seconds:
            self._write()

    @rank_zero_only
    def flush(self) -> None:
        """Write now: before every checkpoint, so that a run that goes on from it misses no row."""
        self._ended = {}
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._news:  # a run that cannot go on leaves the file as it was
            self._write_rows(self._path, self._rows | self._ended)
            self._tell()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write for the last time."""
        # a run that failed should end with its own error, not with this file's
        with contextlib.suppress(OSError) if status == "failed" else contextlib.nullcontext():
            self._write()

    @staticmethod
    def _write_rows(path: Path, rows: Mapping[int, Mapping[str, str | float]]) -> None:
        columns = sorted({name for row in rows.values() for name in row} - {"step"})
        write_table(["step", *columns], (rows[step] for step in sorted(rows)), path)


IMAGES = "images"
"""Name under which the number of training images seen is logged to W&B."""
_PATIENCE = 5.0
"""Seconds in which the W&B server must answer."""


def tensorboard(save_dir: str) -> TensorBoardLogger:
    """Lightning's logger, with event files in `<save_dir>/tensorboard`.

    Raises:
        UserError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("logger=tensorboard needs a package that is not installed: pip install tensorboard")
    return TensorBoardLogger(save_dir, name="tensorboard", version="", default_hp_metric=False)


class Wandb(WandbLogger):
    """A run on Weights & Biases, or on disk until it is uploaded; its files lie in `<save_dir>/wandb`.

    The run is made by the first process alone, when something is first logged. Variables of W&B say the rest, such as
    `WANDB_TAGS`, `WANDB_NOTES` and `WANDB_JOB_TYPE`. Lightning's logger needs the id of a run when it is made; this one
    learns it from the checkpoint. It is offline where the server cannot be reached.

    Args:
        save_dir: the run directory; its name is the run's name.
        project: on W&B.
        entity: user or team; None for the key's own.
        group: runs shown together; None for the name of the sweep, if there is one.
        mode: online, offline or disabled; None for what `WANDB_MODE` or `wandb offline` say, else online if there are
            an API key and a network connection.

    Raises:
        ValueError: another mode.
    """

    def __init__(
        self,
        save_dir: str,
        project: str = "blackout",
        entity: str | None = None,
        group: str | None = None,
        mode: str | None = None,
    ) -> None:
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"mode must be online, offline, disabled or null, not {mode}")
        if group is None and HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
            group = Path(HydraConfig.get().sweep.dir).name
        super().__init__(Path(save_dir).name, save_dir, project=project)
        self._settings: dict[str, Any] = {
            "name": Path(save_dir).name,
            "dir": save_dir,
            "project": project,
            "group": group,
            "entity": entity,
            "resume": "allow",
        }
        self._mode = mode
        self._run: Any = None
        self.run_id: str | None = None
        """Of the run on W&B that is continued; None for a new one."""
        self.images_per_step = 0
        """Of an optimiser step, over all devices; what is logged is shown against their number."""
        self._shown: set[str] = set()

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `wandb.Run`, made on first use.

        Raises:
            UserError: W&B refuses the key, the project or the run.
        """
        if self._run is not None:
            return self._run
        import wandb

        mode, reason = (self._mode, "") if self._mode else find_mode(wandb.setup().settings)
        output = wandb.Settings(silent=mode != "online", quiet=True)
        settings = {**self._settings, "id": self.run_id, "mode": mode, "settings": output}
        try:
            run: Any = wandb.init(**settings)
        except wandb.Error as error:
            problem = str(error).rstrip(".")
            raise UserError(f"logger=wandb: {problem}; logger.wandb.mode=offline keeps the run on disk") from error
        run.define_metric("trainer/global_step")  # as Lightning's logger does
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        self._run = run
        if mode == "offline":
            folder = Path(run.settings.sync_dir)
            print(f"wandb:   offline{reason}; to upload it: wandb sync {folder}", flush=True)
        elif mode == "online":
            print(f"wandb:   {run.url}", flush=True)
        return run

    @property
    def version(self) -> str | None:
        """The id of the run on W&B; None where it is not made yet."""
        return self.run_id if self._run is None else self._run.id

    def finish(self, exit_code: int) -> None:
        """Close the run, if there is one."""
        if self._run is not None:
            self._run.finish(exit_code)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values, with the number of images seen, against which dashboards show them."""
        if step is not None and self.images_per_step:
            for name in metrics.keys() - self._shown:
                self.experiment.define_metric(name, step_metric=IMAGES)
            self._shown |= metrics.keys()
            metrics = {**metrics, IMAGES: step * self.images_per_step}
        super().log_metrics(metrics, step)


def find_mode(settings: Any) -> tuple[str, str]:
    """W&B's mode, and the reason if it is not online: what the user has set, else what key and network allow.

    Args:
        settings: W&B's own, as `wandb offline` and `wandb login` write them.
    """
    if mode := os.environ.get("WANDB_MODE") or (settings.mode if settings.mode != "online" else None):
        return {"dryrun": "offline", "run": "online"}.get(mode, mode), ""
    import requests  # which W&B brings

    server = os.environ.get("WANDB_BASE_URL") or settings.base_url
    key: Any = settings.api_key or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    with contextlib.suppress(OSError, netrc.NetrcParseError):  # no such file: it has no key
        key = key or netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(server).netloc)
    if not key:
        return "offline", " (no key: wandb login)"
    try:
        requests.get(server, timeout=_PATIENCE, stream=True).close()
    except (requests.RequestException, ValueError):  # no network, or no address
        return "offline", f" ({server} cannot be reached)"
    return "online", ""


def continue_run(loggers: Sequence[Logger], checkpoint: Mapping[str, Any]) -> None:
    """Continue logging to the W&B run in which a checkpoint was saved."""
    for logger in loggers:
        if isinstance(logger, Wandb) and "wandb_run" in checkpoint:
            logger.run_id = checkpoint["wandb_run"]


@contextmanager
def dashboards(loggers: Sequence[Logger], config: Mapping[str, Any]) -> Iterator[None]:
    """Open the loggers' runs and log the configuration; close them however training ends, for a sweep's next job."""
    failed = True
    try:
        for logger in loggers:
            if isinstance(logger, Wandb):
                together = config.get("trainer", {}).get("accumulate_grad_batches") or 1
                logger.images_per_step = config.get("batch_size", 0) * together
            logger.log_hyperparams(dict(config))
            if isinstance(logger, TensorBoardLogger):
                text = yaml.safe_dump(dict(config), sort_keys=False)
                logger.experiment.add_text("config", f"```\n{text}```")
        yield
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, Wandb):
                logger.finish(int(failed))
            if isinstance(logger, TensorBoardLogger):  # Lightning did so after training; results were added since
                logger.experiment.flush()


@rank_zero_only
def log_results(trainer: pl.Trainer, values: Mapping[str, float], run: Path) -> None:
    """Log a finished run: its last samples, the way to some, and its results where dashboards compare runs.

    On W&B these are the summary, with the best value of the monitored metric, and the exported model as artifact; on
    TensorBoard the scores beside the hyperparameters.
    """
    pictures = {"samples": run / "samples" / "final.png", "trajectories": run / "samples" / "final" / "trajectory.png"}
    kept: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    best = {name: value for callback in kept for name, value in getattr(callback, "best", {}).items()}
    for logger in trainer.loggers:
        for name, picture in pictures.items():
            if picture.exists():
                log_picture(logger, Image.open(picture), trainer.global_step, name)
        if isinstance(logger, Wandb):
            logger.experiment.summary.update({**values, **best})
            _log_model(logger.experiment, run / "model")
        if isinstance(logger, TensorBoardLogger):
            results = {f"result/{name}": value for name, value in {**values, **best}.items()}
            logger.log_hyperparams(dict(logger.hparams), results)


def _log_model(run: Any, model: Path) -> None:
    """Log the exported model as an artifact; W&B reads the files of an offline run only when it is uploaded."""
    import wandb

    if run.disabled:
        return
    kept = Path(run.settings.sync_dir).absolute() / "model"  # which outlives a later export of the same run
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(model, kept)
    artifact = wandb.Artifact(f"model-{run.id}", type="model")
    for path in sorted(kept.rglob("*")):
        if path.is_file():
            artifact.add_file(str(path), path.relative_to(kept).as_posix(), policy="immutable")
    run.log_artifact(artifact)


def log_picture(logger: Logger, picture: Any, step: int, name: str = "samples") -> None:
    """Show a grid in the logger's dashboard, if it shows pictures."""
    if isinstance(logger, WandbLogger):
        logger.log_image(name, [picture], step=step)
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np

        logger.experiment.add_image(name, np.asarray(picture), step, dataformats="HWC")
