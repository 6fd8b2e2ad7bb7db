"""Annealed Gibbs sweeps of pair models, and cluster moves, compiled by numba for the CPU.

The same uniforms give the same states as `Target.gibbs_sweep`, except for probabilities that differ
by rounding: neighbours are summed over the bonds instead of a dense matrix, and log rho is updated
with every flip instead of being recomputed. Chains of spins are swept in blocks whose values lie
next to each other in memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.random.numba_draws import attempt_keys, cached_njit, element_uniform

CHAINS_PER_BLOCK = 64  # chains swept together; their sums are bytes that fit into the cache
MAX_TABLE_DEGREE = 16  # largest number of neighbours for which probabilities are tabulated


class CompiledGibbs:
    """Gibbs sweeps of one pair model; two levels are swept as spins s = 2x - 1.

    References: Geman and Geman 1984.

    Args:
        pair: w, [d, d], see `Target.pairwise_terms`.
        field: f, [d, S].
        log_initial: log-probabilities [d, S] of the sites at t = 0; None for uniform ones.
        order: of the sites in a sweep, int64 [d].
    """

    def __init__(
        self,
        pair: Tensor,
        field: Tensor,
        log_initial: Tensor | None,
        order: Tensor,
    ) -> None:
        # 1. Neighbours of all sites one after another; those of site i start at offsets[i].
        first, second = pair.nonzero(as_tuple=True)
        degrees = (pair != 0).sum(1)
        weights = pair[first, second]
        self.order = order.numpy()
        self.offsets = np.concatenate([[0], degrees.cumsum(0).numpy()])
        self.neighbours = second.numpy()
        self.weights = weights.numpy()
        self.num_levels = field.shape[1]
        self.field = field.contiguous().numpy()
        if log_initial is None:
            log_initial = torch.zeros_like(field)
        self.log_initial = log_initial.numpy()
        if self.num_levels != 2:
            return

        # 2. Spins: couplings in multiples of `unit`, and half the difference of the two levels.
        strengths = (weights / 2).abs().unique()
        self.max_degree = int(degrees.max())
        self.unit = float(strengths[0]) if len(strengths) else 1.0
        self.tabulated = len(strengths) <= 1 and self.max_degree <= MAX_TABLE_DEGREE
        weights = weights / 2 / self.unit
        if self.tabulated:
            weights = weights.round()
        self.weights = weights.numpy()
        self.field = (self.field[:, 1] - self.field[:, 0]) / 2
        self.log_initial = (self.log_initial[:, 1] - self.log_initial[:, 0]) / 2

        # 3. Distinct pairs of field and initial log-odds, which share a table.
        values, row = np.unique([self.field, self.log_initial], axis=1, return_inverse=True)
        self.table_values = values[..., None]
        self.table_row = row.ravel()

    def run(
        self,
        x: Tensor,
        log_density: Tensor,
        keys: Tensor,
        times: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add (t_{k+1} - t_k) log rho(x) to the log-weights and sweep at t_{k+1}, K times.

        References: Neal 2001.

        Args:
            x: states, uint8 [B, d].
            log_density: log rho, float64 [B].
            keys: of the draws of every sweep, int64 [K, B].
            times: t_0, ..., t_K, float64 [K + 1]; or [L, K + 1] for L equal parts of the chains.

        Returns:
            States, log-density, and gains of the log-weights [B].
        """
        states = x.numpy().copy()
        density = log_density.numpy().copy()
        gain = np.zeros(len(x))
        schedules = times.view(-1, times.shape[-1]).numpy()
        arguments = (
            keys.numpy(),
            states,
            density,
            gain,
            schedules,
            self.order,
            self.offsets,
            self.neighbours,
            self.weights,
        )
        if self.num_levels > 2:
            _sweep_levels(*arguments, self.field, self.log_initial)
        else:
            table = self._probability_table(schedules)
            _sweep_spins(*arguments, self.field, self.log_initial, self.table_row, self.unit, table)
        return torch.from_numpy(states), torch.from_numpy(density), torch.from_numpy(gain)

    def _probability_table(self, schedules: np.ndarray) -> np.ndarray:
        """Return P(s_i = -1 | neighbours) by time, table row and sum of neighbours.

        Args:
            schedules: times [L, K + 1].

        Returns:
            [L * K, rows, 2 * max_degree + 1]; [L * K, 0, 0] where probabilities are not tabulated.
        """
        t = schedules[:, 1:].reshape(-1, 1, 1)
        if not self.tabulated:
            return np.zeros((len(t), 0, 0))
        field, log_initial = self.table_values
        neighbour_sums = np.arange(-self.max_degree, self.max_degree + 1)
        local_field = self.unit * neighbour_sums + field
        return np.asarray(1 / (1 + np.exp(2 * (t * local_field + log_initial))))


