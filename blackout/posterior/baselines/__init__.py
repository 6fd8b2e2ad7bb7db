"""Rivals and reference points."""

from blackout.posterior.baselines.dps import DPS
from blackout.posterior.baselines.particles import SMC, SVDD
from blackout.posterior.baselines.simple import NoPrior, Overwrite, PriorAlone

__all__ = ["DPS", "SMC", "SVDD", "NoPrior", "Overwrite", "PriorAlone"]
