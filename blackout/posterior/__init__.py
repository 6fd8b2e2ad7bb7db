"""Posterior sampling: inverse problems with a trained model, by split Gibbs sampling and its relatives.

`problem`, `operators`, `noise`, `rewards` and `unknown_number` say what was measured; `method` and what is built on it
(`split_gibbs`, `noise_denoise`, `particle_baselines`, `auto`) draw from the posterior; `draw` and `outputs` are what
`sample.py` reaches.
"""

from blackout.posterior.auto import Auto, Direct, conjugate
from blackout.posterior.method import Method, Posterior
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
from blackout.posterior.particle_baselines import SMC, Overwrite, Steered
from blackout.posterior.problem import Measured, Prior, Problem
from blackout.posterior.rewards import Classifier, Reward
from blackout.posterior.split_gibbs import Coupling, SplitGibbs, anneal
from blackout.posterior.unknown_number import Blind, Unknown

__all__ = [
    "SMC", "And", "Auto", "Binomial", "Blind", "Blur", "Camera", "Classifier",
    "Coupling", "Decoded", "Direct", "Exact", "Flips", "Function", "Gaussian", "Identity",
    "Inpaint", "InpaintBox", "InpaintRandom", "Matrix", "Measured", "Method",
    "Noise", "NoiseDenoise", "Operator", "Overwrite", "Poisson", "Pool", "Posterior",
    "Prior", "Problem", "Reward", "SplitGibbs", "Steered",
    "Unknown", "Xor", "anneal", "conjugate",
]  # fmt: skip
