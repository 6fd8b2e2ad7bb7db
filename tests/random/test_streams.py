"""Streams: addresses determine their numbers, which are uniform and uncorrelated."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from blackout.random import SampleStreams, fold_seed


def uniforms(seed: int, indices: Tensor, step: int, shape: tuple[int, ...] = (64,)) -> Tensor:
    draw = SampleStreams(seed, indices).step(step).next_draw()
    return draw.uniform((len(indices), *shape))


def test_a_sample_draws_the_same_in_any_batch() -> None:
    batch = uniforms(7, torch.arange(10), 3)
    alone = uniforms(7, torch.tensor([4]), 3)
    shuffled = uniforms(7, torch.tensor([9, 4, 0]), 3)
    assert torch.equal(batch[4], alone[0])
    assert torch.equal(shuffled[1], alone[0])


def test_every_part_of_the_address_matters() -> None:
    first = torch.tensor([0])
    numbers = uniforms(0, first, 0)
    other_seed = uniforms(1, first, 0)
    other_sample = uniforms(0, torch.tensor([1]), 0)
    other_step = uniforms(0, first, 1)
    step = SampleStreams(0, first).step(0)
    step.next_draw()
    other_draw = step.next_draw().uniform((1, 64))
    other_attempt = SampleStreams(0, first).step(0).next_draw().uniform((1, 64), 1)
    for changed_draw in (other_seed, other_sample, other_step, other_draw, other_attempt):
        assert not torch.isclose(numbers, changed_draw, atol=1e-6, rtol=0).any()


def test_particles_have_their_own_streams_whatever_their_number() -> None:
    streams = SampleStreams(3, torch.arange(4))
    two_keys = streams.particles(2).step(1).keys.view(4, 2)
    five_keys = streams.particles(5).step(1).keys.view(4, 5)
    assert torch.equal(two_keys, five_keys[:, :2])
    assert len(five_keys.unique()) == 20

    sample_keys = []
    for number in range(3):
        step = streams.step(number)
        sample_keys.append(step.keys)
        sample_keys += [step.next_draw().keys for _ in range(3)]
    assert not torch.isin(two_keys, torch.cat(sample_keys)).any()


@pytest.mark.parametrize(
    ("seed", "shape"),
    [(0, (1000, 1000)), (12345, (100_000, 10)), (2**63 + 5, (10, 100_000))],
)
def test_numbers_are_uniform_and_uncorrelated(seed: int, shape: tuple[int, int]) -> None:
    u = uniforms(seed, torch.arange(shape[0]), 0, shape[1:])
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert stats.kstest(u.flatten()[:200_000].numpy(), "uniform").pvalue > 1e-3
    histogram = torch.histc(u.float(), 1000, 0, 1)
    assert stats.chisquare(histogram.numpy()).pvalue > 1e-3
    for first, second in ((u[:-1], u[1:]), (u[:, :-1], u[:, 1:])):
        pairs = torch.stack([first.flatten(), second.flatten()])
        correlation = float(torch.corrcoef(pairs)[0, 1])
        assert abs(correlation) < 5 / first.numel() ** 0.5


def test_seeds_fold_to_distinct_seeds() -> None:
    seeds = {fold_seed(s, a, b) for s in range(20) for a in range(20) for b in range(20)}
    assert len(seeds) == 20**3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_indices_must_be_a_vector_of_int64() -> None:
    with pytest.raises(ValueError, match="int64"):
        SampleStreams(0, torch.arange(4, dtype=torch.int32))
