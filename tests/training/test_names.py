"""Any name in the data is refused before training in one line, or the trained run can be loaded."""

import unicodedata

import numpy as np
import pytest
import torch
import yaml

from blackout import load_model
from blackout.cli.run_directory import check_run, locked_run, run_directory, write_settings
from blackout.component import thaw
from blackout.data import CountData
from blackout.diffusion import CountDiffusion
from blackout.errors import UserError
from blackout.training.checkpoint_files import FORMAT, read_checkpoint, write_checkpoint
from blackout.training.export import check_loadable, export_model
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)

CONTROLS = [chr(code) for code in (*range(0, 32), 127, 133, 160, 173)]
NAMES = [
    *CONTROLS,
    "",
    " ",
    "  x  ",
    "???",
    "${oc.env:HOME}",
    "${x}",
    "$",
    "{",
    "}",
    "${",
    "a${b",
    "%(x)s",
    "%s",
    "{0}",
    "{{ x }}",
    "null",
    "~",
    "true",
    "no",
    "1",
    "1.0",
    "1e5",
    "0x1f",
    ".nan",
    "-",
    "- a",
    "a: b",
    "a #b",
    "#",
    "&a",
    "*a",
    "!tag",
    "!!python/object:x",
    "|",
    ">",
    "'",
    '"',
    "`",
    "\\",
    "\\n",
    "a\nb",
    "---",
    "...",
    "@x",
    "a|b",
    "[a](b)",
    "a,b",
    "<script>alert(1)</script>",
    "a;b",
    "=1+1",
    "/",
    "//",
    "..",
    ".",
    "../../x",
    "C:\\x",
    "x/y",
    ".hidden",
    "-rf",
    "a" * 200,
    "a" * 201,
    "a" * 255,
    "a" * 10_000,
    "a" * 20_000,
    "\ud800",
    "\udcff",
    "\ufeff",
    "\u200b",
    "\u202e",
    "\u2028",
    "\uffff",
    "\U0001f9ec",
    "e\u0301",
    "naïve",
    "日本語",
    "\U0010ffff",
    "_target_",
    "network.x",
    "None",
    'Gene; "x" (v2)',
    np.str_("numpy"),
    "a\tb",
    "__class__",
    "model",
    "*",
    "a?b",
    "[x]",
    "\x1b[31m",
]
PARTS = {
    "network": {
        "_target_": "blackout.networks.CountNetwork",
        "inputs": {"_target_": "blackout.networks.StandardisedInputs"},
        "body": {"_target_": "blackout.networks.ResidualMLP", "width": 4, "depth": 1},
    },
    "head": {"_target_": "blackout.diffusion.ScaledHead"},
    "process": {"_target_": "blackout.diffusion.PureDeath"},
    "schedule": {"_target_": "blackout.diffusion.Schedule"},
    "loss": {"_target_": "blackout.diffusion.CountLoss"},
    "sampler": {"_target_": "blackout.diffusion.Sampler", "num_steps": 3},
    "conditional": True,
}


def model_of(**facts):
    source = CountData(
        facts.get("name", "toy"),
        torch.arange(6).view(3, 2),
        torch.arange(4).view(2, 2),
        6,
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 1]),
        class_names=("a", facts.get("class", "b"), "c"),
        features=("g", facts.get("gene", "h")),
        from_anndata=True,
        covariates={facts["covariate"]: (1.0, 2.0, 3.0)} if "covariate" in facts else {},
    )
    family = CountDiffusion()
    description = {
        "family": {"_target_": "blackout.diffusion.CountDiffusion"},
        **family.describe(PARTS, source),
    }
    return family.build(description, family.tensors(source))


def test_at_least_a_hundred_names_are_tried():
    assert len(set(NAMES)) >= 100 and {unicodedata.category(name[0]) for name in NAMES if name} > {
        "Cc",
        "Cf",
        "Cs",
    }


