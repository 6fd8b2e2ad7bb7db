"""Lossless compression of counts by a trained model, with bits back: a likelihood bound that nobody can fake.

    blackout compress encode runs/digits/<run_id> counts.npy --out counts.bits
    blackout compress decode runs/digits/<run_id> counts.bits --out counts.npy

It needs the same model, and the same machine and versions: probabilities come from a network, whose last digits other
hardware computes otherwise. What is decoded is compared with a hash of what was encoded. Counts are read and coded by
parts, so that they need not fit into memory, and what `xz` makes smaller is kept as `xz` makes it. Models with classes
code without them. Exit code 2 for what cannot be read.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import math
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.file_formats import load_array
from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.likelihood import Estimate, path_log_weights, predicted
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.schedules import logit_times, step_fraction, widening
from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import new_file, opened, replacing
from blackout.random import SampleStreams
from blackout.training.export import load_model

Integers: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]
Find: TypeAlias = Callable[[slice, Integers], tuple[Integers, Integers, Integers]]
"""(which symbols, numbers in 0..2^24 - 1, one for each) -> the symbols in whose intervals these lie, and start and
width of the intervals."""
PRECISION = 24
"""Probabilities are whole multiples of 2^-24."""
_LOW, _WORD, _BITS = np.uint64(31), np.uint64(32), np.uint64(PRECISION)
_INITIAL = 0x5EED


class Coder:
    """A stack of bits, last in, first out: the range variant of asymmetric numeral systems [Duda 2009].

    Several lanes are coded at once: lane i holds a number in [2^31, 2^63), and all share one stack of 32-bit words.
    Popping from an empty stack finds pseudo-random words, so that symbols can be drawn before any were pushed.

    Args:
        lanes: symbols that are coded at once.
        content: what `content` gave, to be popped; None for an empty stack.
    """

    def __init__(self, lanes: int, content: bytes | None = None) -> None:
        """Numbers of the lanes, uint64 [lanes], 2^31 each at the start, and words, uint32 [words]: see the class."""
        self._initial = np.random.default_rng(_INITIAL)
        self._words: list[NDArray[np.uint32]] = []
        if content is None:
            self._heads = np.full(lanes, np.uint64(1) << _LOW)
        else:
            self._heads = np.frombuffer(content[: 8 * lanes], dtype="<u8").astype(np.uint64)
            self._words.append(np.frombuffer(content[8 * lanes :], dtype="<u4").astype(np.uint32))

    @property
    def content(self) -> bytes:
        """All of it: the lanes' numbers, uint64 [lanes], and the words, uint32 [words]."""
        words = np.concatenate([np.zeros(0, np.uint32), *self._words])
        return self._heads.astype("<u8").tobytes() + words.astype("<u4").tobytes()

    def push(self, start: Integers, width: Integers) -> None:
        """Push symbols [n], each filling [start, start + width) of 0..2^24.

        The encoder of [Duda 2009].
        """
        for part in self._rounds(len(start)):
            first, wide = start[part].astype(np.uint64), width[part].astype(np.uint64)
            heads = self._heads[: len(first)]
            full = heads >= wide << (np.uint64(63) - _BITS)
            if full.any():
                self._words.append((heads[full] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
                heads[full] >>= _WORD
            whole, rest = np.divmod(heads, wide)
            heads[:] = (whole << _BITS) + rest + first

    def pop(self, n: int, find: Find) -> Integers:
        """Pop n symbols that were pushed at once: int64 [n]. The decoder of [Duda 2009]."""
        symbols = np.zeros(n, dtype=np.int64)
        for part in reversed(self._rounds(n)):
            heads = self._heads[: part.stop - part.start]
            bar = heads & np.uint64((1 << PRECISION) - 1)
            symbols[part], start, width = find(part, bar.astype(np.int64))
            heads[:] = width.astype(np.uint64) * (heads >> _BITS) + bar - start.astype(np.uint64)
            low = heads < np.uint64(1) << _LOW
            if low.any():
                heads[low] = (heads[low] << _WORD) | self._taken(int(low.sum())).astype(np.uint64)
        return symbols

    def _rounds(self, n: int) -> list[slice]:
        """Of n symbols, those that are coded at once: slices of as many as there are lanes."""
        lanes = len(self._heads)
        return [slice(first, min(n, first + lanes)) for first in range(0, n, lanes)]

    def _taken(self, n: int) -> NDArray[np.uint32]:
        """The n words on top, uint32 [n]: see the class."""
        parts: list[NDArray[np.uint32]] = []
        while n:
            top = self._words.pop() if self._words else self._initial.integers(0, 1 << 32, n, dtype=np.uint32)
            rest, taken = np.split(top, [max(0, len(top) - n)])
            if len(rest):
                self._words.append(rest)
            parts.insert(0, taken)
            n -= len(taken)
        return np.concatenate(parts)


_TOTAL = 1 << PRECISION
_WIDEST, _REACH, _FEW = 64, 7, 12
"""Bins are at most a 64th of a standard deviation wide, and reach 7 of these and 12 counts to either side."""
_COLUMNS, _TABLED, _COMPARED = 128, 1 << 20, 1 << 16
"""Symbols and starts of a table, and starts that are compared at once; otherwise symbols are found by bisection."""
_SPELT = 16
"""Bits of one of the two halves of a count that is spelt out."""


def grids(model: BlackoutDiffusion, steps: int) -> tuple[Tensor, Tensor]:
    """Times [T + 1] that may be coded along: the model's own, and those at which most of what is missing returns.

    [Santos 2023, eq. 60], and ours (tests/diffusion/test_compression.py).
    """
    assert isinstance(model.process, PureDeath)
    wide = widening(model.process.max_count)
    return model.schedule.grid(steps), logit_times(steps, 7.0 + wide, -10.0 - wide)


def bounds(model: BlackoutDiffusion, counts: Tensor, times: Tensor) -> Tensor:
    """What coding these counts [n, *shape] along `times` should take, float64 [n], in nats.

    Minus `path_log_weights`.
    """
    assert isinstance(model.process, PureDeath)
    x0, streams = counts.to(model.device), SampleStreams(0, torch.arange(len(counts), device=model.device))
    return -path_log_weights(model.denoiser(), model.process, times, x0, model.mean, streams).cpu()


def encoded(model: BlackoutDiffusion, counts: Tensor, times: Tensor, coder: Coder, batch_size: int = 64) -> None:
    """Push counts [n, *shape] onto the coder, by a sampler with these times [T + 1]; the last batch ends on top.

    Bits back along the chain of the Poisson sampler [Townsend 2019; Kingma 2019]: the forward process's X_t1 is popped
    from the stack as if drawn, the births between it and X_0 are pushed with the sampler's probabilities, and so on to
    X_T, which is pushed with the Poisson start's. The stack grows by

        -log p(X_T) - sum_k log p(X_k-1 | X_k) + sum_k log q(X_k | X_k-1),

    in the mean the finite-time bound, [Santos 2023, eq. 15] with weights r_k (`path_log_weights`): all that the forward
    process drew comes back when it is decoded. No count is impossible: what lies where a law has next to nothing keeps
    2^-24 and is spelt out.
    """
    for first, end in _batches(len(counts), batch_size):
        batch = counts[first:end]
        x = batch.reshape(-1).long().cpu().numpy()
        for k in range(1, len(times)):
            before = x
            x = _survivors(before, times[k] - times[k - 1]).pop(coder)
            _births(model, batch.shape, x, times, k).push(coder, before - x)
        _first(model, batch.shape, times).push(coder, x)


def decoded(model: BlackoutDiffusion, n: int, times: Tensor, coder: Coder, batch_size: int = 64) -> Tensor:
    """Pop what `encoded` pushed, by the same model, times and batch size: counts [n, *shape].

    Bits back [Townsend 2019; Kingma 2019]: all that was drawn is pushed again.
    """
    batches: list[Tensor] = []
    for first, end in reversed(_batches(n, batch_size)):
        shape = torch.Size((end - first, *model.shape))
        x = _first(model, shape, times).pop(coder)
        for k in range(len(times) - 1, 0, -1):
            before = x + _births(model, shape, x, times, k).pop(coder)
            _survivors(before, times[k] - times[k - 1]).push(coder, x)
            x = before
        batches.insert(0, torch.from_numpy(x.reshape(shape)))
    return torch.cat(batches)


def _batches(n: int, batch_size: int) -> list[tuple[int, int]]:
    """(first, end), integers, of batches of 1, 2, 4, ... up to `batch_size`: what the first ones draw has to be
    borrowed.
    """
    edges = [0]
    while edges[-1] < n:
        edges.append(min(n, edges[-1] + min(batch_size, edges[-1] + 1)))
    return list(pairwise(edges))


class _Law:
    """Counts 0..most [n] of laws with one peak: first the bin, by the distribution function, then which count of it.

    Ours (tests/diffusion/test_compression.py).

    Bin k fills [start(k), start(k + 1)) of 0..2^24. The last symbol says that a count lies in no bin, if such counts
    are spelt out: what is drawn must not be, because it could be spelt in two ways.

    Args:
        below: (which, counts) -> P(X <= count), of the laws `which`; 0 of -1.
        mean, std: [n].
        most: largest counts [n].
        spelt: whether counts may lie in no bin.
    """

    def __init__(
        self, below: Callable[[slice | Integers, Integers], Reals], mean: Reals, std: Reals, most: Integers, spelt: bool
    ) -> None:
        """Width of the bins, 2^bits, the first bin and the number of bins of every law, int64 [n] each: see the
        class.
        """
        self._below, self._most = below, most
        self._bits = np.floor(np.log2(np.maximum(std / _WIDEST, 1))).astype(np.int64)
        centre, reach = np.minimum(mean, most), _REACH * std + _FEW
        self._first = np.maximum(centre - reach, 0).astype(np.int64) >> self._bits
        self._bins = (np.minimum(centre + reach, most).astype(np.int64) >> self._bits) - self._first + 1
        self._largest = self._bins - 1 + spelt
        self._lowest = self._at_edge(slice(None), np.zeros_like(most))
        self._table: Integers | None = None

    def _at_edge(self, which: slice | Integers, symbols: Integers) -> Reals:
        """P(X < the first count of a bin) of symbols int64 [m]: float64 [m]: see the class."""
        return self._below(which, ((self._first[which] + symbols) << self._bits[which]) - 1)

    def start(self, which: slice | Integers, symbols: Integers) -> Integers:
        """Where the intervals of symbols start, for some m of the n, int64 [m]; 2^24 beyond the largest.

        See the class.
        """
        bins, inside = self._bins[which], symbols > 0
        below = np.where(inside, self._at_edge(which, np.maximum(symbols, 1)) - self._lowest[which], 0.0).clip(0, 1)
        # a little less than all, so that 1 and what rounding makes of it begin no interval twice
        scaled = np.floor(below * (1 - 1e-12) * (_TOTAL - bins - 1)).astype(np.int64) + symbols
        return np.where(symbols < bins, scaled, _TOTAL - (symbols <= self._largest[which]))

    def push(self, coder: Coder, symbols: Integers) -> None:
        """Bins, and counts in them, of symbols int64 [n]: see the class."""
        bins = (symbols >> self._bits) - self._first
        bins = np.where((bins >= 0) & (bins < self._bins), bins, self._bins)
        within, spelt = self._parts(bins)
        _push_even(coder, symbols[within] & ((1 << self._bits[within]) - 1), self._bits[within])
        for half in (0, _SPELT):
            _push_even(coder, symbols[spelt] >> half & ((1 << _SPELT) - 1), np.full(len(spelt), _SPELT))
        start = self.start(slice(None), bins)
        coder.push(start, self.start(slice(None), bins + 1) - start)

    def pop(self, coder: Coder) -> Integers:
        """Symbols int64 [n], as `push` took them."""
        bins = coder.pop(len(self._most), self._find)
        within, spelt = self._parts(bins)
        counts = (bins + self._first) << self._bits
        high, low = (_pop_even(coder, np.full(len(spelt), _SPELT)) for _ in range(2))
        counts[spelt] = (high << _SPELT) + low
        counts[within] += _pop_even(coder, self._bits[within])
        return np.minimum(counts, self._most)  # of a damaged file

    def _find(self, part: slice, bar: Integers) -> tuple[Integers, Integers, Integers]:
        """The last symbol whose interval starts at or before `bar`, int64 [m], see `Find`: by a table of few
        symbols, or by bisection.
        """
        columns = int(self._largest.max(initial=0)) + 2
        if self._table is None and columns <= _COLUMNS and len(self._largest) * columns <= _TABLED:
            each = [self.start(slice(None), np.full_like(self._largest, symbol)) for symbol in range(columns)]
            self._table = np.stack(each, 1)
        if self._table is not None and (rows := self._table[part]).size <= _COMPARED:
            symbols, row = (rows <= bar[:, None]).sum(1) - 1, np.arange(len(bar))
            return symbols, rows[row, symbols], rows[row, symbols + 1] - rows[row, symbols]
        which = np.arange(part.start, part.stop)
        low, high = np.zeros_like(bar), self._largest[which]
        while (low < high).any():
            middle = (low + high + 1) // 2
            inside = self.start(which, middle) <= bar
            low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
        start = self.start(which, low)
        return low, start, self.start(which, low + 1) - start

    def _parts(self, bins: Integers) -> tuple[Integers, Integers]:
        """Those in bins of several counts, and those in none."""
        return np.flatnonzero((bins < self._bins) & (self._bits > 0)), np.flatnonzero(bins == self._bins)


def _push_even(coder: Coder, symbols: Integers, bits: Integers) -> None:
    """Numbers [m] below 2^bits [m], all equally probable: intervals of one width, for `Coder.push`."""
    coder.push(symbols << (PRECISION - bits), np.full(len(bits), 1) << (PRECISION - bits))


def _pop_even(coder: Coder, bits: Integers) -> Integers:
    """Numbers [m] as `_push_even` took them, of bits [m]."""

    def find(part: slice, bar: Integers) -> tuple[Integers, Integers, Integers]:
        """A number below 2^bits by the first bits of `bar` [m], see `Find`."""
        shift = PRECISION - bits[part]
        return bar >> shift, bar >> shift << shift, np.full(len(bar), 1) << shift

    return coder.pop(len(bits), find)


def _poisson(rate: Reals, most: Integers) -> _Law:
    """Poisson counts of rates [n], to most [n]: by scipy's distribution function, for `_Law`."""

    def below(which: slice | Integers, counts: Integers) -> Reals:
        """P(X <= count), float64 [m], of Poisson(rate): see `_Law`."""
        return np.where(counts < 0, 0.0, special.pdtr(np.maximum(counts, 0), rate[which]))

    return _Law(below, rate, rate**0.5, most, spelt=True)


def _births(model: BlackoutDiffusion, shape: torch.Size, x: Integers, times: Tensor, k: int) -> _Law:
    """Of the sampler's step from time k to k - 1: Poisson(y r), x int64 [n] [Santos 2023, Algorithm 2]."""
    states = torch.from_numpy(x.reshape(shape)).to(model.device)
    with torch.no_grad():
        prediction = predicted(model.denoiser(), model.process, states, times[k])
    log_mean = prediction.log_mean.double().cpu().numpy().reshape(-1)
    log_rate = log_mean + float(step_fraction(times[k - 1], times[k]).log())
    rate = np.exp(np.nan_to_num(log_rate).clip(max=22.0))  # 2^31 and more of finite ones only
    return _poisson(rate, model.process.max_count - x)


def _first(model: BlackoutDiffusion, shape: torch.Size, times: Tensor) -> _Law:
    """Poisson(q_T E[X_0]), where sampling starts, [n] of a `shape`. Ours (tests/verification/test_toy_tables.py)."""
    mean = model.mean.double().cpu().expand(shape).numpy().reshape(-1)
    rate = float(torch.exp(-times[-1])) * mean
    return _poisson(rate, np.full(len(rate), model.process.max_count, dtype=np.int64))


def _survivors(before: Integers, span: Tensor) -> _Law:
    """Of counts [n] over a forward step of this length: Binomial(n, e^-span) [Santos 2023, eq. 8]."""
    lives, dies = float(torch.exp(-span)), float(-torch.expm1(-span))

    def below(which: slice | Integers, counts: Integers) -> Reals:
        """P(X <= count), float64 [m], of Binomial(n, lives), as an incomplete beta function: see `_Law`."""
        n, counts = before[which], np.minimum(counts, before[which])
        # P(X <= k) of Binomial(n, lives), all digits of which are kept where nearly all live
        return np.where(counts < 0, 0.0, np.where(counts == n, 1.0, special.betainc(
            np.maximum(n - counts, 1), np.maximum(counts, 0) + 1.0, dies)))  # fmt: skip

    mean = (before * lives).astype(np.float64)
    return _Law(below, mean, np.asarray((mean * dies) ** 0.5, np.float64), before, spelt=False)


Array: TypeAlias = NDArray[Any]
_FILE, _PLAIN, _PART = struct.Struct("<4sQHHB"), struct.Struct("<4sQ"), struct.Struct("<IIH16s")
"""Of a file: magic, arrays, steps, batch size, which grid; of one by xz: magic, arrays. Of a part: arrays, bytes,
lanes, and the first half of the SHA-256 of its counts; behind its bytes stands the CRC-32 of file header and part."""
_MAGIC, _XZ = b"BLK2", b"BLKX"
_PER_LANE = 6000
"""Elements for every lane of the coder, which costs 8 bytes."""
_PER_PART = 1 << 22
"""Elements that are coded at once, at most, if a single array has no more."""
_TRIED = 256
"""Arrays by which the grid is chosen, and the bound is told."""
_SPARSEST, _MOST_WORK = 10_000, 1 << 40
"""Elements for every byte of a part, and elements times steps: what says more is refused, not tried."""
_LZMA, _LZMA_MEMORY = 9 | lzma.PRESET_EXTREME, 1 << 27


def encode(given: argparse.Namespace) -> None:
    """Write the compressed file, every part decoded again, and say how large it is beside the bound and xz."""
    model, began = _model(given.model), time.perf_counter()
    counts = _counts(given.file, model)
    work = f"{counts.size:,} elements in {given.steps} steps"
    refuse(counts.size * given.steps > _MOST_WORK, f"{given.file}: {work}: at most {_MOST_WORK:,} altogether")
    given.out = new_file(given.out, given=True)
    tried = next(_parts(given.file, counts, model))
    expected = [Estimate.of(bounds(model, tried[:_TRIED], grid), model.shape) for grid in grids(model, given.steps)]
    chosen = min(range(len(expected)), key=lambda k: expected[k].value)
    times, bound = grids(model, given.steps)[chosen], expected[chosen]
    header = _FILE.pack(_MAGIC, len(counts), given.steps, given.batch_size, chosen)
    squeezer = lzma.LZMACompressor(preset=_LZMA)
    with replacing(given.out) as part, tempfile.TemporaryFile(dir=given.out.parent) as plain:
        plain.write(_PLAIN.pack(_XZ, len(counts)))
        with part.open("wb") as file:
            file.write(header)
            for some in _parts(given.file, counts, model):
                file.write(_part(model, some, times, header, given.batch_size))
                plain.write(squeezer.compress(some.numpy().astype(_plain_type(model)).tobytes()))
        plain.write(squeezer.flush())
        own, xz = part.stat().st_size, plain.tell() - _PLAIN.size
        if own > plain.tell():
            plain.seek(0)
            with part.open("wb") as file:
                shutil.copyfileobj(plain, file)
        size = part.stat().st_size
    rate = 8 / counts.size
    sizes = {"this": size, **({} if own == size else {"the model": own}), "xz": xz}
    said = ", ".join(f"{name} {size:,} bytes ({size * rate:.3f} bits per dimension)" for name, size in sizes.items())
    print(f"{len(counts):,} arrays: {said}; the bound is {bound.value:.3f} +- {bound.standard_error:.3f}")
    print(f"wrote {given.out}, and decoded it again, in {time.perf_counter() - began:.0f} s")


def _part(model: BlackoutDiffusion, counts: Tensor, times: Tensor, header: bytes, batch_size: int) -> bytes:
    coder = Coder(_lanes(counts.numel()))
    encoded(model, counts, times, coder, batch_size)
    body = coder.content
    content = _PART.pack(len(counts), len(body), _lanes(counts.numel()), _hash(counts)) + body
    again = decoded(model, len(counts), times, Coder(_lanes(counts.numel()), body), batch_size)
    if not torch.equal(again, counts.long()):
        raise RuntimeError("what was encoded does not decode to itself")
    return content + zlib.crc32(content, zlib.crc32(header)).to_bytes(4, "little")


def decode(given: argparse.Namespace) -> None:
    """Write the counts as .npy."""
    model, name = _model(given.model), str(given.file)
    with opened(given.file) as file:
        n, parts = decoded_file(model, file, name)
        given.out = new_file(given.out, given=True)
        dtype = torch.empty(0, dtype=count_dtype(model.process.max_count)).numpy().dtype
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n, *model.shape)}
        with replacing(given.out) as part, part.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, about)
            for counts in parts:
                out.write(counts.astype(dtype).tobytes())
    print(f"wrote {n:,} arrays to {given.out}")


