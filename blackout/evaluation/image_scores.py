"""Scores of a set of images from one pass over it: FID, Inception Score, KID, precision and recall, shares of classes.

Their choice, their constants, and how they are reported; the Frechet distance itself is in `fid.py`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from blackout.distributed import SampleRows, computed_once, my_batches, sum_over_processes
from blackout.errors import UserError, refuse
from blackout.evaluation.baselines import COPULA, MOST_DRAWN, copula_samples
from blackout.evaluation.cache import key_hash
from blackout.evaluation.extractors import ModuleExtractor, full_float32, to_rgb, to_uint8
from blackout.evaluation.fid import FeatureStatistics, frechet_distance
from blackout.evaluation.reference import (
    Reference,
    count_images,
    dataset_reference,
    extractor_origin,
    file_reference,
)
from blackout.protocols import Samples, Scores, Source, Split

SCORES = ("fd", "is", "kd", "prc", "classes")
INCEPTION_NAMES = {"fd": "fid", "kd": "kid"}
"""Names of the distances with Inception features, and only with these."""

SPLITS, SEED = 10, 2020
"""Parts of the Inception Score; seed of its shuffle and of the kernel distance's subsets. All are torch-fidelity's."""
SUBSETS, SUBSET_SIZE = 100, 1000
"""Random subsets of the kernel distance, and samples in each; half of the smaller set, if that is fewer: equal subsets
would say that nothing is uncertain."""
NEIGHBOURS, DENSITY_NEIGHBOURS = 3, 5
"""k of precision and recall, and, as their authors', of density and coverage."""
RECOGNISED = 0.8
"""Class probability above which a sample counts as recognised."""
_BATCH = 512
"""Images scored together."""
_BLOCK_ELEMENTS = 1 << 23
"""Distances held at once: 64 MiB of float64."""


