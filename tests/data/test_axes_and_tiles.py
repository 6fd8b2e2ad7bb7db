"""Series, axes and tiles of arrays in TIFF, HDF5, Zarr and NumPy files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackout.data import counts
from blackout.data.formats import read_file, tiff
from tests.data.file_checks import (
    FRAMES,
    MATRIX,
    all_rows,
    check,
    messages,
    refused,
    write,
)


def test_series_of_one_shape_are_joined_and_others_are_named(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "many.tif") as file:
        for frame in FRAMES:
            file.write(frame)
    check(tmp_path / "many.tif", FRAMES)
    with tifffile.TiffWriter(tmp_path / "thumbnail.tif") as file:
        file.write(FRAMES[0, :8, :8])
        file.write(FRAMES)
    refused(
        tmp_path / "thumbnail.tif", "0: YX 8x8 uint16; 1: QYX 30x16x16 uint16): dataset.layer=1"
    )
    check(tmp_path / "thumbnail.tif", FRAMES, layer=1)
    refused(tmp_path / "thumbnail.tif", "no series '7', only 0 to 1", layer="7")
    with tifffile.TiffWriter(tmp_path / "positions.ome.tif", ome=True) as file:
        for k in range(3):
            file.write(FRAMES[10 * k : 10 * k + 10], metadata={"axes": "TYX"})
    check(tmp_path / "positions.ome.tif", FRAMES, "T samples")


def test_axes_have_the_meaning_that_the_file_gives_them(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    stack = np.random.default_rng(2).poisson(3.0, (20, 4, 2, 8, 9)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "x.tif", stack, imagej=True, metadata={"axes": "TZCYX"})
    data = check(tmp_path / "x.tif", stack.swapaxes(1, 2), "T samples, Z depth, C channels")
    assert data.shape == (2, 4, 8, 9)
    colours = np.random.default_rng(2).integers(0, 256, (20, 8, 9, 3)).astype(np.uint8)
    tifffile.imwrite(tmp_path / "x.tif", colours, photometric="rgb")
    assert check(tmp_path / "x.tif", np.moveaxis(colours, -1, 1)).shape == (3, 8, 9)
    volume = stack[0].swapaxes(0, 1)
    tifffile.imwrite(tmp_path / "x.ome.tif", volume, metadata={"axes": "CZYX"}, ome=True)
    refused(tmp_path / "x.ome.tif", "one image of 8 x 9 pixels: dataset.tile=2")
    assert check(tmp_path / "x.ome.tif", volume.swapaxes(0, 1), axes="CNYX").shape == (2, 8, 9)
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, imagej=True)
    check(tmp_path / "x.tif", FRAMES, axes="NYX")
    np.save(tmp_path / "x.npy", colours)
    assert check(tmp_path / "x.npy", np.moveaxis(colours, -1, 1), axes="NYXC").shape == (3, 8, 9)
    refused(tmp_path / "x.npy", "axes=NYX names 3 axes, but the array has 4", axes="NYX")
    refused(tmp_path / "x.npy", "not those of counts", axes="NYCC")


def test_names_of_axes_in_hdf5_and_zarr_are_used(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["counts"] = MATRIX.T
        file["counts"].dims[0].label = "gene"
        file["counts"].dims[1].label = "cell"
    check(tmp_path / "x.h5", MATRIX, "gene elements, cell samples")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["counts"] = MATRIX
        file["counts"].dims[0].label = "run"
    check(tmp_path / "y.h5", MATRIX, "axes are called 'run', ''")
    zarr = pytest.importorskip("zarr")
    group = zarr.open(str(tmp_path / "x.zarr"), mode="w")
    array = np.moveaxis(FRAMES, 0, -1)
    create = group.create_array if hasattr(group, "create_array") else group.create_dataset
    create("counts", data=array).attrs["_ARRAY_DIMENSIONS"] = ["y", "x", "time"]
    check(tmp_path / "x.zarr", FRAMES, "time samples")
    axes = ["y", "x", "t"]
    for version, ome_axes in (("0.3", axes), ("0.4", [{"name": name} for name in axes])):
        path = tmp_path / f"{version}.zarr"
        group = zarr.open(str(path), mode="w")
        create = group.create_array if hasattr(group, "create_array") else group.create_dataset
        create("0", data=array)
        group.attrs["multiscales"] = [{"version": version, "axes": ome_axes}]
        check(path, FRAMES, "t samples")


def test_frames_are_in_natural_order_and_unused_tags_are_named(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    folder = tmp_path / "frames"
    folder.mkdir()
    for k in range(12):
        tifffile.imwrite(folder / f"img_{k + 1}.tif", FRAMES[k])
    write(folder / "notes.txt", "x")
    contents = read_file(folder)
    assert np.array_equal(contents.arrays["counts"], FRAMES[:12])
    assert (
        "img_1.tif to img_12.tif" in " ".join(contents.notes) and "notes.txt" in contents.notes[-1]
    )
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, photometric="miniswhite")
    check(tmp_path / "x.tif", FRAMES, "0 is white")
    empty = FRAMES.astype(np.int32) - 1
    tifffile.imwrite(tmp_path / "x.tif", empty, extratags=[(42113, "s", 0, "-1", True)])
    refused(tmp_path / "x.tif", "entries are -1, which stands for no data")
    assert counts(tmp_path / "x.tif", mask="finite").train_observed is not None
    tifffile.imwrite(tmp_path / "x.tif", FRAMES, imagej=True)
    content = (tmp_path / "x.tif").read_bytes()
    refused(write(tmp_path / "half.tif", content[: len(content) // 2]), "the file is damaged")


def test_a_warning_of_tifffile_about_any_file_of_a_folder_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile = pytest.importorskip("tifffile")
    for k in range(3):
        tifffile.imwrite(tmp_path / f"{k}.tif", FRAMES[k])

    def read_series(series: Any) -> Any:
        if np.array_equal(series.asarray(), FRAMES[1]):
            logging.getLogger("tifffile").warning("an odd tag")
        return original(series)

    original = tiff._read_series
    monkeypatch.setattr(tiff, "_read_series", read_series)
    assert read_file(tmp_path).warnings == ("1.tif: tifffile: an odd tag",)


def test_a_large_image_is_cut_into_tiles(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    image = np.random.default_rng(2).poisson(5.0, (40, 70)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "x.tif", image)
    refused(tmp_path / "x.tif", "one image of 40 x 70 pixels: dataset.tile=8 cuts tiles")
    tiles = [image[i : i + 16, j : j + 16] for i in (0, 16) for j in (0, 16, 32, 48)]
    check(tmp_path / "x.tif", tiles, "2 x 4 tiles", "last 8 rows and 6 columns", tile=16)
    overlapping = [image[i : i + 16, j : j + 16] for i in (0, 8, 16, 24) for j in range(0, 55, 8)]
    check(tmp_path / "x.tif", overlapping, "tiles overlap", tile=16, stride=8)
    check(tmp_path / "x.tif", image, axes="NE")
    refused(tmp_path / "x.tif", "tile=64 is larger than the images of 40 x 70", tile=64)
    refused(tmp_path / "x.tif", "dataset.tile is needed", stride=8)
    np.save(tmp_path / "x.npy", FRAMES)
    with messages():
        data = counts(tmp_path / "x.npy", tile=8, group="image", holdout=0.3)
    halves = FRAMES.reshape(30, 2, 8, 2, 8).swapaxes(2, 3).reshape(120, 64)
    assert all_rows(data) == sorted(halves.tolist()) and len(data.test) % 4 == 0
