"""Compressed counts decode losslessly, at about the rate of the likelihood bound."""

import lzma

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.compression import Codec, files
from blackout.diffusion.compression.bits_back import (
    coding_grids,
    decode_counts,
    encode_counts,
    expected_nats,
)
from blackout.diffusion.compression.coder import PRECISION, Coder
from blackout.diffusion.heads import ScaledHead
from blackout.diffusion.processes import PureDeath
from blackout.errors import UserError


def uniform_symbols(part, bar):
    """Find the symbol of a uniform distribution over 256 symbols."""
    width = (1 << PRECISION) // 256
    return bar // width, bar // width * width, np.full_like(bar, width)


@pytest.mark.parametrize("lanes", [1, 3, 64])
def test_the_coder_is_lossless_and_its_size_is_the_entropy(lanes):
    rng = np.random.default_rng(0)
    coder = Coder(lanes)
    probabilities = rng.dirichlet(np.full(50, 0.5))
    starts = np.concatenate(
        [
            [0],
            np.floor(np.cumsum(probabilities) * ((1 << PRECISION) - 50)).astype(np.int64)
            + np.arange(1, 51),
        ]
    )
    starts[-1] = 1 << PRECISION
    symbols = rng.choice(50, size=4000, p=probabilities)

    def find(part, bar):
        symbols = np.searchsorted(starts, bar, side="right") - 1
        return symbols, starts[symbols], starts[symbols + 1] - starts[symbols]

    first = symbols[:1500]
    last = symbols[1500:]
    for part in (first, last):
        coder.push(starts[part], starts[part + 1] - starts[part])
    content = coder.content
    ideal = -np.log2(probabilities[symbols]).sum() / 8
    assert len(content) == pytest.approx(ideal + 8 * lanes, abs=8 * lanes + 4)
    decoder = Coder(lanes, content)
    for part in (last, first):
        assert np.array_equal(decoder.pop(len(part), find), part)
    assert decoder.content == Coder(lanes).content


