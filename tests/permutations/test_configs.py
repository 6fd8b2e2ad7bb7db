"""What the YAML files of puzzles and shuffle diffusion describe can be made, and made again from a file."""

import inspect
import json
import re

import numpy as np
import pytest
from hydra.utils import get_method

from blackout.cli.from_data import make_model
from blackout.config.allowed_components import (
    check_components,
    component_from_file,
    copy_plain_values,
)
from blackout.config.choices import choices, load_choice
from blackout.config.instantiate import instantiate
from blackout.permutations import datasets, tours
from blackout.permutations.shuffle import ShuffleDiffusion
from tests.cli.test_configs import composed

CHOICES = [
    *(f"{group}={name}" for group in ("shuffle", "reverse") for name in choices(group)),
    *(f"loss={name}" for name in ("trajectory", "random_time", "label_free", "sinkhorn")),
    *(f"decoder={name}" for name in ("best", "greedy", "beam", "sample")),
    *(f"dataset={name}" for name in ("jigsaw_digits", "sort_digits", "one_permutation", "tsp", "items")),
    "network/encoder=plain", "network/encoder=pieces",
    *(f"baseline={name}" for name in choices("baseline")),
]  # fmt: skip
BESIDE = {
    "reverse=inverse_transposition": ["shuffle=transposition"], "reverse=inverse_insertion": ["shuffle=insertion"],
    "loss=sinkhorn": ["reverse=assignment"], "baseline=two_opt": ["dataset=tsp"],
}  # fmt: skip
DATASETS = {
    name: section
    for name, section in ((name, load_choice("dataset", name)) for name in choices("dataset"))
    if re.search(r"permutations\.(datasets|tours)", str(section.get("_target_")))
}


@pytest.mark.parametrize("choice", CHOICES)
def test_everything_can_be_made(tmp_path, choice):
    own = [] if choice.startswith("dataset=") or "two_opt" in choice else ["dataset=jigsaw_digits"]
    if choice == "dataset=items":
        np.savez(tmp_path / "mine.npz", items=np.random.default_rng(0).normal(size=(9, 3, 2)))
        own = [f"dataset.path={tmp_path / 'mine.npz'}"]
    config = composed("family=shuffle", choice, *BESIDE.get(choice, []), *own)
    family = instantiate(config["family"], "family")
    model = make_model(family, config, family.source(config))
    assert isinstance(model, ShuffleDiffusion)
    family.dry_run(model)
    read = copy_plain_values(json.loads(json.dumps(model.config)), "file")
    assert read == model.config and str(tmp_path) not in json.dumps(read)
    check_components(read["family"], "family")
    check_components(read["model"], "model")
    if read["dataset"]:
        component_from_file(read["dataset"], "dataset", "data")
    again = family.build(read, {})
    again.network.load_state_dict(model.network.state_dict())


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_a_function_of_that_name_and_its_options(name):
    section = DATASETS[name]
    module = tours if name == "tsp" else datasets
    assert section["_target_"] == f"{module.__name__}.{name}" and name in module.__all__
    known = inspect.signature(get_method(section["_target_"])).parameters
    assert section.keys() - {"_target_"} <= known.keys()
