from __future__ import annotations

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from blackout.config.choices import list_choices
from blackout.networks import CountNetwork
from tests.cli.test_configs import composed

# Prefixes of the networks that are tested in tests/flows and tests/permutations.
OTHER_FAMILIES = ("code_transformer", "le", "set_transformer")
NAMES = [name for name in list_choices("network") if not name.startswith(OTHER_FAMILIES)]


@pytest.mark.parametrize("name", NAMES)
def test_every_network_choice_can_be_built(name: str) -> None:
    config = OmegaConf.create(composed(f"network={name}", "recipe=blackout/none")["network"])
    inputs = {"mean": 4.0, "std": 5.0}
    if config.inputs._target_.endswith("CountInputs"):
        inputs = {"shape": [1, 8, 8]}
    if config.inputs._target_.endswith("PaperInputs"):
        inputs = {"max_count": 255}
    sizes = {"inputs": inputs, "body": {"shape": [1, 8, 8], "outputs": 1}}
    with torch.device("meta"):
        network = instantiate(OmegaConf.merge(config, sizes))
    assert isinstance(network, CountNetwork)
