"""A classifier that learns the labels of the prior's own training data, and a second one to judge the samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from blackout.errors import UserError
from blackout.family import Source
from blackout.posterior.diagnostics import spectral_distance
from blackout.posterior.operators.base import Findings

_CHANNELS, _LARGEST_REFERENCE, _BATCH, _LR = 16, 1000, 64, 2e-3


class LearnedClassifier:
    """One convolution, max-pooling and a linear layer (the classifier of Chu et al. 2025, appendix C.1).

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
        """Learn the labels of a source of images; the same numbers for the same seed, whatever was drawn before.

        Raises:
            UserError: there are no labels, or no images.
        """
        self._source, self._max_count = source, max_count
        index = torch.arange(min(self.examples, source.size("train") or self.examples))
        batch = source.batch("train", index)
        if "label" not in batch or batch["x0"].ndim != 4:
            raise UserError(f"classifier: {source.name} has no labelled images to learn from")
        x, labels = batch["x0"].float() / max_count, batch["label"].long()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            network = _network(tuple(x.shape[1:]), int(labels.max()) + 1)
            _train(network, x, labels, self.epochs)
        self._network = network.eval().requires_grad_(False)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits, float32 [n, classes], of counts [n, *shape]."""
        return self._learned(x.device)(x.float() / self._max_count)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer is given, float32 [n, features]."""
        return self._learned(x.device)[:-1](x.float() / self._max_count)

    def judge(self, findings: Findings, label: int) -> dict[str, Any]:
        """`accuracy` by a classifier of the next seed, and the distance of its features from held-out real ones.

        Returns:
            `values`: `accuracy`, the share of samples it takes for the label; `held_out_accuracy`, its own on held-out
            data; and `msid`, see `spectral_distance`, where there are six samples or more.
        """
        assert self._source is not None
        second = LearnedClassifier(self.examples, self.epochs, self.seed + 1)
        second.learn(self._source, self._max_count)
        held_out = self._source.batch("test", torch.arange(min(10_000, self._source.size("test") or 10_000)))
        right = second(held_out["x0"]).argmax(1) == held_out["label"]
        values = {
            "accuracy": float((second(findings.samples).argmax(1) == label).double().mean()),
            "held_out_accuracy": float(right.double().mean()),
        }
        real = held_out["x0"][held_out["label"] == label][:_LARGEST_REFERENCE]
        if min(len(findings.samples), len(real)) > 5:
            values["msid"] = spectral_distance(second.features(findings.samples), second.features(real))
        return {"values": values}

    def _learned(self, device: torch.device) -> nn.Sequential:
        if self._network is None:
            raise ValueError("the classifier has learnt nothing: call learn first")
        return self._network.to(device)


def _network(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, _CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(_CHANNELS * (height // 2) * (width // 2), classes),
    )  # fmt: skip


def _train(network: nn.Sequential, x: Tensor, labels: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), _LR)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), labels[rows]).backward()
            optimizer.step()
