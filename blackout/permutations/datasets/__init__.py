"""Data sets of puzzles: lists of items whose right order is known.

`Puzzles` in `puzzles.py` says what a source of puzzles returns. A data set is a function that
returns one; each family has its file: jigsaws, sorting of handwritten numbers, tours, ranked lists,
a single permutation, and items of the user.
"""

from blackout.permutations.datasets.jigsaws import (
    Jigsaws,
    jigsaw_cifar10,
    jigsaw_digits,
    jigsaw_mnist,
)
from blackout.permutations.datasets.puzzles import Puzzles
from blackout.permutations.datasets.ranked_lists import RankedLists, read_ranked_lists
from blackout.permutations.datasets.single_permutation import one_permutation
from blackout.permutations.datasets.sorting import Sorting, sort_digits, sort_mnist
from blackout.permutations.datasets.tours import Tours, tsp
from blackout.permutations.datasets.user_items import items, read_puzzles

__all__ = [
    "Jigsaws",
    "Puzzles",
    "RankedLists",
    "Sorting",
    "Tours",
    "items",
    "jigsaw_cifar10",
    "jigsaw_digits",
    "jigsaw_mnist",
    "one_permutation",
    "read_puzzles",
    "read_ranked_lists",
    "sort_digits",
    "sort_mnist",
    "tsp",
]
