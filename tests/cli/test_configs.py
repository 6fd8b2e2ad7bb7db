"""Composed experiments have the settings of the papers, and recipes the stored ones."""

import inspect
import subprocess
import sys

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from blackout import from_data
from blackout.cli.build_trainer import build_callbacks, build_trainer
from blackout.cli.training_settings import apply_precision
from blackout.config.choices import describe_choice, list_choices, list_groups, load_choice
from blackout.config.compose import component_parameters
from blackout.config.instantiate import find_target
from blackout.data import CountData
from blackout.diffusion import CountDiffusion
from blackout.diffusion.latent_features import latent_features
from blackout.files import CONF


def composed(*overrides, name="train"):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(name, list(overrides)), resolve=True)


def completed(part):
    """A part with what its YAML leaves out: the defaults of its components."""
    if not isinstance(part, dict):
        return part
    parameters = component_parameters(OmegaConf.create({"part": part}), "part")
    defaults = {
        name: argument.default
        for name, argument in parameters.items()
        if argument.default is not argument.empty
    }
    return defaults | {name: completed(value) for name, value in part.items()}


@pytest.mark.parametrize("words", ["dataset=cifar10", "experiment=blackout/table1"])
def test_the_cifar10_recipe_has_the_settings_of_the_paper(words):
    config = completed(composed(words))
    assert config["network"]["body"]["_target_"].endswith("NCSNpp")
    assert config["network"]["inputs"] == {"_target_": "blackout.networks.PaperInputs"}
    assert config["head"]["_target_"].endswith("SoftplusHead")
    assert (
        config["schedule"]["num_steps"] == 1000 and config["schedule"]["grid"]["final_time"] == 15.0
    )
    assert (
        config["optimizer"]["lr"] == 2e-4
        and config["batch_size"] == 256
        and config["ema_decay"] == 0.9999
    )
    assert (
        config["flip"]
        and config["loss"]["weighting"] == "paper"
        and config["loss"]["kind"] == "instantaneous"
    )
    assert config["sampler"]["num_steps"] == 1000 and config["sampler"]["kernel"][
        "_target_"
    ].endswith("BinomialBridge")
    assert config["metrics"]["scores"] == ["fid", "is"] and config["trainer"]["max_steps"] == 300000
    scores = config["callbacks"]["scores"]
    assert (scores["num_samples_between"], scores["num_samples"]) == (5000, 50000)
    assert scores["every_n_steps"] % config["trainer"]["val_check_interval"] == 0


def test_the_cifar10_scaled_recipe_has_scaled_head_and_trapezoidal_sampler():
    config = composed("dataset=cifar10", "recipe=blackout/cifar10_scaled")
    assert config["head"]["_target_"].endswith("ScaledHead") and config["sampler"]["kernel"][
        "_target_"
    ].endswith("Trapezoidal")
    assert (
        config["network"]["inputs"]["_target_"].endswith("StandardisedInputs")
        and config["sampler"]["num_steps"] == 100
    )


@pytest.mark.parametrize("loss", ["instantaneous", "finite_time"])
@pytest.mark.parametrize(
    "sampler, kernel", [("binomial_bridge_nearest", "BinomialBridge"), ("poisson", "PoissonLeap")]
)
def test_all_cells_of_table_1_can_be_reached(loss, sampler, kernel):
    config = composed("experiment=blackout/table1", f"loss={loss}", f"sampler={sampler}")
    assert config["loss"]["kind"] == loss and config["sampler"]["kernel"]["_target_"].endswith(
        kernel
    )


PAPERS = {
    "table1": "nearest_rounding",
    "table2_celeba64": "nearest_rounding",
    "table1 recipe=blackout/cifar10_legacy": "nearest_rounding",
    "table2_binarized_mnist": None,
}


@pytest.mark.parametrize("experiment", PAPERS)
def test_the_papers_runs_keep_its_samplers_and_its_thousand_evaluations(experiment):
    sampler = completed(composed(*f"experiment=blackout/{experiment}".split())["sampler"])
    assert sampler["num_steps"] == 1000 and sampler["grid"] is None
    rounding = PAPERS[experiment]
    kernel = "PoissonLeap" if rounding is None else "BinomialBridge"
    assert sampler["kernel"]["_target_"].endswith(kernel)
    assert rounding is None or sampler["kernel"]["rounding"]["_target_"].endswith(rounding)


