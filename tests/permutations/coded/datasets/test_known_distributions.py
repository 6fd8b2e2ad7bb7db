"""Data sets whose distribution is known."""

from __future__ import annotations

import pytest
import torch

from blackout.permutations import all_permutations
from blackout.permutations.coded import mallows, plackett_luce


def test_samples_of_known_distributions_match_them():
    source = mallows(5)
    batch = source.batch("train", torch.arange(4000))
    scores = source.sample_scores({"samples": batch["x"], **batch})
    assert float(scores["distance"].mean()) == pytest.approx(
        float(scores["expected_distance"].mean()), abs=0.15
    )
    single = source.batch("train", torch.tensor([17]))
    assert torch.equal(single["x"][0], batch["x"][17]) and torch.equal(
        single["condition"][0], batch["condition"][17]
    )
    log_p = source.log_prob({"condition": torch.tensor([[0.3]])}, all_permutations(5))
    assert float(log_p.exp().sum()) == pytest.approx(1)
    first_items = plackett_luce(4).batch("train", torch.arange(6000))["x"][:, 0]
    assert (first_items.bincount(minlength=4) / 6000).tolist() == pytest.approx(
        [1 / 15, 2 / 15, 4 / 15, 8 / 15], abs=0.025
    )
