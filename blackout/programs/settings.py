"""The settings of a program: one table, derived from its composed defaults.

For every setting it has the kind of its value, whether it decides the result (and so the run's id), and whether it may
change when a run is continued. The checks of the command line, the run id, the check of a continued run and
docs/survival.md are made from it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from blackout.addresses import leaves
from blackout.errors import UserError
from blackout.programs.values import KINDS, checked, kind_of
from blackout.programs.words import asked_for
from blackout.training.descriptions import PATHS

_WHERE_AND_HOW = frozenset(
    ("data_dir", "data_on_device", "compile", "runs_dir", "run_id", "logger", "plan", "family.monitor")
)
"""Where files are and how results are computed or shown: other values give the same run."""
_MAY_CHANGE = _WHERE_AND_HOW | {
    "experiment_name", "callbacks", "trainer", "metrics", "sampler", "optimizer.decay_steps",
}  # fmt: skip
"""How long a run goes on, and what is shown and scored on the way: these may change when a run is continued."""
_MAY_NOT = frozenset(
    f"trainer.{name}"
    for name in (
        "precision",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "overfit_batches",
    )
)
"""Parts of groups that may change, which may not: they decide what a step does."""


@dataclass(frozen=True)
class Setting:
    """One setting of a program.

    Args:
        name: of the setting; dotted where part of a group is treated differently.
        kind: type of its value; None for any.
        decides: whether it decides the result, and so is part of a run's id.
        may_change: whether it may change when a run is continued.
    """

    name: str
    kind: type | None
    decides: bool
    may_change: bool


def table(defaults: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a program with these defaults, by name."""
    kinds = {name: kind_of(value) for name, value in defaults.items()}
    parts = _MAY_CHANGE | _MAY_NOT
    kinds |= {name: None for name in parts if "." in name and name.split(".")[0] in defaults}
    return {name: Setting(name, kinds[name], name not in _WHERE_AND_HOW, name in _MAY_CHANGE) for name in kinds}


def markdown(defaults: Mapping[str, Any]) -> str:
    """The table of settings with these defaults, for docs/survival.md."""
    lines = ["| setting | value | decides the run id | may change on resume |", "|---|---|---|---|"]
    for name, setting in sorted(table(defaults).items()):
        free = "a group" if isinstance(defaults.get(name), Mapping) else "any value"
        kind = free if setting.kind is None else KINDS[setting.kind]
        marks = ["yes" if mark else "no" for mark in (setting.decides, setting.may_change)]
        lines.append(f"| `{name}` | {kind} | {marks[0]} | {marks[1]} |")
    return "\n".join(lines)


def resolve(cfg: DictConfig, extra: bool = False) -> dict[str, Any]:
    """The settings as plain containers.

    Args:
        cfg: what Hydra composed.
        extra: let pass settings that the program does not have but the command line gives; those who read them refuse
            unknown ones. Others come from a dataset's recipe for training, and are left out.

    Raises:
        UserError: an unknown setting (added with +), one that was removed, or a value of the wrong kind.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    _leave_out_debug(config)
    config |= {"ckpt_path": None} if config.get("ckpt_path") == "last" else {}  # the run's own, as always
    defaults = _defaults(cfg)
    settings = table(defaults)
    for name in sorted(config.keys() | {name for name in settings if "." not in name}):
        if name not in config:
            raise UserError(f"{name} must be given")
        if name not in settings and not extra:
            raise UserError(f"{name}: no such option")
        if name not in settings and not asked_for(name):
            del config[name]
        if name in settings:
            config[name] = checked(name, config[name], settings[name].kind, defaults.get(name))
    return config


def _defaults(cfg: DictConfig) -> Mapping[str, Any]:
    """The program's default configuration with the chosen family; without Hydra, the settings themselves."""
    if not _composes():
        return cfg
    hydra, job = GlobalHydra.instance().hydra, HydraConfig.get()
    assert hydra is not None and job.job.config_name is not None
    chosen = [f"family={job.runtime.choices['family']}"] if job.runtime.choices.get("family") else []
    kept = [given for given in job.overrides.hydra if given.startswith("hydra.searchpath")]
    if chosen and chosen != ["family=blackout"]:
        # the default dataset's recipe is for the default family
        dataset = job.runtime.choices.get("dataset")
        chosen.append(f"dataset={dataset}" if dataset else "~dataset")
    composed = hydra.compose_config(job.job.config_name, [*chosen, *kept], RunMode.RUN, from_shell=False)
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items() if name != "hydra"}


def _composes() -> bool:
    """Whether Hydra runs, and can compose once more."""
    return HydraConfig.initialized() and GlobalHydra.instance().is_initialized()


def _leave_out_debug(config: dict[str, Any]) -> None:
    """Drop what a debug choice sets of samplers that are not there: not every family has steps, or a sampler."""
    if not _composes():
        return
    hydra, job = GlobalHydra.instance().hydra, HydraConfig.get()
    if not job.runtime.choices.get("debug") or not isinstance(config.get("sampler"), dict):
        return
    assert hydra is not None and job.job.config_name is not None
    given = [*job.overrides.task, *(word for word in job.overrides.hydra if word.startswith("hydra.searchpath"))]
    rest = [word for word in given if not word.lstrip("+").startswith("debug=")]
    plain = hydra.compose_config(job.job.config_name, rest, RunMode.RUN, from_shell=False)
    known = plain.get("sampler") or {}
    config["sampler"] = {name: value for name, value in config["sampler"].items() if name in known}
    if not known:
        del config["sampler"]


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a run's result, in the form from which its id is made."""
    settings = table(config)
    return {name: value for name, value in config.items() if settings[name].decides}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, old, new) of settings that may not change when a run is continued, but have."""
    free = {name for name, setting in table(new).items() if setting.may_change}
    was, now = dict(leaves(old)), dict(leaves(new))
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name) and not _is_free(name, free):
            yield name, was.get(name), now.get(name)


def _is_free(name: str, free: set[str]) -> bool:
    """Whether a setting, or the group it is in, may change; data are known by their content, not by their place."""
    parts = name.split(".")
    if name in _MAY_NOT:
        return False
    if parts[0] == "dataset" and parts[-1] in PATHS:
        return True
    return any(".".join(parts[:n]) in free for n in range(1, len(parts) + 1))


def set_libraries() -> None:
    """Silence Lightning's warnings about deliberate choices, and keep cuDNN from rounding float32 to TF32's 11 bits."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    deliberate = ("does not have many workers", "in eval mode at the start of training", "treespec, LeafSpec")
    for message in deliberate:
        warnings.filterwarnings("ignore", f".*{message}")
