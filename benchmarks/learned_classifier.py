"""A small classifier for `operator=classifier`, trained on the labels of a model's training data.

`JudgedXor` and `JudgedAnd` write `label_accuracy` to metrics.json: the fraction of samples in which
three nearest neighbours among the training data have the same label as in the truth. In the paper a
classifier judges [Chu 2025, Table 4].

    python -m benchmarks.learned_classifier RUN RUN/posterior/xor

prints in how many posterior samples of a run three nearest neighbours have the same label as in the
truth.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from blackout import load_model
from blackout.errors import UserError
from blackout.posterior.operators import And, Pairs, SampleSet, Xor
from blackout.protocols import Source

_CHANNELS = 16
_WORDS = 64
_BATCH = 64
_LR = 2e-3


class LearnedClassifier:
    """One convolution, max-pooling and a linear layer, as in the code of [Chu 2025]; it learns the
    labels of the prior's own training data, and a second one judges the samples. Of sequences it
    reads words of nine names anywhere.

    Args:
        examples: first so many of the training split.
        epochs: passes over them.
        seed: of weights and order; the judge's is the next.

    Raises:
        UserError: a number is not positive.
    """

    def __init__(self, examples: int = 20_000, epochs: int = 2, seed: int = 0) -> None:
        if examples < 1 or epochs < 1:
            raise UserError(f"examples={examples} and epochs={epochs} must be at least 1")
        self.examples = examples
        self.epochs = epochs
        self.seed = seed
        self._network: nn.Sequential | None = None
        self._source: Source | None = None

    def learn(self, source: Source, max_count: int) -> None:
        """Learn the labels of images or sequences; the same numbers for the same seed, whatever was
        drawn before.

        Raises:
            UserError: there are no labels, or neither images nor sequences.
        """
        self._source = source
        self._max_count = max_count
        index = torch.arange(min(self.examples, source.size("train") or self.examples))
        batch = source.batch("train", index)
        if "label" not in batch or batch["x0"].ndim not in (2, 4):
            raise UserError(
                f"classifier: {source.name} has no labelled images or sequences to learn from"
            )
        x = self._read(batch["x0"])
        labels = batch["label"].long()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            features = (
                _CHANNELS * math.prod(side // 2 for side in x.shape[2:]) if x.ndim == 4 else _WORDS
            )
            layers = (
                (nn.Conv2d(x.shape[1], _CHANNELS, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
                if x.ndim == 4
                else (
                    nn.Conv1d(x.shape[1], _WORDS, 9, padding=4),
                    nn.ReLU(),
                    nn.AdaptiveAvgPool1d(1),
                )
            )
            network = nn.Sequential(
                *layers, nn.Flatten(), nn.Linear(features, int(labels.max()) + 1)
            )
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
        """Return images relative to the largest count, or one-hot names, float32 [n, channels,
        ...]."""
        if x.ndim == 4:
            return x.float() / self._max_count
        return nn.functional.one_hot(x.long(), self._max_count + 1).movedim(-1, 1).float()

    def score(self, samples: SampleSet, label: int) -> dict[str, Any]:
        """What a classifier of the next seed says.

        Returns:
            `values`: `accuracy`, the share of samples it takes for the label, and
            `held_out_accuracy`, its own on held-out data.
        """
        assert self._source is not None
        independent_classifier = LearnedClassifier(self.examples, self.epochs, self.seed + 1)
        independent_classifier.learn(self._source, self._max_count)
        held_out = self._source.batch(
            "test", torch.arange(min(10_000, self._source.size("test") or 10_000))
        )
        is_correct = independent_classifier(held_out["x0"]).argmax(1) == held_out["label"]
        values = {
            "accuracy": float(
                (independent_classifier(samples.x).argmax(1) == label).double().mean()
            ),
            "held_out_accuracy": float(is_correct.double().mean()),
        }
        return {"values": values}

    def _learned(self, device: torch.device) -> nn.Sequential:
        if self._network is None:
            raise ValueError("the classifier has learnt nothing: call learn first")
        return self._network.to(device)


class _LabelJudge(Pairs):
    """A function of pairs whose samples are judged by the labels of the training data."""

    def prepare(self, model: Any) -> None:
        """Keep the data of the model, to judge by."""
        object.__setattr__(self, "source", model.require_source())

    def score(self, samples: SampleSet, directory: Path) -> dict[str, Any]:
        """`label_accuracy`, where truths and labels are known."""
        source: Source = getattr(self, "source")  # noqa: B009  (set by `prepare`)
        if samples.truths is None or "label" not in source.batch("train", torch.arange(1)):
            return {}
        x, truths = (part.movedim(1, -1).cpu().numpy() for part in (samples.x, samples.truths))
        truths = truths[samples.measurement_index.cpu().numpy()]
        return {"values": {"label_accuracy": label_agreement(source, x, truths)}}


class JudgedXor(_LabelJudge, Xor):
    """`Xor` with `label_accuracy`."""


class JudgedAnd(_LabelJudge, And):
    """`And` with `label_accuracy`."""


def label_agreement(
    source: Source, x: np.ndarray, truth: np.ndarray, examples: int = 20_000
) -> float:
    """Return the fraction of samples [M S, H, W, C] whose neighbours give the label of the truth.

    There are M truths [M, H, W, C].
    """
    train = source.batch("train", torch.arange(min(examples, source.size("train") or examples)))
    classifier = KNeighborsClassifier(3).fit(
        train["x0"].movedim(1, -1).flatten(1).numpy(), train["label"].numpy()
    )
    true_labels, labels = (classifier.predict(part.reshape(len(part), -1)) for part in (truth, x))
    return float((labels == true_labels.repeat(len(x) // len(truth))).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learned_classifier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ckpt", type=Path, help="run directory, .ckpt file or exported model")
    parser.add_argument("folder", type=Path, help="of the posterior: samples.npz and posterior.npz")
    options = parser.parse_args()
    x = np.load(options.folder / "samples.npz")["samples"]
    posterior = np.load(options.folder / "posterior.npz")
    agreement = label_agreement(load_model(options.ckpt).require_source(), x, posterior["truth"])
    print(f"label agreement {agreement:.0%}")


if __name__ == "__main__":
    main()