@cached_njit(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], f8[::1], f8[:, ::1], i8[::1], i8[::1], i8[::1], f8[::1],"
    " f8[::1], f8[::1], i8[::1], f8, f8[:, :, ::1])"
)
def _sweep_spins(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    keys: np.ndarray,
    x: np.ndarray,
    log_density: np.ndarray,
    gain: np.ndarray,
    times: np.ndarray,
    order: np.ndarray,
    offsets: np.ndarray,
    neighbours: np.ndarray,
    weights: np.ndarray,
    field: np.ndarray,
    log_initial: np.ndarray,
    table_row: np.ndarray,
    unit: float,
    table: np.ndarray,
) -> None:
    """Run `CompiledGibbs.run` of spins in place.

    P(s_i = -1 | others) = 1 / (1 + exp(2 (t local_field + log_initial))).

    References: Geman and Geman 1984.

    Args:
        keys: int64 [K, B].
        x: states, uint8 [B, d].
        log_density: log rho, [B].
        gain: of the log-weights, [B].
        times: [L, K + 1].
        order: of the sites, [d].
        offsets: of the neighbours of each site, [d + 1].
        neighbours: sites, [m].
        weights: couplings in multiples of `unit`, [m].
        field: [d].
        log_initial: half the log-odds of +1 at t = 0, [d].
        table_row: [d].
        unit: coupling.
        table: see `CompiledGibbs._probability_table`.
    """
    sites = x.shape[1]
    num_sweeps = keys.shape[0]
    tabulated = table.shape[2] > 0
    middle = table.shape[2] // 2  # of a sum of neighbours that is 0
    signs = weights.astype(np.int8)
    spins = np.empty((sites, CHAINS_PER_BLOCK), np.int8)
    neighbour_sums = np.empty(CHAINS_PER_BLOCK, np.int8)
    local_field = np.empty(CHAINS_PER_BLOCK)
    probability_of_down = np.empty(CHAINS_PER_BLOCK)
    uniforms = np.empty(CHAINS_PER_BLOCK)
    block_density = np.empty(CHAINS_PER_BLOCK)
    block_gain = np.empty(CHAINS_PER_BLOCK)
    first_key = np.empty(CHAINS_PER_BLOCK, np.int64)
    second_key = np.empty(CHAINS_PER_BLOCK, np.int64)
    chains_per_schedule = x.shape[0] // times.shape[0]
    blocks_per_schedule = (chains_per_schedule + CHAINS_PER_BLOCK - 1) // CHAINS_PER_BLOCK
    for number in range(times.shape[0] * blocks_per_schedule):
        # 1. Rows of this block; a block with fewer chains repeats its last one.
        schedule = number // blocks_per_schedule
        position = number % blocks_per_schedule * CHAINS_PER_BLOCK
        start = schedule * chains_per_schedule + position
        size = min(CHAINS_PER_BLOCK, (schedule + 1) * chains_per_schedule - start)
        for c in range(CHAINS_PER_BLOCK):
            row = start + min(c, size - 1)
            block_density[c] = log_density[row]
            block_gain[c] = 0.0
            for i in range(sites):
                spins[i, c] = 2 * np.int8(x[row, i]) - 1
        for k in range(num_sweeps):
            # 2. Gains of the log-weights, and keys of this sweep.
            t = times[schedule, k + 1]
            table_time = schedule * num_sweeps + k
            for c in range(CHAINS_PER_BLOCK):
                block_gain[c] += (t - times[schedule, k]) * block_density[c]
                pair = attempt_keys(keys[k, start + min(c, size - 1)], 0)
                first_key[c] = pair[0]
                second_key[c] = pair[1]
            for i in order:
                # 3. Probabilities of -1. Bytes, and one loop per operation, are twice as fast.
                current = spins[i]
                if tabulated:
                    neighbour_sums[:] = 0
                    for edge in range(offsets[i], offsets[i + 1]):
                        neighbour = neighbours[edge]
                        sign = signs[edge]
                        for c in range(CHAINS_PER_BLOCK):
                            neighbour_sums[c] += sign * spins[neighbour, c]
                    probabilities = table[table_time, table_row[i]]
                    for c in range(CHAINS_PER_BLOCK):
                        local_field[c] = unit * neighbour_sums[c] + field[i]
                        column = np.uintp(neighbour_sums[c] + middle)
                        probability_of_down[c] = probabilities[column]
                else:
                    local_field[:] = field[i]
                    for edge in range(offsets[i], offsets[i + 1]):
                        neighbour = neighbours[edge]
                        weight = unit * weights[edge]
                        for c in range(CHAINS_PER_BLOCK):
                            local_field[c] += weight * spins[neighbour, c]
                    for c in range(CHAINS_PER_BLOCK):
                        exponent = 2 * (t * local_field[c] + log_initial[i])
                        probability_of_down[c] = 1 / (1 + math.exp(exponent))

                # 4. New spins, and the change of log rho.
                for c in range(CHAINS_PER_BLOCK):
                    uniforms[c] = element_uniform((first_key[c], second_key[c]), i)
                for c in range(CHAINS_PER_BLOCK):
                    up = probability_of_down[c] <= uniforms[c]
                    spin = np.int8(1) if up else np.int8(-1)
                    block_density[c] += (spin - current[c]) * local_field[c]
                    current[c] = spin

        # 5. Write the block back.
        for c in range(size):
            log_density[start + c] = block_density[c]
            gain[start + c] = block_gain[c]
            for i in range(sites):
                x[start + c, i] = spins[i, c] > 0


