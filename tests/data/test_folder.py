"""Images of a folder: formats, crops, classes, and errors."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.data import image_folder
from blackout.data.findings import Note
from blackout.errors import UserError

GENERATOR = np.random.default_rng(0)


def save(
    path: Path, size: tuple[int, int] = (12, 9), mode: str = "RGB", **options: object
) -> np.ndarray:
    """Write a random image of a width and height, and return its pixels [H, W(, C)]."""
    width, height = size
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height, width) if channels == 1 else (height, width, channels)
    pixels = GENERATOR.integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)  # type: ignore[arg-type]
    return pixels


def test_pixels_of_the_right_size_are_kept_exactly(tmp_path: Path) -> None:
    pixels = [save(tmp_path / f"{k}.png", (8, 8)) for k in range(10)]
    data = image_folder(tmp_path, size=8, holdout=0.2)
    assert (data.train.shape, data.test.shape) == ((7, 3, 8, 8), (2, 3, 8, 8))
    assert (data.name, data.max_count, data.num_classes) == (tmp_path.name, 255, None)
    served = {image.numpy().tobytes() for image in torch.cat([data.train, data.val, data.test])}
    assert served == {image.transpose(2, 0, 1).tobytes() for image in pixels}


def test_the_central_square_is_cut_out(tmp_path: Path) -> None:
    pixels = save(tmp_path / "wide.png", (13, 8), "L")
    save(tmp_path / "tall.png", (8, 11), "L")
    data = image_folder(tmp_path, size=8, holdout=0.5)
    images = torch.cat([data.train, data.val, data.test])
    assert any(np.array_equal(image[0], pixels[:, 2:10]) for image in images.numpy())


def test_resizing_is_antialiased(tmp_path: Path) -> None:
    board = np.indices((32, 32)).sum(0).astype(np.uint8) % 2 * 255
    for k in range(2):
        Image.fromarray(board).save(tmp_path / f"{k}.png")
    data = image_folder(tmp_path, size=8, holdout=0.5)
    assert (data.train.int() - 127).abs().max() <= 2  # a finer chessboard than the pixels is grey


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "webp", "bmp", "tif", "ppm"])
def test_images_of_every_format_are_read(tmp_path: Path, suffix: str) -> None:
    for k in range(2):
        save(tmp_path / f"{k}.{suffix}")
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "._0.png").write_text("not an image either")
    assert image_folder(tmp_path, size=8, holdout=0.5).train.shape == (1, 3, 8, 8)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)])
def test_channels_are_those_of_the_files(tmp_path: Path, mode: str, channels: int) -> None:
    for k in range(2):
        save(tmp_path / f"{k}.png", mode=mode)
    assert image_folder(tmp_path, size=8, holdout=0.5).shape == (channels, 8, 8)
    assert image_folder(tmp_path, size=8, holdout=0.5, channels=1).shape == (1, 8, 8)


def test_palettes_and_bilevel_images_are_looked_up(tmp_path: Path) -> None:
    colours = Image.new("P", (8, 8), 1)
    black_and_white = Image.new("1", (8, 8), 1)
    colours.putpalette([0, 0, 0, 200, 100, 50])
    for k in range(2):
        colours.save(tmp_path / f"colours{k}.png")
    assert image_folder(tmp_path, size=8, holdout=0.5).train[0, :, 0, 0].tolist() == [200, 100, 50]
    for path in tmp_path.iterdir():
        black_and_white.save(path)
    assert image_folder(tmp_path, size=8, holdout=0.5).train[0, :, 0, 0].tolist() == [255]


def test_mixed_channels_need_a_choice(tmp_path: Path) -> None:
    save(tmp_path / "a.png", mode="RGB")
    save(tmp_path / "b.png", mode="RGBA")
    message = r"b\.png has 4 channels but .*a\.png has 3: choose one number for all with "
    message += r"dataset\.channels=1\|2\|3\|4"
    with pytest.raises(ValueError, match=message):
        image_folder(tmp_path, size=8)
    assert image_folder(tmp_path, size=8, holdout=0.5, channels=3).shape == (3, 8, 8)


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    pixels = GENERATOR.integers(0, 256, (8, 8), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter turn clockwise
    for k in range(2):
        Image.fromarray(pixels).save(tmp_path / f"{k}.png", exif=exif)
    assert np.array_equal(
        image_folder(tmp_path, size=8, holdout=0.5).train[0, 0], np.rot90(pixels, -1)
    )


def test_subfolders_are_classes(tmp_path: Path) -> None:
    for name, count in (("cats", 10), ("birds", 20)):
        for k in range(count):
            save(tmp_path / name / f"{k % 2}" / f"{k}.png", (8, 8), "L")
    save(tmp_path / ".thumbnails" / "0.png")
    data = image_folder(tmp_path, size=8, holdout=0.1)
    assert data.train_labels is not None and data.test_labels is not None
    assert torch.bincount(data.train_labels).tolist() == [16, 8]  # birds before cats
    assert torch.bincount(data.test_labels).tolist() == [2, 1]
    save(tmp_path / "loose.png", (8, 8), "L")
    assert image_folder(tmp_path, size=8).num_classes is None


def test_fewer_levels_can_be_declared(tmp_path: Path) -> None:
    for k in range(2):
        Image.fromarray(np.full((8, 8), 14 + k, dtype=np.uint8)).save(tmp_path / f"{k}.png")
    assert image_folder(tmp_path, size=8, holdout=0.5, max_count=15).max_count == 15
    with pytest.raises(ValueError, match=r"1\.png: the value 15 is above max_count=14"):
        image_folder(tmp_path, size=8, holdout=0.5, max_count=14)


@pytest.mark.parametrize("kind", ["grey.png", "grey.tif", "colour.png"])
def test_deep_images_are_refused_rather_than_cut(tmp_path: Path, kind: str) -> None:
    if kind == "colour.png":
        (tmp_path / kind).write_bytes(deep_png())
    else:
        Image.fromarray(np.full((8, 8), 1000, dtype=np.uint16)).save(tmp_path / kind)
    with pytest.raises(UserError, match=rf"{kind}: images with more than 8 bits per channel"):
        image_folder(tmp_path, size=8)


def deep_png() -> bytes:
    """An 8 x 8 PNG of 16-bit RGB, which Pillow itself cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = b"".join(b"\0" + b"\x03\xe8" * 24 for _ in range(8))
    header = struct.pack(">2I5B", 8, 8, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no images in this folder"):
        image_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: not a folder"):
        image_folder(tmp_path / "file")


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "noise"])
def test_a_corrupt_image_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    for k in range(5):
        save(tmp_path / f"{k}.png", (40, 40))
    bad = tmp_path / "2.png"
    content = bad.read_bytes()
    bad.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "text": b"hello",
            "noise": content[:50] + bytes(2000),
        }[damage]
    )
    with pytest.raises(UserError, match=r"2\.png: cannot be read as an image \(") as error:
        image_folder(tmp_path, size=8)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"channels": 5}, "channels must be one of 1, 2, 3, 4, not 5"),
        ({"max_count": 256}, "max_count must be between 1 and 255"),
        ({"holdout": 0}, "holdout must be"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: dict[str, int], message: str) -> None:
    save(tmp_path / "0.png")
    with pytest.raises(ValueError, match=message):
        image_folder(tmp_path, **arguments)


def test_frames_other_files_and_images_outside_of_classes_are_named(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8)).astype(np.uint8)
    for k, array in enumerate(pixels):
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        Image.fromarray(array).save(tmp_path / "ab"[k % 2] / f"{k}.png")
    assert image_folder(tmp_path, size=8).class_names == ("a", "b")
    (tmp_path / "labels.csv").write_text("x")
    with pytest.warns(Note, match=r"no suffix of an image: labels\.csv, 1 in all"):
        image_folder(tmp_path, size=8)
    Image.fromarray(pixels[0]).save(tmp_path / "x.png")
    with pytest.warns(Note, match="not used as classes: 1 images are outside"):
        assert image_folder(tmp_path, size=8).num_classes is None
    frames = [Image.fromarray(array) for array in pixels]
    frames[0].save(tmp_path / "x.tif", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match=r"x\.tif: it has 12 frames, and an image is one"):
        image_folder(tmp_path, size=8)
