"""`blackout <command>`, and the messages for command lines that Hydra refuses."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from blackout.cli import anneal, main
from blackout.config.explain import explain, parse_command_line
from blackout.distributed import num_launched
from blackout.errors import UserError
from tests.processes import ROOT


def refused(*words: str) -> str:
    """What is said of a command line of train.py, whatever Hydra says."""
    return explain(ValueError("Hydra's own words"), "train", words)


def test_every_command_is_listed_in_the_help(capsys, monkeypatch):
    for name, (module, function, text) in main.COMMANDS.items():
        assert callable(getattr(import_module(module), function)) and text, name
    monkeypatch.setattr(sys, "argv", ["blackout"])
    main.main()
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in main.COMMANDS)


def test_an_unknown_command_is_refused_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["blackout", "trian"])
    with pytest.raises(SystemExit) as end:
        main.main()
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and "did you mean train?" in error


@pytest.mark.deep
@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_has_help(command):
    done = subprocess.run(
        [sys.executable, "-m", "blackout", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout and not done.stderr, done.stderr
    if command not in (
        "train",
        "sample",
    ):  # which `test_every_group_of_every_family_has_help` looks at
        assert max(map(len, done.stdout.splitlines())) <= 100


def test_flags_of_hydra_are_no_overrides():
    flags = ["--config-dir", "mine", "--cfg", "job", "--info", "searchpath"]
    line = parse_command_line(["-m", "seed=1,2", *flags, "~callbacks"])
    assert (
        line.overrides == ["seed=1,2", "~callbacks"] and line.multirun and line.folders == ["mine"]
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (["dataset=cifr10"], "dataset=cifr10: no such choice (did you mean cifar10?)"),
        (["experiment=dnfs"], "is a folder: add a slash and one of figure1"),
        (
            ["dataset=tsp"],
            "dataset=tsp is not for family=blackout, but for family=codes or family=shuffle",
        ),
        (["network=unet", "network.channels=16"], "did you mean network.body.channels?"),
        (["learning_rate=3"], "did you mean optimizer.lr?"),
        (["seed=1,2"], "seed=1,2 is a sweep, which needs -m; a list is seed=[1,2]"),
        (["dataset=["], "dataset=[ cannot be understood"),
        (["+seed=3"], "seed is a setting already: leave out the +"),
        (["optimizer.factory.amsgrad=true"], "+optimizer.factory.amsgrad=true sets it"),
        (
            ["baseline=borders"],
            "baseline=borders is not for family=blackout, but for family=shuffle",
        ),
        (["dataset=counts"], "dataset.path must be given: dataset.path=..."),
        (["trainer.max_epochs=3"], "lengths are in optimiser steps: trainer.max_steps=..."),
        (["seed=3"], "this command line cannot be understood: Hydra's own words"),
    ],
)
def test_the_wrong_word_of_a_command_line_is_named(words, message):
    assert message in refused(*words)


def test_a_row_that_an_experiment_does_not_have_is_named_with_those_it_has(run):
    run("train", "experiment=dnfs/table1", "graphs=tiny").assert_refused(
        "graphs=tiny: no such choice; one of small, medium, large"
    )


@pytest.mark.deep
def test_an_experiment_may_use_the_settings_of_one_that_it_is_based_on(run, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults: [/experiment/dnfs/table1]\nexperiment_name: mine\n"
    )
    words = (
        "experiment=mine",
        "recipe=flow/sets",
        "graphs=medium",
        "plan=true",
        f"runs_dir={tmp_path}",
    )
    outcome = run("train", f"hydra.searchpath=[file://{tmp_path}]", *words)
    assert outcome.code == 0, outcome.err
    assert "32 to 40 nodes" in outcome.out


@pytest.mark.parametrize("values", ["adamw,sdg", "sdg,adamw"])
def test_every_value_of_a_sweep_is_looked_at(values):
    assert "did you mean sgd?" in refused("-m", "seed=1,2", f"optimizer={values}")


def test_choices_of_a_user_folder_are_known(tmp_path):
    (tmp_path / "head").mkdir()
    (tmp_path / "head/mine.yaml").write_text("_target_: mine.Head\n")
    for words in (["--config-dir", str(tmp_path)], [f"hydra.searchpath=[file://{tmp_path}]"]):
        assert "did you mean mine?" in refused(*words, "head=mime")
        assert "no such setting" in refused(*words, "head=mine", "sampler.num_step=3")


@pytest.mark.parametrize(
    "word",
    [
        "__class__=1",
        "_target_=os.getcwd",
        "_partial_=true",
        "a b=1",
        "=1",
        "size",
        f"size={'[' * 100_000}",
        "size=*a",
        f"size={'9' * 5000}",
        "size=!!python/object:os.system [ls]",
    ],
)
def test_impossible_settings_of_a_target_are_refused(word):
    with pytest.raises(UserError):
        anneal._parse_settings([word])


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "3"}, 3),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, 1),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, 4),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, 4),
        (
            {
                "SLURM_NTASKS": "4",
                "SLURM_PROCID": "0",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
            },
            1,
        ),
    ],
)
def test_the_number_of_processes_that_a_launcher_started(variables, number, monkeypatch):
    for name in (
        "WORLD_SIZE",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert num_launched() == number
