"""The settings of a program: one table, derived from its composed defaults.

For every setting it has the kind of its value, whether it decides the result (and so the run's id), and whether it may
change when a run is continued. The checks of the command line, the run id, the check of a continued run and
docs/survival.md are made from it.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from blackout.component import leaves
from blackout.errors import UserError
from blackout.training.descriptions import PATHS

# --- The values of settings: their kinds, and the checks of what a command line gives.

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name", list: "a list"}
_OPTIONAL = frozenset(("ema_decay",))
"""Settings that may be null although their default is not."""
_ALSO = {"compile": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")}
"""Names that a setting takes besides values of its kind."""
_PLAIN_GROUPS = frozenset(("likelihood",))
"""Groups of settings that name no component."""


def kind_of(default: Any) -> type | None:
    """The type of a setting's values, by its default; None for any."""
    return type(default) if type(default) in KINDS else None


def checked(name: str, value: Any, kind: type | None, default: Any = None) -> Any:
    """The value of a setting.

    Args:
        name: of the setting.
        value: as it was given.
        kind: type it must have; None for any. Whole numbers are numbers, and any number is a name.
        default: of the setting, which says what a plain group may hold.

    Raises:
        UserError: a value of another kind.
    """
    if name in _PLAIN_GROUPS:
        return _checked_group(name, value, default)
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(value, str) and value in _ALSO.get(name, ()):
        return value
    if kind in (float, str) and type(value) in (int, kind, float):
        return kind(value)  # a directory may be called 17
    if kind is not None and type(value) is not kind:
        raise UserError(f"{name} must be {_described(name, kind)}, not {value!r}")
    return value


def _described(name: str, kind: type) -> str:
    return ", ".join((KINDS[kind], *_ALSO.get(name, ())))


def _checked_group(name: str, given: Any, default: Any) -> dict[str, Any] | str:
    if isinstance(given, str):  # the name of a file, for families that read one
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"{name} must be a group of settings, not {given!r}")
    if unknown := sorted(given.keys() - default.keys()):
        raise UserError(f"{name}.{unknown[0]}: no such option; one of {', '.join(default)}")
    return {part: checked(f"{name}.{part}", value, kind_of(default[part])) for part, value in given.items()}


def path(config: Mapping[str, Any], name: str) -> str | None:
    """A setting that names a file or directory, or null.

    Raises:
        UserError: it is a list or a mapping.
    """
    value = config[name]
    if isinstance(value, dict | list | bool):
        raise UserError(f"{name} must be the name of a file or directory, not {value!r}")
    return None if value is None else str(value)


# --- The words of a command line, before Hydra reads them.

CONF = next(found for folder in Path(__file__).parents[1:] if (found := folder / "conf").is_dir())
"""The configurations: in a wheel inside the package, in the repository beside it."""


def completed(command: list[str]) -> list[str]:
    """A command line with what Hydra would need to be told besides.

    Arguments of Lightning's Trainer that no YAML file lists need no `+`, and a family without data no `~dataset`.
    """
    words = map(_forced, command[1:]) if Path(command[0]).stem.endswith("train") else command[1:]
    return _without_data([command[0], *_of_its_logger(list(words))])


def refuse_structure(words: Iterable[str]) -> None:
    """Refuse `..._partial_=...`: whether a component is made or passed on is no one's choice.

    Raises:
        UserError: one of the words is such.
    """
    for word in words:
        name = word.lstrip("+~").partition("=")[0]
        if name.endswith("._partial_"):
            raise UserError(f"{name}: no such option")


def asked_for(group: str) -> bool:
    """Whether the command line itself, rather than a recipe, chooses a group or sets part of it."""
    from hydra.core.hydra_config import HydraConfig  # `completed` runs before Hydra is imported

    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return any(word.lstrip("+~").startswith(group) for word in given)


def _forced(word: str) -> str:
    """`trainer.<name>=...` added where there is no such setting yet; names that the Trainer lacks are refused later."""
    return f"++{word}" if re.match(r"trainer\.\w+[\w.]*=", word) else word


def _of_its_logger(words: list[str]) -> list[str]:
    """`logger.mode=` and its like are W&B's where that is the one logger: it had no name before there were several."""
    if "logger=wandb" not in words:
        return words
    return [re.sub(r"^(\+*~?)logger\.(?!wandb\b)", r"\1logger.wandb.", word) for word in words]


def _without_data(command: list[str]) -> list[str]:
    """A command line without the default dataset, if its family says `dataset: null` and nothing else chooses one."""
    chosen = [word.partition("=")[2] for word in command[1:] if word.startswith("family=")]
    if not chosen or any(word.lstrip("+~").startswith(("dataset", "experiment=")) for word in command[1:]):
        return command
    path = CONF / "family" / f"{chosen[-1]}.yaml"
    has_none = path.is_file() and re.search(r"^dataset: null\b", path.read_text(), re.MULTILINE)
    return [*command, "~dataset"] if has_none else command


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
