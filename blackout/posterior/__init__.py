"""Posterior sampling: inverse problems with a trained model as the prior.

- Problems: `prior`, `problem`, `operators`, `noise`, `rewards`, `blind`, `measurements`.
- Samplers: `method` (the interface), `split_gibbs`, `noise_denoise`, `particle_baselines`, `auto`.
- Programs: `draw` and `report` are used by `sample.py`. A report has `gathered_samples`, their
  `measurement_checks` by `diagnostics`, a `truth_comparison`, `output_files` and `plots`.
"""

from blackout.posterior.auto import Auto, Direct, conjugate_state
from blackout.posterior.blind import BlindProblem, UnknownParameter
from blackout.posterior.coupling import Coupling
from blackout.posterior.method import Method, PosteriorSamples
from blackout.posterior.noise import Binomial, Camera, Exact, Flips, Gaussian, Noise, Poisson
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.operators import (
    And,
    Blur,
    Decoded,
    Function,
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    Matrix,
    Operator,
    Pool,
    Xor,
)
from blackout.posterior.particle_baselines import SMC, Overwrite, SteeredParticles
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem, Problem
from blackout.posterior.rewards import Classifier, Reward
from blackout.posterior.split_gibbs import SplitGibbs, anneal

__all__ = [
    "SMC",
    "And",
    "Auto",
    "Binomial",
    "BlindProblem",
    "Blur",
    "Camera",
    "Classifier",
    "Coupling",
    "Decoded",
    "Direct",
    "Exact",
    "Flips",
    "Function",
    "Gaussian",
    "Identity",
    "Inpaint",
    "InpaintBox",
    "InpaintRandom",
    "InverseProblem",
    "Matrix",
    "Method",
    "Noise",
    "NoiseDenoise",
    "Operator",
    "Overwrite",
    "Poisson",
    "Pool",
    "PosteriorSamples",
    "Prior",
    "Problem",
    "Reward",
    "SplitGibbs",
    "SteeredParticles",
    "UnknownParameter",
    "Xor",
    "anneal",
    "conjugate_state",
]
