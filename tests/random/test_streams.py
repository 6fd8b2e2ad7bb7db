import pytest
import torch
from scipy import stats

from blackout.random import SampleStreams, fold_seed
from blackout.random.counts import invert_rows


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


def test_particles_have_streams_of_their_own_however_many_there_are():
    streams = SampleStreams(3, torch.arange(4))
    few, many = streams.particles(2), streams.particles(5)
    keys = few.at(1).keys.view(4, 2)
    assert torch.equal(keys, many.at(1).keys.view(4, 5)[:, :2]) and len(many.at(1).keys.unique()) == 20
    steps = [streams.at(step) for step in range(3)]
    others = torch.cat([step.keys for step in steps] + [step.next_draw().keys for step in steps for _ in range(3)])
    assert not torch.isin(keys, others).any()


def test_what_is_impossible_is_not_drawn_by_the_smallest_numbers():
    edges, first = torch.tensor([[0.0, 0.5, 1.0], [0.25, 0.25, 1.0]]).double(), torch.tensor([0, 0, 0, 1, 1, 1])
    u = torch.tensor([0.0, 0.5, 0.999, 0.0, 0.25, 0.999]).double()
    assert invert_rows(edges, first, u).tolist() == [1, 2, 2, 0, 2, 2]


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
