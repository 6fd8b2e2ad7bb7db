"""Command lines that users of Lightning and Hydra know work, or are answered with advice."""

import json
import math
import re
from importlib.metadata import version

import hydra
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pytorch_lightning.callbacks import RichProgressBar

from blackout import load_model
from blackout.cli import choices
from blackout.cli.choices import WIDTH
from blackout.cli.provenance import git_commit
from blackout.config.choices import describe_choice, list_choices, list_groups
from blackout.config.compose import initialized_hydra
from blackout.config.explain import COMPOSITION_ERRORS
from tests.cli.conftest import ROOT, TINY

QUICK = (*TINY, "metrics=none", "callbacks.samples=null")


def settings(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("train", list(overrides)), resolve=True)


@pytest.mark.parametrize(
    "argument, words",
    [
        ("trainer.max_epochs=3", ["lengths are in optimiser steps"]),
        ("+trainer.max_epochs=3", ["trainer.max_steps=59", "3", "digits"]),
        ("trainer.min_epochs=1", ["lengths are in optimiser steps"]),
        ("trainer.max_stops=3", ["max_steps"]),
        (
            "trainer.max_steps=1000000000000000000",
            ["trainer.max_steps must be a whole number from 1 to 10,000,000,000"],
        ),
        ("trainer.fast_dev_run=true", ["debug=fast"]),
        ("trainer.logger=false", ["logger=none"]),
        ("optimizer.lr=abc", ["optimizer.lr must be a number"]),
        ("ema_decay='null'", ["ema_decay must be a number or null, not 'null'"]),
        ("optimizer.factory.betas=[2,3]", ["optimizer", "beta"]),
        ("+optimizer.factory.amsgrad=-0.5", ["optimizer.factory.amsgrad must be true or false"]),
        ("optimizer.factory.amsgrad=true", ["+optimizer.factory.amsgrad=true sets it"]),
        ("sampler=[]", ["sampler must be a component"]),
        ("init_from=/nowhere", ["/nowhere"]),
        ("ckpt_path=/nowhere", ["/nowhere"]),
        ("dataset=counts", ["dataset.path must be given"]),
        ("metrics=null", ["metrics=none"]),
        ("logger=csv,wandb", ["logger=[csv,wandb]", "-m"]),
        ("dataset.path=/data/my file (1).npy", ["quotes"]),
    ],
)
def test_a_refused_start_says_what_to_type_and_leaves_no_files(run, tmp_path, argument, words):
    runs = tmp_path / "runs"
    run("train", *QUICK, f"runs_dir={runs}", argument).assert_refused(*words)
    assert not runs.exists()


def test_loggers_are_combined():
    assert set(settings("logger=[tensorboard,wandb]")["logger"]) == {"tensorboard", "wandb"}
    assert not settings("logger=none")["logger"] and settings("logger=none") == settings(
        "logger=csv"
    )


@pytest.mark.deep
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_other_optimisers_train_and_continue_exactly(run, tmp_path, optimizer):
    options = (*QUICK, f"optimizer={optimizer}", f"runs_dir={tmp_path}")
    for name, stops in (("whole", [4]), ("parts", [2, 4])):
        for steps in stops:
            outcome = run("train", *options, f"run_id={name}", f"trainer.max_steps={steps}")
            assert outcome.code == 0, outcome.err
    samples = [load_model(tmp_path / "digits" / name).sample(4) for name in ("whole", "parts")]
    assert torch.equal(*samples)


