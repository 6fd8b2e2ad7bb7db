"""Blackout Diffusion: processes, schedules, heads, losses, samplers, likelihood bounds.

Where the ideas of Santos et al. 2023 are:

    section 2.5, eqs. 7 and 8      X_t | X_0 ~ Binomial(X_0, e^-t)        processes/pure_death.py
    section 2.5, eq. 9             reverse birth rate                     processes/pure_death.py
    section 2.5, eqs. 12 and 13    binomial bridge X_s | X_0, X_t         processes/pure_death.py
    appendix E, eqs. 56 to 60      observation times                      time_grids.py
    section 2.6, eqs. 14 and 15    losses                                 losses.py
    section 2.6, Algorithm 1       a training step                        model.py
    section 2.7, Algorithm 2       the sampling loop                      sampling.py
    section 2.7, Algorithm 2       a reverse step: bridge, Poisson leap   kernels/pure_death.py
    section 3                      y = softplus(network)                  heads/pure_death.py
    appendix A                     chains in discrete time                processes/discrete_time.py
    appendix B                     processes on finitely many states      processes/finite_states.py
    appendix F, eqs. 64 and 70     the likelihood behind the losses       likelihood.py
    appendix G, Algorithm 3        training any jump process              losses.py, `RateLoss`
    appendix G, Algorithm 4        sampling any jump process              kernels/tau_leap.py

Every component is exported here, and so named in YAML files and saved models
(`blackout.diffusion.PoissonLeap`): files can move.
"""

from blackout.diffusion.correctors import Correction, Corrector, LevelCorrector, ThinAndBridge
from blackout.diffusion.distillation import (
    Distillation,
    JointBridge,
    Student,
    StudentNetwork,
    StudentSampler,
    energy_score,
)
from blackout.diffusion.evaluations import count_evaluations
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import (
    BinnedHead,
    BirthDeathHead,
    BoundedHead,
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
    EulerStep,
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
from blackout.diffusion.latent_features import latent_features
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
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.schedule import Schedule
from blackout.diffusion.time_grids import fisher_times, logistic_times, logit_times, step_times
from blackout.diffusion.totals import TotalDenoiser

__all__ = [
    "Absorbing",
    "AbsorbingChain",
    "BinnedHead",
    "BinomialBridge",
    "BirthDeath",
    "BirthDeathBridge",
    "BirthDeathHead",
    "BirthDeathLoss",
    "BirthDeathPrediction",
    "BlackoutDiffusion",
    "BoundedHead",
    "CategoricalPrediction",
    "Correction",
    "Corrector",
    "CountDiffusion",
    "CountLoss",
    "CountPrediction",
    "CrossEntropy",
    "Denoiser",
    "DiscreteTimeChain",
    "Distillation",
    "EulerStep",
    "FiniteJumpProcess",
    "FiniteProcess",
    "GammaHead",
    "GaussianChain",
    "Guidance",
    "GuidedDenoiser",
    "Head",
    "JointBridge",
    "JumpProcess",
    "Kernel",
    "KnownElements",
    "LevelBridge",
    "LevelCorrector",
    "LevelHead",
    "LogisticHead",
    "LogisticMixture",
    "LogisticMixtureHead",
    "Loss",
    "MultistepLeap",
    "Observation",
    "Ordinal",
    "PoissonLeap",
    "PosteriorBridge",
    "PosteriorTrapezoidal",
    "Prediction",
    "Process",
    "PureDeath",
    "RateLoss",
    "ReverseStep",
    "Rounding",
    "Sampler",
    "SamplingPlan",
    "ScaledHead",
    "Schedule",
    "SoftplusHead",
    "StatefulKernel",
    "StepLoss",
    "Student",
    "StudentNetwork",
    "StudentSampler",
    "TauLeap",
    "ThinAndBridge",
    "TotalDenoiser",
    "Trapezoidal",
    "Uniform",
    "UniformChain",
    "bits_per_dim",
    "count_dtype",
    "count_evaluations",
    "energy_score",
    "fisher_times",
    "from_generator",
    "latent_features",
    "likelihood_bound",
    "log_softplus",
    "logistic_times",
    "logit_times",
    "nearest_rounding",
    "poisson_loss",
    "rate_loss",
    "run_sampler",
    "step_times",
    "stochastic_rounding",
]
