"""MNIST, Fashion-MNIST and CIFAR-10 in torchvision's layout on disk.

Files that exist are checked against the published MD5 sums. torchvision downloads a data set only
if it is absent.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor

from blackout.component import component
from blackout.data.count_data import CountData
from blackout.data.count_statistics import CHUNK_SAMPLES
from blackout.data.images import StrPath
from blackout.data.splits import validation_size
from blackout.errors import ensure, refuse
from blackout.safe_reading import file_error, open_regular, reading

# of the unpacked files; torchvision has the sums of the compressed files only
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
TRAIN_AND_TEST = ({"train": True}, {"train": False})  # torchvision's arguments for each split
DOWNLOAD_TIMEOUT = 30.0  # seconds without an answer before a download is given up
NUM_VALIDATION = 5000  # images of an official training split, as is usual for CIFAR-10
BINARY_THRESHOLD = 127.5  # pixels above are 1 (Santos et al. 2023, appendix H)


@component("dataset", partial_for=("source",))
def mnist(
    data_dir: StrPath = "data",
    size: int = 28,
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> CountData:
    """Read MNIST: 60,000 training and 10,000 test digits [1, 28, 28], counts 0, ..., 255.

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        size: 28, or 32 (zero-padded) for networks that halve the image often.
        download: fetch the files when they are absent.
        validation: number or fraction of the training images that are used for validation instead,
            the last ones; 0 for none.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.
        ValueError: another size.

    References: LeCun et al. 1998.

    Example:
        >>> mnist("data").shape  # doctest: +SKIP
        (1, 28, 28)
    """
    from torchvision.datasets import MNIST  # only here: torchvision is slow to import

    return _read_mnist("mnist", MNIST, MNIST_MD5, data_dir, size, download, validation)


@component("dataset", partial_for=("source",))
def fashion_mnist(
    data_dir: StrPath = "data",
    size: int = 28,
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> CountData:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images [1, 28, 28], counts 0, ..., 255.

    Arguments and errors are those of `mnist`; the folder is `FashionMNIST/raw`. There are no
    published sums of the unpacked files, so that only their structure is checked.

    References: Xiao et al. 2017.

    Example:
        >>> fashion_mnist("data").shape  # doctest: +SKIP
        (1, 28, 28)
    """
    from torchvision.datasets import FashionMNIST  # only here: torchvision is slow to import

    sums = dict.fromkeys(MNIST_MD5)
    return _read_mnist("fashion_mnist", FashionMNIST, sums, data_dir, size, download, validation)


