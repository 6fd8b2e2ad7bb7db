"""Annealed Gibbs sweeps of sites that interact in pairs, and clusters of them, compiled for a CPU by numba.

The same uniforms decide the same states as in `Target.swept`, but for probabilities that differ in their last bits;
what the neighbours say is summed over the bonds there are, and log rho changes with every flip instead of being
computed. Chains of spins go through a sweep in blocks, side by side in memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.random.numba_draws import attempt_keys, cached_njit, element_uniform

_BLOCK = 64
"""Chains that are swept together."""
_MOST = 16
"""Neighbours up to which probabilities come from a table, where all couplings are of one strength."""


class Sweeps:
    """Gibbs sweeps [Geman and Geman 1984] of one law; of two levels in spins s = 2x - 1.

    Args:
        pairs, fields: [d, d] and [d, S], see `Target.pairs`.
        start: log-probabilities of the states where chains begin, [d, S]; None for uniform ones.
        order: int64 [d], in which sites are drawn.
    """

    def __init__(self, pairs: Tensor, fields: Tensor, start: Tensor | None, order: Tensor) -> None:
        """Neighbours of each site, int64 [m], weights [m] and fields [d, S]; of spins half of what levels differ by,
        [d]: see the class.
        """
        one, other = pairs.nonzero(as_tuple=True)
        degrees, weights = (pairs != 0).sum(1), pairs[one, other]
        self.about = order.numpy(), np.concatenate([[0], degrees.cumsum(0).numpy()]), other.numpy()
        self.weights, self.fields = weights.numpy(), fields.contiguous().numpy()
        self.start = (torch.zeros_like(fields) if start is None else start).numpy()
        if fields.shape[1] == 2:
            strengths = (weights / 2).abs().unique()
            self.most, self.unit = int(degrees.max()), float(strengths[0]) if len(strengths) else 1.0
            self.tabled = len(strengths) <= 1 and self.most <= _MOST
            weights = weights / 2 / self.unit
            self.weights = (weights.round() if self.tabled else weights).numpy()
            self.field, self.start = ((part[:, 1] - part[:, 0]) / 2 for part in (self.fields, self.start))
            values, which = np.unique([self.field, self.start], axis=1, return_inverse=True)
            self.values, self.which = values[..., None], which.ravel()

    def swept(self, x: Tensor, log_density: Tensor, keys: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights gain (t_{k+1} - t_k) log rho(x), then every site is drawn from p_{t_{k+1}}, K times.

        Annealed importance sampling [Neal 2001] by Gibbs sweeps.

        Args:
            x, log_density: states uint8 [B, d] and their log rho, float64 [B].
            keys: of the draws of every sweep, int64 [K, B].
            times: t_0, ..., t_K, float64 [K + 1], or [L, K + 1] of L parts of the chains, each as many.

        Returns:
            (states, their log-density, gains [B]).
        """
        states, density, gain = x.numpy().copy(), log_density.numpy().copy(), np.zeros(len(x))
        lanes = times.view(-1, times.shape[-1]).numpy()
        moved = keys.numpy(), states, density, gain, lanes, *self.about, self.weights
        if self.fields.shape[1] > 2:
            _sweep_levels(*moved, self.fields, self.start)
        else:
            t, (field, start) = lanes[:, 1:].reshape(-1, 1, 1), self.values
            sums = self.unit * np.arange(-self.most, self.most + 1) + field
            table = 1 / (1 + np.exp(2 * (t * sums + start))) if self.tabled else np.zeros((len(t), 0, 0))
            _sweep(*moved, self.field, self.start, self.which, self.unit, table)
        return torch.from_numpy(states), torch.from_numpy(density), torch.from_numpy(gain)


