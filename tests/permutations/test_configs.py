"""The components that the YAML files of puzzles and shuffle diffusion describe can be built.

They can also be rebuilt from the description in a saved model.
"""

import inspect
import json

import numpy as np
import pytest
from hydra.utils import get_method

from blackout.cli.from_data import make_model
from blackout.config.allowed_components import (
    check_components,
    component_from_file,
    copy_plain_values,
)
from blackout.config.choices import list_choices, load_choice
from blackout.config.instantiate import instantiate
from blackout.permutations import datasets
from blackout.permutations.shuffle import ShuffleDiffusion
from tests.cli.test_configs import composed

CHOICES = [
    *(f"{group}={name}" for group in ("shuffle", "reverse") for name in list_choices(group)),
    *(f"loss={name}" for name in ("trajectory", "random_time", "label_free", "sinkhorn")),
    *(f"decoder={name}" for name in ("best", "greedy", "beam", "sample")),
    *(
        f"dataset={name}"
        for name in ("jigsaw_digits", "sort_digits", "one_permutation", "tsp", "items")
    ),
    "network/encoder=plain",
    "network/encoder=pieces",
    *(f"baseline={name}" for name in list_choices("baseline")),
]
REQUIRED_CHOICES = {
    "reverse=inverse_transposition": ["shuffle=transposition"],
    "reverse=inverse_insertion": ["shuffle=insertion"],
    "loss=sinkhorn": ["reverse=assignment"],
    "baseline=two_opt": ["dataset=tsp"],
}
DATASETS = {
    name: section
    for name, section in ((name, load_choice("dataset", name)) for name in list_choices("dataset"))
    if "permutations.datasets" in str(section.get("_target_"))
}


@pytest.mark.parametrize("choice", CHOICES)
def test_models_of_every_choice_can_be_built_and_rebuilt(tmp_path, choice):
    options = (
        [] if choice.startswith("dataset=") or "two_opt" in choice else ["dataset=jigsaw_digits"]
    )
    if choice == "dataset=items":
        np.savez(tmp_path / "mine.npz", items=np.random.default_rng(0).normal(size=(9, 3, 2)))
        options = [f"dataset.path={tmp_path / 'mine.npz'}"]
    config = composed("family=shuffle", choice, *REQUIRED_CHOICES.get(choice, []), *options)
    family = instantiate(config["family"], "family")
    model = make_model(family, config, family.source(config))
    assert isinstance(model, ShuffleDiffusion)
    family.dry_run(model)
    description = copy_plain_values(json.loads(json.dumps(model.config)), "file")
    assert description == model.config and str(tmp_path) not in json.dumps(description)
    check_components(description["family"], "family")
    check_components(description["model"], "model")
    if description["dataset"]:
        component_from_file(description["dataset"], "dataset", "data")
    rebuilt = family.build(description, {})
    rebuilt.network.load_state_dict(model.network.state_dict())


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_is_a_function_of_its_name_with_the_same_options(name):
    section = DATASETS[name]
    assert section["_target_"] == f"{datasets.__name__}.{name}" and name in datasets.__all__
    parameters = inspect.signature(get_method(section["_target_"])).parameters
    assert section.keys() - {"_target_"} <= parameters.keys()
