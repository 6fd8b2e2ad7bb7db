"""Pictures put together by the borders of their pieces."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.errors import UserError
from blackout.permutations.datasets import jigsaw_digits
from blackout.permutations.queries import place_probabilities
from blackout.permutations.seams import arrangements, assembled, fitted_weight, joined, seams
from blackout.permutations.shuffle import ReverseGPL, SeamLoss, SeamNetwork, Seams
from blackout.permutations.shuffle.decoding import Denoiser
from blackout.permutations.shuffle.losses import LossInputs
from blackout.permutations.shuffles import ForwardProcess, Riffle
from blackout.random import SampleStreams
from blackout.solve import main, read_pieces, solve


def picture(height, width, seed=0):
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


def score(found, order, columns):
    n = len(order)
    right = sum(found[0, order[i], order[i + 1]] for i in range(n - 1) if (i + 1) % columns)
    return float(right + sum(found[1, order[i], order[i + columns]] for i in range(n - columns)))


@pytest.mark.parametrize("rows, columns", [(2, 2), (2, 3), (3, 2)])
def test_arrangements_are_the_sorted_enumeration(rows, columns):
    """A beam wide enough for all orders finds all, with their sums; places are told by their weights."""
    n = rows * columns
    found = seams(torch.rand(2, n, 3, 5, 4, generator=torch.Generator().manual_seed(n)))
    both = found[0].exp()  # softmax both ways: of two log-probabilities the product
    assert bool((both.masked_fill(torch.eye(n, dtype=torch.bool), 0).sum(-1) <= 1).all())
    places = torch.randn(2, n, n, generator=torch.Generator().manual_seed(0))
    orders, sums = arrangements(found, columns, 1000, places)
    every = torch.tensor(list(itertools.permutations(range(n))))
    for b in range(2):
        own = torch.tensor([score(found[b], o, columns) for o in every.tolist()])
        own += places[b, torch.arange(n), every].sum(1)
        expected = own.sort(descending=True)
        assert torch.allclose(sums[b], expected.values, atol=1e-3)
        assert torch.equal(orders[b, 0], every[expected.indices[0]])
        law = own.double().softmax(0)
        exact = torch.stack([(law[:, None] * (every == piece)).sum(0) for piece in range(n)], 1)
        assert torch.allclose(place_probabilities(orders, sums)[b], exact, atol=1e-4)


def test_joined_arrangements_help_a_narrow_beam():
    pieces, truth = shuffled(picture(120, 120), 6, 6)
    cut = torch.from_numpy(pieces).permute(2, 0, 1).unflatten(1, (6, 20)).unflatten(3, (6, 20))
    found = seams(cut.permute(1, 3, 0, 2, 4).flatten(0, 1).unsqueeze(0))
    assert np.array_equal(joined(found[0].double().numpy(), 6), truth)
    narrow, sums = arrangements(found, 6, 4)
    both, best = assembled(found, 6, 4)
    assert not np.array_equal(narrow[0, 0], truth) and best[0, 0] > sums[0, 0] and both.shape == narrow.shape
    assert np.array_equal(both[0, 0], truth) and float(best[0, 0]) == pytest.approx(score(found[0], truth, 6), rel=1e-5)
    # whatever the borders say, every piece is somewhere
    rng = np.random.default_rng(0)
    for n, columns in ((16, 4), (18, 3), (20, 10)):
        assert sorted(joined(rng.normal(size=(2, n, n)), columns)) == list(range(n))


def test_a_command_puts_pictures_and_folders_together(tmp_path, capsys):
    mixed, truth = shuffled(picture(60, 90), 3, 4)
    Image.fromarray(mixed).save(tmp_path / "photo.png")
    main([str(tmp_path / "photo.png"), "grid=3x4", "top=2"])
    told = capsys.readouterr().out
    assert f"order:   {' '.join(map(str, truth))} (probability" in told and told.count("order:") == 2
    solved = np.asarray(Image.open(tmp_path / "photo-solved.png"))
    assert np.array_equal(solved, picture(60, 90)[:60, :88])
    pieces, columns = read_pieces(tmp_path / "photo.png", "3x4")
    (tmp_path / "pieces").mkdir()
    for k, piece in enumerate(pieces[:9]):
        Image.fromarray(piece.permute(1, 2, 0).numpy()).save(tmp_path / "pieces" / f"{k}.png")
    again, side = read_pieces(tmp_path / "pieces", None)
    assert columns == 4 and side == 3 and torch.equal(again, pieces[:9])
    # a picture in order is told from nothing but its borders too
    assert torch.equal(solve(pieces[torch.from_numpy(truth)], 4)[0][0], torch.arange(12))


@pytest.mark.parametrize("arguments, word", [
    (("photo.png",), "grid=4"), (("photo.png", "grid=four"), "not four"), (("photo.png", "grid=17"), "not 289"),
    (("photo.png", "grid=4", "colour=red"), "settings are"), (("photo.png", "grid=8", "top=0"), "top must be"),
    (("none.png", "grid=4"), "no such file"), (("empty", "grid=2"), "0 pictures"),
    (("photo.png", "grid=9x2"), "2x2 pixels"),
])  # fmt: skip
def test_a_command_refuses_in_one_line(tmp_path, capsys, arguments, word):
    Image.fromarray(picture(16, 16)).save(tmp_path / "photo.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / arguments[0]), *arguments[1:]])
    assert left.value.code == 2 and word in capsys.readouterr().err


def test_the_weight_of_borders_is_that_of_the_data():
    """Likeliest among the arrangements: near 1 where they are smooth, little for digits of 4x4 pixels."""
    images = torch.stack([torch.from_numpy(picture(24, 24, seed)) for seed in range(20)]).permute(0, 3, 1, 2)
    cut = images.unflatten(2, (3, 8)).unflatten(4, (3, 8)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    assert fitted_weight(cut, 3) >= 0.7
    decoder = Seams().fitted(jigsaw_digits(2))
    assert decoder.weight <= 0.5
    with pytest.raises(ValueError, match="weight"):
        Seams(weight=-1.0)


def test_pieces_of_no_square_are_refused():
    with pytest.raises(UserError, match="no square"):
        Seams(network=False)(_Items(torch.rand(1, 6, 1, 4, 4)), [1], None)


class _Items:
    def __init__(self, items):
        self.items, self.free = items, items.shape[1]


def test_learned_borders_follow_the_pieces_and_are_learned():
    """Whatever their order and number; 40 steps on stripes across the borders find all neighbours."""
    torch.manual_seed(0)
    network = SeamNetwork([1, 4, 4], 4, features=8)
    for shape in ((2, 9, 1, 4, 4), (1, 6, 1, 4, 4)):
        pieces, order = torch.rand(shape), torch.randperm(shape[1])
        found = network.seams(network.encode(pieces))
        again = network.seams(network.encode(pieces[:, order]))
        assert torch.allclose(found[:, :, order][..., order], again, atol=1e-4)
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(40):
        image = torch.rand(16, 1, 8, 1) + torch.rand(16, 1, 1, 8)  # colours go on across every border
        image = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(image, (1, 1, 1, 1), "replicate"), 3, 1)
        cut = image.unflatten(2, (2, 4)).unflatten(4, (2, 4)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        items = network.encode(cut)
        denoiser = Denoiser(network, ReverseGPL(), items, False, cut)
        streams = SampleStreams(0, torch.arange(16)).at(0)
        loss, told = SeamLoss()(LossInputs(denoiser, ForwardProcess(Riffle(), [0, 9]), cut, streams))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(told["train/seams"]) < 0.6  # log 3 = 1.1 of who guesses
    with torch.no_grad():  # the decoder asks the network
        solved, _ = Seams(weight=1.0, network=False)(denoiser, [9], SampleStreams(0, torch.arange(16)))
        direct, _ = arrangements(network.seams(items), 2)
    assert torch.equal(solved[:, 0], direct[:, 0])
