"""Kernels: the reverse steps that `sampler=` names, a method in each file.

For pure death, where y = E[N | X_t] is the expected missing count, N = X_0 - X_t, and r the step
fraction; NFE are network evaluations per step.

    BinomialBridge          y rounded, then the exact bridge               1 NFE  order 1, biased
    PoissonLeap             Poisson(y r) births                            1      order 1
    PosteriorBridge         X_0 from its distribution, then the bridge     1      exact, 1 element
    Trapezoidal             theta-trapezoidal, mean-preserving             2      order 2
    PosteriorTrapezoidal    the same for distributions, by exact bridges   2      order 2
    MultistepLeap           Poisson leaps extrapolated from the last step  1      order 1 to 1.7

For the other processes:

    LevelBridge             X_0 from its distribution, then the bridge     1      exact, 1 element
    BirthDeathBridge        the predicted pair rounded, then the bridge    1      order 1
    TauLeap                 all reverse jumps at constant rates            1      order 1
    EulerStep               at most one jump, of probability rate (t - s)  1      order 1
"""

from blackout.diffusion.kernels.base import Kernel, ReverseStep, StatefulKernel
from blackout.diffusion.kernels.birth_death import BirthDeathBridge
from blackout.diffusion.kernels.euler import EulerStep
from blackout.diffusion.kernels.finite_states import LevelBridge
from blackout.diffusion.kernels.multistep import MultistepLeap
from blackout.diffusion.kernels.pure_death import BinomialBridge, PoissonLeap, PosteriorBridge
from blackout.diffusion.kernels.rounding import Rounding, nearest_rounding, stochastic_rounding
from blackout.diffusion.kernels.tau_leap import TauLeap
from blackout.diffusion.kernels.trapezoidal import PosteriorTrapezoidal, Trapezoidal

__all__ = [
    "BinomialBridge",
    "BirthDeathBridge",
    "EulerStep",
    "Kernel",
    "LevelBridge",
    "MultistepLeap",
    "PoissonLeap",
    "PosteriorBridge",
    "PosteriorTrapezoidal",
    "ReverseStep",
    "Rounding",
    "StatefulKernel",
    "TauLeap",
    "Trapezoidal",
    "nearest_rounding",
    "stochastic_rounding",
]
