"""Settings of another family or program, or of a missing component, are explained in one line."""

import shlex
import subprocess
import sys

import hydra
import pytest
from omegaconf import OmegaConf

from blackout.cli.programs import run_train
from blackout.config.compose import initialized_hydra
from blackout.config.explain import explain
from blackout.config.instantiate import find_target
from blackout.errors import UserError
from tests.cli.conftest import ROOT

ELSEWHERE = {
    "a group of another family": (
        "train",
        ["reverse=gpl"],
        "for family=shuffle: add it to the command",
    ),
    "a group that the chosen family lacks": (
        "train",
        ["family=flow", "head=softplus"],
        "but for family=blackout",
    ),
    "a group of sample.py": ("train", ["posterior=sgdd"], "posterior is a group of sample.py"),
    "a group of train.py": ("sample", ["network=mlp"], "network is a group of train.py"),
    "a setting of another family": (
        "train",
        ["target.size=3"],
        "is only a setting of family=",
    ),
    "nearly a setting of another family": (
        "train",
        ["trget.size=3"],
        "did you mean target.size, of family=",
    ),
    "a setting of two other families": (
        "train",
        ["rolout.clip=3"],
        "did you mean rollout.clip, of family=energy or family=flow?",
    ),
    "a choice of another group": (
        "sample",
        ["task=inpaint_box"],
        "did you mean operator=inpaint_box?",
    ),
    "help in place of a choice": (
        "train",
        ["optimizer=--help"],
        "`blackout choices optimizer` says what each is",
    ),
    "a setting of train.py": (
        "sample",
        ["trainer.max_steps=3"],
        "is only a setting of train.py",
    ),
    "a setting of another choice": (
        "train",
        ["network=mlp", "network.body.channels=3"],
        "did you mean network.",
    ),
    "what another template calls a group": ("train", ["model=unet"], "did you mean network?"),
    "a group without a key of its own": (
        "train",
        ["lr_scheduler=cosine"],
        "did you mean lr_schedule?",
    ),
    "a choice that several other groups have": (
        "train",
        ["callbacks=none"],
        "callbacks=none: no such choice; one of default, early_stopping",
    ),
    "a setting that resembles none": (
        "train",
        ["trainer.foo=1"],
        "trainer.foo: no such setting; trainer has max_steps, precision",
    ),
}


def test_a_dataset_that_is_a_file_or_folder_is_explained(tmp_path):
    """The words to type are in the message."""
    file = tmp_path / "cells.npy"
    file.touch()
    for path, choice in ((file, "counts"), (tmp_path, "image_folder")):
        message = explain(ValueError("text"), "train", [f"dataset={path}"])
        assert f"did you mean dataset={choice} dataset.path={path}?" in message


@pytest.mark.parametrize(
    ("group", "choice"), [("metrics", "none"), ("callbacks", "default"), ("trainer", "cpu")]
)
def test_a_group_without_a_choice_names_one_that_exists(monkeypatch, capsys, group, choice):
    monkeypatch.setattr("sys.argv", ["train.py", f"{group}=null"])
    with pytest.raises(SystemExit) as end:
        run_train()
    message = capsys.readouterr().err
    assert end.value.code == 2 and f"such as {group}={choice}; or omit it" in message


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_owner_of_a_setting_or_choice_is_named(name):
    program, words, expected = ELSEWHERE[name]
    assert expected in explain(ValueError("Hydra's own text"), program, words)


def test_a_package_that_is_not_on_the_path_is_named():
    with pytest.raises(UserError, match="absent_package cannot be imported: type PYTHONPATH="):
        find_target({"_target_": "absent_package.data.stars"}, "dataset")
    with pytest.raises(UserError, match="cannot be found"):
        find_target({"_target_": "blackout.absent.stars"}, "dataset")


def test_a_wrong_setting_of_a_component_that_cannot_be_imported_is_not_blamed(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "stars.yaml").write_text(
        "_target_: absent_package.stars\nphotons: 1.0\n"
    )
    words = [
        "--config-dir",
        str(tmp_path),
        "dataset=stars",
        "recipe=blackout/none",
        "dataset.size=3",
    ]
    assert "absent_package cannot be imported" in explain(ValueError("text"), "train", words)


@pytest.mark.deep
def test_help_that_is_piped_to_head_prints_no_error():
    command = f"{shlex.quote(sys.executable)} train.py family=flow target=ising --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""


@pytest.mark.deep
@pytest.mark.parametrize("family", ["codes", "energy", "flow", "shuffle"])
def test_a_missing_letter_in_a_setting_of_another_family_is_found(family):
    """Typed without family=; the name is suggested with the families that have it."""
    with initialized_hydra():
        family_config = OmegaConf.to_container(
            hydra.compose("train", [f"family={family}"]), resolve=False
        )
        default = OmegaConf.to_container(hydra.compose("train"), resolve=False)
    names = sorted(name for name in family_config.keys() - default.keys() if len(name) > 5)
    assert names
    for name in names[:4]:
        typed = name[:2] + name[3:]
        message = explain(ValueError("text"), "train", [f"{typed}=3"])
        assert f"did you mean {name}" in message and f"family={family}" in message, message
