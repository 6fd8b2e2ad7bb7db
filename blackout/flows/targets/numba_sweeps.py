"""Annealed Gibbs sweeps of spins that interact in pairs, compiled for a CPU by numba.

The same uniforms decide the same spins as in `Target.swept`, but for probabilities that differ in their last bits; what
the neighbours say is summed over the bonds there are, and log rho changes with every flip instead of being computed.
Chains go through a sweep in blocks, side by side in memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.random.numba_draws import compiled, pair_of, uniform_of

_BLOCK = 64
"""Chains that are swept together."""
_MOST = 16
"""Neighbours up to which probabilities come from a table, where all couplings are of one strength."""


class Spins:
    """A law of two levels, in spins s = 2x - 1.

    Args:
        pairs, fields: [d, d] and [d, 2], see `Target.pairs`.
        order: int64 [d], in which sites are drawn.
    """

    def __init__(self, pairs: Tensor, fields: Tensor, order: Tensor) -> None:
        pair, field = pairs / 2, (fields[:, 1] - fields[:, 0]) / 2
        bonds = pair.nonzero()
        strengths = pair[bonds[:, 0], bonds[:, 1]].abs().unique()
        degrees = (pair != 0).sum(1)
        self.unit = float(strengths[0]) if len(strengths) else 1.0
        self.tabled = len(strengths) <= 1 and int(degrees.max()) <= _MOST
        self.first = np.concatenate([[0], degrees.cumsum(0).numpy()])
        self.beside = np.ascontiguousarray(bonds[:, 1].numpy())
        weights = pair[bonds[:, 0], bonds[:, 1]] / self.unit
        self.weights = (weights.round() if self.tabled else weights).numpy()
        self.field, self.order, self.most = field.numpy().copy(), order.numpy(), int(degrees.max())
        self.fields, self.which = np.unique(self.field, return_inverse=True)

    def swept(
        self, x: Tensor, log_density: Tensor, keys: Tensor, times: Tensor, towards: Tensor | None, pull: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights gain (t_{k+1} - t_k) log rho(x), then every spin is drawn from p_{t_{k+1}}, K times.

        Args:
            x, log_density: states uint8 [B, d] and their log rho, float64 [B].
            keys: of the draws of every sweep, int64 [K, B].
            times: t_0, ..., t_K, float64 [K + 1].
            towards: states [B, d] from around which chains are annealed; None for uniform noise.
            pull: log-odds of a spin's being as there at t = 0.

        Returns:
            (states, their log-density, gains [B]).
        """
        t = times[1:].numpy()
        shift = (1 - t) * pull / 2
        table = np.zeros((len(t), 0, 0))
        if self.tabled:
            sums = t[:, None, None] * (self.unit * np.arange(-self.most, self.most + 1) + self.fields[:, None])
            sides = [sums] if towards is None else [sums + side * shift[:, None, None] for side in (-1, 0, 1)]
            table = 1 / (1 + np.exp(2 * np.concatenate(sides, 2)))
        states, density, gain = x.numpy().copy(), log_density.numpy().copy(), np.zeros(len(x))
        centres = np.zeros((1, 0), np.uint8) if towards is None else towards.numpy().astype(np.uint8)
        about = self.order, self.first, self.beside, self.weights, self.field, self.which
        _sweep(keys.numpy(), states, density, gain, times.numpy(), *about, self.unit, table, centres, shift, pull / 2)
        return torch.from_numpy(states), torch.from_numpy(density), torch.from_numpy(gain)


@compiled(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], f8[::1], f8[::1], i8[::1], i8[::1], i8[::1], f8[::1], f8[::1], i8[::1], "
    "f8, f8[:, :, ::1], u1[:, ::1], f8[::1], f8)"
)
def _sweep(
    keys: np.ndarray, x: np.ndarray, density: np.ndarray, gain: np.ndarray, times: np.ndarray, order: np.ndarray,
    first: np.ndarray, beside: np.ndarray, weights: np.ndarray, field: np.ndarray, which: np.ndarray, unit: float,
    table: np.ndarray, centres: np.ndarray, shift: np.ndarray, pull: float,
) -> None:  # fmt: skip
    sites, tabled, near = x.shape[1], table.shape[2] > 0, centres.shape[1] > 0
    width = table.shape[2] // (3 if near else 1)
    spins, towards = np.empty((sites, _BLOCK), np.int8), np.zeros((sites if near else 1, _BLOCK), np.int8)
    sums, start, second = np.empty(_BLOCK), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    uniforms, new, now, gained = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for block in range(0, x.shape[0], _BLOCK):
        size = min(_BLOCK, x.shape[0] - block)
        for c in range(_BLOCK):
            row = block + min(c, size - 1)
            now[c], gained[c] = density[row], 0.0
            for i in range(sites):
                spins[i, c] = 2 * np.int8(x[row, i]) - 1
                if near:
                    towards[i, c] = 2 * np.int8(centres[row, i]) - 1
        for k in range(keys.shape[0]):
            t = times[k + 1]
            for c in range(_BLOCK):
                gained[c] += (t - times[k]) * now[c]
                start[c], second[c] = pair_of(keys[k, block + min(c, size - 1)], 0)
            for i in order:
                sums[:] = 0.0
                for c in range(_BLOCK):
                    uniforms[c] = uniform_of((start[c], second[c]), i)
                for edge in range(first[i], first[i + 1]):
                    other, weight = beside[edge], weights[edge]
                    for c in range(_BLOCK):
                        sums[c] += weight * spins[other, c]
                own, side = spins[i], towards[i if near else 0]
                if tabled:
                    law, middle = table[k, which[i]], width // 2 + (width if near else 0)
                    for c in range(_BLOCK):
                        new[c] = 2.0 * (law[np.uintp(np.int64(sums[c] + width * side[c]) + middle)] <= uniforms[c]) - 1
                else:
                    for c in range(_BLOCK):
                        odds = math.exp(2 * (t * (unit * sums[c] + field[i]) + shift[k] * side[c]))
                        new[c] = 2.0 * (1 / (1 + odds) <= uniforms[c]) - 1
                for c in range(_BLOCK):
                    now[c] += (new[c] - own[c]) * (unit * sums[c] + field[i] - pull * side[c])
                    own[c] = np.int8(new[c])
        for c in range(size):
            density[block + c], gain[block + c] = now[c], gained[c]
            for i in range(sites):
                x[block + c, i] = spins[i, c] > 0
