"""Scores of samples, and baselines of models of codes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations.coded import cycles, permutations, plackett_luce, synthetic_rankings
from blackout.permutations.coded.baselines import likelihood_baselines, ranking_baselines
from blackout.permutations.coded.scores import CodeScorer
from blackout.permutations.codes import Insertion
from blackout.permutations.distributions import (
    Mallows,
    Mixture,
    PlackettLuce,
    describe_worths,
    fit_plackett_luce,
)
from blackout.permutations.metrics import expected_unique_share


def test_fits_are_described_by_the_names_of_the_items():
    worths = describe_worths(PlackettLuce(torch.tensor([0.0, math.log(3.0)])), ["ann", "bob"])
    assert worths == {"worths": {"bob": pytest.approx(0.75), "ann": pytest.approx(0.25)}}
    assert list(worths["worths"]) == ["bob", "ann"]
    centre = Mallows(2, 0.5, torch.tensor([1, 0]))
    assert centre.describe(["ann", "bob"]) == {"phi": 0.5, "centre": ["bob", "ann"]}
    mixture = Mixture(torch.tensor([0.25, 0.75], dtype=torch.float64), [centre, Mallows(2, 0.1)])
    components = mixture.describe(["ann", "bob"])["components"]
    assert [component["weight"] for component in components] == [0.75, 0.25]
    assert [component["centre"][0] for component in components] == ["ann", "bob"]


def test_baselines_state_their_fitted_parameters(tmp_path):
    np.save(tmp_path / "votes.npy", np.array([[1, 0, 2]] * 30 + [[1, 2, 0]] * 10))
    source = replace(permutations(tmp_path / "votes.npy"), labels=("ann", "bob", "eve"))
    fitted = likelihood_baselines(source, 4)
    assert next(iter(fitted["plackett_luce"].parameters["worths"])) == "bob"
    assert fitted["mallows"].parameters["centre"] == ["bob", "ann", "eve"]
    assert fitted["uniform"].parameters == {}


@pytest.mark.deep
def test_baselines_beat_uniform_orders_on_their_training_distribution():
    source = synthetic_rankings(length=6, num_movies=20, users=500)
    without_given = ranking_baselines(source, 0, 100)
    with_four_given = ranking_baselines(source, 4, 100)
    assert (
        without_given["plackett_luce"]["ndcg_at_5"]
        > without_given["uniform_insertion"]["ndcg_at_5"] + 0.02
    )
    assert (
        with_four_given["uniform_insertion"]["ndcg_at_5"]
        > without_given["uniform_insertion"]["ndcg_at_5"] + 0.02
    )
    assert ranking_baselines(source, 6, 100)["uniform_insertion"]["ndcg_at_1"] == pytest.approx(1)
    known_distribution = plackett_luce(5)
    scores = fit_plackett_luce(
        known_distribution.batch("train", torch.arange(5000))["x"], prior=0.0
    )
    assert (scores - scores[0]).tolist() == pytest.approx(
        [k * math.log(2) for k in range(5)], abs=0.12
    )
    # rankings are treated as orders of their items, also if these are not all items
    fitted = likelihood_baselines(source, 100)
    bits = {name: float(baseline.values.mean()) for name, baseline in fitted.items()}
    assert bits["plackett_luce"] < bits["uniform"] - 0.5 and "mallows" not in bits
    known_distribution = replace(known_distribution, train_size=1000)
    fitted = likelihood_baselines(known_distribution, 500)
    bits = {name: float(baseline.values.mean()) for name, baseline in fitted.items()}
    assert (
        bits["plackett_luce"]
        < bits["repeated_insertion"]
        < bits["uniform"]
        == pytest.approx(math.log2(120))
    )
    unvalidated = likelihood_baselines(replace(known_distribution, validation=None), 9)
    assert "mallows_mixture" not in unvalidated and unvalidated["uniform"].validation is None
    assert all(
        len(baseline.values) == 500 and abs(baseline.validation - bits[name]) < 0.5
        for name, baseline in fitted.items()
    )


def test_scores_count_unique_valid_and_cyclic_samples():
    source = cycles(5, train_share=0.5)
    scores = CodeScorer().begin(source, 4)
    x = torch.cat([source.members[:1], source.members[:2], torch.tensor([[0, 0, 1, 2, 3]])])
    scores.update({"samples": x[2:]}, torch.tensor([2, 3]))
    scores.update({"samples": x[:2]}, torch.tensor([0, 1]))
    values = scores.compute()
    assert values["unique"] == 0.75 and values["valid"] == 0.75 and values["cyclic"] == 0.75
    assert values["unique_of_perfect"] == pytest.approx(expected_unique_share(24, 4))
    assert expected_unique_share(362_880, 10_000) == pytest.approx(0.98635, abs=1e-5)
    assert expected_unique_share(1, 10) == 0.1
    without_validation = replace(source, validation=None)
    with pytest.raises(UserError, match="no val data to compare samples with"):
        CodeScorer().begin(without_validation, 4, split="val")
    held_out_values = CodeScorer().held_out(source, 1000)["values"]
    assert held_out_values["cyclic"] == 1 and held_out_values["in_train"] == 0
    assert bool((Insertion.encode(source.members) >= 0).all())