@cached_njit(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], f8[::1], f8[:, ::1], i8[::1], i8[::1], i8[::1], f8[::1], f8[::1], f8[::1], "
    "i8[::1], f8, f8[:, :, ::1])"
)
def _sweep(
    keys: np.ndarray, x: np.ndarray, density: np.ndarray, gain: np.ndarray, times: np.ndarray, order: np.ndarray,
    first: np.ndarray, beside: np.ndarray, weights: np.ndarray, field: np.ndarray, begin: np.ndarray,
    which: np.ndarray, unit: float, table: np.ndarray,
) -> None:  # fmt: skip
    """`Sweeps.swept` of spins, in place: P(s_i = -1 | others) = 1 / (1 + exp(2 (t force + start))).

    [Geman and Geman 1984], with states uint8 [B, d], their log rho and gains [B], times [L, K + 1] and keys [K, B].
    """
    sites, tabled, spins = x.shape[1], table.shape[2] > 0, np.empty((x.shape[1], _BLOCK), np.int8)
    counts, start, second = np.empty(_BLOCK, np.int8), np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    uniforms, down, now, gained = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    forces, signs = np.empty(_BLOCK), weights.astype(np.int8)
    part, sweeps = x.shape[0] // times.shape[0], keys.shape[0]
    blocks = (part + _BLOCK - 1) // _BLOCK
    for number in range(times.shape[0] * blocks):
        lane, block = number // blocks, number // blocks * part + number % blocks * _BLOCK
        size = min(_BLOCK, (lane + 1) * part - block)
        for c in range(_BLOCK):
            row = block + min(c, size - 1)
            now[c], gained[c] = density[row], 0.0
            for i in range(sites):
                spins[i, c] = 2 * np.int8(x[row, i]) - 1
        for k in range(sweeps):
            t, at = times[lane, k + 1], lane * sweeps + k
            for c in range(_BLOCK):
                gained[c] += (t - times[lane, k]) * now[c]
                start[c], second[c] = attempt_keys(keys[k, block + min(c, size - 1)], 0)
            for i in order:
                own = spins[i]
                if tabled:  # in bytes, and a loop for each kind of step: twice as quick
                    counts[:] = 0
                    for edge in range(first[i], first[i + 1]):
                        other, sign = beside[edge], signs[edge]
                        for c in range(_BLOCK):
                            counts[c] += sign * spins[other, c]
                    law, middle = table[at, which[i]], table.shape[2] // 2
                    for c in range(_BLOCK):
                        forces[c], down[c] = unit * counts[c] + field[i], law[np.uintp(counts[c] + middle)]
                else:
                    forces[:] = field[i]
                    for edge in range(first[i], first[i + 1]):
                        other, weight = beside[edge], unit * weights[edge]
                        for c in range(_BLOCK):
                            forces[c] += weight * spins[other, c]
                    for c in range(_BLOCK):
                        down[c] = 1 / (1 + math.exp(2 * (t * forces[c] + begin[i])))
                for c in range(_BLOCK):
                    uniforms[c] = element_uniform((start[c], second[c]), i)
                for c in range(_BLOCK):
                    new = np.int8(1) if down[c] <= uniforms[c] else np.int8(-1)
                    now[c] += (new - own[c]) * forces[c]
                    own[c] = new
        for c in range(size):
            density[block + c], gain[block + c] = now[c], gained[c]
            for i in range(sites):
                x[block + c, i] = spins[i, c] > 0


@cached_njit("i8(f8[::1], f8)")
def _drawn(logits: np.ndarray, u: float) -> int:
    """The level that a uniform draws by softmax(logits), [S]: the first whose running sum is above it.

    Of `_sweep_levels` [Geman and Geman 1984] and `draw_clusters` [Swendsen 1987].
    """
    total, top, below = 0.0, logits[0], 0.0
    for level in range(1, len(logits)):
        top = max(top, logits[level])
    for level in range(len(logits)):
        logits[level] = math.exp(logits[level] - top)
        total += logits[level]
    for level in range(len(logits) - 1):
        below += logits[level]
        if below > u * total:
            return level
    return len(logits) - 1


