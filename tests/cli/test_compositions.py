"""What the first version's command lines composed, they still compose; and its runs keep their names.

What was `dataset=counts` then is `dataset=plain_counts` now.

`compositions.json` holds a hash of the resolved settings for each of these command lines, made with version 0.1.0 when
there was one family. The digits' recipe has single precision since, which is quicker there: with the bfloat16 of then
it is what it was; and the network of binarised MNIST counts the steps of its own schedule.
"""

import hashlib
import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from blackout.addresses import as_first_spelled
from blackout.programs.run_directory import run_id
from tests.cli.conftest import ROOT

STORED = json.loads((Path(__file__).parent / "compositions.json").read_text())
YOUNGER = ("family", "ema_half_life", "ckpt_path", "init_from")
"""Settings that there were not."""


def composed(overrides):
    config = compose("train", overrides)
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=False)


def composed_then(overrides):
    """With the precision that the digits' recipe had, without what is new for binarised MNIST, one logger at most."""
    config = composed(overrides)
    if config["experiment_name"] == "blackout_binarized_mnist":
        assert config["network"].pop("final_time") == 10.0
    if str((config["dataset"] or {}).get("_target_")).endswith(".digits"):
        config["trainer"]["precision"] = "bf16-mixed"
    for chosen in (config["logger"] or {}).values():  # one at most, without the name it has among several now
        config["logger"] = {name: value for name, value in chosen.items() if name not in ("notes", "job_type")}
    return config


def test_every_composition_is_what_it_was():
    changed = []
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for line, stored in STORED.items():
            config = {name: value for name, value in composed_then(line.split()).items() if name not in YOUNGER}
            digest = hashlib.sha256(json.dumps(as_first_spelled(config), sort_keys=True).encode()).hexdigest()
            if digest[: len(stored)] != stored:
                changed.append(line)
    assert len(STORED) == 166 and changed == []


@pytest.mark.parametrize("overrides, name", [
    ([], "6056a589"), (["trainer.precision=bf16-mixed"], "56e3c7f8"),
    (["process=uniform", "trainer.precision=bf16-mixed"], "c93d91b1"),
    (["experiment=blackout_cifar10", "loss=finite_time"], "08a02eea"), (["dataset=cifar10", "flip=false"], "7be0b196"),
])  # fmt: skip
def test_the_run_of_a_command_keeps_its_name(overrides, name):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = composed(overrides)
    assert run_id(config) == name
    assert run_id(config | {"data_on_device": False, "runs_dir": "elsewhere", "logger": None}) == run_id(config)
    assert run_id(config | {"ema_half_life": 1000}) != run_id(config)
    assert run_id(config | {"seed": 1}) != run_id(config)
