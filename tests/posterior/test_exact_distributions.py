"""Exact distributions against enumeration, motifs of sequences, and a classifier that learns."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.exact_distributions import (
    Chain,
    Dna,
    ExactModel,
    Motif,
    Ring,
    Synthetic,
    hellinger,
    melody,
    noise_of,
)
from benchmarks.learned_classifier import LearnedClassifier
from blackout.data import CountData
from blackout.diffusion.processes import Uniform
from blackout.errors import UserError
from blackout.posterior import InverseProblem, Reward
from blackout.posterior.likelihood_steps import colour_forests
from blackout.posterior.rewards import Tilt
from blackout.random import SampleStreams

STATES = torch.tensor(list(itertools.product(range(3), repeat=3)))


@pytest.fixture
def chain():
    rng = np.random.default_rng(0)
    first, weight = (torch.from_numpy(rng.dirichlet(np.ones(3), size)) for size in (None, 3))
    return Chain(first, weight, 3)


def state_probabilities(chain, node=None):
    """Of all 27 states, by multiplication."""
    p = chain.first[STATES[:, 0]] * chain.weight[STATES[:, :-1], STATES[:, 1:]].prod(1)
    if node is not None:
        p = p * node.gather(1, STATES.T).prod(0)
    return p / p.sum()


def draws_p_value(x, p):
    frequencies = np.bincount((x.long() @ torch.tensor([9, 3, 1])).numpy(), minlength=27)
    return stats.chisquare(frequencies, len(x) * p.numpy()).pvalue


def test_draws_marginals_and_means_agree_with_enumeration(chain):
    node = torch.from_numpy(np.random.default_rng(1).random((3, 3)))
    p = state_probabilities(chain, node)
    nodes = node.expand(20_000, 3, 3)
    assert (
        draws_p_value(chain.draw(nodes, SampleStreams(0, torch.arange(20_000)).step(0)), p) > 1e-3
    )
    marginals = torch.stack(
        [torch.stack([p[STATES[:, i] == v].sum() for v in range(3)]) for i in range(3)]
    )
    assert torch.allclose(chain.marginals(node[None])[0], marginals)
    pair = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 3)))
    tilted = chain.tilted(pair, 1.5)
    sums = pair[STATES[:, :-1], STATES[:, 1:]].sum(1)
    p = state_probabilities(chain) * torch.exp(1.5 * sums)
    assert tilted.expected(pair) == pytest.approx(float((p * sums).sum() / p.sum()))


def test_reverse_runs_follow_bayes_rule(chain):
    model = ExactModel("toy", chain)
    z = torch.tensor([[2, 0, 1]])
    t = 0.7
    node = noise_of(model.process, z, torch.tensor(t, dtype=torch.float64))[0]
    keep = math.exp(-t)
    assert torch.allclose(
        node[0], torch.tensor([1 - keep, 1 - keep, 1 + 2 * keep], dtype=torch.float64) / 3
    )
    streams = SampleStreams(3, torch.arange(20_000))
    assert (
        draws_p_value(
            model.prior().reverse(z.expand(20_000, 3), t, streams), state_probabilities(chain, node)
        )
        > 1e-3
    )
    assert draws_p_value(model.prior().draw(20_000, streams), state_probabilities(chain)) > 1e-3
    predicted = model.prior().denoiser(z, torch.tensor(t, dtype=torch.float64))
    assert torch.allclose(predicted.mean[0].T.double(), chain.marginals(node[None])[0], atol=1e-6)


def test_motifs_are_counted_and_drawn_in_two_colours():
    x = torch.tensor([[1, 2, 1, 2, 0], [2, 1, 1, 1, 2]])
    operator = Motif((1, 2), [0.0, 2.0])
    assert operator(x.double()).tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]]
    problem = InverseProblem(
        operator, operator.noise, operator.noise.measurements(operator.measurement_shape((5,)))
    )
    assert problem.log_likelihood(x.double()).tolist() == [
        0.0,
        2.0,
    ]  # the first row has scale 0, the second scale 2
    assert len(colour_forests(operator.incidence((5,)), 5)) == 2
    with pytest.raises(ValueError, match="cannot stand"):
        operator.measurement_shape((1,))
    with pytest.raises(ValueError, match="name"):
        Motif(())
    with pytest.raises(ValueError, match="list of numbers"):
        Tilt([])


def test_chains_made_by_hand_are_normalised():
    for chain in (Dna().chain, melody(16), Synthetic(3).chain):
        assert torch.allclose(
            chain.weight.sum(1), torch.ones(len(chain.weight), dtype=torch.float64)
        )
        assert float(chain.first.sum()) == pytest.approx(1.0) and bool((chain.weight > 0).all())
    dna = Dna().chain
    assert torch.allclose(dna.first @ dna.weight, dna.first)


def test_the_exact_posterior_of_the_grid_is_that_of_its_reward():
    model = Synthetic(2)
    reward = Reward(Ring(), 2.0)
    x = torch.cartesian_prod(torch.arange(50), torch.arange(50))
    joint = model.p[x].prod(1) * torch.exp(2.0 * reward(x.double())[:, 0])
    exact = model.exact(Ring(), 2.0)
    assert torch.allclose(joint / joint.sum(), exact[x].prod(1), atol=1e-15)
    assert hellinger(exact.numpy(), exact.numpy()) == pytest.approx(0.0, abs=1e-7)
    assert hellinger(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0


def images(labelled=True):
    """Bright upper or lower halves, with noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    x = torch.randint(0, 4, (300, 1, 4, 4), generator=generator)
    x[labels == 0, :, :2] += 5
    x[labels == 1, :, 2:] += 5
    labels = labels if labelled else None
    return CountData("halves", x, x[:60], 16, labels, None if labels is None else labels[:60])


