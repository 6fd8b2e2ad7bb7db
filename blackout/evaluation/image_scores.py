"""All scores of a set of images from one pass over it."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from blackout.component import component
from blackout.distributed import computed_once
from blackout.errors import UserError
from blackout.evaluation.extractors import Extractor, full_float32
from blackout.evaluation.features import FeatureStatistics, Moments, SampleFeatures, SampleLedger
from blackout.evaluation.fid import frechet_distance
from blackout.evaluation.images import to_rgb, to_uint8
from blackout.evaluation.inception_score import ClassShares, InceptionScore, MeanAndSpread, Recognition
from blackout.evaluation.kid import kernel_distance
from blackout.evaluation.precision_recall import precision_recall
from blackout.evaluation.reference import Reference, extractor_origin
from blackout.family import Samples
from blackout.version import __version__

# --- The scores, their names and their constants.

SCORES = ("fd", "is", "kd", "prc", "classes")
INCEPTION_NAMES = {"fd": "fid", "kd": "kid"}
"""Names of the distances with Inception features, and only with these."""


@component("options")
@dataclass(frozen=True)
class ScoreOptions:
    """Constants of the scores, by default those of the papers and of torch-fidelity.

    Attributes:
        splits: parts of the Inception Score.
        kernel_subsets: random subsets of the kernel distance.
        kernel_subset_size: samples per subset.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        recognised_above: class probability from which a sample counts as recognised.
        seed: seed of shuffles and subsets.

    Raises:
        UserError: a constant out of range.
    """

    splits: int = 10
    kernel_subsets: int = 100
    kernel_subset_size: int = 1000
    neighbours: int = 3
    density_neighbours: int = 5
    recognised_above: float = 0.8
    seed: int = 2020

    def __post_init__(self) -> None:
        least = {"splits": 1, "kernel_subsets": 1, "kernel_subset_size": 2, "neighbours": 1, "density_neighbours": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"metrics.options.{name}={getattr(self, name)}: it must be at least {bound}")
        if not 0 <= self.recognised_above < 1:
            raise UserError(f"metrics.options.recognised_above={self.recognised_above}: it must be in [0, 1)")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"metrics.options.seed={self.seed}: it must be in 0..4294967295")


def general_names(scores: Sequence[str]) -> tuple[str, ...]:
    """The chosen scores with fd for `fid` and kd for `kid`.

    Raises:
        UserError: no score, an unknown one, or one named twice.
    """
    general = {name: score for score, name in INCEPTION_NAMES.items()}
    chosen = tuple(general.get(score, score) for score in scores)
    if not chosen or set(chosen) - set(SCORES) or len(set(chosen)) < len(chosen):
        options = f"{', '.join(SCORES)} (with Inception also fid, kid)"
        raise UserError(f"metrics.scores={list(scores)}: name one or more of {options}, each once")
    return chosen


def check_scores(scores: Sequence[str], extractor: Extractor) -> tuple[str, ...]:
    """The chosen scores in their general names, if the extractor can give them.

    Raises:
        UserError: FID or KID without Inception, or a score that needs logits without these.
    """
    chosen = general_names(scores)
    if not extractor.canonical and set(scores) & set(INCEPTION_NAMES.values()):
        advice = f"with the extractor {extractor.name} write fd and kd"
        raise UserError(f"metrics.scores={list(scores)}: FID and KID are defined by Inception features only; {advice}")
    if extractor.num_classes is None and {"is", "classes"} & set(chosen):
        raise UserError(f"metrics.scores={list(scores)}: is and classes need logits; {extractor.name} gives none")
    return chosen


def reported_name(score: str, extractor: Extractor) -> str:
    """Name of a score in results: plain with Inception features, otherwise ending in the extractor's name."""
    return INCEPTION_NAMES.get(score, score) if extractor.canonical else f"{score}_{extractor.name}"


# --- Versions and spreads in reports of scores.

LIBRARIES = ("torch", "torchvision", "torch-fidelity", "torchmetrics", "numpy")


def library_versions() -> dict[str, str]:
    """Versions of the libraries that can affect a score."""
    return {"blackout": __version__, **{name: version(name) for name in LIBRARIES}}


def over_seeds(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation (n - 1) and standard error of every score over runs with different seeds.

    Args:
        values: the scores of each run, all with the same names; at least two runs.

    Raises:
        ValueError: fewer than two runs, or runs with different scores.
    """
    if len(values) < 2:
        raise ValueError(f"a spread needs at least 2 runs, not {len(values)}")
    names = list(values[0])
    if any(set(run) != set(names) for run in values):
        raise ValueError("the runs have different scores")
    spread = {}
    for name in names:
        column = [run[name] for run in values]
        deviation = statistics.stdev(column)
        spread[name] = {
            "mean": statistics.fmean(column),
            "std": deviation,
            "standard_error": deviation / len(values) ** 0.5,
        }
    return spread


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