def decoded_file(model: BlackoutDiffusion, file: io.BufferedReader, name: str) -> tuple[int, Iterator[Array]]:
    """How many arrays there are, and all of them by parts.

    Raises:
        UserError: now or from a part: not such a file, damaged, or of another model.
    """
    start = file.read(_FILE.size)
    if start[:4] == _XZ and len(start) >= _PLAIN.size:
        _, n = _PLAIN.unpack(start[: _PLAIN.size])
        return n, _unsqueezed(model, file, start[_PLAIN.size :], n, name)
    refuse(start[:4] != _MAGIC, f"{name}: not a file that `blackout compress encode` wrote")
    refuse(len(start) < _FILE.size, f"{name}: damaged")
    _, n, steps, batch_size, chosen = _FILE.unpack(start)
    if min(n, steps, batch_size) < 1 or chosen > 1 or n * math.prod(model.shape) * steps > _MOST_WORK:
        raise UserError(f"{name}: damaged: {n:,} arrays in {steps} steps cannot be in it")
    return n, _decoded_parts(model, file, start, name)


def _decoded_parts(model: BlackoutDiffusion, file: io.BufferedReader, header: bytes, name: str) -> Iterator[Array]:
    _, n, steps, batch_size, chosen = _FILE.unpack(header)
    times = grids(model, steps)[chosen]
    while n:
        about = file.read(_PART.size)
        some, size, lanes, expected = _PART.unpack(about) if len(about) == _PART.size else (0, 0, 0, b"")
        elements, most = some * math.prod(model.shape), _per_part(model)
        fits = size >= 8 * lanes and size % 4 == 0 and elements <= _SPARSEST * size
        if not 0 < some <= min(n, most) or lanes != _lanes(elements) or not fits:
            raise UserError(f"{name}: damaged: {some:,} arrays in {size:,} bytes and {lanes} lanes cannot be in it")
        body, crc = file.read(size), file.read(4)
        refuse(zlib.crc32(about + body, zlib.crc32(header)).to_bytes(4, "little") != crc, f"{name}: damaged")
        counts = decoded(model, some, times, Coder(lanes, body), batch_size)
        if _hash(counts) != expected:
            raise UserError(f"{name}: does not decode to what was encoded: another model, machine or version made it")
        yield counts.numpy()
        n -= some
    refuse(file.read(1), f"{name}: damaged: more follows its last part")


