"""Images of files and folders as counts: decoded, turned upright, cropped and resized."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.progress import track
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData
from blackout.data.findings import Note
from blackout.data.on_disk import pack_rows, stays_on_disk
from blackout.data.split_arrays import split_arrays
from blackout.data.splits import split_samples
from blackout.errors import UserError, ensure, refuse
from blackout.safe_reading import check_size, open_regular, reading, stored_bytes

StrPath = str | os.PathLike[str]
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's modes by number of channels
# modes to which other 8-bit modes are converted; palettes are handled separately
CONVERTED_MODES = {
    "1": "L",
    "CMYK": "RGB",
    "YCbCr": "RGB",
    "HSV": "RGB",
    "LAB": "RGB",
    "RGBX": "RGB",
    "PA": "RGBA",
}
# as in torchvision's ImageFolder
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF")  # that Pillow may decode
FRAME_FORMATS = ("GIF", "PNG", "TIFF", "WEBP")  # of several frames; a JPEG's others are previews
MAX_LISTED = 5  # names of files in a message
MIN_PROGRESS_FILES = 2000  # files from which a progress bar is shown
CHUNK_FILES = 4096  # decoded at a time


def crop_and_resize(image: Image.Image, size: int, crop: int | None = None) -> Image.Image:
    """Return the central `crop` x `crop` pixels, resized to `size` x `size`.

    The filter is bilinear and antialiased. Without `crop` the largest central square is used.
    """
    side = min(image.size) if crop is None else crop
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    # cropped first: the filter of `resize(box=...)` would reach beyond the box
    cropped = image.crop((left, top, left + side, top + side))
    return cropped.resize((size, size), Image.Resampling.BILINEAR)


def read_image(path: Path, mode: str | None = None) -> Image.Image:
    """Read an 8-bit image, turned upright by its EXIF orientation.

    Bilevel images become grey, palettes become RGB or RGBA, CMYK and similar modes become RGB.

    Args:
        path: of the file.
        mode: one of `MODES` to convert to; None for that of the file.

    Raises:
        UserError: the file cannot be decoded, or has more than 8 bits per channel.
    """
    with reading(path, "cannot be read as an image"), open_regular(path) as file:
        # formats by name: for some others Pillow starts other programs
        with Image.open(file, formats=FORMATS) as image:
            check_size(path, 4 * image.width * image.height, stored_bytes(path))
            # Pillow opens 16-bit colour as 8-bit RGB; only the raw mode of its decoder shows it
            raw_modes = map(str, getattr(image, "tile", []))
            if image.mode.startswith(("I", "F")) or any(";16" in mode for mode in raw_modes):
                advice = (
                    "use dataset=counts, for a folder of .tif files or one .npy array of integers"
                )
                message = "images with more than 8 bits per channel would lose counts here"
                raise UserError(f"{path}: {message}; {advice}")
            num_frames = getattr(image, "n_frames", 1)
            if image.format in FRAME_FORMATS and num_frames > 1:
                message = f"it has {num_frames} frames, and an image is one"
                advice = "save each frame as a file, or use dataset=counts for a .tif"
                raise UserError(f"{path}: {message}; {advice}")
            image.load()
            upright = ImageOps.exif_transpose(image)
        native_mode = CONVERTED_MODES.get(upright.mode, upright.mode)
        if native_mode == "P":
            native_mode = "RGBA" if "transparency" in upright.info else "RGB"
        ensure(native_mode in MODES.values(), f"unsupported pixel format {native_mode}")
        converted = upright.convert(native_mode)
        return converted if mode in (None, native_mode) else converted.convert(mode)


def load_images(
    paths: Sequence[Path],
    transform: Callable[[Path], Image.Image],
    title: str,
) -> Tensor:
    """Decode images of equal size and mode in threads.

    Args:
        paths: at least one file.
        transform: maps a path to an 8-bit image.
        title: of the progress bar, which is shown for many files.

    Returns:
        uint8 [N, C, H, W], in the order of `paths`.

    Raises:
        ValueError: images whose numbers of channels differ; the message names two of the files.
    """
    images = _decode(paths, transform, title)
    first = next(images)
    counts = torch.empty((len(paths), *first.shape), dtype=torch.uint8)
    for row, pixels in zip(counts, chain([first], images), strict=True):
        row.copy_(pixels)
    return counts


@component("dataset", command_line="dataset=image_folder dataset.path=<folder>")
def image_folder(  # noqa: PLR0913 - built from YAML
    path: StrPath,
    size: int = 32,
    channels: int | None = None,
    max_count: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
    in_memory: bool | None = None,
    validation: float = 0.1,
) -> CountData:
    """Read all images below a folder as counts [C, size, size], 0, ..., 255.

    Each image is turned upright, cropped to its central square and resized with an antialiased
    filter. If all images are below direct subfolders (at any depth), of which there are at least
    two, these are their classes by name, in alphabetical order, and every split has the same
    fractions of classes. Names that begin with a dot are skipped.

    Args:
        path: of the folder.
        size: side of the images in pixels.
        channels: 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) to convert to; None for those of
            the files.
        max_count: largest possible value, for images with fewer than 256 grey levels; None is 255.
        holdout: fraction of the images for the test.
        seed: of the random split.
        in_memory: whether the images are held in memory. Otherwise they are decoded once, to a
            folder next to theirs, and read when they are used, which gives the same batches. None
            holds at most 1 GiB, and an eighth of the free memory.
        validation: fraction or number of the images for validation; 0 for none.

    Raises:
        UserError: no such folder, no image in it, or a file that cannot be read as an 8-bit image.
        ValueError: images with different numbers of channels and no `channels`; a value above
            `max_count`; arguments out of range.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for k in range(10):
        ...         Image.new("L", (40, 32), 20 * k).save(f"{folder}/{k}.png")
        ...     image_folder(folder, size=16).shape
        (1, 16, 16)
    """
    root = Path(path).expanduser()
    ensure(size >= 1, f"image_folder: size must be at least 1, not {size}")
    if channels is not None and channels not in MODES:
        allowed = ", ".join(map(str, MODES))
        raise ValueError(f"image_folder: channels must be one of {allowed}, not {channels}")
    max_value = 255 if max_count is None else max_count
    limits = "max_count must be between 1 and 255 for 8-bit images"
    ensure(1 <= max_value <= 255, f"image_folder: {limits}, not {max_value}")

    # 1. Decode the images, or leave them on disk.
    files = _list_images(root)
    mode = None if channels is None else MODES[channels]
    title = f"reading {root.name}"

    def transform(file: Path) -> Image.Image:
        image = crop_and_resize(read_image(file, mode), size)
        image_max = int(np.asarray(image).max())
        if image_max > max_value:
            raise ValueError(f"{file}: the value {image_max} is above max_count={max_value}")
        return image

    def blocks() -> Iterator[Any]:
        images = _decode(files, transform, title)
        while block := list(islice(images, CHUNK_FILES)):
            yield torch.stack(block).numpy()

    shape = tuple(_to_tensor(transform(files[0])).shape)
    counts: Any
    if stays_on_disk((len(files), *shape), 1, in_memory):
        request = ["images", size, channels, max_value]
        counts = pack_rows(root, len(files), shape, request, blocks)
    else:
        counts = load_images(files, transform, title)

    # 2. Classes by subfolder, and splits.
    labels, class_names = _subfolder_labels(root, files)
    rows = split_samples(len(files), validation, holdout, seed, labels)
    name = Path(os.path.realpath(root)).name or "image_folder"
    parts = split_arrays(rows, {"": counts, "_labels": labels})
    return CountData(name, max_count=max_value, class_names=class_names, **parts)


def read_image_folder(path: StrPath, shape: tuple[int, ...]) -> Tensor:
    """Read all images below a folder as they are: uint8 [N, *shape], in the order of their paths.

    Raises:
        UserError: no images, one that cannot be read, or one of another size.
    """
    is_image_shape = len(shape) == 3 and shape[0] in MODES
    message = f"{path}: a folder of images cannot hold samples of shape {shape}"
    refuse(not is_image_shape, message)
    channels, height, width = shape

    def transform(file: Path) -> Image.Image:
        image = read_image(file, MODES[channels])
        if image.size != (width, height):
            sizes = f"{image.width}x{image.height} pixels, not {width}x{height}"
            raise UserError(f"{file} has {sizes}: not resized here")
        return image

    root = Path(path).expanduser()
    return load_images(_list_images(root), transform, f"reading {root.name}")


def _decode(
    paths: Sequence[Path],
    transform: Callable[[Path], Image.Image],
    title: str,
) -> Iterator[Tensor]:
    """Yield images [C, H, W] in the order of `paths`; see `load_images`."""
    pool = ThreadPoolExecutor()
    num_channels = None
    try:
        chunks = (paths[k : k + CHUNK_FILES] for k in range(0, len(paths), CHUNK_FILES))
        images = chain.from_iterable(
            pool.map(lambda path: _to_tensor(transform(path)), chunk) for chunk in chunks
        )
        is_quiet = len(paths) < MIN_PROGRESS_FILES
        progress = track(images, title, total=len(paths), disable=is_quiet, transient=True)
        for path, pixels in zip(paths, progress, strict=True):
            if num_channels is None:
                num_channels = len(pixels)
            if len(pixels) != num_channels:
                problem = f"{path} has {len(pixels)} channels but {paths[0]} has {num_channels}"
                advice = "choose one number for all with dataset.channels=1|2|3|4"
                raise ValueError(f"{problem}: {advice}")
            yield pixels
    finally:
        pool.shutdown(cancel_futures=True)


def _to_tensor(image: Image.Image) -> Tensor:
    """Convert an image to uint8 [C, H, W]."""
    pixels = np.array(image).reshape(image.height, image.width, -1)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _subfolder_labels(root: Path, files: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of the direct subfolder of every file, int64 [N], and their names.

    Warns:
        Note: some images are in subfolders and others are not, so that there are no classes.
    """
    folders = [file.relative_to(root).parts[:-1] for file in files]
    names = sorted({folder[0] for folder in folders if folder})
    if len(names) >= 2 and not all(folders):
        num_outside = sum(not folder for folder in folders)
        message = f"subfolders are not used as classes: {num_outside} images are outside of them"
        warnings.warn(Note(message), stacklevel=3)
    if not all(folders) or len(names) < 2:
        return None, ()
    return torch.tensor([names.index(folder[0]) for folder in folders]), tuple(names)


