"""Generative models on discrete states, around Blackout Diffusion (Santos et al., ICML 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blackout.version import __version__

if TYPE_CHECKING:
    from blackout.cli.from_data import from_data
    from blackout.diffusion.model import BlackoutDiffusion
    from blackout.training.loading import load_model

__all__ = ["BlackoutDiffusion", "__version__", "from_data", "load_model"]

_HOMES = {
    "BlackoutDiffusion": "blackout.diffusion.model",
    "from_data": "blackout.cli.from_data",
    "load_model": "blackout.training.loading",
}


def __dir__() -> list[str]:
    """Return the public names, without submodules and what this file imports."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `import blackout.data` does not load Lightning."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blackout' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
