"""Posterior sampling: inverse problems with a trained model, by split Gibbs sampling and its relatives.

`problem`, `operators`, `noise` and `rewards` say what was measured; `chains` and what is built on it (`split_gibbs`,
`noise_denoise`, `conjugate`, `baselines`) draw from the posterior; `draw`, `measurements` and `outputs` are what
`sample.py` reaches.
"""

from blackout.posterior.baselines import SMC, Auto, Overwrite, Steered
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.method import Method, Posterior
from blackout.posterior.noise import Binomial, Camera, Exact, Flips, Gaussian, Noise, Poisson
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
from blackout.posterior.problem import Blind, Measured, Prior, Problem, Unknown
from blackout.posterior.rewards import Classifier, Reward
from blackout.posterior.split_gibbs import Coupling, NoiseDenoise, SplitGibbs, anneal

__all__ = [
    "SMC", "And", "Auto", "Binomial", "Blind", "Blur", "Camera", "Classifier",
    "Coupling", "Decoded", "Direct", "Exact", "Flips", "Function", "Gaussian", "Identity",
    "Inpaint", "InpaintBox", "InpaintRandom", "Matrix", "Measured", "Method",
    "Noise", "NoiseDenoise", "Operator", "Overwrite", "Poisson", "Pool", "Posterior",
    "Prior", "Problem", "Reward", "SplitGibbs", "Steered",
    "Unknown", "Xor", "anneal", "conjugate",
]  # fmt: skip
