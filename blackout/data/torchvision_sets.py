"""Standard image datasets in torchvision's layout on disk.

Existing files are checked against the published MD5 sums; torchvision downloads only a dataset that is absent.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CHUNK, CountData
from blackout.errors import ensure, refuse
from blackout.files import file_error, opened, reading

StrPath = str | os.PathLike[str]

# torchvision has the sums of the compressed files only
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_TRAIN_AND_TEST = ({"train": True}, {"train": False})
_PATIENCE = 30.0  # seconds without an answer before a download is given up


@component("dataset", passed=("source",))
def mnist(data_dir: StrPath = "data", size: int = 28, download: bool = True) -> CountData:
    """MNIST: 60,000 + 10,000 grey digits [1, 28, 28] (or [1, 32, 32], zero-padded), counts 0..255.

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        size: 28, or 32 for networks that halve the image often.
        download: fetch the files when they are absent.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
        ValueError: another size.
    """
    from torchvision.datasets import MNIST  # torchvision is slow to import: only where it is needed

    return _grey("mnist", MNIST, _MNIST_MD5, data_dir, size, download)


@component("dataset", passed=("source",))
def fashion_mnist(data_dir: StrPath = "data", size: int = 28, download: bool = True) -> CountData:
    """Fashion-MNIST: 60,000 + 10,000 grey images [1, 28, 28] (or [1, 32, 32]), counts 0..255.

    Arguments and errors as for `mnist`; the folder is `FashionMNIST/raw`. There are no published sums of the unpacked
    files, so only their structure is checked.
    """
    from torchvision.datasets import FashionMNIST

    return _grey("fashion_mnist", FashionMNIST, dict.fromkeys(_MNIST_MD5), data_dir, size, download)


@component("dataset")
def binarized_mnist(data_dir: StrPath = "data", download: bool = True) -> CountData:
    """MNIST with the counts 0 and 1: [1, 32, 32], 1 where the resized image exceeds 127.5.

    Images are resized from 28 to 32 pixels by antialiased bilinear interpolation in float32 and then thresholded, as in
    [Santos 2023, appendix H].

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        download: fetch the files when they are absent.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
    """
    grey = mnist(data_dir, download=download)
    train, test = _binarize(grey.train[:]), _binarize(grey.test[:])
    return CountData("binarized_mnist", train, test, 1, grey.train_labels, grey.test_labels)


@component("dataset")
def cifar10(data_dir: StrPath = "data", download: bool = True) -> CountData:
    """CIFAR-10: 50,000 + 10,000 colour images [3, 32, 32], counts 0..255, ten classes.

    Args:
        data_dir: folder that has, or will have, `cifar-10-batches-py`.
        download: fetch the files when they are absent.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
    """
    from torchvision.datasets import CIFAR10

    sums = dict([*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])])
    # torchvision unpickles these files, which is safe because their sums are checked first
    splits = open_torchvision(CIFAR10, Path(data_dir), CIFAR10.base_folder, sums, *_TRAIN_AND_TEST, download=download)
    images = [torch.from_numpy(split.data).permute(0, 3, 1, 2) for split in splits]
    labels = [torch.tensor(split.targets) for split in splits]
    return CountData("cifar10", images[0], images[1], 255, labels[0], labels[1])


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
    name: str, dataset: type[Any], sums: Mapping[str, str | None], data_dir: StrPath, size: int, download: bool
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
    images = [F.pad(split.data[:, None], [(size - 28) // 2] * 4) for split in splits]
    return CountData(name, images[0], images[1], 255, splits[0].targets, splits[1].targets)


def _binarize(images: Tensor) -> Tensor:
    """[N, 1, 28, 28] grey -> [N, 1, 32, 32] of 0 and 1."""
    enlarged = (F.interpolate(x.float(), size=(32, 32), mode="bilinear", antialias=True) for x in images.split(CHUNK))
    return torch.cat([x > 127.5 for x in enlarged]).to(torch.uint8)