def test_a_run_starts_from_weights_and_from_checkpoints(run, tmp_path):
    options = (*QUICK, f"runs_dir={tmp_path}")
    assert run("train", *options, "run_id=first", "trainer.max_steps=2").code == 0
    first = tmp_path / "digits" / "first"
    assert (
        run("train", *options, "run_id=on", f"ckpt_path={first}", "trainer.max_steps=4").code == 0
    )
    assert run("train", *options, "run_id=first", "ckpt_path=last", "trainer.max_steps=4").code == 0
    assert torch.equal(
        load_model(tmp_path / "digits" / "on").sample(4), load_model(first).sample(4)
    )

    frozen = ("optimizer.lr=1e-30", "seed=5", "trainer.max_steps=1")
    tuned = run("train", *options, *frozen, "run_id=tuned", f"init_from={first}")
    assert tuned.code == 0, tuned.err
    tuned_weights, first_weights = (
        load_model(tmp_path / "digits" / name).network.state_dict() for name in ("tuned", "first")
    )
    assert all(
        torch.allclose(tuned_weights[name], first_weights[name], atol=1e-12)
        for name in first_weights
    )
    outcome = run(
        "train",
        *options,
        "run_id=other",
        f"init_from={first}",
        "network.body.width=12",
        "trainer.max_steps=1",
    )
    outcome.assert_refused("has another network than this run")

    report = json.loads((first / "metrics.json").read_text())
    versions = report["made_with"]
    assert (
        versions["versions"]["torch"] == version("torch")
        and versions["python"]
        and versions["device"].startswith("cpu")
    )
    assert versions["git_commit"] == git_commit() and report["seconds"] > 0 and report["date"]
    data = load_model(first).config["data"]
    assert report["data"]["name"] == data["name"] and len(report["data"]["train_sha256"]) == 64
    header = (first / "metrics.csv").read_text().splitlines()[0]
    assert {"train/learning_rate", "train/gradient_norm"} <= set(header.split(","))


@pytest.mark.deep
def test_a_model_with_classes_is_bounded_with_and_without_them(run, tmp_path):
    options = (
        *QUICK,
        "conditional=true",
        "label_dropout=0",
        f"runs_dir={tmp_path}",
        "run_id=a",
        "trainer.max_steps=4",
    )
    options += ("optimizer.factory.betas=[0,0.99]",)
    assert run("train", *options, "optimizer.lr=0.02").code == 0
    directory = tmp_path / "digits" / "a"
    outcome = run(
        "sample",
        f"ckpt={directory}",
        "num_samples=4",
        "evaluate=true",
        "metrics=none",
        "likelihood.images=359",
        "likelihood.repeats=4",
        f"out={tmp_path / 'out'}",
    )
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "out" / "metrics.json").read_text())
    values, validated = (
        report["values"],
        json.loads((directory / "metrics.json").read_text())["values"],
    )
    assert math.isclose(values["bits_per_dim_test"], validated["test/bits_per_dim"], rel_tol=0.03)
    assert values["bits_per_dim_test_unconditional"] != values["bits_per_dim_test"]
    assert (
        report["data"]["test_sha256"]
        and report["made_with"]["versions"]["numpy"]
        and report["seconds"] > 0
    )


def test_a_profile_is_printed(run, tmp_path):
    profile = ("trainer.profiler=simple", "trainer.max_steps=2", f"runs_dir={tmp_path}")
    outcome = run("train", *QUICK, *profile)
    assert outcome.code == 0 and "run_training_epoch" in outcome.out


