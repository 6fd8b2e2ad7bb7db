"""The safety net finds differences, and its files are those of this checkout."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from tests.safety_net.__main__ import HERE
from tests.safety_net.cases import cases
from tests.safety_net.choices import ROOT, choices, choices_below, groups
from tests.safety_net.comparison import compare_tables
from tests.safety_net.components import fix_weights, formula
from tests.safety_net.configurations import compress, expand
from tests.safety_net.interface import format_signature
from tests.safety_net.samples import hash_array, outcomes, samples


def test_a_difference_is_printed_once_with_its_rows():
    before = {"a": {"x": 1, "y": 2}, "b": {"x": 1}, "c": ["one", "two"], "d": "drawn"}
    assert compare_tables(before, before) == []
    after = {"a": {"x": 3, "y": 2}, "b": {"x": 3, "z": None}, "c": ["one", "three"], "e": "drawn"}
    assert compare_tables(before, after) == [
        "only before: d",
        "only after: e",
        "x: 1 -> 3   in: a; b",
        "z: nothing -> null   in: b",
        "- two   in: c",
        "+ three   in: c",
    ]


def test_moved_names_are_no_differences():
    before = {"sampler=beam": {"_target_": "a.Beam", "width": 2}}
    after = {"decoder=beam": {"_target_": "b.Beam", "width": 2}}
    moved = {"sampler=beam": "decoder=beam", "a.Beam": "b.Beam"}
    assert len(compare_tables(before, after)) == 2
    assert compare_tables(before, after, moved) == []


def test_configurations_are_restored_from_their_differences():
    table = {
        "train": {"a": 1, "b": [1, 2], "c": None},
        "train family=x": {"a": 2, "d": {}},
        "train family=x dataset=y": {"a": 2, "d": {}, "b": [1]},
        "train experiment=z": {"a": 1, "b": [1, 2]},
    }
    entries = compress(table)
    assert expand(entries) == table
    assert entries["train experiment=z"] == {"base": "train", "settings": {"c": "<absent>"}}


def test_hashes_depend_on_values_type_and_shape():
    x = np.arange(6)
    changed_arrays = [x[::-1], x.astype(np.int32), x.reshape(2, 3), x + 1]
    hashes = {hash_array(array) for array in [x, *changed_arrays]}
    assert len(hashes) == 1 + len(changed_arrays) and hash_array(x.copy()) == hash_array(x)


def test_fixed_weights_do_not_depend_on_the_initial_ones():
    first, second = (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) for _ in range(2))
    assert not torch.equal(first[0].weight, second[0].weight)
    fix_weights(first)
    fix_weights(second)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))
        assert bool((parameter != 0).all())


def test_the_formula_gives_different_counts_of_the_whole_range():
    x = formula(48, (1, 4, 4), 12)
    assert x.shape == (48, 1, 4, 4) and int(x.min()) == 0 and int(x.max()) == 12
    assert len(x.flatten(1).unique(dim=0)) > 20


def test_signatures_have_the_annotations_of_the_code():
    def function(a: int, b: list[str] = (), *rest: float, c: object = print, **more: int) -> None:
        """Nothing."""

    text = "(a: int, b: list[str] = [], *rest: float, c: object = 'print', **more: int) -> None"
    assert format_signature(function) == text
    assert format_signature(lambda x, *, y=1: x) == "(x, *, y = 1)"


def test_choices_are_read_from_the_files():
    assert {"pure_death", "uniform"} <= set(choices("process"))
    assert "fisher" in choices("sampler/grid")
    assert "blackout/table1" in choices_below("experiment")
    assert "train" not in groups() and "" not in groups()


@pytest.mark.deep
def test_the_cases_are_those_in_the_file():
    names = [case.name for case in cases()]
    assert len(names) > 100 and len(set(names)) == len(names)
    rows = json.loads((HERE / "cases.json").read_text())
    assert {row.partition(" | ")[0] for row in rows} == set(names)
    assert not [name for name, status in rows.items() if status == "failed"]


@pytest.mark.deep
def test_samples_are_reproducible():
    rows = samples("classes")
    assert samples("classes") == rows and set(outcomes(rows).values()) == {"drawn"}
    draws = [row for name, row in rows.items() if not name.endswith("training")]
    hashes = {row["samples.samples"] for row in draws}
    assert len(hashes) == len(draws) > 3  # each class and guidance gives other samples


@pytest.mark.deep
def test_configurations_and_interface_are_those_in_the_files():
    """After a deliberate change, write them by `python -m tests.safety_net --renew`."""
    options = ["--only", "configurations", "--only", "interface"]
    command = [sys.executable, "-m", "tests.safety_net", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
