"""Distributions of counts with one peak, discretised for the coder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from blackout.diffusion.compression.coder import (
    TOTAL,
    Coder,
    Integers,
    pop_uniform,
    push_uniform,
)

Reals: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = slice | Integers
# (rows, counts) -> P(X <= count) for the distributions of these rows; 0 for a count of -1
Cdf: TypeAlias = Callable[[Rows, Integers], Reals]

BINS_PER_STD = 64  # bins are at most 1/64 of a standard deviation wide
REACH_STDS = 7  # bins reach this many standard deviations to either side of the mean
REACH_COUNTS = 12  # and this many counts more
MAX_TABLE_COLUMNS = 128  # symbols of a table of interval starts
MAX_TABLE_ENTRIES = 1 << 20  # starts in a table; larger ones are replaced by bisection
MAX_COMPARISONS = 1 << 16  # starts that are compared at once
HALF_BITS = 16  # a count outside all bins is written as two numbers of 16 bits


class BinnedDistribution:
    """n distributions of counts: a bin by the distribution function, then a count within the bin.

    Bin k fills [start(k), start(k + 1)) of 0..2^24. If `escape` is true, one more symbol says that
    a count lies in no bin and is written out. Counts that are drawn must not have this symbol,
    since they could then be written in two ways.

    References: this project; checked in tests/diffusion/test_compression.py.

    Args:
        cdf: the distribution functions.
        mean: means [n].
        std: standard deviations [n].
        max_counts: the largest counts, int64 [n].
        escape: whether counts may lie outside all bins.
    """

    def __init__(
        self, cdf: Cdf, mean: Reals, std: Reals, max_counts: Integers, *, escape: bool
    ) -> None:
        self._cdf = cdf
        self._max_counts = max_counts
        self._bin_bits = np.floor(np.log2(np.maximum(std / BINS_PER_STD, 1))).astype(np.int64)
        centre = np.minimum(mean, max_counts)
        reach = REACH_STDS * std + REACH_COUNTS
        first = np.maximum(centre - reach, 0).astype(np.int64)
        last = np.minimum(centre + reach, max_counts).astype(np.int64)
        self._first_bin = first >> self._bin_bits
        self._num_bins = (last >> self._bin_bits) - self._first_bin + 1
        self._last_symbol = self._num_bins - 1 + escape
        self._cdf_below_first_bin = self._cdf_below(slice(None), np.zeros_like(max_counts))
        self._table: Integers | None = None

    def _cdf_below(self, rows: Rows, symbols: Integers) -> Reals:
        """Return P(X < first count of the bin) for symbols [m], float64 [m]."""
        first_count = (self._first_bin[rows] + symbols) << self._bin_bits[rows]
        return self._cdf(rows, first_count - 1)

    def start(self, rows: Rows, symbols: Integers) -> Integers:
        """Return the starts of the intervals of symbols, int64 [m]; 2^24 after the last one."""
        num_bins = self._num_bins[rows]
        below = np.where(
            symbols > 0,
            self._cdf_below(rows, np.maximum(symbols, 1)) - self._cdf_below_first_bin[rows],
            0.0,
        ).clip(0, 1)
        # less than all of 2^24: a probability rounded to 1 must not start two intervals
        scaled = np.floor(below * (1 - 1e-12) * (TOTAL - num_bins - 1)).astype(np.int64) + symbols
        return np.where(symbols < num_bins, scaled, TOTAL - (symbols <= self._last_symbol[rows]))

    def push(self, coder: Coder, counts: Integers) -> None:
        """Push counts, int64 [n]."""
        bins = (counts >> self._bin_bits) - self._first_bin
        bins = np.where((bins >= 0) & (bins < self._num_bins), bins, self._num_bins)
        binned, escaped = self._split(bins)
        bits = self._bin_bits[binned]
        push_uniform(coder, counts[binned] & ((1 << bits) - 1), bits)
        for shift in (0, HALF_BITS):
            half = counts[escaped] >> shift & ((1 << HALF_BITS) - 1)
            push_uniform(coder, half, np.full(len(escaped), HALF_BITS))
        start = self.start(slice(None), bins)
        coder.push(start, self.start(slice(None), bins + 1) - start)

    def pop(self, coder: Coder) -> Integers:
        """Pop counts, int64 [n], that `push` pushed."""
        bins = coder.pop(len(self._max_counts), self._find)
        binned, escaped = self._split(bins)
        counts = (bins + self._first_bin) << self._bin_bits
        half_bits = np.full(len(escaped), HALF_BITS)
        high = pop_uniform(coder, half_bits)
        low = pop_uniform(coder, half_bits)
        counts[escaped] = (high << HALF_BITS) + low
        counts[binned] += pop_uniform(coder, self._bin_bits[binned])
        return np.minimum(counts, self._max_counts)  # a damaged file may contain anything

    def _find(self, part: slice, points: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the symbols whose intervals contain the points [m], see `Find`."""
        rows = self._table_rows(part)
        if rows is not None and rows.size <= MAX_COMPARISONS:
            symbols = (rows <= points[:, None]).sum(1) - 1
            row = np.arange(len(points))
            starts = rows[row, symbols]
            return symbols, starts, rows[row, symbols + 1] - starts
        index = np.arange(part.start, part.stop)
        low = np.zeros_like(points)
        high = self._last_symbol[index]
        while (low < high).any():
            middle = (low + high + 1) // 2
            inside = self.start(index, middle) <= points
            low = np.where(inside, middle, low)
            high = np.where(inside, high, middle - 1)
        starts = self.start(index, low)
        return low, starts, self.start(index, low + 1) - starts

    def _table_rows(self, part: slice) -> Integers | None:
        """Return the starts of all symbols of these rows; None if the table would be too large."""
        columns = int(self._last_symbol.max(initial=0)) + 2
        entries = len(self._last_symbol) * columns
        if columns > MAX_TABLE_COLUMNS or entries > MAX_TABLE_ENTRIES:
            return None
        if self._table is None:
            symbols = [np.full_like(self._last_symbol, symbol) for symbol in range(columns)]
            self._table = np.stack([self.start(slice(None), column) for column in symbols], 1)
        return self._table[part]

    def _split(self, bins: Integers) -> tuple[Integers, Integers]:
        """Return the rows whose bins hold several counts, and those whose counts lie in no bin."""
        binned = (bins < self._num_bins) & (self._bin_bits > 0)
        return np.flatnonzero(binned), np.flatnonzero(bins == self._num_bins)


