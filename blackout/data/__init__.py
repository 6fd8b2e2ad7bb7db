"""Datasets of counts in memory.

A dataset is a plain function that returns `CountData`; a new one needs no registration, only a section of
conf/dataset.yaml that names it, or a YAML file of its own in a user's folder.
"""

from blackout.data.count_data import CountData
from blackout.data.count_files import counts
from blackout.data.images import celeba64, digits, image_folder, patches
from blackout.data.torchvision_sets import binarized_mnist, cifar10, fashion_mnist, mnist

__all__ = [
    "CountData", "binarized_mnist", "celeba64", "cifar10", "counts", "digits", "fashion_mnist", "image_folder", "mnist",
    "patches",
]  # fmt: skip
