"""Posterior sampling: inverse problems with a trained model, by split Gibbs sampling and its relatives.

Laws in all files but `commands`, `measurements`, `draws`, `outputs` and `pictures`, which are what `sample.py` reaches.
"""

from blackout.posterior.chains import Method, Posterior, anneal
from blackout.posterior.commands import (
    Auto,
    Baseline,
    Command,
    DirectCommand,
    NoiseDenoiseCommand,
    Sgdd,
    SgddPublished,
    dps,
    no_prior,
    overwrite,
    prior_alone,
    smc,
    svdd,
)
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.couplings import Coupling
from blackout.posterior.noise import Binomial, Exact, Flips, Gaussian, Noise, Poisson
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.operators import (
    And,
    Blur,
    Classifier,
    Decoded,
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    Matrix,
    Pool,
    Reward,
    Xor,
)
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.split_gibbs import SplitGibbs

__all__ = [
    "And",
    "Auto",
    "Baseline",
    "Binomial",
    "Blur",
    "Classifier",
    "Command",
    "Coupling",
    "Decoded",
    "Direct",
    "DirectCommand",
    "Exact",
    "Flips",
    "Gaussian",
    "Identity",
    "Inpaint",
    "InpaintBox",
    "InpaintRandom",
    "Matrix",
    "Measured",
    "Method",
    "Noise",
    "NoiseDenoise",
    "NoiseDenoiseCommand",
    "Poisson",
    "Pool",
    "Posterior",
    "Prior",
    "Problem",
    "Reward",
    "Sgdd",
    "SgddPublished",
    "SplitGibbs",
    "Xor",
    "anneal",
    "conjugate",
    "dps",
    "no_prior",
    "overwrite",
    "prior_alone",
    "smc",
    "svdd",
]  # fmt: skip
