r"""Anagrams, for a figure: letters of a word in random order, and an order that spells a word.

    python train.py family=codes ~dataset '+dataset={_target_: benchmarks.permutation_words.words, \
        path: words.txt}'
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from blackout.component import component
from blackout.data.splits import split_samples
from blackout.errors import UserError
from blackout.permutations.coded.data import PermutationData, check_length, repetition_streams
from blackout.protocols import Samples
from blackout.random import SampleStreams, StepStreams
from blackout.safe_reading import read_text

# Held-out letters, those that spell most words, for which the model's distribution is compared with
# the uniform one.
_SHOWN = 4


@component("dataset")
def words(
    path: str | Path, length: int = 6, holdout: float = 0.1, seed: int = 0, validation: float = 0.1
) -> PermutationData:
    """Words of `length` letters from a list, one a line [Severo 2025, figure 1]; classes of
    anagrams are held out.

    Where letters spell several listed words, each is the target equally often. Letters that occur
    twice keep their order, so that a word is one permutation of given letters.

    Args:
        path: of the list; lines with anything but the letters a to z are not looked at, capitals
            are small letters.
        length: of the words.
        holdout: share of the classes of anagrams to test on.
        seed: of split, orders and choices.
        validation: share or number of the classes for validation; 0 for none.

    Raises:
        UserError: no such file, or fewer than two classes of anagrams of that length.
        ValueError: values out of range.
    """
    check_length("words", length)
    file = Path(path).expanduser()
    lines = {word.strip().lower() for word in read_text(file).splitlines()}
    fit = sorted(
        word for word in lines if len(word) == length and word.isascii() and word.isalpha()
    )
    found: dict[str, list[str]] = defaultdict(list)
    for word in fit:
        found["".join(sorted(word))].append(word)
    if len(found) < 2:
        raise UserError(
            f"{file}: {len(fit)} words of {length} letters, in {len(found)} classes; 2 are needed"
        )
    classes = list(found.values())
    train, chosen, test = split_samples(len(classes), validation, holdout, seed)
    sizes = torch.tensor([len(of) for of in classes])
    first = sizes.cumsum(0) - sizes
    letters = torch.tensor([[ord(c) - ord("a") for c in word] for of in classes for word in of])
    known = _number(letters)

    def make(which: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        u = streams.next_draw().uniform((len(which), 1)).squeeze(1)
        word = letters[first[which] + (u * sizes[which]).long()]
        given = streams.next_draw().uniform(tuple(word.shape)).argsort(dim=1)
        items = word.gather(1, given)
        return {"x": _spelling(word, items), "items": items}

    def training(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return make(train[index], repetition_streams(seed, index, augment))

    def listed(spelled: Tensor) -> Tensor:
        return torch.isin(_number(spelled), known)

    def judged(samples: Samples) -> Mapping[str, Tensor]:
        return {"listed_word": listed(samples["items"].gather(1, samples["samples"])).double()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        items = context["items"].expand(len(points), -1)
        word = items.gather(1, points)
        answers = listed(word) & (_spelling(word, items) == points).all(1)
        return (answers.double() / answers.sum()).log()

    shown = make(test, SampleStreams(seed, -1 - torch.arange(len(test))).step(0))
    validated = make(
        chosen, SampleStreams(seed, -1 - len(test) - torch.arange(len(chosen))).step(0)
    )
    most = sizes[test].argsort(descending=True, stable=True)[:_SHOWN]
    named = {
        "".join(chr(ord("a") + letter) for letter in items.tolist()): {"items": items.unsqueeze(0)}
        for items in shown["items"][most]
    }
    return PermutationData(
        "words",
        training,
        shown,
        num_tokens=26,
        sample_scores=judged,
        log_prob=truth,
        reported_contexts=named,
        train_size=len(train),
        validation=validated if len(chosen) else None,
    )


def _spelling(word: Tensor, items: Tensor) -> Tensor:
    """The x with items[x] = word, both [N, n]; the k-th of equal letters in the word is the k-th of
    them as given."""
    return torch.empty_like(word).scatter_(
        1, word.argsort(dim=1, stable=True), items.argsort(dim=1, stable=True)
    )


def _number(letters: Tensor) -> Tensor:
    """One number per word [N, n] of up to 13 letters, and nearly always above."""
    key = torch.zeros(len(letters), dtype=torch.int64)
    for column in letters.cpu().unbind(1):
        key = key * 26 + column
    return key
