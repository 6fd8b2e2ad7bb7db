"""The choices that `conf/` offers, and the configurations that Hydra composes from them.

Read from the files, so that nothing here names a choice. A group is a folder with a file for every
choice, or one file whose sections are the choices (`grid/logit` in conf/sampler.yaml is a choice of
`sampler/grid`).
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
PROGRAMS = ("train", "sample")
GLOBAL_GROUPS = ("experiment", "recipe", "task")  # whose choices set values everywhere


@cache
def choices(group: str) -> tuple[str, ...]:
    """The choices of a group in order; those in folders inside it are groups of their own."""
    return tuple(sorted(name for found, name in _all_choices() if found == group))


@cache
def groups() -> tuple[str, ...]:
    """All groups, such as `head`, `sampler/grid` or `experiment/blackout`."""
    return tuple(sorted({group for group, _ in _all_choices()}))


def choices_below(group: str) -> list[str]:
    """The choices of a group and of the groups inside it, as paths from it: `blackout/table1`."""
    inner = [name for name in groups() if f"{name}/".startswith(f"{group}/")]
    return sorted(
        f"{name}/{choice}".removeprefix(f"{group}/") for name in inner for choice in choices(name)
    )


@cache
def _all_choices() -> tuple[tuple[str, str], ...]:
    """(group, choice) of every file, and of every section of files that hold many."""
    pairs = []
    for file in sorted(CONF.rglob("*.yaml")):
        name = str(file.relative_to(CONF).with_suffix(""))
        if name in PROGRAMS:
            continue
        names = (
            [f"{name}/{section}" for section in _sections(file)] if _holds_many(file) else [name]
        )
        pairs += [(path.rpartition("/")[0], path.rpartition("/")[2]) for path in names]
    return tuple(pairs)


def _holds_many(file: Path) -> bool:
    """Whether the sections of a file are choices: at the top, or of a paper without a package."""
    top = file.relative_to(CONF).parts[0]
    return file.parent == CONF or (
        top in GLOBAL_GROUPS and not file.read_text().startswith("# @package")
    )


def _sections(file: Path) -> list[str]:
    return re.findall(r"^([\w/]+):", file.read_text(), re.MULTILINE)


def composed(config_name: str, words: Sequence[str] = ()) -> DictConfig:
    """The configuration of a program with these words, or of one choice such as `head/gamma`."""
    for module in ("blackout.programs.settings", "blackout.config"):
        if (
            importlib.util.find_spec(module) is not None
        ):  # what it registers with Hydra or OmegaConf, if anything
            importlib.import_module(module)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*Defaults list is missing `_self_`"
        )  # of a choice that is composed alone
        return compose(config_name, list(words))


def plain(config: Any) -> Any:
    """Plain containers with all interpolations that can be resolved; `???` must be given."""
    if isinstance(config, DictConfig):
        return {str(name): plain(_value(config, name)) for name in config}
    if OmegaConf.is_list(config):
        return [plain(item) for item in config]
    return config


def _value(config: DictConfig, name: Any) -> Any:
    if OmegaConf.is_missing(config, name):
        return "???"
    try:
        return config[name]
    except OmegaConfBaseException:  # it is made from what must still be given
        return str(OmegaConf.to_container(config, resolve=False)[name])


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every leaf; an empty mapping is one."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def signature_of(part: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of the component that a part of a configuration names, if it names one."""
    target = part.get("_target_", "???")
    if target == "???":
        return {}
    try:
        return inspect.signature(get_object(target)).parameters
    except (TypeError, ValueError):  # a class of C code has no signature
        return {}


@cache
def settings_of(group: str, choice: str) -> Any:
    """What one choice sets, as plain values; None if it only chooses others.

    Interpolations stay as they are written. The result is cached: do not change it.
    """
    ways: list[tuple[str, list[str]]] = [
        (f"{group}/{choice}", []),
        ("train", [f"{group}={choice}"]),
    ]
    for config_name, words in ways:
        try:
            config = composed(config_name, words)
        except (
            HydraException
        ):  # it also chooses in other groups, which only a program has, or another family
            continue
        part = OmegaConf.select(config, group.replace("/", "."))
        return OmegaConf.to_container(part, resolve=False) if OmegaConf.is_config(part) else part
    return None


def with_defaults(part: Any) -> Any:
    """Plain values in which every component has the defaults of its constructor, too."""
    if isinstance(part, list):
        return [with_defaults(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    parameters = signature_of(part).items()
    defaults = {
        name: written(one.default) for name, one in parameters if one.default is not one.empty
    }
    return defaults | {name: with_defaults(value) for name, value in part.items()}


def written(value: Any) -> Any:
    """A value as it can be written to a file on any machine."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): written(item) for name, item in value.items()}
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__qualname__
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
