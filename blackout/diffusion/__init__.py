"""Blackout Diffusion: processes, schedules, heads, losses, samplers, likelihood bounds.

Every component is exported here, and so named in YAML files and saved models (`blackout.diffusion.PoissonLeap`): files
can move.
"""

from blackout.diffusion.correctors import Correction, Corrector, LevelCorrector, ThinAndBridge
from blackout.diffusion.distillation import Distillation, JointBridge, Student, energy_score
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import (
    BirthDeathHead,
    GammaHead,
    Head,
    LevelHead,
    LogisticHead,
    LogisticMixture,
    LogisticMixtureHead,
    ScaledHead,
    SoftplusHead,
    log_softplus,
)
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    Kernel,
    LevelBridge,
    MultistepLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    Rounding,
    StatefulKernel,
    TauLeap,
    Trapezoidal,
    nearest_rounding,
    stochastic_rounding,
)
from blackout.diffusion.likelihood import bits_per_dim, likelihood_bound
from blackout.diffusion.losses import (
    BirthDeathLoss,
    CountLoss,
    CrossEntropy,
    Loss,
    RateLoss,
    StepLoss,
    poisson_loss,
    rate_loss,
)
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Prediction,
)
from blackout.diffusion.processes import (
    Absorbing,
    AbsorbingChain,
    BirthDeath,
    DiscreteTimeChain,
    FiniteJumpProcess,
    FiniteProcess,
    GaussianChain,
    JumpProcess,
    Observation,
    Ordinal,
    Process,
    PureDeath,
    Uniform,
    UniformChain,
    count_dtype,
    from_generator,
)
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import count_evaluations, sample
from blackout.diffusion.schedules import (
    Schedule,
    fisher_times,
    logistic_times,
    logit_times,
    step_times,
)
from blackout.diffusion.totals import TotalDenoiser

__all__ = [
    "Absorbing", "AbsorbingChain", "BinomialBridge", "BirthDeath", "BirthDeathBridge", "BirthDeathHead",
    "BirthDeathLoss", "BirthDeathPrediction", "BlackoutDiffusion", "CategoricalPrediction",
    "Correction", "Corrector", "CountDiffusion", "CountLoss", "CountPrediction", "CrossEntropy", "Denoiser",
    "DiscreteTimeChain", "Distillation", "FiniteJumpProcess", "FiniteProcess", "GammaHead",
    "GaussianChain", "Guidance", "GuidedDenoiser", "Head", "JointBridge", "JumpProcess", "Kernel", "KnownElements",
    "LevelBridge", "LevelCorrector", "LevelHead", "LogisticHead", "LogisticMixture", "LogisticMixtureHead", "Loss",
    "MultistepLeap", "Observation", "Ordinal", "PoissonLeap", "PosteriorBridge", "PosteriorTrapezoidal",
    "Prediction", "Process", "PureDeath", "RateLoss", "ReverseStep", "Rounding", "Sampler", "ScaledHead", "Schedule",
    "SoftplusHead", "StatefulKernel", "StepLoss", "Student", "TauLeap", "ThinAndBridge", "TotalDenoiser",
    "Trapezoidal", "Uniform", "UniformChain", "bits_per_dim", "count_dtype", "count_evaluations",
    "energy_score", "fisher_times", "from_generator", "likelihood_bound", "log_softplus", "logistic_times",
    "logit_times", "nearest_rounding", "poisson_loss", "rate_loss", "sample", "step_times",
    "stochastic_rounding",
]  # fmt: skip
