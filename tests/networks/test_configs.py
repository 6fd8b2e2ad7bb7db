from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from blackout.networks import CountNetwork
from blackout.programs.settings import sections

CONFIGS = {
    name: section for name, section in sections("network").items() if "CountNetwork" in OmegaConf.to_yaml(section)
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
