"""CelebA at 64 x 64 pixels, decoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData
from blackout.data.images import StrPath, crop_and_resize, load_images, read_image
from blackout.data.torchvision_sets import open_torchvision
from blackout.errors import ensure, refuse
from blackout.files import replacing
from blackout.safe_reading import file_error, reading

SIZE = 64  # pixels of the resized side
CROP = 140  # central pixels of the aligned images
ALIGNED_SIZE = (178, 218)  # width and height of the aligned images


@component("dataset", command_line="dataset=celeba64")
def celeba64(data_dir: StrPath = "data", validation: int | None = None) -> CountData:
    """Read CelebA: 162,770 training, 19,867 validation and 19,962 test faces [3, 64, 64], 8-bit.

    The central 140 x 140 pixels of the aligned 178 x 218 images are resized to 64 with an
    antialiased bilinear filter; the splits are the official ones. Decoding takes minutes, so that
    the result is cached next to the data as `celeba/blackout64_<split>.npy`; after that the images
    are not needed.

    Args:
        data_dir: folder that has `celeba` with `img_align_celeba` and the five `.txt` files.
        validation: how many validation images are used, from the first on; None for all, 0 for
            none.

    Raises:
        UserError: files are absent and cannot be downloaded, or damaged.
        ValueError: a negative number of validation images.

    References: Liu et al. 2015.
    """
    if validation is not None and (type(validation) is not int or validation < 0):
        allowed = "a whole number of at least 0, or null"
        raise ValueError(f"celeba64: validation must be {allowed}, not {validation!r}")
    home = Path(data_dir).expanduser() / "celeba"
    splits = ("train", "test") if validation == 0 else ("train", "valid", "test")
    caches = {split: home / f"blackout{SIZE}_{split}.npy" for split in splits}
    if not all(cache.exists() for cache in caches.values()):
        _decode_splits(Path(data_dir), home, caches)
    images = {split: _load_cache(cache) for split, cache in caches.items()}
    if validation == 0:
        return CountData("celeba64", images["train"], images["test"], 255)
    val = images["valid"][:validation]
    return CountData("celeba64", images["train"], images["test"], 255, val=val)


def _decode_splits(data_dir: Path, home: Path, caches: dict[str, Path]) -> None:
    """Decode the images of every split to its cache."""
    from torchvision.datasets import CelebA  # only here: torchvision is slow to import

    sums: dict[str, str | None] = {name: md5 for _, md5, name in CelebA.file_list}
    del sums["img_align_celeba.zip"]  # only its contents are needed
    sums["img_align_celeba"] = None
    splits = [{"split": split} for split in caches]
    datasets = open_torchvision(CelebA, data_dir, home.name, sums, *splits)
    try:
        # one process of a distributed run decodes, the others wait
        with FileLock(home / ".blackout.lock"):
            for (split, cache), dataset in zip(caches.items(), datasets, strict=True):
                if cache.exists():
                    continue
                files = [home / "img_align_celeba" / name for name in dataset.filename]
                images = load_images(files, _read_face, f"decoding CelebA {split}, once")
                with replacing(cache, durably=True) as part:
                    np.save(part, images.numpy())
    except OSError as error:
        raise file_error(home, "the decoded images cannot be saved here", error) from error


def _read_face(file: Path) -> Image.Image:
    image = read_image(file, "RGB")
    width, height = ALIGNED_SIZE
    message = f"must be {width} x {height} pixels, not {image.width} x {image.height}"
    refuse(image.size != ALIGNED_SIZE, f"{file}: {message}")
    return crop_and_resize(image, SIZE, CROP)


def _load_cache(cache: Path) -> Tensor:
    with reading(cache, "damaged; delete it, and it is made again from the images"):
        # copy-on-write: processes on one machine share the pages, and torch may write to its memory
        images = np.load(cache, mmap_mode="c", allow_pickle=False)
        is_valid = images.dtype == np.uint8 and images.shape[1:] == (3, SIZE, SIZE)
        ensure(is_valid, f"not {SIZE} x {SIZE} RGB images")
        return torch.from_numpy(images)
