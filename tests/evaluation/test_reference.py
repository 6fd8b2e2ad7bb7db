"""Reference statistics: computed once, cached, read from files."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from blackout.data import CountData
from blackout.errors import UserError
from blackout.evaluation import (
    FeatureStatistics,
    Reference,
    dataset_reference,
    file_reference,
    frechet_distance,
    write_reference,
)
from blackout.evaluation.extractors import Features, ModuleExtractor
from tests.evaluation.networks import (
    CLASSES,
    FEATURES,
    TinyNet,
    colour_data,
    images,
    tiny_extractor,
)


class CountingExtractor(ModuleExtractor):
    """An extractor that counts its images."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(TinyNet(seed), "tiny", FEATURES, CLASSES)
        self.passed = 0

    def __call__(self, images: torch.Tensor) -> Features:
        self.passed += len(images)
        return super().__call__(images)


def is_equal(a: Reference, b: Reference) -> bool:
    """Return whether two references are equal."""
    return torch.equal(a.mu, b.mu) and torch.equal(a.sigma, b.sigma) and a.origin == b.origin


def test_references_are_computed_once(tmp_path: Path) -> None:
    data = colour_data()
    extractor = CountingExtractor()
    first = dataset_reference(data, "train", extractor, batch_size=64, cache=tmp_path)
    assert extractor.passed == first.num_samples == 150
    assert first.features is None
    torch.testing.assert_close(first.sigma, torch.cov(extractor(data.train).features.double().T))
    extractor.passed = 0
    second = dataset_reference(data, "train", extractor, cache=tmp_path)
    assert extractor.passed == 0
    assert is_equal(first, second)
    assert first.origin == second.origin


