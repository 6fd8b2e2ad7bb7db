"""The components of `blackout.permutations` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "family": ("shuffle.ShuffleFamily",),
        "shuffle": ("shuffle.ForwardProcess",),
        "law": ("shuffles.RandomInsertion", "shuffles.RandomTransposition", "shuffles.Riffle"),
        "reverse": (
            "shuffle.ReverseGPL", "shuffle.ReverseInsertion", "shuffle.ReversePL", "shuffle.ReverseRiffle",
            "shuffle.ReverseTransposition",
        ),
        "loss": ("shuffle.LabelFreeLoss", "shuffle.RandomTimeLoss", "shuffle.TrajectoryLoss"),
        "sampler": ("shuffle.Beam", "shuffle.Greedy", "shuffle.Sample"),
        "dataset": (
            "datasets.jigsaw_cifar10", "datasets.jigsaw_digits", "datasets.jigsaw_mnist", "datasets.one_permutation",
            "datasets.sort_digits", "datasets.sort_mnist", "datasets.tsp",
        ),
    },
    asked={"datasets.items": "dataset=items dataset.path=<file>"},
)  # fmt: skip
