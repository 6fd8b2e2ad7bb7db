"""What is compressed decodes to itself, at about the rate that the bound promises."""

import numpy as np
import pytest
import torch

from blackout.compress import Coder, decoded, encoded
from blackout.compress.__main__ import _HEADER, _checked, _decoded
from blackout.compress.chain import PRECISION
from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.heads import ScaledHead
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.report import finite_time_bits
from blackout.errors import UserError


def uniform_symbols(part, bar):
    """Of 256 equally probable ones."""
    width = (1 << PRECISION) // 256
    return bar // width, bar // width * width, np.full_like(bar, width)


@pytest.mark.parametrize("lanes", [1, 3, 64])
def test_the_stack_gives_back_what_was_pushed_and_takes_its_entropy(lanes):
    rng, coder = np.random.default_rng(0), Coder(lanes)
    law = rng.dirichlet(np.full(50, 0.5))
    starts = np.concatenate(
        [[0], np.floor(np.cumsum(law) * ((1 << PRECISION) - 50)).astype(np.int64) + np.arange(1, 51)]
    )
    starts[-1] = 1 << PRECISION
    symbols = rng.choice(50, size=4000, p=law)

    def find(part, bar):
        found = np.searchsorted(starts, bar, side="right") - 1
        return found, starts[found], starts[found + 1] - starts[found]

    first, last = symbols[:1500], symbols[1500:]
    for part in (first, last):
        coder.push(starts[part], starts[part + 1] - starts[part])
    content = coder.content
    ideal = -np.log2(law[symbols]).sum() / 8
    assert len(content) == pytest.approx(ideal + 8 * lanes, abs=8 * lanes + 4)
    again = Coder(lanes, content)
    for part in (last, first):
        assert np.array_equal(again.pop(len(part), find), part)
    assert again.content == Coder(lanes).content


def test_popping_an_empty_stack_draws_and_pushing_returns_what_was_there():
    coder = Coder(4)
    drawn = [coder.pop(4, uniform_symbols) for _ in range(50)]
    assert len(np.unique(np.concatenate(drawn))) > 100
    width = np.full(4, (1 << PRECISION) // 256)
    for symbols in reversed(drawn):
        coder.push(symbols * width[0], width)
    assert coder.content[:32] == Coder(4).content


class Guess(torch.nn.Module):
    """A network that knows the mean of everything."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, t, *_):
        return self.bias.expand(x.shape)[:, None]


def model(max_count, mean):
    return BlackoutDiffusion(Guess(), ScaledHead(mean), PureDeath(max_count), torch.full((1, 5, 5), mean)).eval()


@pytest.mark.parametrize("max_count, mean", [(1, 0.3), (16, 5.0), (255, 100.0)])
def test_counts_decode_to_themselves_at_the_rate_of_the_bound(max_count, mean):
    guess = model(max_count, mean)
    counts = torch.poisson(torch.full((80, 1, 5, 5), mean), generator=torch.Generator().manual_seed(0))
    counts = counts.clamp(max=max_count).to(torch.uint8)
    coder = Coder(4)
    encoded(guess, counts, 8, coder, 32)
    bound = finite_time_bits(guess, counts, 8)["total"]
    rate = 8 * len(coder.content) / counts.numel()
    assert rate == pytest.approx(
        bound.value, abs=4 * bound.standard_error + 0.02 * bound.value + 8 * 32 / counts.numel()
    )
    assert torch.equal(decoded(guess, 80, 8, Coder(4, coder.content), 32), counts.long())


BODY = bytes(8) + bytes(8)


@pytest.mark.parametrize(("header", "body"), [
    ((0, 8, 4, 1), BODY), ((3, 0, 4, 1), BODY), ((3, 8, 0, 1), BODY), ((3, 8, 4, 0), BODY), ((3, 8, 4, 2), BODY),
    ((2**32 - 1, 8, 4, 1), BODY), ((2**32 - 1, 8, 4, 1024), bytes(8192)), ((3, 8, 4, 1), BODY[:-1]),
    ((3, 8, 4, 1), b""),
    ((3_200_000, 65_535, 65_535, 1024), bytes(1 << 20)),
])  # fmt: skip
def test_headers_that_cannot_be_are_refused_before_anything_is_decoded(header, body):
    content = _checked(_HEADER.pack(b"BLK1", *header, bytes(16)) + body)
    with pytest.raises(UserError, match="cannot be in it"):
        _decoded(model(16, 5.0), content, "x.bits")
