"""Puzzles: sets of items whose right order is known, made from (seed, split, index) and never stored.

A puzzle source (`Puzzles`, a `blackout.family.Source`) has no end of training puzzles and `held_out` puzzles to test
on, the same every time. `source.batch(split, index)` with int64 numbers [b] gives

    items   [b, n, *item_shape], the items in their right order: float32, or int64 tokens [b, n]
    given   int64 [b, n], a uniformly random order, the puzzle: what a solver sees is items[given]
    ties    int64 [b, n], for every place of the right order the first place whose item cannot be told from its own

and the solution of the puzzle, the permutation that takes the items given to their right order, is inverse(given).
Where `facts["first_fixed"]`, the first item is known to come first (any city may begin a tour): given[..., 0] = 0.

`source.facts` are what components ask for by name: num_items, item_shape, num_tokens (tokens only), first_fixed, mean
and std (of all numbers in the items), and `encoder`, the description of the item encoder (`blackout.networks`) that
suits them; a network with an argument `encoder` gets it unless the settings choose another. `source.kind` says what
the items are: strips to be sorted, pieces of an image, points in the plane, tokens, or a user's own items.

`source.scale` is the number that whole numbers in a user's file are divided by (the largest count of the images).
A new source subclasses `Puzzles` and implements `make`; a dataset is a function that returns one.
"""

from blackout.permutations.datasets.base import Kind, Puzzles, one_permutation
from blackout.permutations.datasets.files import items, read_puzzles
from blackout.permutations.datasets.images import jigsaw_cifar10, jigsaw_digits, jigsaw_mnist, sort_digits, sort_mnist
from blackout.permutations.datasets.tours import tsp

__all__ = [
    "Kind", "Puzzles", "items", "jigsaw_cifar10", "jigsaw_digits", "jigsaw_mnist", "one_permutation", "read_puzzles",
    "sort_digits", "sort_mnist", "tsp",
]  # fmt: skip
