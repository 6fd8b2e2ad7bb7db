"""Scores of images from one pass: FID, Inception Score, KID, precision and recall, class shares.

The Frechet distance itself is in `fid.py`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from blackout.component import component
from blackout.data import CountData
from blackout.data.sample_files import read_labels, read_samples
from blackout.distributed import SampleRows, compute_once, my_batches, sum_over_processes
from blackout.errors import UserError, refuse
from blackout.evaluation.baselines import COPULA_NAME, MAX_COPULA_SAMPLES, copula_samples
from blackout.evaluation.cache import key_hash
from blackout.evaluation.extractors import ModuleExtractor, full_float32, to_rgb, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.reference import (
    Reference,
    check_images,
    dataset_reference,
    extractor_origin,
    file_reference,
)
from blackout.protocols import MetricDescription, Samples, Scores, Source, Split
from blackout.representation import format_arguments

# settings `metrics.scores`
SCORES = ("fd", "is", "kd", "prdc", "classes")
REFERENCE_SCORES = frozenset({"fd", "kd", "prdc"})  # compare samples with a reference
FEATURE_SCORES = frozenset({"kd", "prdc"})  # need the features of every image
LOGIT_SCORES = frozenset({"is", "classes"})  # need a classifier

# names of distances in results, with Inception features and with others
INCEPTION_NAMES = {"fd": "fid", "kd": "kid"}
GENERAL_NAMES = {"fd": "frechet_distance", "kd": "kernel_distance"}

# torch-fidelity's settings
SPLITS = 10  # of the Inception Score
SEED = 2020  # of its shuffle, and of the subsets of the kernel distance
SUBSETS = 100  # random subsets of the kernel distance
# samples in a subset; half of the smaller set if that is fewer, because subsets of all samples
# would be equal and the standard deviation 0
SUBSET_SIZE = 1000
NEIGHBOURS = 3  # k of precision and recall

DENSITY_NEIGHBOURS = 5  # k of density and coverage, Naeem et al. 2020
CONFIDENCE_THRESHOLD = 0.8  # class probability above which a sample counts as confident

DESCRIPTIONS = {
    "fd": MetricDescription(better="lower"),
    "is": MetricDescription(better="higher"),
    "kd": MetricDescription(better="lower"),
    "precision": MetricDescription("share of samples", "higher"),
    "recall": MetricDescription("share of data", "higher"),
    "density": MetricDescription(better="higher"),
    "coverage": MetricDescription("share of data", "higher"),
    "classified_share": MetricDescription("share of samples", "higher"),
}

IMAGES_PER_BATCH = 512  # of images in memory that are scored
MAX_BLOCK_VALUES = 1 << 23  # distances in memory at once, 64 MiB of float64


class InceptionScore(Metric):
    """Inception Score: exp of the mean KL divergence between p(class | image) and p(class).

    Mean and standard deviation are over `splits` parts of the shuffled samples. Because the part of
    a sample follows from its index, only the sums of p and of p log p of each part are kept: memory
    does not grow with the number of samples, and sums over processes are exact. Shuffle and parts
    are those of torch-fidelity (`numpy.random.RandomState(seed).permutation(n)`, part s has the
    positions s n / splits to (s + 1) n / splits).

    Args:
        num_samples: n.
        num_classes: K, the width of the logits.
        splits: number of parts, 1 to n.
        seed: of the shuffle.

    References: Salimans et al. 2016, section 4.
    """

    part_of: Tensor
    sizes: Tensor
    probabilities: Tensor
    negative_entropy: Tensor

    __repr__ = format_arguments

    def __init__(
        self, num_samples: int, num_classes: int, splits: int = SPLITS, seed: int = SEED
    ) -> None:
        super().__init__()
        sizes = np.diff(np.arange(splits + 1) * num_samples // splits)
        order = np.random.RandomState(seed).permutation(num_samples)
        part_of = np.empty(num_samples, dtype=np.int64)
        part_of[order] = np.repeat(np.arange(splits), sizes)
        self.register_buffer("part_of", torch.from_numpy(part_of), persistent=False)
        self.register_buffer("sizes", torch.from_numpy(sizes).double(), persistent=False)
        zeros = torch.zeros(splits, num_classes, dtype=torch.float64)
        self.add_state("probabilities", zeros, dist_reduce_fx="sum")
        self.add_state("negative_entropy", zeros[:, 0].clone(), dist_reduce_fx="sum")

    def update(self, logits: Tensor, indices: Tensor) -> None:
        """Add the logits [B, K] of samples with indices [B]; see the class."""
        device = self.part_of.device
        log_p = logits.detach().to(device=device, dtype=torch.float64).log_softmax(dim=1)
        p = log_p.exp()
        parts = self.part_of[indices.to(device)]
        self.probabilities.index_add_(0, parts, p)
        self.negative_entropy.index_add_(0, parts, (p * log_p).sum(dim=1))

    def compute(self) -> tuple[float, float]:
        """Return mean and (population) standard deviation over parts.

        Every sample must have been added once.

        References: Salimans et al. 2016, section 4.
        """
        marginal = self.probabilities / self.sizes[:, None]
        marginal_negative_entropy = torch.xlogy(marginal, marginal).sum(dim=1)
        scores = (self.negative_entropy / self.sizes - marginal_negative_entropy).exp()
        return float(scores.mean()), float(scores.std(correction=0))


class PrecisionRecall(NamedTuple):
    """Precision, recall, density and coverage; higher is better.

    Attributes:
        precision: share of samples near reference images, 0 to 1.
        recall: share of reference images near samples, 0 to 1.
        density: as precision, but counting neighbours; may exceed 1.
        coverage: share of reference images with a sample nearby, 0 to 1.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def precision_recall(
    samples: Tensor,
    reference: Tensor,
    neighbours: int = NEIGHBOURS,
    density_neighbours: int = DENSITY_NEIGHBOURS,
    device: torch.device | str = "cpu",
) -> PrecisionRecall:
    """Return precision and recall, density and coverage.

    The ball of a point reaches to its k-th nearest neighbour in its own set.

    - Precision: share of samples in a ball of the reference.
    - Recall: share of reference images in a ball of the samples.
    - Density: mean number of reference balls around a sample, over k.
    - Coverage: share of reference balls that contain a sample.

    Precision and recall follow torch-fidelity (k = 3, closed balls), density and coverage their
    authors (k = 5, open balls). Results are comparable for sets of equal sizes. Distances are
    computed in blocks of rows, so that memory is O(n + m) and one block.

    Args:
        samples: features [n, F] of generated images.
        reference: features [m, F] of reference images.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        device: where distances are computed; the features are copied there.

    References: Kynkaanniemi et al. 2019, eq. 1 and 2; Naeem et al. 2020, section 3.
    """
    # squared distances are differences of products: float32 would lose points that nearly agree
    fake = samples.to(device, torch.float64)
    real = reference.to(device, torch.float64)
    (fake_radius,) = _ball_radii(fake, [neighbours])
    real_radius, density_radius = _ball_radii(real, [neighbours, density_neighbours])
    num_precise = 0
    num_balls = 0
    is_recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    is_covered = is_recalled.clone()
    for rows, distance in _distance_blocks(fake, real):
        num_precise += int((distance <= real_radius).any(dim=1).sum())
        is_recalled |= (distance <= fake_radius[rows, None]).any(dim=0)
        is_inside = distance < density_radius
        num_balls += int(is_inside.sum())
        is_covered |= is_inside.any(dim=0)
    return PrecisionRecall(
        precision=num_precise / len(fake),
        recall=float(is_recalled.double().mean()),
        density=num_balls / (density_neighbours * len(fake)),
        coverage=float(is_covered.double().mean()),
    )