def test_popping_from_an_empty_coder_samples_and_pushing_restores_it():
    coder = Coder(4)
    popped = [coder.pop(4, uniform_symbols) for _ in range(50)]
    assert len(np.unique(np.concatenate(popped))) > 100
    width = np.full(4, (1 << PRECISION) // 256)
    for symbols in reversed(popped):
        coder.push(symbols * width[0], width)
    assert coder.content[:32] == Coder(4).content


def test_the_first_symbols_of_an_empty_coder_are_random():
    """Symbols that cost the most bits are not the ones drawn first."""
    symbols = Coder(4096).pop(4096, uniform_symbols)
    counts = np.bincount(symbols, minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-3


class ConstantNetwork(torch.nn.Module):
    """A network with a constant output, for which the head predicts its mean times log 2."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x, t, *_):
        return self.bias.expand(x.shape)[:, None]


def make_model(max_count, mean):
    """Return a model that predicts a constant mean."""
    return BlackoutDiffusion(
        ConstantNetwork(), ScaledHead(mean), PureDeath(max_count), torch.full((1, 5, 5), mean)
    ).eval()


@pytest.mark.parametrize(
    "max_count, mean",
    [
        (1, 0.3),
        (16, 5.0),
        (255, 100.0),
        pytest.param(65_535, 3e4, marks=pytest.mark.deep),
        (2**31 - 1, 1e9),
    ],
)
def test_counts_are_coded_losslessly_at_the_rate_of_the_bound(max_count, mean):
    model = make_model(max_count, mean / np.log(2))
    n = 20 if max_count < 65_535 else 6
    counts = torch.poisson(
        torch.full((n, 1, 5, 5), mean), generator=torch.Generator().manual_seed(0)
    )
    counts = counts.clamp(max=max_count).long()
    for times in coding_grids(model, 4):
        encode_counts(model, counts, times, coder := Coder(2), 8)
        bound = expected_nats(model, counts, times) / np.log(2) / 8
        size = len(coder.content)
        # the state of the lanes, and the initial bits of the first batches
        assert size < float(bound.sum() + 4 * bound.std() * n**0.5) * 1.01 + 80
        assert torch.equal(decode_counts(model, n, times, Coder(2, coder.content), 8), counts)


@pytest.mark.parametrize("x", [0, 1, 254, 70_000, 2**31 - 1])
def test_improbable_counts_are_coded_losslessly(x):
    model = make_model(2**31 - 1, 5.0)
    counts = torch.full((3, 1, 5, 5), x)
    times = coding_grids(model, 4)[0]
    encode_counts(model, counts, times, coder := Coder(1), 2)
    assert torch.equal(decode_counts(model, 3, times, Coder(1, coder.content), 2), counts)


class FileCodec:
    """A codec whose files are replaced in every round."""

    def __init__(self, folder, model):
        self.folder = folder
        self.codec = Codec(model)

    def encode(self, array, steps=3):
        np.save(self.folder / "x.npy", array)
        (self.folder / "x.bits").unlink(missing_ok=True)
        self.codec.encode(self.folder / "x.npy", self.folder / "x.bits", steps)
        return (self.folder / "x.bits").read_bytes()

    def decode(self):
        (self.folder / "y.npy").unlink(missing_ok=True)
        self.codec.decode(self.folder / "x.bits", self.folder / "y.npy")
        return np.load(self.folder / "y.npy")


@pytest.mark.parametrize("max_count", [pytest.param(16, marks=pytest.mark.deep), 70_000])
def test_arrays_of_any_kind_are_coded_losslessly_and_never_larger_than_xz(max_count, tmp_path):
    codec = FileCodec(tmp_path, make_model(max_count, 5.0))
    rng = np.random.default_rng(0)
    for array in (
        np.full((12, 1, 5, 5), max_count),
        np.zeros((1, 1, 5, 5), np.uint8),
        rng.poisson(5, (9, 5, 5, 1)).clip(0, 16),
        np.asfortranarray(rng.integers(0, 17, (8, 1, 5, 5)).astype(">u2")),
        np.eye(5, dtype="u8")[None, None],
        np.tile(rng.integers(0, max_count, (1, 1, 5, 5)), (15, 1, 1, 1)),
    ):
        content = codec.encode(array)
        first = array if array.shape[1] == 1 else np.moveaxis(array, -1, 1)
        decoded = codec.decode()
        assert np.array_equal(decoded, first) and decoded.flags.c_contiguous
        plain = first.astype(np.min_scalar_type(max_count)).tobytes()
        assert len(content) <= len(lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)) + 16


def test_a_file_that_would_not_decode_is_not_written(tmp_path, monkeypatch):
    codec = FileCodec(tmp_path, make_model(16, 5.0))
    monkeypatch.setattr(files, "decode_counts", lambda *_: torch.zeros(2, 1, 5, 5))
    counts = np.random.default_rng(0).poisson(5, (200, 1, 5, 5)).clip(0, 16)
    with pytest.raises(RuntimeError, match="decoding does not return the counts"):
        codec.encode(counts)
    assert not (tmp_path / "x.bits").exists()


@pytest.mark.deep
def test_parts_are_coded_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PART_ELEMENTS", 500)
    codec = FileCodec(tmp_path, make_model(16, 0.5 / np.log(2)))
    rng = np.random.default_rng(0)
    content = codec.encode(counts := rng.poisson(0.5, (90, 1, 5, 5)).clip(0, 16))
    assert content[:4] == b"BLK2" and np.array_equal(codec.decode(), counts)
    report = codec.encode(np.tile(np.arange(25).reshape(1, 1, 5, 5) % 17, (90, 1, 1, 1)))
    assert report[:4] == b"BLKX" and len(codec.decode()) == 90
    header = files.FILE_HEADER.size
    for wrong in (
        content[:-1],
        content + b"x",
        content[: len(content) // 2],
        content[:header],
        content[:9],
        content[:header] + bytes(40),
        content[:60] + bytes([content[60] ^ 1]) + content[61:],
        report[:-9],
        report[:20] + bytes(20) + report[40:],
        content[:4] + files.FILE_HEADER.pack(b"", 91, 3, 64, 0)[4:] + content[header:],
        files.FILE_HEADER.pack(b"BLK2", 2**60, 65_535, 64, 0),
        files.FILE_HEADER.pack(b"BLK2", 3, 0, 64, 0),
        files.FILE_HEADER.pack(b"BLK2", 3, 4, 0, 0),
        files.FILE_HEADER.pack(b"BLK2", 3, 4, 64, 2),
        files.XZ_HEADER.pack(b"BLKX", 2**60) + report[12:],
        *(
            files.FILE_HEADER.pack(b"BLK2", 20, 4, 64, 0)
            + files.PART_HEADER.pack(some, size, lanes, bytes(16))
            + bytes(size + 4)
            for some, size, lanes in (
                (0, 8, 1),
                (21, 8, 1),
                (20, 8, 2),
                (20, 8, 0),
                (20, 6, 1),
                (20, 4, 1),
            )
        ),
    ):
        (tmp_path / "x.bits").write_bytes(wrong)
        with pytest.raises(UserError, match="damaged"):
            codec.decode()
        assert not (tmp_path / "y.npy").exists()