def _unsqueezed(model: BlackoutDiffusion, file: io.BufferedReader, data: bytes, n: int, name: str) -> Iterator[Array]:
    squeezed, dtype = lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY), _plain_type(model)
    per, size = _per_part(model), math.prod(model.shape) * dtype.itemsize
    while n or not squeezed.eof:
        wanted, found = min(n, per) * size or 1, b""
        while len(found) < wanted and not squeezed.eof:
            data = data or (file.read(1 << 20) if squeezed.needs_input else b"")
            try:
                found += squeezed.decompress(data, wanted - len(found))
            except lzma.LZMAError:
                raise UserError(f"{name}: damaged") from None
            refuse(not data and squeezed.needs_input and not squeezed.eof, f"{name}: damaged")
            data = b""
        refuse(len(found) != min(n, per) * size, f"{name}: damaged")
        if n:
            counts = np.frombuffer(found, dtype).reshape(-1, *model.shape).astype(np.int64)
            if counts.max() > model.process.max_count:
                raise UserError(f"{name}: of another model: counts must be up to {model.process.max_count}")
            yield counts
            n -= len(counts)


def _plain_type(model: BlackoutDiffusion) -> np.dtype[Any]:
    """The smallest integers that hold every count."""
    return np.min_scalar_type(model.process.max_count).newbyteorder("<")


