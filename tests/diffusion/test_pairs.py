"""Pairs of elements that are equal far more often than nearly equal: found, given back to samples, and scored."""

import numpy as np
import pytest
import torch

from blackout import from_data
from blackout.data import CountData
from blackout.data.count_statistics import equal_pairs
from blackout.diffusion import PoissonLeap, Sampler
from blackout.diffusion.calibration import distances, tied
from blackout.diffusion.data_stats import checked_facts
from blackout.errors import UserError
from blackout.evaluation.count_scores import relations

GENERATOR = np.random.default_rng(0)


def brackets(number: int, share: float = 0.88) -> torch.Tensor:
    """Elements 0 and 2 are equal in a share of the samples, else two apart; 3 is a copy of 1."""
    first, other = GENERATOR.poisson(GENERATOR.gamma(2, 20, (2, number)))
    apart = 2 * (GENERATOR.random(number) > share)
    return torch.from_numpy(np.stack([first, other, first + apart, other], 1)).int()


def test_pairs_are_found_and_counts_that_merely_go_together_are_none() -> None:
    found = equal_pairs(brackets(2000))
    assert [pair[:2] for pair in found] == [[0, 2], [1, 3]]
    assert found[0][2] == pytest.approx(0.88, abs=0.04) and found[1][2] == 1
    rate = torch.from_numpy(GENERATOR.gamma(2, 20, (2000, 1))) * torch.ones(4)
    assert not equal_pairs(torch.poisson(rate).int())  # as near as Poisson counts of one rate
    assert not equal_pairs(torch.poisson(0.3 * torch.ones(2000, 4)).int())  # nearly always both 0
    assert not equal_pairs(brackets(2000).view(-1, 1, 2, 2))


def test_samples_get_the_share_of_the_data_and_those_that_have_it_stay() -> None:
    data = brackets(4000)
    active = data[:, [0, 2]].amax(1) >= 1
    pairs = [[0, 2, float((data[:, 0] == data[:, 2])[active].double().mean())]]
    assert torch.equal(tied(data, distances(pairs, data)), data)
    blurred = data.clone()
    blurred[:, 2] += torch.from_numpy(GENERATOR.integers(-2, 3, 4000))
    mended = tied(blurred, distances(pairs, blurred))
    same = (mended[:, 0] == mended[:, 2]).double().mean()
    assert float(same) == pytest.approx(0.88, abs=0.02)
    assert torch.equal(mended[:, [0, 1, 3]], blurred[:, [0, 1, 3]])


def test_a_model_ties_the_pairs_of_its_data_whatever_the_batch() -> None:
    counts = brackets(300)
    data = CountData("brackets", counts[:250], counts[250:], int(counts.max()))
    model = from_data(data, sampler=Sampler(PoissonLeap(), num_steps=3))
    assert len(model.config["data"]["equal_pairs"]) == 2
    samples = model.sample(20)
    assert torch.equal(samples[:, 1], samples[:, 3])  # always equal in the data
    assert torch.equal(samples[:7], model.sample(7))
    model.seed = 5  # which a model that is loaded does not know
    assert torch.equal(model.sample(20), samples)


def test_relations_are_scored() -> None:
    data, fresh = brackets(1000).numpy(), brackets(1000).numpy()
    right = relations(fresh, data)
    blurred = fresh.copy()
    blurred[:, 2] += GENERATOR.integers(1, 3, 1000)
    assert right["equal_difference"] < 0.05 and relations(blurred, data)["equal_difference"] > 0.8
    sparse = (GENERATOR.random((1000, 1)) < 0.2) * np.ones((1, 5), int)
    shuffled = GENERATOR.permuted(sparse, axis=0)
    assert relations(sparse, sparse)["excess_difference"] == 0
    assert relations(shuffled, sparse)["excess_difference"] == pytest.approx(0.16, abs=0.03)


@pytest.mark.parametrize(
    "facts",
    [
        {"equal_pairs": [[0, 4, 0.9]]}, {"equal_pairs": [[0.5, 1, 0.9]]}, {"equal_pairs": [[0, 1]]}, {"equal_pairs": 3},
    ],
)  # fmt: skip
def test_facts_of_a_damaged_model_are_refused(facts: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(facts))} of the data"):
        checked_facts({"data": {"shape": [4], "max_count": 9, **facts}})
