"""Streaming feature statistics."""

from __future__ import annotations

import pytest
import torch

from blackout.distributed import SampleRows
from blackout.evaluation import FeatureStatistics


def test_statistics_are_mean_and_unbiased_covariance_for_any_batches() -> None:
    x = torch.randn(101, 12, generator=torch.Generator().manual_seed(0)) * 0.1 + 3
    statistics = FeatureStatistics(12)
    for batch in x.split([1, 40, 7, 53]):
        statistics.update(batch)
    mu, sigma, n = statistics.compute()
    assert n == 101
    assert mu.dtype is sigma.dtype is torch.float64
    torch.testing.assert_close(mu, x.double().mean(dim=0), rtol=1e-13, atol=0)
    torch.testing.assert_close(sigma, torch.cov(x.double().T), rtol=1e-9, atol=1e-13)
    assert torch.equal(sigma, sigma.T)


def test_statistics_are_accurate_far_from_zero_and_over_processes() -> None:
    """At mean / std 2.5e6, raw sums leave only three digits of a covariance."""
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 2.5e6
    parts = [FeatureStatistics(6) for _ in range(3)]
    for part, rows in zip(parts, (x[:250], x[250:399], x[399:]), strict=True):
        for batch in rows.split(64):
            part.update(batch)
    merged = FeatureStatistics(6)
    for name in ("count", "mean", "outer"):  # stacked, as torchmetrics gathers them
        setattr(merged, name, torch.stack([getattr(part, name) for part in parts]))
    mu, sigma, n = merged.compute()
    centred = x - 2.5e6
    assert n == 400
    torch.testing.assert_close(mu - 2.5e6, centred.mean(0), rtol=0, atol=1e-8)
    torch.testing.assert_close(sigma, torch.cov(centred.T), rtol=0, atol=1e-8)


def test_sums_stay_float64_when_the_model_is_cast() -> None:
    statistics = FeatureStatistics(3)
    torch.nn.ModuleList([statistics]).half()
    assert statistics.outer.dtype is torch.float64


def test_reset_clears_the_statistics() -> None:
    statistics = FeatureStatistics(2)
    statistics.update(torch.full((5, 2), 9.0))
    statistics.reset()
    x = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    statistics.update(x)
    assert statistics.compute().mu.tolist() == [1, 1]


def test_statistics_refuse_bad_features() -> None:
    statistics = FeatureStatistics(4)
    with pytest.raises(ValueError, match="NaN"):
        statistics.update(torch.full((3, 4), float("nan")))
    statistics.update(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="at least 2"):
        statistics.compute()


def test_rows_of_samples_are_ordered_by_index() -> None:
    rows = torch.randn(6, 3)
    samples = SampleRows((6, 3))
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    samples.update(rows[order[:2]], order[:2])
    samples.update(rows[order[2:]], order[2:])
    assert torch.equal(samples.gather(), rows)
