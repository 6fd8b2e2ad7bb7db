"""The components that model files may name: what carries a mark, and that none of it does anything but compute."""

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
from tests.security.walk import entries

NEVER_MADE = {
    "binarized_mnist", "cifar10", "fashion_mnist", "jigsaw_cifar10", "jigsaw_mnist", "mnist", "sort_mnist",
}  # fmt: skip
"""Not there, and not downloaded."""


@pytest.fixture(scope="module", params=[30, pytest.param(1, marks=pytest.mark.deep)])
def walk(tmp_path_factory, request):
    """What the walk under an audit hook printed, the folder in which it ran, and which share of arguments it tried."""
    folder = tmp_path_factory.mktemp("walk")
    if request.param > 1:  # where the gate lets through what other programs have imported
        done = processes.run("tests/security/walk", request.param, cwd=folder)
    else:
        alone, paths = [sys.executable, "-m", "tests.security.walk", "1"], {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(alone, capture_output=True, text=True, cwd=folder, env=os.environ | paths)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines(), folder, request.param


def test_no_component_writes_deletes_downloads_or_executes(walk):
    lines, folder, _ = walk
    assert lines[-1] == f"WALKED {len(list(entries()))}" and not list(folder.iterdir())
    assert [line for line in lines if line.startswith("UNEXPECTED")] == []


def test_every_component_was_made_and_hostile_arguments_were_refused(walk):
    lines, _, share = walk
    for line in (line for line in lines[:-1] if "|" in line):
        what, counts = line.split("|")
        place, address, *outcomes = what.split()
        refused, made = map(int, counts.split())
        expected = "refused" if place == "dataset" and address.rsplit(".")[-1] in NEVER_MADE else "made"
        assert expected in outcomes and share * refused > 10 * min(made, 3), line


@pytest.mark.deep
def test_the_audit_hook_works(tmp_path):
    acts = ("open('x', 'w')", "os.mkdir('x')", "os.system('touch x')", "socket.socket()", "os.open('x', os.O_CREAT)",
            "subprocess.run(['touch', 'x'])", "os.remove('x')", "importlib.import_module('foreign')")  # fmt: skip
    code = f"""
import importlib, os, socket, subprocess, sys, tests.security.walk as walk
walk.arm()
for act in {acts!r}:
    try:
        eval(act)
    except SystemExit as stopped:
        print(stopped)
walk.armed = False
"""
    done = processes.run("-c", code, cwd=tmp_path)
    assert done.stdout.count("FORBIDDEN") == len(acts) and not list(tmp_path.iterdir()), done


def test_marks_are_of_this_package_alone():
    for _, place, address, passed in entries():
        target = find_target({"_target_": address}, place)
        assert target.__module__.startswith("blackout."), address
        factory = place == "dataset" or address.rsplit(".")[-1] == "from_generator"
        assert inspect.isclass(target) or passed or factory, address


def type_hints(target):
    """Annotations of the arguments; a dataclass may have some from a base class in another module."""
    if dataclasses.is_dataclass(target):
        hints = typing.get_type_hints(target)
        return {name: hints[name] for name in inspect.signature(target).parameters}
    return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)


def test_text_is_given_to_few_arguments_and_none_of_them_is_a_path():
    texts = set()
    for _, _, address, _ in entries():
        target = find_target({"_target_": address}, "x")
        hints = type_hints(target)
        for name, hint in hints.items():
            options = [hint, *typing.get_args(hint)] if name != "return" else []
            texts |= {name} if any(one in (str, Path, typing.Any) for one in options) else set()
    assert texts - PATH_ARGUMENTS == {"kind", "monitor", "scores", "weighting"}


def test_what_only_the_command_line_may_choose_is_refused_with_what_to_say_there():
    asked = [
        (section, f"{package}.{name}", found[1].ask)
        for section, packages in ALLOWED_PACKAGES.items()
        for package in packages
        for name in importlib.import_module(package).__all__
        if (found := find_allowed(f"{package}.{name}", section)) and found[1].ask is not None
    ]
    assert len(asked) > 10
    for section, address, ask in asked:
        with pytest.raises(UserError, match=ask.split()[0]):
            check_components({"_target_": address}, section)


@component("network")
class Foreign(torch.nn.Identity):
    """Marked, but not this package's."""


def test_a_mark_is_of_the_very_object_and_of_this_package():
    class Heir(Riffle):
        pass

    assert mark_of(Riffle) and mark_of(Heir) is None and mark_of(Riffle()) is None
    assert mark_of(functools.wraps(fisher_times)(lambda num_steps: None)) is None
    assert mark_of(Foreign) and find_allowed(f"{__name__}.Foreign", "model") is None
    for address in (
        f"{__name__}.Foreign", "blackout.diffusion.heads.SoftplusHead", "blackout.diffusion.heads.torch.load",
        "blackout.data.cifar10", "blackout.diffusion.__all__", "blackout.diffusion.run_sampler",
        "blackout.networks.nowhere",
        "blackout.component.component", "blackout.diffusion.family.make", "blackout.networks", "BLACKOUT.networks.UNet",
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"not a component that may stand there|does not exist"):
            check_components({"network": {"_target_": address}}, "model")
        with pytest.raises(UserError, match=r"not a component that may stand there|does not exist"):
            check_components({"grid": {"_target_": address, "_partial_": True}}, "model")


