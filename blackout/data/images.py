"""Image files to count tensors: decoding, orientation, channels, crop and resize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.progress import track
from torch import Tensor

from blackout.data.file_errors import file_error
from blackout.errors import UserError

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# modes to which other 8-bit encodings are converted; palettes are handled separately
_EQUIVALENT = {"1": "L", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB", "RGBX": "RGB", "PA": "RGBA"}
_WORTH_A_BAR = 2000  # files


def square(image: Image.Image, size: int, crop: int | None = None) -> Image.Image:
    """The central `crop` x `crop` pixels, resized to `size` with an antialiased bilinear filter.

    Without `crop` the largest central square is taken.
    """
    side = min(image.size) if crop is None else crop
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # cropped first: the filter of `resize(box=...)` would reach beyond the box
    part = image.crop((left, top, left + side, top + side))
    return part.resize((size, size), Image.Resampling.BILINEAR)


def read_image(path: Path, mode: str | None = None) -> Image.Image:
    """Open an 8-bit image upright (by its EXIF orientation), in `mode` or in its own of `MODES`.

    Bilevel images become grey, palettes become RGB or RGBA, CMYK and the like become RGB.

    Raises:
        UserError: the file cannot be decoded, or has more than 8 bits per channel.
    """
    try:
        with Image.open(path) as image:
            if _is_deep(image):
                advice = "save them as one .npy array of integers and use dataset=counts"
                raise UserError(f"{path}: images with more than 8 bits per channel would lose counts here; {advice}")
            image.load()
            upright = ImageOps.exif_transpose(image)
            own = _own_mode(upright)
            converted = upright.convert(own)
            return converted if mode in (None, own) else converted.convert(mode)
    except UserError:
        raise
    except Exception as error:  # the decoders of a dozen formats raise many types
        raise file_error(path, "cannot be read as an image", error) from error


def load_images(paths: Sequence[Path], transform: Callable[[Path], Image.Image], title: str) -> Tensor:
    """Decode images of equal size and mode in threads: uint8 [N, C, H, W], in the order of `paths`.

    Args:
        paths: at least one file.
        transform: path -> 8-bit image, all of one size.
        title: of the progress bar, which appears for many files.

    Raises:
        ValueError: images whose numbers of channels differ; the message names two of the files.
    """
    first = _to_tensor(transform(paths[0]))
    counts = torch.empty((len(paths), *first.shape), dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:
        try:
            decoded = pool.map(lambda path: _to_tensor(transform(path)), paths)
            steps = track(decoded, title, total=len(paths), disable=len(paths) < _WORTH_A_BAR, transient=True)
            for k, pixels in enumerate(steps):
                if len(pixels) != len(first):
                    found = f"{paths[k]} has {len(pixels)} channels but {paths[0]} has {len(first)}"
                    raise ValueError(f"{found}: choose one number for all with dataset.channels=1|2|3|4")
                counts[k] = pixels
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return counts


def _to_tensor(image: Image.Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1)).permute(2, 0, 1)


def _is_deep(image: Image.Image) -> bool:
    # Pillow silently opens 16-bit colour as 8-bit RGB; only the raw mode of its decoder shows it
    return image.mode.startswith(("I", "F")) or any(";16" in str(tile) for tile in getattr(image, "tile", []))


def _own_mode(image: Image.Image) -> str:
    if image.mode == "P":
        return "RGBA" if "transparency" in image.info else "RGB"
    mode = _EQUIVALENT.get(image.mode, image.mode)
    if mode not in MODES.values():
        raise ValueError(f"unsupported pixel format {image.mode}")
    return mode
