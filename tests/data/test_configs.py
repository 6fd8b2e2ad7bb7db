"""Every YAML in conf/dataset fits the function that it names."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

import blackout.data
from blackout.data import CountData

CONFIGS = Path(__file__).parents[2] / "conf/dataset"
OTHERS = ("blackout.permutations", "blackout.flows.energies")
"""Families with sources of their own."""
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if not any(name in path.read_text() for name in OTHERS))


def test_every_source_has_a_config() -> None:
    assert set(NAMES) == {name for name in blackout.data.__all__ if name.islower()}


def load(name: str) -> DictConfig:
    """The node `dataset` that a file sets, whether the file is that node or sets other defaults beside it."""
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config.get("dataset", config)


@pytest.mark.parametrize("name", NAMES)
def test_the_options_are_those_of_the_function(name: str) -> None:
    config = load(name)
    assert config._target_ == f"blackout.data.{name}"
    defaults = {key: value.default for key, value in inspect.signature(get_method(config._target_)).parameters.items()}
    options = {str(key) for key in config} - {"_target_"}
    assert options <= set(defaults)
    for option in options - {"path", "data_dir"}:
        assert config[option] == defaults[option]
    assert {key for key in options if OmegaConf.is_missing(config, key)} == ({"path"} & set(defaults))


def test_configs_instantiate(tmp_path: Path) -> None:
    np.save(tmp_path / "counts.npy", np.arange(60).reshape(10, 6))
    counts = load("counts")
    counts.path = str(tmp_path / "counts.npy")
    for config in (load("digits"), load("patches"), counts):
        assert isinstance(instantiate(config), CountData)
