import pytest
import torch
from scipy import stats

from blackout.random import SampleStreams, fold_seed


def uniforms(seed, indices, step, shape=(64,)):
    return SampleStreams(seed, indices).at(step).next_draw().uniform((len(indices), *shape))


def test_a_sample_draws_the_same_alone_or_in_any_batch():
    together = uniforms(7, torch.arange(10), 3)
    alone = uniforms(7, torch.tensor([4]), 3)
    shuffled = uniforms(7, torch.tensor([9, 4, 0]), 3)
    assert torch.equal(together[4], alone[0]) and torch.equal(shuffled[1], alone[0])


def test_every_part_of_the_address_matters():
    base = uniforms(0, torch.tensor([0]), 0)
    others = [uniforms(1, torch.tensor([0]), 0), uniforms(0, torch.tensor([1]), 0), uniforms(0, torch.tensor([0]), 1)]
    step = SampleStreams(0, torch.tensor([0])).at(0)
    step.next_draw()
    others += [
        step.next_draw().uniform((1, 64)),
        SampleStreams(0, torch.tensor([0])).at(0).next_draw().uniform((1, 64), 1),
    ]
    for other in others:
        assert not torch.isclose(base, other, atol=1e-6, rtol=0).any()


@pytest.mark.parametrize("seed, shape", [(0, (1000, 1000)), (12345, (100_000, 10)), (2**63 + 5, (10, 100_000))])
def test_numbers_are_uniform_and_uncorrelated(seed, shape):
    u = uniforms(seed, torch.arange(shape[0]), 0, shape[1:])
    assert float(u.min()) > 0 and float(u.max()) < 1
    assert stats.kstest(u.flatten()[:200_000].numpy(), "uniform").pvalue > 1e-3
    counts = torch.histc(u.float(), 1000, 0, 1)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    for a, b in ((u[:-1], u[1:]), (u[:, :-1], u[:, 1:])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 5 / a.numel() ** 0.5


def test_seeds_fold_to_distinct_seeds():
    seeds = {fold_seed(s, a, b) for s in range(20) for a in range(20) for b in range(20)}
    assert len(seeds) == 8000 and all(0 <= s < 2**63 for s in seeds)


def test_indices_must_be_a_vector_of_int64():
    with pytest.raises(ValueError, match="int64"):
        SampleStreams(0, torch.arange(4, dtype=torch.int32))
