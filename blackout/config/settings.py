"""The settings of a run: what Hydra composed, checked, as plain containers.

docs/reference/settings.md lists them, with what may change in a run (`run_directory`).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from blackout.config.choices import choices
from blackout.config.explain import explain_values
from blackout.distributed import is_first
from blackout.errors import UserError, refuse
from blackout.files import CONF, refuse_address

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name", list: "a list"}
_ALSO = {
    "ema_decay": (None,),
    "compile": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
}
"""What a setting takes besides values of its kind."""
_PLAIN_GROUPS = frozenset(("likelihood",))
"""Groups of settings that name no component."""
_CROWDED = 0.9
"""Of the processors, whose load leaves none to threads that wait for each other."""


def resolve(cfg: DictConfig, extra: bool = False) -> dict[str, Any]:
    """The settings as plain containers.

    Args:
        cfg: what Hydra composed.
        extra: let pass settings that the program does not have but the command line gives; those who read them refuse
            unknown ones. Others come from a choice that is for training, too, and are left out.

    Raises:
        UserError: an unknown setting (added with +), one that was removed, or a value of the wrong kind.
    """
    try:
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise UserError(explain_values(cfg) or str(error).splitlines()[0]) from error
    _refuse_other_calls()
    _refuse_text_for_groups(config)
    config |= {"ckpt_path": None} if config.get("ckpt_path") == "last" else {}  # the run's own, as always
    defaults = _listed() if HydraConfig.initialized() else config
    for name in sorted(config.keys() | defaults.keys()):
        refuse(name not in config and defaults[name] != (), f"{name} must be given")
        refuse(name not in defaults and not extra, f"{name}: no such option")
        if name not in defaults and not asked_for(name):
            del config[name]
        if name in defaults and name in config:
            config[name] = _checked(name, config[name], defaults[name])
    for name in config.keys() & {"data_dir", "out"}:
        refuse_address(Path(str(config[name])))
    return config


def _refuse_text_for_groups(config: Mapping[str, Any]) -> None:
    """Refuse `optimizer: adamw` in a user's experiment, which Hydra reads as text, not as a choice.

    Raises:
        UserError: the entry of the defaults list that chooses it.
    """
    for name, value in config.items():
        if isinstance(value, str) and (CONF / name).is_dir() and value in choices(name):
            choice = f"- override /{name}: {value}"
            raise UserError(f"{name}: {value} is text here; in the defaults list it is a choice: {choice}")


def _listed() -> dict[str, Any]:
    """The settings that the YAML files of the program, the chosen family and the experiment list, with their defaults.

    A group is () where nothing need be chosen, {} where something must.
    """
    run = HydraConfig.get()
    folders = [Path(source.path) for source in run.runtime.config_sources if source.schema == "file"]
    family = f"family/{run.runtime.choices.get('family')}"
    remaining = [family, str(run.job.config_name), f"experiment/{run.runtime.choices.get('experiment')}"]
    listed: dict[str, Any] = {}
    while remaining:
        name = remaining.pop(0)
        file = next((found for folder in folders if (found := folder / f"{name}.yaml").is_file()), None)
        written: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file else {}
        defaults = written.pop("defaults", ())
        entries = [entry.items() for entry in defaults if isinstance(entry, dict)]
        for group, choice in chain(*entries):
            words = re.split(r"[ @]", group)  # "optional process", "/refine@rollout.refine"
            needed = choice is not None and len(words) == 1 and "$" not in choice
            listed.setdefault(re.split(r"[/.]", words[-1].lstrip("/"))[0], {} if needed else ())
        is_experiment = name.startswith("experiment/")
        listed = written | listed if is_experiment else listed | written  # an experiment only adds settings
        if is_experiment:  # also what the experiments list that it is based on
            remaining += [entry.lstrip("/") for entry in defaults if str(entry).startswith("/experiment/")]
    return {name: {} if value == "???" else value for name, value in listed.items() if name != "hydra"}


def _checked(name: str, value: Any, default: Any) -> Any:
    """The value of a setting, of the kind of its default: whole numbers are numbers, and any number is a name.

    Raises:
        UserError: a value of another kind.
    """
    kind = type(default)
    if name in _PLAIN_GROUPS:
        if isinstance(value, str):  # the name of a file, for families that read one
            return value
        refuse(not isinstance(value, Mapping), f"{name} must be a group of settings, not {value!r}")
        if unknown := sorted(value.keys() - default.keys()):
            raise UserError(f"{name}.{unknown[0]}: no such option; one of {', '.join(default)}")
        return {part: _checked(f"{name}.{part}", one, default[part]) for part, one in value.items()}
    if kind not in KINDS or type(value) is kind or value in _ALSO.get(name, ()):
        return value
    if kind in (float, str) and type(value) in (int, float):
        return kind(value)  # a directory may be called 17
    also = ("null" if one is None else one for one in _ALSO.get(name, ()))
    raise UserError(f"{name} must be {', '.join((KINDS[kind], *also))}, not {value!r}")


def path(config: Mapping[str, Any], name: str) -> str | None:
    """A setting that names a file or directory, or null.

    Raises:
        UserError: it is a list or a mapping.
    """
    value = config[name]
    refuse(isinstance(value, dict | list | bool), f"{name} must be the name of a file or directory, not {value!r}")
    return None if value is None else str(value)


def asked_for(group: str) -> bool:
    """Whether the command line itself, rather than a recipe, chooses a group or sets part of it."""
    keys = [word.partition("=")[0] for word in _overrides()]
    return any(key == group or key.startswith((f"{group}.", f"{group}/", f"{group}@")) for key in keys)


def _overrides() -> list[str]:
    """The words of the command line that set something, without their signs."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return [word.lstrip("+~") for word in words]


def _refuse_other_calls() -> None:
    """Refuse `..._partial_=...`: whether a component is made or passed on is not for a command line to choose.

    Raises:
        UserError: the word.
    """
    for word in _overrides():
        name = word.partition("=")[0]
        refuse(name.rpartition(".")[2] == "_partial_", f"{name}: no such option")


def crowded(load: float, threads: int, processors: int) -> str:
    """What is wrong with so many threads where so many processors have this load; nothing, where little runs.

    Args:
        load: how many processes ran or waited, in the mean of the last minute.
    """
    if threads < 2 or load < _CROWDED * processors:
        return ""
    told = f"{threads}, and a load of {load:.1f} on {processors} processors already"
    return f"threads: {told}: those that wait for each other can be twenty times slower than one; set OMP_NUM_THREADS=1"


def set_libraries() -> None:
    """Silence Lightning's warnings about deliberate choices, keep cuDNN from rounding float32 to TF32's 11 bits, and
    say where threads would stall."""
    if (told := crowded(os.getloadavg()[0], torch.get_num_threads(), os.cpu_count() or 1)) and is_first():
        print(told, flush=True)
    torch.backends.cudnn.allow_tf32 = False
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    expected = (
        "does not have many workers",
        "in eval mode at the start of training",
        "treespec, LeafSpec",
        "`EvalLoader` across ranks is zero",  # data without validation samples
    )
    for message in expected:
        warnings.filterwarnings("ignore", f".*{message}")
