from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from blackout.networks import CountNetwork

CONFIGS = sorted((Path(__file__).parents[2] / "conf" / "network").glob("*.yaml"))
CONFIGS = [path for path in CONFIGS if "CountNetwork" in path.read_text()]  # others: tests/flows, tests/permutations


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_network_choice_can_be_assembled(path: Path) -> None:
    config = OmegaConf.load(path)
    inputs = {"mean": 4.0, "std": 5.0}
    if config.inputs._target_.endswith("CountInputs"):
        inputs = {"shape": [1, 8, 8]}
    known = {"inputs": inputs, "body": {"shape": [1, 8, 8], "outputs": 1}}
    with torch.device("meta"):
        network = instantiate(OmegaConf.merge(config, known))
    assert isinstance(network, CountNetwork)
