"""Every section of conf/dataset.yaml fits the function that it names."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

import blackout.data
from blackout.data import CountData
from blackout.programs.settings import sections

OTHERS = ("blackout.permutations", "blackout.flows.energies")
"""Families with sources of their own."""
OWN = {
    name.removeprefix("dataset/"): section
    for name, section in sections("dataset").items()
    if section is not None and not section._target_.startswith(OTHERS)
}


def test_every_source_has_a_section() -> None:
    assert set(OWN) == {name for name in blackout.data.__all__ if name.islower()}


@pytest.mark.parametrize("name", OWN)
def test_it_says_what_must_be_given_and_how_the_data_are_divided(name: str) -> None:
    section = OWN[name]
    assert section._target_ == f"blackout.data.{name}"
    defaults = {key: value.default for key, value in inspect.signature(get_method(section._target_)).parameters.items()}
    options = {str(key) for key in section} - {"_target_"}
    divided = options & {"holdout", "validation"}
    assert options - divided <= {"path", "data_dir"} and options <= set(defaults)
    assert "validation" in divided and {key: section[key] for key in divided} == {key: defaults[key] for key in divided}
    assert {key for key in options if OmegaConf.is_missing(section, key)} == ({"path"} & set(defaults))


def test_sections_instantiate(tmp_path: Path) -> None:
    np.save(tmp_path / "counts.npy", np.arange(60).reshape(10, 6))
    counts = OWN["counts"].copy()
    counts.path = str(tmp_path / "counts.npy")
    for section in (OWN["digits"], OWN["patches"], counts):
        assert isinstance(section, DictConfig) and isinstance(instantiate(section), CountData)
