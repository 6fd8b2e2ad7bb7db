"""Composing a configuration outside of a run, with Hydra's compose API."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf import DictConfig, OmegaConf

from blackout.config.instantiate import find_target
from blackout.errors import UserError
from blackout.files import CONF


@contextmanager
def initialized_hydra() -> Iterator[None]:
    """Initialise Hydra on conf/ inside, and restore the state of a running job afterwards."""
    state = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            yield
    finally:
        Singleton.set_state(state)


def compose(program: str, words: Sequence[str], folders: Sequence[str] = ()) -> DictConfig:
    """Compose the configuration of a program.

    Args:
        program: train or sample.
        words: overrides, as on the command line.
        folders: further configuration folders, as of --config-dir.

    Raises:
        HydraException: the words name a choice or a setting that does not exist.
    """
    with initialized_hydra():
        return hydra.compose(program, [*words, *search_path_overrides(folders)])


def search_path_overrides(folders: Sequence[str]) -> list[str]:
    """Return the override that adds configuration folders to Hydra's search path, if any."""
    addresses = ",".join(f"'file://{Path(folder).absolute()}'" for folder in folders)
    return [f"hydra.searchpath=[{addresses}]"] if folders else []


def _find_component(config: DictConfig, setting: str) -> DictConfig | None:
    """Return the description of the component at a dotted name; None if there is none."""
    part = OmegaConf.select(config, setting, throw_on_resolution_failure=False) if setting else None
    return part if isinstance(part, DictConfig) and "_target_" in part else None


def explain_import_error(config: DictConfig, setting: str) -> str:
    """Return why the component at a dotted name cannot be imported; empty if it can, or is none."""
    part = _find_component(config, setting)
    if part is None:
        return ""
    try:
        find_target(part, setting)
    except UserError as error:
        return str(error)
    return ""


def component_parameters(config: DictConfig, setting: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of the component at a dotted name; none if there is no component."""
    part = _find_component(config, setting)
    if part is None:
        return {}
    try:
        parameters = inspect.signature(find_target(part, setting)).parameters
    except (UserError, TypeError, ValueError):  # no such component, or a class of C code
        return {}
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.VAR_POSITIONAL
    }
