"""Posterior sampling: inverse problems with a trained model, by split Gibbs sampling and its relatives.

Laws in all files but `commands`, `measurements`, `draws`, `outputs` and `pictures`, which are what `sample.py` reaches.
"""

from blackout.posterior.chains import Coupling, Method, Posterior, anneal
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
from blackout.posterior.learned import LearnedClassifier
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
    Motif,
    Pool,
    Reward,
    Xor,
)
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.split_gibbs import SplitGibbs
from blackout.posterior.toys import Dna, Melody, Ring, Synthetic

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
    "Dna",
    "Exact",
    "Flips",
    "Gaussian",
    "Identity",
    "Inpaint",
    "InpaintBox",
    "InpaintRandom",
    "LearnedClassifier",
    "Matrix",
    "Measured",
    "Melody",
    "Method",
    "Motif",
    "Noise",
    "NoiseDenoise",
    "NoiseDenoiseCommand",
    "Poisson",
    "Pool",
    "Posterior",
    "Prior",
    "Problem",
    "Reward",
    "Ring",
    "Sgdd",
    "SgddPublished",
    "SplitGibbs",
    "Synthetic",
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
