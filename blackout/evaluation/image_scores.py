"""Scores of images from one pass: FID, Inception Score, KID, precision and recall, class shares.

Each score is in a file of its own; `ImageScores` collects what they need from batches of images.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from blackout.distributed import SampleRows, compute_once, my_batches, sum_over_processes
from blackout.errors import UserError, refuse
from blackout.evaluation.cache import key_hash
from blackout.evaluation.class_shares import CONFIDENCE_THRESHOLD, ClassShares
from blackout.evaluation.extractors import ModuleExtractor, full_float32, to_rgb, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.inception_score import SHUFFLE_SEED, SPLITS, InceptionScore
from blackout.evaluation.kernel_distance import SUBSETS, choose_subset_size, kernel_distance
from blackout.evaluation.precision_recall import DENSITY_NEIGHBOURS, NEIGHBOURS, precision_recall
from blackout.evaluation.reference import Reference, extractor_origin
from blackout.protocols import MetricDescription, Samples, Scores
from blackout.representation import format_arguments

# settings `metrics.scores`
SCORES = ("fd", "is", "kd", "prdc", "classes")
REFERENCE_SCORES = frozenset({"fd", "kd", "prdc"})  # compare samples with a reference
FEATURE_SCORES = frozenset({"kd", "prdc"})  # keep the features of every image
LOGIT_SCORES = frozenset({"is", "classes"})  # need a classifier

# names of distances in results, with Inception features and with others
INCEPTION_NAMES = {"fd": "fid", "kd": "kid"}
GENERAL_NAMES = {"fd": "frechet_distance", "kd": "kernel_distance"}

DESCRIPTIONS = {
    "fd": MetricDescription("squared distance of features", "lower"),
    "is": MetricDescription("from 1 to the number of classes", "higher"),
    "kd": MetricDescription("squared distance of features", "lower"),
    "precision": MetricDescription("share of samples", "higher"),
    "recall": MetricDescription("share of data", "higher"),
    "density": MetricDescription("about 1 for real images", "higher"),
    "coverage": MetricDescription("share of data", "higher"),
    "classified_share": MetricDescription("share of samples with a clear class", "higher"),
}

IMAGES_PER_BATCH = 512  # of images in memory that are scored


def check_scores(
    scores: Sequence[str], extractor: ModuleExtractor | None = None
) -> tuple[str, ...]:
    """Return the scores as named in `SCORES`; `fid` and `kid` are fd and kd of Inception.

    Args:
        scores: setting `metrics.scores`.
        extractor: whether it can give them is checked too; None if it is not loaded yet.

    Raises:
        UserError: no score, an unknown one, or one named twice; FID or KID without Inception; a
            score that needs logits without these.
    """
    setting = f"metrics.scores={list(scores)}"
    score_of_alias = {name: score for score, name in INCEPTION_NAMES.items()}
    names = tuple(score_of_alias.get(score, score) for score in scores)
    is_unique = len(set(names)) == len(names)
    if not names or set(names) - set(SCORES) or not is_unique:
        options = f"{', '.join(SCORES)} (with Inception also fid, kid)"
        raise UserError(f"{setting} must be one or more of {options}, each once")
    if extractor is None:
        return names
    if not extractor.canonical and score_of_alias.keys() & set(scores):
        raise UserError(
            f"{setting}: FID and KID are defined by Inception features; with the extractor "
            f"{extractor.name} choose fd and kd"
        )
    if extractor.num_classes is None and LOGIT_SCORES & set(names):
        raise UserError(
            f"{setting}: is and classes need logits, which {extractor.name} does not give"
        )
    return names


class ImageScores:
    """Scores of `num_samples` images, added in batches, in any order and from several processes.

    Each image passes the extractor once. The Frechet distance, the Inception Score and class shares
    keep sums only; the kernel distance and precision and recall keep the features of every sample
    on the CPU.

    Args:
        extractor: of features and logits; everything is computed on its device.
        num_samples: n; images are numbered 0..n-1 over all processes.
        scores: some of fd, is, kd, prdc, classes.
        reference: real images by the same extractor, for fd, kd and prdc; with features for kd and
            prdc.
        max_count: images are counts 0..max_count, which `to_uint8` maps to 0..255.
        batch_size: images per call of the extractor.
        suffix: of the names of scores that use the reference, as `_test` for test images.

    Raises:
        UserError: scores that the extractor, the reference or the number of samples do not allow.
    """

    __repr__ = format_arguments

    def __init__(
        self,
        extractor: ModuleExtractor,
        num_samples: int,
        scores: Sequence[str],
        reference: Reference | None = None,
        max_count: int = 255,
        batch_size: int = 256,
        suffix: str = "",
    ) -> None:
        self.extractor = extractor
        self.num_samples = num_samples
        self.scores = check_scores(scores, extractor)
        self.reference = reference
        self.max_count = max_count
        self.batch_size = batch_size
        self._suffix = suffix
        self._check()
        self.subset_size = choose_subset_size(self._smaller_size)
        num_features = extractor.num_features
        num_classes = extractor.num_classes or 0
        sums: dict[str, Metric | MetricCollection] = {}
        with torch.inference_mode(False):
            if "fd" in self.scores:
                sums["fd"] = FeatureStatistics(num_features)
            if "is" in self.scores:
                sums["is"] = InceptionScore(num_samples, num_classes)
            if "classes" in self.scores:
                sums["classes"] = ClassShares(num_classes)
            self._sums = MetricCollection(sums, compute_groups=False).to(extractor.device)
            self._times_added = torch.zeros(num_samples, dtype=torch.int32)
            self._features: SampleRows | None = None
            if FEATURE_SCORES & set(self.scores):
                self._features = SampleRows((num_samples, num_features))

    def _check(self) -> None:
        """Refuse scores that are not possible, and warn about few samples."""
        scores = set(self.scores)
        reference = self.reference
        extractor = self.extractor
        sizes = {"samples": self.num_samples}
        if reference is None:
            refuse(
                REFERENCE_SCORES & scores,
                f"metrics.scores={list(self.scores)}: fd, kd and prdc need a reference: "
                "add metrics.reference=train or test",
            )
        elif FEATURE_SCORES & scores and reference.features is None:
            raise UserError(
                "kd and prdc compare images, but metrics.reference has only mu and sigma: use "
                "metrics.reference=train or test, or metrics.scores=[fd,is]"
            )
        elif len(reference.mu) != extractor.num_features:
            raise UserError(
                f"metrics.reference has {len(reference.mu)} features, but the extractor "
                f"{extractor.name} has {extractor.num_features}: "
                "use metrics.reference=train or test"
            )
        elif reference.features is not None:
            sizes["reference images"] = len(reference.features)
        refuse(
            self.num_samples < 2,
            f"num_samples must be at least 2 for scores, not {self.num_samples}",
        )
        if "is" in scores:
            name = f"the Inception Score over {SPLITS} splits"
            self._check_size("is", name, SPLITS, {"samples": self.num_samples})
        if "prdc" in scores:
            self._check_size("prdc", "precision and recall", DENSITY_NEIGHBOURS + 1, sizes)
        if "fd" in scores and self._smaller_size <= extractor.num_features:
            warnings.warn(
                f"{self._name('fd')} from {self._smaller_size} images with "
                f"{extractor.num_features} features: the covariance is singular and the value too "
                "large; compare it only with values from as many images",
                stacklevel=1,  # one place, so that it is shown once for samples and references
            )

    @staticmethod
    def _check_size(score: str, name: str, min_size: int, sizes: Mapping[str, int]) -> None:
        """Refuse a score of too few images."""
        for kind, size in sizes.items():
            if size < min_size:
                raise UserError(
                    f"{name} needs at least {min_size} {kind}, but there are {size}: remove "
                    f"`{score}` from metrics.scores"
                )

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add images.

        Args:
            samples: named arrays; `samples`, integers 0..max_count [B, 1 or 3, H, W], are scored.
            indices: their numbers, int64 [B].

        Raises:
            UserError: float images, values out of range, another shape.
        """
        counts = samples["samples"]
        refuse(
            len(counts) != len(indices),
            f"every image needs a number: {len(counts)} images came with {len(indices)} numbers",
        )
        images = to_rgb(to_uint8(counts, self.max_count))
        self._times_added += torch.bincount(indices.cpu(), minlength=self.num_samples)
        for start in range(0, len(images), self.batch_size):
            batch = slice(start, start + self.batch_size)
            features, logits = self.extractor(images[batch])
            self._sums.update(features=features, logits=logits, indices=indices[batch])
            if self._features is not None:
                self._features.update(features, indices[batch])

    @torch.inference_mode(False)
    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """Return all scores by name, the same on every process; every process must call it.

        Raises:
            UserError: a sample is missing or was scored more than once.
        """
        times_added = sum_over_processes(self._times_added.clone())
        num_added = int((times_added > 0).sum())
        num_repeated = int((times_added > 1).sum())
        refuse(
            bool((times_added != 1).any()),
            f"{self.num_samples} samples were requested, but only {num_added} were scored, and "
            f"{num_repeated} of them more than once",
        )
        sums = self._sums.compute()
        features = self._features.gather() if self._features is not None else None
        with full_float32(self.extractor.device):
            return compute_once(lambda: self._values(sums, features))

    def _values(self, sums: Mapping[str, Any], features: Tensor | None) -> dict[str, float]:
        """Return the chosen scores by name.

        Args:
            sums: of all samples, by score.
            features: of all samples [n, F], for kd and prdc.

        References: `frechet_distance`, `InceptionScore`, `kernel_distance`, `precision_recall`,
            `ClassShares`.
        """
        values: dict[str, float] = {}
        real = self.reference
        if "fd" in sums and real is not None:
            moments = sums["fd"]
            distance = frechet_distance(moments.mu, moments.sigma, real.mu, real.sigma)
            values[self._name("fd")] = distance
        if "is" in sums:
            mean, std = sums["is"]
            values[self._name("is")] = mean
            values[self._name("is", "_std")] = std
        if features is not None and real is not None and real.features is not None:
            if "kd" in self.scores:
                mean, std = kernel_distance(features, real.features, self.subset_size)
                values[self._name("kd")] = mean
                values[self._name("kd", "_std")] = std
            if "prdc" in self.scores:
                shares = precision_recall(features, real.features, device=self.extractor.device)
                values |= {self._name(name): value for name, value in shares._asdict().items()}
        if "classes" in sums:
            confident, *shares_of_classes = sums["classes"].tolist()
            values[self._name("classified_share")] = confident
            for label, share in enumerate(shares_of_classes):
                values[self._name("class_share", f"_{label}")] = share
        return values

    @property
    def _smaller_size(self) -> int:
        """The number of images of the smaller set, as far as it is known."""
        num_real = None if self.reference is None else self.reference.num_samples
        return min(self.num_samples, num_real or self.num_samples)

    def _name(self, score: str, ending: str = "") -> str:
        """Return the name of a score in results.

        With Inception features it is the plain name, otherwise it has the extractor's name.
        """
        uses_reference = score not in ("is", "classified_share", "class_share")
        suffix = self._suffix if uses_reference else ""
        if self.extractor.canonical:
            return f"{INCEPTION_NAMES.get(score, score)}{suffix}{ending}"
        return f"{GENERAL_NAMES.get(score, score)}_{self.extractor.name}{suffix}{ending}"

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Remove all samples."""
        self._times_added.zero_()
        self._sums.reset()
        if self._features is not None:
            self._features.reset()

    def provenance(self) -> dict[str, Any]:
        """Return, as plain values, what must agree for scores to be comparable."""
        reference = None
        if self.reference is not None:
            reference = {
                **self.reference.origin,
                "num_samples": self.reference.num_samples,
                "hash": key_hash(self.reference.origin),
            }
        images = "uint8 as they are"
        if self.max_count != 255:
            images = (
                f"counts 0..{self.max_count} mapped to uint8 by round(255 x / {self.max_count})"
            )
        return {
            "num_samples": self.num_samples,
            "scores": list(self.scores),
            "extractor": extractor_origin(self.extractor),
            "reference": reference,
            "options": {
                "splits": SPLITS,
                "seed": SHUFFLE_SEED,
                "kernel_subsets": SUBSETS,
                "kernel_subset_size": self.subset_size,
                "neighbours": NEIGHBOURS,
                "density_neighbours": DENSITY_NEIGHBOURS,
                "confidence_threshold": CONFIDENCE_THRESHOLD,
            },
            "images": images,
            "metric_descriptions": self._descriptions(),
        }

    def _descriptions(self) -> dict[str, dict[str, str]]:
        """Return unit and better direction of the scores, by their names in results."""
        return {self._name(name): asdict(score) for name, score in DESCRIPTIONS.items()}


def compute_scores(scores: Scores, samples: Samples) -> dict[str, float]:
    """Return the scores of samples that every process has in full.

    Each process adds its share, and all get the same values.

    Args:
        scores: accumulators for as many samples.
        samples: named arrays [n, ...].
    """
    for indices in my_batches(scores.num_samples, IMAGES_PER_BATCH):
        scores.update({name: array[indices] for name, array in samples.items()}, indices)
    return scores.compute()
