"""The form of every data set of counts: three splits, their labels, a hash, and statistics."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.conditions import MIN_CONDITION_SAMPLES, describe_condition, matching_rows
from blackout.data.count_checks import check_counts, check_labels
from blackout.data.count_statistics import (
    Sums,
    compute_sums,
    covariance_excess,
    iterate_chunks,
    neighbour_correlation,
    total_dispersion,
)
from blackout.data.formats import to_counts
from blackout.data.in_memory import read_arrays, read_classes
from blackout.data.labels import Level
from blackout.data.on_disk import DiskCounts
from blackout.data.split_arrays import complement, split_arrays, take_rows
from blackout.data.splits import DEFAULT_VALIDATION, split_samples
from blackout.errors import UserError, refuse
from blackout.protocols import Split

SPLITS: tuple[Split, ...] = get_args(Split)
# endings of the fields of a split: `train`, `train_labels`, `train_observed`
FIELD_SUFFIXES = ("", "_labels", "_observed")
NO_SAMPLES = torch.empty(0, dtype=torch.uint8)
MAX_LABEL_COUNTS = 1 << 16  # labels whose frequencies are passed to a model
MIN_SERIES_CORRELATION = 0.1  # of neighbours beyond that of all pairs, in a series


@dataclass(frozen=True, eq=False)
class CountData:
    """Training, validation and test counts, in memory or on disk: a `blackout.protocols.Source`.

    Attributes:
        name: short name for logs and file names.
        train: counts [N, C, H, W], [N, D], series [N, C, L] or volumes [N, C, D, H, W] of any
            integer dtype; kept as uint8 when `max_count <= 255`, else as int32.
        test: test counts [M, ...], on which final numbers are reported.
        max_count: largest value a count may have, 1, ..., 2^31 - 1.
        train_labels: class of each training sample, int64 [N], or None.
        test_labels: class of each test sample, int64 [M], or None.
        flip: mirror training images left-right where `batch` is given a number below 1/2.
        class_names: one for every class, where they have names.
        class_values: value of every class in each column that it was made of, by column.
        features: names of the elements of a vector, where they have names.
        train_observed: bool of the shape of `train`, False where an entry is missing and the count
            is imputed, for moments only; None if no entry is missing.
        test_observed: likewise for `test`.
        val: validation counts [V, ...], by which checkpoints are chosen; empty for none.
        val_labels: class of each validation sample, int64 [V], or None.
        val_observed: likewise for `val`.
        val_rows: numbers that the validation samples had in the training data they were taken from,
            int64 [V], increasing, see `merge_validation`; None for validation data of another
            origin.
        covariates: levels of each covariate by name: texts or numbers. A label is then the number
            of (class, level, level, ...), whose last digit is the last covariate.
        sample_shape: shape of one sample in its file, such as (H, W) of one channel; None for the
            usual one.
        from_anndata: the data come from AnnData, and samples are saved as AnnData.
        layer: of AnnData that the counts come from; None for X.
        condition: of all samples, where they were selected by `select_condition`.
        offset: value of count 0 in the file, which holds offset + gain x counts.
        gain: difference between the values of neighbouring counts in the file.

    Raises:
        ValueError: counts that are not integers, negative, or above `max_count`; an empty split;
            shapes that differ between the splits or are none of these; labels that do not match;
            `flip` without images.

    Example:
        >>> counts = torch.arange(40).view(10, 4)
        >>> data = CountData("x", train=counts[:8], test=counts[8:], max_count=100)
        >>> data.batch("train", torch.tensor([0]))["x0"].tolist()
        [[0, 1, 2, 3]]
    """

    name: str
    train: Tensor | DiskCounts
    test: Tensor | DiskCounts
    max_count: int
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    flip: bool = False
    class_names: tuple[str, ...] = ()
    class_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    train_observed: Tensor | None = None
    test_observed: Tensor | None = None
    val: Tensor | DiskCounts = NO_SAMPLES
    val_labels: Tensor | None = None
    val_observed: Tensor | None = None
    val_rows: Tensor | None = None
    covariates: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    sample_shape: tuple[int, ...] | None = None
    from_anndata: bool = False
    layer: str | None = None
    condition: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    gain: int = 1
    _train_on_device: Tensor | DiskCounts = field(init=False, repr=False)
    _fingerprints: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __post_init__(self) -> None:
        # fields of the frozen dataclass are converted here, so that all code may rely on dtypes
        if type(self.max_count) is not int or not 1 <= self.max_count <= LARGEST_COUNT:
            limits = f"a whole number between 1 and {LARGEST_COUNT}"
            raise ValueError(f"{self.name}: max_count must be {limits}, not {self.max_count!r}")
        for split in SPLITS:
            if split == "val" and len(self.val) == 0:
                self._set_empty_validation()
            else:
                self._check_split(split)
        if self.val_rows is not None:
            self._check_val_rows(self.val_rows)
        if self.flip and len(self.shape) != 3:
            shape = f"{self.name} has samples of shape {self.shape}"
            raise ValueError(f"flip mirrors images [C, H, W], but {shape}: use flip=false")
        object.__setattr__(self, "_train_on_device", self.train)

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
        """Divide an array at random into training, validation and test data, every class alike.

        Args:
            counts: whole numbers [N, D], [N, H, W] or [N, C, H, W]: a tensor, a SciPy sparse
                matrix, AnnData, a DataFrame, an xarray.DataArray, or anything that NumPy converts
                to an array; see `in_memory.read_arrays`.
            labels: class of each sample, whole numbers or texts [N], the name of a column of
                AnnData or a DataFrame, or None.
            max_count: largest possible count; None takes the largest of the array.
            holdout: fraction of the samples for the test.
            seed: of the random split.
            name: for logs and file names.
            validation: fraction or number of the samples for validation; 0 for none.

        Raises:
            ValueError: values that are not counts or labels, or too few samples.

        Example:
            >>> CountData.from_array(torch.arange(200).view(100, 2)).size("train")
            80
        """
        data = read_arrays(counts, labels)
        tensor = to_counts(name, data.counts, data.is_series)
        named_classes = read_classes(labels, data)
        classes = named_classes.labels
        rows = split_samples(len(tensor), validation, holdout, seed, classes)
        if max_count is None:
            max_count = int(tensor.max())
        parts = split_arrays(rows, {"": tensor, "_labels": classes})
        return cls(
            name,
            max_count=max_count,
            class_names=named_classes.names,
            class_values=named_classes.values,
            features=data.features,
            from_anndata=data.is_anndata,
            **parts,
        )

    def __str__(self) -> str:
        sizes = [f"{len(self.train):,} training", f"{len(self.val):,} validation"]
        sizes.append(f"{len(self.test):,} test samples")
        missing = ""
        if self.train_observed is not None:
            missing = f", {1 - self.train_observed.float().mean():.1%} missing"
        max_value = self.max_count * self.gain + self.offset
        values = f"counts {self.offset}..{max_value}"
        return f"{self.name}, {' + '.join(sizes)}, shape {self.shape}, {values}{missing}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W), (D,), (C, L) or (C, D, H, W)."""
        return tuple(self.train.shape[1:])

    @property
    def num_classes(self) -> int | None:
        """Number of labels, with all combinations of covariates; None without labels."""
        all_labels = [self._arrays(split)[1] for split in SPLITS]
        max_labels = [
            int(labels.max()) for labels in all_labels if labels is not None and len(labels)
        ]
        if not max_labels:
            return None
        if self.covariates:
            return max(1, len(self.class_names)) * math.prod(map(len, self.covariates.values()))
        return max(max_labels) + 1

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Statistics and names that components may use, all plain values.

        Always: shape, and of the training split max_count, mean, std, total_dispersion and
        covariance_excess (`count_statistics`). With labels: num_classes, and class_names and
        class_values if classes have names. With covariates: covariates, covariate_levels (numbers
        of levels) and label_counts (frequencies in training). Where the file has them:
        sample_shape, AnnData's features and layer, and units (offset, gain) other than (0, 1).
        """
        dispersion = total_dispersion(self.train, self.sums)
        excess = covariance_excess(self.train, self.sums)
        facts: dict[str, Any] = {
            "shape": list(self.shape),
            "max_count": self.max_count,
            "mean": self.mean,
            "std": self.std,
            "total_dispersion": dispersion,
            # the norm is at least the single quotient D - 1
            "covariance_excess": max(excess, abs(dispersion - 1)),
        }
        num_classes = self.num_classes or 0
        label_counts = None
        if self.covariates and num_classes <= MAX_LABEL_COUNTS and self.train_labels is not None:
            label_counts = self.train_labels.bincount(minlength=num_classes).tolist()
        levels = {name: list(values) for name, values in self.covariates.items()}
        class_values = {name: list(values) for name, values in self.class_values.items()}
        has_units = (self.offset, self.gain) != (0, 1)
        optional_facts = {
            "num_classes": self.num_classes,
            "covariates": levels or None,
            "covariate_levels": [len(values) for values in levels.values()] or None,
            "label_counts": label_counts,
            "sample_shape": None if self.sample_shape is None else list(self.sample_shape),
            "features": list(self.features) if self.from_anndata else None,
            "layer": self.layer if self.from_anndata else None,
            "class_names": list(self.class_names) or None,
            "class_values": class_values or None,
            "units": [self.offset, self.gain] if has_units else None,
        }
        facts.update({name: value for name, value in optional_facts.items() if value is not None})
        return facts

    @cached_property
    def sums(self) -> Sums:
        """Sums of the training split over samples and over elements."""
        return compute_sums(self.train)

    @cached_property
    def mean(self) -> float:
        """Mean count over all elements of the training split."""
        return int(self.sums.element.sum()) / self.train.numel()

    @cached_property
    def std(self) -> float:
        """Standard deviation of the counts over all elements of the training split."""
        mean_square = float(self.sums.square.sum()) / self.train.numel()
        return max(mean_square - self.mean**2, 0.0) ** 0.5

    @cached_property
    def is_series(self) -> bool:
        """Whether vectors look like series: neighbours correlate more than other elements do."""
        if len(self.shape) != 1:
            return False
        return neighbour_correlation(self.train) > MIN_SERIES_CORRELATION

    def size(self, split: Split) -> int:
        """Return the number of samples of a split."""
        return len(self._arrays(split)[0])

    def batch(
        self, split: Split, index: Tensor, augment: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the samples with these numbers.

        Args:
            split: of the samples.
            index: int64 [b], on the CPU.
            augment: uniforms [b]; with `flip`, samples whose number is below 1/2 are mirrored. None
                mirrors none.

        Returns:
            `x0`, counts [b, *shape], on the device of the split; with labels also `label`, int64
            [b], on the CPU. Where entries are missing, counts are 0 and `observed`, bool [b,
            *shape], is False.
        """
        counts, labels, observed = self._arrays(split)
        if split == "train":
            counts = self._train_on_device
        batch = {"x0": counts.index_select(0, index.to(counts.device, non_blocking=True))}
        if observed is not None:
            batch["observed"] = observed[index].to(counts.device)
            batch["x0"] = batch["x0"] * batch["observed"]
        if self.flip and augment is not None:
            is_mirrored = augment < 0.5
            batch = {name: _mirror(values, is_mirrored) for name, values in batch.items()}
        if labels is not None:
            batch["label"] = labels[index]
        return batch

    def to(self, device: torch.device | str) -> CountData:
        """Return the same data with training batches on `device`; `train` itself stays."""
        data = copy.copy(self)
        object.__setattr__(data, "_train_on_device", self.train.to(device))
        return data

    def fingerprint(self, split: Split = "train") -> str:
        """Return the SHA-256 (hex) of a split's dtype, shape and bytes, in the order of samples.

        It identifies the data that a model was trained on or compared with.
        """
        if split not in self._fingerprints:
            counts, _, observed = self._arrays(split)
            digest = hashlib.sha256(f"{counts.dtype} {tuple(counts.shape)}\n".encode())
            for values in (counts, observed):
                if values is None:
                    continue
                for _, chunk in iterate_chunks(values):
                    digest.update(chunk.numpy().data)
            self._fingerprints[split] = digest.hexdigest()
        return self._fingerprints[split]

    def without_missing(self) -> CountData | None:
        """Return the samples without missing entries; None if training or test data are empty."""
        masks = {split: getattr(self, f"{split}_observed") for split in SPLITS}
        if all(observed is None for observed in masks.values()):
            return self
        rows: dict[Split, Tensor] = {}
        for split, observed in masks.items():
            if observed is None:
                rows[split] = torch.arange(self.size(split))
            else:
                rows[split] = torch.nonzero(observed.flatten(1).all(1)).flatten()
        if not (len(rows["train"]) and len(rows["test"])):
            return None
        return self._select(rows, train_observed=None, val_observed=None, test_observed=None)

    def merge_validation(self) -> CountData:
        """Return the data with the validation samples back in the training data.

        This is the official training split, the reference of published scores of images. Validation
        data of another origin stay what they are.
        """
        if self.val_rows is None:
            return self
        train_rows = complement(self.val_rows, len(self.train))
        parts: dict[str, Any] = {
            "val": NO_SAMPLES,
            "val_labels": None,
            "val_observed": None,
            "val_rows": None,
        }
        for suffix in FIELD_SUFFIXES:
            train = getattr(self, f"train{suffix}")
            val = getattr(self, f"val{suffix}")
            if isinstance(train, DiskCounts):
                parts[f"train{suffix}"] = train.merge(val, train_rows, self.val_rows)
            elif train is not None:
                merged = train.new_empty((len(train) + len(val), *train.shape[1:]))
                merged[train_rows] = train
                merged[self.val_rows] = val
                parts[f"train{suffix}"] = merged
        return replace(self, **parts)

    def select_condition(self, labels: Tensor) -> CountData:
        """Select the samples of all splits that match the labels of generated samples.

        Classes occur in the same fractions as in the labels, to within half a sample. Covariates
        that are texts are among those of the labels; numbers lie between their smallest and largest
        level.

        Args:
            labels: int64 [c], which generated samples take in turn.

        Raises:
            UserError: the data have no labels, or fewer than 10 training or test samples match.

        References: this project; checked in tests/data/test_conditions.py.
        """
        if self.train_labels is None:
            message = "has no labels, which a comparison by class needs"
            raise UserError(f"{self.name} {message}: dataset.labels=<column>")
        # 1. Describe the condition.
        condition = describe_condition(labels, self.class_names, self.covariates)

        # 2. Select the samples.
        rows = {}
        for split in SPLITS:
            split_labels = self._arrays(split)[1]
            assert split_labels is not None
            rows[split] = matching_rows(labels, split_labels, self.covariates)
        for split_name, split in (("training", "train"), ("test", "test")):
            num_samples = len(rows[split])
            if num_samples < MIN_CONDITION_SAMPLES:
                problem = f"only {num_samples} {split_name} samples have {condition}"
                needed = f"at least {MIN_CONDITION_SAMPLES} are needed for a comparison"
                raise UserError(f"{self.name}: {problem}; {needed}: leave out evaluate=true")
        return self._select(rows, condition=condition)

    def _arrays(self, split: Split) -> tuple[Tensor | DiskCounts, Tensor | None, Tensor | None]:
        """Return counts, labels and observed entries of a split."""
        counts, labels, observed = (getattr(self, split + suffix) for suffix in FIELD_SUFFIXES)
        return counts, labels, observed

    def _select(self, rows: Mapping[Split, Tensor], **changes: Any) -> CountData:
        """Select samples by split, int64, increasing; `changes` are further fields."""
        parts: dict[str, Any] = {}
        for split, split_rows in rows.items():
            for suffix in FIELD_SUFFIXES:
                parts[split + suffix] = take_rows(getattr(self, split + suffix), split_rows)
        if self.val_rows is not None:
            train_rows = complement(self.val_rows, len(self.train))[rows["train"]]
            val_rows = self.val_rows[rows["val"]]
            parts["val_rows"] = torch.searchsorted(train_rows, val_rows) + torch.arange(
                len(val_rows),
            )
        return replace(self, **parts | changes)

    def _set_empty_validation(self) -> None:
        """Make the validation data an empty part of the training data, of its shape and dtype."""
        no_rows = torch.empty(0, dtype=torch.int64)
        for suffix in FIELD_SUFFIXES:
            empty = take_rows(getattr(self, f"train{suffix}"), no_rows)
            object.__setattr__(self, f"val{suffix}", empty)
        object.__setattr__(self, "val_rows", None)

    def _check_split(self, split: Split) -> None:
        """Check the parts of a split, and convert counts and labels."""
        counts, labels, observed = self._arrays(split)
        check_counts(f"{self.name} {split} data", counts, self.max_count)
        counts = counts.to(count_dtype(self.max_count))
        if isinstance(counts, Tensor):
            counts = counts.contiguous()
        object.__setattr__(self, split, counts)
        if labels is not None:
            check_labels(f"{self.name} {split} labels", labels, len(counts))
            object.__setattr__(self, f"{split}_labels", labels.to(torch.int64))
        if observed is not None and (
            observed.dtype != torch.bool or observed.shape != counts.shape
        ):
            shape = list(counts.shape)
            actual = f"{observed.dtype} {list(observed.shape)}"
            raise ValueError(
                f"{self.name}: {split}_observed must be booleans {shape}, not {actual}"
            )
        if counts.shape[1:] != self.train.shape[1:]:
            shapes = f"not {tuple(self.train.shape[1:])} and {tuple(counts.shape[1:])}"
            message = f"train and {split} samples must have the same shape"
            raise ValueError(f"{self.name}: {message}, {shapes}")
        if (labels is None) != (self.train_labels is None):
            names = ", ".join(f"{split}_labels" for split in SPLITS)
            raise ValueError(f"{self.name}: pass all of {names}, or none of them")

    def _check_val_rows(self, val_rows: Tensor) -> None:
        if val_rows.shape != self.val.shape[:1]:
            message = f"val_rows must be {len(self.val)} numbers, one per validation sample"
            raise ValueError(f"{self.name}: {message}")
        if (self.val_observed is None) != (self.train_observed is None):
            message = "with val_rows, give both val_observed and train_observed, or neither"
            raise ValueError(f"{self.name}: {message}")


def split_array(
    counts: Any, validation: float = DEFAULT_VALIDATION, labels: Any = None
) -> CountData:
    """Divide an array of counts as `CountData.from_array` does, with errors for users.

    Args:
        counts: an array, see `CountData.from_array`.
        validation: fraction or number of the samples for validation.
        labels: of the samples, or None.

    Raises:
        UserError: a data set that has splits already, or a number out of range.
    """
    message = "validation and labels are for an array; a CountData has its own: leave them out"
    refuse(isinstance(counts, CountData), message)
    try:
        return CountData.from_array(counts, labels, validation=validation)
    except ValueError as error:
        raise UserError(str(error)) from error


def _mirror(x0: Tensor, is_mirrored: Tensor) -> Tensor:
    """Mirror images [b, C, H, W] left-right where `is_mirrored`, bool [b] on the CPU."""
    # indexing by a mask would wait for the device
    mask = is_mirrored.to(x0.device, non_blocking=True)[:, None, None, None]
    return torch.where(mask, x0.flip(-1), x0)