@cached_njit("i8(f8[::1], f8)")
def _draw_level(logits: np.ndarray, u: float) -> int:
    """Draw a level from softmax(logits), [S], by inversion with a uniform; changes `logits`.

    References: Geman and Geman 1984.
    """
    largest = logits[0]
    for level in range(1, len(logits)):
        largest = max(largest, logits[level])
    total = 0.0
    for level in range(len(logits)):
        logits[level] = math.exp(logits[level] - largest)
        total += logits[level]
    cumulative = 0.0
    for level in range(len(logits) - 1):
        cumulative += logits[level]
        if cumulative > u * total:
            return level
    return len(logits) - 1


@cached_njit(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], f8[::1], f8[:, ::1], i8[::1], i8[::1], i8[::1], f8[::1],"
    " f8[:, ::1], f8[:, ::1])"
)
def _sweep_levels(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    keys: np.ndarray,
    x: np.ndarray,
    log_density: np.ndarray,
    gain: np.ndarray,
    times: np.ndarray,
    order: np.ndarray,
    offsets: np.ndarray,
    neighbours: np.ndarray,
    weights: np.ndarray,
    field: np.ndarray,
    log_initial: np.ndarray,
) -> None:
    """Run `CompiledGibbs.run` of any number of levels in place.

    A level is drawn from softmax(t local_field + log_initial).

    References: Geman and Geman 1984.

    Args:
        keys: int64 [K, B].
        x: states, uint8 [B, d].
        log_density: log rho, [B].
        gain: of the log-weights, [B].
        times: [L, K + 1].
        order: of the sites, [d].
        offsets: of the neighbours of each site, [d + 1].
        neighbours: sites, [m].
        weights: of the bonds, [m].
        field: [d, S].
        log_initial: log-probabilities at t = 0, [d, S].
    """
    num_levels = field.shape[1]
    local_field = np.empty(num_levels)
    logits = np.empty(num_levels)
    for c in range(x.shape[0]):
        state = x[c]
        schedule = c * times.shape[0] // x.shape[0]
        for k in range(keys.shape[0]):
            t = times[schedule, k + 1]
            pair = attempt_keys(keys[k, c], 0)
            gain[c] += (t - times[schedule, k]) * log_density[c]
            for i in order:
                local_field[:] = field[i]
                for edge in range(offsets[i], offsets[i + 1]):
                    local_field[state[neighbours[edge]]] += weights[edge]
                for level in range(num_levels):
                    logits[level] = t * local_field[level] + log_initial[i, level]
                value = _draw_level(logits, element_uniform(pair, i))
                log_density[c] += local_field[value] - local_field[state[i]]
                state[i] = value


