"""Datasets of counts in memory.

A dataset is a plain function that returns `CountData`; a new one needs no registration, only a section of
conf/dataset.yaml that names it, or a YAML file of its own in a user's folder.
"""

from blackout.data.count_data import CountData
from blackout.data.images import (
    binarized_mnist,
    celeba64,
    cifar10,
    digits,
    fashion_mnist,
    image_folder,
    mnist,
    patches,
)
from blackout.data.user_counts import counts

__all__ = [
    "CountData", "binarized_mnist", "celeba64", "cifar10", "counts", "digits", "fashion_mnist", "image_folder", "mnist",
    "patches",
]  # fmt: skip