def test_training_a_classifier_leaves_the_global_generator_alone():
    first = LearnedClassifier(300, 4)
    second = LearnedClassifier(300, 4)
    first.learn(images(), 16)
    torch.rand(5)
    state = torch.get_rng_state()
    second.learn(images(), 16)
    assert torch.equal(torch.get_rng_state(), state)
    x = images().test
    assert torch.equal(first(x.double()), second(x.double()))
    assert float((first(x).argmax(1) == torch.arange(60) % 2).double().mean()) > 0.95
    with pytest.raises(UserError, match="no labelled images"):
        LearnedClassifier().learn(images(labelled=False), 16)
    with pytest.raises(ValueError, match="learnt nothing"):
        LearnedClassifier()(x)


def test_an_exact_model_is_for_posteriors_alone():
    model = Dna(4)
    assert model.process.max_count == 3 and isinstance(model.process, Uniform)
    for request, word in (
        ({}, "posterior"),
        ({"sampler": {"num_steps": 3}, "posterior": {}}, "sampler"),
    ):
        with pytest.raises(UserError, match=word):
            model.family.draw(model, {**request, "num_samples": 1})


@pytest.mark.deep
def test_a_classifier_of_sequences_finds_a_motif_at_any_place():
    """As an oracle of enhancers, which learns classes of activity."""
    x = torch.randint(4, (600, 24), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.arange(600) % 2
    for row in range(1, 600, 2):
        x[row, row % 20 : row % 20 + 4] = torch.tensor([1, 2, 3, 0], dtype=torch.uint8)
    absent = (Motif((1, 2, 3, 0))(x.long()).sum(1) > 0) == (labels == 1)
    data = CountData("words", x[:500], x[500:], 3, labels[:500], labels[500:])
    oracle = LearnedClassifier(500, 60)
    oracle.learn(data, 3)
    is_correct = (oracle(x[500:]).argmax(1) == labels[500:])[absent[500:]]
    # nine in ten are right, of 98 samples with a standard error of 3 %; chance is one half
    assert absent.double().mean() > 0.9 and is_correct.double().mean() > 0.8
