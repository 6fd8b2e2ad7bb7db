"""Likelihoods of your own: a reward, a classifier, a decoder before another operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from blackout.posterior.noise import Noise, as_map
from blackout.posterior.operators.base import BlackBox, Findings, Shape


@dataclass(frozen=True)
class Tilt:
    """log L = y m: nothing is measured, and y is beta, the weight of m.

    Args:
        scale: beta; with a list there is a posterior for each.

    Raises:
        ValueError: scale is neither a number nor a list of some.
    """

    scale: float | Sequence[float] = 1.0
    real: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.scales.ndim != 1 or not len(self.scales):
            raise ValueError(f"scale must be a number or a list of numbers, not {self.scale}")

    @property
    def scales(self) -> Tensor:
        """All of them, float64 [M]."""
        scales = as_map(self.scale, "scale")
        return scales if scales.ndim else scales[None]

    def measurements(self, measured: Shape) -> Tensor:
        """The y of every posterior, float64 [M, *measured]."""
        return self.scales.view(-1, *[1] * len(measured)).expand(-1, *measured).clone()

    def log_prob(self, y: Tensor, m: Tensor) -> Tensor:
        """y m; 0 where y is 0, even of an m of -inf."""
        return torch.where(y == 0, 0.0, y.double() * m.double())

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
        scale: beta; with a list there is a posterior for each.
    """

    reward: Callable[[Tensor], Tensor]
    scale: float | Sequence[float] = 1.0

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

    def judge(self, findings: Findings, directory: Path) -> dict[str, Any]:
        """The mean reward at every scale."""
        return {"rewards": _by_scale(self, findings)}


def _by_scale(operator: Reward | Classifier, findings: Findings) -> list[dict[str, float]]:
    """Scale and mean of every posterior; none where more than the tilt was asked of the operator."""
    noise, found = findings.problem.noise, operator(findings.samples.double())[:, 0]
    if not isinstance(noise, Tilt):
        return []
    numbers = findings.of.unique().tolist()
    return [{"scale": float(noise.scales[n]), "reward": float(found[findings.of == n].mean())} for n in numbers]


@dataclass(frozen=True)
class Classifier(BlackBox):
    """p(x) p(label | x)^scale.

    Args:
        classifier: x [n, *shape], float64 -> logits [n, classes]; what has a `learn(source, max_count)` is first given
            the data that the prior was trained on.
        label: wanted class.
        scale: beta; with a list there is a posterior for each.
    """

    classifier: Callable[[Tensor], Tensor]
    label: int = 0
    scale: float | Sequence[float] = 1.0

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

    def prepare(self, model: Any) -> None:
        """Let the classifier learn."""
        if hasattr(self.classifier, "learn"):
            self.classifier.learn(model.require_source(), model.process.max_count)

    def judge(self, findings: Findings, directory: Path) -> dict[str, Any]:
        """The mean log p(label | x) at every scale, and what a classifier that learns says of the samples."""
        own = getattr(self.classifier, "judge", None)
        found: dict[str, Any] = {} if own is None else own(findings, self.label)
        return {**found, "rewards": _by_scale(self, findings)}


@dataclass(frozen=True)
class Motif(BlackBox):
    """p(x) exp(scale r(x)), r the number of places of a sequence [D] where a word stands.

    Args:
        word: names, in their order.
        scale: beta; with a list there is a posterior for each.

    Raises:
        ValueError: no names.
    """

    word: Sequence[int]
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if not self.word:
            raise ValueError("word must have at least one name")

    @property
    def noise(self) -> Noise:
        """The tilt."""
        return Tilt(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """1 at every place where the word begins, float64 [n, D - length + 1]."""
        places = x.shape[1] - len(self.word) + 1
        letters = [x[:, k : k + places] == name for k, name in enumerate(self.word)]
        return torch.stack(letters).all(0).double()

    def measured(self, shape: Shape) -> Shape:
        """[places]."""
        if len(shape) != 1 or shape[0] < len(self.word):
            raise ValueError(f"word={list(self.word)} cannot stand in data of shape {shape}")
        return (shape[0] - len(self.word) + 1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Every place on the elements its word covers."""
        place = torch.arange(self.measured(shape)[0])
        return torch.cat([torch.stack([place, place + k]) for k in range(len(self.word))], 1)


@dataclass(frozen=True)
class Decoded(BlackBox):
    """An operator of decoder(x): x are codes, what is measured is what they stand for.

    Args:
        decoder: x [n, *shape], float64 -> [n, *decoded].
        decoded: its shape.
        operator: of what is decoded, here called G.
        encoder: the way back, [n, *decoded] -> [n, *shape] near counts: chains then begin at the data.
    """

    decoder: Callable[[Tensor], Tensor]
    decoded: tuple[int, ...] | list[int]
    operator: BlackBox
    encoder: Callable[[Tensor], Tensor] | None = None

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

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """G's, encoded; None without an encoder."""
        near = self.operator.back_project(m, tuple(self.decoded))
        if near is None or self.encoder is None:
            return None
        codes = self.encoder(near).detach().double()
        if tuple(codes.shape[1:]) != shape:
            raise ValueError(f"the encoder returns {tuple(codes.shape[1:])}, not {shape}")
        return codes

    def prepare(self, model: Any) -> None:
        """G's."""
        self.operator.prepare(model)

    def seen(self, shape: Shape) -> Tensor | None:
        """G's."""
        return self.operator.seen(tuple(self.decoded))