@pytest.mark.deep
def test_the_progress_bar_counts_steps_of_repeated_batches(run, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(
        RichProgressBar, "_update", lambda self, bar, current, *_, **__: lines.append(current)
    )
    bar = [option for option in QUICK if option != "callbacks.progress=null"]
    overfit = ("trainer.overfit_batches=1", "trainer.max_steps=5", "trainer.val_check_interval=1")
    outcome = run("train", *bar, *overfit, f"runs_dir={tmp_path}")
    assert outcome.code == 0 and [n for n in dict.fromkeys(lines) if n <= 5][-1] == 5, (
        lines,
        outcome.err,
    )


@pytest.mark.parametrize("program", ["train", "sample"])
def test_help_has_examples_groups_by_family_and_all_settings(run, program):
    outcome = run(program, "--help")
    assert outcome.code == 0 and f"python {program}.py" in outcome.out
    assert "blackout choices <group>" in outcome.out and "sampler, sampler/grid" in outcome.out
    listed = yaml.safe_load((ROOT / f"conf/{program}.yaml").read_text())
    for name in listed.keys() - {"defaults", "hydra"}:
        assert re.search(rf"^{name}:", outcome.out, re.MULTILINE), name


def composes(program, *words):
    with initialized_hydra():
        try:
            hydra.compose(program, list(words))
        except COMPOSITION_ERRORS:
            return False
    return True


@pytest.mark.deep
@pytest.mark.parametrize("family", [*list_choices("family"), None])
def test_every_group_of_every_family_has_help(run, family):
    """The first choice of every group that goes with the family; None is sample.py."""
    program = "train" if family else "sample"
    words = [f"family={family}"] if family else []
    template = OmegaConf.load(ROOT / f"conf/{program}.yaml").hydra.help.template
    tested = set()
    for group in list_groups():
        if group == "family" or group.startswith("recipe/"):
            continue
        choice = next(
            (name for name in list_choices(group) if composes(program, *words, f"{group}={name}")),
            None,
        )
        if choice is None:
            continue
        tested.add(group)
        outcome = run(program, *words, f"{group}={choice}", "--help")
        assert outcome.code == 0 and "Settings, <name>=<value>" in outcome.out, (
            group,
            choice,
            outcome.err,
        )
        wide = [line for line in outcome.out.splitlines() if len(line) > WIDTH]
        assert not wide, (group, choice, wide)
        assert re.search(rf"[ ,]{group}[,;\n]", template), f"--help does not name the group {group}"
    assert len(tested) > 5


@pytest.mark.parametrize("program", ["train", "sample"])
def test_groups_that_help_names_exist(program):
    template = OmegaConf.load(ROOT / f"conf/{program}.yaml").hydra.help.template
    table = template.split("comments:\n\n")[1].split("\n\nSettings")[0]
    lists = [re.split(r"\s{2,}", line.strip())[-1] for line in table.splitlines()]
    named = set(re.findall(r"[a-z_/]+", " ".join(lists).replace("of family=energy also", "")))
    assert named <= set(list_groups()), named - set(list_groups())
    assert {"dataset", "sampler", "target", "decoder"} <= named


def test_every_choice_has_a_description():
    for group in list_groups():
        for choice in list_choices(group):
            assert describe_choice(group, choice), (
                f"{group}={choice}: the file begins with a comment that says what it is"
            )


def test_choices_fit_a_terminal_of_100_columns(capsys):
    for words in ([], *([group] for group in list_groups())):
        choices.main(words)
        lines = capsys.readouterr().out.splitlines()
        # settings are not broken, so that they can be copied
        assert not [line for line in lines if len(line) > WIDTH and len(line.split()) > 1], words


def test_settings_of_a_choice_are_shown_with_their_comments(capsys):
    choices.main(["dataset=counts"])
    output = capsys.readouterr().out
    assert (
        output.startswith("# Your own counts") and "holdout: 0.1 # share of the samples" in output
    )
    with pytest.raises(SystemExit) as ended:
        choices.main(["dataset=digit"])
    assert ended.value.code == 2 and "did you mean digits?" in capsys.readouterr().err


def test_choices_are_listed_with_the_first_comment_of_each(capsys):
    choices.main(["optimizer"])
    assert "optimizer=adamw  Adam with decoupled weight decay" in capsys.readouterr().out
    choices.main([])
    assert "dataset " in (listed := capsys.readouterr().out) and "sampler/grid " in listed
    with pytest.raises(SystemExit) as exit_info:
        choices.main(["optimiser"])
    assert exit_info.value.code == 2 and "did you mean optimizer?" in capsys.readouterr().err


def test_groups_in_a_user_folder(run, tmp_path):
    folder = tmp_path / "conf" / "optimizer"
    folder.mkdir(parents=True)
    (folder / "slow.yaml").write_text("defaults: [adam]\nfactory: { eps: 1.0e-3 }\n")
    outcome = run(
        "train",
        "--config-dir",
        tmp_path / "conf",
        "optimizer=slow",
        "--cfg",
        "job",
        "-p",
        "optimizer.factory",
    )
    assert outcome.code == 0 and "eps: 0.001" in outcome.out
