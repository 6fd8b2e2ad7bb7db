"""The experiments are what the papers say."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from blackout.diffusion import CountDiffusion
from blackout.programs.train import make_trainer

CONF = Path(__file__).parents[2] / "conf"


def composed(*overrides, name="train"):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(name, list(overrides)), resolve=True)


def test_cifar10_is_the_papers():
    config = composed("experiment=blackout_cifar10")
    assert config["network"]["body"]["_target_"].endswith("NCSNpp")
    assert config["network"]["inputs"] == {"_target_": "blackout.networks.PaperInputs"}
    assert config["head"]["_target_"].endswith("SoftplusHead")
    assert config["schedule"]["num_steps"] == 1000 and config["schedule"]["grid"]["final_time"] == 15.0
    assert config["optimizer"]["lr"] == 2e-4 and config["batch_size"] == 256 and config["ema_decay"] == 0.9999
    assert config["flip"] and config["loss"]["weighting"] == "paper"


@pytest.mark.parametrize("loss", ["instantaneous", "finite_time"])
@pytest.mark.parametrize("sampler, kernel", [("binomial_bridge_nearest", "BinomialBridge"), ("poisson", "PoissonLeap")])
def test_all_cells_of_table_1_can_be_reached(loss, sampler, kernel):
    config = composed("experiment=blackout_cifar10", f"loss={loss}", f"sampler={sampler}")
    assert config["loss"]["kind"] == loss and config["sampler"]["kernel"]["_target_"].endswith(kernel)


PAPERS = {
    "blackout_cifar10": "nearest_rounding", "blackout_celeba64": "nearest_rounding",
    "blackout_cifar10_legacy": "nearest_rounding", "blackout_binarized_mnist": None,
}  # fmt: skip


@pytest.mark.parametrize("experiment", PAPERS)
def test_the_papers_runs_keep_its_samplers_and_its_thousand_evaluations(experiment):
    sampler = composed(f"experiment={experiment}")["sampler"]
    assert sampler["num_steps"] == 1000 and sampler["grid"] is None
    rounding = PAPERS[experiment]
    kernel = "PoissonLeap" if rounding is None else "BinomialBridge"
    assert sampler["kernel"]["_target_"].endswith(kernel)
    assert rounding is None or sampler["kernel"]["rounding"]["_target_"].endswith(rounding)


@pytest.mark.parametrize("overrides, kernel, evaluations", [
    ([], "Trapezoidal", 49), (["dataset=cifar10"], "Trapezoidal", 199),
    (["process=birth_death"], "BirthDeathBridge", 100),
    (["process=uniform"], "LevelBridge", 100), (["process=absorbing"], "LevelBridge", 100),
    (["process=ordinal", "dataset=patches"], "LevelBridge", 100), (["process=discrete_uniform"], "LevelBridge", 100),
])  # fmt: skip
def test_the_default_sampler_is_second_order_and_other_processes_have_their_own(overrides, kernel, evaluations):
    sampler = composed(*overrides)["sampler"]
    assert sampler["kernel"]["_target_"].endswith(kernel)
    per_step = 2 if kernel == "Trapezoidal" else 1
    assert per_step * sampler["num_steps"] - (per_step - 1) == evaluations


@pytest.mark.parametrize("overrides, target, ends", [
    (["dataset=digits"], "logit_times", (5.0, -6.0)), (["process=ordinal"], "logit_times", (9.0, -7.0)),
    (["process=ordinal", "sampler/grid=logit"], "logit_times", (5.0, -8.0)),
    (["sampler/grid=logit", "sampler.grid.last=-3"], "logit_times", (5.0, -3.0)),
    (["sampler/grid=fisher"], "fisher_times", None), (["sampler/grid=optimal"], "OptimalGrid", None),
])  # fmt: skip
def test_a_chosen_grid_wins_over_the_recipes(overrides, target, ends):
    grid = composed(*overrides)["sampler"]["grid"]
    assert grid["_target_"].endswith(target)
    assert ends == ((grid["first"], grid["last"]) if ends else None) and ("first" in grid) == (ends is not None)
    assert composed("process=discrete_uniform", "dataset=digits")["sampler"]["grid"] is None


def test_the_legacy_experiment_keeps_the_reference_habits():
    config = composed("experiment=blackout_cifar10_legacy")
    assert config["sampler"]["keep_dropout"] and not config["sampler"]["poisson_start"]
    assert config["sampler"]["kernel"]["rounding"]["_target_"].endswith("nearest_rounding")
    assert config["loss"]["scale"] == 1000 and config["trainer"]["precision"] == "32-true"
    assert config["network"]["body"]["dropout"] == 0.1


def test_binarised_mnist_ends_at_time_10_and_is_not_rounded():
    config = composed("experiment=blackout_binarized_mnist")
    assert config["schedule"]["grid"]["final_time"] == 10.0
    assert config["sampler"]["kernel"]["_target_"].endswith("PoissonLeap")


def test_processes_exchange_no_buffers_at_every_step(tmp_path):
    config = composed("trainer.strategy=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "logger=none")
    trainer = make_trainer({**config, "metrics": None}, tmp_path, CountDiffusion())
    assert trainer.strategy._ddp_kwargs["broadcast_buffers"] is False


@pytest.mark.parametrize("moves", ["gibbs", "dmala", "locally_informed"])
@pytest.mark.parametrize("family", ["experiment=flow_ising", "experiment=leaps_ising", "experiment=dnfs_ebm_moons"])
def test_the_moves_chosen_for_rollouts_are_those_of_the_run(family, moves):
    assert composed(family)["rollout"]["refine"] is None
    chosen = composed(family, f"refine@rollout.refine={moves}")["rollout"]["refine"]
    assert chosen["_target_"].lower().endswith(moves.replace("_", ""))
