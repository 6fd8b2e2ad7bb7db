"""What tests need to run the experiments of the papers in seconds."""

import pytest

from benchmarks.energy_discrepancy import save
from blackout.flows.targets import EnergyNetwork
from tests.cli.test_experiments import SHAPES, stand_in


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Return a folder with an energy network, and replace data sets that are downloaded."""
    for name in SHAPES:
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    monkeypatch.setattr("blackout.permutations.datasets.jigsaws.mnist", stand_in("mnist"))
    monkeypatch.setattr("blackout.permutations.datasets.jigsaws.cifar10", stand_in("cifar10"))
    monkeypatch.setattr("blackout.permutations.datasets.sorting.mnist", stand_in("mnist"))
    save(EnergyNetwork(32, [8, 8]), tmp_path / "planar_moons.npz")
    return tmp_path


# sizes of large components in which a few steps take seconds
SMALL = {
    "diffusion.GaussianChain": {"num_steps": 50},
    "networks.NCSNpp": {
        "channels": 8,
        "multipliers": [1, 2],
        "blocks_per_level": 1,
        "attention_resolutions": [16],
    },
    "networks.Transformer": {"width": 32, "depth": 1, "heads": 2, "patch": 8},
    "networks.LETransformer": {"channels": 16, "layers": 1, "heads": 2},
    "networks.LEConvolution": {"channels": 8},
    "networks.SetTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.coded.CodeTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.datasets.sort_mnist": {"length": 5},
    "permutations.datasets.tsp": {"cities": 8},
    "permutations.shuffle.Beam": {"width": 2, "inner": 4},
}


def small_sizes(part, where=""):
    """Yield overrides that make the large components of a configuration small."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from small_sizes(value, f"{where}.{name}" if where else name)
    for name, value in SMALL.get(str(part.get("_target_")).removeprefix("blackout."), {}).items():
        yield f"++{where}.{name}={value}".replace(" ", "")
