"""Paper runs train and sample at reduced sizes; networks have the published numbers of weights."""

import pytest
import torch

from benchmarks import coverage
from benchmarks.energy_discrepancy import save
from benchmarks.permutation_sedd import PAPER_BODY
from blackout import networks
from blackout.flows.targets import EnergyNetwork
from tests.cli.test_configs import composed
from tests.cli.test_experiments import SHAPES, stand_in
from tests.cli.test_papers import ROWS


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Replace downloaded data by random images, and a trained density by an untrained network."""
    for name in SHAPES:
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    monkeypatch.setattr("blackout.permutations.datasets.mnist", stand_in("mnist"))
    monkeypatch.setattr("blackout.permutations.datasets.cifar10", stand_in("cifar10"))
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
    "networks.Transformer": {"width": 32, "depth": 1, "heads": 2},
    "networks.LETransformer": {"channels": 16, "layers": 1, "heads": 2},
    "networks.LEConvolution": {"channels": 8},
    "networks.SetTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.coded.CodeTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.datasets.sort_mnist": {"length": 5},
    "permutations.tours.tsp": {"cities": 8},
    "permutations.shuffle.Beam": {"width": 2, "inner": 4},
}


def small_sizes(part, prefix=""):
    """Words that make the large components in a configuration small."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from small_sizes(value, f"{prefix}.{name}" if prefix else name)
    for name, value in SMALL.get(str(part.get("_target_")).removeprefix("blackout."), {}).items():
        yield f"++{prefix}.{name}={value}".replace(" ", "")


@pytest.mark.deep
@pytest.mark.parametrize(
    "experiment", sorted({coverage.name(row["runs"][0]) for row in ROWS if "runs" in row})
)
def test_a_few_steps_of_every_row(run, data_dir, experiment):
    settings = (
        f"data_dir={data_dir}",
        f"runs_dir={data_dir}",
        "run_id=a",
        "trainer.accelerator=cpu",
    )
    sizes = small_sizes(composed(f"experiment={experiment}"))
    outcome = run("train", f"experiment={experiment}", "debug=fast", *sizes, *settings)
    assert outcome.code == 0, outcome.err
    assert len(list(data_dir.glob("*/a/model/model.safetensors"))) == 1


@pytest.mark.deep
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "small" in row], ids=lambda row: row["task"][0]
)
def test_a_few_samples_of_every_task_with_an_exact_prior(run, tmp_path, row):
    outcome = run(
        "sample", f"task={coverage.name(row['task'][0])}", *row["small"], f"out={tmp_path / 'out'}"
    )
    assert outcome.code == 0, outcome.err


STATED = {  # parameters that papers or their published code state, with the networks that have them
    "NCSN++, the code of Blackout Diffusion": (
        62_693_251,
        lambda: published("ncsnpp", shape=(3, 32, 32)),
    ),
    "SEDD-small, Chu et al. 2025, appendix C.1": (
        90e6,
        lambda: published("transformer_sedd", (1, 32, 32), outputs=2, levels=2),
    ),
    "SEDD, Zhang et al. 2025, appendix G.1": (
        25e6,
        lambda: networks.Transformer((100,), 100, 100, **PAPER_BODY),
    ),
    "jigsaws 2x2 of MNIST, the code of SymmetricDiffusers": (
        2.88e6,
        lambda: set_transformer((1, 14, 14), 4),
    ),
    "jigsaws 3x3 of MNIST, the code of SymmetricDiffusers": (
        1.64e6,
        lambda: set_transformer((1, 9, 9), 9),
    ),
    "jigsaws 6x6 of MNIST, the code of SymmetricDiffusers": (
        1.47e6,
        lambda: set_transformer((1, 4, 4), 36),
    ),
    "sorting, the code of SymmetricDiffusers": (3.10e6, lambda: set_transformer((1, 28, 112), 9)),
}


def published(choice, shape, **arguments):
    """The body of a choice of `network=`."""
    body = composed("dataset=cifar10", f"network={choice}")["network"]["body"]
    sizes = {name: value for name, value in body.items() if name != "_target_"}
    return getattr(networks, body["_target_"].rpartition(".")[2])(shape, **sizes, **arguments)


def set_transformer(shape, items):
    """The network of a paper's jigsaws or lists."""
    experiment = "table2" if shape[2] > 100 else "table1_mnist"
    network = composed(f"experiment=symmetric/{experiment}")["network"]
    encoder = dict(network.pop("encoder"))
    network.pop("_target_")
    body = getattr(networks, encoder.pop("_target_").rpartition(".")[2])(shape, **encoder)
    return networks.SetTransformer(body, items, **network)


@pytest.mark.parametrize("name", STATED)
def test_networks_have_as_many_parameters_as_stated(name):
    stated, build = STATED[name]
    with torch.device("meta"):
        network = build()
    assert sum(one.numel() for one in network.parameters()) == pytest.approx(stated, rel=0.05)
