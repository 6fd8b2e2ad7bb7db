"""Draws from finite distributions, by inversion of their distribution functions."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.random import (
    SampleStreams,
    categorical,
    cumulative_probabilities,
    inverse_cdf,
    systematic_resampling,
)

NUM_DRAWS = 100_000


@pytest.mark.parametrize("kind", ["generator", "streams"])
def test_categories_have_the_probabilities_of_their_weights(kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    streams = SampleStreams(2, torch.arange(NUM_DRAWS // 100))
    weights = torch.tensor([2.0, 0.0, 5.0, 0.3, 0.7, 0.0], dtype=torch.float64)
    source = generator if kind == "generator" else streams.step(0)
    draws = categorical(weights.expand(NUM_DRAWS // 100, 100, 6), source)
    assert draws.dtype == torch.int64

    observed = np.bincount(draws.flatten().numpy(), minlength=6)
    is_possible = weights.numpy() > 0
    expected = NUM_DRAWS * weights.numpy()[is_possible] / 8
    assert not observed[~is_possible].any()
    assert stats.chisquare(observed[is_possible], expected).pvalue > 1e-4


def test_inverse_cdf_equals_a_comparison_with_whole_rows() -> None:
    weights = torch.tensor([2.0, 0.0, 5.0, 0.3, 0.7, 0.0], dtype=torch.float64)
    cdfs = cumulative_probabilities(torch.stack([weights, weights.flip(0)]))
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(2, (NUM_DRAWS,), generator=generator)
    uniforms = torch.rand(NUM_DRAWS, generator=generator, dtype=torch.float64)
    expected = (cdfs[rows] <= uniforms[:, None]).sum(1)
    assert torch.equal(inverse_cdf(cdfs, rows, uniforms), expected)


def test_states_of_probability_zero_are_not_drawn() -> None:
    cdfs = torch.tensor([[0.0, 0.5, 1.0], [0.25, 0.25, 1.0]]).double()
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    uniforms = torch.tensor([0.0, 0.5, 0.999, 0.0, 0.25, 0.999]).double()
    assert inverse_cdf(cdfs, rows, uniforms).tolist() == [1, 2, 2, 0, 2, 2]


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
def test_resampling_never_chooses_a_particle_of_weight_0(uniform: float) -> None:
    """The largest uniform makes a point that rounds to 1."""
    uniforms = torch.tensor([uniform], dtype=torch.float64)
    for number in range(2, 200):
        weights = torch.zeros(number, dtype=torch.float64)
        weights[number // 2] = 1.0
        ancestors = systematic_resampling(weights, uniforms)
        assert bool((ancestors == number // 2).all())
