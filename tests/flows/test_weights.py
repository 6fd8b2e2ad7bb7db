"""Estimators: of d log Z / dt, and from weights."""

from __future__ import annotations

import torch

from blackout.flows.weights import (
    effective_sample_size,
    log_mean_exp,
    plain,
    systematic_resample,
    weighted_mean,
    with_optimal_stein,
    with_stein,
)


def test_the_control_variate_reduces_the_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    control = torch.randn(2000, 50, generator=generator, dtype=torch.float64)
    slopes = 3 + 0.7 * control + 0.3 * torch.randn(2000, 50, generator=generator, dtype=torch.float64)
    spread = [float(estimate(slopes, control).std()) for estimate in (plain, with_stein, with_optimal_stein)]
    assert spread[2] < spread[1] < spread[0]
    assert all(abs(float(e(slopes, control).mean()) - 3) < 0.01 for e in (plain, with_stein, with_optimal_stein))


def test_weights() -> None:
    w = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(float(effective_sample_size(w)) - float(w.exp().sum() ** 2 / w.mul(2).exp().sum() / 300)) < 1e-12
    assert abs(float(effective_sample_size(w + 700)) - float(effective_sample_size(w))) < 1e-9
    assert abs(float(log_mean_exp(w + 700)) - 700 - float(w.exp().mean().log())) < 1e-9
    assert abs(weighted_mean(torch.ones(300), w)[0] - 1) < 1e-12


def test_systematic_resampling_is_unbiased_and_even() -> None:
    w = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    uniforms = (torch.arange(4000) + 0.5).double() / 4000
    counts = torch.stack([torch.bincount(systematic_resample(w, u), minlength=40) for u in uniforms]).double()
    expected = 40 * torch.softmax(w, 0)
    assert float((counts.mean(0) - expected).abs().max()) < 1e-3
    assert bool((counts - expected).abs().max() < 1 + 1e-9)
