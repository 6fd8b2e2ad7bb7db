"""The experiments are what the papers say."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

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
