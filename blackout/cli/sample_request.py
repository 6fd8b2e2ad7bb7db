"""The request of `sample.py`: the model, the data to compare with, and settings of the family."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from blackout.cli.mirror import fetch_folder
from blackout.cli.run_results import read_settings
from blackout.config.allowed_components import copy_plain_values, find_allowed
from blackout.config.descriptions import add_defaults
from blackout.config.instantiate import instantiate
from blackout.config.settings import is_overridden, optional_path
from blackout.errors import UserError, escaped, refuse
from blackout.training.family import ComponentFamily
from blackout.training.loading import load_trained
from blackout.training.model import Model

# settings of this program; all others belong to the model's family
PROGRAM_SETTINGS = frozenset(
    [
        "ckpt",
        "compile",
        "data_dir",
        "dataset",
        "device",
        "evaluate",
        "indices",
        "likelihood",
        "metrics",
        "num_samples",
        "out",
        "prior",
        "samples",
        "seed",
        "seeds",
        "shown",
        "sizes",
        "tf32",
        "trajectory",
        "trusted",
    ]
)
SAMPLER_GROUPS = {"correction", "guidance"}  # parts of a sampler with null settings of their own


def load_requested(config: Mapping[str, Any]) -> tuple[Model, ComponentFamily, Path]:
    """Return the trained model, or the exact prior, with its family and its path.

    Results are written next to the path, a file or a folder.

    Raises:
        UserError: the model cannot be loaded.
    """
    if config["prior"]:
        refuse(
            config["evaluate"],
            "evaluate=true compares samples with data, which an exact prior does not have: omit it",
        )
        prior = instantiate(config["prior"], "prior")
        if not isinstance(prior, Model):
            raise UserError(
                f"prior: {type(prior).__name__} is not an exact prior; "
                "task=synthetic, task=dna_toy or task=music_toy chooses one"
            )
        name = str(prior.config.get("prior", "prior"))
        return prior.eval(), cast(ComponentFamily, prior.family), Path("runs") / name / "prior"
    ckpt = fetch_folder(str(optional_path(config, "ckpt")))
    is_simulated = str(config.get("measurement")).startswith(("test:", "val:", "train:"))
    settings = dict(config)
    if config["dataset"] or config["evaluate"] or is_simulated:
        settings["dataset"] = choose_dataset(ckpt, config["dataset"])
    for name in config["trusted"]:
        is_module = isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
        refuse(
            not is_module,
            f"trusted must be a list of module names, such as [my_package], not {name!r}",
        )
    model, family = load_trained(str(ckpt), settings, tuple(config["trusted"]))
    return model, family, ckpt


def choose_dataset(run: Path, requested: Any) -> Any:
    """Return the requested data set, or the file that the run was trained on, for comparisons.

    If both are the same file, the run's settings are used: they decide the split, and others would
    hold out samples that the model was trained on.

    Args:
        run: of the model; any other path leaves the choice as it is.
        requested: description of a data set, or null.

    Raises:
        UserError: the run's data set has components among its settings.
    """
    if not (run / "config.yaml").exists():
        return requested
    trained: Any = read_settings(run).get("dataset")
    address = trained.get("_target_") if isinstance(trained, Mapping) else None
    is_known = isinstance(address, str) and find_allowed(address, "dataset") is not None
    if not is_known or "path" not in trained:
        return requested
    trained = copy_plain_values(trained, "dataset")
    if requested and _reader_and_path(requested) != _reader_and_path(trained):
        return requested
    if any("_target_" in str(value) for name, value in trained.items() if name != "_target_"):
        raise UserError(
            f"{run / 'config.yaml'}: the settings of its data set must be without _target_"
        )
    cli_values = {
        name: value for name, value in (requested or {}).items() if is_overridden(f"dataset.{name}")
    }
    dataset = {**trained, **cli_values}
    if not requested:
        dataset |= _avoid_writing(dataset, cli_values)
    if dataset != requested:
        path = escaped(dataset.get("path"))
        settings = escaped(run / "config.yaml")
        print(f"data: {path}, with the settings of {settings}")
    return dataset


def _avoid_writing(dataset: Mapping[str, Any], cli_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with which nothing is written next to a file that only a run names.

    A run may come from a stranger. Rows of a large file are written next to it where its format
    needs that, unless it is held in memory. Rows that are there come from a training of the user.

    Args:
        dataset: description of the data set.
        cli_values: settings on the command line, which are the user's choice.
    """
    path = Path(str(dataset.get("path"))).expanduser()
    has_rows = any(path.parent.glob(f"{glob.escape(path.name)}.rows-*"))
    is_stored_by_rows = path.suffix == ".npy"
    if "in_memory" not in dataset or "in_memory" in cli_values or has_rows or is_stored_by_rows:
        return {}
    return {"in_memory": True}


def parse_request(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Return the settings of the model's family; `sampler` only if the command line sets it.

    A kernel that is the model's own keeps the model's number of steps.
    """
    request = {
        name: value
        for name, value in config.items()
        if name not in PROGRAM_SETTINGS and not _is_empty(value)
    }
    sampler = request.pop("sampler", None)
    if sampler is not None and is_overridden("sampler"):
        keeps_steps = _is_own_kernel(model, sampler.get("kernel"))
        if keeps_steps and not is_overridden("sampler.num_steps"):
            sampler = {**sampler, "num_steps": None}
        request["sampler"] = sampler
    if not isinstance(config["likelihood"], Mapping | None):  # the family refuses it
        request["likelihood"] = config["likelihood"]
    return request | {"num_samples": config["num_samples"]}


def remove_nulls(value: Any) -> Any:
    """Return a group of settings without those that are null, which are then the model's own.

    Values inside other components stay: in a grid of times, null has a meaning of its own.
    """
    if not isinstance(value, Mapping) or not value:
        return value
    parts = {name: part for name, part in value.items() if part is not None}
    for name in SAMPLER_GROUPS & parts.keys():
        parts[name] = remove_nulls(parts[name])
    return {name: part for name, part in parts.items() if part is not None} or None


def _reader_and_path(dataset: Any) -> tuple[str, Path]:
    """Return the reader of a data set of files and the real path of its file."""
    path = Path(os.path.realpath(Path(str(dataset.get("path"))).expanduser()))
    return str(dataset.get("_target_")), path


def _is_own_kernel(model: Model, kernel: Any) -> bool:
    """Return whether a kernel's description is that of the model's own kernel."""
    if kernel is None:
        return False
    sampler = model.config.get("model", {}).get("sampler") or {}
    return add_defaults(kernel, "sampler.kernel") == sampler.get("kernel")


def _is_empty(value: Any) -> bool:
    """Return whether a setting is null, or a group of nothing but nulls."""
    if isinstance(value, Mapping) and value:
        return all(_is_empty(part) for part in value.values())
    return value is None