@pytest.mark.parametrize(
    "overrides, kernel, evaluations",
    [
        ([], "MultistepLeap", 25),
        (["dataset=cifar10", "recipe=blackout/cifar10_scaled"], "Trapezoidal", 199),
        (["process=birth_death"], "BirthDeathBridge", 100),
        (["process=uniform"], "LevelBridge", 100),
        (["process=absorbing"], "LevelBridge", 100),
        (["process=ordinal", "dataset=patches"], "LevelBridge", 100),
        (["process=discrete_uniform"], "LevelBridge", 100),
    ],
)
def test_the_default_sampler_is_second_order_and_other_processes_have_their_own(
    overrides, kernel, evaluations
):
    sampler = composed(*overrides)["sampler"]
    assert sampler["kernel"]["_target_"].endswith(kernel)
    per_step = 2 if kernel == "Trapezoidal" else 1
    assert per_step * sampler["num_steps"] - (per_step - 1) == evaluations


@pytest.mark.parametrize(
    "overrides, target, ends",
    [
        (["dataset=digits"], "logit_times", (None, None)),
        (["sampler/grid=logit"], "logit_times", (5.0, -8.0)),
        (["process=ordinal"], "logit_times", (9.0, -7.0)),
        (["process=ordinal", "sampler/grid=logit"], "logit_times", (5.0, -8.0)),
        (["sampler/grid=logit", "sampler.grid.last=-3"], "logit_times", (5.0, -3.0)),
        (["sampler/grid=fisher"], "fisher_times", None),
    ],
)
def test_a_chosen_grid_wins_over_the_recipes(overrides, target, ends):
    grid = completed(composed(*overrides)["sampler"]["grid"])
    assert grid["_target_"].endswith(target)
    assert ends == ((grid["first"], grid["last"]) if ends else None) and ("first" in grid) == (
        ends is not None
    )
    assert composed("process=discrete_uniform", "dataset=digits")["sampler"]["grid"] is None


def test_the_legacy_experiment_keeps_the_reference_habits():
    config = completed(composed("experiment=blackout/table1", "recipe=blackout/cifar10_legacy"))
    assert config["sampler"]["keep_dropout"] and not config["sampler"]["poisson_start"]
    assert config["sampler"]["kernel"]["rounding"]["_target_"].endswith("nearest_rounding")
    assert config["loss"]["scale"] == 1000 and config["trainer"]["precision"] == "32-true"
    assert config["network"]["body"]["dropout"] == 0.1


def test_binarised_mnist_ends_at_time_10_and_is_not_rounded():
    config = composed("experiment=blackout/table2_binarized_mnist")
    assert config["schedule"]["grid"]["final_time"] == 10.0
    assert config["sampler"]["kernel"]["_target_"].endswith("PoissonLeap")


def test_processes_exchange_no_buffers_at_every_step(tmp_path):
    config = composed(
        "trainer.strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "logger=none"
    )
    config = apply_precision(config, tmp_path)
    unscored = {**config, "metrics": None}
    trainer = build_trainer(
        unscored, tmp_path, build_callbacks(unscored, tmp_path, CountDiffusion())
    )
    assert trainer.strategy._ddp_kwargs["broadcast_buffers"] is False


@pytest.mark.parametrize("moves", ["gibbs", "dmala"])
@pytest.mark.parametrize(
    "experiment", ["flow_ising", "dnfs/figure15_leaps", "dnfs/figure5", "dnfs/table2"]
)
def test_the_moves_chosen_for_rollouts_are_those_of_the_run(experiment, moves):
    assert composed(f"experiment={experiment}")["rollout"]["refine"] is None
    rollout = composed(f"experiment={experiment}", f"refine@rollout.refine={moves}")["rollout"][
        "refine"
    ]
    assert rollout["_target_"].lower().endswith(moves.replace("_", ""))


@pytest.mark.deep
def test_recipes_are_of_a_family_and_a_dataset():
    """Each family has a recipe for a dataset, or one for all; any choice can be replaced."""
    cifar10 = composed("dataset=cifar10")
    assert (
        cifar10["network"]["body"]["_target_"].endswith("NCSNpp") and cifar10["batch_size"] == 256
    )
    assert (
        composed("dataset=cifar10", "recipe=blackout/none", "network=ncsnpp")["batch_size"] == 128
    )
    config = composed("dataset=cifar10", "network=unet", "batch_size=8")
    assert config["network"]["body"]["_target_"].endswith("UNet") and config["batch_size"] == 8
    energy = composed("family=energy", "dataset=counts", "dataset.path=x")
    assert (
        "network" not in energy
        and energy["rates"]["_target_"].endswith("LESite")
        and energy["metrics"] is None
    )
    for words in (
        ["family=flow"],
        ["family=codes"],
        ["family=energy", "~dataset"],
        ["family=energy", "dataset=none"],
    ):
        assert composed(*words)["dataset"] is None


