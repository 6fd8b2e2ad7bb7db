"""The files of a trained model: their names, and reading them without building anything.

An exported model is a folder of safetensors weights, a JSON description and a model card. A
checkpoint and a run directory contain a model, too.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from blackout.config.allowed_components import copy_plain_values
from blackout.errors import UserError, refuse
from blackout.safe_reading import open_regular, read_mapping
from blackout.training.checkpoint_files import FORMAT, file_sha256, find_checkpoint, read_checkpoint

WEIGHTS_FILE = "model.safetensors"
DESCRIPTION_FILE = "config.json"
CARD_FILE = "README.md"
EXPORTED_FILES = (WEIGHTS_FILE, DESCRIPTION_FILE, CARD_FILE)

WEIGHTS_HASH = "weights_sha256"  # key of config.json
CARD_HASH = "card_sha256"  # key of config.json

NETWORK_PREFIX = "network."  # of the trained weights
AVERAGED_PREFIX = "ema.module."  # of the averaged weights in a checkpoint
AVERAGE_PREFIX = "ema."  # of everything that belongs to the average in a checkpoint

RETRY_SECONDS = 0.05  # more than it takes to rename a new folder into the place of the old one

# the description of a model, the weights of its network by name, and its other tensors by name
ModelContents: TypeAlias = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]


def read_model(path: Path) -> ModelContents:
    """Read the description, the network's weights and the other tensors of a model.

    Nothing is built.

    Args:
        path: as for `load_model`.

    Raises:
        UserError: there is no model at `path`, or it is damaged or has another format.
    """
    refuse(
        not path.exists(),
        f"there is no model at {path}: name a run directory, a .ckpt file or an exported model",
    )
    try:
        return _read_model_once(path)
    except UserError:
        # A run may be replacing its model at this moment.
        time.sleep(RETRY_SECONDS)
        return _read_model_once(path)


def _read_model_once(path: Path) -> ModelContents:
    """Read a checkpoint, an exported model, or one of them from a run directory."""
    if not path.is_dir():
        return _read_checkpoint(path)
    if (path / DESCRIPTION_FILE).exists():
        return _read_export(path)
    # a run directory: its exported model, otherwise its last checkpoint
    if (path / "model").exists():
        model_path: Path | None = path / "model"
    else:
        model_path = find_checkpoint(path / "checkpoints")
    if model_path is None:
        raise UserError(
            f"there is no model in {path}: it needs config.json, model/ or checkpoints/last.ckpt"
        )
    return _read_export(model_path) if model_path.is_dir() else _read_checkpoint(model_path)


def _read_export(directory: Path) -> ModelContents:
    """Read an exported model, and check the hash of its weights.

    Raises:
        UserError: a file is missing, damaged, or of another format.
    """
    try:
        description = read_mapping(directory / DESCRIPTION_FILE)
        open_regular(directory / WEIGHTS_FILE).close()
        tensors = load_file(directory / WEIGHTS_FILE)
    except FileNotFoundError as error:
        file_name = Path(error.filename or WEIGHTS_FILE).name
        raise UserError(
            f"{directory} is incomplete: {file_name} is missing; export the model again"
        ) from None
    except SafetensorError as error:
        raise UserError(f"{directory} is damaged: {error}; export the model again") from None
    description = check_description(description, directory)
    description.pop(CARD_HASH, None)
    if description.pop(WEIGHTS_HASH, None) != file_sha256(directory / WEIGHTS_FILE):
        raise UserError(
            f"{directory} is damaged: {WEIGHTS_FILE} does not match its hash in "
            f"{DESCRIPTION_FILE}; export the model again"
        )
    weights, other_tensors = _split_weights(tensors, NETWORK_PREFIX)
    return description, weights, other_tensors


def _read_checkpoint(path: Path) -> ModelContents:
    """Read the model of a checkpoint, with the averaged weights where there are any.

    Raises:
        UserError: the file is no checkpoint, damaged, or of another format.
    """
    checkpoint = read_checkpoint(path)
    tensors = {
        name: value for name, value in checkpoint["state_dict"].items() if isinstance(value, Tensor)
    }
    has_average = any(name.startswith(AVERAGED_PREFIX) for name in tensors)
    prefix = AVERAGED_PREFIX if has_average else NETWORK_PREFIX
    description = check_description({"format": FORMAT, **checkpoint["blackout"]}, path)
    weights, other_tensors = _split_weights(tensors, prefix)
    return description, weights, other_tensors


def _split_weights(
    tensors: Mapping[str, Tensor], prefix: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a model into weights of its network and other tensors.

    Args:
        tensors: of a file, by name.
        prefix: of the names of the weights; it is removed.
    """
    weights = {}
    other_tensors = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            weights[name.removeprefix(prefix)] = value
        if not name.startswith((AVERAGE_PREFIX, NETWORK_PREFIX)):
            other_tensors[name] = value
    return weights, other_tensors


def check_description(description: Any, path: Path) -> dict[str, Any]:
    """Check the description of a model, and return a copy in plain containers.

    Args:
        description: as it was read from a file.
        path: of the file, for messages.

    Raises:
        UserError: it is no description of a model, contains more than plain values, or has another
            format.
    """
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise UserError(
            f"{path} does not describe a Blackout model: give a run directory, a .ckpt file or an "
            "exported model"
        )
    file_format = description.get("format")
    refuse(
        file_format != FORMAT,
        f"{path} has format {reprlib.repr(file_format)}; this version reads format {FORMAT}",
    )
    return dict(copy_plain_values(description, str(path)))
