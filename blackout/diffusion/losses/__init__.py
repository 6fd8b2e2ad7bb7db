"""Losses: a prediction and what really happened, to one value per element before any reduction."""

from blackout.diffusion.losses.base import Loss
from blackout.diffusion.losses.categorical import CrossEntropy, StepLoss
from blackout.diffusion.losses.counts import (
    CountLoss,
    finite_time_weight,
    growth_weighting,
    instantaneous_weight,
    likelihood_weighting,
    loss_weights,
    paper_weighting,
)
from blackout.diffusion.losses.rates import BirthDeathLoss, RateLoss, rate_loss
from blackout.diffusion.predictions import poisson_loss

__all__ = [
    "BirthDeathLoss",
    "CountLoss",
    "CrossEntropy",
    "Loss",
    "RateLoss",
    "StepLoss",
    "finite_time_weight",
    "growth_weighting",
    "instantaneous_weight",
    "likelihood_weighting",
    "loss_weights",
    "paper_weighting",
    "poisson_loss",
    "rate_loss",
]