@pytest.mark.parametrize("dataset", ["counts", "digits"])
def test_a_process_in_one_word_brings_what_it_needs_whatever_the_dataset(dataset):
    words = ("process=absorbing", f"dataset={dataset}", "dataset.path=x")[
        : 2 + (dataset == "counts")
    ]
    parts = composed(*words)
    assert parts["head"]["_target_"].endswith("LevelHead") and parts["loss"]["_target_"].endswith(
        "RateLoss"
    )
    assert (
        parts["network"]["inputs"]["_target_"].endswith("LevelInputs")
        and parts["sampler"]["num_steps"] == 100
    )
    config = composed(*words, "loss=cross_entropy", "sampler=tau_leap", "sampler.num_steps=7")
    assert (
        config["loss"]["_target_"].endswith("CrossEntropy") and config["sampler"]["num_steps"] == 7
    )
    assert config["sampler"]["kernel"]["_target_"].endswith("TauLeap")


@pytest.mark.deep
def test_settings_that_the_yaml_lists_are_changed_and_others_added():
    parts = composed(
        "network=mlp",
        "network.body.width=3",
        "trainer.max_time=00:01:00:00",
        "+optimizer.factory.amsgrad=true",
    )
    assert parts["network"]["body"]["width"] == 3 and parts["trainer"]["max_time"] == "00:01:00:00"
    assert parts["optimizer"]["factory"]["amsgrad"] is True
    for wrong in (
        "network.body.widht=3",
        "seeed=3",
        "trainer.max_stops=3",
        "optimizer.factory.amsgrad=true",
    ):
        with pytest.raises(ConfigCompositionException, match="Could not override"):
            composed("network=mlp", wrong)


def test_a_user_folder_adds_choices_data_sets_and_recipes(tmp_path):
    for group, name, text in (
        ("head", "mine", "_target_: mine.Head\n"),
        ("dataset", "cells", "_target_: mine.cells\n"),
        (
            "recipe/blackout",
            "cells",
            "# @package _global_\ndefaults: [/recipe/blackout/none]\nbatch_size: 5\n",
        ),
    ):
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / f"{name}.yaml").write_text(text)
    search_path = f"hydra.searchpath=[file://{tmp_path}]"
    parts = composed(search_path, "head=mine", "dataset=cells")
    assert parts["head"] == {"_target_": "mine.Head"} and parts["batch_size"] == 5
    assert composed(search_path, "dataset=cells", "recipe=blackout/none")["batch_size"] == 128
    assert composed(search_path, "head=gamma")["head"]["_target_"].endswith("GammaHead")


ALL_CHOICES = [(group, choice) for group in list_groups() for choice in list_choices(group)]


@pytest.mark.parametrize("group, choice", ALL_CHOICES)
def test_every_choice_has_a_description_in_its_file(group, choice):
    assert describe_choice(group, choice) or group.startswith(("recipe", "experiment", "task"))


def test_settings_of_a_choice_are_arguments_of_its_component():
    for group in ("noise", "operator", "refine", "posterior", "head", "decoder", "simulation"):
        for choice in list_choices(group):
            listed = load_choice(group, choice)
            parameters = component_parameters(OmegaConf.create({"part": listed}), "part")
            assert listed.keys() - {"_target_", "_partial_", *parameters} == set(), (group, choice)


