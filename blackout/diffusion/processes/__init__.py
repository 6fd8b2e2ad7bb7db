"""Forward processes: one file per family."""

from blackout.counts import count_dtype as count_dtype
from blackout.diffusion.processes.base import JumpProcess as JumpProcess
from blackout.diffusion.processes.base import Observation as Observation
from blackout.diffusion.processes.base import Process as Process
from blackout.diffusion.processes.birth_death import BirthDeath as BirthDeath
from blackout.diffusion.processes.discrete_time import AbsorbingChain as AbsorbingChain
from blackout.diffusion.processes.discrete_time import DiscreteTimeChain as DiscreteTimeChain
from blackout.diffusion.processes.discrete_time import GaussianChain as GaussianChain
from blackout.diffusion.processes.discrete_time import UniformChain as UniformChain
from blackout.diffusion.processes.finite_states import FiniteJumpProcess as FiniteJumpProcess
from blackout.diffusion.processes.finite_states import FiniteProcess as FiniteProcess
from blackout.diffusion.processes.generator import Ordinal as Ordinal
from blackout.diffusion.processes.generator import from_generator as from_generator
from blackout.diffusion.processes.pure_death import PureDeath as PureDeath
from blackout.diffusion.processes.uniform_absorbing import Absorbing as Absorbing
from blackout.diffusion.processes.uniform_absorbing import Uniform as Uniform
