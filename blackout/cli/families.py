"""Families of models by the names of their choices."""

from __future__ import annotations

from typing import Any

from blackout.config.instantiate import instantiate
from blackout.files import CONF
from blackout.safe_reading import read_mapping


def load_family(name: str) -> Any:
    """Return the family that conf/family/<name>.yaml describes."""
    settings = read_mapping(CONF / "family" / f"{name}.yaml")
    return instantiate(settings["family"], "family")
