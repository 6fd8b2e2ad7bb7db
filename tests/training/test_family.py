"""In every family `model.sample` equals the family's draw, and descriptions are complete."""

import json

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from blackout.cli.from_data import make_model
from blackout.cli.run_directory import read_setting
from blackout.component import leaves
from blackout.config.allowed_components import check_components, copy_plain_values
from blackout.config.descriptions import add_defaults, complete_description
from blackout.config.instantiate import instantiate
from blackout.errors import UserError
from blackout.flows.model import GraphFlow
from tests.cli.conftest import ROOT, TINY

NARROW = ("network.width=8", "network.depth=1", "network.heads=2")
ROLLOUT = (
    "rollout.num_times=3",
    "rollout.chains=8",
    "rollout.group_size=8",
    "simulation.num_steps=3",
)
FAMILIES = {
    "blackout": (*TINY, "metrics=none"),
    "levels": (*TINY, "process=uniform", "metrics=none"),
    "flow": ("family=flow", "~dataset", "target.size=2", "network.channels=4", *ROLLOUT),
    "resampled flow": (
        "family=flow",
        "~dataset",
        "target.size=2",
        "network.channels=4",
        *ROLLOUT,
        "simulation.group_size=4",
        "simulation.resample_below=0.9",
    ),
    "graphs": (
        "family=flow",
        "~dataset",
        "target=mis",
        "target.num_training=4",
        "target.num_test=3",
        "target.nodes=[4,5]",
        "network.channels=4",
        *ROLLOUT,
    ),
    "energy": (
        "family=energy",
        "~dataset",
        "target=ising",
        "target.size=2",
        "energy=pairs",
        "target_samples=40",
        "rates.channels=4",
        *ROLLOUT,
    ),
    "shuffle": ("family=shuffle", "dataset=jigsaw_digits", "dataset.num_test=4", *NARROW),
    "codes": (
        "family=codes",
        "dataset=cycles",
        "dataset.length=4",
        "dataset.train_share=1",
        "passes=2",
        *NARROW,
    ),
}


@pytest.fixture(params=FAMILIES)
def family_and_model(request):
    """A family and an untrained model of it."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = OmegaConf.to_container(
            compose("train", list(FAMILIES[request.param])), resolve=True
        )
    family = instantiate(config["family"], "family")
    return family, make_model(family, config, family.source(config)).eval()


def test_samples_of_a_model_are_those_of_its_draw_bit_for_bit(family_and_model):
    family, model = family_and_model
    samples_per_input = (
        1 if isinstance(model, GraphFlow) else 6
    )  # solutions of every graph, or samples
    draw = family.draw(model, {"num_samples": samples_per_input})
    number = min(6, draw.rows(samples_per_input))
    expected = torch.cat(
        [samples["samples"].cpu() for _, samples in draw.batches(torch.arange(number), 3)]
    )
    assert torch.equal(model.sample(number, seed=3).reshape(expected.shape), expected)


def test_a_description_is_complete_and_is_what_a_file_may_hold(family_and_model):
    family, model = family_and_model
    described = json.loads(json.dumps(model.config))
    assert copy_plain_values(described, "file") == described
    check_components(described["model"], "model")
    assert add_defaults(described["model"], "model") == described["model"]
    rebuilt = family.build(described, model.tensors())
    rebuilt.network.load_state_dict(model.averaged.state_dict())
    rebuilt.source = model.source
    assert torch.equal(rebuilt.eval().sample(3, seed=1), model.sample(3, seed=1))


def test_a_part_without_a_target_is_refused(family_and_model):
    family, model = family_and_model
    for part in family.parts:
        damaged = {**model.config, "model": {**model.config["model"], part: {"width": 3}}}
        with pytest.raises(UserError, match=f"incomplete: {part} missing"):
            family.build(damaged, model.tensors())
    with pytest.raises(UserError, match="dataset must be a mapping"):
        family.build({**model.config, "dataset": 1.5}, model.tensors())
    for name in ("data.units", *family.values):  # a mapping is none of them
        section, _, last = name.rpartition(".")
        damaged = {last: {"a": 1}}
        damaged = {section: {**model.config.get(section, {}), **damaged}} if section else damaged
        with pytest.raises(UserError, match=f"{name} must be"):
            family.build({**model.config, **damaged}, model.tensors())


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"sites": int("9" * 20)}, r"rates\.sites: 9+ is too large"),
        ({"levels": 2**62}, r"rates\.levels: .* too large"),
        ({"lattice": [2**62, 2]}, "lattice"),
        ({"lattice": [1, 3]}, "lattice"),
    ],
)
def test_impossible_sizes_are_refused(wrong, word):
    with pytest.raises(UserError, match=word):
        instantiate(
            {"_target_": "blackout.networks.LESite", "sites": 4, "levels": 2, "channels": 4}
            | wrong,
            "rates",
        )


def test_settings_of_a_damaged_run_are_none(tmp_path):
    for written in ("sampler: [1]", "sampler: 3", "[1]", "{"):
        (tmp_path / "config.yaml").write_text(written)
        assert read_setting(tmp_path, "sampler", "num_steps") is None


def test_values_of_the_data_fill_a_description_before_defaults():
    stats = {
        "shape": [3],
        "max_count": 7,
        "mean": 2.0,
        "std": 1.0,
        "outputs": 2,
        "grid_ends": {"first": 5.0, "last": -9.0, "final_time": 15.0},
    }
    grid = {"_target_": "blackout.diffusion.logit_times", "_partial_": True}
    assert complete_description({**grid, "last": None}, stats, "grid") == {
        **grid,
        "first": 5.0,
        "last": -9.0,
    }
    assert complete_description(grid, stats, "grid") == {
        **grid,
        "first": 5.0,
        "last": -8.0,
    }  # its own default
    network = {
        "_target_": "blackout.networks.CountNetwork",
        "inputs": {"_target_": "blackout.networks.LevelInputs"},
        "body": {"_target_": "blackout.networks.body_for", "width": None},
    }
    complete = complete_description(network, stats, "network")
    assert complete["inputs"]["_target_"] == "blackout.networks.StateInputs"
    assert complete["body"]["_target_"] == "blackout.networks.SequenceConvolution"
    assert (
        complete["body"]["levels"] == 9
        and complete["body"]["outputs"] == 2
        and complete["body"]["shape"] == [3]
    )
    assert all(value != {} for _, value in leaves(complete))
