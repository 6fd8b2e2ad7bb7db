"""All scores of one set of images from one pass over them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.evaluation.class_scores import ClassShares, InceptionScore, MeanAndSpread, Recognition
from blackout.evaluation.distributed import computed_once
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


class ImageScores:
    """Scores of ``num_samples`` images, fed batch by batch, in any order and from any number of processes.

    Each image passes the extractor once. The Frechet distance, the Inception Score and the class shares keep
    sums only; the kernel distance and precision/recall keep the features of every sample on the CPU.

    Args:
        extractor: gives features and logits; it is moved to ``device``.
        num_samples: n; images are numbered 0..n-1 over all processes.
        scores: some of fd, is, kd, prc, classes.
        reference: real images through the same extractor, for fd, kd and prc (for kd and prc with features).
        max_count: the images hold counts 0..max_count and are mapped to 0..255 by ``to_uint8``.
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
        self.options = options or ScoreOptions()
        self.scores = check_scores(scores, extractor)
        self.extractor = extractor.to(device)
        self.num_samples = num_samples
        self.reference = reference
        self.max_count = max_count
        self.batch_size = batch_size
        self.device = device
        self._check_sizes()
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
    def update(self, counts: Tensor, indices: Tensor) -> None:
        """Add images [B, 1 or 3, H, W], integers 0..max_count, with the numbers ``indices`` [B].

        Raises:
            UserError: float images, values or numbers out of range, another shape.
        """
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

    def passport(self) -> dict[str, Any]:
        """What makes the scores comparable, in plain values: extractor, reference, constants, versions."""
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
        name = self._name
        real, options = self.reference, self.options
        if moments is not None and real is not None:
            values[name("fd")] = frechet_distance(moments.mu, moments.sigma, real.mu, real.sigma)
        if score is not None:
            values |= {name("is"): score.mean, name("is", "_std"): score.std}
        if features is not None and real is not None and real.features is not None:
            if "kd" in self.scores:
                kernel = kernel_distance(
                    features,
                    real.features,
                    options.kernel_subsets,
                    options.kernel_subset_size,
                    options.seed,
                    self.device,
                )
                values |= {name("kd"): kernel.mean, name("kd", "_std"): kernel.std}
            if "prc" in self.scores:
                shares = precision_recall(
                    features, real.features, options.neighbours, options.density_neighbours, self.device
                )
                values |= {name(share): value for share, value in shares._asdict().items()}
        if recognition is not None:
            values[name("recognised")] = recognition.recognised
            values |= {name("share", f"_{label}"): share for label, share in enumerate(recognition.shares)}
        return values

    def _name(self, score: str, ending: str = "") -> str:
        return reported_name(score, self.extractor) + ending

    def _check_sizes(self) -> None:
        chosen, options, real = set(self.scores), self.options, self.reference
        if self.num_samples < 2:
            raise UserError(f"{self.num_samples} samples cannot be scored; at least 2 are needed")
        if {"fd", "kd", "prc"} & chosen and real is None:
            raise UserError(f"metrics.scores={list(self.scores)}: fd, kd and prc need a reference")
        if real is not None and {"kd", "prc"} & chosen and real.features is None:
            raise UserError(
                f"metrics.scores={list(self.scores)}: kd and prc compare single images, but this reference "
                "has only mu and sigma; use metrics.reference=train or test, or score fd and is alone"
            )
        if real is not None and len(real.mu) != self.extractor.num_features:
            raise UserError(
                f"the reference has {len(real.mu)} features, but the extractor {self.extractor.name} "
                f"{self.extractor.num_features}"
            )
        sizes = [("samples", self.num_samples)]
        if real is not None and real.features is not None:
            sizes.append(("reference images", len(real.features)))
        limits = {
            "is": (options.splits, f"the Inception Score over {options.splits} splits", sizes[:1]),
            "kd": (options.kernel_subset_size, "metrics.options.kernel_subset_size", sizes),
            "prc": (max(options.neighbours, options.density_neighbours) + 1, "precision and recall", sizes),
        }
        for score, (least, what, counted) in limits.items():
            for kind, size in counted:
                if score in chosen and size < least:
                    raise UserError(f"{what} needs at least {least} {kind}, but there are {size}")
        fewest = min(size for _, size in sizes)
        if real is not None and real.num_samples is not None:
            fewest = min(fewest, real.num_samples)
        if "fd" in chosen and fewest <= self.extractor.num_features:
            warnings.warn(
                f"{self._name('fd')} from {fewest} images with {self.extractor.num_features} features: the "
                "covariance is singular and the value too large; compare it only with those of as many images",
                stacklevel=4,
            )