def _per_part(model: BlackoutDiffusion) -> int:
    return max(1, _PER_PART // math.prod(model.shape))


def _lanes(elements: int) -> int:
    return max(1, min(1024, elements // _PER_LANE))


def _model(path: Path) -> BlackoutDiffusion:
    model = load_model(path)
    if not isinstance(model, BlackoutDiffusion) or not isinstance(model.process, PureDeath):
        raise UserError(f"{path}: compression needs a model of pure death")
    return model


def _counts(path: Path, model: BlackoutDiffusion) -> Array:
    """The array of a .npy file, left on the disk, or `samples` of an .npz, channels first or last."""
    array, shape = load_array(path, "samples", mapped=True), tuple(model.shape)
    if array.ndim == len(shape) + 1 and array.shape[1:] == (*shape[1:], shape[0]):
        array = np.moveaxis(array, -1, 1)
    if array.shape[1:] != shape or len(array) == 0 or array.dtype.kind not in "iu":
        needed = f"whole numbers [n, {', '.join(map(str, shape))}] are needed"
        raise UserError(f"{path}: {needed}, not {array.dtype} {array.shape}")
    return array


def _parts(path: Path, counts: Array, model: BlackoutDiffusion) -> Iterator[Tensor]:
    """Counts that are coded at once."""
    for first in range(0, len(counts), per := _per_part(model)):
        some = np.asarray(counts[first : first + per])
        if some.min() < 0 or some.max() > model.process.max_count:
            raise UserError(f"{path}: counts must be from 0 to {model.process.max_count}")
        yield torch.from_numpy(some.astype(np.int64)).to(count_dtype(model.process.max_count))


def _hash(counts: Tensor) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(counts.numpy(), dtype="<i8").tobytes()).digest()[:16]


def main() -> None:
    parser = CommandParser(
        prog="blackout compress", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["encode", "decode"])
    parser.add_argument("model", type=Path, help="run directory, .ckpt file or exported model")
    parser.add_argument("file", type=Path, help="counts (.npy, or .npz with `samples`), or what was encoded")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100, help="of the sampler: more are tighter and slower")
    parser.add_argument("--batch-size", type=int, default=64)
    run_command(_run, parser)


def _run(given: argparse.Namespace) -> None:
    if not (1 <= given.steps < 1 << 16 and 1 <= given.batch_size < 1 << 16):
        raise UserError("--steps and --batch-size must be from 1 to 65,535")
    (encode if given.what == "encode" else decode)(given)


if __name__ == "__main__":
    main()
