"""CelebA at 64 x 64, decoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from blackout.data.arrays import CountData
from blackout.data.file_errors import file_error
from blackout.data.images import load_images, read_image, square
from blackout.data.torchvision_sets import StrPath, open_torchvision
from blackout.errors import UserError
from blackout.files import replacing

_HOME, _CROP, _SIZE = "celeba", 140, 64


def celeba64(data_dir: StrPath = "data") -> CountData:
    """CelebA: 162,770 training and 19,962 test faces [3, 64, 64], counts 0..255.

    The central 140 x 140 pixels of the aligned 178 x 218 images, resized to 64 with an antialiased bilinear filter;
    torchvision's `train` and `test` splits. Decoding takes minutes, so the result is cached beside the data as
    `celeba/blackout64_<split>.npy`, after which the images are not needed.

    Args:
        data_dir: folder that has `celeba` with `img_align_celeba` and the five `.txt` files.

    Raises:
        UserError: files absent and not downloadable, or damaged.
    """
    home = Path(data_dir).expanduser() / _HOME
    caches = {split: home / f"blackout{_SIZE}_{split}.npy" for split in ("train", "test")}
    if not all(cache.exists() for cache in caches.values()):
        faces = _open(Path(data_dir), list(caches))
        try:
            # one process of a distributed run decodes, the others wait
            with FileLock(home / ".blackout.lock"):
                for split, cache in caches.items():
                    if not cache.exists():
                        images = _decode(home / "img_align_celeba", faces[split], split)
                        with replacing(cache, durably=True) as part:
                            np.save(part, images.numpy())
        except OSError as error:
            raise file_error(home, "the decoded images cannot be kept here", error) from error
    return CountData("celeba64", _load(caches["train"]), _load(caches["test"]), 255)


def _open(data_dir: Path, splits: list[str]) -> dict[str, list[str]]:
    """File names of the images of each split."""
    from torchvision.datasets import CelebA

    sums: dict[str, str | None] = {name: md5 for _, md5, name in CelebA.file_list}
    del sums["img_align_celeba.zip"]  # only its contents are needed
    sums["img_align_celeba"] = None
    which = [{"split": split} for split in splits]
    opened = open_torchvision(CelebA, data_dir, _HOME, sums, *which)
    return {split: dataset.filename for split, dataset in zip(splits, opened, strict=True)}


def _decode(folder: Path, names: list[str], split: str) -> Tensor:
    def face(file: Path) -> Image.Image:
        image = read_image(file, "RGB")
        if image.size != (178, 218):
            raise UserError(f"{file}: must be 178 x 218 pixels, got {image.width} x {image.height}")
        return square(image, _SIZE, _CROP)

    return load_images([folder / name for name in names], face, f"decoding CelebA {split}, once")


def _load(cache: Path) -> Tensor:
    try:
        # copy-on-write: processes on one machine share the pages, and torch gets memory that it may write
        images = np.load(cache, mmap_mode="c", allow_pickle=False)
    except Exception as error:
        raise file_error(cache, "damaged; delete it, and it is made again from the images", error) from error
    if images.dtype != np.uint8 or images.shape[1:] != (3, _SIZE, _SIZE):
        raise UserError(f"{cache}: not {_SIZE} x {_SIZE} RGB images; delete it, and it is made again from the images")
    return torch.from_numpy(images)
