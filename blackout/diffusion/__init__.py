"""Blackout Diffusion: processes, schedules, heads, losses, samplers, likelihood bounds.

Every component is exported here, and so named in YAML files and saved models (`blackout.diffusion.PoissonLeap`): files
can move.
"""
# ruff: noqa: F401, F403

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blackout.diffusion.correctors import BirthDeath as BirthDeathCorrector
from blackout.diffusion.correctors import Correction, Corrector, LevelCorrector, ThinAndBridge
from blackout.diffusion.grids import OptimalGrid, pilot_run
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import *
from blackout.diffusion.importance import GradientImportance
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import *
from blackout.diffusion.likelihood import bits_per_dim, continuous_bound, finite_time_bound, likelihood_bound
from blackout.diffusion.losses import *
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Prediction,
)
from blackout.diffusion.processes import *
from blackout.diffusion.sampling import Evaluation, Sampler, count_evaluations, make_sampler, sample
from blackout.diffusion.schedules import (
    Schedule,
    cosine_times,
    fisher_times,
    logistic_times,
    logit_times,
    step_times,
    uniform_times,
)

if TYPE_CHECKING:
    from blackout.diffusion.family import CountDiffusion
    from blackout.diffusion.model import BlackoutDiffusion

_HOMES = {"BlackoutDiffusion": "blackout.diffusion.model", "CountDiffusion": "blackout.diffusion.family"}


def __getattr__(name: str) -> Any:
    """What needs Lightning is imported at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blackout.diffusion' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