def test_a_component_stands_only_where_its_mark_says():
    head, grid = {"_target_": "blackout.diffusion.SoftplusHead"}, {"_target_": "blackout.diffusion.fisher_times"}
    check_components(
        {"head": head, "schedule": {"_target_": "blackout.diffusion.Schedule", "grid": grid | {"_partial_": True}}},
        "model",
    )
    for wrong in (
        {"kernel": head},
        {"grid": grid},
        {"rounding": grid | {"_partial_": True}},
        {"head": head | {"_partial_": True}},
    ):
        with pytest.raises(UserError, match="not a component that may stand there"):
            check_components(wrong, "model")
    with pytest.raises(UserError, match="when it is called"):
        check_components({"grid": grid | {"_partial_": True, "num_steps": 3}}, "model")


def test_hints_that_cannot_be_read_let_nothing_through(monkeypatch):
    monkeypatch.setattr(typing, "get_type_hints", lambda *_: (_ for _ in ()).throw(NameError("hidden")))
    with pytest.raises(UserError, match="cannot be read"):
        check_components({"corrector": {"_target_": "blackout.diffusion.LevelCorrector", "fraction": "x"}}, "model")


def test_text_stays_text():
    text = "${oc.create:{_target_:os.makedirs,name:owned}}"
    assert instantiate({"a": [text], "b": text}, "x") == {"a": [text], "b": text}
    assert instantiate({"_target_": "blackout.diffusion.LevelCorrector", "fraction": 2.0}, "x").fraction == 2.0
    with pytest.raises(UserError, match="interpolation"):
        copy_plain_values({"a": [text]}, "x")


def test_plain_gives_lists_and_copies():
    node = {"a": (1, [2.0, (True, None)]), "b": [0.5, 0.25]}
    read = copy_plain_values(node, "x")
    assert read == {"a": [1, [2.0, [True, None]]], "b": [0.5, 0.25]} and read["b"] is not node["b"]
    deep = [0.5]
    for _ in range(200):  # each short, but within each other
        inner = [deep]
        for _ in range(20):
            inner = [inner]
        deep = [deep, inner]
    with pytest.raises(UserError, match="too deep"):
        copy_plain_values(deep, "x")


TRUSTED = {"_target_": "tests.toy.family.Logits", "num_sites": 3}


def test_trusted_modules_are_the_users_own_door():
    check_components({"network": TRUSTED}, "model", ("tests.toy",))
    inside = {**TRUSTED, "anything": {"_target_": "blackout.networks.ResidualMLP", "shape": [3]}}
    check_components({"network": inside}, "model", ("tests.toy",))
    for wrong in (
        {"_target_": "tests.toy.family.torch.load"}, {"_target_": "tests.toyota.family.Logits"},
        {**TRUSTED, "path": "x"}, {**TRUSTED, "more": {"_target_": "torch.nn.Flatten"}}, {**TRUSTED, "_args_": [3]},
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"model\.network"):
            check_components({"network": wrong}, "model", ("tests.toy",))
    with pytest.raises(UserError, match="trusted"):
        check_components({"network": TRUSTED}, "model")


@pytest.mark.parametrize("name, says", [
    ("blackout.diffusion.make_sampler", "does not exist in this version of blackout"),
    ("blackout.networks.mlp.nn.Flatten", "not a component that may stand there"),
    ("blackout.diffusion.run_sampler", "not a component that may stand there"),
])  # fmt: skip
def test_of_addresses_inside_the_package_nobody_is_told_to_trust_them(name, says):
    with pytest.raises(UserError, match=says) as error:
        check_components({"network": {"_target_": name}}, "model", ("mine",))
    assert "trusted" not in str(error.value)


def test_where_datasets_lie_is_the_command_lines_to_say():
    source = {"_target_": "blackout.data.mnist", "_partial_": True, "data_dir": "/elsewhere", "download": True}
    classifier = {"_target_": "blackout.evaluation.Classifier", "_partial_": True, "source": source}
    scores = {"_target_": "blackout.evaluation.Scorer", "extractor": classifier, "cache": None, "reference": "train"}
    chosen = component_from_file(scores, "metrics", "mine")
    assert chosen["extractor"]["source"] == {**source, "data_dir": "mine", "download": False}
    assert "/elsewhere" not in str(remove_paths(scores)) and remove_paths(scores)["cache"] is None
