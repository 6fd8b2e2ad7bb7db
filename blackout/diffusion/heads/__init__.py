"""Heads: what the network's raw output means, from [B, outputs, ...] to a prediction."""

from blackout.diffusion.heads.base import Head
from blackout.diffusion.heads.categorical import LevelHead, LogisticHead
from blackout.diffusion.heads.counts import BirthDeathHead, BoundedHead, ScaledHead, SoftplusHead, log_softplus
from blackout.diffusion.heads.dispersed import LogisticMixture, LogisticMixtureHead, VarianceHead
from blackout.diffusion.heads.gamma import GammaHead

__all__ = [
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
    "VarianceHead",
    "log_softplus",
]
