"""Letters spell listed words, and all words they spell are equally likely."""

import pytest
import torch

from benchmarks.permutation_words import words
from blackout.errors import UserError
from blackout.permutations import all_permutations
from blackout.permutations.group import is_permutation


def test_words_are_spelled_by_their_letters(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("stop\nPOTS\nspot\nflow\nwolf\nnoon\nfour!\nlonger\nmoon\nécru\nabba\nbaba\n")
    source = words(path, length=4, holdout=0.4, validation=0)
    assert source.size("train") + source.size("test") == 5
    assert words(path, length=4, holdout=0.4).size("val") == 1
    listed = {"stop", "pots", "spot", "flow", "wolf", "noon", "moon", "abba", "baba"}
    training_words = set()
    for split in ("train", "test"):
        index = torch.arange(source.size(split))
        for repeat in torch.linspace(0, 0.99, 30) if split == "train" else [None]:
            batch = source.batch(
                split, index, None if repeat is None else repeat.expand(len(index))
            )
            assert bool(is_permutation(batch["x"]).all())
            spelled = batch["items"].gather(1, batch["x"])
            spelled_words = ["".join(chr(97 + c) for c in row) for row in spelled.tolist()]
            assert set(spelled_words) <= listed
            training_words |= set(spelled_words) if split == "train" else set()
            assert (
                float(source.sample_scores({"samples": batch["x"], **batch})["listed_word"].mean())
                == 1
            )
    # all answers for the letters are equally likely
    for context in source.reported_contexts.values():
        p = source.log_prob(context, all_permutations(4)).exp()
        answers = {"".join(sorted(w)) for w in listed}
        sorted_letters = "".join(sorted(chr(97 + c) for c in context["items"][0].tolist()))
        num_answers = sum("".join(sorted(w)) == sorted_letters for w in listed)
        assert sorted_letters in answers and p[p > 0].tolist() == pytest.approx(
            [1 / num_answers] * num_answers
        )
    held_out_classes = {"".join(sorted(w)) for w in listed} - {
        "".join(sorted(w)) for w in training_words
    }
    assert len(held_out_classes) == source.size("test")
    assert (
        float(
            source.sample_scores(
                {"samples": torch.tensor([[3, 2, 1, 0]]), "items": torch.tensor([[0, 1, 2, 3]])}
            )["listed_word"]
        )
        == 0
    )
    with pytest.raises(UserError, match="0 words of 9 letters"):
        words(path, length=9)
