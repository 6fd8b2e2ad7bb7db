"""Every choice of conf/ can be built, with the choices that it needs, and built from a file."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.cli.build_trainer import build_callbacks, build_trainer
from blackout.cli.from_data import make_model
from blackout.cli.training_settings import apply_precision, choose_length
from blackout.config.allowed_components import (
    check_components,
    component_from_file,
    copy_plain_values,
    find_allowed,
)
from blackout.config.choices import list_choices, list_groups
from blackout.config.instantiate import instantiate
from blackout.diffusion.model import BlackoutDiffusion
from blackout.files import CONF
from tests.cli.test_configs import composed
from tests.cli.test_experiments import SHAPES, stand_in

# what only YAML files of other families say: tests of these make them
OTHER_FAMILIES = re.compile(
    r"blackout\.(permutations|flows|posterior|energy)|networks\.(SetTransformer|LE\w+|\w+Encoder)|family=(shuffle|flow)"
    r"|override /(family|reverse)|\$\{rollout|lesite_graph|dnfs_\w+_small|experiment/codes"
    r"|borders|label_free_3|trajectory_3|le(conv|gf|tf)_published"
)
# of settings of other families, and of sample.py alone
OTHER_GROUPS = {
    "baseline",
    "decoder",
    "energy",
    "family",
    "negative",
    "noise",
    "operator",
    "posterior",
    "refine",
    "reverse",
    "shuffle",
    "simulation",
    "sizes",
    "target",
    "task",
}
# choices for trained models (test_conditioning.py), for no data, and for students
# (tests/diffusion/test_distillation.py)
NOTHING_TO_TRAIN = [
    ("dataset", "none"),
    ("experiment", "distill"),
    ("metrics", "model"),
    ("sampler", "joint_bridge"),
    ("sampler", "model"),
]


def offered_choices():
    """Yield (group, choice) of the default family; test_experiments.py trains experiments."""
    for group in list_groups():
        if group.partition("/")[0] in OTHER_GROUPS:
            continue
        for choice in list_choices(group):
            paper, _, _ = choice.rpartition("/")
            elsewhere = (
                group in ("experiment", "recipe")
                and paper != {"experiment": "", "recipe": "blackout"}[group]
            )
            text = (CONF / group / f"{choice}.yaml").read_text()
            if not elsewhere and not OTHER_FAMILIES.search(f"{group}/{choice}: {text}"):
                yield group, choice


CHOICES = [(group, choice) for group, choice in offered_choices()]
# groups whose choices need no others: one choice of each is built at a time
COMBINED_GROUPS = (
    "schedule",
    "sampler/grid",
    "logger",
    "optimizer",
    "callbacks",
    "trainer",
    "loss",
    "head",
    "sampler",
    "metrics",
)
# ends of names of choices that take a second
LARGE = ("celeba64", "cifar10")
NEEDED_OPTIONS = {
    ("head", "birth_death"): ["process=birth_death"],
    ("head", "levels"): ["process=uniform"],
    ("head", "logistic"): ["process=uniform"],
    ("loss", "birth_death"): ["process=birth_death"],
    ("loss", "cross_entropy"): ["process=uniform"],
    ("loss", "rates"): ["process=uniform"],
    ("loss", "steps"): ["process=discrete_uniform"],
    ("loss", "steps_d3pm"): ["process=discrete_uniform"],
    ("metrics/extractor", "module"): ["metrics=custom"],
    ("metrics", "custom"): [
        "metrics.extractor.module._target_=torch.nn.Flatten",
        "metrics.extractor.num_features=192",
    ],
    ("network", "ncsnpp"): ["network.body.channels=32"],
    ("network", "ncsnpp_published"): ["network.body.channels=32"],
    ("network", "transformer_sedd"): ["network.body.width=48", "network.body.depth=2"],
    ("recipe", "blackout/cifar10_scaled"): ["network.body.channels=32"],
    ("sampler", "birth_death_bridge"): ["process=birth_death"],
    ("sampler", "level_bridge"): ["process=uniform"],
    ("sampler", "posterior_bridge"): ["head=logistic_mixture"],
    ("sampler", "posterior_trapezoidal"): ["head=logistic_mixture"],
    ("sampler", "tau_leap"): ["process=uniform"],
    ("sampler/correction", "level"): ["process=uniform"],
    ("schedule", "steps"): ["process=discrete_absorbing"],
}


def needed_options(group, choice, folder):
    options = list(NEEDED_OPTIONS.get((group, choice), []))
    if group == "metrics/extractor":
        options = options or ["metrics=inception"]
        if choice == "module":
            options += [
                "metrics.extractor.num_features=192",
                "metrics.extractor.module._target_=torch.nn.Flatten",
            ]
    if choice in ("generator", "discrete"):
        chain = 0.8 * np.eye(17) + 0.2 / 17
        np.save(folder / "matrix.npy", chain if choice == "discrete" else 5 * (chain - np.eye(17)))
        options += [f"process.matrix={folder / 'matrix.npy'}"]
    if choice.endswith("counts") and group in ("dataset", "recipe"):
        np.save(folder / "counts.npy", np.arange(400).reshape(50, 8) % 7)
        options += ["dataset=counts", f"dataset.path={folder / 'counts.npy'}"]
    if choice == "image_folder":
        for number in range(12):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
        options += [f"dataset.path={folder}", "dataset.size=16"]
    return options


def cases():
    """Choices that are made together."""
    trainable = [choice for choice in CHOICES if choice not in NOTHING_TO_TRAIN]
    combined = [
        [choice for choice in trainable if choice[0] == group and choice not in NEEDED_OPTIONS]
        for group in COMBINED_GROUPS
    ]
    for row in itertools.zip_longest(*combined):
        yield [choice for choice in row if choice]
    for choice in trainable:
        if choice not in itertools.chain(*combined):
            yield [choice]


def case_name(choices):
    return " ".join(map("=".join, choices))


def is_slow(choices):
    return choices[0][0] == "experiment" or choices[0][1].endswith(LARGE)


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param(case, id=case_name(case), marks=[pytest.mark.deep] if is_slow(case) else [])
        for case in cases()
    ],
)
def test_every_choice_can_be_built(tmp_path, monkeypatch, choices):
    for name in SHAPES:
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    monkeypatch.setattr(
        torch.nn.init, "kaiming_uniform_", lambda tensor, *_, **__: torch.nn.init.zeros_(tensor)
    )
    options = []
    for group, choice in choices:
        options += [f"{group}={choice}", *needed_options(group, choice, tmp_path)]
    config = composed(
        *options, f"runs_dir={tmp_path}", "trainer.accelerator=cpu", "trainer.devices=1"
    )
    family = instantiate(config["family"], "family")
    source = family.source(config)
    model = make_model(family, config, source)
    assert isinstance(model, BlackoutDiffusion)
    family.check_sampler(model, scored=False)
    family.dry_run(model)
    settings = apply_precision(choose_length(config, family, source), tmp_path)
    build_trainer(settings, tmp_path, build_callbacks(settings, tmp_path, family))
    check_round_trip(model.config, str(tmp_path))


def check_round_trip(description, folder):
    """A description in a model file holds no path, and nothing that loading it would refuse."""
    read = copy_plain_values(json.loads(json.dumps(description)), "file")
    assert read == description and folder not in json.dumps(read)
    for section in ("family", "model"):
        check_components(read[section], section)
    for section in ("dataset", "metrics"):
        if read[section] and not is_for_command_line(json.dumps(read[section])):
            component_from_file(read[section], section, "data")


def is_for_command_line(text):
    """Whether only the command line may choose something in it."""
    components = [
        find_allowed(name, section)
        for section in ("dataset", "metrics")
        for name in re.findall(r'"(blackout[\w.]+)"', text)
    ]
    return any(target and target[1].command_line is not None for target in components)
