"""CelebA: crops, caches, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CelebA

import blackout.data.celeba
from blackout.data import celeba64
from blackout.errors import UserError


@pytest.fixture
def faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CelebA of seven faces: 3 for training, 2 validation, 2 test; face k has brightness 36 k."""
    home = tmp_path / "celeba"
    (home / "img_align_celeba").mkdir(parents=True)
    names = [f"{k:06}.jpg" for k in range(1, 8)]
    for k, name in enumerate(names, 1):
        Image.fromarray(np.full((218, 178, 3), 36 * k, dtype=np.uint8)).save(
            home / "img_align_celeba" / name
        )
    (home / "list_eval_partition.txt").write_text(
        "".join(f"{n} {s}\n" for n, s in zip(names, "0102021", strict=True))
    )
    (home / "identity_CelebA.txt").write_text("".join(f"{name} 1\n" for name in names))
    for table in (
        "list_bbox_celeba.txt",
        "list_landmarks_align_celeba.txt",
        "list_attr_celeba.txt",
    ):
        (home / table).write_text("7\nheader header\n" + "".join(f"{name} 1 1\n" for name in names))
    # the real sums cannot fit these tables
    monkeypatch.setattr(CelebA, "_check_integrity", lambda self: True)
    monkeypatch.setattr(
        CelebA, "file_list", [(file, None, name) for file, _, name in CelebA.file_list]
    )
    return tmp_path


def test_faces_are_cropped_decoded_and_kept(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = celeba64(faces)
    assert [len(part) for part in (data.train, data.val, data.test)] == [
        3,
        2,
        2,
    ] and data.shape == (3, 64, 64)
    assert abs(data.val.double().mean() - 162) < 2 and data.merge_validation() is data
    assert (data.train.dtype, data.max_count, data.num_classes) == (torch.uint8, 255, None)
    assert (
        data.train.double().mean((1, 2, 3)) - torch.tensor([36.0, 108.0, 180.0])
    ).abs().max() < 2
    assert not list(faces.rglob("*.part"))
    monkeypatch.setattr(blackout.data.celeba, "load_images", pytest.fail)
    reloaded = celeba64(faces)
    assert reloaded.fingerprint() == data.fingerprint()


def test_validation_faces_are_not_decoded_where_none_are_wanted(faces: Path) -> None:
    data = celeba64(faces, validation=0)
    assert (len(data.train), len(data.val), len(data.test)) == (3, 0, 2)
    assert not (faces / "celeba/blackout64_valid.npy").exists()
    with pytest.raises(
        ValueError, match=r"validation must be a whole number of at least 0, or null, not 0.1"
    ):
        celeba64(faces, validation=0.1)  # type: ignore[arg-type]


def test_the_central_140_pixels_are_taken(faces: Path) -> None:
    pixels = np.zeros((218, 178, 3), dtype=np.uint8)
    pixels[39:179, 19:159] = 255
    path = faces / "celeba/img_align_celeba/000004.jpg"
    Image.fromarray(pixels).save(path.with_suffix(".png"))
    path.with_suffix(".png").rename(path)  # lossless, whatever it is called
    assert (celeba64(faces).test[0] == 255).all()


def test_damaged_images_are_named(faces: Path) -> None:
    image = faces / "celeba/img_align_celeba/000003.jpg"
    image.write_bytes(image.read_bytes()[:300])
    with pytest.raises(UserError, match=r"000003\.jpg: cannot be read as an image"):
        celeba64(faces)
    Image.new("RGB", (64, 64)).save(image)
    with pytest.raises(UserError, match=r"000003\.jpg: must be 178 x 218 pixels, not 64 x 64"):
        celeba64(faces)
    assert not list(faces.rglob("*.npy"))


@pytest.mark.parametrize("damage", ["cut", "shape", "empty"])
def test_a_damaged_cache_is_named(faces: Path, damage: str) -> None:
    celeba64(faces)
    cache = faces / "celeba/blackout64_train.npy"
    if damage == "shape":
        np.save(cache, np.zeros((3, 64, 64, 3), dtype=np.uint8))
    else:
        cache.write_bytes(cache.read_bytes()[: 5000 if damage == "cut" else 0])
    with pytest.raises(
        UserError, match=r"blackout64_train\.npy: .*delete it, and it is made again"
    ):
        celeba64(faces)


def test_missing_tables_are_named(faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(self: CelebA) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(CelebA, "download", no_network)
    (faces / "celeba/list_eval_partition.txt").unlink()
    with pytest.raises(UserError, match=r"put list_eval_partition\.txt there; downloading failed"):
        celeba64(faces)
