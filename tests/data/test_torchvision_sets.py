from __future__ import annotations

import pickle
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from blackout.data import binarized_mnist, cifar10, fashion_mnist, mnist
from blackout.data.torchvision_sets import binarize
from blackout.errors import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_idx(path: Path, array: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    path.write_bytes(header + array.to(torch.uint8).numpy().tobytes())


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """A folder with a tiny Fashion-MNIST."""
    raw = tmp_path / "FashionMNIST/raw"
    for part, count in (("train", 6), ("t10k", 3)):
        write_idx(
            raw / f"{part}-images-idx3-ubyte", torch.arange(count * 784).view(count, 28, 28) % 251
        )
        write_idx(raw / f"{part}-labels-idx1-ubyte", torch.arange(count))
    return tmp_path


def test_fashion_mnist(fashion: Path) -> None:
    data = fashion_mnist(fashion, validation=0)
    assert (data.train.shape, data.test.shape, data.train.dtype) == (
        (6, 1, 28, 28),
        (3, 1, 28, 28),
        torch.uint8,
    )
    assert data.train_labels is not None and data.train_labels.tolist() == list(range(6))
    padded = fashion_mnist(fashion, size=32, validation=0)
    assert torch.equal(padded.train[..., 2:30, 2:30], data.train)
    assert padded.train.sum() == data.train.sum()
    with pytest.raises(ValueError, match="size must be 28, or 32"):
        fashion_mnist(fashion, size=64)


@pytest.mark.parametrize(("validation", "number"), [(2, 2), (0.34, 2), (0.01, 1), (0, 0)])
def test_the_last_training_images_are_validation_data(
    fashion: Path, validation: float, number: int
) -> None:
    official = fashion_mnist(fashion, validation=0)
    data = fashion_mnist(fashion, validation=validation)
    assert (
        torch.equal(torch.cat([data.train, data.val]), official.train) and len(data.val) == number
    )
    assert data.train_labels is not None and data.val_labels is not None
    assert [*data.train_labels.tolist(), *data.val_labels.tolist()] == list(range(6))
    assert data.fingerprint("test") == official.fingerprint("test")
    assert data.merge_validation().fingerprint("train") == official.fingerprint("train")
    # views of the official images: nothing is copied
    assert (
        not number
        or data.train.untyped_storage().data_ptr() == data.val.untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("validation", [6, 5000, -1, 1.5, True, None])
def test_impossible_validation_data_are_refused(fashion: Path, validation: Any) -> None:
    with pytest.raises(ValueError, match=r"fraction below 1, or a whole number of samples below 6"):
        fashion_mnist(fashion, validation=validation)


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("damage", ["empty", "cut", "long", "header"])
def test_damaged_files_are_named(fashion: Path, file: str, damage: str) -> None:
    path = fashion / "FashionMNIST/raw" / file
    content = path.read_bytes()
    changed = {
        "empty": b"",
        "cut": content[:-1],
        "long": content + b"\0",
        "header": b"\0\0\x09" + content[3:],
    }
    path.write_bytes(changed[damage])
    with pytest.raises(UserError, match=rf"{file}: damaged; delete it"):
        fashion_mnist(fashion)


def test_other_files_of_the_folder_stay(fashion: Path) -> None:
    (fashion / "FashionMNIST/raw/other-images-idx3-ubyte").write_bytes(b"")
    assert len(fashion_mnist(fashion, validation=1).train) == 5


def test_files_of_two_sets_are_refused(fashion: Path) -> None:
    write_idx(fashion / "FashionMNIST/raw/t10k-labels-idx1-ubyte", torch.arange(5))
    with pytest.raises(
        ValueError,
        match=r"fashion_mnist test labels must be one per sample, \[3\], not \[5\]",
    ):
        fashion_mnist(fashion, validation=1)


@pytest.mark.parametrize(
    ("source", "file"), [(mnist, "t10k-labels-idx1-ubyte"), (cifar10, "data_batch_3")]
)
def test_a_missing_data_set_names_its_files_and_folder(
    tmp_path: Path, source: Any, file: str
) -> None:
    with pytest.raises(
        UserError, match=rf"put .*{file}.* there; downloading failed \(.*no network in tests"
    ) as error:
        source(tmp_path)
    assert "\n" not in str(error.value)
    assert socket.getdefaulttimeout() is None


def test_only_missing_files_are_named(fashion: Path) -> None:
    (fashion / "FashionMNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="raw: put t10k-labels-idx1-ubyte there"):
        fashion_mnist(fashion)


@pytest.mark.parametrize(
    ("source", "file"), [(mnist, "MNIST/raw/x"), (cifar10, "cifar-10-batches-py/x")]
)
def test_an_unusable_data_dir_is_one_line(tmp_path: Path, source: Any, file: str) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="downloading failed"):
        source(tmp_path / "data")


@pytest.mark.parametrize(
    ("source", "file"), [(mnist, "MNIST/raw/train-labels-idx1-ubyte"), (cifar10, "test_batch")]
)
def test_a_wrong_sum_is_refused_before_the_file_is_parsed(
    tmp_path: Path, source: Any, file: str
) -> None:
    path = tmp_path / ("cifar-10-batches-py/test_batch" if source is cifar10 else file)
    write_idx(path, torch.arange(7))
    with pytest.raises(
        UserError, match=rf"{file}: damaged \(MD5 [0-9a-f]{{32}}, not [0-9a-f]{{32}}\)"
    ):
        source(tmp_path)


def test_binarization_is_a_threshold_of_the_enlarged_image() -> None:
    step = torch.zeros(5000, 1, 28, 28, dtype=torch.uint8)
    step[..., 14:] = 255
    bits = binarize(step)
    assert (bits.shape, bits.dtype) == ((5000, 1, 32, 32), torch.uint8)
    assert (bits[..., :16] == 0).all() and (bits[..., 16:] == 1).all()
    grey = torch.full((1, 1, 28, 28), 127, dtype=torch.uint8)
    assert (binarize(grey) == 0).all() and (binarize(grey + 1) == 1).all()


# --- with the real files, where there are any


def test_real_mnist(real_data: Path) -> None:
    data = mnist(real_data, size=32, validation=0)
    bits = binarized_mnist(real_data, validation=0)
    assert (data.train.shape, data.test.shape) == ((60000, 1, 32, 32), (10000, 1, 32, 32))
    assert data.train.sum().item() == pytest.approx(33.3184 * 60000 * 28 * 28, rel=1e-5)
    assert (data.max_count, data.num_classes) == (255, 10)
    assert (bits.train.shape, bits.max_count, bits.num_classes) == ((60000, 1, 32, 32), 1, 10)
    assert bits.train.max() == 1
    assert bits.train.sum() / bits.train.numel() == pytest.approx(0.13, abs=0.005)


def test_real_cifar10(real_data: Path) -> None:
    data = cifar10(real_data, validation=0)
    assert (data.train.shape, data.test.shape) == ((50000, 3, 32, 32), (10000, 3, 32, 32))
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 255, 10)
    assert (data.train.sum((0, 2, 3)) / (50000 * 32 * 32)).tolist() == pytest.approx(
        [125.31, 122.95, 113.87], abs=0.01
    )
    raw = pickle.loads(
        (real_data / "cifar-10-batches-py/test_batch").read_bytes(), encoding="latin1"
    )
    assert torch.equal(data.test[7].flatten(), torch.from_numpy(raw["data"][7]))
    assert data.test_labels is not None and data.test_labels.tolist() == raw["labels"]


def test_a_flipped_bit_in_a_real_file_is_found(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "MNIST", tmp_path / "MNIST")
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[10_000_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="train-images-idx3-ubyte: damaged"):
        mnist(tmp_path)