def _ball_radii(points: Tensor, neighbours: list[int]) -> list[Tensor]:
    """Return the distances of points [n, F] to their k-th nearest neighbours, [n] for each k.

    The point itself is the 0th neighbour.

    References: Kynkaanniemi et al. 2019, eq. 2.
    """
    radii = points.new_empty(len(neighbours), len(points))
    for rows, distance in _distance_blocks(points, points):
        nearest = distance.topk(max(neighbours) + 1, dim=1, largest=False, sorted=True).values
        radii[:, rows] = nearest[:, neighbours].T
    return list(radii)


def _distance_blocks(points: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and their Euclidean distances [rows, m], of points [n, F] to targets [m, F]."""
    num_rows = max(1, MAX_BLOCK_VALUES // len(targets))
    for start in range(0, len(points), num_rows):
        rows = slice(start, min(start + num_rows, len(points)))
        yield rows, torch.cdist(points[rows], targets)


class ClassShares(Metric):
    """The share of samples with a class probability above 0.8, and the share of each class.

    Args:
        num_classes: K, the width of the logits.

    References: this project; checked in tests/evaluation/test_scores.py.
    """

    num_confident: Tensor
    per_class: Tensor

    __repr__ = format_arguments

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        zero = torch.zeros((), dtype=torch.int64)
        self.add_state("num_confident", zero, dist_reduce_fx="sum")
        zeros = torch.zeros(num_classes, dtype=torch.int64)
        self.add_state("per_class", zeros, dist_reduce_fx="sum")

    def update(self, logits: Tensor) -> None:
        """Add logits [B, K]; see the class."""
        p = logits.detach().to(self.num_confident.device).softmax(dim=1)
        largest, label = p.max(dim=1)
        self.num_confident += (largest > CONFIDENCE_THRESHOLD).sum()
        self.per_class += torch.bincount(label, minlength=len(self.per_class))

    def compute(self) -> Tensor:
        """Return shares over all processes, float64 [1 + K]: confident samples, then every class.

        See the class.
        """
        counts = torch.cat([self.num_confident[None], self.per_class])
        return counts.double() / self.per_class.sum()


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
        self.subset_size = SUBSET_SIZE
        if self._smaller_size < SUBSET_SIZE:
            self.subset_size = max(2, self._smaller_size // 2)
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
            len(counts) != len(indices), f"{len(counts)} images came with {len(indices)} numbers"
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

        References: `frechet_distance`, `InceptionScore`, `precision_recall`, `ClassShares`; for kd
            Gretton et al. 2012, eq. 3, and Binkowski et al. 2018, section 4: the mean of the
            unbiased squared maximum mean discrepancy over random subsets, by torch-fidelity. It can
            be slightly negative.
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
                from torch_fidelity.metric_kid import kid_features_to_metric

                kernel = kid_features_to_metric(
                    features,
                    real.features,
                    kid_subsets=SUBSETS,
                    kid_subset_size=self.subset_size,
                    rng_seed=SEED,
                    verbose=False,
                )
                values[self._name("kd")] = kernel["kernel_inception_distance_mean"]
                values[self._name("kd", "_std")] = kernel["kernel_inception_distance_std"]
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
        """Return the number of images of the smaller set, as far as it is known."""
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
                "seed": SEED,
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


def summarise_seeds(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean, standard deviation and standard error of every score over seeds.

    Args:
        values: scores of each run, all with the same names; at least two runs.

    Returns:
        `mean`, `std` (n - 1) and `standard_error` by score.

    References: definitions; checked in tests/evaluation/test_scores.py.
    """
    summary = {}
    for name in values[0]:
        scores = [run[name] for run in values]
        std = statistics.stdev(scores)
        summary[name] = {
            "mean": statistics.fmean(scores),
            "std": std,
            "standard_error": std / len(values) ** 0.5,
        }
    return summary


@component("metrics")
class Scorer:
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
        """Return the extractor, made on first use without changing the global random state."""
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
        return {"samples": read_samples(path, check_images(source)), **read_labels(path)}

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
