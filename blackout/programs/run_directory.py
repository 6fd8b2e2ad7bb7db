"""A run's directory: its name, its configuration, and whether a run may continue in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout import addresses
from blackout.errors import UserError
from blackout.files import replacing
from blackout.programs.settings import decisive, differences


def run_id(config: Mapping[str, Any]) -> str:
    """The given run_id, or a hash of all settings that decide the result: the same command finds the same run.

    Raises:
        UserError: the given one is not a plain directory name.
    """
    if config["run_id"] is not None:
        name = str(config["run_id"])
        if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
            raise UserError(f"run_id must be a plain directory name, not '{name}'")
        return name
    spelled = addresses.as_first_spelled(decisive(config))
    return hashlib.sha256(json.dumps(spelled, sort_keys=True, default=str).encode()).hexdigest()[:8]


def run_directory(config: Mapping[str, Any], dataset: str) -> Path:
    """`runs/<experiment>/<run_id>`, whether it exists or not."""
    return Path(config["runs_dir"]) / str(config["experiment_name"] or dataset) / run_id(config)


def open_run(config: Mapping[str, Any], dataset: str) -> Path:
    """Make or reopen `runs/<experiment>/<run_id>` and write the resolved configuration there.

    Raises:
        UserError: the directory cannot be written, or holds a run with other settings.
    """
    directory = run_directory(config, dataset)
    path = directory / "config.yaml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for name, was, now in differences(addresses.modernise(_read(path)), config):
                advice = "give another run_id, or remove the directory"
                raise UserError(f"{directory} holds a run with {name}={was}, not {now}: {advice}")
        if getattr(rank_zero_only, "rank", 0) == 0:
            with replacing(path) as part:
                part.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    except OSError as error:
        raise UserError(f"cannot write the run directory {directory}: {error.strerror or error}") from None
    return directory


def _read(path: Path) -> Mapping[str, Any]:
    try:
        old = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}; remove it to go on") from None
    if not isinstance(old, Mapping):
        raise UserError(f"{path} is damaged: it holds no settings; remove it to go on")
    return old
