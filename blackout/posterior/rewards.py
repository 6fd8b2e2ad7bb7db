"""Tilted priors: p(x) exp(scale r(x)) for a reward r, or for a classifier's log p(label | x).

Nothing is measured: `Tilt` takes the place of the noise, and the scale that of the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.diffusion.model import BlackoutDiffusion
from blackout.posterior.noise import Noise
from blackout.posterior.operators import Operator, SampleSet
from blackout.posterior.parameter_maps import to_tensor
from blackout.representation import format_fields


@dataclass(frozen=True)
class Tilt(Noise):
    """A log-likelihood y m in which y is the scale beta and m the reward.

    Args:
        scale: beta; a list gives one posterior for each.

    Raises:
        ValueError: a scale that is neither a number nor a list of numbers.

    References: Chu et al. 2025, section 4.3.
    """

    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if self.scales.ndim != 1 or not len(self.scales):
            raise ValueError(f"scale must be a number or a list of numbers, not {self.scale}")

    @property
    def scales(self) -> Tensor:
        """All scales, float64 [M]."""
        return torch.atleast_1d(to_tensor(self.scale, "scale"))

    def measurements(self, measurement_shape: Shape) -> Tensor:
        """Return the y of every posterior, float64 [M, *measurement_shape]."""
        scales = self.scales.view(-1, *[1] * len(measurement_shape))
        return scales.expand(-1, *measurement_shape).clone()

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """Return y m, float64 [n, *measurement]; 0 where y is 0, even if m is -inf.

        References: Chu et al. 2025, section 4.1.
        """
        return torch.where(y == 0, 0.0, y.double() * m.double())

    def draw(self, m: Tensor, source: object = None) -> Tensor:
        """Return zeros [n, *measurement]: nothing is measured."""
        return torch.zeros_like(m, dtype=torch.float64)

    def check(self, y: Tensor) -> None:
        """Accept any scale."""


class TiltOperator(Operator):
    """An operator whose value is a reward; its noise is a `Tilt`."""

    scale: float | Sequence[float]

    @property
    def noise(self) -> Noise:  # type: ignore[override]
        """The tilt."""
        return Tilt(self.scale)

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Return the scale and mean reward of every posterior, as `rewards`.

        The list is empty if the user combines the operator with another noise.
        """
        noise = samples.problem.noise
        rewards: list[dict[str, float]] = []
        if isinstance(noise, Tilt):
            reward = self(samples.x.double())[:, 0]
            for k in samples.measurement_index.unique().tolist():
                mean = float(reward[samples.measurement_index == k].mean())
                rewards.append({"scale": float(noise.scales[k]), "reward": mean})
        return {"rewards": rewards}


@dataclass(frozen=True)
class Reward(TiltOperator):
    """A prior tilted by a reward: p(x) exp(scale r(x)).

    Args:
        reward: x [n, *shape], float64 -> r [n].
        scale: beta; a list gives one posterior for each.

    References: Chu et al. 2025, eq. 54.

    Example:
        >>> brightness = Reward(lambda x: x.flatten(1).mean(1), scale=2.0)
        >>> brightness(torch.ones(3, 1, 2, 2)).shape
        torch.Size([3, 1])
    """

    reward: Callable[[Tensor], Tensor]
    scale: float | Sequence[float] = 1.0

    __repr__ = format_fields

    def __call__(self, x: Tensor) -> Tensor:
        """Return r(x), float64 [n, 1].

        Raises:
            ValueError: the reward does not return a tensor of shape [n].
        """
        value = self.reward(x)
        if not isinstance(value, Tensor) or tuple(value.shape) != (len(x),):
            result = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"reward must return a tensor r [n] for x [n, ...], not {result} for n = {len(x)}"
            )
        return value.detach().double()[:, None]


@dataclass(frozen=True)
class Classifier(TiltOperator):
    """A prior tilted by a classifier: p(x) p(label | x)^scale.

    Args:
        classifier: x [n, *shape], float64 -> logits [n, classes]. If it has a method
            `learn(source, max_count)`, this is first called with the training data of the prior.
        label: class that samples should have.
        scale: beta; a list gives one posterior for each.

    References: Chu et al. 2025, appendix D.2.
    """

    classifier: Callable[[Tensor], Tensor]
    label: int = 0
    scale: float | Sequence[float] = 1.0

    __repr__ = format_fields

    def __call__(self, x: Tensor) -> Tensor:
        """Return log p(label | x) by the classifier's softmax, float64 [n, 1].

        Raises:
            ValueError: the classifier returns no logits, or has no such label.

        References: Chu et al. 2025, appendix D.2.
        """
        logits = self.classifier(x)
        if not isinstance(logits, Tensor):
            raise ValueError(
                "classifier must return a tensor of logits [n, classes] for x [n, ...], "
                f"not {type(logits).__name__}"
            )
        logits = logits.detach().double()
        if logits.ndim != 2 or not 0 <= self.label < logits.shape[1]:
            shape = tuple(logits.shape)
            raise ValueError(
                f"label must be an index of the classifier's logits, of shape {shape}, "
                f"not {self.label}"
            )
        return torch.log_softmax(logits, 1)[:, self.label, None]

    def prepare(self, model: BlackoutDiffusion) -> None:
        """Train the classifier on the data of the prior, if it can be trained."""
        if hasattr(self.classifier, "learn"):
            self.classifier.learn(model.require_source(), model.process.max_count)

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """Return mean log p(label | x) at every scale, and the classifier's own scores if any."""
        scores = {}
        if hasattr(self.classifier, "score"):
            scores = self.classifier.score(samples, self.label)
        return {**scores, **super().score(samples, directory)}
