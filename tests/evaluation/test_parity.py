"""The scores equal those of torch-fidelity, mostly through its public entry point."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
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
    monkeypatch.setattr(
        import_module("blackout.evaluation.precision_recall"), "MAX_BLOCK_VALUES", 2000
    )
    generator = torch.Generator().manual_seed(neighbours)
    x = torch.randn(230, 8, generator=generator)
    y = 1.3 * torch.randn(310, 8, generator=generator)
    expected = prc_features_to_metric(
        x, y, prc_neighborhood=neighbours, prc_batch_size=10000, save_cpu_ram=False, verbose=False
    )
    result = precision_recall(x, y, neighbours=neighbours)
    assert result.precision == pytest.approx(expected["precision"], rel=1e-6)
    assert result.recall == pytest.approx(expected["recall"], rel=1e-6)