@pytest.mark.deep
def test_conf_composes_without_the_package(tmp_path):
    """In a process that never imports it: choices of the default family, experiments and tasks."""
    script = f"""
import sys
from pathlib import Path
from hydra import compose, initialize_config_dir
conf = Path({str(CONF)!r})
all_groups = ("experiment", "task", "head", "loss", "network", "optimizer", "process", "sampler",
              "schedule")
names = {{
    group: sorted(
        str(file.relative_to(conf / group).with_suffix(""))
        for file in (conf / group).rglob("*.yaml")
    )
    for group in all_groups
}}
of_counts = ("head", "network", "optimizer", "process", "sampler", "schedule")
with initialize_config_dir(str(conf), version_base="1.3"):
    for group in ("experiment", *of_counts):
        for name in names[group]:
            if group == "experiment" or "/" not in name:
                compose("train", [f"{{group}}={{name}}"])
    for name in names["task"]:
        compose("sample", [f"task={{name}}"])
    for family in ("blackout", "codes", "energy", "flow", "shuffle"):
        compose("train", [f"family={{family}}"])
assert "blackout" not in sys.modules and "torch" not in sys.modules
print("composed", sum(map(len, names.values())))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("composed"), done.stderr


def test_few_samples_are_passed_a_hundred_times():
    """More would overfit; a latent representation of the network does not depend on the batch."""
    cells = torch.poisson(
        torch.full((3600, 6), 3.0), generator=torch.Generator().manual_seed(0)
    ).int()
    settings = composed("dataset=counts", "dataset.path=x")
    tiny_data = CountData("90", cells[:90], cells[90:100], 20)
    small_data = CountData("560", cells[:560], cells[560:600], 20)
    large_data = CountData("3,400", cells[:3400], cells[3400:], 20)
    family = CountDiffusion()
    assert family.default_steps(settings, tiny_data) == 70
    assert family.default_steps(settings, small_data) == 437
    assert family.default_steps(settings, large_data) == 2500
    model = from_data(small_data)
    features = latent_features(model, cells[:5])
    assert features.shape == (5, 256)
    assert torch.allclose(features[3:], latent_features(model, cells[3:5]), atol=1e-6)
    with pytest.raises(ValueError, match=r"counts must be \[n, "):
        latent_features(model, cells[:5, :3])
    with pytest.raises(ValueError, match="whose network is an MLP"):
        latent_features(from_data(cells[:40].view(40, 1, 2, 3)), cells[:1].view(1, 1, 2, 3))


# settings in which a choice differs from the constructor's defaults: what the choice is for
DELIBERATE = {
    "callbacks=default": "progress.refresh_rate",
    "decoder=beam_200": "inner width",
    "decoder=beam_256": "inner width",
    "decoder=beam_768": "inner width",
    "family=energy": "rollout.num_times rollout.chains rollout.every_n_steps rollout.buffer_size",
    "family=flow": "rollout.num_times rollout.chains rollout.resample_below",
    "head=camera": "base.elementwise_posterior",
    "head=counts": "components base.elementwise_posterior",
    "head=gamma": "elementwise_posterior",
    "loss=birth_death": "weighting",
    "loss=finite_time": "kind",
    "loss=likelihood": "weighting",
    "metrics=custom": "scores",
    "metrics=digits": "scores",
    "metrics=inception": "scores",
    "metrics=mnist": "scores",
    "negative=pcd_dmala": "refine.alpha",
    "network=counts": "channels_last",
    "network=lesite_graph": "channels messages reach heat_bath",
    "network=ncsnpp": "channels_last",
    "network=ncsnpp_small": "channels_last body.channels body.multipliers body.blocks_per_level"
    " body.attention_resolutions",
    "network=unet": "body.multipliers body.attention_resolutions",
    "network=unet_8x8": "channels_last body.dense_blocks body.dropout",
    "operator=and": "ratio",
    "optimizer=sgd": "lr",
    "posterior=dps": "particles guided",
    "posterior=noise_denoise": "moves levels",
    "posterior=sgdd_published": "sweeps start published",
    "posterior=svdd": "greedy",
    "posterior=tds": "particles guided",
    "process=birth_death": "mean",
    "process=d3pm_absorbing": "num_steps",
    "process=d3pm_gaussian": "num_steps",
    "process=tauldr": "width spread",
    "refine=dmala": "alpha",
    "sampler=binomial_bridge": "num_steps",
    "sampler=binomial_bridge_nearest": "num_steps",
    "sampler=birth_death_bridge": "num_steps",
    "sampler=counts": "num_steps",
    "sampler=euler": "num_steps",
    "sampler=level_bridge": "num_steps",
    "sampler=multistep": "num_steps",
    "sampler=poisson": "num_steps",
    "sampler=posterior_bridge": "num_steps",
    "sampler=tau_leap": "num_steps",
    "sampler/correction=tauldr": "steps logit_range corrector.fraction",
    "sampler/grid=logit_data": "first last",
    "sampler/grid=logit_neighbours": "first last",
    "schedule=counts": "continuous grid.first grid.last grid.location grid.scale grid.floor",
    "schedule=logistic": "continuous",
    "schedule=logistic_neighbours": "continuous grid.first grid.location grid.scale",
    "schedule=logit": "continuous",
    "schedule=steps": "num_steps",
    "simulation=events": "num_steps",
    "target=maxcut": "kind",
    "target=mis": "inverse_temperature",
    "target=planar": "plane",
    "target=potts": "beta",
}


def differing(part, prefix=""):
    """Yield names of settings that differ from the constructor's default; skip interpolations."""
    if not isinstance(part, dict):
        return
    if str(part.get("_target_")).startswith("blackout."):
        parameters = inspect.signature(find_target(part, prefix)).parameters
        for name in part.keys() & parameters.keys():
            value, default = part[name], parameters[name].default
            default = list(default) if isinstance(default, tuple) else default
            decided_elsewhere = isinstance(value, dict) or str(value).startswith(("${", "???"))
            if (
                default is not inspect.Parameter.empty
                and value != default
                and not decided_elsewhere
            ):
                yield f"{prefix}.{name}".lstrip(".")
    for name, value in part.items():
        yield from differing(value, f"{prefix}.{name}")


def test_yaml_values_are_constructor_defaults_except_those_of_the_choice():
    differences = {}
    for group in list_groups():
        if group.partition("/")[0] not in ("experiment", "recipe", "task", "debug"):
            for choice in list_choices(group):
                if names := [*differing(load_choice(group, choice))]:
                    differences[f"{group}={choice}"] = sorted(names)
    assert differences == {choice: sorted(names.split()) for choice, names in DELIBERATE.items()}
