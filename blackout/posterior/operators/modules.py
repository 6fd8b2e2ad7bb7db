"""Likelihoods of your own: a reward, a classifier, a decoder before another operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blackout.posterior.noise import Noise
from blackout.posterior.operators.base import BlackBox, Shape


@dataclass(frozen=True)
class Tilt:
    """log L = scale m, whatever y is.

    Args:
        scale: beta.
    """

    scale: float = 1.0
    real: ClassVar[bool] = True

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """scale m."""
        return self.scale * m.double() + 0 * y

    def draw(self, m: Tensor, source: object = None) -> Tensor:
        """Nothing is measured: 0."""
        return torch.zeros_like(m, dtype=torch.float64)

    def estimate(self, y: Tensor) -> Tensor:
        """Nothing is known."""
        return y.double()

    def mean(self, m: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(m, dtype=torch.float64)

    def variance(self, m: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(m, dtype=torch.float64)

    def check(self, y: Tensor) -> None:
        """Nothing to check."""

    def thinned(self, survival: float, y: Tensor, largest: int) -> Noise | None:
        """None."""
        return None


@dataclass(frozen=True)
class Reward(BlackBox):
    """p(x) exp(scale r(x)).

    Args:
        reward: x [n, *shape], float64 -> r [n].
        scale: beta.
    """

    reward: Callable[[Tensor], Tensor]
    scale: float = 1.0

    @property
    def noise(self) -> Noise:
        """The tilt."""
        return Tilt(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """r(x), [n, 1]."""
        value = self.reward(x)
        if tuple(value.shape) != (len(x),):
            raise ValueError(f"the reward must return [n], not {tuple(value.shape)} for n = {len(x)}")
        return value.detach().double()[:, None]


@dataclass(frozen=True)
class Classifier(BlackBox):
    """p(x) p(label | x)^scale.

    Args:
        classifier: x [n, *shape], float64 -> logits [n, classes].
        label: wanted class.
        scale: beta.
    """

    classifier: Callable[[Tensor], Tensor]
    label: int = 0
    scale: float = 1.0

    @property
    def noise(self) -> Noise:
        """The tilt."""
        return Tilt(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """log p(label | x), [n, 1]."""
        logits = self.classifier(x).detach().double()
        if logits.ndim != 2 or not 0 <= self.label < logits.shape[1]:
            raise ValueError(f"label={self.label} is none of the classifier's logits {tuple(logits.shape)}")
        return torch.log_softmax(logits, 1)[:, self.label, None]


@dataclass(frozen=True)
class Decoded(BlackBox):
    """An operator of decoder(x): x are codes, what is measured is what they stand for.

    Args:
        decoder: x [n, *shape], float64 -> [n, *decoded].
        decoded: its shape.
        operator: of what is decoded, here called G.
    """

    decoder: Callable[[Tensor], Tensor]
    decoded: tuple[int, ...] | list[int]
    operator: BlackBox

    @property
    def noise(self) -> Noise:
        """G's."""
        return self.operator.noise

    def __call__(self, x: Tensor) -> Tensor:
        """G(decoder(x))."""
        value = self.decoder(x).detach()
        if tuple(value.shape[1:]) != tuple(self.decoded):
            raise ValueError(f"the decoder returns {tuple(value.shape[1:])}, not decoded={list(self.decoded)}")
        return self.operator(value)  # type: ignore[operator]

    def measured(self, shape: Shape) -> Shape:
        """G's."""
        return self.operator.measured(tuple(self.decoded))

    def seen(self, shape: Shape) -> Tensor | None:
        """G's."""
        return self.operator.seen(tuple(self.decoded))
