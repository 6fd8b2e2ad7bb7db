"""Lists of items with relevances, as in learning to rank: puzzles of an svmlight file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.errors import UserError
from blackout.permutations.datasets.array_files import split_at_random
from blackout.permutations.datasets.puzzles import Puzzles, draw_integers, first_equal_index
from blackout.permutations.metrics import MAX_RELEVANCE
from blackout.protocols import Split
from blackout.random import StepStreams
from blackout.safe_reading import check_size, reading, stored_bytes

LIST_SUFFIXES = (".svm", ".svmlight", ".libsvm", ".txt")


class RelevanceLists(NamedTuple):
    """Lists of N items with F features each, and the relevance of every item."""

    features: Tensor  # float64 [N, F]
    relevance: Tensor  # whole numbers, int64 [N + 1]; a last entry of -1 for padding
    lists: Tensor  # items of every list, int64 [lists, n]; shorter lists are padded with N


class RankedLists(Puzzles):
    """Lists of any length, in the order of falling relevance; equal relevances in random order.

    Shorter lists are padded with items of zeros, which come last. Batches also hold `relevance`,
    int64 [b, n], which is 0 for padding.

    Args:
        name: see `Puzzles`.
        lists: result of `read_ranked_lists`.
        holdout: share of the lists for testing.
        validation: share or number of the lists for validation.
        seed: see `Puzzles`.

    Raises:
        ValueError: a share out of range, or no list of two items.

    References: this project; checked in tests/permutations/datasets/test_ranked_lists.py.
    """

    def __init__(
        self,
        name: str,
        lists: RelevanceLists,
        holdout: float,
        validation: float,
        seed: int,
    ) -> None:
        features = lists.features
        self._relevance = lists.relevance
        self._lists = split_at_random(lists.lists, validation, holdout, seed)
        # statistics of the training items; padding has the index of no item
        train_items = self._lists["train"].unique()
        train_features = features[train_items[train_items < len(features)]]
        self._mean = train_features.mean(0)
        self._std = train_features.std(0, correction=0).clamp(min=1e-6)
        self._items = self.standardise(features)
        facts = {"mean": 0.0, "std": 1.0, "encoder": {"_target_": "blackout.networks.ItemEncoder"}}
        super().__init__(
            name=name,
            kind="items",
            num_items=lists.lists.shape[1],
            item_shape=tuple(self._items.shape[1:]),
            num_test=len(self._lists["test"]),
            seed=seed,
            facts=facts,
            num_validation=len(self._lists["val"]),
        )

    def standardise(self, features: Tensor) -> Tensor:
        """Return features [N, F] standardised by the training items, float32 [N + 1, F + 1].

        A last feature of 1 distinguishes items from padding, which is the last row, all zeros.
        """
        x = (features - self._mean) / self._std
        return F.pad(torch.cat([x, torch.ones_like(x[:, :1])], 1).float(), (0, 0, 0, 1))

    def make(self, split: Split, index: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        """Return the items [b, n, F + 1] of puzzles by falling relevance.

        With them come their ties and their relevance, [b, n] each.
        """
        lists = self._lists[split]
        row = draw_integers(streams, (len(index),), len(lists)) if split == "train" else index
        items = lists[row]
        # relevances are integers, so that uniforms break ties only
        u = streams.next_draw().uniform(tuple(items.shape))
        items = items.gather(1, (u - self._relevance[items]).argsort(1))
        relevance = self._relevance[items]
        return {
            "items": self._items[items],
            "ties": first_equal_index(relevance),
            "relevance": relevance.clamp(min=0),
        }


def read_ranked_lists(file: Path, num_features: int | None = None) -> RelevanceLists:
    """Read lists of an svmlight file, with items such as `2 qid:7 1:0.5 3:1.2`.

    Items with the same qid form a list.

    Args:
        file: the file.
        num_features: of an item; None for as many as occur.

    Raises:
        UserError: a file that is missing or in another format.
    """
    from sklearn.datasets import load_svmlight_file

    # 1. read
    with reading(file, "not an svmlight file"):
        sparse, labels, query = load_svmlight_file(
            str(file), n_features=num_features, query_id=True
        )
        check_size(file, 16 * math.prod(sparse.shape), stored_bytes(file))
        features = torch.from_numpy(sparse.toarray())
    is_relevance = (labels == np.floor(labels)) & (labels >= 0) & (labels <= MAX_RELEVANCE)
    complete = len(query) == len(labels) > 0
    if not complete or not is_relevance.all() or not bool(features.isfinite().all()):
        raise UserError(
            f"{file}: every line needs a relevance, a whole number 0..{MAX_RELEVANCE}, and a qid"
        )
    # 2. group items by list
    _, list_of_item, sizes = torch.from_numpy(query).unique(return_inverse=True, return_counts=True)
    position = torch.arange(int(sizes.max()))
    items = list_of_item.argsort(stable=True)
    first = (sizes.cumsum(0) - sizes).unsqueeze(1)
    index = (first + position).clamp(max=len(features) - 1)
    lists = torch.where(position < sizes.unsqueeze(1), items[index], len(features))
    relevance = F.pad(torch.from_numpy(labels).long(), (0, 1), value=-1)
    return RelevanceLists(features, relevance, lists)


def read_ranked_puzzles(file: Path, source: RankedLists) -> dict[str, Tensor]:
    """Read lists to be ranked, with the order of falling relevance as the truth.

    Raises:
        UserError: see `read_ranked_lists`; or a list that is longer than those of the model.
    """
    features, relevance_of_item, lists = read_ranked_lists(file, source.item_shape[0] - 1)
    excess = lists.shape[1] - source.num_items
    if excess > 0:
        raise UserError(
            f"{file}: lists must have at most {source.num_items} items, as the longest that the "
            f"model was trained on, but one has {lists.shape[1]}: divide it"
        )
    lists = F.pad(lists, (0, -excess), value=len(features))
    relevance = relevance_of_item[lists]
    truth = relevance.argsort(dim=1, descending=True, stable=True)
    items = source.standardise(features)[lists]
    return {"items": items, "truth": truth, "relevance": relevance.clamp(min=0)}
