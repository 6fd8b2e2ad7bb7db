"""No random number is used twice: every use of a seed has its own keys."""

from itertools import combinations

import pytest
import pytorch_lightning as pl
import torch

from blackout import from_data
from blackout.diffusion import Correction, Sampler
from blackout.diffusion.conditions import Conditions
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.likelihood_estimates import (
    continuous_bits,
    end_bits,
    finite_time_bits,
    weighted_path_bits,
)
from blackout.random import fold_seed, streams
from blackout.training.model import INITIALISATION
from tests.training.test_python import BODY, COUNTS


@pytest.fixture
def keys(monkeypatch):
    """The keys of all random draws since the list was last cleared."""
    recorded = []
    original_init = streams.Draw.__init__

    def record(draw, keys):
        recorded.extend(keys.tolist())
        original_init(draw, keys)

    monkeypatch.setattr(streams.Draw, "__init__", record)
    return recorded


@pytest.mark.parametrize("seed", [0, pytest.param(7, marks=pytest.mark.deep)])
def test_no_two_uses_of_a_seed_share_a_key(keys, seed):
    model = from_data(COUNTS, BODY, batch_size=16, validation_draws=2, seed=seed)
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    trainer = pl.Trainer(**options, enable_model_summary=False, max_steps=9)
    inner = model.model.eval()
    counts = COUNTS[:16]
    uses = {
        "training": lambda: trainer.fit(model),
        "continuous": lambda: continuous_bits(inner, counts, 4, seed),
        "ends": lambda: end_bits(inner, counts, seed),
        "finite": lambda: finite_time_bits(inner, counts, 9, seed),
        "weighted": lambda: weighted_path_bits(inner, counts, 9, 4, seed),
        "samples": lambda: model.sample(16, seed=seed, num_steps=9),
    }
    keys_of_use = {}
    for name, use in uses.items():
        keys.clear()
        use()
        keys_of_use[name] = set(keys)
        assert len(keys_of_use[name]) > 10
    shared = [
        (first, second)
        for first, second in combinations(keys_of_use, 2)
        if keys_of_use[first] & keys_of_use[second]
    ]
    assert not shared


@pytest.mark.parametrize("particles", [1, 4])
def test_a_sample_uses_no_key_twice(keys, particles):
    model = from_data(COUNTS, BODY, seed=0).model.eval()
    sampler = Sampler(num_steps=5, correction=Correction(2), inpainting_particles=particles)
    known_elements = KnownElements(COUNTS[:1], torch.tensor([[True, False, True, False]]))
    list(
        model.batches(
            torch.arange(6),
            0,
            sampler=sampler,
            conditions=Conditions(known_elements=known_elements),
        )
    )
    assert len(keys) == len(set(keys)) > 6 * 5


def test_the_order_of_epoch_1000_is_uncorrelated_with_the_initial_weights():
    """Both use the same key; their correlation is measured over 200 seeds."""
    size = 1438
    z_score = 0.0
    for seed in range(200):
        generators = [
            torch.Generator().manual_seed(fold_seed(seed, INITIALISATION)) for _ in range(2)
        ]
        weights = torch.rand(size, generator=generators[0]).double() - 0.5
        order = torch.randperm(size, generator=generators[1]) / size - 0.5
        z_score += float((12 * weights * order).sum()) / (200 * size) ** 0.5
    assert abs(z_score) < 3
