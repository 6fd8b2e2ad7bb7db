"""The safety net finds what changed, and its files are those of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.safety_net.cases import models
from tests.safety_net.choices import ROOT, choices, choices_below, groups
from tests.safety_net.comparison import differences
from tests.safety_net.components import FixedWeights, fix_weights, formula
from tests.safety_net.configurations import compressed, expanded
from tests.safety_net.interface import signature
from tests.safety_net.samples import array_hash, samples


def test_what_differs_is_said_once_with_its_rows():
    before = {"a": {"x": 1, "y": 2}, "b": {"x": 1}, "c": ["one", "two"], "d": "drawn"}
    assert differences(before, before) == []
    after = {"a": {"x": 3, "y": 2}, "b": {"x": 3, "z": None}, "c": ["one", "three"], "e": "drawn"}
    assert differences(before, after) == [
        "only before: d",
        "only after: e",
        "x: 1 -> 3   in: a; b",
        "z: nothing -> null   in: b",
        "- two   in: c",
        "+ three   in: c",
    ]


def test_names_that_moved_on_purpose_are_no_differences():
    before = {"sampler=beam": {"_target_": "a.Beam", "width": 2}}
    after = {"decoder=beam": {"_target_": "b.Beam", "width": 2}}
    assert len(differences(before, after)) == 2
    assert differences(before, after, {"sampler=beam": "decoder=beam", "a.Beam": "b.Beam"}) == []


def test_configurations_survive_their_short_form():
    table = {
        "train": {"a": 1, "b": [1, 2], "c": None},
        "train family=x": {"a": 2, "d": {}},
        "train family=x dataset=y": {"a": 2, "d": {}, "b": [1]},
        "train experiment=z": {"a": 1, "b": [1, 2]},
    }
    short = compressed(table)
    assert expanded(short) == table
    assert short["train experiment=z"] == {"base": "train", "settings": {"c": "<absent>"}}


def test_hashes_see_values_types_and_shapes():
    x = np.arange(6)
    others = [x[::-1], x.astype(np.int32), x.reshape(2, 3), x + 1]
    assert len({array_hash(array) for array in [x, x.copy(), *others]}) == 1 + len(others)


def test_fixed_weights_forget_the_first_ones():
    networks = [nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) for _ in range(2)]
    assert not torch.equal(networks[0][0].weight, networks[1][0].weight)
    for network in networks:
        fix_weights(network)
    for one, two in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.equal(one, two) and float(one.detach().abs().min()) > 0
    assert callable(FixedWeights.on_train_start)


def test_inputs_are_counts_of_their_range_that_differ():
    x = formula(48, (1, 4, 4), 12)
    assert x.shape == (48, 1, 4, 4) and int(x.min()) == 0 and int(x.max()) == 12
    assert len(x.flatten(1).unique(dim=0)) > 20


def test_signatures_are_as_they_are_written():
    def function(a: int, b: list[str] = (), *rest: float, c: object = print, **more: int) -> None:
        """Nothing."""

    text = "(a: int, b: list[str] = [], *rest: float, c: object = 'print', **more: int) -> None"
    assert signature(function) == text
    assert signature(lambda x, *, y=1: x) == "(x, *, y = 1)"


def test_choices_are_those_of_the_folders():
    assert {"pure_death", "uniform"} <= set(choices("process")) and "fisher" in choices(
        "sampler/grid"
    )
    assert "blackout/table1" in choices_below("experiment") and "train" not in groups()


@pytest.mark.deep
def test_cases_have_names_of_their_own():
    names = [model.name for model in models()]
    assert len(names) > 100 and len(set(names)) == len(names)


@pytest.mark.deep
def test_draws_repeat_themselves():
    first, again = samples("classes"), samples("classes")
    assert first == again and len(first) > 4
    hashes = [
        value["samples.samples"] for name, value in first.items() if not name.endswith("training")
    ]
    assert len(set(hashes)) == len(hashes)  # guidance, and each class, is another draw


@pytest.mark.deep
def test_configurations_and_interface_are_those_in_the_files():
    """Where this fails on purpose: `python -m tests.safety_net --renew`."""
    words = ["-m", "tests.safety_net", "--only", "configurations", "--only", "interface"]
    done = subprocess.run(
        [sys.executable, *words], cwd=Path(ROOT), env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
