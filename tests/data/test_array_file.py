"""Counts from .npy, .npz and .csv files: shapes, types, splits, labels, and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blackout.data import counts
from blackout.errors import UserError

SPECTRA = np.random.default_rng(0).integers(0, 1001, (50, 7))
SPECTRA[3, 2] = 1000


def save(folder: Path, array: Any = None, **arrays: Any) -> Path:
    if array is not None:
        np.save(folder / "data.npy", array)
        return folder / "data.npy"
    np.savez_compressed(folder / "data.npz", **arrays)
    return folder / "data.npz"


@pytest.mark.parametrize(
    ("shape", "expected"), [((7,), (7,)), ((5, 6), (1, 5, 6)), ((2, 5, 6), (2, 5, 6))]
)
def test_vectors_planes_and_stacks(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    data = counts(save(tmp_path, np.random.default_rng(0).integers(0, 9, (20, *shape))))
    assert data.shape == expected
    assert (len(data.train), len(data.val), len(data.test)) == (16, 2, 2)


def test_values_survive_and_the_largest_is_inferred(tmp_path: Path) -> None:
    data = counts(save(tmp_path, SPECTRA))
    assert (data.max_count, data.train.dtype, data.name) == (1000, torch.int32, "data")
    together = torch.cat([data.train, data.val, data.test])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, SPECTRA.tolist()))
    assert counts(save(tmp_path, SPECTRA), max_count=4000).max_count == 4000


@pytest.mark.parametrize("dtype", ["u1", "i2", ">u2", "u8", "<i8", "f2", "f4", ">f8", "?"])
def test_types_that_can_hold_counts(tmp_path: Path, dtype: str) -> None:
    data = counts(save(tmp_path, (SPECTRA % 2).astype(dtype)))
    assert (data.max_count, data.train.dtype) == (1, torch.uint8)
    assert torch.cat([data.train, data.val, data.test]).long().sum() == (SPECTRA % 2).sum()


def test_an_archive_may_hold_its_own_splits(tmp_path: Path) -> None:
    labels = np.arange(50) % 5
    with_split = counts(
        save(
            tmp_path,
            train=SPECTRA[:40],
            test=SPECTRA[40:],
            train_labels=labels[:40],
            test_labels=labels[40:],
        )
    )
    assert torch.equal(with_split.test, torch.from_numpy(SPECTRA[40:]).int())
    assert (
        with_split.test_labels is not None
        and with_split.test_labels.tolist() == labels[40:].tolist()
    )
    named = counts(
        save(tmp_path, counts=SPECTRA, energies=np.linspace(0, 1, 7), labels=labels), holdout=0.2
    )
    assert named.test_labels is not None and torch.bincount(named.test_labels).tolist() == [2] * 5
    assert (
        counts(save(tmp_path, photons=SPECTRA)).fingerprint()
        == counts(save(tmp_path, SPECTRA)).fingerprint()
    )


def test_validation_data_are_those_of_the_file_or_taken_from_its_training_data(
    tmp_path: Path,
) -> None:
    labels = np.arange(50) % 5
    splits = {"train": slice(30), "val": slice(30, 40), "test": slice(40, 50)}
    arrays = {name: SPECTRA[part] for name, part in splits.items()}
    arrays |= {f"{name}_labels": labels[part] for name, part in splits.items()}
    with_split = counts(save(tmp_path, **arrays))
    assert (
        torch.equal(with_split.val, torch.from_numpy(SPECTRA[30:40]).int())
        and with_split.merge_validation() is with_split
    )
    assert (
        with_split.val_labels is not None
        and with_split.val_labels.tolist() == labels[30:40].tolist()
    )
    del arrays["val"], arrays["val_labels"]
    without_val = counts(save(tmp_path, **arrays), validation=0.5)
    assert (len(without_val.train), len(without_val.val), len(without_val.test)) == (15, 15, 10)
    assert (
        without_val.val_labels is not None
        and torch.bincount(without_val.val_labels).tolist() == [3] * 5
    )
    assert torch.equal(without_val.merge_validation().train, torch.from_numpy(SPECTRA[:30]).int())
    data_without_validation = counts(
        save(tmp_path, train=SPECTRA[:30], test=SPECTRA[40:]), validation=0
    )
    assert len(data_without_validation.val) == data_without_validation.size(
        "val"
    ) == 0 and torch.equal(data_without_validation.train, without_val.merge_validation().train)


def test_samples_keep_their_labels(tmp_path: Path) -> None:
    data = counts(save(tmp_path, counts=SPECTRA, labels=SPECTRA[:, 0]), holdout=0.3)
    assert data.train_labels is not None and data.test_labels is not None
    assert torch.equal(data.train[:, 0].long(), data.train_labels)
    assert torch.equal(data.test[:, 0].long(), data.test_labels)


def test_colour_in_the_last_axis_is_pointed_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"read as \[N, C, H, W\]: if its last axis is colour"):
        counts(save(tmp_path, np.ones((4, 8, 8, 3), dtype=np.uint8)))


def changed(value: float, dtype: str = "f8") -> Any:
    array = SPECTRA.astype(dtype)
    array[4, 5] = value
    return array


@pytest.mark.parametrize(
    ("array", "max_count", "message"),
    [
        (changed(-1, "i4"), None, r"counts must be at least 0, not -1 at index \[4, 5\]"),
        (changed(-1, "i1"), None, "counts must be at least 0"),
        (changed(-2.0), None, r"counts must be at least 0, not -2.0 at index \[4, 5\]"),
        (changed(0.5), None, r"counts must be whole numbers, not 0.5 at index \[4, 5\]"),
        (changed(np.nan), None, r"counts must be whole numbers, not nan at index \[4, 5\]"),
        (changed(np.inf), None, "counts must be whole numbers, not inf"),
        (changed(2**40, "u8"), None, "counts must be at most 2147483647, not 1099511627776"),
        (changed(1e300), None, "counts must be at most 2147483647"),
        (SPECTRA, 999, "counts must be at most max_count=999, not 1000 at index"),
        (SPECTRA, 0, "max_count must be a whole number between 1 and"),
        (SPECTRA * 0, None, "all counts are zero"),
        (SPECTRA + 0j, None, "must hold whole numbers, not complex128"),
        (SPECTRA.astype(str), None, "must hold whole numbers, not <U"),
        (SPECTRA[0], None, r"must be \[N, D\], .* or \[N, C, D, H, W\], not \[7\]"),
        (np.int64(3), None, r"not \[\]"),
        (np.zeros((3, 0), dtype=int), None, r"not \[1, 0\]"),
        (SPECTRA[:0], None, "at least one sample"),
    ],
)
def test_bad_counts_are_refused(
    tmp_path: Path, array: Any, max_count: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=r"data\.npy: .*" + message) as error:
        counts(save(tmp_path, array), max_count)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train": SPECTRA}, "'train' and 'test' must come together, found 'train'"),
        (
            {"a": SPECTRA, "b": SPECTRA},
            "an array named 'counts' or 'train' and 'test' is needed, found 'a', 'b'",
        ),
        ({}, "found none"),
        ({"labels": SPECTRA}, "is needed, found 'labels'"),
        (
            {"counts": SPECTRA, "labels": np.zeros(3, dtype=int)},
            r"labels must be one per sample, \[50\], not \[3\]",
        ),
        (
            {"counts": SPECTRA, "labels": np.zeros(50)},
            "labels must be whole numbers, not float64",
        ),
        ({"train": SPECTRA, "test": SPECTRA[:, :2]}, "must have the same shape"),
        (
            {"train": SPECTRA, "test": SPECTRA, "train_labels": np.zeros(50, dtype=int)},
            "pass all of train_labels, val_labels, test_labels",
        ),
    ],
)
def test_bad_archives_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"data\.npz: .*" + message):
        counts(save(tmp_path, **arrays))


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("kind", ["object array", "object archive", "bare pickle"])
def test_nothing_in_a_file_is_executed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trap.npy"
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(Trap()))
    elif kind == "object array":
        np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    else:
        path = path.with_suffix(".npz")
        np.savez(path, counts=np.array([Trap()], dtype=object))
    with pytest.raises(UserError, match=r"not a readable \.npy or \.npz file"):
        counts(path)


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_damaged_files_are_refused_in_one_line_or_still_whole(tmp_path: Path, kind: str) -> None:
    good = (
        save(tmp_path, SPECTRA) if kind == "npy" else save(tmp_path, counts=SPECTRA)
    ).read_bytes()
    bad = tmp_path / f"bad.{kind}"
    generator = np.random.default_rng(0)
    messages = []
    for trial in range(120):
        content = bytearray(good)
        if trial % 3 == 0:
            content = content[: int(generator.integers(len(good)))]
        else:
            content[int(generator.integers(min(len(good), 300)))] ^= 1 << int(generator.integers(8))
        bad.write_bytes(content)
        try:
            counts(bad)
        except UserError as error:
            messages.append(str(error))
    assert all(message.startswith(f"{bad}: ") and "\n" not in message for message in messages)
    assert len(messages) >= 40  # at the very least whatever was cut short


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.npy: no such file"):
        counts(tmp_path / "nowhere.npy")
    with pytest.raises(UserError, match="not a file"):
        counts(tmp_path)
    (tmp_path / "x.csv.xz").write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"x\.csv\.xz: unpack it first; supported formats are \.npy, "
    ):
        counts(tmp_path / "x.csv.xz")


def test_letters_of_a_table_are_counts_and_other_columns_labels(tmp_path: Path) -> None:
    """As enhancers are published: a column of sequences, and activities."""
    words = ["ACGT", "TTGA", "CCCC", "GATA"] * 5
    rows = ["seq,hepg2,k562", *(f"{word},{k + 0.25},0.5" for k, word in enumerate(words))]
    (tmp_path / "enhancers.csv").write_text("\n".join(rows))
    data = counts(tmp_path / "enhancers.csv", sequences="seq", labels="hepg2", bins=2, holdout=0.2)
    assert data.max_count == 3 and data.shape == (4,) and data.num_classes == 2
    all_samples = torch.cat([data.train, data.val, data.test])
    assert sorted(map(tuple, all_samples.tolist())) == sorted(
        [(0, 1, 2, 3), (3, 3, 2, 0), (1, 1, 1, 1), (2, 0, 3, 0)] * 5
    )
    upside_down = counts(tmp_path / "enhancers.csv", sequences="seq", letters="TGCA", holdout=0.2)
    assert (
        torch.cat([upside_down.train, upside_down.val, upside_down.test]).sum() + all_samples.sum()
    ).item() == 3 * 80
    for settings, message in (
        ({"sequences": "hepg2"}, "must be a column of text"),
        ({"sequences": "nothing"}, "must be a column of text"),
        (
            {"sequences": "seq", "letters": "ACG"},
            "'T' at place 3 of row 0 is not one of dataset.letters=ACG: add it",
        ),
        ({"sequences": "seq", "letters": "AACGT"}, "must be different letters"),
    ):
        with pytest.raises(UserError, match=message):
            counts(tmp_path / "enhancers.csv", **settings)  # type: ignore[arg-type]
