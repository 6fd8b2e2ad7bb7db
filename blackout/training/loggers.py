"""Loggers: metrics.csv of every run, TensorBoard, and Weights & Biases, online or offline."""

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
from typing import Any, TypeAlias
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

# values of one step by the names of their columns
Row: TypeAlias = dict[str, str | float]

IMAGES = "images"  # name under which the number of training images is logged to W&B
SERVER_TIMEOUT = 5.0  # seconds in which the W&B server must answer


class MetricsCSV(Logger):
    """A logger that writes one row per step, and continues the file of a run that resumes.

    Rows after the step from which a run resumes are dropped. Lightning's `CSVLogger` removes the
    file instead, so it is not used.

    Args:
        path: the file; written atomically, at most every `seconds`.
        seconds: least time between two writes, after the first one.
        written: called after each write.
    """

    name = "csv"  # of the logger; Lightning reads it
    version = ""  # there are no versions: a run has one file

    def __init__(
        self, path: Path, seconds: float = 5.0, written: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._path = path
        self._seconds = seconds
        self._on_write = written
        # the row of the last step before the scores of the end of the run were added
        self._closing_path = path.with_name(".closing.csv")
        self._rows: dict[int, Row] = read_rows(path) if path.exists() else {}
        self._last_write = -math.inf  # time.monotonic of the last write
        self._has_new_values = False
        self._final_rows: dict[int, Row] = {}  # with the scores of the end, until training goes on
        closing_rows = read_rows(self._closing_path) if self._closing_path.exists() else {}
        for step, row in closing_rows.items():
            if step in self._rows:
                self._final_rows[step] = self._rows[step]
            # Where training logged nothing, the scores of the end stay when the run is extended.
            if len(row) > 1 or step in self._rows:
                self._rows[step] = self._rows.get(step, {}) | row

    @rank_zero_only
    def close(self, step: int) -> None:
        """Store the row of the last step as training left it.

        Values logged after this call belong to the end of the run. If the run is extended, they
        stay where training has logged nothing, and are dropped elsewhere.
        """
        self._final_rows = {}
        self._write_rows(self._closing_path, {step: self._rows.get(step, {"step": step})})

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml in the run directory contains them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step, and drop the rows after it."""
        step = 0 if step is None else step
        # Later rows are those of a run that was killed after its last checkpoint.
        later_steps = [s for s in self._rows if s > step]
        for later_step in later_steps:
            del self._rows[later_step]
        self._final_rows = {s: row for s, row in self._final_rows.items() if s <= step}
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        self._rows.setdefault(step, {"step": step}).update(values)
        self._has_new_values = True

    @rank_zero_only
    def save(self) -> None:
        """Write the file, unless the last write was less than `seconds` ago."""
        if time.monotonic() - self._last_write > self._seconds:
            self._write()

    @rank_zero_only
    def flush(self) -> None:
        """Write the file now; before every checkpoint, so that a resumed run misses no row."""
        self._final_rows = {}
        self._write()

    def _write(self) -> None:
        self._last_write = time.monotonic()
        # A resumed run that cannot continue logs nothing, and leaves the file as it was.
        if self._has_new_values:
            self._write_rows(self._path, self._rows | self._final_rows)
            self._on_write()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the file for the last time."""
        # a run that failed should end with its own error, not with that of this file
        with contextlib.suppress(OSError) if status == "failed" else contextlib.nullcontext():
            self._write()

    @staticmethod
    def _write_rows(path: Path, rows: Mapping[int, Mapping[str, str | float]]) -> None:
        """Write the rows in the order of their steps, with sorted columns."""
        columns = sorted({name for row in rows.values() for name in row} - {"step"})
        write_table(["step", *columns], (rows[step] for step in sorted(rows)), path)


def tensorboard(save_dir: str) -> TensorBoardLogger:
    """Return Lightning's logger, with event files in `<save_dir>/tensorboard`.

    Raises:
        UserError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs a package that is not installed: pip install tensorboard"
        )
    return TensorBoardLogger(save_dir, name="tensorboard", version="", default_hp_metric=False)


class Wandb(WandbLogger):
    """A run on Weights & Biases, or on disk until it is uploaded; files in `<save_dir>/wandb`.

    The first process alone starts the run, when something is first logged. Lightning's logger needs
    the id of a resumed run when it is built; this one takes it from the checkpoint. If the server
    cannot be reached, the run is offline. W&B's environment variables apply, such as `WANDB_TAGS`,
    `WANDB_NOTES` and `WANDB_JOB_TYPE`.

    Args:
        save_dir: the run directory; its name is the run's name.
        project: on W&B.
        entity: user or team; None for that of the API key.
        group: runs shown together; None for the name of the sweep, if there is one.
        mode: online, offline or disabled; None for `WANDB_MODE` or the setting of `wandb offline`,
            otherwise online if there are an API key and a network connection.
        name: of the run; None for the name of the run directory.
        tags: words by which runs are filtered.
        notes: a text about the run.

    Raises:
        ValueError: another mode.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
        self,
        save_dir: str,
        project: str = "blackout",
        entity: str | None = None,
        group: str | None = None,
        mode: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
    ) -> None:
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"mode must be online, offline, disabled or null, not {mode}")
        if group is None and HydraConfig.initialized():
            hydra_config = HydraConfig.get()
            if hydra_config.mode == RunMode.MULTIRUN:
                group = Path(hydra_config.sweep.dir).name
        name = name or Path(save_dir).name
        super().__init__(name, save_dir, project=project)
        self._settings: dict[str, Any] = {
            "name": name,
            "tags": list(tags) or None,  # None leaves WANDB_TAGS
            "notes": notes,
            "dir": save_dir,
            "project": project,
            "group": group,
            "entity": entity,
            "resume": "allow",
        }
        self._mode = mode
        self._run: Any = None
        self.run_id: str | None = None  # of the run on W&B that is resumed; None for a new one
        # Images of an optimiser step, over all devices. Dashboards show values against images.
        self.images_per_step = 0
        self._defined_metrics: set[str] = set()  # names whose axis is set

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The `wandb.Run`, started on first use.

        Raises:
            UserError: W&B refuses the key, the project or the run.
        """
        if self._run is None:
            self._run = self._start_run()
        return self._run

    def _start_run(self) -> Any:
        """Start or resume the run, and print where it is."""
        import wandb

        # 1. Choose the mode.
        if self._mode:
            mode = self._mode
            reason = ""
        else:
            mode, reason = find_mode(wandb.setup().settings)

        # 2. Start the run.
        output = wandb.Settings(silent=mode != "online", quiet=True)
        settings = {**self._settings, "id": self.run_id, "mode": mode, "settings": output}
        try:
            run: Any = wandb.init(**settings)
        except wandb.Error as error:
            problem = str(error).rstrip(".")
            raise UserError(
                f"logger=wandb: {problem}; logger.wandb.mode=offline keeps the run on disk"
            ) from error
        run.define_metric("trainer/global_step")  # as Lightning's logger does
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)

        # 3. Print its folder or its address.
        if mode == "offline":
            folder = Path(run.settings.sync_dir)
            print(f"wandb:   offline{reason}; to upload it: wandb sync {folder}", flush=True)
        elif mode == "online":
            print(f"wandb:   {run.url}", flush=True)
        return run

    @property
    def version(self) -> str | None:
        """The id of the run on W&B; None before a new run is started."""
        return self.run_id if self._run is None else self._run.id

    def finish(self, exit_code: int) -> None:
        """Finish the run, if it was started."""
        if self._run is not None:
            self._run.finish(exit_code)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values, with the number of images, against which dashboards show them."""
        if step is not None and self.images_per_step:
            for name in metrics.keys() - self._defined_metrics:
                self.experiment.define_metric(name, step_metric=IMAGES)
            self._defined_metrics |= metrics.keys()
            metrics = {**metrics, IMAGES: step * self.images_per_step}
        super().log_metrics(metrics, step)


