"""The scores equal those of torch-fidelity, mostly through its public entry point."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_fidelity
from torch import Tensor
from torch.utils.data import Dataset
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from blackout.evaluation import (
    ImageScores,
    InceptionScore,
    Reference,
    precision_recall,
)
from blackout.evaluation.extractors import Inception, ModuleExtractor
from blackout.evaluation.fid import FeatureStatistics
from tests.evaluation.networks import TinyNet, images, tiny_extractor

FIDELITY_NAMES = {
    "fid": "frechet_inception_distance",
    "is": "inception_score_mean",
    "is_std": "inception_score_std",
    "kid": "kernel_inception_distance_mean",
    "kid_std": "kernel_inception_distance_std",
    "precision": "precision",
    "recall": "recall",
}


class Images(Dataset[Tensor]):
    """Images as a dataset."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]


class TinyFidelity(torch_fidelity.FeatureExtractorBase):
    """TinyNet with the interface of torch-fidelity."""

    def __init__(self, name: str, features_list: list[str], **_: object) -> None:
        super().__init__(name, features_list)
        self.net = TinyNet()

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return "features", "logits"

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        return "logits" if metric == "isc" else "features"

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features, logits = self.net(x)
        return tuple({"features": features, "logits": logits}[name] for name in self.features_list)


torch_fidelity.register_feature_extractor("tiny", TinyFidelity)


def fidelity_scores(fake: Tensor, real: Tensor, **options: object) -> dict[str, float]:
    """Return the scores of torch-fidelity."""
    return torch_fidelity.calculate_metrics(
        input1=Images(fake),
        input2=Images(real),
        fid=True,
        isc=True,
        kid=True,
        prc=True,
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=True,
        **options,
    )


def package_scores(
    extractor: ModuleExtractor, fake: Tensor, real: Tensor, order: Tensor
) -> dict[str, float]:
    """Return the scores of this package."""
    statistics = FeatureStatistics(extractor.num_features)
    features = torch.cat([extractor(batch).features for batch in real.split(64)])
    statistics.update(features)
    mu, sigma, n = statistics.compute()
    scores = ImageScores(
        extractor, len(fake), ["fd", "is", "kd", "prdc"], Reference(mu, sigma, n, features)
    )
    for indices in order.split(50):
        scores.update({"samples": fake[indices]}, indices)
    return scores.compute()


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:fid from 12 images")
def test_inception_scores_match_torch_fidelity(inception_weights: Path) -> None:
    fake = images(12, 3, spread=3, size=32)
    real = images(14, 4, size=32)
    expected = fidelity_scores(
        fake,
        real,
        feature_extractor="inception-v3-compat",
        feature_extractor_weights_path=str(inception_weights),
        kid_subset_size=6,
    )
    values = package_scores(Inception(inception_weights), fake, real, torch.arange(12).flip(0))
    for name_here, their_name in FIDELITY_NAMES.items():
        assert values[name_here] == pytest.approx(expected[their_name], rel=1e-3, abs=1e-9), (
            name_here
        )


@pytest.mark.deep
def test_scores_with_a_small_network_match_torch_fidelity() -> None:
    fake = images(1100, 5, spread=2)
    real = images(1300, 6)
    expected = fidelity_scores(fake, real, feature_extractor="tiny")
    order = torch.randperm(1100, generator=torch.Generator().manual_seed(0))
    values = package_scores(tiny_extractor(), fake, real, order)
    general_names = {"fid": "frechet_distance", "kid": "kernel_distance"}
    for name_here, their_name in FIDELITY_NAMES.items():
        base, _, ending = name_here.partition("_")
        name = f"{general_names.get(base, base)}_tiny" + (f"_{ending}" if ending else "")
        assert values[name] == pytest.approx(expected[their_name], rel=1e-4), name


