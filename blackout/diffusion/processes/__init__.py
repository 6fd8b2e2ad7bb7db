"""Forward processes: one file per family."""

from blackout.counts import count_dtype
from blackout.diffusion.processes.base import JumpProcess, Observation, Process
from blackout.diffusion.processes.birth_death import BirthDeath
from blackout.diffusion.processes.discrete_time import (
    AbsorbingChain,
    DiscreteTimeChain,
    GaussianChain,
    UniformChain,
)
from blackout.diffusion.processes.finite import FiniteJumpProcess, FiniteProcess
from blackout.diffusion.processes.generator import from_generator
from blackout.diffusion.processes.pure_death import PureDeath
from blackout.diffusion.processes.uniform_absorbing import Absorbing, Ordinal, Uniform

__all__ = [
    "Absorbing",
    "AbsorbingChain",
    "BirthDeath",
    "DiscreteTimeChain",
    "FiniteJumpProcess",
    "FiniteProcess",
    "GaussianChain",
    "JumpProcess",
    "Observation",
    "Ordinal",
    "Process",
    "PureDeath",
    "Uniform",
    "UniformChain",
    "count_dtype",
    "from_generator",
]
