"""Datasets of images as counts: a user's folder, MNIST and its like, CIFAR-10, CelebA, scikit-learn's own; cropped,
resized, in black and white.

Images of folders are decoded, turned, cropped and resized. Of torchvision's layout on disk existing files are checked
against the published MD5 sums; torchvision downloads only a dataset that is absent.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from PIL import Image, ImageOps
from rich.progress import track
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData, divided_parts
from blackout.data.count_statistics import CHUNK
from blackout.data.on_disk import packed, stays_on_disk
from blackout.data.splits import split_samples, validation_size
from blackout.errors import UserError, ensure, refuse
from blackout.files import check_size, file_error, opened, reading, replacing, stored_bytes

StrPath = str | os.PathLike[str]
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# modes to which other 8-bit encodings are converted; palettes are handled separately
_EQUIVALENT = {"1": "L", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB", "RGBX": "RGB", "PA": "RGBA"}
_WORTH_A_BAR = 2000  # files
_AT_ONCE = 4096  # files
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision's ImageFolder."""
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF")

# torchvision has the sums of the compressed files only
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_TRAIN_AND_TEST = ({"train": True}, {"train": False})
_PATIENCE = 30.0  # seconds without an answer before a download is given up
VALIDATION = 5000  # validation images that are taken from an official training split, as is usual for CIFAR-10


def square(image: Image.Image, size: int, crop: int | None = None) -> Image.Image:
    """The central `crop` x `crop` pixels, resized to `size` with an antialiased bilinear filter.

    Without `crop` the largest central square is taken.
    """
    side = min(image.size) if crop is None else crop
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # cropped first: the filter of `resize(box=...)` would reach beyond the box
    return image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)


def read_image(path: Path, mode: str | None = None) -> Image.Image:
    """Open an 8-bit image upright (by its EXIF orientation), in `mode` or in its own of `MODES`.

    Bilevel images become grey, palettes become RGB or RGBA, CMYK and the like become RGB.

    Raises:
        UserError: the file cannot be decoded, or has more than 8 bits per channel.
    """
    # formats by name: for some others Pillow starts other programs
    with reading(path, "cannot be read as an image"), opened(path) as file, Image.open(file, formats=_FORMATS) as image:
        check_size(path, 4 * image.width * image.height, stored_bytes(path))
        # Pillow silently opens 16-bit colour as 8-bit RGB; only the raw mode of its decoder shows it
        raw = map(str, getattr(image, "tile", []))
        if image.mode.startswith(("I", "F")) or any(";16" in tile for tile in raw):
            advice = "use dataset=counts, for a folder of .tif files or one .npy array of integers"
            raise UserError(f"{path}: images with more than 8 bits per channel would lose counts here; {advice}")
        image.load()
        upright = ImageOps.exif_transpose(image)
        own = _EQUIVALENT.get(upright.mode, upright.mode)
        if own == "P":
            own = "RGBA" if "transparency" in upright.info else "RGB"
        ensure(own in MODES.values(), f"unsupported pixel format {own}")
        converted = upright.convert(own)
        return converted if mode in (None, own) else converted.convert(mode)


def load_images(paths: Sequence[Path], transform: Callable[[Path], Image.Image], title: str) -> Tensor:
    """Decode images of equal size and mode in threads: uint8 [N, C, H, W], in the order of `paths`.

    Args:
        paths: at least one file.
        transform: path -> 8-bit image, all of one size.
        title: of the progress bar, which appears for many files.

    Raises:
        ValueError: images whose numbers of channels differ; the message names two of the files.
    """
    read = _decoded(paths, transform, title)
    first = next(read)
    counts = torch.empty((len(paths), *first.shape), dtype=torch.uint8)
    for place, pixels in zip(counts, chain([first], read), strict=True):
        place.copy_(pixels)
    return counts


def _decoded(paths: Sequence[Path], transform: Callable[[Path], Image.Image], title: str) -> Iterator[Tensor]:
    """Images [C, H, W] in the order of `paths`; see `load_images`."""
    pool, channels = ThreadPoolExecutor(), 0
    try:
        parts = (paths[k : k + _AT_ONCE] for k in range(0, len(paths), _AT_ONCE))
        images = chain.from_iterable(pool.map(lambda path: _to_tensor(transform(path)), part) for part in parts)
        steps = track(images, title, total=len(paths), disable=len(paths) < _WORTH_A_BAR, transient=True)
        for path, pixels in zip(paths, steps, strict=True):
            if len(pixels) != (channels := channels or len(pixels)):
                found = f"{path} has {len(pixels)} channels but {paths[0]} has {channels}"
                raise ValueError(f"{found}: choose one number for all with dataset.channels=1|2|3|4")
            yield pixels
    finally:
        pool.shutdown(cancel_futures=True)


