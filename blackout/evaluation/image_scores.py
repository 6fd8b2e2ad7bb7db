"""All scores of a set of images from one pass over it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from blackout.distributed import computed_once
from blackout.errors import UserError
from blackout.evaluation.class_scores import ClassShares, InceptionScore, MeanAndSpread, Recognition
from blackout.evaluation.extractors import Extractor
from blackout.evaluation.extractors.base import full_float32
from blackout.evaluation.features import FeatureStatistics, Moments, SampleFeatures, SampleLedger
from blackout.evaluation.frechet import frechet_distance
from blackout.evaluation.images import to_rgb, to_uint8
from blackout.evaluation.kernel import kernel_distance
from blackout.evaluation.neighbours import precision_recall
from blackout.evaluation.options import ScoreOptions, check_scores, reported_name
from blackout.evaluation.reference import Reference, extractor_origin
from blackout.evaluation.report import library_versions
from blackout.family import Samples


class ImageScores:
    """Scores of `num_samples` images, fed batch by batch, in any order and from any number of processes.

    Each image passes the extractor once. The Frechet distance, the Inception Score and the class shares keep sums only;
    the kernel distance and precision/recall keep the features of every sample on the CPU.

    Args:
        extractor: gives features and logits; it is moved to `device`.
        num_samples: n; images are numbered 0..n-1 over all processes.
        scores: some of fd, is, kd, prc, classes.
        reference: real images through the same extractor, for fd, kd and prc (for kd and prc with features).
        max_count: the images hold counts 0..max_count and are mapped to 0..255 by `to_uint8`.
        options: constants of the scores.
        batch_size: images per call of the extractor.
        device: where everything is computed.

    Raises:
        UserError: scores that the extractor, the reference or the number of samples do not allow.
    """

    def __init__(
        self,
        extractor: Extractor,
        num_samples: int,
        scores: Sequence[str],
        reference: Reference | None = None,
        max_count: int = 255,
        options: ScoreOptions | None = None,
        batch_size: int = 256,
        device: torch.device | str = "cpu",
    ) -> None:
        self.options, self.scores = options or ScoreOptions(), check_scores(scores, extractor)
        self.extractor, self.reference = extractor.to(device), reference
        self.num_samples, self.max_count, self.batch_size, self.device = num_samples, max_count, batch_size, device
        check_reference(self.scores, reference, extractor)
        check_sizes(self.scores, num_samples, reference, self.options)
        self._warn_if_singular()
        width, classes = extractor.num_features, extractor.num_classes or 0
        with torch.inference_mode(False):
            self._ledger = SampleLedger(num_samples).to(device)
            self._statistics = FeatureStatistics(width).to(device) if "fd" in self.scores else None
            self._samples = SampleFeatures(num_samples, width) if {"kd", "prc"} & set(self.scores) else None
            self._inception_score: InceptionScore | None = None
            if "is" in self.scores:
                score = InceptionScore(num_samples, classes, self.options.splits, self.options.seed)
                self._inception_score = score.to(device)
            self._classes: ClassShares | None = None
            if "classes" in self.scores:
                self._classes = ClassShares(classes, self.options.recognised_above).to(device)

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add images.

        Args:
            samples: named arrays; `samples`, integers 0..max_count [B, 1 or 3, H, W], are scored.
            indices: their numbers, int64 [B].

        Raises:
            UserError: float images, values or numbers out of range, another shape.
        """
        counts = samples["samples"]
        if len(counts) != len(indices):
            raise UserError(f"{len(counts)} images came with {len(indices)} numbers")
        images = to_rgb(to_uint8(counts, self.max_count))
        self._ledger.update(indices)
        for batch, numbers in zip(images.split(self.batch_size), indices.split(self.batch_size), strict=True):
            features, logits = self.extractor(batch)
            if self._statistics is not None:
                self._statistics.update(features)
            if self._samples is not None:
                self._samples.update(features, numbers)
            if logits is not None and self._inception_score is not None:
                self._inception_score.update(logits, numbers)
            if logits is not None and self._classes is not None:
                self._classes.update(logits)

    @torch.inference_mode(False)
    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """All scores by name, the same on every process; every process must call it.

        Raises:
            UserError: a sample is missing or was scored more than once.
        """
        self._ledger.check()
        moments = self._statistics.compute() if self._statistics is not None else None
        score = self._inception_score.compute() if self._inception_score is not None else None
        recognition = self._classes.compute() if self._classes is not None else None
        features = self._samples.gather() if self._samples is not None else None
        with full_float32(self.device):
            return computed_once(lambda: self._values(moments, score, recognition, features))

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Forget all samples."""
        for part in (self._ledger, self._statistics, self._samples, self._inception_score, self._classes):
            if part is not None:
                part.reset()

    def provenance(self) -> dict[str, Any]:
        """What must agree for scores to be comparable, in plain values: extractor, reference, constants, versions."""
        reference = self.reference
        return {
            "num_samples": self.num_samples,
            "scores": list(self.scores),
            "extractor": extractor_origin(self.extractor),
            "reference": None
            if reference is None
            else {**reference.origin, "num_samples": reference.num_samples, "hash": reference.fingerprint},
            "options": asdict(self.options),
            "images": "uint8 as they are"
            if self.max_count == 255
            else f"counts 0..{self.max_count} mapped to uint8 by round(255 x / {self.max_count})",
            "versions": library_versions(),
        }

    def _values(
        self,
        moments: Moments | None,
        score: MeanAndSpread | None,
        recognition: Recognition | None,
        features: Tensor | None,
    ) -> dict[str, float]:
        values: dict[str, float] = {}
        name, real = self._name, self.reference
        if moments is not None and real is not None:
            values[name("fd")] = frechet_distance(moments.mu, moments.sigma, real.mu, real.sigma)
        if score is not None:
            values |= {name("is"): score.mean, name("is", "_std"): score.std}
        if features is not None and real is not None and real.features is not None:
            values |= self._between_sets(features, real.features)
        if recognition is not None:
            values[name("recognised")] = recognition.recognised
            values |= {name("share", f"_{label}"): share for label, share in enumerate(recognition.shares)}
        return values

    def _between_sets(self, features: Tensor, real: Tensor) -> dict[str, float]:
        """The scores of features [n, F] that compare them with each of the reference's [m, F]."""
        values: dict[str, float] = {}
        name, options = self._name, self.options
        if "kd" in self.scores:
            subsets, size = options.kernel_subsets, options.kernel_subset_size
            kernel = kernel_distance(features, real, subsets, size, options.seed, self.device)
            values |= {name("kd"): kernel.mean, name("kd", "_std"): kernel.std}
        if "prc" in self.scores:
            shares = precision_recall(features, real, options.neighbours, options.density_neighbours, self.device)
            values |= {name(share): value for share, value in shares._asdict().items()}
        return values

    def _name(self, score: str, ending: str = "") -> str:
        return reported_name(score, self.extractor) + ending

    def _warn_if_singular(self) -> None:
        real, width = self.reference, self.extractor.num_features
        sizes = [self.num_samples, *([] if real is None or real.num_samples is None else [real.num_samples])]
        if "fd" in self.scores and min(sizes) <= width:
            what = f"{self._name('fd')} from {min(sizes)} images with {width} features"
            effect = "the covariance is singular and the value too large; compare it only with those of as many images"
            warnings.warn(f"{what}: {effect}", stacklevel=4)


