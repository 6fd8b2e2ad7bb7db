"""The components of `blackout.permutations` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "dataset": (
            "datasets.jigsaw_cifar10", "datasets.jigsaw_digits", "datasets.jigsaw_mnist", "datasets.one_permutation",
            "datasets.sort_digits", "datasets.sort_mnist", "datasets.tsp",
        ),
    },
    asked={"datasets.items": "dataset=items dataset.path=<file>"},
)  # fmt: skip