@cached_njit(
    "void(i8[:, ::1], u1[:, ::1], f8[::1], i8[::1], i8[::1], f8[::1], f8[::1], f8[:, ::1], f8, b1)",
)
def cluster_move(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    keys: np.ndarray,
    x: np.ndarray,
    log_density: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    weights: np.ndarray,
    probabilities: np.ndarray,
    field: np.ndarray,
    t: float,
    single: bool,
) -> None:
    """Make a move of `Clusters` in place.

    References: Swendsen and Wang 1987; Wolff 1989.

    Args:
        keys: of the draws of bonds, clusters and, with `single`, values, int64 [2 or 3, B].
        x: states, uint8 [B, d].
        log_density: log rho, float64 [B].
        first: ends of the bonds, int64 [m].
        second: the other ends.
        weights: gain of log rho by a bond between equal values, [m].
        probabilities: that such a bond is active, [m].
        field: [d, S], see `Target.pairwise_terms`.
        t: time.
        single: move one cluster of every state.
    """
    sites, levels = field.shape
    root = np.empty(sites, np.int64)  # smallest site of the cluster of each site
    cluster_logits = np.empty((sites, levels))
    cluster_value = np.empty(sites, np.uint8)
    logits = np.empty(levels)
    for c in range(x.shape[0]):
        state = x[c]
        bond_draws = attempt_keys(keys[0, c], 0)
        cluster_draws = attempt_keys(keys[1, c], 0)

        # 1. Join the ends of active bonds (union-find), and subtract all terms of log rho.
        for i in range(sites):
            root[i] = i
            log_density[c] = log_density[c] - field[i, state[i]]
        for bond in range(len(first)):
            i = first[bond]
            j = second[bond]
            if state[i] != state[j]:
                continue
            log_density[c] -= weights[bond]
            if element_uniform(bond_draws, bond) < probabilities[bond]:
                while root[i] != i:
                    root[i] = root[root[i]]
                    i = root[i]
                while root[j] != j:
                    root[j] = root[root[j]]
                    j = root[j]
                root[max(i, j)] = min(i, j)

        # 2. Add up the fields of each cluster; a root comes before the rest of its cluster.
        for i in range(sites):
            root[i] = root[root[i]]
            for level in range(levels):
                cluster_logits[i, level] = 0.0
                cluster_logits[root[i], level] += t * field[i, level]

        # 3. Draw new values.
        if single:
            moving_root = root[int(element_uniform(cluster_draws, 0) * sites)]
            shift = int(element_uniform(attempt_keys(keys[2, c], 0), 0) * (levels - 1)) + 1
        for i in range(sites):
            if single:
                state[i] = (state[i] + shift) % levels if root[i] == moving_root else state[i]
            else:
                if root[i] == i:
                    logits[:] = cluster_logits[i]
                    cluster_value[i] = _draw_level(logits, element_uniform(cluster_draws, i))
                state[i] = cluster_value[root[i]]
            log_density[c] += field[i, state[i]]
        for bond in range(len(first)):
            if state[first[bond]] == state[second[bond]]:
                log_density[c] += weights[bond]
