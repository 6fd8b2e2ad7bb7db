"""Forward laws: one file per process."""

from blackout.diffusion.processes.base import Process
from blackout.diffusion.processes.pure_death import PureDeath

__all__ = ["Process", "PureDeath"]