def find_mode(settings: Any) -> tuple[str, str]:
    """Find the mode of W&B: the user's setting, otherwise what the key and the network allow.

    Args:
        settings: of W&B, as `wandb offline` and `wandb login` write them.

    Returns:
        The mode, and the reason for being offline, in brackets; empty if the user chose the mode or
        it is online.
    """
    # 1. The user's choice.
    mode = os.environ.get("WANDB_MODE")
    if not mode and settings.mode != "online":  # online is W&B's default
        mode = settings.mode
    if mode:
        return {"dryrun": "offline", "run": "online"}.get(mode, mode), ""

    # 2. A key.
    server = os.environ.get("WANDB_BASE_URL") or settings.base_url
    key: Any = settings.api_key
    key = key or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    # a missing or damaged netrc file contains no key
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        key = key or netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(server).netloc)
    if not key:
        return "offline", " (no key: wandb login)"

    # 3. A connection.
    import requests  # installed with W&B

    try:
        requests.get(server, timeout=SERVER_TIMEOUT, stream=True).close()
    except (requests.RequestException, ValueError):  # no network, or no valid address
        return "offline", f" ({server} cannot be reached)"
    return "online", ""


def continue_run(loggers: Sequence[Logger], checkpoint: Mapping[str, Any]) -> None:
    """Continue logging to the W&B run in which a checkpoint was saved."""
    for logger in loggers:
        if isinstance(logger, Wandb) and "wandb_run" in checkpoint:
            logger.run_id = checkpoint["wandb_run"]


