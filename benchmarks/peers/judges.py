"""Judges of samples of digits, which know real images only.

Judge           Fréchet distance in features of a classifier, and share of recognised samples
two_sample_auc  of a random forest that separates samples from held-out images
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.data import CountData
from blackout.evaluation import frechet_distance

Array = npt.NDArray[np.float64]

FEATURES = 32  # width of the classifier's last hidden layer
STEPS = 600  # of the classifier's training, which takes seconds
BATCH_SIZE = 128
LEARNING_RATE = 2e-3
CONFIDENCE = 0.9  # probability of the first class from which an image counts as recognised
FOLDS = 5  # of cross-validation
TREES = 100  # of the forest
BLOCKS = 20  # of the jackknife


class Judge:
    """A small classifier of real images, trained on the training split.

    Args:
        data: with training labels.
        seed: of weights and batches.
        steps: of the training.
    """

    def __init__(self, data: CountData, seed: int = 0, steps: int = STEPS) -> None:
        self.max_count = data.max_count
        images = torch.as_tensor(data.train)
        labels = torch.as_tensor(data.train_labels)
        num_classes = int(labels.max()) + 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(32 * 16, FEATURES),
                nn.ReLU(),
            )
            self.head = nn.Linear(FEATURES, num_classes)
            parameters = [*self.body.parameters(), *self.head.parameters()]
            optimizer = torch.optim.Adam(parameters, LEARNING_RATE)
            for _ in range(steps):
                rows = torch.randint(len(images), (BATCH_SIZE,))
                logits = self.head(self.features(images[rows]))
                loss = F.cross_entropy(logits, labels[rows].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def features(self, images: Tensor) -> Tensor:
        """Return the features of counts [N, 1, 8, 8], float32 [N, FEATURES]."""
        features: Tensor = self.body(images.float() / self.max_count)
        return features

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return the probability of every class, [N, classes]."""
        return torch.softmax(self.head(self.features(images)), 1)

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Return the share of images whose most probable class is right."""
        return float((self.probabilities(images).argmax(1) == labels).double().mean())

    def recognised(self, images: Tensor) -> float:
        """Return the share of images whose most probable class has at least CONFIDENCE."""
        return float((self.probabilities(images).amax(1) >= CONFIDENCE).double().mean())

    @torch.no_grad()
    def frechet(self, images: Tensor, reference: Tensor) -> float:
        """Return the Fréchet distance between the features of two sets of images."""
        moments = []
        for counts in (images, reference):
            features = self.features(counts).double()
            moments += [features.mean(0), torch.cov(features.T)]
        return frechet_distance(*moments)


def two_sample_auc(samples: Tensor, reference: Tensor, seed: int = 0) -> tuple[float, float]:
    """Return the AUC of a forest that separates samples from real images, and its error.

    Predictions are those of cross-validation. The error is that of a jackknife over blocks of
    rows, which leaves the forests as they are.

    Args:
        samples: counts [N, *shape].
        reference: held-out images [M, *shape].
        seed: of folds and forests.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    number = min(len(samples), len(reference))
    x = torch.cat([samples[:number], reference[:number]]).flatten(1).numpy()
    y = np.repeat([1, 0], number)
    forest = RandomForestClassifier(TREES, min_samples_leaf=2, random_state=seed)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    score = cross_val_predict(forest, x, y, cv=folds, method="predict_proba")[:, 1]
    return auc_with_error(score[:number], score[number:])


def auc_with_error(positive: Array, negative: Array, blocks: int = BLOCKS) -> tuple[float, float]:
    """Return P(positive > negative) + P(equal) / 2, and its error by a jackknife over blocks.

    Args:
        positive: scores [N].
        negative: scores [N].
        blocks: that are left out in turn; row k of both belongs to block k modulo `blocks`.
    """
    block = np.arange(len(positive)) % blocks
    partial = []
    for number in range(blocks):
        rows = block != number
        partial.append(auc(positive[rows], negative[rows]))
    spread = float(np.sum((np.array(partial) - np.mean(partial)) ** 2))
    return auc(positive, negative), math.sqrt(spread * (blocks - 1) / blocks)


def auc(positive: Array, negative: Array) -> float:
    """Return P(positive > negative) + P(equal) / 2."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([positive, negative]))
    first = ranks[: len(positive)].sum() - len(positive) * (len(positive) + 1) / 2
    return float(first / (len(positive) * len(negative)))


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of independent runs and its standard error; None for a single run."""
    if len(values) < 2:
        return float(np.mean(values)), None
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))