@component("dataset")
def binarized_mnist(
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> CountData:
    """Read MNIST with the counts 0 and 1, [1, 32, 32].

    Images are resized from 28 to 32 pixels by antialiased bilinear interpolation in float32; pixels
    above 127.5 are 1.

    Args:
        data_dir: folder that has, or will have, `MNIST/raw`.
        download: fetch the files when they are absent.
        validation: number or fraction of the training images for validation, see `mnist`.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.

    References: Santos et al. 2023, appendix H.

    Example:
        >>> binarized_mnist("data").max_count  # doctest: +SKIP
        1
    """
    grey = mnist(data_dir, download=download, validation=0)
    images = (binarize(grey.train[:]), binarize(grey.test[:]))
    labels = (grey.train_labels, grey.test_labels)
    return _with_validation("binarized_mnist", images, labels, 1, validation)


@component("dataset")
def cifar10(
    data_dir: StrPath = "data",
    download: bool = True,
    validation: float = NUM_VALIDATION,
) -> CountData:
    """Read CIFAR-10: 50,000 training and 10,000 test images [3, 32, 32], counts 0, ..., 255.

    Args:
        data_dir: folder that has, or will have, `cifar-10-batches-py`.
        download: fetch the files when they are absent.
        validation: number or fraction of the training images for validation, see `mnist`.

    Raises:
        UserError: the files are absent and cannot be downloaded, or one of them is damaged.

    References: Krizhevsky 2009.

    Example:
        >>> cifar10("data").shape  # doctest: +SKIP
        (3, 32, 32)
    """
    from torchvision.datasets import CIFAR10  # only here: torchvision is slow to import

    sums: dict[str, str | None] = dict([*CIFAR10.train_list, *CIFAR10.test_list])
    sums[CIFAR10.meta["filename"]] = CIFAR10.meta["md5"]
    # torchvision unpickles these files, which is safe because their sums are checked first
    train, test = open_torchvision(
        CIFAR10, Path(data_dir), CIFAR10.base_folder, sums, *TRAIN_AND_TEST, download=download
    )
    train_images = torch.from_numpy(train.data).permute(0, 3, 1, 2)
    test_images = torch.from_numpy(test.data).permute(0, 3, 1, 2)
    labels = (torch.tensor(train.targets), torch.tensor(test.targets))
    return _with_validation("cifar10", (train_images, test_images), labels, 255, validation)


def open_torchvision(
    dataset: type[Any],
    data_dir: Path,
    folder: str,
    sums: Mapping[str, str | None],
    *splits: dict[str, Any],
    download: bool = True,
) -> list[Any]:
    """Open splits of a torchvision data set, and download it only if it is absent.

    Args:
        dataset: torchvision's class.
        data_dir: its `root`.
        folder: of its files, below `data_dir`.
        sums: MD5 sums by name of the file; None where they are not published.
        splits: for each split, the keyword arguments that select it.
        download: False refuses a data set that is absent.

    Raises:
        UserError: a damaged file, or a data set that is absent and cannot or may not be downloaded.
    """
    root = data_dir.expanduser()
    home = root / folder
    for name, expected in sums.items():
        file = home / name
        if expected is not None and file.exists():
            _check_md5(file, expected)
    with reading(home, "a file of this dataset is damaged"):
        missing = ", ".join(name for name in sums if not (home / name).exists())
        if missing:
            message = f"{missing} missing; a data set that a model file names is not downloaded"
            advice = "give dataset=... or metrics=..., or data_dir=... where the files are"
            refuse(not download, f"{home}: {message}: {advice}")
            _download(dataset, root, splits[0], home, sums)
        return [dataset(root=root, download=False, **split) for split in splits]


def binarize(images: Tensor) -> Tensor:
    """Convert grey images [N, 1, 28, 28] to 0 and 1, uint8 [N, 1, 32, 32].

    References: Santos et al. 2023, appendix H.

    Example:
        >>> binarize(torch.full((2, 1, 28, 28), 200)).unique().tolist()
        [1]
    """
    chunks = []
    for chunk in images.split(CHUNK_SAMPLES):
        resized = F.interpolate(chunk.float(), size=(32, 32), mode="bilinear", antialias=True)
        chunks.append(resized > BINARY_THRESHOLD)
    return torch.cat(chunks).to(torch.uint8)


def _read_mnist(
    name: str,
    dataset: type[Any],
    sums: Mapping[str, str | None],
    data_dir: StrPath,
    size: int,
    download: bool,
    validation: float,
) -> CountData:
    """Read a data set with the format of MNIST; see `mnist` and `open_torchvision`."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    ensure(size in (28, 32), f"{name}: size must be 28, or 32 with zero padding, not {size}")
    folder = f"{dataset.__name__}/raw"
    home = Path(data_dir).expanduser() / folder
    for file_name in sums:
        file = home / file_name
        if not file.exists():
            continue
        with reading(file, "damaged; delete it or put a good copy there"), open_regular(file):
            read = read_image_file if "images" in file_name else read_label_file
            content = read(str(file))
            ensure(content.shape[1:] in ((), (28, 28)), "its images are not of 28 x 28 pixels")
    train, test = open_torchvision(
        dataset,
        Path(data_dir),
        folder,
        sums,
        *TRAIN_AND_TEST,
        download=download,
    )
    padding = [(size - 28) // 2] * 4
    images = (F.pad(train.data[:, None], padding), F.pad(test.data[:, None], padding))
    return _with_validation(name, images, (train.targets, test.targets), 255, validation)


def _with_validation(
    name: str,
    images: tuple[Tensor, Tensor],
    labels: tuple[Any, Any],
    max_count: int,
    validation: float,
) -> CountData:
    """Make a data set with its official test split, and the last training images for validation.

    Args:
        name: of the data set.
        images: counts [N, C, H, W] of the official training and test splits.
        labels: their classes, int64 [N].
        max_count: the largest count.
        validation: number or fraction of the N training images.
    """
    train_images, test_images = images
    train_labels, test_labels = labels
    total = len(train_images)
    num_train = total - validation_size(validation, total)
    return CountData(
        name,
        train=train_images[:num_train],
        val=train_images[num_train:],
        test=test_images,
        max_count=max_count,
        train_labels=train_labels[:num_train],
        val_labels=train_labels[num_train:],
        test_labels=test_labels,
        val_rows=torch.arange(num_train, total),
    )


def _check_md5(file: Path, expected: str) -> None:
    with reading(file, "cannot be read"), open_regular(file) as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
        md5 = digest.hexdigest()
    advice = "delete it or put a good copy there"
    refuse(md5 != expected, f"{file}: damaged (MD5 {md5}, not {expected}); {advice}")


def _download(
    dataset: type[Any],
    root: Path,
    split: dict[str, Any],
    home: Path,
    sums: Mapping[str, Any],
) -> None:
    """Download a data set by torchvision; errors say which files to put where."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        root.mkdir(parents=True, exist_ok=True)
        # one process of a distributed run downloads; the others wait and find the files
        with FileLock(root / f".{dataset.__name__}.lock"):
            dataset(root=root, download=True, **split)
    except Exception as error:  # network, disk, a missing downloader: the advice is the same
        missing = ", ".join(name for name in sums if not (home / name).exists())
        raise file_error(home, f"put {missing} there; downloading failed", error) from error
    finally:
        socket.setdefaulttimeout(timeout)
