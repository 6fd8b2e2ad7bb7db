"""Tilts of the prior: p(x) exp(scale r(x)) for a reward or a classifier's log p(label | x).

Nothing is measured: `Tilt` takes the place of the noise, and y is the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.diffusion.model import BlackoutDiffusion
from blackout.posterior.noise import Noise, as_map
from blackout.posterior.operators import Judged, Operator, Shape


@dataclass(frozen=True)
class Tilt(Noise):
    """log L = y m: nothing is measured, and y is beta, the weight of m [Chu 2025, section 4.3].

    Args:
        scale: beta; with a list there is a posterior for each.

    Raises:
        ValueError: scale is neither a number nor a list of some.
    """

    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if self.scales.ndim != 1 or not len(self.scales):
            raise ValueError(f"scale must be a number or a list of numbers, not {self.scale}")

    @property
    def scales(self) -> Tensor:
        """All of them, float64 [M]."""
        return torch.atleast_1d(as_map(self.scale, "scale"))

    def measurements(self, measured: Shape) -> Tensor:
        """The y of every posterior, float64 [M, *measured]."""
        return self.scales.view(-1, *[1] * len(measured)).expand(-1, *measured).clone()

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """y m, float64 [n, *measured]; 0 where y is 0, even of an m of -inf [Chu 2025, section 4.1]."""
        return torch.where(y == 0, 0.0, y.double() * m.double())

    def draw(self, m: Tensor, source: object = None) -> Tensor:
        """Nothing is measured: 0, [n, *measured]."""
        return torch.zeros_like(m, dtype=torch.float64)

    def check(self, y: Tensor) -> None:
        """Any weight is right."""


class Tilted(Operator):
    """What is seen by its tilt alone."""

    scale: float | Sequence[float]

    @property
    def noise(self) -> Noise:  # type: ignore[override]
        """The tilt."""
        return Tilt(self.scale)

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """Scale and mean of m of every posterior; none where more than the tilt was asked of the operator."""
        noise, reward = judged.problem.noise, self(judged.samples.double())[:, 0]
        numbers = judged.of.unique().tolist() if isinstance(noise, Tilt) else []
        found = [{"scale": float(noise.scales[k]), "reward": float(reward[judged.of == k].mean())} for k in numbers]
        return {"rewards": found}


@dataclass(frozen=True)
class Reward(Tilted):
    """p(x) exp(scale r(x)) [Chu 2025, eq. 54].

    Args:
        reward: x [n, *shape], float64 -> r [n].
        scale: beta; with a list there is a posterior for each.
    """

    reward: Callable[[Tensor], Tensor]
    scale: float | Sequence[float] = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """r(x), [n, 1]."""
        value = self.reward(x)
        if tuple(value.shape) != (len(x),):
            raise ValueError(f"the reward must return [n], not {tuple(value.shape)} for n = {len(x)}")
        return value.detach().double()[:, None]


@dataclass(frozen=True)
class Classifier(Tilted):
    """p(x) p(label | x)^scale [Chu 2025, appendix D.2].

    Args:
        classifier: x [n, *shape], float64 -> logits [n, classes]; what has a `learn(source, max_count)` is first given
            the data that the prior was trained on.
        label: wanted class.
        scale: beta; with a list there is a posterior for each.
    """

    classifier: Callable[[Tensor], Tensor]
    label: int = 0
    scale: float | Sequence[float] = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """log p(label | x) of x [n, *shape], float64 [n, 1]: by the classifier's softmax [Chu 2025, appendix D.2]."""
        logits = self.classifier(x).detach().double()
        if logits.ndim != 2 or not 0 <= self.label < logits.shape[1]:
            raise ValueError(f"label={self.label} is none of the classifier's logits {tuple(logits.shape)}")
        return torch.log_softmax(logits, 1)[:, self.label, None]

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Let the classifier learn."""
        if hasattr(self.classifier, "learn"):
            self.classifier.learn(model.require_source(), model.process.max_count)

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """The mean log p(label | x) at every scale, and what a classifier that learns says of the samples."""
        own = self.classifier.judge(judged, self.label) if hasattr(self.classifier, "judge") else {}
        return {**own, **super().judge(judged, directory)}
