"""A model file as a run on the embedded digits writes it, made without training."""

import shutil

import pytest

from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.security.attacks import VICTIM


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A folder with an exported model and a checkpoint of the same model."""
    import torch

    from blackout.cli.from_data import make_model
    from blackout.component import thaw
    from blackout.config.instantiate import instantiate
    from blackout.training.export import export_model
    from tests.cli.test_configs import composed

    folder = tmp_path_factory.mktemp("good")
    config = composed(
        "network=mlp", "network.body.width=8", "network.body.depth=1", "sampler.num_steps=3"
    )
    family = instantiate(config["family"], "family")
    model = make_model(family, config, family.source(config))
    export_model(model, folder / "model")
    description = {"format": 1, **thaw(model.config)}
    torch.save({"state_dict": dict(model.state_dict()), "blackout": description}, folder / "x.ckpt")
    return folder


@pytest.fixture
def place(tmp_path, good, monkeypatch):
    """A working directory with a copy of the model, and a file that must stay unchanged."""
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    (tmp_path / "victim").write_text(VICTIM)
    monkeypatch.chdir(tmp_path)
    return tmp_path
