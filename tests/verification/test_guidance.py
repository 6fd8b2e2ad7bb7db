"""Classifier-free guidance on a toy whose classes can be enumerated."""

import math

import numpy as np
import pytest
import torch

from blackout.diffusion.guidance import (
    Guidance,
    GuidedDenoiser,
    check_classes,
    drop_labels,
    guide_counts,
)
from blackout.diffusion.predictions import CountPrediction
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser
from blackout.verification.toys import Toy, pixel_pair

_CLASS_WEIGHTS = [
    np.exp(-((np.add.outer(np.arange(16), c * np.arange(16)) - m) ** 2) / 18)
    for c, m in ((1, 9), (-1, 4))
]
SHARES = 0.35, 0.65
CLASSES = [Toy(str(k), bump + 1e-4) for k, bump in enumerate(_CLASS_WEIGHTS)]
ALL = Toy(
    "all", sum(share * toy.p0.reshape(16, 16) for share, toy in zip(SHARES, CLASSES, strict=True))
)
T = torch.tensor(0.8, dtype=torch.float64)
Q = math.exp(-0.8)
# states whose neighbours stay within the levels
INTERIOR = [state for state in range(256) if (ALL.states[state] < 12).all()]


def with_one_more_unit(state, pixel):
    """Return the index of the state with one more unit in a pixel."""
    return state + (16 if pixel == 0 else 1)


def test_predicted_counts_of_a_class_differ_by_the_ratio_of_class_probabilities():
    p = ALL.marginal(Q)
    p_c = SHARES[1] * CLASSES[1].marginal(Q)
    share = p_c / p
    y, y_c = (toy.missing_counts(Q).mean.reshape(-1, 2) for toy in (ALL, CLASSES[1]))
    for state in INTERIOR:
        for pixel in range(2):
            ratio = share[with_one_more_unit(state, pixel)] / share[state]
            assert y_c[state, pixel] / y[state, pixel] == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.5])
def test_guided_counts_are_the_birth_rates_of_the_tilted_distribution(scale):
    """The posterior-mean identity for p_g = p(x) p(c | x)^scale.

    y_g = (1 - q) / q (x_i + 1) p_g(x + e_i) / p_g(x).
    """
    p = ALL.marginal(Q)
    p_c = SHARES[1] * CLASSES[1].marginal(Q)
    tilted = p * (p_c / p) ** scale
    x = torch.from_numpy(ALL.states).to(torch.uint8)
    denoiser = GuidedDenoiser(ExactDenoiser(CLASSES[1]), ExactDenoiser(ALL), Guidance(scale), 15)
    y = denoiser(x, T).mean
    for state in INTERIOR:
        for pixel in range(2):
            exact = (
                (1 - Q)
                / Q
                * (ALL.states[state, pixel] + 1)
                * tilted[with_one_more_unit(state, pixel)]
                / tilted[state]
            )
            assert float(y[state, pixel]) == pytest.approx(
                min(exact, 15 - ALL.states[state, pixel]), rel=1e-9
            )


def refuse(xt, t):
    raise AssertionError("this denoiser must not be evaluated")


def test_scales_0_and_1_and_times_outside_the_interval_use_one_model_only():
    x = torch.from_numpy(ALL.states).to(torch.uint8)
    conditional = ExactDenoiser(CLASSES[0])
    unconditional = ExactDenoiser(ALL)
    assert torch.equal(
        GuidedDenoiser(conditional, refuse, Guidance(1.0), 15)(x, T).mean, conditional(x, T).mean
    )
    assert torch.equal(
        GuidedDenoiser(refuse, unconditional, Guidance(0.0), 15)(x, T).mean,
        unconditional(x, T).mean,
    )
    outside = GuidedDenoiser(conditional, refuse, Guidance(3.0, (2.0, 9.0)), 15)
    assert torch.equal(outside(x, T).mean, conditional(x, T).mean)
    inside = GuidedDenoiser(conditional, unconditional, Guidance(3.0, (-9.0, 2.0)), 15)
    assert not torch.allclose(inside(x, T).mean, conditional(x, T).mean)


def test_guided_counts_are_clipped_to_the_headroom():
    y = torch.tensor([[1.0, 2.0, 0.5]])
    y_c = torch.tensor([[5.0, 2.0, 0.1]])
    headroom = torch.tensor([[6, 6, 0]])
    guided = guide_counts(
        CountPrediction(y_c, y_c.log()), CountPrediction(y, y.log()), 3.0, headroom
    )
    assert guided.mean.tolist() == [[6.0, 2.0, 0.0]]
    assert torch.isfinite(guided.log_mean).all() and guided.distribution is None


def test_labels_are_dropped_at_the_requested_rate_per_sample():
    labels = torch.arange(20_000) % 10
    result = drop_labels(labels, 10, 0.1, SampleStreams(0, torch.arange(20_000)).step(3))
    dropped = result == 10
    assert float(dropped.double().mean()) == pytest.approx(0.1, abs=0.01)
    assert torch.equal(result[~dropped], labels[~dropped])
    same_samples = drop_labels(
        labels[70:80], 10, 0.1, SampleStreams(0, torch.arange(70, 80)).step(3)
    )
    assert torch.equal(same_samples, result[70:80])


def test_invalid_classes_are_refused():
    check_classes(torch.tensor([0, 9]), 2, 10)
    for classes, number, num_classes in (
        ([0], 1, None),
        ([10], 1, 10),
        ([-1], 1, 10),
        ([0], 2, 10),
        ([0.0], 1, 10),
    ):
        with pytest.raises(ValueError):
            check_classes(torch.tensor(classes), number, num_classes)


def test_the_pixels_of_the_verification_pair_are_correlated():
    """Independent pixels would hide the correlations that the kernels neglect."""
    p = pixel_pair().p0.reshape(16, 16)
    assert 0.5 * np.abs(p - np.outer(p.sum(1), p.sum(0))).sum() > 0.3
