"""Generative models on discrete states, centred on Blackout Diffusion (Santos, Fox, Lubbers & Lin, ICML 2023)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackout.version import __version__

if TYPE_CHECKING:
    from blackout.diffusion.model import BlackoutDiffusion
    from blackout.programs.from_data import from_data
    from blackout.training.export import load_model

__all__ = ["BlackoutDiffusion", "__version__", "from_data", "load_model"]

_HOMES = {
    "BlackoutDiffusion": "blackout.diffusion.model",
    "from_data": "blackout.programs.from_data",
    "load_model": "blackout.training.export",
}

_words = [*sys.orig_argv, ""]
_name = _words[_words.index("-m") + 1] if "-m" in _words else Path(sys.argv[0]).name
_program = _name.startswith(("blackout.", "blackout-", "benchmarks."))
if _program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends its imports without a traceback; it takes it back later


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import blackout.diffusion.processes` does not load Lightning."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blackout' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
