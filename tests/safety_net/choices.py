"""The choices that `conf/` offers, and the configurations that Hydra composes from them.

Everything is read from the files, so that no choice is named here. A group is a folder with one
file for each choice, or one file whose sections are the choices: the section `grid/logit` of
conf/sampler.yaml and the file conf/sampler/grid/logit.yaml are both a choice of `sampler/grid`.
"""

from __future__ import annotations

import importlib
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
GLOBAL_GROUPS = ("experiment", "recipe", "task")  # their choices set values everywhere
# Modules that register config sources or resolvers when imported, as far as they exist
REGISTERING_MODULES = ("blackout.cli.settings", "blackout.config")
MISSING = "???"


@cache
def groups() -> tuple[str, ...]:
    """Return all groups, such as `head`, `sampler/grid` or `experiment/blackout`."""
    return tuple(sorted({group for group, _ in _groups_and_choices()}))


@cache
def choices(group: str) -> tuple[str, ...]:
    """Return the choices of a group, without those of groups inside it."""
    return tuple(sorted(choice for name, choice in _groups_and_choices() if name == group))


def choices_below(group: str) -> list[str]:
    """Return the choices of a group and of groups inside it, such as `blackout/table1`."""
    paths = [f"{name}/{choice}" for name, choice in _groups_and_choices()]
    prefix = f"{group}/"
    return sorted(path.removeprefix(prefix) for path in paths if path.startswith(prefix))


@cache
def _groups_and_choices() -> tuple[tuple[str, str], ...]:
    pairs = []
    for file in sorted(CONF.rglob("*.yaml")):
        name = file.relative_to(CONF).with_suffix("").as_posix()
        if name in PROGRAMS:
            continue
        paths = [name]
        if _has_choices_as_sections(file):
            paths = [f"{name}/{section}" for section in _sections(file)]
        for path in paths:
            group, _, choice = path.rpartition("/")
            pairs.append((group, choice))
    return tuple(pairs)


def _has_choices_as_sections(file: Path) -> bool:
    """Whether the sections of a file are choices, rather than the file itself.

    They are in files at the top of `conf/`, and in files without a package right in the folders of
    global groups, such as conf/experiment/blackout.yaml.
    """
    if file.parent == CONF:
        return True
    is_global = file.parent.parent == CONF and file.parent.name in GLOBAL_GROUPS
    return is_global and not re.match(r"(#.*\n|\n)*# @package", file.read_text())


def _sections(file: Path) -> list[str]:
    return re.findall(r"^([\w/]+):", file.read_text(), re.MULTILINE)


def compose_config(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the configuration of a program, or of a single choice such as `head/gamma`.

    Raises:
        HydraException: an override does not fit.
    """
    for module in REGISTERING_MODULES:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"), warnings.catch_warnings():
        # raised for a choice that is composed as if it were a program
        warnings.filterwarnings("ignore", ".*Defaults list is missing `_self_`")
        return compose(name, list(overrides))


def to_plain(config: Any) -> Any:
    """Convert to plain containers and resolve interpolations, as far as possible.

    Missing values stay `???`, and interpolations of missing values stay as they are written.
    """
    if isinstance(config, DictConfig):
        return {str(name): to_plain(_resolve(config, name)) for name in config}
    if OmegaConf.is_list(config):
        return [to_plain(item) for item in config]
    return config


def _resolve(config: DictConfig, name: Any) -> Any:
    if OmegaConf.is_missing(config, name):
        return MISSING
    try:
        return config[name]
    except OmegaConfBaseException:  # an interpolation of a value that is missing
        unresolved: Any = OmegaConf.to_container(config, resolve=False)
        return str(unresolved[name])


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every leaf; an empty mapping is a leaf."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def settings_of(group: str, choice: str) -> Any:
    """Return what a choice sets, as plain values; None if it only makes other choices.

    Interpolations stay as they are written. The result is cached and must not be changed.
    """
    attempts: list[tuple[str, list[str]]] = [
        (f"{group}/{choice}", []),
        ("train", [f"{group}={choice}"]),
    ]
    for name, overrides in attempts:
        try:
            config = compose_config(name, overrides)
        except HydraException:
            # The choice overrides groups that only a program has, or belongs to another family.
            continue
        settings = OmegaConf.select(config, group.replace("/", "."))
        if OmegaConf.is_config(settings):
            return OmegaConf.to_container(settings, resolve=False)
        return settings
    return None


def parameters_of(settings: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the component that settings name by `_target_`, if there is one."""
    target = settings.get("_target_", MISSING) if isinstance(settings, Mapping) else MISSING
    if target == MISSING:
        return {}
    try:
        return inspect.signature(get_object(target)).parameters
    except (TypeError, ValueError):  # a class of C code has no signature
        return {}


def with_defaults(settings: Any) -> Any:
    """Add the defaults of its constructor to the settings of every component."""
    if isinstance(settings, list):
        return [with_defaults(item) for item in settings]
    if not isinstance(settings, Mapping):
        return settings
    defaults = {
        name: to_json(parameter.default)
        for name, parameter in parameters_of(settings).items()
        if parameter.default is not parameter.empty
    }
    return defaults | {name: with_defaults(value) for name, value in settings.items()}


def to_json(value: Any) -> Any:
    """Convert a default value to JSON that is the same on every machine."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__qualname__
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
