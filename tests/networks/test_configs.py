from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from blackout.config.choices import choices
from blackout.networks import CountNetwork
from tests.cli.test_configs import composed

NETWORKS = {name: composed(f"network={name}", "recipe=blackout/none")["network"] for name in choices("network")}
CONFIGS = {
    name: OmegaConf.create(config) for name, config in NETWORKS.items() if config["_target_"].endswith("CountNetwork")
}
"""Others: tests/flows, tests/permutations."""


@pytest.mark.parametrize("name", CONFIGS)
def test_every_network_choice_can_be_assembled(name: str) -> None:
    config = CONFIGS[name]
    inputs = {"mean": 4.0, "std": 5.0}
    if config.inputs._target_.endswith("CountInputs"):
        inputs = {"shape": [1, 8, 8]}
    known = {"inputs": inputs, "body": {"shape": [1, 8, 8], "outputs": 1}}
    with torch.device("meta"):
        network = instantiate(OmegaConf.merge(config, known))
    assert isinstance(network, CountNetwork)