def _to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image).reshape(image.height, image.width, -1)).permute(2, 0, 1)


@component("dataset", ask="dataset=image_folder dataset.path=<folder>")
def image_folder(
    path: StrPath,
    size: int = 32,
    channels: int | None = None,
    max_count: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
    in_memory: bool | None = None,
    validation: float = 0.1,
) -> CountData:
    """All images below a folder as counts [C, size, size], 0..255.

    Each image is turned upright, cropped to its central square and resized with an antialiased filter. If all images
    are below direct subfolders (at any depth), of which there are at least two, these are their classes, in
    alphabetical order, and every split keeps the mix of classes. Names that begin with a dot are skipped.

    Args:
        path: the folder.
        size: side of the images in pixels.
        channels: 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) to convert to; None for those of the files.
        max_count: largest value that may occur, for images with fewer than 256 grey levels; None is 255.
        holdout: share of the images for the test.
        seed: seed of the split.
        validation: share or number of the images for validation; 0 for none.
        in_memory: whether the images are held in memory; else they are decoded once, to a folder beside theirs, and
            read as they are needed, which gives the same batches. None holds at most 1 GiB, and an
            eighth of the memory left.

    Raises:
        UserError: no such folder, no image in it, or a file that cannot be read as an 8-bit image.
        ValueError: images with different numbers of channels and no `channels`; a value above `max_count`; arguments
            out of range.
    """
    root = Path(path).expanduser()
    ensure(size >= 1, f"image_folder: size must be at least 1, got {size}")
    if channels is not None and channels not in MODES:
        raise ValueError(f"image_folder: channels must be one of {', '.join(map(str, MODES))}, got {channels}")
    largest = 255 if max_count is None else max_count
    ensure(1 <= largest <= 255, f"image_folder: max_count must be between 1 and 255 for 8-bit images, got {largest}")
    files = _image_files(root)
    mode = None if channels is None else MODES[channels]
    title = f"reading {root.name}"

    def transform(file: Path) -> Image.Image:
        image = square(read_image(file, mode), size)
        if (peak := int(np.asarray(image).max())) > largest:
            raise ValueError(f"{file}: the value {peak} is above max_count={largest}")
        return image

    def blocks() -> Iterator[Any]:
        read = _decoded(files, transform, title)
        while block := list(islice(read, _AT_ONCE)):
            yield torch.stack(block).numpy()

    shape = tuple(_to_tensor(transform(files[0])).shape)
    if stays_on_disk((len(files), *shape), 1, in_memory):
        images: Any = packed(root, len(files), shape, ["images", size, channels, largest], blocks)
    else:
        images = load_images(files, transform, title)
    folders = [file.relative_to(root).parts[:-1] for file in files]
    names = sorted({folder[0] for folder in folders if folder})
    labels = torch.tensor([names.index(folder[0]) for folder in folders]) if all(folders) and len(names) > 1 else None
    rows = split_samples(len(files), validation, holdout, seed, labels)
    name = root.resolve().name or "image_folder"
    return CountData(name, max_count=largest, **divided_parts(rows, {"": images, "_labels": labels}))


