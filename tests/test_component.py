"""Descriptions are immutable, and remain plain data in every other way."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from typing import Any

import pytest
import torch

from blackout import from_data
from blackout.component import freeze, thaw
from blackout.networks import ResidualMLP

DESCRIPTION = {"model": {"sampler": {"num_steps": 4}, "shape": [1, 2, [3]]}, "name": "x"}


def change_mapping(node: Any) -> None:
    node["model"]["sampler"]["num_steps"] = 5


def merge_mapping(node: Any) -> None:
    node["model"] |= {"seed": 1}


def change_list(node: Any) -> None:
    node["model"]["shape"][2].append(4)


@pytest.mark.parametrize("change", [change_mapping, merge_mapping, change_list])
def test_a_frozen_description_cannot_be_changed(change: Any) -> None:
    frozen = freeze(DESCRIPTION)
    with pytest.raises(TypeError, match="immutable"):
        change(frozen)
    assert frozen == DESCRIPTION


def test_a_frozen_description_otherwise_behaves_like_plain_data() -> None:
    frozen = freeze(DESCRIPTION)
    assert json.loads(json.dumps(frozen)) == DESCRIPTION
    assert pickle.loads(pickle.dumps(frozen)) == DESCRIPTION
    assert copy.deepcopy(frozen) is frozen
    thawed = thaw(frozen)
    change_mapping(thawed)
    change_list(thawed)
    assert thawed != frozen == DESCRIPTION


def test_the_description_of_a_model_cannot_be_changed() -> None:
    counts = torch.arange(400).view(50, 8) % 7
    model = from_data(counts, functools.partial(ResidualMLP, width=8, depth=1)).model
    with pytest.raises(TypeError, match="immutable"):
        model.config["data"]["name"] = "another"
