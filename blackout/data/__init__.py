"""Data sets of counts.

A data set is a function that returns `CountData`. A new one needs no registration, only a YAML file
that names it: conf/dataset/<name>.yaml, or one in a folder of the user.

Example:
    >>> data = digits()
    >>> print(data)
    digits, 1,258 training + 180 validation + 359 test samples, shape (1, 8, 8), counts 0..16
"""

from blackout.data.celeba import celeba64
from blackout.data.count_data import CountData
from blackout.data.embedded import digits, patches
from blackout.data.images import image_folder
from blackout.data.torchvision_sets import binarized_mnist, cifar10, fashion_mnist, mnist
from blackout.data.user_counts import counts

__all__ = [
    "CountData",
    "binarized_mnist",
    "celeba64",
    "cifar10",
    "counts",
    "digits",
    "fashion_mnist",
    "image_folder",
    "mnist",
    "patches",
]
