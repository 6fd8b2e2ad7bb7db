"""The components that model files may name: which ones are marked, and that they only compute."""

import dataclasses
import functools
import importlib
import inspect
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

from blackout.component import component, mark_of
from blackout.config.allowed_components import (
    ALLOWED_PACKAGES,
    PATH_ARGUMENTS,
    check_components,
    component_from_file,
    copy_plain_values,
    find_allowed,
    remove_paths,
)
from blackout.config.instantiate import find_target, instantiate
from blackout.diffusion import fisher_times
from blackout.errors import UserError
from blackout.permutations import Riffle
from tests import processes
from tests.cli.conftest import ROOT
from tests.security.component_walk import entries

# their files do not exist and are not downloaded
UNAVAILABLE = {
    "binarized_mnist",
    "cifar10",
    "fashion_mnist",
    "jigsaw_cifar10",
    "jigsaw_mnist",
    "mnist",
    "sort_mnist",
}


@pytest.fixture(scope="module", params=[30, pytest.param(1, marks=pytest.mark.deep)])
def walk(tmp_path_factory, request):
    """The output of the walk under an audit hook, its folder, and the share of arguments tried."""
    folder = tmp_path_factory.mktemp("walk")
    if request.param > 1:  # in a fork, where other modules are already imported
        process = processes.run("tests/security/component_walk", request.param, cwd=folder)
    else:
        command = [sys.executable, "-m", "tests.security.component_walk", "1"]
        paths = {"PYTHONPATH": str(ROOT)}
        process = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=os.environ | paths
        )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    return process.stdout.splitlines(), folder, request.param


def test_no_component_writes_deletes_downloads_or_executes(walk):
    lines, folder, _ = walk
    assert lines[-1] == f"WALKED {len(list(entries()))}" and not list(folder.iterdir())
    assert [line for line in lines if line.startswith("UNEXPECTED")] == []


def test_every_component_is_built_and_hostile_arguments_are_refused(walk):
    lines, _, share = walk
    for line in (line for line in lines[:-1] if "|" in line):
        component, counts = line.split("|")
        place, address, *outcomes = component.split()
        num_refused, num_made = map(int, counts.split())
        expected = (
            "refused" if place == "dataset" and address.rsplit(".")[-1] in UNAVAILABLE else "made"
        )
        assert expected in outcomes and share * num_refused > 10 * min(num_made, 3), line


@pytest.mark.deep
def test_the_audit_hook_detects_side_effects(tmp_path):
    actions = (
        "open('x', 'w')",
        "os.mkdir('x')",
        "os.system('touch x')",
        "socket.socket()",
        "os.open('x', os.O_CREAT)",
        "subprocess.run(['touch', 'x'])",
        "os.remove('x')",
        "importlib.import_module('foreign')",
    )
    code = f"""
import importlib, os, socket, subprocess, sys, tests.security.component_walk as walk
walk.arm()
for action in {actions!r}:
    try:
        eval(action)
    except SystemExit as stopped:
        print(stopped)
walk.armed = False
"""
    process = processes.run("-c", code, cwd=tmp_path)
    assert process.stdout.count("FORBIDDEN") == len(actions) and not list(tmp_path.iterdir()), (
        process
    )


def test_only_components_of_this_package_are_marked():
    for _, place, address, passed in entries():
        target = find_target({"_target_": address}, place)
        assert target.__module__.startswith("blackout."), address
        factory = place == "dataset" or address.rsplit(".")[-1] == "from_generator"
        assert inspect.isclass(target) or passed or factory, address


def type_hints(target):
    """Return the annotations of the arguments.

    A dataclass may inherit some from a base class in another module.
    """
    if dataclasses.is_dataclass(target):
        hints = typing.get_type_hints(target)
        return {name: hints[name] for name in inspect.signature(target).parameters}
    return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)


def test_few_arguments_accept_text_and_none_of_them_is_a_path():
    texts = set()
    for _, _, address, _ in entries():
        target = find_target({"_target_": address}, "x")
        hints = type_hints(target)
        for name, hint in hints.items():
            options = [hint, *typing.get_args(hint)] if name != "return" else []
            texts |= (
                {name} if any(option in (str, Path, typing.Any) for option in options) else set()
            )
    assert texts - PATH_ARGUMENTS == {"kind", "monitor", "scores", "weighting"}


def test_components_reserved_for_the_command_line_are_refused_with_a_hint():
    reserved = [
        (section, f"{package}.{name}", allowed[1].command_line)
        for section, packages in ALLOWED_PACKAGES.items()
        for package in packages
        for name in importlib.import_module(package).__all__
        if (allowed := find_allowed(f"{package}.{name}", section))
        and allowed[1].command_line is not None
    ]
    assert len(reserved) > 10
    for section, address, hint in reserved:
        with pytest.raises(UserError, match=hint.split()[0]):
            check_components({"_target_": address}, section)


@component("network")
class Foreign(torch.nn.Identity):
    """A marked component that is not part of this package."""