def poisson_counts(rate: Reals, max_counts: Integers) -> BinnedDistribution:
    """Return Poisson distributions with rates [n] of counts up to `max_counts` [n]."""

    def cdf(rows: Rows, counts: Integers) -> Reals:
        probability = special.pdtr(np.maximum(counts, 0), rate[rows])
        return np.where(counts < 0, 0.0, probability)

    return BinnedDistribution(cdf, rate, rate**0.5, max_counts, escape=True)


def surviving_counts(counts: Integers, survival: Tensor, death: Tensor) -> BinnedDistribution:
    """Return Binomial(counts, survival) for counts [n].

    Args:
        counts: numbers of trials, int64 [n].
        survival: probability of success, a scalar.
        death: 1 - survival, to full precision.

    References: Santos et al. 2023, eq. 8.
    """
    survival_probability = float(survival)
    death_probability = float(death)

    def cdf(rows: Rows, values: Integers) -> Reals:
        trials = counts[rows]
        values = np.minimum(values, trials)
        # the incomplete beta function keeps all digits when nearly all units survive
        probability = special.betainc(
            np.maximum(trials - values, 1), np.maximum(values, 0) + 1.0, death_probability
        )
        return np.where(values < 0, 0.0, np.where(values == trials, 1.0, probability))

    mean = (counts * survival_probability).astype(np.float64)
    std = np.asarray((mean * death_probability) ** 0.5, np.float64)
    return BinnedDistribution(cdf, mean, std, counts, escape=False)
