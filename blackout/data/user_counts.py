"""`dataset=counts`: a user's own counts from a file, with splits, classes, covariates and masks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import MAX_LABEL_COUNTS, CountData
from blackout.data.count_statistics import load_samples
from blackout.data.file_columns import encode_sequences, select_columns
from blackout.data.file_counts import CountTable, check_stored_numbers, load_counts, read_table
from blackout.data.file_layout import Arrangement, FileLayout, Units
from blackout.data.findings import findings
from blackout.data.formats import FileContents, read_file
from blackout.data.formats.contents import quote_names
from blackout.data.labels import (
    DEFAULT_BINS,
    Classes,
    Level,
    drop_unit_axes,
    get_column,
    make_classes,
    make_levels,
    read_label_file,
)
from blackout.data.missing import FINITE, Donors, impute_missing
from blackout.data.split_arrays import split_arrays
from blackout.data.splits import (
    DEFAULT_HOLDOUT,
    DEFAULT_VALIDATION,
    SplitRows,
    split_groups,
    split_samples,
    take_validation,
    validation_size,
)
from blackout.data.unused import refuse_unused, warn_about_reading, warn_about_unused
from blackout.errors import UserError, ensure
from blackout.protocols import Split

Array = npt.NDArray[Any]
SPLITS: tuple[Split, ...] = ("test", "val", "train")
DEFAULT_LETTERS = "ACGT"


@dataclass(frozen=True)
class Holdout:
    """Which samples are held out; see `counts` for the meaning of each field."""

    fraction: float
    validation: float
    seed: int
    group: str | None


@component("dataset", command_line="dataset=counts dataset.path=<file>")
def counts(  # noqa: PLR0913 - built from YAML
    path: str | os.PathLike[str],
    max_count: int | None = None,
    holdout: float = DEFAULT_HOLDOUT,
    seed: int = 0,
    layer: str | int | None = None,
    labels: str | Sequence[str | int] | None = None,
    bins: int = DEFAULT_BINS,
    group: str | None = None,
    series: bool | None = None,
    mask: str | None = None,
    covariates: str | Sequence[str | int] | None = None,
    columns: str | Sequence[str | int] | None = None,
    exclude: str | Sequence[str | int] | None = None,
    offset: int | None = None,
    gain: int | None = None,
    sequences: str | None = None,
    letters: str = DEFAULT_LETTERS,
    in_memory: bool | None = None,
    validation: float = DEFAULT_VALIDATION,
    axes: str | None = None,
    tile: int | None = None,
    stride: int | None = None,
) -> CountData:
    """Read counts [N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W] from a file.

    A file holds either `train` and `test`, optionally with `val`, and with `train_labels`,
    `val_labels` and `test_labels`; without `val`, validation data are taken from `train`. Or it
    holds `counts`, or a single array of any name, optionally with `labels`, which is split here (by
    class, if there are labels). In a table (.csv, .parquet) every column of numbers that is not
    used otherwise is an element.

    What a file holds besides is named in a warning, and a setting that its form does not use is
    refused.

    Counts may be integers of any type, booleans, or floating-point whole numbers. Pickled objects
    are never loaded. Formats: `blackout.data.formats.read_file`.

    Args:
        path: of the file.
        max_count: largest possible count; None takes the largest of the file.
        holdout: fraction of the samples for the test, where the file has no split.
        seed: of the random split.
        layer: array of an .npz, .h5ad (a layer, or `raw`), .zarr or HDF5 file that holds the
            counts; number of a series of a TIFF file; type of CellRanger's features.
        labels: column(s), or a file, with the class of every sample; "total" for the total count.
            See `labels.make_classes`.
        bins: number of quantile bins of a numeric label column.
        group: column of donors, animals, ...; no group is in two splits.
        series: whether three axes are [N, C, L]; None where L is at least four times C, else [N, H,
            W].
        mask: which entries were observed: "finite" for those that are not NaN, the name of another
            array of the file, or a file. See `missing.mask_missing`.
        covariates: column(s) that a conditional model gets besides the class, and that combine
            freely with it: texts such as a batch, numbers as numbers, "total" for the total count.
        columns: elements of vectors to keep, by name or number; None for all.
        exclude: elements of vectors to drop, by name or number.
        offset: the file holds offset + gain x counts, as of a camera; samples are written like
            that, too. None is 0, or the smallest value of images in memory that are
            `is_underdispersed`.
        gain: see `offset`; None is 1.
        sequences: column of a table with words of one length, such as DNA, whose letters are the
            elements; other columns of numbers may be labels.
        letters: of the words; the first letter is 0.
        in_memory: whether counts are held in memory; None leaves large files on disk.
        validation: fraction or number of the samples for validation, where the file has no `val`; 0
            for none.
        axes: one letter for each axis of the array: N samples, E elements, C channels, L positions
            of a series, Z depth, Y rows, X columns, such as "NYXC" for colour last. None takes the
            names that TIFF, HDF5 and .zarr files give.
        tile: height and width of the tiles that are cut from every image, as samples; None for
            whole images.
        stride: distance of neighbouring tiles; None for `tile`.

    Warns:
        Finding: something looks wrong, with the setting that fixes it.
        Note: how the file was read, and what of it is not used.

    Raises:
        UserError: a missing, damaged or unsuitable file, or counts that are negative, not whole, or
            above `max_count`. The message names the file, the value and its index.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "counts.npy")
        >>> np.save(path, np.arange(60).reshape(20, 3))
        >>> counts(path, holdout=0.2).size("test")
        4
    """
    file = Path(path).expanduser()
    label_columns = _as_list(labels)
    covariate_columns = _as_list(covariates)
    metadata = {*label_columns, *covariate_columns, *_as_list(group)}
    layout = FileLayout(
        layer=layer,
        columns=_as_list(columns),
        exclude=_as_list(exclude),
        mask=mask,
        series=series,
        sequences=sequences,
        letters=letters,
        in_memory=in_memory,
        axes=axes,
        tile=tile,
        stride=stride,
    )
    if sequences is None:
        refuse_unused({"letters": (letters, DEFAULT_LETTERS)}, "letters are those of sequences")
    if not label_columns:
        reason = "bins divide a column of numbers into classes"
        refuse_unused({"bins": (bins, DEFAULT_BINS)}, reason)
    split_plan = Holdout(holdout, validation, seed, group)

    # 1. Read the arrays of the file; sequences become counts.
    contents = read_file(file, layer)
    warn_about_reading(contents)
    if sequences is not None:
        contents = encode_sequences(file, contents, sequences, letters)
    units = _check_units(offset, gain)
    parts: dict[str, Any] = {
        "name": Path(file.stem).stem if file.suffix.lower() == ".gz" else file.stem,
        "layer": None if layer is None else str(layer),
        "features": contents.features,
        "from_anndata": bool(contents.features),
        "gain": units.gain,
    }
    try:
        if _has_own_splits(contents):
            # 2. Use the splits of the file; validation data are taken from the training data.
            ensure(not metadata and mask in (None, FINITE), _OWN_SPLITS_MESSAGE)
            _refuse_split_settings(contents, split_plan, layout)
            parts |= _read_own_splits(contents, layout, units)
            used = {f"{split}{suffix}" for split in SPLITS for suffix in ("", "_labels")}
            warn_about_unused(contents, used, excluded_names=())
            if "val" not in contents.arrays:
                parts |= _take_validation_parts(parts, validation, seed)
            inspected = parts.pop("inspected")
        else:
            # 2. Find the counts; select elements, mask missing entries, convert units.
            table = read_table(file, contents, layout, units, metadata)
            inspected = table.counts
            if not label_columns:
                metadata = {*metadata, "labels"}
            used = {*metadata, table.name}
            if mask is not None:
                used.add(mask)
            warn_about_unused(contents, used, set(map(str, layout.exclude)))

            # 3. Label the samples, and hold some of them out.
            classes = _read_classes(label_columns, table.columns, bins, bool(covariate_columns))
            parts |= _label_and_split(table, classes, covariate_columns, split_plan)

        # 4. Warn about counts that look wrong, and assemble the data set.
        for finding in findings(load_samples(inspected), parts["features"]):
            warnings.warn(finding, stacklevel=2)
        return _make_dataset(parts, max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


_OWN_SPLITS_MESSAGE = (
    "the file has 'train' and 'test'; labels, covariates, group and mask are for one array to be "
    "split: leave them out, or join the arrays as 'counts'"
)


def _as_list(names: Any) -> list[Any]:
    """Return one name, several, or None as a list of texts."""
    if isinstance(names, str | int):
        return [str(names)]
    return list(map(str, names or ()))


def _check_units(offset: int | None, gain: int | None) -> Units:
    """Check offset and gain, and replace a gain of None by 1."""
    units = Units(offset, 1 if gain is None else gain)
    for name, value, minimum in (("offset", offset or 0, 0), ("gain", units.gain, 1)):
        if type(value) is not int or value < minimum:
            allowed = f"a whole number of at least {minimum}"
            raise UserError(f"dataset.{name} must be {allowed}, not {value!r}")
    return units


def _has_own_splits(contents: FileContents) -> bool:
    """Return whether a file has arrays `train` or `test`; columns of tables do not count."""
    has_split = bool({"train", "test"} & contents.arrays.keys())
    return has_split and not contents.is_table and not contents.features


def _read_own_splits(contents: FileContents, layout: FileLayout, units: Units) -> dict[str, Any]:
    """Read the splits of a file: parts of `CountData`, and `inspected`, the training counts."""
    arrays = contents.arrays
    is_complete = {"train", "test"} <= arrays.keys()
    ensure(is_complete, f"'train' and 'test' must come together, found {quote_names(arrays)}")
    units = Units(units.offset or 0, units.gain)
    parts: dict[str, Any] = {"offset": units.offset}
    for split in SPLITS:
        if split not in arrays:
            continue
        check_stored_numbers(split, contents, units)
        arrangement = Arrangement(layout, contents.axes.get(split))
        matrix, series = arrangement.arrange(arrays[split])
        matrix, _ = select_columns(matrix, (), layout.columns, layout.exclude)
        split_layout = replace(layout, series=series)
        counts, observed, _ = load_counts(split, matrix, arrays, split_layout, units)
        parts[split] = counts
        parts[f"{split}_observed"] = observed
        label_name = f"{split}_labels"
        parts[label_name] = _to_labels(label_name, arrays.get(label_name))
        parts["inspected"] = counts
        parts["sample_shape"] = tuple(matrix.shape[1:])
    return parts


def _refuse_split_settings(contents: FileContents, plan: Holdout, layout: FileLayout) -> None:
    """Refuse settings that do not apply to a file with its own splits.

    Raises:
        UserError: names the first.
    """
    settings = {"holdout": (plan.fraction, DEFAULT_HOLDOUT), "tile": (layout.tile, None)}
    if "val" in contents.arrays:
        settings |= {"validation": (plan.validation, DEFAULT_VALIDATION), "seed": (plan.seed, 0)}
    refuse_unused(settings, "the file has its own splits")


def _take_validation_parts(
    parts: Mapping[str, Any],
    validation: float,
    seed: int,
) -> dict[str, Any]:
    """Divide the training data of a file without validation data.

    Args:
        parts: `train`, `train_labels` and `train_observed`.
        validation: fraction or number of the training samples.
        seed: of the random split, by class where there are labels.
    """
    train = parts["train"]
    labels = parts["train_labels"]
    num_validation = validation_size(validation, len(train)) if len(train) else 0
    if num_validation == 0:
        return {}
    train_rows, val_rows = take_validation(len(train), num_validation, seed, labels)
    rows = SplitRows(train_rows, val_rows, torch.empty(0, dtype=torch.int64))
    arrays = {"": train, "_labels": labels, "_observed": parts["train_observed"]}
    divided = split_arrays(rows, arrays)
    return {name: part for name, part in divided.items() if not name.startswith("test")}


def _read_classes(
    names: list[str],
    columns: dict[str, Array],
    bins: int,
    has_covariates: bool,
) -> Classes:
    """Make classes of columns or files; without names, of the array `labels`, if there is one."""
    if not names:
        labels = columns.get("labels")
        if labels is None or not (labels.dtype.kind in "US" or has_covariates):
            return Classes(_to_labels("labels", labels))
        names = ["labels"]
    columns = dict(columns)
    for name in names:
        file = Path(name).expanduser()
        if name not in columns and file.is_file():
            columns[name] = read_label_file(file)
    return make_classes(names, columns, bins)


def _to_labels(name: str, array: Any) -> Tensor | None:
    """Return an array of class numbers as int64 [N]; None for None.

    Raises:
        ValueError: values that are not whole numbers, or far larger than the number of samples.
    """
    if array is None:
        return None
    array = drop_unit_axes(np.asarray(array))
    advice = "save them as integers 0, 1, 2, ..."
    ensure(array.dtype.kind in "iu", f"{name} must be whole numbers, not {array.dtype}: {advice}")
    largest = int(array.max(initial=0))
    max_classes = max(MAX_LABEL_COUNTS, len(array))
    ensure(
        largest < max_classes,
        f"{name} must be below {max_classes:,}, not {largest:,}, because a model has weights for "
        "every class: number the classes 0, 1, 2, ...",
    )
    return torch.from_numpy(array.astype(np.int64))


def _label_and_split(
    table: CountTable, classes: Classes, covariates: Sequence[str], holdout: Holdout
) -> dict[str, Any]:
    """Return parts of `CountData`: samples of every class, or whole groups, are held out.

    Raises:
        ValueError: another number of labels than of samples, or an impossible split.
    """
    class_labels = classes.labels
    if class_labels is not None and class_labels.shape != table.counts.shape[:1]:
        shapes = f"[{len(table.counts)}], not {list(class_labels.shape)}"
        raise ValueError(f"labels must be one per sample, {shapes}")
    combined_labels, levels = _add_covariates(class_labels, covariates, table.columns)
    rows = _split(table, class_labels, holdout)
    arrays = {"": table.counts, "_labels": combined_labels, "_observed": table.observed}
    return {
        **split_arrays(rows, arrays),
        "class_names": classes.names,
        "class_values": classes.values,
        "covariates": levels,
        "features": table.features,
        "sample_shape": table.sample_shape,
        "offset": table.offset,
    }


def _add_covariates(
    class_labels: Tensor | None, names: Sequence[str], columns: Mapping[str, Array]
) -> tuple[Tensor | None, dict[str, tuple[Level, ...]]]:
    """Return labels of classes and covariates (see `CountData.covariates`), and the levels."""
    labels = class_labels
    levels: dict[str, tuple[Level, ...]] = {}
    for name in names:
        codes, levels[name] = make_levels(name, columns)
        labels = codes if labels is None else codes + labels * len(levels[name])
    return labels, levels


def _split(table: CountTable, labels: Tensor | None, holdout: Holdout) -> SplitRows:
    """Divide the samples at random by class, or by whole groups."""
    if holdout.group is None:
        num_samples = len(table.counts)
        return split_samples(
            num_samples,
            holdout.validation,
            holdout.fraction,
            holdout.seed,
            labels,
        )
    groups = get_column(holdout.group, table.columns)
    return split_groups(groups, holdout.validation, holdout.fraction, holdout.seed)


def _make_dataset(parts: dict[str, Any], max_count: int | None) -> CountData:
    """Impute missing entries, find the largest count, and make the data set of its parts."""
    splits = [split for split in SPLITS if split in parts and parts[split].numel()]
    for split in splits:
        observed = parts[f"{split}_observed"]
        if observed is None:
            continue
        donors = None
        if split == "val":  # a few samples may lack an element; the training data come last
            donors = Donors(parts["train"], parts["train_observed"])
        parts[split] = impute_missing(parts[split], observed, donors=donors)
    if max_count is None:
        max_count = max((int(parts[split].max()) for split in splits), default=1)
        message = "all counts are zero: choose others by dataset.layer or dataset.columns"
        ensure(max_count != 0, message)
    return CountData(**parts, max_count=max_count)