def read_folder(path: StrPath, shape: tuple[int, ...]) -> Tensor:
    """All images below a folder as they are, uint8 [N, *shape], in the order of their paths.

    Raises:
        UserError: no images, one that cannot be read, or one of another size.
    """
    refuse(len(shape) != 3 or shape[0] not in MODES, f"{path}: a folder of images cannot hold samples of shape {shape}")
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
    refuse(not root.is_dir(), f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    files = [file for file in _walk(root) if file.name.lower().endswith(IMG_EXTENSIONS)]
    if special := [file for file in files if file.exists() and not file.is_file()]:
        raise UserError(f"{special[0]}: not a file")
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    refuse(not visible, f"{root}: no images in this folder (looked for {', '.join(IMG_EXTENSIONS)})")
    return sorted(visible)


def _walk(root: Path) -> Iterator[Path]:
    """Every file below a folder, through links, but no folder twice: a link may lead back."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error

    seen: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True, onerror=refuse):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (Path(folder, name) for name in names)


@component("dataset", passed=("source",))
def mnist(
    data_dir: StrPath = "data", size: int = 28, download: bool = True, validation: float = VALIDATION
) -> CountData:
    """MNIST: 60,000 training and 10,000 test digits [1, 28, 28] (or [1, 32, 32], zero-padded), counts 0..255.

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        size: 28, or 32 for networks that halve the image often.
        download: fetch the files when they are absent.
        validation: number or share of the training images that are validation data in place of training data: the last
            ones; 0 for none.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
        ValueError: another size.
    """
    from torchvision.datasets import MNIST  # torchvision is slow to import: only where it is needed

    return _grey("mnist", MNIST, _MNIST_MD5, data_dir, size, download, validation)


@component("dataset", passed=("source",))
def fashion_mnist(
    data_dir: StrPath = "data", size: int = 28, download: bool = True, validation: float = VALIDATION
) -> CountData:
    """Fashion-MNIST: 60,000 training and 10,000 test images [1, 28, 28] (or [1, 32, 32]), grey, counts 0..255.

    Arguments and errors as for `mnist`; the folder is `FashionMNIST/raw`. There are no published sums of the unpacked
    files, so only their structure is checked.
    """
    from torchvision.datasets import FashionMNIST

    return _grey("fashion_mnist", FashionMNIST, dict.fromkeys(_MNIST_MD5), data_dir, size, download, validation)


@component("dataset")
def binarized_mnist(
    data_dir: StrPath = "data", download: bool = True, validation: float = VALIDATION
) -> CountData:
    """MNIST with the counts 0 and 1: [1, 32, 32], 1 where the resized image exceeds 127.5.

    Images are resized from 28 to 32 pixels by antialiased bilinear interpolation in float32 and then thresholded, as in
    [Santos 2023, appendix H].

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        download: fetch the files when they are absent.
        validation: number or share of the training images for validation, see `mnist`.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
    """
    grey = mnist(data_dir, download=download, validation=0)
    train, test = _binarize(grey.train[:]), _binarize(grey.test[:])
    return _official("binarized_mnist", (train, test), (grey.train_labels, grey.test_labels), 1, validation)


@component("dataset")
def cifar10(data_dir: StrPath = "data", download: bool = True, validation: float = VALIDATION) -> CountData:
    """CIFAR-10: 50,000 training and 10,000 test images [3, 32, 32], counts 0..255, ten classes.

    Args:
        data_dir: folder that has, or will have, `cifar-10-batches-py`.
        download: fetch the files when they are absent.
        validation: number or share of the training images for validation, see `mnist`.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
    """
    from torchvision.datasets import CIFAR10

    sums = dict([*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])])
    # torchvision unpickles these files, which is safe because their sums are checked first
    splits = open_torchvision(CIFAR10, Path(data_dir), CIFAR10.base_folder, sums, *_TRAIN_AND_TEST, download=download)
    images = [torch.from_numpy(split.data).permute(0, 3, 1, 2) for split in splits]
    labels = [torch.tensor(split.targets) for split in splits]
    return _official("cifar10", (images[0], images[1]), (labels[0], labels[1]), 255, validation)


def _official(
    name: str, images: tuple[Tensor, Tensor], labels: tuple[Any, Any], max_count: int, validation: float
) -> CountData:
    """A dataset with its official test split, and the last training images as validation data.

    Args:
        name: of the dataset.
        images: counts [N, C, H, W] of the official training and test splits.
        labels: their classes, int64 [N].
        max_count: the largest count.
        validation: number or share of the N training images.
    """
    total = len(images[0])
    number = total - validation_size(validation, total)
    return CountData(
        name,
        train=images[0][:number],
        val=images[0][number:],
        test=images[1],
        max_count=max_count,
        train_labels=labels[0][:number],
        val_labels=labels[0][number:],
        test_labels=labels[1],
        val_rows=torch.arange(number, total),
    )


def open_torchvision(
    dataset: type[Any],
    data_dir: Path,
    folder: str,
    sums: Mapping[str, str | None],
    *splits: dict[str, Any],
    download: bool = True,
) -> list[Any]:
    """Open splits of a torchvision dataset, downloading it only if it is absent.

    Args:
        dataset: torchvision's class.
        data_dir: its `root`.
        folder: where its files are, below `data_dir`.
        sums: the files it needs there and their MD5 sums (None: not published).
        splits: for each split, the keyword arguments that select it.
        download: False refuses a dataset that is absent.

    Raises:
        UserError: a damaged file, or a dataset that is absent and cannot or may not be downloaded.
    """
    root = data_dir.expanduser()
    home = root / folder
    for name, expected in sums.items():
        if expected is not None and (file := home / name).exists():
            with reading(file, "cannot be read"), opened(file) as stream:
                md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            refuse(md5 != expected, f"{file}: damaged (MD5 {md5}, not {expected}); delete it or put a good copy there")
    with reading(home, "a file of this dataset is damaged"):
        missing = ", ".join(name for name in sums if not (home / name).exists())
        advice = "give dataset=... or metrics=... on the command line, or data_dir=... where the files are"
        absent = f"{home}: {missing} missing; what a model file chose is not downloaded: {advice}"
        refuse(missing and not download, absent)
        if missing:
            _download(dataset, root, splits[0], home, sums)
        return [dataset(root=root, download=False, **split) for split in splits]


def _download(dataset: type[Any], root: Path, split: dict[str, Any], home: Path, sums: Mapping[str, Any]) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # one process of a distributed run downloads, the others wait and find the files
        with FileLock(root / f".{dataset.__name__}.lock"):
            dataset(root=root, download=True, **split)
    except Exception as error:  # network, disk, a missing downloader: the advice is the same
        missing = ", ".join(name for name in sums if not (home / name).exists())
        raise file_error(home, f"put {missing} there; downloading failed", error) from error
    finally:
        socket.setdefaulttimeout(before)


def _grey(
    name: str,
    dataset: type[Any],
    sums: Mapping[str, str | None],
    data_dir: StrPath,
    size: int,
    download: bool,
    validation: float,
) -> CountData:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    ensure(size in (28, 32), f"{name}: size must be 28, or 32 with zero padding, got {size}")
    folder = f"{dataset.__name__}/raw"
    home = Path(data_dir).expanduser() / folder
    for file in filter(Path.exists, map(home.joinpath, sums)):
        with reading(file, "damaged; delete it or put a good copy there"), opened(file):
            found = (read_image_file if "images" in file.name else read_label_file)(str(file))
            ensure(found.shape[1:] in ((), (28, 28)), "its images are not of 28 x 28 pixels")
    splits = open_torchvision(dataset, Path(data_dir), folder, sums, *_TRAIN_AND_TEST, download=download)
    train, test = (F.pad(split.data[:, None], [(size - 28) // 2] * 4) for split in splits)
    return _official(name, (train, test), (splits[0].targets, splits[1].targets), 255, validation)


def _binarize(images: Tensor) -> Tensor:
    """[N, 1, 28, 28] grey -> [N, 1, 32, 32] of 0 and 1 [Santos 2023, appendix H]."""
    enlarged = (F.interpolate(x.float(), size=(32, 32), mode="bilinear", antialias=True) for x in images.split(CHUNK))
    return torch.cat([x > 127.5 for x in enlarged]).to(torch.uint8)


@component("dataset", ask="dataset=celeba64")
def celeba64(data_dir: StrPath = "data", validation: int | None = None) -> CountData:
    """CelebA: 162,770 training, 19,867 validation and 19,962 test faces [3, 64, 64], counts 0..255.

    The central 140 x 140 pixels of the aligned 178 x 218 images, resized to 64 with an antialiased bilinear filter;
    the official splits. Decoding takes minutes, so the result is cached beside the data as
    `celeba/blackout64_<split>.npy`, after which the images are not needed.

    Args:
        data_dir: folder that has `celeba` with `img_align_celeba` and the five `.txt` files.
        validation: how many of the validation images are used, from the first on; None for all, 0 for none.

    Raises:
        UserError: files absent and not downloadable, or damaged.
        ValueError: a negative number of validation images.
    """
    if validation is not None and (type(validation) is not int or validation < 0):
        raise ValueError(f"celeba64: validation must be a whole number of at least 0, or null, not {validation!r}")
    home = Path(data_dir).expanduser() / "celeba"
    splits = ("train", "test") if validation == 0 else ("train", "valid", "test")
    caches = {split: home / f"blackout64_{split}.npy" for split in splits}
    if not all(cache.exists() for cache in caches.values()):
        from torchvision.datasets import CelebA

        sums: dict[str, str | None] = {name: md5 for _, md5, name in CelebA.file_list}
        del sums["img_align_celeba.zip"]  # only its contents are needed
        sums["img_align_celeba"] = None
        faces = open_torchvision(CelebA, Path(data_dir), home.name, sums, *({"split": split} for split in caches))
        try:
            # one process of a distributed run decodes, the others wait
            with FileLock(home / ".blackout.lock"):
                for (split, cache), dataset in zip(caches.items(), faces, strict=True):
                    if not cache.exists():
                        files = [home / "img_align_celeba" / name for name in dataset.filename]
                        images = load_images(files, _face, f"decoding CelebA {split}, once")
                        with replacing(cache, durably=True) as part:
                            np.save(part, images.numpy())
        except OSError as error:
            raise file_error(home, "the decoded images cannot be kept here", error) from error
    parts = {split: _load(cache) for split, cache in caches.items()}
    if "valid" not in parts:
        return CountData("celeba64", parts["train"], parts["test"], 255)
    return CountData("celeba64", parts["train"], parts["test"], 255, val=parts["valid"][:validation])


def _face(file: Path) -> Image.Image:
    image = read_image(file, "RGB")
    refuse(image.size != (178, 218), f"{file}: must be 178 x 218 pixels, got {image.width} x {image.height}")
    return square(image, 64, 140)


def _load(cache: Path) -> Tensor:
    with reading(cache, "damaged; delete it, and it is made again from the images"):
        # copy-on-write: processes on one machine share the pages, and torch gets memory that it may write
        images = np.load(cache, mmap_mode="c", allow_pickle=False)
        ensure(images.dtype == np.uint8 and images.shape[1:] == (3, 64, 64), "not 64 x 64 RGB images")
        return torch.from_numpy(images)


@component("dataset", passed=("source",))
def digits(holdout: float = 0.2, seed: int = 0, validation: float = 0.1) -> CountData:
    """Handwritten digits, 1,797 images [1, 8, 8] with counts 0..16 and ten classes.

    Each value is the number of ink pixels in a 4x4 block of a 32x32 scan. All splits have the same mix of classes.

    Args:
        holdout: share of the images for the test.
        seed: seed of the split.
        validation: share or number of the images for validation; 0 for none.

    Raises:
        ValueError: shares out of range.
    """
    # what scikit-learn's `load_digits` reads, too, which takes a second to import
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), np.int64, delimiter=",")
    images = rows[:, :-1].reshape(-1, 8, 8)
    return CountData.from_array(images, rows[:, -1], 16, holdout, seed, "digits", validation)


@component("dataset")
def patches(size: int = 32, stride: int = 8, holdout: float = 0.2, validation: float = 0.1) -> CountData:
    """Crops of two colour photographs (a temple and a flower, 427 x 640): 8-bit RGB images [3, size, size].

    Test crops are from the right-hand `holdout` of each photograph's width, validation crops from the `validation` of
    the width to the left of it, and training crops from the rest, so that no pixel is in two splits. Crops lie on a
    grid of `stride` pixels within each part, from the top left; the defaults make 5,300 training, 500 validation and
    1,300 test images. The label is the photograph.

    Args:
        size: side of a crop in pixels.
        stride: pixels between neighbouring crops; 1 gives every crop there is.
        holdout: share of the width for test crops.
        validation: share of the width for validation crops; 0 for none.

    Raises:
        ValueError: crops that do not fit into their part of the photographs, or values out of range.
    """
    from sklearn.datasets import load_sample_images  # slow to import

    ensure(size >= 1 and stride >= 1, f"patches: size and stride must be at least 1, got size={size}, stride={stride}")
    ensure(0 < holdout < 1, f"patches: holdout must be a share between 0 and 1 (both excluded), got {holdout}")
    left = f"a share from 0 on that leaves some of the width beside holdout={holdout}"
    ensure(0 <= validation < 1 - holdout, f"patches: validation must be {left}, got {validation}")
    photographs = [torch.from_numpy(image.copy()).permute(2, 0, 1) for image in load_sample_images().images]
    _, height, width = photographs[0].shape
    test_from = width - round(holdout * width)
    val_from = test_from - round(validation * width)
    columns = {"train": slice(val_from), "val": slice(val_from, test_from), "test": slice(test_from, width)}
    if val_from == test_from:
        del columns["val"]
    largest = min(height, *(part.stop - (part.start or 0) for part in columns.values()))
    shares = f"holdout={holdout} and validation={validation}"
    ensure(size <= largest, f"patches: size must be at most {largest} with {shares}, got {size}")
    parts: dict[str, Any] = {}
    for split, part in columns.items():
        crops = [_crops(photograph[:, :, part], size, stride) for photograph in photographs]
        parts[split] = torch.cat(crops)
        parts[f"{split}_labels"] = torch.arange(2).repeat_interleave(len(crops[0]))
    return CountData("patches", max_count=255, **parts)


def _crops(image: Tensor, size: int, stride: int) -> Tensor:
    """All crops of an image [C, H, W] on a grid: [N, C, size, size], row by row."""
    windows = image.unfold(1, size, stride).unfold(2, size, stride)
    return windows.permute(1, 2, 0, 3, 4).reshape(-1, image.shape[0], size, size)
