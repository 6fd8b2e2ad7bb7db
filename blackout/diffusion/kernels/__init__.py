"""Reverse steps: from X_t to X_s, s < t, with the help of a denoiser.

For pure death, where y = E[N | X_t] is the expected missing count, N = X_0 - X_t, and r the step fraction: of the units
missing at t, each is back at s with probability r.

    BinomialBridge    y rounded to a whole number, then the exact bridge             1 NFE   first order, biased
    PoissonLeap       Poisson(y r) births                                            1       first order
    PanjerLeap        births of mean y r and of the predicted dispersion             1       first order, smaller error
    PosteriorBridge   X_0 from the predicted distribution, then the exact bridge     1       exact for one element
    Trapezoidal       theta-trapezoidal in its mean-preserving form                  2       second order on smooth data
    PosteriorTrapezoidal  the same for whole distributions, by exact bridges         2       second order; exact for one

For the other processes:

    LevelBridge       X_0 from the predicted distribution, then the exact bridge     1       exact for one element
    BirthDeathBridge  the predicted pair rounded, then the exact bridge              1       first order
    TauLeap           all reverse jumps at frozen rates                              1       first order
"""

from blackout.diffusion.kernels.base import Kernel, Rounding, StatefulKernel, nearest_rounding, stochastic_rounding
from blackout.diffusion.kernels.births import (
    BinomialBridge,
    PanjerLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    Trapezoidal,
    panjer,
)
from blackout.diffusion.kernels.jumps import BirthDeathBridge, LevelBridge, TauLeap

__all__ = [
    "BinomialBridge",
    "BirthDeathBridge",
    "Kernel",
    "LevelBridge",
    "PanjerLeap",
    "PoissonLeap",
    "PosteriorBridge",
    "PosteriorTrapezoidal",
    "Rounding",
    "StatefulKernel",
    "TauLeap",
    "Trapezoidal",
    "nearest_rounding",
    "panjer",
    "stochastic_rounding",
]
