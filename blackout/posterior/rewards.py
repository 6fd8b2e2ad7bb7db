"""Tilts of the prior: p(x) exp(scale r(x)) for a reward or a classifier's log p(label | x).

Nothing is measured: `Tilt` takes the place of the noise, and y is the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blackout.errors import UserError
from blackout.family import Source
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

    def check(self, y: Tensor) -> None:
        """Any weight is right."""


class Tilted(Operator):
    """What is seen by its tilt alone."""

    scale: float | Sequence[float]

    @property
    def noise(self) -> Noise:
        """The tilt."""
        return Tilt(self.scale)

    def _rewards(self, judged: Judged) -> list[dict[str, float]]:
        """Scale and mean of m of every posterior; none where more than the tilt was asked of the operator."""
        noise, reward = judged.problem.noise, self(judged.samples.double())[:, 0]
        if not isinstance(noise, Tilt):
            return []
        numbers = judged.of.unique().tolist()
        return [{"scale": float(noise.scales[k]), "reward": float(reward[judged.of == k].mean())} for k in numbers]


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

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """The mean reward at every scale."""
        return {"rewards": self._rewards(judged)}


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
        """log p(label | x), [n, 1]."""
        logits = self.classifier(x).detach().double()
        if logits.ndim != 2 or not 0 <= self.label < logits.shape[1]:
            raise ValueError(f"label={self.label} is none of the classifier's logits {tuple(logits.shape)}")
        return torch.log_softmax(logits, 1)[:, self.label, None]

    def prepare(self, model: Any) -> None:
        """Let the classifier learn."""
        if hasattr(self.classifier, "learn"):
            self.classifier.learn(model.require_source(), model.process.max_count)

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """The mean log p(label | x) at every scale, and what a classifier that learns says of the samples."""
        own = self.classifier.judge(judged, self.label) if hasattr(self.classifier, "judge") else {}
        return {**own, "rewards": self._rewards(judged)}


_CHANNELS, _WORDS, _BATCH, _LR = 16, 64, 64, 2e-3


class LearnedClassifier:
    """One convolution, max-pooling and a linear layer, as in the code of [Chu 2025]; it learns the labels of the
    prior's own training data, and a second one judges the samples. Of sequences it reads words of nine names anywhere.

    Args:
        examples: first so many of the training split.
        epochs: passes over them.
        seed: of weights and order; the judge's is the next.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, examples: int = 20_000, epochs: int = 2, seed: int = 0) -> None:
        if examples < 1 or epochs < 1:
            raise ValueError(f"examples={examples} and epochs={epochs} must be at least 1")
        self.examples, self.epochs, self.seed = examples, epochs, seed
        self._network: nn.Sequential | None = None
        self._source: Source | None = None

    def learn(self, source: Source, max_count: int) -> None:
        """Learn the labels of images or sequences; the same numbers for the same seed, whatever was drawn before.

        Raises:
            UserError: there are no labels, or neither images nor sequences.
        """
        self._source, self._max_count = source, max_count
        index = torch.arange(min(self.examples, source.size("train") or self.examples))
        batch = source.batch("train", index)
        if "label" not in batch or batch["x0"].ndim not in (2, 4):
            raise UserError(f"classifier: {source.name} has no labelled images or sequences to learn from")
        x, labels = self._read(batch["x0"]), batch["label"].long()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            features = _CHANNELS * math.prod(side // 2 for side in x.shape[2:]) if x.ndim == 4 else _WORDS
            layers = (
                (nn.Conv2d(x.shape[1], _CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) if x.ndim == 4
                else (nn.Conv1d(x.shape[1], _WORDS, 9, padding=4), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
            )  # fmt: skip
            network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, int(labels.max()) + 1))
            optimizer = torch.optim.Adam(network.parameters(), _LR)
            for _ in range(self.epochs):
                for rows in torch.randperm(len(x)).split(_BATCH):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(network(x[rows]), labels[rows]).backward()
                    optimizer.step()
        self._network = network.eval().requires_grad_(False)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits, float32 [n, classes], of counts [n, *shape]."""
        return self._learned(x.device)(self._read(x))

    def _read(self, x: Tensor) -> Tensor:
        """Images as shares of the largest count, names of sequences one-hot, float32 [n, channels, ...]."""
        if x.ndim == 4:
            return x.float() / self._max_count
        return nn.functional.one_hot(x.long(), self._max_count + 1).movedim(-1, 1).float()

    def judge(self, judged: Judged, label: int) -> dict[str, Any]:
        """What a classifier of the next seed says.

        Returns:
            `values`: `accuracy`, the share of samples it takes for the label, and `held_out_accuracy`, its own on
            held-out data.
        """
        assert self._source is not None
        second = LearnedClassifier(self.examples, self.epochs, self.seed + 1)
        second.learn(self._source, self._max_count)
        held_out = self._source.batch("test", torch.arange(min(10_000, self._source.size("test") or 10_000)))
        right = second(held_out["x0"]).argmax(1) == held_out["label"]
        values = {
            "accuracy": float((second(judged.samples).argmax(1) == label).double().mean()),
            "held_out_accuracy": float(right.double().mean()),
        }
        return {"values": values}

    def _learned(self, device: torch.device) -> nn.Sequential:
        if self._network is None:
            raise ValueError("the classifier has learnt nothing: call learn first")
        return self._network.to(device)