def test_marks_are_not_inherited_and_apply_to_this_package_only():
    class Subclass(Riffle):
        pass

    assert mark_of(Riffle) and mark_of(Subclass) is None and mark_of(Riffle()) is None
    assert mark_of(functools.wraps(fisher_times)(lambda num_steps: None)) is None
    assert mark_of(Foreign) and find_allowed(f"{__name__}.Foreign", "model") is None
    for address in (
        f"{__name__}.Foreign",
        "blackout.diffusion.heads.SoftplusHead",
        "blackout.diffusion.heads.torch.load",
        "blackout.data.cifar10",
        "blackout.diffusion.__all__",
        "blackout.diffusion.run_sampler",
        "blackout.networks.nowhere",
        "blackout.component.component",
        "blackout.diffusion.family.make",
        "blackout.networks",
        "BLACKOUT.networks.UNet",
    ):
        with pytest.raises(UserError, match=r"not a component that may stand there|does not exist"):
            check_components({"network": {"_target_": address}}, "model")
        with pytest.raises(UserError, match=r"not a component that may stand there|does not exist"):
            check_components({"grid": {"_target_": address, "_partial_": True}}, "model")


def test_components_are_allowed_only_where_their_mark_says():
    head = {"_target_": "blackout.diffusion.SoftplusHead"}
    grid = {"_target_": "blackout.diffusion.fisher_times"}
    check_components(
        {
            "head": head,
            "schedule": {
                "_target_": "blackout.diffusion.Schedule",
                "grid": grid | {"_partial_": True},
            },
        },
        "model",
    )
    for description in (
        {"kernel": head},
        {"grid": grid},
        {"rounding": grid | {"_partial_": True}},
        {"head": head | {"_partial_": True}},
    ):
        with pytest.raises(UserError, match="not a component that may stand there"):
            check_components(description, "model")
    with pytest.raises(UserError, match="may not set what the caller"):
        check_components({"grid": grid | {"_partial_": True, "num_steps": 3}}, "model")


def test_unreadable_type_hints_allow_nothing(monkeypatch):
    monkeypatch.setattr(
        typing, "get_type_hints", lambda *_: (_ for _ in ()).throw(NameError("hidden"))
    )
    with pytest.raises(UserError, match="cannot be read"):
        check_components(
            {"corrector": {"_target_": "blackout.diffusion.LevelCorrector", "fraction": "x"}},
            "model",
        )


def test_text_is_never_interpolated():
    text = "${oc.create:{_target_:os.makedirs,name:owned}}"
    assert instantiate({"a": [text], "b": text}, "x") == {"a": [text], "b": text}
    assert (
        instantiate(
            {"_target_": "blackout.diffusion.LevelCorrector", "fraction": 2.0}, "x"
        ).fraction
        == 2.0
    )
    with pytest.raises(UserError, match="interpolation"):
        copy_plain_values({"a": [text]}, "x")


def test_plain_values_are_copied_with_tuples_as_lists():
    node = {"a": (1, [2.0, (True, None)]), "b": [0.5, 0.25]}
    copied = copy_plain_values(node, "x")
    assert (
        copied == {"a": [1, [2.0, [True, None]]], "b": [0.5, 0.25]} and copied["b"] is not node["b"]
    )
    deep = [0.5]
    for _ in range(200):  # each list is short, but they are nested
        inner = [deep]
        for _ in range(20):
            inner = [inner]
        deep = [deep, inner]
    with pytest.raises(UserError, match="too deep"):
        copy_plain_values(deep, "x")


TRUSTED = {"_target_": "tests.toy.family.Logits", "num_sites": 3}


def test_trusted_modules_may_be_named_by_model_files():
    check_components({"network": TRUSTED}, "model", ("tests.toy",))
    nested = {**TRUSTED, "anything": {"_target_": "blackout.networks.ResidualMLP", "shape": [3]}}
    check_components({"network": nested}, "model", ("tests.toy",))
    for description in (
        {"_target_": "tests.toy.family.torch.load"},
        {"_target_": "tests.toyota.family.Logits"},
        {**TRUSTED, "path": "x"},
        {**TRUSTED, "more": {"_target_": "torch.nn.Flatten"}},
        {**TRUSTED, "_args_": [3]},
    ):
        with pytest.raises(UserError, match=r"model\.network"):
            check_components({"network": description}, "model", ("tests.toy",))
    with pytest.raises(UserError, match="trusted"):
        check_components({"network": TRUSTED}, "model")


@pytest.mark.parametrize(
    "name, message",
    [
        ("blackout.diffusion.make_sampler", "does not exist in this version of blackout"),
        ("blackout.networks.mlp.nn.Flatten", "not a component that may stand there"),
        ("blackout.diffusion.run_sampler", "not a component that may stand there"),
    ],
)
def test_messages_never_suggest_trusting_names_inside_the_package(name, message):
    with pytest.raises(UserError, match=message) as error:
        check_components({"network": {"_target_": name}}, "model", ("mine",))
    assert "trusted" not in str(error.value)


def test_dataset_folders_come_from_the_command_line():
    source = {
        "_target_": "blackout.data.mnist",
        "_partial_": True,
        "data_dir": "/elsewhere",
        "download": True,
    }
    classifier = {"_target_": "blackout.evaluation.Classifier", "_partial_": True, "source": source}
    scores = {
        "_target_": "blackout.evaluation.ImageScorer",
        "extractor": classifier,
        "cache": None,
        "reference": "train",
    }
    chosen = component_from_file(scores, "metrics", "mine")
    assert chosen["extractor"]["source"] == {**source, "data_dir": "mine", "download": False}
    assert "/elsewhere" not in str(remove_paths(scores)) and remove_paths(scores)["cache"] is None
