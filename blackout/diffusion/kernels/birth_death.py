"""The bridge of immigration and death."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.kernels.base import ReverseStep, require_prediction
from blackout.diffusion.kernels.rounding import Rounding, stochastic_rounding
from blackout.diffusion.predictions import BirthDeathPrediction, require
from blackout.diffusion.processes.birth_death import BirthDeath


@component("kernel")
@dataclass(frozen=True)
class BirthDeathBridge:
    """Round the two numbers that are predicted for `BirthDeath`, then take their exact bridge.

    It is to immigration and death what `BinomialBridge` is to pure death.

    References: this project; checked in tests/verification/test_jump_kernels.py.

    Args:
        rounding: of the numbers.

    Raises:
        ValueError: when called, guided rates. No numbers of missing units and of immigrants have
            them, where births are rarer than immigration or deaths more frequent than those of X_t
            immigrants.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        requirement = "process=birth_death and its head"
        process = require(step.process, BirthDeath, self, step.process, requirement)
        prediction = require_prediction(
            step.denoiser(step.x, step.t), BirthDeathPrediction, self, process, requirement
        )
        if isinstance(prediction, GuidedPair):
            raise ValueError(
                "the bridge of immigration and death has no guided rates: use sampler=tau_leap"
            )
        expected = prediction.expected
        xt = step.x.long()
        # at most X_t of the units are immigrants
        immigrants = torch.minimum(self.rounding(expected[:, 1], step.generator).long(), xt)
        # above the X_t - I survivors there is room for max_count in all
        headroom = (process.max_count - (xt - immigrants)).clamp(min=0)
        missing = torch.minimum(self.rounding(expected[:, 0], step.generator).long(), headroom)
        return process.bridge_from(missing, immigrants, step.x, step.s, step.t, step.generator)