@cached_njit(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], f8[::1], f8[:, ::1], i8[::1], i8[::1], i8[::1], f8[::1], f8[:, ::1], "
    "f8[:, ::1])"
)
def _sweep_levels(
    keys: np.ndarray, x: np.ndarray, density: np.ndarray, gain: np.ndarray, times: np.ndarray, order: np.ndarray,
    first: np.ndarray, beside: np.ndarray, weights: np.ndarray, fields: np.ndarray, begin: np.ndarray,
) -> None:  # fmt: skip
    """`Sweeps.swept` of any levels, in place: a level is drawn by softmax(t value + start) [Geman and Geman 1984].

    States uint8 [B, d], their log rho and gains [B], times [L, K + 1], keys [K, B], fields [d, S].
    """
    value, logits = np.empty(fields.shape[1]), np.empty(fields.shape[1])
    for c in range(x.shape[0]):
        own, lane = x[c], c * times.shape[0] // x.shape[0]
        for k in range(keys.shape[0]):
            t, pair = times[lane, k + 1], attempt_keys(keys[k, c], 0)
            gain[c] += (t - times[lane, k]) * density[c]
            for i in order:
                value[:] = fields[i]
                for edge in range(first[i], first[i + 1]):
                    value[own[beside[edge]]] += weights[edge]
                for level in range(len(value)):
                    logits[level] = t * value[level] + begin[i, level]
                new = _drawn(logits, element_uniform(pair, i))
                density[c] += value[new] - value[own[i]]
                own[i] = new


@cached_njit("void(i8[:, ::1], u1[:, ::1], f8[::1], i8[::1], i8[::1], f8[::1], f8[::1], f8[:, ::1], f8, b1)")
def draw_clusters(
    keys: np.ndarray, x: np.ndarray, density: np.ndarray, one: np.ndarray, two: np.ndarray, weights: np.ndarray,
    bound: np.ndarray, fields: np.ndarray, t: float, single: bool,
) -> None:  # fmt: skip
    """A move of `Clusters`, in place [Swendsen 1987; Wolff 1989].

    Args:
        keys: of the draws of bonds, of places and, for single ones, of states, int64 [2 or 3, B].
        x, density: states uint8 [B, d] and their log rho, float64 [B].
        one, two, weights, bound: ends of the bonds, int64 [m], what they gain log rho and how likely they bind, [m].
        fields: [d, S], see `Target.pairs`.
        t: time.
        single: one cluster of every state.
    """
    sites, levels = fields.shape
    root, law, state = np.empty(sites, np.int64), np.empty((sites, levels)), np.empty(sites, np.uint8)
    logits = np.empty(levels)
    for c in range(x.shape[0]):
        own, bonds, places = x[c], attempt_keys(keys[0, c], 0), attempt_keys(keys[1, c], 0)
        for i in range(sites):
            root[i], density[c] = i, density[c] - fields[i, own[i]]
        for bond in range(len(one)):
            i, j = one[bond], two[bond]
            if own[i] != own[j]:
                continue
            density[c] -= weights[bond]
            if element_uniform(bonds, bond) < bound[bond]:
                while root[i] != i:
                    root[i] = root[root[i]]
                    i = root[i]
                while root[j] != j:
                    root[j] = root[root[j]]
                    j = root[j]
                root[max(i, j)] = min(i, j)
        for i in range(sites):  # a root comes before its cluster
            root[i] = root[root[i]]
            for level in range(levels):
                law[i, level] = 0.0
                law[root[i], level] += t * fields[i, level]
        if single:
            chosen = root[int(element_uniform(places, 0) * sites)]
            step = int(element_uniform(attempt_keys(keys[2, c], 0), 0) * (levels - 1)) + 1
        for i in range(sites):
            if single:
                own[i] = (own[i] + step) % levels if root[i] == chosen else own[i]
            else:
                if root[i] == i:
                    logits[:] = law[i]
                    state[i] = _drawn(logits, element_uniform(places, i))
                own[i] = state[root[i]]
            density[c] += fields[i, own[i]]
        for bond in range(len(one)):
            if own[one[bond]] == own[two[bond]]:
                density[c] += weights[bond]