def _list_images(root: Path) -> list[Path]:
    """Return every image file below a folder, sorted by path."""
    refuse(not root.is_dir(), f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    all_files = list(_walk(root))
    files = [file for file in all_files if file.name.lower().endswith(IMAGE_EXTENSIONS)]
    for file in files:
        if file.exists() and not file.is_file():
            raise UserError(f"{file}: not a file")
    visible = []
    for file in files:
        if not any(part.startswith(".") for part in file.relative_to(root).parts):
            visible.append(file)
    extensions = ", ".join(IMAGE_EXTENSIONS)
    refuse(not visible, f"{root}: no images in this folder (looked for {extensions})")
    not_images = sorted({*all_files} - {*files})
    not_read = [file.name for file in not_images if not file.name.startswith(".")]
    if not_read:
        listed = ", ".join(not_read[:MAX_LISTED])
        message = f"not read, as they have no suffix of an image: {listed}, {len(not_read)} in all"
        warnings.warn(Note(message), stacklevel=3)
    return sorted(visible)


def _walk(root: Path) -> Iterator[Path]:
    """Yield every file below a folder, through links, without visiting a folder twice."""

    def raise_error(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error

    visited: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=raise_error):
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in visited:
            subfolders.clear()
            continue
        visited.add(identity)
        yield from (Path(folder, name) for name in names)
