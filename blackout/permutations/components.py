"""The components of `blackout.permutations` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

_CODED_DATASETS = ("coded.cycles", "coded.mallows", "coded.plackett_luce", "coded.synthetic_rankings")
_CODED_ASKED = {
    "coded.permutations": "dataset=permutations dataset.path=<file>",
    "coded.rankings": "dataset=rankings dataset.path=<file>",
    "coded.words": "dataset=words dataset.path=<file>",
}

TABLE = Table(
    made={
        "family": ("coded.CodeFamily", "shuffle.ShuffleFamily"),
        "shuffle": ("shuffle.ForwardProcess",),
        "law": ("shuffles.RandomInsertion", "shuffles.RandomTransposition", "shuffles.Riffle"),
        "reverse": (
            "shuffle.ReverseAssignment", "shuffle.ReverseGPL", "shuffle.ReverseInsertion", "shuffle.ReversePL",
            "shuffle.ReverseRiffle", "shuffle.ReverseTransposition",
        ),
        "loss": (
            "shuffle.InformedLoss", "shuffle.LabelFreeLoss", "shuffle.RandomTimeLoss", "shuffle.SinkhornLoss",
            "shuffle.SinkhornPixelLoss", "shuffle.SortingNetworkLoss", "shuffle.TrajectoryLoss",
        ),
        "sampler": ("shuffle.Beam", "shuffle.Greedy", "shuffle.Sample", "shuffle.TwoOpt"),
        "network": ("coded.CodeTransformer",),
        "metrics": ("coded.CodeScorer",),
        "dataset": (
            "datasets.jigsaw_cifar10", "datasets.jigsaw_digits", "datasets.jigsaw_mnist", "datasets.one_permutation",
            "datasets.sort_digits", "datasets.sort_mnist", "datasets.tsp",
            *_CODED_DATASETS,
        ),
    },
    asked={"datasets.items": "dataset=items dataset.path=<file>", **_CODED_ASKED},
)  # fmt: skip
