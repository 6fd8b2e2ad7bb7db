"""Settings of image scores (`metrics=inception` and others): extractor, scores and reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.component import component
from blackout.data import CountData
from blackout.data.sample_files import read_labels, read_samples
from blackout.errors import UserError, refuse
from blackout.evaluation.baselines import COPULA_NAME, MAX_COPULA_SAMPLES, copula_samples
from blackout.evaluation.extractors import ModuleExtractor
from blackout.evaluation.image_scores import (
    FEATURE_SCORES,
    REFERENCE_SCORES,
    ImageScores,
    check_scores,
    compute_scores,
)
from blackout.evaluation.reference import Reference, check_images, dataset_reference, file_reference
from blackout.protocols import Samples, Source, Split
from blackout.representation import format_arguments


@component("metrics")
class ImageScorer:
    """A choice of extractor, scores and reference; `begin` returns accumulators for some samples.

    Nothing is loaded before `begin`. The extractor and the reference are then kept for the next
    call.

    Args:
        extractor: returns the extractor, for instance a `functools.partial` from Hydra.
        scores: some of fd (FID), is, kd (KID), prdc, classes.
        reference: "train", the full training split including validation data that were taken from
            it, as in the literature; "test" for scores of other names (`fid_test`, and during
            training `fid_val`, which compares with validation images); or the path of a .npz file
            with mu and sigma.
        batch_size: images per call of the extractor.
        cache: folder for reference statistics; None for the user's cache folder.

    Raises:
        UserError: an unknown score or a batch size below 1.
    """

    __repr__ = format_arguments

    def __init__(
        self,
        extractor: Callable[[], ModuleExtractor],
        scores: Sequence[str] = ("fd", "is", "kd", "prdc"),
        reference: str = "train",
        batch_size: int = 256,
        cache: str | Path | None = None,
    ) -> None:
        check_scores(scores)
        refuse(batch_size < 1, f"metrics.batch_size must be at least 1, not {batch_size}")
        self._make_extractor = extractor
        self.scores = list(scores)
        self.reference = reference
        self.batch_size = batch_size
        self.cache = cache
        self._references: dict[str, Reference] = {}

    @cached_property
    def extractor(self) -> ModuleExtractor:
        """The extractor, made on first use without changing the global random state."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            return self._make_extractor()

    def begin(
        self,
        source: Source,
        num_samples: int,
        device: torch.device | str = "cpu",
        split: Split = "test",
    ) -> ImageScores:
        """Return accumulators for images that are compared with a source.

        Every process must call it. Call it before anything long starts: a choice that cannot work
        fails here.

        Args:
            source: dataset of the reference; samples are counts 0..max_count as its images.
            num_samples: n, over all processes.
            device: of extractor and accumulators.
            split: "val" or "test", the images of the reference if `reference` is "test".

        Raises:
            UserError: another kind of source; weights, files, sizes or scores that do not fit.
        """
        data = check_images(source)
        extractor = self.extractor.to(device)
        scores = check_scores(self.scores, extractor)
        reference = None
        if REFERENCE_SCORES & set(scores):
            reference = self._reference(data, scores, device, split)
        return ImageScores(
            extractor,
            num_samples,
            scores,
            reference,
            data.max_count,
            self.batch_size,
            suffix=f"_{split}" if self.reference == "test" else "",
        )

    def held_out(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the same scores of real images, at most `num_samples`.

        They are test images, or training images if samples are compared with test images. Every
        process must call it.

        Returns:
            `num_samples` and the scores, `values`; None, with a warning, if there are too few.
        """
        data = check_images(source)
        real = data.train if self.reference == "test" else data.test
        try:
            return self._score(source, real[:num_samples], device)
        except UserError as error:  # too few images; the scores of samples do not depend on them
            warnings.warn(f"scores of real images are left out: {error}", stacklevel=2)
            return None

    def baseline(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the same scores of a Gaussian copula; every process must call it."""
        train = check_images(source).train
        samples = copula_samples(train, min(num_samples, MAX_COPULA_SAMPLES))
        return {"name": COPULA_NAME, **self._score(source, samples, device)}

    def _score(self, source: Source, samples: Tensor, device: torch.device | str) -> dict[str, Any]:
        """Return the number of images, and their scores."""
        scores = self.begin(source, len(samples), device)
        return {
            "num_samples": len(samples),
            "values": compute_scores(scores, {"samples": samples}),
        }

    def read(self, path: Path, source: Source) -> Samples:
        """Read samples from a file or folder.

        Returns:
            `samples`, int64 or uint8 [n, *shape], and `classes` if the file has them.

        Raises:
            UserError: unreadable, or not integers of the shape and range of `source`.
        """
        samples = read_samples(path, check_images(source))
        return {"samples": samples, **read_labels(path, len(samples))}

    @torch.inference_mode(False)
    def _reference(
        self, data: CountData, scores: Sequence[str], device: torch.device | str, split: Split
    ) -> Reference:
        """Return the reference, from an earlier call if possible."""
        # 1. The images of a split.
        if self.reference in ("train", "test"):
            reference_split: Split = "train" if self.reference == "train" else split
            fingerprint = data.fingerprint(reference_split)
            key = f"{reference_split} {data.fingerprint('train')} {fingerprint}"
            if key not in self._references:
                self._references[key] = dataset_reference(
                    data,
                    reference_split,
                    self.extractor,
                    with_features=bool(FEATURE_SCORES & set(scores)),
                    batch_size=self.batch_size,
                    device=device,
                    cache=self.cache,
                )
            return self._references[key]

        # 2. A file.
        if data.condition:
            raise UserError(
                f"metrics.reference={self.reference}: these samples are conditional on "
                f"{data.condition}, and the images of the file may not be: use "
                "metrics.reference=train or test"
            )
        if self.reference not in self._references:
            self._references[self.reference] = file_reference(self.reference, self.extractor)
        return self._references[self.reference]
