"""Lists with relevances in svmlight files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations.datasets import items, read_puzzles
from blackout.permutations.metrics import ndcg_scores, rearrange


def test_lists_of_an_svmlight_file_are_sorted_by_relevance(tmp_path):
    """Lists of any length: numbers are standardised over the file, and padding comes last."""
    rng = np.random.default_rng(0)
    lines = []
    sizes = [1, 4, 7, 2, 5, 3]
    for query, size in enumerate(sizes):
        for level in rng.integers(0, 3, size):
            lines.append(f"{level} qid:{query} 1:{level} 2:{rng.normal():.4f} 4:1 # document")
    rng.shuffle(lines)  # the lines of a list need not be adjacent
    (file := tmp_path / "lists.svm").write_text("\n".join(lines))
    source = items(file, holdout=0.5)
    assert (source.num_items, source.item_shape, source.num_test) == (7, (5,), 3)
    batches = [source.batch(split, torch.arange(3)) for split in ("train", "test")]
    values = {
        name: torch.cat([batch[name] for batch in batches])
        for name in ("items", "relevance", "ties")
    }
    is_item = values["items"][..., 4] == 1
    lengths = values["items"][..., 4].sum(1)
    # every held-out list occurs once
    assert sorted(lengths[3:].tolist()) == sorted(set(lengths[3:].tolist()))
    assert (values["items"][~is_item] == 0).all() and (is_item[:, 1:] <= is_item[:, :-1]).all()
    assert ((values["relevance"].diff(dim=1) <= 0) & (values["items"][..., 0].diff(dim=1) <= 1e-6))[
        is_item[:, 1:]
    ].all()
    assert torch.equal(values["relevance"].gather(1, values["ties"]), values["relevance"])
    batch_items = source.batch("train", torch.arange(200))["items"]
    lists_of_training = batch_items.flatten(1).unique(dim=0).view(-1, 7, 5)
    assert len(lists_of_training) < 200 and source.size("val") == 1
    unique_items = lists_of_training[lists_of_training[..., 4] == 1].unique(dim=0)
    # standardised by the training items
    assert torch.allclose(unique_items.mean(0), torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), atol=1e-5)
    puzzles = read_puzzles(file, source)
    ranked = rearrange(puzzles["relevance"], puzzles["truth"])
    assert len(ranked) == len(sizes) and (ranked.diff(dim=1) <= 0).all()
    assert all(
        (unique_items == 1).all()
        for unique_items in ndcg_scores(puzzles["truth"], puzzles["relevance"]).values()
    )


@pytest.mark.parametrize(
    "line",
    [
        "1 1:2",
        "0.5 qid:1 1:2",
        "-1 qid:1 1:2",
        "40 qid:1 1:2",
        "nonsense",
        "1 qid:1 1:nan",
        "1 qid:1 999999999:1",
    ],
)
def test_invalid_svmlight_files_are_refused(tmp_path, line):
    (file := tmp_path / "lists.svm").write_text(f"{line}\n{line}\n")
    with pytest.raises(UserError, match=r"lists\.svm"):
        items(file)
