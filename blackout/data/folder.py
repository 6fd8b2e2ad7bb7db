"""A user's own images, in any folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from blackout.data.arrays import CountData
from blackout.data.images import MODES, load_images, read_image, square
from blackout.data.splits import held_out_split
from blackout.errors import UserError

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision's ImageFolder."""


def image_folder(
    path: str | os.PathLike[str],
    size: int = 32,
    channels: int | None = None,
    max_count: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
) -> CountData:
    """All images below a folder as counts [C, size, size], 0..255.

    Each image is turned upright, cropped to its central square and resized with an antialiased filter. If all images
    are below direct subfolders (at any depth), of which there are at least two, these are their classes, in
    alphabetical order, and the held-out split keeps the mix of classes. Names that begin with a dot are skipped.

    Args:
        path: the folder.
        size: side of the images in pixels.
        channels: 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) to convert to; None for those of the files.
        max_count: largest value that may occur, for images with fewer than 256 grey levels; None is 255.
        holdout: share of the images to hold out.
        seed: seed of the split.

    Raises:
        UserError: no such folder, no image in it, or a file that cannot be read as an 8-bit image.
        ValueError: images with different numbers of channels and no `channels`; a value above `max_count`; arguments
            out of range.
    """
    root = Path(path).expanduser()
    if size < 1:
        raise ValueError(f"image_folder: size must be at least 1, got {size}")
    if channels is not None and channels not in MODES:
        raise ValueError(f"image_folder: channels must be one of {', '.join(map(str, MODES))}, got {channels}")
    largest = 255 if max_count is None else max_count
    if not 1 <= largest <= 255:
        raise ValueError(f"image_folder: max_count must be between 1 and 255 for 8-bit images, got {largest}")
    files = _image_files(root)
    mode = None if channels is None else MODES[channels]
    images = load_images(files, lambda file: square(read_image(file, mode), size), f"reading {root.name}")
    _check_range(images, files, largest)
    labels = _subfolder_labels(root, files)
    train, test = held_out_split(len(files), holdout, seed, labels)
    classes = (None, None) if labels is None else (labels[train], labels[test])
    return CountData(root.resolve().name or "image_folder", images[train], images[test], largest, *classes)


def read_folder(path: str | os.PathLike[str], shape: tuple[int, ...]) -> Tensor:
    """All images below a folder as they are, uint8 [N, *shape], in the order of their paths.

    Raises:
        UserError: no images, one that cannot be read, or one of another size.
    """
    if len(shape) != 3 or shape[0] not in MODES:
        raise UserError(f"{path}: a folder of images cannot hold samples of shape {shape}")
    channels, height, width = shape

    def exact(file: Path) -> Image.Image:
        image = read_image(file, MODES[channels])
        if image.size != (width, height):
            raise UserError(f"{file} has {image.width}x{image.height} pixels, not {width}x{height}: not resized here")
        return image

    root = Path(path).expanduser()
    return load_images(_image_files(root), exact, f"reading {root.name}")


def _image_files(root: Path) -> list[Path]:
    """Every image file below a folder, sorted by path."""
    if not root.is_dir():
        raise UserError(f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    files = [file for file in _walk(root) if file.name.lower().endswith(IMG_EXTENSIONS)]
    if special := [file for file in files if file.exists() and not file.is_file()]:
        raise UserError(f"{special[0]}: not a file")
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    if not visible:
        raise UserError(f"{root}: no images in this folder (looked for {', '.join(IMG_EXTENSIONS)})")
    return sorted(visible)


def _walk(root: Path) -> Iterator[Path]:
    """Every file below a folder, through links, but no folder twice: a link may lead back."""
    seen: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=_refuse):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (Path(folder, name) for name in names)


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _subfolder_labels(root: Path, files: list[Path]) -> Tensor | None:
    parts = [file.relative_to(root).parts for file in files]
    if min(map(len, parts)) == 1:
        return None
    names = sorted({first for first, *_ in parts})
    return torch.tensor([names.index(first) for first, *_ in parts]) if len(names) > 1 else None


def _check_range(images: Tensor, files: list[Path], largest: int) -> None:
    peaks = images.flatten(1).amax(1)
    above = torch.nonzero(peaks > largest).flatten()
    if len(above):
        first = int(above[0])
        raise ValueError(f"{files[first]}: the value {int(peaks[first])} is above max_count={largest}")