@contextmanager
def dashboards(loggers: Sequence[Logger], config: Mapping[str, Any]) -> Iterator[None]:
    """Log the configuration, and close the loggers' runs after the block, also after an error.

    The next job of a sweep, in the same process, needs them closed.

    Args:
        loggers: of the run.
        config: of the run.
    """
    failed = True
    try:
        for logger in loggers:
            if isinstance(logger, Wandb):
                micro_batches = config.get("trainer", {}).get("accumulate_grad_batches") or 1
                logger.images_per_step = config.get("batch_size", 0) * micro_batches
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
            if isinstance(logger, TensorBoardLogger):
                # Lightning flushed it after training, before the results were added.
                logger.experiment.flush()


@rank_zero_only
def log_results(trainer: pl.Trainer, values: Mapping[str, float], run: Path) -> None:
    """Log the results of a run where dashboards compare runs, and pictures of its samples.

    On W&B the results are the summary, with the best value of the monitored metric, and the
    exported model is an artifact. On TensorBoard the results are next to the hyperparameters.

    Args:
        trainer: of the run, after training.
        values: results by name.
        run: the run directory.
    """
    pictures = {
        "samples": run / "samples" / "final.png",
        "trajectories": run / "samples" / "final" / "trajectory.png",
    }
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    results = dict(values)
    for callback in callbacks:
        results |= getattr(callback, "best", {})
    for logger in trainer.loggers:
        for name, picture in pictures.items():
            if picture.exists():
                log_picture(logger, Image.open(picture), trainer.global_step, name)
        if isinstance(logger, Wandb):
            logger.experiment.summary.update(results)
            _log_model(logger.experiment, run / "model")
        if isinstance(logger, TensorBoardLogger):
            metrics = {f"result/{name}": value for name, value in results.items()}
            logger.log_hyperparams(dict(logger.hparams), metrics)


def _log_model(run: Any, model: Path) -> None:
    """Log an exported model as an artifact.

    W&B reads the files of an offline run when it is uploaded. They are copied to the folder of the
    W&B run, because a later export of the same run replaces the model.

    Args:
        run: the `wandb.Run`.
        model: folder of the exported model.
    """
    import wandb

    if run.disabled:
        return
    copy = Path(run.settings.sync_dir).absolute() / "model"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(model, copy)
    artifact = wandb.Artifact(f"model-{run.id}", type="model")
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            artifact.add_file(str(path), path.relative_to(copy).as_posix(), policy="immutable")
    run.log_artifact(artifact)


def log_picture(logger: Logger, picture: Any, step: int, name: str = "samples") -> None:
    """Show a picture in the logger's dashboard, if it has one.

    Args:
        logger: of the run.
        picture: a PIL image.
        step: optimiser step.
        name: of the panel.
    """
    if isinstance(logger, WandbLogger):
        logger.log_image(name, [picture], step=step)
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np

        logger.experiment.add_image(name, np.asarray(picture), step, dataformats="HWC")
