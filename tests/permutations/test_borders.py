"""Jigsaws solved by the borders of their pieces."""

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
    """Return a smooth picture of random waves, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(a * x / 9 + b * y / 9 + c) for a, b, c in rng.normal(size=(12, 3))]
    mixed = np.stack(
        [sum(w * v for w, v in zip(waves, rng.normal(size=12), strict=True)) for _ in range(3)], -1
    )
    return np.uint8(255 * (mixed - mixed.min()) / np.ptp(mixed))


def shuffle_pieces(image, rows, columns, seed=1):
    """Return the picture with its pieces in random order, and the order that solves it."""
    height = image.shape[0] // rows
    width = image.shape[1] // columns
    cut = (
        image[: rows * height, : columns * width]
        .reshape(rows, height, columns, width, 3)
        .swapaxes(1, 2)
    )
    order = np.random.default_rng(seed).permutation(rows * columns)
    shuffled = cut.reshape(-1, height, width, 3)[order].reshape(cut.shape)
    return shuffled.swapaxes(1, 2).reshape(rows * height, columns * width, 3), order.argsort()


def sum_of_neighbours(scores, order, columns):
    """Return the total score of neighbours in an arrangement."""
    n = len(order)
    horizontal_sum = sum(
        scores[0, order[i], order[i + 1]] for i in range(n - 1) if (i + 1) % columns
    )
    below = sum(scores[1, order[i], order[i + columns]] for i in range(n - columns))
    return float(horizontal_sum + below)


@pytest.mark.parametrize("rows, columns", [(2, 2), (2, 3), (3, 2)])
def test_a_wide_beam_returns_all_arrangements_sorted(rows, columns):
    """All orders have their exact scores, and places their exact marginal probabilities."""
    n = rows * columns
    scores = neighbour_scores(torch.rand(2, n, 3, 5, 4, generator=torch.Generator().manual_seed(n)))
    products = scores[0].exp()  # the product of two softmaxes
    assert bool((products.masked_fill(torch.eye(n, dtype=torch.bool), 0).sum(-1) <= 1).all())
    orders, sums = search_arrangements(scores, columns, 1000)
    permutations = torch.tensor(list(itertools.permutations(range(n))))
    for b in range(2):
        exact = torch.tensor(
            [sum_of_neighbours(scores[b], order, columns) for order in permutations.tolist()]
        )
        expected = exact.sort(descending=True)
        torch.testing.assert_close(sums[b], expected.values, atol=1e-3, rtol=0)
        assert torch.equal(orders[b, 0], permutations[expected.indices[0]])
        torch.testing.assert_close(
            arrangement_scores(
                scores[b : b + 1].expand(len(permutations), -1, -1, -1), columns, permutations
            ),
            exact,
        )
        probabilities = exact.double().softmax(0)
        places = torch.stack(
            [(probabilities[:, None] * (permutations == piece)).sum(0) for piece in range(n)], 1
        )
        torch.testing.assert_close(place_probabilities(orders, sums)[b], places, atol=1e-4, rtol=0)


def test_scores_are_equivariant_and_invariant_to_brightness():
    """Scores are permuted with the pieces and ignore a common factor; one pixel is wide enough."""
    generator = torch.Generator().manual_seed(0)
    pieces = torch.rand(2, 6, 1, 4, 4, generator=generator)
    order = torch.randperm(6, generator=generator)
    scores = neighbour_scores(pieces)
    torch.testing.assert_close(scores[:, :, order][..., order], neighbour_scores(pieces[:, order]))
    torch.testing.assert_close(scores, neighbour_scores(100 * pieces))
    assert bool(neighbour_scores(pieces[..., :1, :1]).isfinite().all())


def test_greedy_merging_helps_a_narrow_beam():
    pieces, truth = shuffle_pieces(wavy_picture(120, 120), 6, 6)
    cut = torch.from_numpy(pieces).permute(2, 0, 1).unflatten(1, (6, 20)).unflatten(3, (6, 20))
    scores = neighbour_scores(cut.permute(1, 3, 0, 2, 4).flatten(0, 1).unsqueeze(0))
    assert np.array_equal(merge_greedily(scores[0].double().numpy(), 6), truth)
    narrow, sums = search_arrangements(scores, 6, 4)
    orders, scores_of_orders = solve_by_borders(scores, 6, 4)
    assert (
        not np.array_equal(narrow[0, 0], truth)
        and scores_of_orders[0, 0] > sums[0, 0]
        and orders.shape == narrow.shape
    )
    assert np.array_equal(orders[0, 0], truth)
    assert float(scores_of_orders[0, 0]) == pytest.approx(
        sum_of_neighbours(scores[0], truth, 6), rel=1e-5
    )


@pytest.mark.parametrize("n, columns", [(16, 4), (18, 3), (20, 10)])
def test_greedy_merging_places_every_piece_once(n, columns):
    scores = np.random.default_rng(n).normal(size=(2, n, n))
    assert sorted(merge_greedily(scores, columns)) == list(range(n))


def test_the_border_decoder_needs_no_network():
    """Pictures of smooth waves are solved whatever the network predicts."""
    images = torch.stack(
        [torch.from_numpy(wavy_picture(24, 24, seed)) for seed in range(20)]
    ).permute(0, 3, 1, 2)
    cut = images.unflatten(2, (3, 8)).unflatten(4, (3, 8)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    denoiser = Denoiser(
        torch.nn.Identity(), ReverseGPL(), torch.zeros(20, 9, 1), False, cut[:, order]
    )
    decoder = make_decoder({"_target_": "blackout.permutations.shuffle.Borders"}, "pieces", 9)
    assert decoder.evaluations(3, 9) == 0
    steps = []
    streams = SampleStreams(0, torch.arange(20))
    solved, log_probs = decoder(denoiser, [3, 9], streams, lambda step, orders: steps.append(step))
    assert steps == [0, 2]
    assert float((order[solved[:, 0]] == torch.arange(9)).all(1).float().mean()) >= 0.9
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(20))


@pytest.mark.parametrize(
    "kind, number, word", [("pieces", 6, "no square"), ("points", 9, "puts pieces in order")]
)
def test_items_without_borders_are_refused(kind, number, word):
    with pytest.raises(UserError, match=word):
        make_decoder({"_target_": "blackout.permutations.shuffle.Borders"}, kind, number)
    with pytest.raises(ValueError, match="width"):
        Borders(width=0)
