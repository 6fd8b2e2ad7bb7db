"""Every file in conf/dataset fits the function that it names."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

import blackout.data
from blackout.config.choices import list_choices, load_choice
from blackout.data import CountData

# families with their own data
OTHER_PACKAGES = ("blackout.permutations", "blackout.flows.energies")
SECTIONS = {
    name: OmegaConf.create(section)
    for name, section in ((name, load_choice("dataset", name)) for name in list_choices("dataset"))
    if "_target_" in section and not str(section["_target_"]).startswith(OTHER_PACKAGES)
}


def test_every_source_has_a_section() -> None:
    assert set(SECTIONS) == {name for name in blackout.data.__all__ if name.islower()}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_option_is_an_argument_and_required_ones_are_missing(name: str) -> None:
    section = SECTIONS[name]
    assert section._target_ == f"blackout.data.{name}"
    defaults = {
        key: value.default
        for key, value in inspect.signature(get_method(section._target_)).parameters.items()
    }
    options = {str(key) for key in section} - {"_target_"}
    assert "validation" in options and options <= set(defaults)
    assert {key for key in options if OmegaConf.is_missing(section, key)} == (
        {"path"} & set(defaults)
    )


def test_sections_instantiate(tmp_path: Path) -> None:
    np.save(tmp_path / "counts.npy", np.arange(60).reshape(10, 6))
    counts = SECTIONS["counts"].copy()
    counts.path = str(tmp_path / "counts.npy")
    for section in (SECTIONS["digits"], SECTIONS["patches"], counts):
        assert isinstance(section, DictConfig) and isinstance(instantiate(section), CountData)
