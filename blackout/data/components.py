"""The datasets that a model file may name: those that are embedded, or lie where the command line says.

None of them writes or downloads when a file chose it.
"""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={"dataset": ("binarized_mnist", "cifar10", "digits", "fashion_mnist", "mnist", "patches")},
    passed={"source": ("digits", "fashion_mnist", "mnist")},
    asked={
        "celeba64": "dataset=celeba64",
        "counts": "dataset=counts dataset.path=<file>",
        "image_folder": "dataset=image_folder dataset.path=<folder>",
    },
)
