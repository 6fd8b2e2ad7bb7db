"""The form of every dataset: two tensors of counts, what they must be, a hash of them, and facts about them."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.count_statistics import (
    Sums,
    covariance_excess,
    neighbour_correlation,
    parts,
    sums,
    total_dispersion,
)
from blackout.data.file_formats import check_range, to_counts
from blackout.data.labels import Level, divided
from blackout.data.on_disk import Rows
from blackout.data.splits import SplitRows, split_samples
from blackout.errors import UserError, ensure, refuse
from blackout.protocols import Split

_SPLITS: tuple[Split, ...] = get_args(Split)
_NO_SAMPLES = torch.empty(0, dtype=torch.uint8)
_OF_SPLIT = "", "_labels", "_seen"
"""Ends of the names of a split's parts."""
_FEWEST = 10
"""Samples of either split that are compared at least, under a condition."""
_MOST_COUNTED = 1 << 16
"""Labels whose numbers are told to a model at most."""
_ORDERED = 0.1
"""Correlation that neighbours in a vector have beyond that of any two elements if it is a series."""


@dataclass(frozen=True, eq=False)
class CountData:
    """Training, validation and test counts, in memory or, as `Rows`, on the disk: a `blackout.protocols.Source`.

    Attributes:
        name: short name for logs and file names.
        train: counts [N, C, H, W], [N, D], series [N, C, L] or volumes [N, C, D, H, W] of any integer dtype; kept as
            uint8 when `max_count <= 255`, else as int32.
        test: test counts [M, ...], on which final numbers are reported.
        val: validation counts [V, ...], by which checkpoints are chosen; none unless they are given.
        max_count: the largest value a count may have, 1 .. 2^31 - 1.
        train_labels: class of each training sample, int64 [N], or None.
        test_labels: class of each test sample, int64 [M], or None.
        val_labels: class of each validation sample, int64 [V], or None.
        val_rows: where the validation samples were in the training data that they were taken from, int64 [V],
            increasing: see `undivided`. None for validation data of their own.
        flip: mirror training images left-right where `batch` is given a number below 1/2.
        class_names: one for every class, where they have names.
        class_values: what every class is in each column that it was made of, by the column's name.
        features: names of the elements of a vector, where they have names.
        train_seen, val_seen, test_seen: bool of the splits' shapes, False where an entry is missing and the count only
            stands in its place for moments; None where all were seen.
        covariates: the number or word of every level of each further condition by name. A label is then the number of
            (class, level, level, ...), the last one counted fastest.
        sample_shape: of one sample where the data come from, such as (H, W) of one channel; None for the usual one.
        annotated: the data come from AnnData, and samples are to go there.
        layer: of it that they come from; None for X.
        condition: what these are all samples under, where they are a part of the data (`under`).
        offset, gain: the file they are from holds offset + gain x counts.

    Raises:
        ValueError: counts that are not integers, negative, or above `max_count`; an empty split; shapes that differ
            between the splits or are none of these; labels that do not match; `flip` without images.
    """

    name: str
    train: Tensor | Rows
    test: Tensor | Rows
    max_count: int
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    flip: bool = False
    class_names: tuple[str, ...] = ()
    class_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    train_seen: Tensor | None = None
    test_seen: Tensor | None = None
    val: Tensor | Rows = _NO_SAMPLES
    val_labels: Tensor | None = None
    val_seen: Tensor | None = None
    val_rows: Tensor | None = None
    covariates: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    sample_shape: tuple[int, ...] | None = None
    annotated: bool = False
    layer: str | None = None
    condition: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    gain: int = 1
    _served: Tensor | Rows = field(init=False, repr=False)
    _fingerprints: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.max_count) is not int or not 1 <= self.max_count <= LARGEST_COUNT:
            limits = f"a whole number between 1 and {LARGEST_COUNT}"
            raise ValueError(f"{self.name}: max_count must be {limits}, got {self.max_count!r}")
        for split in _SPLITS:
            counts, labels, seen = self._parts(split)
            if split == "val" and len(counts) == 0:
                self._leave_out_validation()
                continue
            _check_counts(f"{self.name} {split} data", counts, self.max_count)
            # written once to the frozen object: everyone downstream may rely on the dtype
            counts = counts.to(count_dtype(self.max_count))
            object.__setattr__(self, split, counts if isinstance(counts, Rows) else counts.contiguous())
            if labels is not None:
                _check_labels(f"{self.name} {split} labels", labels, len(counts))
                object.__setattr__(self, f"{split}_labels", labels.to(torch.int64))
            if seen is not None and (seen.dtype != torch.bool or seen.shape != counts.shape):
                raise ValueError(f"{self.name}: {split}_seen must be booleans {list(counts.shape)}")
            if counts.shape[1:] != self.train.shape[1:]:
                shapes = f"got {tuple(self.train.shape[1:])} and {tuple(counts.shape[1:])}"
                raise ValueError(f"{self.name}: train and {split} samples must have the same shape, {shapes}")
            if (labels is None) != (self.train_labels is None):
                raise ValueError(f"{self.name}: labels must be given for all splits or for none")
        if self.val_rows is not None:
            if self.val_rows.shape != self.val.shape[:1]:
                raise ValueError(f"{self.name}: val_rows must be {len(self.val)} numbers, one per validation sample")
            if (self.val_seen is None) != (self.train_seen is None):
                raise ValueError(f"{self.name}: with val_rows val_seen must be given with train_seen, and only then")
        if self.flip and len(self.shape) != 3:
            raise ValueError(f"flip mirrors images [C, H, W], but {self.name} has samples of shape {self.shape}")
        object.__setattr__(self, "_served", self.train)

    def _leave_out_validation(self) -> None:
        """Make the validation data an empty part of the training data, so that shapes and dtypes agree."""
        empty = torch.empty(0, dtype=torch.int64)
        for part in _OF_SPLIT:
            object.__setattr__(self, f"val{part}", taken(getattr(self, f"train{part}"), empty))
        object.__setattr__(self, "val_rows", None)

    def _parts(self, split: Split) -> tuple[Tensor | Rows, Tensor | None, Tensor | None]:
        """Counts, labels and what was seen of a split."""
        counts, labels, seen = (getattr(self, split + part) for part in _OF_SPLIT)
        return counts, labels, seen

    @classmethod
    def from_array(
        cls,
        counts: Any,
        labels: Any = None,
        max_count: int | None = None,
        holdout: float = 0.1,
        seed: int = 0,
        name: str = "counts",
        validation: float = 0.1,
    ) -> CountData:
        """Counts in memory, divided at random into training, validation and test data, every class alike.

        Args:
            counts: whole numbers [N, D], [N, H, W] or [N, C, H, W]: a tensor, a SciPy sparse matrix, or what NumPy
                makes an array of.
            labels: class of each sample, whole numbers [N], or None.
            max_count: largest count there can be; None takes the largest there is.
            holdout: share of the samples for the test.
            seed: of the choice.
            name: for logs and file names.
            validation: share or number of the samples for validation; 0 for none.

        Raises:
            ValueError: counts or labels that are none, or too few.
        """
        given = counts.cpu() if isinstance(counts, Tensor) else counts
        whole = to_counts(name, given if hasattr(given, "toarray") else np.asarray(given))
        classes = None if labels is None else torch.as_tensor(labels)
        rows = split_samples(len(whole), validation, holdout, seed, classes)
        largest = int(whole.max()) if max_count is None else max_count
        return cls(name, max_count=largest, **divided_parts(rows, {"": whole, "_labels": classes}))

    def __str__(self) -> str:
        sizes = f"{len(self.train):,} training + {len(self.val):,} validation + {len(self.test):,} test samples"
        missing = "" if self.train_seen is None else f", {1 - self.train_seen.float().mean():.1%} missing"
        top = self.max_count * self.gain + self.offset
        return f"{self.name}, {sizes}, shape {self.shape}, counts {self.offset}..{top}{missing}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (D,), (C, L) or (C, D, H, W)."""
        return tuple(self.train.shape[1:])

    @property
    def num_classes(self) -> int | None:
        """Number of classes in the labels, int64 [N], with all combinations of covariates; None without labels."""
        of_splits = [self._parts(split)[1] for split in _SPLITS]
        known = [labels for labels in of_splits if labels is not None and len(labels)]
        if not known:
            return None
        if self.covariates:
            return max(1, len(self.class_names)) * math.prod(map(len, self.covariates.values()))
        return int(max(labels.max() for labels in known)) + 1

    @property
    def complete(self) -> CountData | None:
        """The samples of which nothing is missing; None where there are none to train on or to test on."""
        masks: dict[Split, Tensor | None] = {split: getattr(self, f"{split}_seen") for split in _SPLITS}
        if all(seen is None for seen in masks.values()):
            return self
        rows: dict[Split, Tensor] = {}
        for split, seen in masks.items():
            whole = torch.ones(self.size(split)) if seen is None else seen.flatten(1).all(1)
            rows[split] = torch.nonzero(whole).flatten()
        if not (len(rows["train"]) and len(rows["test"])):
            return None
        return self._part(rows, **{f"{split}_seen": None for split in _SPLITS})

    def _part(self, rows: Mapping[Split, Tensor], **replaced: Any) -> CountData:
        """The samples with these numbers, int64, in increasing order, by split."""
        names = {split + part: chosen for split, chosen in rows.items() for part in _OF_SPLIT}
        parts = {name: taken(getattr(self, name), chosen) for name, chosen in names.items()}
        if self.val_rows is not None:
            stayed = _places(self.val_rows, len(self.train))[rows["train"]]
            cut = self.val_rows[rows["val"]]
            parts["val_rows"] = torch.searchsorted(stayed, cut) + torch.arange(len(cut))
        return replace(self, **parts | replaced)

    def undivided(self) -> CountData:
        """The same with the validation data back where they were taken from: then there are none.

        It is what published scores of images have as reference: the official training split. Validation data of their
        own stay what they are.
        """
        if self.val_rows is None:
            return self
        places = _places(self.val_rows, len(self.train))
        parts: dict[str, Any] = {"val": _NO_SAMPLES, "val_labels": None, "val_seen": None, "val_rows": None}
        for part in _OF_SPLIT:
            stayed, cut = getattr(self, f"train{part}"), getattr(self, f"val{part}")
            if isinstance(stayed, Rows):
                parts[f"train{part}"] = stayed.merged(cut, places, self.val_rows)
            elif stayed is not None:
                whole = stayed.new_empty((len(stayed) + len(cut), *stayed.shape[1:]))
                whole[places] = stayed
                whole[self.val_rows] = cut
                parts[f"train{part}"] = whole
        return replace(self, **parts)

    def under(self, labels: Tensor) -> CountData:
        """The samples of all splits under the condition of labels, int64 [c], that samples take in turn.

        Their classes are there in the same shares, to within half a sample, and their covariates are words of
        the labels, or lie between the least and the largest level of the labels. Ours, tested in
        `tests/data/test_conditions.py`.

        Raises:
            UserError: there are no labels, or fewer than 10 training or test samples.
        """
        if self.train_labels is None:
            raise UserError(f"{self.name} has no labels to tell the classes of samples by: dataset.labels=<column>")
        words = self.class_names
        wanted, *levels = divided(labels, [len(values) for values in self.covariates.values()])
        kinds = wanted.unique().tolist()
        told: dict[str, Any] = {"classes": [words[kind] if kind < len(words) else kind for kind in kinds]}
        for (name, values), level in zip(self.covariates.items(), levels, strict=True):
            asked = [values[k] for k in level.unique().tolist()]
            told[name] = asked if isinstance(asked[0], str) else [asked[0], asked[-1]]
        rows = {split: _like(labels, self._parts(split)[1], self.covariates) for split in _SPLITS}
        sizes = {"training": len(rows["train"]), "test": len(rows["test"])}
        for what, number in sizes.items():
            if number < _FEWEST:
                what = f"{number} {what} samples are under {told}"
                raise UserError(f"{self.name}: {what}, of at least {_FEWEST} to compare with: leave out evaluate=true")
        return self._part(rows, condition=told)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What components may ask for by name: shape, moments of the training split and, with labels, num_classes.

        Classes that have names give class_names and class_values too. Moments are max_count, mean, std,
        total_dispersion and covariance_excess (`count_statistics.py`). With continuous conditions, `covariates`,
        `covariate_levels` and `label_counts`, how often each label occurs in training; where a file has them,
        `sample_shape` and AnnData's `features` and `layer` and, if they are not (0, 1), `units`, offset and gain.
        """
        facts = {"shape": list(self.shape), "max_count": self.max_count, "mean": self.mean, "std": self.std}
        dispersion = facts["total_dispersion"] = total_dispersion(self.train, self.sums)
        # a norm that is at least the one quotient D - 1
        facts["covariance_excess"] = max(covariance_excess(self.train, self.sums), abs(dispersion - 1))
        labels, number = self.train_labels, self.num_classes or 0
        told = self.covariates and number <= _MOST_COUNTED
        known = {
            "num_classes": self.num_classes,
            "covariates": {name: list(values) for name, values in self.covariates.items()} or None,
            "covariate_levels": [len(values) for values in self.covariates.values()] or None,
            "label_counts": labels.bincount(minlength=number).tolist() if told and labels is not None else None,
            "sample_shape": None if self.sample_shape is None else list(self.sample_shape),
            "features": list(self.features) if self.annotated else None,
            "layer": self.layer if self.annotated else None,
            "class_names": list(self.class_names) or None,
            "class_values": {name: list(values) for name, values in self.class_values.items()} or None,
            "units": [self.offset, self.gain] if (self.offset, self.gain) != (0, 1) else None,
        }
        return facts | {name: value for name, value in known.items() if value is not None}

    @cached_property
    def sums(self) -> Sums:
        """Of the training split, over samples and over elements."""
        return sums(self.train)

    @cached_property
    def mean(self) -> float:
        """Mean count over all elements of the training split [N, *shape], a float.

        Ours (tests/verification/test_end_laws.py).
        """
        return int(self.sums.element.sum()) / self.train.numel()

    @cached_property
    def std(self) -> float:
        """Standard deviation of the counts over all elements of the training split [N, *shape], a float.

        Ours (tests/verification/test_end_laws.py).
        """
        return max(float(self.sums.square.sum()) / self.train.numel() - self.mean**2, 0.0) ** 0.5

    @cached_property
    def ordered(self) -> bool:
        """Whether the elements of a vector are a series: neighbours go together more than any two elements do."""
        return len(self.shape) == 1 and neighbour_correlation(self.train) > _ORDERED

    def size(self, split: Split) -> int:
        """Number of samples of a split."""
        return len(self._parts(split)[0])

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        """The samples with these numbers.

        Args:
            split: where they are.
            index: int64 [b], on the CPU.
            augment: uniforms [b]; with `flip`, samples whose number is below 1/2 are mirrored. None mirrors none.

        Returns:
            `x0`, counts [b, *shape], where the split is kept; with labels also `label`, int64 [b], on the CPU. Where
            entries are missing, they are 0, and `seen` is bool [b, *shape].
        """
        counts, labels, seen = self._parts(split)
        if split == "train":
            counts = self._served
        batch = {"x0": counts.index_select(0, index.to(counts.device, non_blocking=True))}
        if seen is not None:
            batch["seen"] = seen[index].to(counts.device)
            batch["x0"] = batch["x0"] * batch["seen"]
        if self.flip and augment is not None:
            batch = {name: _mirrored(values, augment < 0.5) for name, values in batch.items()}
        return batch if labels is None else {**batch, "label": labels[index]}

    def to(self, device: torch.device | str) -> CountData:
        """The same data, with training batches made on `device`; `train` itself stays, for hashes and moments."""
        moved = copy.copy(self)
        object.__setattr__(moved, "_served", self.train.to(device))
        return moved

    def fingerprint(self, split: Split = "train") -> str:
        """SHA-256 (hex) of a split's shape, dtype and bytes, in the order of its samples.

        It identifies the data that were trained on or compared with.
        """
        if split not in self._fingerprints:
            counts, _, seen = self._parts(split)
            digest = hashlib.sha256(f"{counts.dtype} {tuple(counts.shape)}\n".encode())
            for values in (counts, seen):
                for _, chunk in parts(values) if values is not None else ():
                    digest.update(chunk.numpy().data)
            self._fingerprints[split] = digest.hexdigest()
        return self._fingerprints[split]


def divided_counts(counts: Any, validation: float) -> CountData:
    """An array of counts, as `CountData.from_array` takes it, with a share or number of the samples for validation.

    Raises:
        UserError: data that are divided already, or a number out of range.
    """
    refuse(isinstance(counts, CountData), "validation: a dataset has validation data of its own; it divides arrays")
    try:
        return CountData.from_array(counts, validation=validation)
    except ValueError as error:
        raise UserError(str(error)) from error


def divided_parts(rows: SplitRows, of_all: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `CountData` by name: what there is of all samples, divided.

    Args:
        rows: numbers of the samples of each split.
        of_all: arrays of all samples by the end of the name of their parts: "" for counts, "_labels", "_seen".
    """
    parts = {
        split + part: taken(values, chosen)
        for split, chosen in rows._asdict().items()
        for part, values in of_all.items()
    }
    if len(rows.val) and not torch.isin(rows.val, rows.train).any():
        parts["val_rows"] = torch.searchsorted(rows.train, rows.val) + torch.arange(len(rows.val))
    return parts


