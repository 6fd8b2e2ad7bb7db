"""Heads: from the raw output of a network, [B, outputs, ...], to a prediction.

    SoftplusHead           E[X_0 - X_t | X_t], the paper's         pure death
    ScaledHead             the same, of order 1 at every time      pure death
    BoundedHead            the same, never above max_count - X_t   pure death
    GammaHead              the same, for counts of any scale       pure death
    BinnedHead             the same, by Bayes' rule from bins      pure death
    LogisticMixtureHead    a head for the mean, and a distribution of X_0 - X_t
    BirthDeathHead         the pair of `BirthDeath`                immigration and death
    LevelHead              P(X_0 = . | X_t), a logit per level     finitely many states
    LogisticHead           the same from two outputs               finitely many states

`LogisticMixtureHead` wraps a head for the mean. It reads the outputs behind those of that head, and
its loss does not train the mean: likelihood bounds are those of the wrapped head.

References: Santos et al. 2023, section 3, for `SoftplusHead`.
"""

from blackout.diffusion.heads.base import Head
from blackout.diffusion.heads.binned import BinnedHead
from blackout.diffusion.heads.birth_death import BirthDeathHead
from blackout.diffusion.heads.gamma import GammaHead
from blackout.diffusion.heads.levels import LevelHead, LogisticHead
from blackout.diffusion.heads.logistic_mixture import LogisticMixture, LogisticMixtureHead
from blackout.diffusion.heads.pure_death import BoundedHead, ScaledHead, SoftplusHead, log_softplus

__all__ = [
    "BinnedHead",
    "BirthDeathHead",
    "BoundedHead",
    "GammaHead",
    "Head",
    "LevelHead",
    "LogisticHead",
    "LogisticMixture",
    "LogisticMixtureHead",
    "ScaledHead",
    "SoftplusHead",
    "log_softplus",
]
