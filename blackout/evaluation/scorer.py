"""The scores a user has chosen, ready to be applied to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from blackout.data import CountData
from blackout.errors import UserError
from blackout.evaluation.extractors import Extractor
from blackout.evaluation.image_scores import ImageScores
from blackout.evaluation.options import ScoreOptions, check_scores, general_names
from blackout.evaluation.reference import Reference, dataset_reference, file_reference


class Scorer:
    """A choice of extractor, scores and reference; ``begin`` makes the accumulators for one set of samples.

    Nothing is loaded before ``begin``. The extractor and the reference are then kept for the next call.

    Args:
        extractor: makes the extractor, for instance a ``functools.partial`` from Hydra.
        scores: some of fd (FID), is, kd (KID), prc, classes.
        reference: "train", "test" or the path of a .npz file with mu and sigma.
        options: constants of the scores.
        batch_size: images per call of the extractor.
        cache: folder for reference statistics; by default the user's cache folder.

    Raises:
        UserError: an unknown score or a batch size below 1.
    """

    def __init__(
        self,
        extractor: Callable[[], Extractor],
        scores: Sequence[str] = ("fd", "is", "kd", "prc"),
        reference: str = "train",
        options: ScoreOptions | None = None,
        batch_size: int = 256,
        cache: str | Path | None = None,
    ) -> None:
        self._make_extractor = extractor
        self.scores = list(scores)
        general_names(self.scores)
        self.reference = reference
        self.options = options or ScoreOptions()
        if batch_size < 1:
            raise UserError(f"metrics.batch_size={batch_size}: at least 1 is needed")
        self.batch_size = batch_size
        self.cache = cache
        self._extractor: Extractor | None = None
        self._references: dict[str, Reference] = {}

    @property
    def extractor(self) -> Extractor:
        """The extractor, made on first use without touching the global random state."""
        if self._extractor is None:
            with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
                self._extractor = self._make_extractor()
        return self._extractor

    def begin(self, data: CountData, num_samples: int, device: torch.device | str = "cpu") -> ImageScores:
        """Accumulators for ``num_samples`` images, compared with ``data``; every process must call it.

        Call it once before anything long starts: a choice that cannot work fails here.

        Args:
            data: the dataset of the reference; the images hold counts 0..data.max_count.
            num_samples: n, over all processes.
            device: where extractor and accumulators work.

        Raises:
            UserError: weights, files, sizes or scores that do not fit.
        """
        extractor = self.extractor.to(device)
        scores = check_scores(self.scores, extractor)
        reference = self._reference(data, scores, device) if {"fd", "kd", "prc"} & set(scores) else None
        return ImageScores(
            extractor, num_samples, scores, reference, data.max_count, self.options, self.batch_size, device
        )

    @torch.inference_mode(False)
    def _reference(self, data: CountData, scores: Sequence[str], device: torch.device | str) -> Reference:
        if self.reference not in ("train", "test"):
            key = self.reference
            if key not in self._references:
                self._references[key] = file_reference(key, self.extractor)
        else:
            key = data.fingerprint("train" if self.reference == "train" else "test")
            if key not in self._references:
                self._references[key] = dataset_reference(
                    data,
                    self.reference,
                    self.extractor,
                    bool({"kd", "prc"} & set(scores)),
                    self.batch_size,
                    device,
                    self.cache,
                )
        return self._references[key]