def test_an_extractor_may_have_a_single_feature(tmp_path: Path) -> None:
    """In one dimension the distance is (m - n)^2 + (s - t)^2."""

    class Brightness(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float().mean((1, 2, 3))[:, None]

    data = colour_data()
    extractor = ModuleExtractor(Brightness(), "brightness", 1)
    train = dataset_reference(data, "train", extractor, cache=tmp_path)
    assert train.mu.shape == (1,) and train.sigma.shape == (1, 1)
    values = extractor(data.test).features.double()
    statistics = FeatureStatistics(1)
    statistics.update(values)
    test = statistics.compute()
    expected = (train.mu - values.mean()) ** 2 + (train.sigma.sqrt() - values.std()) ** 2
    distance = frechet_distance(train.mu, train.sigma, test.mu, test.sigma)
    assert distance == pytest.approx(float(expected), rel=1e-9)
    path = tmp_path / "brightness.npz"
    write_reference(path, train)
    assert is_equal(file_reference(path, extractor), train)


@pytest.mark.parametrize("validation", [1, 40, 149])
def test_validation_images_belong_to_the_training_reference(
    tmp_path: Path, validation: int
) -> None:
    """Published scores use the complete official training set.

    The reference must therefore not depend on the split into training and validation images.
    """
    full = replace(colour_data(), val=torch.empty(0))
    rows = torch.randperm(150)[:validation].sort().values
    is_training = torch.ones(150, dtype=torch.bool)
    is_training[rows] = False
    data = replace(full, train=full.train[is_training], val=full.train[rows], val_rows=rows)
    extractor = CountingExtractor()
    first = dataset_reference(full, "train", extractor, cache=tmp_path)
    assert extractor.passed == first.num_samples == 150 and first.origin[
        "data"
    ] == full.fingerprint("train")
    assert (
        is_equal(dataset_reference(data, "train", extractor, cache=tmp_path), first)
        and extractor.passed == 150
    )


def test_features_are_added_to_the_cache_on_request(tmp_path: Path) -> None:
    data = colour_data()
    extractor = CountingExtractor()
    without_features = dataset_reference(data, "test", extractor, cache=tmp_path)
    with_features_added = dataset_reference(
        data, "test", extractor, with_features=True, cache=tmp_path
    )
    assert extractor.passed == 120
    assert with_features_added.features is not None and with_features_added.features.shape == (
        60,
        FEATURES,
    )
    cached = dataset_reference(data, "test", extractor, with_features=True, cache=tmp_path)
    assert extractor.passed == 120
    assert cached.features is not None and torch.equal(
        cached.features, with_features_added.features
    )
    torch.testing.assert_close(without_features.sigma, with_features_added.sigma)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_file_depends_on_every_input(tmp_path: Path) -> None:
    data = colour_data()
    dark = CountData("colours", data.train // 2, data.test, 255)
    fewer = CountData("colours", data.train // 2, data.test // 2, 127)
    for arguments in [
        (data, "train", CountingExtractor()),
        (data, "test", CountingExtractor()),
        (dark, "train", CountingExtractor()),
        (fewer, "train", CountingExtractor()),
        (data, "train", CountingExtractor(seed=1)),
    ]:
        dataset_reference(*arguments, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "exchanged"])
def test_a_damaged_cache_is_recomputed(tmp_path: Path, damage: str) -> None:
    data = colour_data()
    extractor = CountingExtractor()
    original = dataset_reference(data, "train", extractor, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        write_reference(
            path, dataclasses.replace(original, origin={**original.origin, "split": "test"})
        )
    with pytest.warns(UserWarning, match="damaged and will be replaced"):
        assert is_equal(dataset_reference(data, "train", extractor, cache=tmp_path), original)
    assert is_equal(dataset_reference(data, "train", extractor, cache=tmp_path), original)


def test_an_unwritable_cache_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be cached"):
        dataset_reference(colour_data(), "train", tiny_extractor(), cache=tmp_path / "file")


def test_invalid_splits_and_data_are_refused() -> None:
    with pytest.raises(UserError, match="must be train, test"):
        dataset_reference(colour_data(), "validation", tiny_extractor())  # type: ignore[arg-type]
    vectors = CountData(
        "vectors", torch.zeros(4, 6, dtype=torch.uint8), torch.zeros(4, 6, dtype=torch.uint8), 255
    )
    with pytest.raises(UserError, match=r"shape \(6,\)"):
        dataset_reference(vectors, "train", tiny_extractor())
    single = CountData("single", images(1, 0), images(1, 1), 255)
    with pytest.raises(UserError, match="at least 2 images"):
        dataset_reference(single, "test", tiny_extractor())


def test_references_are_written_and_read(tmp_path: Path) -> None:
    extractor = tiny_extractor()
    reference = dataset_reference(
        colour_data(), "train", extractor, with_features=True, cache=tmp_path
    )
    write_reference(tmp_path / "statistics", reference)
    loaded = file_reference(tmp_path / "statistics", extractor)
    assert is_equal(reference, loaded) and loaded.num_samples == 150
    assert (
        loaded.features is not None
        and reference.features is not None
        and torch.equal(loaded.features, reference.features)
    )


def test_common_statistics_files_are_read(tmp_path: Path) -> None:
    """Files of pytorch-fid, EDM and others contain only mu and sigma."""
    path = tmp_path / "cifar10-32x32.npz"
    np.savez(path, mu=np.arange(FEATURES, dtype=np.float32), sigma=np.eye(FEATURES))
    reference = file_reference(path, tiny_extractor())
    assert (
        reference.mu.dtype is torch.float64
        and reference.num_samples is None
        and reference.features is None
    )
    assert reference.origin["file"] == path.name


def test_invalid_statistics_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    extractor = tiny_extractor()
    with pytest.raises(UserError, match="no such file"):
        file_reference(path, extractor)
    path.write_bytes(b"not a zip")
    with pytest.raises(UserError, match="not a readable"):
        file_reference(path, extractor)
    np.savez(path, mean=np.zeros(3))
    with pytest.raises(UserError, match="must contain the arrays mu and sigma"):
        file_reference(path, extractor)
    np.savez(path, mu=np.zeros(2048), sigma=np.eye(2048))
    with pytest.raises(UserError, match="tiny has 24 features"):
        file_reference(path, extractor)
    np.savez(path, mu=np.zeros(FEATURES), sigma=np.full((FEATURES, FEATURES), np.nan))
    with pytest.raises(UserError, match="NaN"):
        file_reference(path, extractor)
    np.savez(path, mu=np.array([{}], dtype=object), sigma=np.eye(FEATURES))
    with pytest.raises(UserError, match="not a readable"):
        file_reference(path, extractor)
    write_reference(
        path, dataset_reference(colour_data(), "test", tiny_extractor(seed=3), cache=tmp_path)
    )
    with pytest.raises(UserError, match="made with another extractor"):
        file_reference(path, extractor)


def test_a_file_in_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    extractor = tiny_extractor()
    reference = dataset_reference(colour_data(), "train", extractor, cache="~/cache")
    assert len(list((tmp_path / "cache").iterdir())) == 1
    write_reference(tmp_path / "real.npz", reference)
    assert is_equal(file_reference("~/real.npz", extractor), reference)
