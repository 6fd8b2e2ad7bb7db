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
    candidates = sorted(
        word for word in lines if len(word) == length and word.isascii() and word.isalpha()
    )
    words_by_letters: dict[str, list[str]] = defaultdict(list)
    for word in candidates:
        words_by_letters["".join(sorted(word))].append(word)
    if len(words_by_letters) < 2:
        raise UserError(
            f"{file}: {len(candidates)} words of {length} letters, in {len(words_by_letters)} "
            "classes of anagrams; 2 are needed"
        )
    classes = list(words_by_letters.values())
    train, chosen, test = split_samples(len(classes), validation, holdout, seed)
    sizes = torch.tensor([len(words_of_class) for words_of_class in classes])
    first_index = sizes.cumsum(0) - sizes
    letters = torch.tensor(
        [[ord(c) - ord("a") for c in word] for words_of_class in classes for word in words_of_class]
    )
    word_numbers = _number(letters)

    def make_anagrams(which: Tensor, streams: StepStreams) -> dict[str, Tensor]:
        u = streams.next_draw().uniform((len(which), 1)).squeeze(1)
        word = letters[first_index[which] + (u * sizes[which]).long()]
        shuffle = streams.next_draw().uniform(tuple(word.shape)).argsort(dim=1)
        items = word.gather(1, shuffle)
        return {"x": _spelling(word, items), "items": items}

    def training(index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return make_anagrams(train[index], repetition_streams(seed, index, augment))

    def is_listed(spelled: Tensor) -> Tensor:
        return torch.isin(_number(spelled), word_numbers)

    def is_word(samples: Samples) -> Mapping[str, Tensor]:
        return {"listed_word": is_listed(samples["items"].gather(1, samples["samples"])).double()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        items = context["items"].expand(len(points), -1)
        word = items.gather(1, points)
        answers = is_listed(word) & (_spelling(word, items) == points).all(1)
        return (answers.double() / answers.sum()).log()

    test_data = make_anagrams(test, SampleStreams(seed, -1 - torch.arange(len(test))).step(0))
    validated = make_anagrams(
        chosen, SampleStreams(seed, -1 - len(test) - torch.arange(len(chosen))).step(0)
    )
    largest = sizes[test].argsort(descending=True, stable=True)[:_SHOWN]
    named = {
        "".join(chr(ord("a") + letter) for letter in items.tolist()): {"items": items.unsqueeze(0)}
        for items in test_data["items"][largest]
    }
    return PermutationData(
        "words",
        training,
        test_data,
        num_tokens=26,
        sample_scores=is_word,
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
