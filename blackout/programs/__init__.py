"""The programs behind `train.py` and `sample.py`, for models of any family."""

import logging
import sys
from contextlib import suppress
from importlib import import_module, util
from types import ModuleType
from typing import Any

import blackout.programs.settings  # noqa: F401  (whoever composes conf/ needs it)

_LIGHT = ("metric", "collections", "aggregation")
"""Modules of torchmetrics with what Lightning, and a step of training, ask of it."""


class OnDemand(ModuleType):
    """torchmetrics as a few classes, and all of it as soon as something else is asked of it.

    By itself it imports torchvision and scipy.signal, for metrics of its own: a second of every start.
    """

    _logger = logging.getLogger("torchmetrics")

    def __getattr__(self, name: str) -> Any:
        """A name of torchmetrics."""
        if name.startswith("__"):
            raise AttributeError(name)
        with suppress(ImportError):
            import_module("torchmetrics.utilities")  # first: in a circle it imports what follows
            for module in (import_module(f"torchmetrics.{light}") for light in _LIGHT):
                if hasattr(module, name):
                    return getattr(module, name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        return getattr(self, name)


def put_off_torchmetrics() -> None:
    """Before Lightning is imported: see `OnDemand`."""
    spec = util.find_spec("torchmetrics")
    if "torchmetrics" not in sys.modules and spec is not None:
        sys.modules["torchmetrics"] = module = util.module_from_spec(spec)
        module.__class__ = OnDemand
