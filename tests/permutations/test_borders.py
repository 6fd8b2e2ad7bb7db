"""Pictures put together by the borders of their pieces."""

import itertools

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations.borders import (
    arrangement_scores,
    merge_greedily,
    neighbour_scores,
    search_arrangements,
    solve_by_borders,
)
from blackout.permutations.queries import place_probabilities
from blackout.permutations.shuffle import Borders, ReverseGPL
from blackout.permutations.shuffle.decoding import Denoiser
from blackout.permutations.shuffle.draw import make_decoder
from blackout.random import SampleStreams


def wavy_picture(height, width, seed=0):
    """A smooth one of random waves, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(a * x / 9 + b * y / 9 + c) for a, b, c in rng.normal(size=(12, 3))]
    mixed = np.stack([sum(w * v for w, v in zip(waves, rng.normal(size=12), strict=True)) for _ in range(3)], -1)
    return np.uint8(255 * (mixed - mixed.min()) / np.ptp(mixed))


def shuffled(image, rows, columns, seed=1):
    """The picture with its pieces in a random order, and which piece belongs where."""
    height, width = image.shape[0] // rows, image.shape[1] // columns
    cut = image[: rows * height, : columns * width].reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    given = np.random.default_rng(seed).permutation(rows * columns)
    mixed = cut.reshape(-1, height, width, 3)[given].reshape(cut.shape)
    return mixed.swapaxes(1, 2).reshape(rows * height, columns * width, 3), given.argsort()


def sum_of_neighbours(scores, order, columns):
    n = len(order)
    right = sum(scores[0, order[i], order[i + 1]] for i in range(n - 1) if (i + 1) % columns)
    below = sum(scores[1, order[i], order[i + columns]] for i in range(n - columns))
    return float(right + below)


@pytest.mark.parametrize("rows, columns", [(2, 2), (2, 3), (3, 2)])
def test_arrangements_are_the_sorted_enumeration(rows, columns):
    """A beam wide enough for all orders finds all, with their sums, and places have their probabilities."""
    n = rows * columns
    scores = neighbour_scores(torch.rand(2, n, 3, 5, 4, generator=torch.Generator().manual_seed(n)))
    both = scores[0].exp()  # of two log-softmaxes the product
    assert bool((both.masked_fill(torch.eye(n, dtype=torch.bool), 0).sum(-1) <= 1).all())
    orders, sums = search_arrangements(scores, columns, 1000)
    every = torch.tensor(list(itertools.permutations(range(n))))
    for b in range(2):
        exact = torch.tensor([sum_of_neighbours(scores[b], order, columns) for order in every.tolist()])
        expected = exact.sort(descending=True)
        torch.testing.assert_close(sums[b], expected.values, atol=1e-3, rtol=0)
        assert torch.equal(orders[b, 0], every[expected.indices[0]])
        torch.testing.assert_close(
            arrangement_scores(scores[b : b + 1].expand(len(every), -1, -1, -1), columns, every), exact
        )
        law = exact.double().softmax(0)
        places = torch.stack([(law[:, None] * (every == piece)).sum(0) for piece in range(n)], 1)
        torch.testing.assert_close(place_probabilities(orders, sums)[b], places, atol=1e-4, rtol=0)


def test_scores_follow_their_pieces():
    """Whatever order pieces are given in, and however bright the whole picture is; one pixel is wide enough."""
    generator = torch.Generator().manual_seed(0)
    pieces, order = torch.rand(2, 6, 1, 4, 4, generator=generator), torch.randperm(6, generator=generator)
    scores = neighbour_scores(pieces)
    torch.testing.assert_close(scores[:, :, order][..., order], neighbour_scores(pieces[:, order]))
    torch.testing.assert_close(scores, neighbour_scores(100 * pieces))
    assert bool(neighbour_scores(pieces[..., :1, :1]).isfinite().all())


def test_greedy_merging_helps_a_narrow_beam():
    pieces, truth = shuffled(wavy_picture(120, 120), 6, 6)
    cut = torch.from_numpy(pieces).permute(2, 0, 1).unflatten(1, (6, 20)).unflatten(3, (6, 20))
    scores = neighbour_scores(cut.permute(1, 3, 0, 2, 4).flatten(0, 1).unsqueeze(0))
    assert np.array_equal(merge_greedily(scores[0].double().numpy(), 6), truth)
    narrow, sums = search_arrangements(scores, 6, 4)
    both, best = solve_by_borders(scores, 6, 4)
    assert not np.array_equal(narrow[0, 0], truth) and best[0, 0] > sums[0, 0] and both.shape == narrow.shape
    assert np.array_equal(both[0, 0], truth)
    assert float(best[0, 0]) == pytest.approx(sum_of_neighbours(scores[0], truth, 6), rel=1e-5)


@pytest.mark.parametrize("n, columns", [(16, 4), (18, 3), (20, 10)])
def test_greedy_merging_places_every_piece_once_whatever_the_scores(n, columns):
    scores = np.random.default_rng(n).normal(size=(2, n, n))
    assert sorted(merge_greedily(scores, columns)) == list(range(n))


def test_the_decoder_needs_no_network():
    """Pictures of smooth waves are solved, and what a network says does not matter."""
    images = torch.stack([torch.from_numpy(wavy_picture(24, 24, seed)) for seed in range(20)]).permute(0, 3, 1, 2)
    cut = images.unflatten(2, (3, 8)).unflatten(4, (3, 8)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    denoiser = Denoiser(torch.nn.Identity(), ReverseGPL(), torch.zeros(20, 9, 1), False, cut[:, order])
    decoder = make_decoder({"_target_": "blackout.permutations.shuffle.Borders"}, "pieces", 9)
    assert decoder.evaluations(3, 9) == 0
    steps = []
    streams = SampleStreams(0, torch.arange(20))
    solved, log_probs = decoder(denoiser, [3, 9], streams, lambda step, orders: steps.append(step))
    assert steps == [0, 2]
    assert float((order[solved[:, 0]] == torch.arange(9)).all(1).float().mean()) >= 0.9
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(20))


@pytest.mark.parametrize("kind, number, word", [("pieces", 6, "no square"), ("points", 9, "puts pieces in order")])
def test_other_items_are_refused(kind, number, word):
    with pytest.raises(UserError, match=word):
        make_decoder({"_target_": "blackout.permutations.shuffle.Borders"}, kind, number)
    with pytest.raises(ValueError, match="width"):
        Borders(width=0)