def check_reference(scores: Sequence[str], reference: Reference | None, extractor: Extractor) -> None:
    """Check that a reference has what the scores compare with.

    Raises:
        UserError: it is missing, without features, or of another extractor.
    """
    if reference is None:
        if {"fd", "kd", "prc"} & set(scores):
            raise UserError(f"metrics.scores={list(scores)}: fd, kd and prc need a reference")
        return
    if {"kd", "prc"} & set(scores) and reference.features is None:
        advice = "use metrics.reference=train or test, or score fd and is alone"
        raise UserError(f"kd and prc compare single images, but this reference has only mu and sigma; {advice}")
    if len(reference.mu) != extractor.num_features:
        has, name = len(reference.mu), extractor.name
        raise UserError(f"the reference has {has} features, but the extractor {name} {extractor.num_features}")


def check_sizes(scores: Sequence[str], num_samples: int, reference: Reference | None, options: ScoreOptions) -> None:
    """Check that there are enough samples and reference images for the scores.

    Raises:
        UserError: there are too few.
    """
    if num_samples < 2:
        raise UserError(f"{num_samples} samples cannot be scored; at least 2 are needed")
    sizes = {"samples": num_samples}
    if reference is not None and reference.features is not None:
        sizes["reference images"] = len(reference.features)
    neighbours = max(options.neighbours, options.density_neighbours)
    limits = {
        "is": (options.splits, f"the Inception Score over {options.splits} splits", ["samples"]),
        "kd": (options.kernel_subset_size, "metrics.options.kernel_subset_size", list(sizes)),
        "prc": (neighbours + 1, "precision and recall", list(sizes)),
    }
    for score, (least, what, counted) in limits.items():
        for kind in counted:
            if score in scores and sizes[kind] < least:
                raise UserError(f"{what} needs at least {least} {kind}, but there are {sizes[kind]}")
