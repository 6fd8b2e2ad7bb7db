"""Networks have as many parameters as their papers state, or a comment says how many."""

import pytest
import torch

from benchmarks.permutation_sedd import PAPER_BODY
from blackout import networks
from blackout.files import CONF
from blackout.permutations.coded import CodeTransformer
from tests.cli.test_configs import composed

# parameters that papers or their published code state, and the networks
STATED = {
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
    item_encoder = getattr(networks, encoder.pop("_target_").rpartition(".")[2])(shape, **encoder)
    return networks.SetTransformer(item_encoder, items, **network)


@pytest.mark.parametrize("name", STATED)
def test_networks_have_as_many_parameters_as_stated(name):
    stated, build = STATED[name]
    with torch.device("meta"):
        network = build()
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(
        stated, rel=0.05
    )


# Where networks have fewer or more parameters than stated: by file, the comment that says so, and
# the network.
DISCLOSED = {
    "experiment/symmetric/table5_n100": {"1.5 million": lambda: one_permutation_network(100)},
    "recipe/factorized/jigsaws": {
        "3.8 (2x2)": lambda: code_transformer((3, 16, 16), 4),
        "1.9 (3x3)": lambda: code_transformer((3, 10, 10), 9),
        "1.6 million (4x4)": lambda: code_transformer((3, 8, 8), 16),
    },
}


def one_permutation_network(length):
    """The network of Table 5 of SymmetricDiffusers."""
    network = composed("experiment=symmetric/table5_n100")["network"]
    features = network.pop("encoder")["features"]
    network.pop("_target_")
    return networks.SetTransformer(networks.TokenEncoder(length, features), length, **network)


def code_transformer(shape, items):
    """The network of Figure 5 of the paper on codes, for pieces of a shape."""
    network = composed("experiment=factorized/figure5")["network"]
    encoder = dict(network.pop("encoder"))
    network.pop("_target_")
    piece_encoder = networks.PublishedPieceEncoder(shape, encoder["features"], encoder["channels"])
    return CodeTransformer(items, None, piece_encoder, **network)


@pytest.mark.parametrize(
    "choice, text", [(choice, text) for choice, texts in DISCLOSED.items() for text in texts]
)
def test_differing_numbers_of_parameters_are_stated_in_the_yaml(choice, text):
    comments = (CONF / f"{choice}.yaml").read_text(encoding="utf-8").replace("\n# ", " ")
    assert text in comments
    with torch.device("meta"):
        network = DISCLOSED[choice][text]()
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    assert millions == pytest.approx(float(text.split()[0]), rel=0.05)
