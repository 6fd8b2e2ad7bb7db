"""Counts on disk equal counts in memory; files that change or are damaged are refused."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.data import CountData, counts, image_folder, on_disk
from blackout.data.count_statistics import load_samples
from blackout.errors import UserError
from blackout.evaluation import CountScorer, classifier_tests
from blackout.evaluation.count_comparison import compare_counts
from blackout.training.data_module import TrainLoader

GENERATOR = np.random.default_rng(0)
CELLS = GENERATOR.poisson(2, (700, 12)) * (GENERATOR.random((700, 12)) < 0.3)
CELLS[600:] *= 400  # so that 8 bits do not hold the last ones


def save_sparse(path: Path) -> Path:
    """Save a CSR matrix in which one position has two entries, which are added."""
    import scipy.sparse

    matrix = scipy.sparse.csr_matrix(CELLS)
    data, indices = (
        np.insert(values, 1, new)
        for values, new in ((matrix.data, 1), (matrix.indices, matrix.indices[0]))
    )
    ends = matrix.indptr + (np.arange(len(CELLS) + 1) > 0)
    np.savez(path, format="csr", shape=CELLS.shape, data=data, indices=indices, indptr=ends)
    return path


def save_h5ad(path: Path) -> Path:
    anndata = pytest.importorskip("anndata", exc_type=ImportError)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.importorskip("pandas").option_context("future.infer_string", False):  # plain text
        table = anndata.AnnData(scipy_sparse.csr_matrix(CELLS.astype(np.float32)))
        table.obs["kind"] = np.array(["b", "t"])[np.arange(len(CELLS)) % 2]
        (table.write_zarr if path.suffix == ".zarr" else table.write_h5ad)(path)
    return path


def save_npy(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def save_photos(path: Path) -> Path:
    for k in range(30):
        (folder := path / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(GENERATOR.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(
            folder / f"{k}.png"
        )
    return path


SETS = {
    "integers": lambda folder: (save_npy(folder / "x.npy", CELLS), {"labels": "total"}),
    "images": lambda folder: (
        save_npy(folder / "x.npy", GENERATOR.poisson(30, (300, 6, 7)).astype(">u2")),
        {},
    ),
    "numbers": lambda folder: (
        save_npy(folder / "x.npy", CELLS.astype(np.float32)),
        {"columns": [1, 5, 2], "exclude": [5]},
    ),
    "units": lambda folder: (save_npy(folder / "x.npy", 7 + 3 * CELLS), {"offset": 7, "gain": 3}),
    "sparse": lambda folder: (save_sparse(folder / "x.npz"), {"covariates": "total"}),
    "h5ad": lambda folder: (
        save_h5ad(folder / "x.h5ad"),
        {"labels": "kind", "columns": ["3", "0"]},
    ),
    "zarr": lambda folder: (save_h5ad(folder / "x.zarr"), {}),
    "photos": lambda folder: (save_photos(folder / "photos"), {"size": 8}),
}


def read(path: Path, in_memory: bool | None, **settings: Any) -> CountData:
    return (image_folder if path.is_dir() and path.suffix != ".zarr" else counts)(
        path, in_memory=in_memory, **settings
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SETS)
def test_rows_on_disk_equal_those_in_memory(tmp_path: Path, kind: str) -> None:
    path, settings = SETS[kind](tmp_path)
    memory, disk = (read(path, held, **settings) for held in (True, False))
    assert isinstance(disk.train, on_disk.DiskCounts)
    for split in ("train", "val", "test"):
        assert torch.equal(getattr(memory, split), getattr(disk, split)[:])
        assert memory.fingerprint(split) == disk.fingerprint(split)
    assert memory.facts == disk.facts
    assert memory.merge_validation().fingerprint("train") == disk.merge_validation().fingerprint(
        "train"
    )
    assert len(disk.merge_validation().train) == len(disk.train) + len(disk.val) > len(disk.train)
    assert torch.equal(pickle.loads(pickle.dumps(disk)).test[2:5], memory.test[2:5])
    for name in ("element", "square", "sample"):
        assert torch.equal(getattr(memory.sums, name), getattr(disk.sums, name))
    streams = [TrainLoader(data, 16, seed=3) for data in (memory, disk)]
    for number in (0, 40):  # in the first epoch, and later
        first, second = (stream.batch(number) for stream in streams)
        assert first.keys() == second.keys() and all(
            torch.equal(first[key], second[key]) for key in ("x0", "index")
        )


def test_rows_on_disk_are_written_again_when_the_file_changes(tmp_path: Path) -> None:
    path = save_npy(tmp_path / "x.npy", CELLS.astype(float))
    counts(path, in_memory=False)
    (folder,) = tmp_path.glob("x.npy.rows-*")
    modified = (folder / "values").stat().st_mtime_ns
    counts(path, in_memory=False)
    assert (folder / "values").stat().st_mtime_ns == modified
    save_npy(path, CELLS[:500].astype(float))
    assert len(counts(path, in_memory=False).train) == 400
    assert len(list(tmp_path.glob("x.npy.rows-*"))) == 2


@pytest.mark.parametrize("name", ["values", "columns", "totals.npy", "ends.npy", "about.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "removed"])
def test_damaged_rows_are_written_again(
    tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_sparse(tmp_path / "x.npz")
    expected = counts(path, in_memory=False).train[:]
    (folder,) = tmp_path.glob("x.npz.rows-*")
    file = folder / name
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    if damage == "flipped":
        content[middle] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[:middle])
    else:
        file.unlink()
    assert torch.equal(counts(path, in_memory=False).train[:], expected)
    assert "damaged: its rows are written again" in capsys.readouterr().out
    assert torch.equal(counts(path, in_memory=False).train[:], expected)
    assert "written again" not in capsys.readouterr().out


def test_a_file_that_changes_under_a_run_is_refused(tmp_path: Path) -> None:
    data = counts(path := save_npy(tmp_path / "x.npy", CELLS), in_memory=False)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    os.utime(path, ns=(1, 1))
    with pytest.raises(UserError, match="changed while it was in use"):
        data.batch("train", torch.arange(4))
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(UserError, match="changed while it was in use"):
        data.batch("test", torch.arange(4))


@pytest.mark.parametrize(
    ("value", "message"), [(-1, "must be at least 0"), (0.5, "must be whole numbers")]
)
def test_rows_on_disk_are_checked(tmp_path: Path, value: float, message: str) -> None:
    array = CELLS.astype(np.int64 if value == -1 else np.float64)
    array[-1, 3] = value
    with pytest.raises(UserError, match=rf"{message}, not {value} at index \[699, 3\]"):
        counts(save_npy(tmp_path / "x.npy", array), in_memory=False)
    assert not list(tmp_path.glob("x.npy.rows-*"))


def test_sparse_rows_with_wrong_indices_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    save_h5ad(path := tmp_path / "x.h5ad")
    with h5py.File(path, "r+") as file:
        file["X/indices"][-1] = 1 << 30
    for in_memory in (True, False):
        with pytest.raises(UserError, match="indices must be < "):
            counts(path, in_memory=in_memory)


def test_counts_that_are_large_compared_with_the_memory_stay_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_disk, "available_memory", lambda: 8 * 100)
    assert not on_disk.stays_on_disk((10, 10), 1, None) and on_disk.stays_on_disk((10, 11), 1, None)
    assert on_disk.stays_on_disk((10, 10), 8, None)  # as 32 bits
    assert on_disk.stays_on_disk((1, 1), 1, False) and not on_disk.stays_on_disk(
        (1000, 1000), 1, True
    )


def test_scores_are_those_of_counts_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier_tests, "TREES", 20)
    path = save_npy(tmp_path / "x.npy", CELLS)
    memory, disk = (counts(path, in_memory=held, labels="total") for held in (True, False))
    scores = [
        compare_counts(memory.test[:].long().numpy()[::2], data, 40, 0) for data in (memory, disk)
    ]
    assert scores[0] == scores[1]
    scorer = CountScorer().begin(disk, 12)
    scorer.update({"samples": disk.test[:12]}, torch.arange(12))
    assert scorer.compute()
    assert scorer.figure()


def test_a_read_in_parts_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the system gives 2 GiB at most."""
    data = counts(save_npy(tmp_path / "x.npy", CELLS), in_memory=False)
    expected = data.train[:40]
    pread = os.pread
    preadv = os.preadv
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 7), offset))
    monkeypatch.setattr(
        os, "preadv", lambda file, parts, offset: preadv(file, [parts[0][:7]], offset)
    )
    assert torch.equal(data.train[:40], expected)


def test_as_many_rows_on_disk_are_loaded_as_fit(tmp_path: Path) -> None:
    data = counts(save_npy(tmp_path / "x.npy", CELLS), in_memory=False)
    loaded = load_samples(data.train, max_elements=12 * 56)
    assert torch.equal(loaded, data.train[torch.arange(56) * 10])
    assert torch.equal(load_samples(loaded, max_elements=1), loaded)
