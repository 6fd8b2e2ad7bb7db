"""A choice of scores, to be applied to a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from blackout.component import component
from blackout.data import CountData
from blackout.distributed import my_batches
from blackout.errors import UserError
from blackout.evaluation.extractors import ModuleExtractor
from blackout.evaluation.image_scores import ImageScores, ScoreOptions, chosen_scores
from blackout.evaluation.reference import Reference, count_images, dataset_reference, file_reference, read_samples
from blackout.family import Samples, Scores, Source

_BATCH = 512


@component("metrics")
class Scorer:
    """A choice of extractor, scores and reference; `begin` makes the accumulators for one set of samples.

    Nothing is loaded before `begin`. The extractor and the reference are then kept for the next call.

    Args:
        extractor: makes the extractor, for instance a `functools.partial` from Hydra.
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
        extractor: Callable[[], ModuleExtractor],
        scores: Sequence[str] = ("fd", "is", "kd", "prc"),
        reference: str = "train",
        options: ScoreOptions | None = None,
        batch_size: int = 256,
        cache: str | Path | None = None,
    ) -> None:
        chosen_scores(scores)
        if batch_size < 1:
            raise UserError(f"metrics.batch_size={batch_size}: at least 1 is needed")
        self._make_extractor, self.scores, self.options = extractor, list(scores), options or ScoreOptions()
        self.reference, self.batch_size, self.cache = reference, batch_size, cache
        self._references: dict[str, Reference] = {}

    @cached_property
    def extractor(self) -> ModuleExtractor:
        """The extractor, made on first use without touching the global random state."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            return self._make_extractor()

    def begin(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> ImageScores:
        """Accumulators for `num_samples` images, compared with `source`; every process must call it.

        Call it before anything long starts: a choice that cannot work fails here.

        Args:
            source: count images, the dataset of the reference; samples hold counts 0..max_count like them.
            num_samples: n, over all processes.
            device: where extractor and accumulators work.

        Raises:
            UserError: another kind of source; weights, files, sizes or scores that do not fit.
        """
        data, extractor = count_images(source), self.extractor.to(device)
        scores = chosen_scores(self.scores, extractor)
        reference = self._reference(data, scores, device) if {"fd", "kd", "prc"} & set(scores) else None
        return ImageScores(
            extractor, num_samples, scores, reference, data.max_count, self.options, self.batch_size, device
        )

    def held_out(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same scores of held-out images, at most `num_samples`; every process must call it.

        Returns:
            `num_samples` and the scores, `values`; None if there are too few held-out images.
        """
        real = count_images(source).test[:num_samples]
        try:
            scores = self.begin(source, len(real), device)
        except UserError:
            return None
        return {"num_samples": len(real), "values": score_all(scores, {"samples": real})}

    def read(self, path: Path, source: Source) -> Samples:
        """Samples in a file or folder, int64 or uint8 [n, *shape], as `samples`.

        Raises:
            UserError: unreadable, or not integers of the shape and range of `source`.
        """
        return {"samples": read_samples(path, count_images(source))}

    @torch.inference_mode(False)
    def _reference(self, data: CountData, scores: Sequence[str], device: torch.device | str) -> Reference:
        from_data = self.reference in ("train", "test")
        key = data.fingerprint("train" if self.reference == "train" else "test") if from_data else self.reference
        if key not in self._references and from_data:
            with_features = bool({"kd", "prc"} & set(scores))
            self._references[key] = dataset_reference(
                data, self.reference, self.extractor, with_features, self.batch_size, device, self.cache
            )
        elif key not in self._references:
            self._references[key] = file_reference(self.reference, self.extractor)
        return self._references[key]


def score_all(scores: Scores, samples: Samples) -> dict[str, float]:
    """Scores of samples that every process has in full; each adds its share, and all get the same values.

    Args:
        scores: accumulators for as many samples.
        samples: named arrays [n, ...].
    """
    for indices in my_batches(scores.num_samples, _BATCH):
        scores.update({name: array[indices] for name, array in samples.items()}, indices)
    return scores.compute()
