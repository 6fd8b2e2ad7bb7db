"""Every dataset of permutations and puzzles yields a model of codes with a valid description."""

import json

import numpy as np
import pytest

from blackout.cli.from_data import make_model
from blackout.config.allowed_components import (
    check_components,
    component_from_file,
    copy_plain_values,
)
from blackout.config.instantiate import instantiate
from blackout.permutations import all_permutations
from blackout.permutations.coded import CodeModel
from tests.cli.test_configs import composed

USER_FILES = {"permutations": "mine.npy", "rankings": "ratings.csv", "items": "items.npz"}
EMBEDDED = (
    "cycles",
    "mallows",
    "plackett_luce",
    "synthetic_rankings",
    "one_permutation",
    "jigsaw_digits",
    "sort_digits",
    "tsp",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one file of every kind."""
    directory = tmp_path_factory.mktemp("files")
    np.save(directory / "mine.npy", all_permutations(4).numpy())
    rows = [f"{user},{item},{1 + (user * item) % 5}" for user in range(6) for item in range(12)]
    (directory / "ratings.csv").write_text("\n".join(["userId,movieId,rating", *rows]) + "\n")
    np.savez(directory / "items.npz", items=np.arange(60.0).reshape(5, 4, 3))
    return directory


@pytest.mark.parametrize(
    "dataset, objective",
    [
        *((name, "masked") for name in (*EMBEDDED, *USER_FILES)),
        ("mallows", "autoregressive"),
        ("rankings", "autoregressive"),
    ],
)
def test_models_are_built_and_described(folder, dataset, objective):
    options = [f"dataset.path={folder / USER_FILES[dataset]}"] if dataset in USER_FILES else []
    options += ["dataset.min_raters=1"] if dataset == "rankings" else []
    options += ["dataset.length=5"] if dataset == "cycles" else []
    config = composed(
        "family=codes", f"dataset={dataset}", f"objective={objective}", "network.width=16", *options
    )
    family = instantiate(config["family"], "family")
    source = family.source(config)
    model = make_model(family, config, source)
    assert isinstance(model, CodeModel) and model.length == source.length
    family.dry_run(model)
    description = copy_plain_values(json.loads(json.dumps(model.config)), "file")
    assert description == model.config and str(folder) not in json.dumps(description)
    for section in ("family", "model"):
        check_components(description[section], section)
    if dataset not in USER_FILES:
        component_from_file(description["dataset"], "dataset", "data")
    rebuilt = family.build({**description, "blackout": "x"}, model.tensors())
    assert {k: v.shape for k, v in rebuilt.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items() if not k.startswith("ema.")
    }


@pytest.mark.parametrize("dataset", ["cycles", "jigsaw_digits", "mallows", "synthetic_rankings"])
def test_datasets_with_a_recipe_are_scored(dataset):
    config = composed("family=codes", f"dataset={dataset}")
    assert config["family"]["_target_"].endswith("CodeFamily") and config["ema_decay"] == 0.99
    assert config["metrics"] == {"_target_": "blackout.permutations.coded.CodeScorer"}