def _places(others: Tensor, number: int) -> Tensor:
    """The `number` least whole numbers that are not in `others`, int64, increasing."""
    left = torch.ones(number + len(others), dtype=torch.bool)
    left[others] = False
    return torch.nonzero(left).flatten()


def taken(values: Any, rows: Tensor) -> Any:
    """The rows with these numbers, int64 or bool, of a tensor, of `Rows`, which stay on the disk, or of None."""
    return values if values is None else values.take(rows) if isinstance(values, Rows) else values[rows]


def _like(asked: Tensor, labels: Tensor | None, covariates: Mapping[str, Sequence[Level]]) -> Tensor:
    """Numbers of the samples, by their labels [N], that are as `CountData.under` says of the labels asked for.

    [n] of [N]. Ours (tests/data/test_conditions.py).
    """
    assert labels is not None
    sizes = [len(values) for values in covariates.values()]
    wanted, *asked_levels = divided(asked, sizes)
    classes, *levels = divided(labels, sizes)
    inside = torch.ones_like(labels, dtype=torch.bool)
    for values, level, of_asked in zip(covariates.values(), levels, asked_levels, strict=True):
        between = (level >= of_asked.min()) & (level <= of_asked.max())
        inside &= torch.isin(level, of_asked) if isinstance(values[0], str) else between
    kinds, times = wanted.unique(return_counts=True)
    members = [torch.nonzero(inside & (classes == kind)).flatten() for kind in kinds]
    shares = (times / times.sum()).tolist()
    whole = min((len(rows) + 0.5) / share for rows, share in zip(members, shares, strict=True))
    numbers = [min(len(rows), round(share * whole)) for rows, share in zip(members, shares, strict=True)]
    spaced = [rows[torch.arange(n) * len(rows) // max(n, 1)] for rows, n in zip(members, numbers, strict=True)]
    return torch.cat(spaced).sort().values


def _check_counts(what: str, counts: Tensor | Rows, max_count: int) -> None:
    """Refuse what are no counts in 0..max_count of a known shape, with the first bad value."""
    if isinstance(counts, Tensor):
        _check_integers(f"{what}: counts", counts)
    if counts.ndim not in (2, 3, 4, 5) or 0 in counts.shape[1:]:
        allowed = "[N, D], [N, C, L], [N, C, H, W] or [N, C, D, H, W]"
        raise ValueError(f"{what}: the shape must be {allowed}, got {list(counts.shape)}")
    ensure(len(counts) != 0, f"{what}: at least one sample is needed, got none")
    info = torch.iinfo(counts.dtype)
    if (info.min >= 0 and info.max <= max_count) or (isinstance(counts, Rows) and counts.max() <= max_count):
        return  # guaranteed by the dtype, or known
    for start, chunk in parts(counts):
        check_range(f"{what}: counts", chunk.cpu().numpy(), max_count, f"max_count={max_count}", start)


def _check_labels(what: str, labels: Tensor, count: int) -> None:
    """Refuse what are not `count` numbers of classes."""
    _check_integers(f"{what}: labels", labels)
    ensure(labels.shape == (count,), f"{what}: one label per sample is needed, [{count}], got {list(labels.shape)}")
    ensure(labels.min() >= 0, f"{what}: labels must not be negative, got {int(labels.min())}")


def _check_integers(what: str, values: Tensor) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{what} must be integers, got {values.dtype}")


def _mirrored(x0: Tensor, chosen: Tensor) -> Tensor:
    """Images [b, C, H, W] turned left-right where `chosen`, bool [b] on the CPU. Ours (tests/data/test_arrays.py)."""
    # a selection by a mask would wait for the device
    return torch.where(chosen.to(x0.device, non_blocking=True)[:, None, None, None], x0.flip(-1), x0)