@pytest.mark.parametrize(("count", "splits"), [(100, 10), (103, 10), (57, 4), (12, 1)])
def test_the_streaming_inception_score_matches_torch_fidelity(count: int, splits: int) -> None:
    logits = 3 * torch.randn(count, 40, generator=torch.Generator().manual_seed(count))
    expected = isc_features_to_metric(logits, splits=splits, rng_seed=7)
    score = InceptionScore(count, 40, splits, seed=7)
    for indices in torch.randperm(count).split(9):
        score.update(logits[indices], indices)
    mean, std = score.compute()
    assert mean == pytest.approx(expected["inception_score_mean"], rel=1e-12)
    assert std == pytest.approx(expected["inception_score_std"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("neighbours", [1, 3, 5])
def test_precision_and_recall_match_torch_fidelity(
    neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("blackout.evaluation.image_scores"), "MAX_BLOCK_VALUES", 2000)
    generator = torch.Generator().manual_seed(neighbours)
    x = torch.randn(230, 8, generator=generator)
    y = 1.3 * torch.randn(310, 8, generator=generator)
    expected = prc_features_to_metric(
        x, y, prc_neighborhood=neighbours, prc_batch_size=10000, save_cpu_ram=False, verbose=False
    )
    result = precision_recall(x, y, neighbours=neighbours)
    assert result.precision == pytest.approx(expected["precision"], rel=1e-6)
    assert result.recall == pytest.approx(expected["recall"], rel=1e-6)


def test_density_and_coverage_match_their_definition() -> None:
    """Calculated by hand on a line.

    References: Naeem et al. 2020, eqs. 2 and 4.
    """
    real = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    fake = torch.tensor([[0.4], [0.6], [100.0], [2.5]])
    radius = [1.0, 1.0, 2.0, 4.0]  # distance to the nearest other real point
    inside = [
        [
            abs(float(f - r)) < radius_of_point
            for r, radius_of_point in zip(real, radius, strict=True)
        ]
        for f in fake
    ]
    result = precision_recall(fake, real, neighbours=1, density_neighbours=1)
    assert result.density == pytest.approx(sum(map(sum, inside)) / len(fake))
    # `neighbours` affects precision and recall only
    with_two_neighbours = precision_recall(fake, real, neighbours=2, density_neighbours=1)
    assert (with_two_neighbours.density, with_two_neighbours.coverage) == (
        result.density,
        result.coverage,
    )
    assert result.coverage == pytest.approx(
        sum(any(row[i] for row in inside) for i in range(4)) / 4
    )


def test_near_duplicates_are_found_far_from_the_origin() -> None:
    """In float32, distances of 1e-3 vanish in the rounding of squares of norm 26."""
    generator = torch.Generator().manual_seed(0)
    x, offset = (
        F.normalize(torch.randn(200, 2048, generator=generator)) * size for size in (26, 1e-3)
    )
    real = torch.cat([x, x + offset])
    fake = torch.cat([x + offset / 4, x + 5 * offset / 4])
    assert precision_recall(fake, real, neighbours=1)[:2] == (1.0, 1.0)


def test_identical_sets_have_perfect_scores() -> None:
    x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    result = precision_recall(x, x)
    assert result.precision == result.recall == result.coverage == 1


def test_precision_and_recall_use_closed_balls_and_density_open_ones() -> None:
    """Points on a grid, with many equal distances, against the definitions."""
    generator = torch.Generator().manual_seed(0)
    fake, real = (torch.randint(0, 5, (n, 2), generator=generator).double() for n in (13, 17))
    radii = [torch.cdist(points, points).sort(1).values[:, 2] for points in (fake, real)]
    distances = torch.cdist(fake, real)
    closed = (distances <= radii[1], distances <= radii[0][:, None])
    inside = distances < radii[1]
    assert bool((distances == radii[1]).any() and (distances == radii[0][:, None]).any())
    shares = closed[0].any(1), closed[1].any(0), inside.sum(1) / 2, inside.any(0)
    expected = [float(share.double().mean()) for share in shares]
    assert precision_recall(fake, real, neighbours=2, density_neighbours=2) == pytest.approx(
        expected
    )