@pytest.mark.parametrize(
    "fact, written",
    [
        ("class", 12),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (("class", 1), ("name", 20), ("gene", 20), ("covariate", 20))
        ),
    ],
)
def test_names_are_refused_before_training_or_can_be_loaded(tmp_path, fact, written):
    refused = {}
    for number, name in enumerate(NAMES):
        try:
            model = model_of(**{fact: name})
            check_loadable(model.config)
        except UserError as error:
            refused[name] = str(error)
            continue
        if number % written:
            continue  # the check reads both forms already; writing all of them takes seconds
        export_model(model, tmp_path / "model")
        assert load_model(tmp_path / "model").config["data"] == model.config["data"]
        state = {
            f"network.{key}": value for key, value in model.network.state_dict().items()
        } | model.tensors()
        described = {"format": FORMAT, **thaw(model.config)}
        write_checkpoint({"state_dict": state, "blackout": described}, tmp_path / "x.ckpt")
        assert read_checkpoint(tmp_path / "x.ckpt")["blackout"]["data"] == model.config["data"]
    good = {"日本語", "a: b", "???"}
    bad = {"a" * 20_000, "\udcff", "${oc.env:HOME}"}
    assert (
        bad - ({"${oc.env:HOME}"} if fact == "covariate" else set()) <= refused.keys()
        and not good & refused.keys()
    )
    assert not [line for line in refused.values() if "\n" in line or len(line) > 400]


@pytest.mark.parametrize("place", ["run_id", "experiment_name", "setting"])
def test_a_run_of_any_name_is_refused_or_continued(tmp_path, place):
    refused = {}
    for number, name in enumerate(NAMES):
        config = {
            "experiment_name": f"e{number}",
            "run_id": "a",
            "runs_dir": str(tmp_path),
            "dataset": {"path": "x"},
        }
        changed = config | ({"dataset": {"path": name}} if place == "setting" else {place: name})
        try:
            with locked_run(run_directory(changed, "x")) as directory:
                check_run(directory, changed)
                write_settings(directory, changed)
        except UserError as error:
            refused[name] = str(error)
            continue
        assert (
            yaml.safe_load((directory / "config.yaml").read_text())["dataset"] == changed["dataset"]
        )
        assert directory.is_relative_to(tmp_path)
        check_run(directory, changed)
    assert "\ud800" in refused and "日本語" not in refused
    assert not [line for line in refused.values() if "\n" in line]


@pytest.mark.parametrize(
    "name, fate",
    [
        ("${oc.env:HOME}", "refused"),
        pytest.param('it\'s "???", <b>naïve</b>: {x}', "loaded", marks=pytest.mark.deep),
    ],
)
def test_a_class_of_a_table_from_training_to_samples(run, tmp_path, name, fate):  # noqa: F811
    quoted = '"' + name.replace('"', '""') + '"'
    rows = [f"{k % 5},{k % 3},{'plain' if k % 2 else quoted}" for k in range(60)]
    (tmp_path / "cells.csv").write_text("x,y,kind\n" + "\n".join(rows) + "\n")
    dataset_settings = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'cells.csv'}",
        "dataset.labels=kind",
        "conditional=true",
    )
    small = [word for word in TINY if not word.startswith(("network", "sampler"))] + [
        "network.body.width=8"
    ]
    command = (
        *small,
        *dataset_settings,
        "metrics=none",
        "validation_draws=1",
        f"runs_dir={tmp_path / 'runs'}",
        "run_id=a",
    )
    trained = run("train", *command, "trainer.max_steps=2")
    if fate == "refused":
        trained.assert_refused(name)
        assert not (tmp_path / "runs").exists()
        return
    assert trained.code == 0, trained.err
    assert run("train", *command, "trainer.max_steps=3").code == 0
    assert run("sample", f"ckpt={tmp_path / 'runs/cells/a'}", "num_samples=2").code == 0