class InceptionScore(Metric):
    """exp of the mean KL divergence between p(class | image) and p(class) [Salimans 2016, section 4].

    Mean and standard deviation over `splits` parts of the shuffled samples. Because a sample's part follows from its
    index, only the sums of p and of p log p of each part are kept: memory does not grow with the number of samples, and
    sums over processes are exact. Shuffle and parts are those of torch-fidelity
    (`numpy.random.RandomState(seed).permutation(n)`, part s = positions sn/splits .. (s+1)n/splits).

    Args:
        num_samples: n.
        num_classes: K, the width of the logits.
        splits: number of parts, 1 to n.
        seed: seed of the shuffle.
    """

    part_of: Tensor
    sizes: Tensor
    probabilities: Tensor
    negative_entropy: Tensor

    def __init__(self, num_samples: int, num_classes: int, splits: int = SPLITS, seed: int = SEED) -> None:
        super().__init__()
        sizes = np.diff(np.arange(splits + 1) * num_samples // splits)
        part_of = np.empty(num_samples, dtype=np.int64)
        part_of[np.random.RandomState(seed).permutation(num_samples)] = np.repeat(np.arange(splits), sizes)
        self.register_buffer("part_of", torch.from_numpy(part_of), persistent=False)
        self.register_buffer("sizes", torch.from_numpy(sizes).double(), persistent=False)
        zeros = torch.zeros(splits, num_classes, dtype=torch.float64)
        self.add_state("probabilities", zeros, dist_reduce_fx="sum")
        self.add_state("negative_entropy", zeros[:, 0].clone(), dist_reduce_fx="sum")

    def update(self, logits: Tensor, indices: Tensor) -> None:
        """Add logits [B, K] of the samples with these indices [B]: sums of p and p log p by part, see the class."""
        device = self.part_of.device
        log_p = logits.detach().to(device=device, dtype=torch.float64).log_softmax(dim=1)
        p = log_p.exp()
        parts = self.part_of[indices.to(device)]
        self.probabilities.index_add_(0, parts, p)
        self.negative_entropy.index_add_(0, parts, (p * log_p).sum(dim=1))

    def compute(self) -> tuple[float, float]:
        """Mean and (population) standard deviation over parts, two floats; every sample must have been added once.

        [Salimans 2016, section 4], see the class.
        """
        marginal = self.probabilities / self.sizes[:, None]
        scores = (self.negative_entropy / self.sizes - torch.xlogy(marginal, marginal).sum(dim=1)).exp()
        return float(scores.mean()), float(scores.std(correction=0))


class PrecisionRecall(NamedTuple):
    """Shares of samples (precision) and reference images (recall, coverage) matched; density may exceed 1."""

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
    """Precision and recall [Kynkaanniemi 2019, eq. 1 and 2], density and coverage [Naeem 2020, section 3].

    The ball of a point reaches to its k-th nearest neighbour in its own set. Precision: share of samples inside a ball
    of the reference. Recall: share of reference images inside a ball of the samples. Density: mean number of reference
    balls around a sample, over k. Coverage: share of reference balls that contain a sample. Precision and recall follow
    torch-fidelity (k = 3, closed balls), density and coverage their authors (k = 5, open balls). Results are comparable
    for sets of equal sizes. Distances are computed in blocks of rows, so memory is O(n + m) beside one block.

    Args:
        samples: features [n, F] of the generated images.
        reference: features [m, F] of the reference images.
        neighbours: k of precision and recall.
        density_neighbours: k of density and coverage.
        device: where distances are computed; the features are copied there.
    """
    # squared distances come from products of the features: in float32 they would lose points that nearly agree
    fake, real = (features.to(device, torch.float64) for features in (samples, reference))
    (fake_radius,) = _radii(fake, [neighbours])
    real_radius, density_radius = _radii(real, [neighbours, density_neighbours])
    precise = dense = 0
    recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    covered = recalled.clone()
    for rows, distance in _distance_blocks(fake, real):
        precise += int((distance <= real_radius).any(dim=1).sum())
        recalled |= (distance <= fake_radius[rows, None]).any(dim=0)
        inside = distance < density_radius
        dense += int(inside.sum())
        covered |= inside.any(dim=0)
    return PrecisionRecall(
        precision=precise / len(fake),
        recall=float(recalled.double().mean()),
        density=dense / (density_neighbours * len(fake)),
        coverage=float(covered.double().mean()),
    )


def _radii(points: Tensor, neighbours: list[int]) -> list[Tensor]:
    """Distance of each point [n, F] to its k-th nearest neighbour, [n] for each k; the point itself is the 0th.

    The radii of balls in [Kynkaanniemi 2019, eq. 2].
    """
    radii = points.new_empty(len(neighbours), len(points))
    for rows, distance in _distance_blocks(points, points):
        nearest = distance.topk(max(neighbours) + 1, dim=1, largest=False, sorted=True).values
        radii[:, rows] = nearest[:, neighbours].T
    return list(radii)


def _distance_blocks(points: Tensor, others: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Euclidean distances of points [n, F] to others [m, F], some rows at a time: (rows, [rows, m]).

    Of `precision_recall`.
    """
    step = max(1, _BLOCK_ELEMENTS // len(others))
    for start in range(0, len(points), step):
        rows = slice(start, min(start + step, len(points)))
        yield rows, torch.cdist(points[rows], others)


class ClassShares(Metric):
    """Share of samples whose largest class probability exceeds .8, and the share of each class.

    Ours (tests/evaluation/test_scores.py).

    Args:
        num_classes: K, the width of the logits.
    """

    clear: Tensor
    per_class: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.add_state("clear", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("per_class", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor) -> None:
        """Add logits [B, K]: the largest of each row, see the class."""
        top, label = logits.detach().to(self.clear.device).softmax(dim=1).max(dim=1)
        self.clear += (top > RECOGNISED).sum()
        self.per_class += torch.bincount(label, minlength=len(self.per_class))

    def compute(self) -> Tensor:
        """Shares over all processes, float64 [1 + K]: of samples with a clear class, and of each class in all.

        Ours, see the class.
        """
        return torch.cat([self.clear[None], self.per_class]).double() / self.per_class.sum()


def chosen_scores(scores: Sequence[str], extractor: ModuleExtractor | None = None) -> tuple[str, ...]:
    """The chosen scores, fd for `fid` and kd for `kid`, if they exist and the extractor, if it is known, can give them.

    Raises:
        UserError: no score, an unknown one, or one named twice; FID or KID without Inception; a score that needs logits
            without these.
    """
    general = {name: score for score, name in INCEPTION_NAMES.items()}
    chosen = tuple(general.get(score, score) for score in scores)
    if not chosen or set(chosen) - set(SCORES) or len(set(chosen)) < len(chosen):
        options = f"{', '.join(SCORES)} (with Inception also fid, kid)"
        raise UserError(f"metrics.scores={list(scores)}: name one or more of {options}, each once")
    if extractor is None:
        return chosen
    if not extractor.canonical and general.keys() & set(scores):
        advice = f"with the extractor {extractor.name} write fd and kd"
        raise UserError(f"metrics.scores={list(scores)}: FID and KID are defined by Inception features only; {advice}")
    if extractor.num_classes is None and {"is", "classes"} & set(chosen):
        raise UserError(f"metrics.scores={list(scores)}: is and classes need logits; {extractor.name} gives none")
    return chosen


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
        batch_size: images per call of the extractor.
        device: where everything is computed.
        suffix: of the names of scores that compare with the reference, such as `_test` of a reference of test images.

    Raises:
        UserError: scores that the extractor, the reference or the number of samples do not allow.
    """

    def __init__(
        self,
        extractor: ModuleExtractor,
        num_samples: int,
        scores: Sequence[str],
        reference: Reference | None = None,
        max_count: int = 255,
        batch_size: int = 256,
        device: torch.device | str = "cpu",
        suffix: str = "",
    ) -> None:
        self.scores, self._suffix = chosen_scores(scores, extractor), suffix
        self.extractor, self.reference = extractor.to(device), reference
        self.num_samples, self.max_count, self.batch_size, self.device = num_samples, max_count, batch_size, device
        self._check()
        self.subset_size = SUBSET_SIZE if self._fewest >= SUBSET_SIZE else max(2, self._fewest // 2)
        width, classes = extractor.num_features, extractor.num_classes or 0
        sums: dict[str, Metric | MetricCollection] = {}
        with torch.inference_mode(False):
            if "fd" in self.scores:
                sums["fd"] = FeatureStatistics(width)
            if "is" in self.scores:
                sums["is"] = InceptionScore(num_samples, classes)
            if "classes" in self.scores:
                sums["classes"] = ClassShares(classes)
            self._seen = torch.zeros(num_samples, dtype=torch.int32)
            self._sums = MetricCollection(sums, compute_groups=False).to(device)
            self._features = SampleRows((num_samples, width)) if {"kd", "prc"} & set(self.scores) else None

    def _check(self) -> None:
        scores, reference, extractor = self.scores, self.reference, self.extractor
        sizes = {"samples": self.num_samples}
        if reference is None:
            refuse({"fd", "kd", "prc"} & set(scores), f"metrics.scores={list(scores)}: fd, kd and prc need a reference")
        elif {"kd", "prc"} & set(scores) and reference.features is None:
            advice = "use metrics.reference=train or test, or score fd and is alone"
            raise UserError(f"kd and prc compare single images, but this reference has only mu and sigma; {advice}")
        elif len(reference.mu) != extractor.num_features:
            has, name = len(reference.mu), extractor.name
            raise UserError(f"the reference has {has} features, but the extractor {name} {extractor.num_features}")
        elif reference.features is not None:
            sizes["reference images"] = len(reference.features)
        refuse(self.num_samples < 2, f"{self.num_samples} samples cannot be scored; at least 2 are needed")
        limits = {
            "is": (SPLITS, f"the Inception Score over {SPLITS} splits", ["samples"]),
            "prc": (DENSITY_NEIGHBOURS + 1, "precision and recall", list(sizes)),
        }
        for score, (least, what, counted) in limits.items():
            for kind in counted:
                if score in scores and sizes[kind] < least:
                    told = f"{what} needs at least {least} {kind}, but there are {sizes[kind]}"
                    raise UserError(f"{told}: leave out {score} of metrics.scores")
        if "fd" in scores and self._fewest <= extractor.num_features:
            what = f"{self._name('fd')} from {self._fewest} images with {extractor.num_features} features"
            effect = "the covariance is singular and the value too large; compare it only with those of as many images"
            warnings.warn(f"{what}: {effect}", stacklevel=4)

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
        refuse(len(counts) != len(indices), f"{len(counts)} images came with {len(indices)} numbers")
        images = to_rgb(to_uint8(counts, self.max_count))
        self._seen += torch.bincount(indices.cpu(), minlength=self.num_samples)
        for batch, numbers in zip(images.split(self.batch_size), indices.split(self.batch_size), strict=True):
            features, logits = self.extractor(batch)
            self._sums.update(features=features, logits=logits, indices=numbers)
            if self._features is not None:
                self._features.update(features, numbers)

    @torch.inference_mode(False)
    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """All scores by name, the same on every process; every process must call it.

        Raises:
            UserError: a sample is missing or was scored more than once.
        """
        seen = sum_over_processes(self._seen.clone())
        told = f"only {int((seen > 0).sum())} were scored, and {int((seen > 1).sum())} of them more than once"
        refuse(bool((seen != 1).any()), f"{self.num_samples} samples were asked for, but {told}")
        sums = self._sums.compute()
        features = self._features.gather() if self._features is not None else None
        with full_float32(self.device):
            return computed_once(lambda: self._values(sums, features))

    def _values(self, sums: Mapping[str, Any], features: Tensor | None) -> dict[str, float]:
        """The chosen scores by name, floats, from sums over all samples and, for kd and prc, their features [n, F].

        See `frechet_distance`, `InceptionScore`, `precision_recall`, `ClassShares`.
        """
        values: dict[str, float] = {}
        name, real = self._name, self.reference
        if "fd" in sums and real is not None:
            values[name("fd")] = frechet_distance(sums["fd"].mu, sums["fd"].sigma, real.mu, real.sigma)
        if "is" in sums:
            values[name("is")], values[name("is", "_std")] = sums["is"]
        if features is not None and real is not None and real.features is not None:
            if "kd" in self.scores:
                # the unbiased squared maximum mean discrepancy [Gretton 2012, eq. 3; Binkowski 2018, section 4] is
                # torch-fidelity's, in the mean over random subsets; it can be slightly negative
                from torch_fidelity.metric_kid import kid_features_to_metric

                sizes = {"kid_subsets": SUBSETS, "kid_subset_size": self.subset_size}
                kernel = kid_features_to_metric(features, real.features, **sizes, rng_seed=SEED, verbose=False)
                values[name("kd")] = kernel["kernel_inception_distance_mean"]
                values[name("kd", "_std")] = kernel["kernel_inception_distance_std"]
            if "prc" in self.scores:
                shares = precision_recall(features, real.features, device=self.device)
                values |= {name(share): value for share, value in shares._asdict().items()}
        if "classes" in sums:
            values[name("recognised")], *shares = sums["classes"].tolist()
            values |= {name("share", f"_{label}"): share for label, share in enumerate(shares)}
        return values

    @property
    def _fewest(self) -> int:
        """Images of the smaller set, as far as it is known."""
        real = None if self.reference is None else self.reference.num_samples
        return min(self.num_samples, real or self.num_samples)

    def _name(self, score: str, ending: str = "") -> str:
        """Name in results: plain with Inception features, otherwise with the extractor's name."""
        suffix = self._suffix if score not in ("is", "recognised", "share") else ""
        if self.extractor.canonical:
            return f"{INCEPTION_NAMES.get(score, score)}{suffix}{ending}"
        return f"{score}_{self.extractor.name}{suffix}{ending}"

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Forget all samples."""
        self._seen.zero_()
        for part in (self._sums, self._features):
            if part is not None:
                part.reset()

    def provenance(self) -> dict[str, Any]:
        """What must agree for scores to be comparable, in plain values: extractor, reference, constants."""
        real, most = self.reference, self.max_count
        known = {} if real is None else {**real.origin, "num_samples": real.num_samples, "hash": key_hash(real.origin)}
        mapped = f"counts 0..{most} mapped to uint8 by round(255 x / {most})"
        return {
            "num_samples": self.num_samples,
            "scores": list(self.scores),
            "extractor": extractor_origin(self.extractor),
            "reference": known or None,
            "options": {
                "splits": SPLITS, "seed": SEED, "kernel_subsets": SUBSETS, "kernel_subset_size": self.subset_size,
                "neighbours": NEIGHBOURS, "density_neighbours": DENSITY_NEIGHBOURS, "recognised_above": RECOGNISED,
            },
            "images": "uint8 as they are" if most == 255 else mapped,
        }  # fmt: skip


def over_seeds(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation (n - 1) and standard error of every score over runs with different seeds.

    Numbers, by definition (tests/evaluation/test_scores.py).

    Args:
        values: the scores of each run, all with the same names; at least two runs.
    """
    spread = {}
    for name in values[0]:
        column = [run[name] for run in values]
        mean, deviation = statistics.fmean(column), statistics.stdev(column)
        spread[name] = {"mean": mean, "std": deviation, "standard_error": deviation / len(values) ** 0.5}
    return spread


@component("metrics")
class Scorer:
    """A choice of extractor, scores and reference; `begin` makes the accumulators for one set of samples.

    Nothing is loaded before `begin`. The extractor and the reference are then kept for the next call.

    Args:
        extractor: makes the extractor, for instance a `functools.partial` from Hydra.
        scores: some of fd (FID), is, kd (KID), prc, classes.
        reference: "train", the full training split (with the validation data that were taken from it), as in the
            literature; "test" for scores of other names (`fid_test`; during training `fid_val`, which compares with
            validation images); or the path of a .npz file with mu and sigma.
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
        batch_size: int = 256,
        cache: str | Path | None = None,
    ) -> None:
        chosen_scores(scores)
        refuse(batch_size < 1, f"metrics.batch_size={batch_size}: at least 1 is needed")
        self._make_extractor, self.scores, self.reference = extractor, list(scores), reference
        self.batch_size, self.cache = batch_size, cache
        self._references: dict[str, Reference] = {}

    @cached_property
    def extractor(self) -> ModuleExtractor:
        """The extractor, made on first use without touching the global random state."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            return self._make_extractor()

    def begin(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu", split: Split = "test"
    ) -> ImageScores:
        """Accumulators for `num_samples` images, compared with `source`; every process must call it.

        Call it before anything long starts: a choice that cannot work fails here.

        Args:
            source: count images, the dataset of the reference; samples hold counts 0..max_count like them.
            num_samples: n, over all processes.
            device: where extractor and accumulators work.
            split: "val" or "test", the images of the reference where `reference` is "test".

        Raises:
            UserError: another kind of source; weights, files, sizes or scores that do not fit.
        """
        data, extractor = count_images(source), self.extractor.to(device)
        scores = chosen_scores(self.scores, extractor)
        suffix = f"_{split}" if self.reference == "test" else ""
        reference = self._reference(data, scores, device, split) if {"fd", "kd", "prc"} & set(scores) else None
        return ImageScores(extractor, num_samples, scores, reference, data.max_count, self.batch_size, device, suffix)

    def held_out(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same scores of test images, at most `num_samples`; of training images, where the others are compared
        with test images. Every process must call it.

        Returns:
            `num_samples` and the scores, `values`; None, with a warning, if there are too few.
        """
        data = count_images(source)
        real = data.train if self.reference == "test" else data.test
        try:
            return self._of(source, real[:num_samples], device)
        except UserError as error:
            warnings.warn(f"scores of real images are left out: {error}", stacklevel=2)
            return None

    def baseline(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same scores of a Gaussian copula; every process must call it."""
        made = copula_samples(count_images(source).train, min(num_samples, MOST_DRAWN))
        return {"name": COPULA, **self._of(source, made, device)}

    def _of(self, source: Source, samples: Tensor, device: torch.device | str) -> dict[str, Any]:
        scores = self.begin(source, len(samples), device)
        return {"num_samples": len(samples), "values": score_all(scores, {"samples": samples})}

    def read(self, path: Path, source: Source) -> Samples:
        """Samples in a file or folder, int64 or uint8 [n, *shape], as `samples`, and their `classes` if it has them.

        Raises:
            UserError: unreadable, or not integers of the shape and range of `source`.
        """
        return {"samples": read_samples(path, count_images(source)), **read_labels(path)}

    @torch.inference_mode(False)
    def _reference(
        self, data: CountData, scores: Sequence[str], device: torch.device | str, split: Split
    ) -> Reference:
        if self.reference in ("train", "test"):
            split = "train" if self.reference == "train" else split
            key = f"{split} {data.fingerprint('train')} {data.fingerprint(split)}"
            if key not in self._references:
                with_features = bool({"kd", "prc"} & set(scores))
                self._references[key] = dataset_reference(
                    data, split, self.extractor, with_features, self.batch_size, device, self.cache
                )
            return self._references[key]
        if data.condition:
            told = f"these samples are under {data.condition}, which its images may not be"
            raise UserError(f"metrics.reference={self.reference}: {told}; metrics.reference=train or test")
        if self.reference not in self._references:
            self._references[self.reference] = file_reference(self.reference, self.extractor)
        return self._references[self.reference]


def score_all(scores: Scores, samples: Samples) -> dict[str, float]:
    """Scores of samples that every process has in full; each adds its share, and all get the same values.

    Args:
        scores: accumulators for as many samples.
        samples: named arrays [n, ...].
    """
    for indices in my_batches(scores.num_samples, _BATCH):
        scores.update({name: array[indices] for name, array in samples.items()}, indices)
    return scores.compute()
