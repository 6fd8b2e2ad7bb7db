"""Finite generator matrices Q, and exp(Q tau): any of an array or a file [Santos 2023, appendix B], ordered levels."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.data.file_formats import load_arrays, sparse_matrix
from blackout.diffusion.processes.base import check_max_count
from blackout.diffusion.processes.finite_states import FiniteJumpProcess
from blackout.errors import UserError, ensure

Matrix: TypeAlias = str | Path | np.ndarray | list | Any
"""A `.npy` or sparse `.npz` file's name, an array or nested list, or a SciPy sparse matrix."""

_TOLERANCE = 1e-8
"""How far, relative to the largest rate or to 1, a row may sum from what it should."""
_CACHED_FROM = 64
"""States from which matrices are worth keeping between calls."""
_CACHE_BYTES = 640 << 20
"""Enough for 1,000 times of 256 states in float64."""
_TERMS = 20
"""Taylor terms of exp(x), x <= 1, to 1 / 20! = 4e-19."""


def load_matrix(matrix: Matrix) -> np.ndarray:
    """The array of any of these forms.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if not isinstance(matrix, (str, Path)):
        return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
    try:
        loaded = load_arrays(Path(matrix))
        if isinstance(loaded, dict):
            return sparse_matrix(str(loaded["format"].astype(str)), loaded["shape"], loaded).toarray()
    except (ValueError, KeyError) as error:
        advice = "the matrix must be a .npy array, or .npz for a SciPy sparse one"
        raise UserError(f"{matrix} cannot be read as a matrix: {error}; {advice}") from None
    return loaded


def without_files(config: Mapping[str, Any]) -> dict[str, Any]:
    """A process's configuration with the matrix written out in place of its file's name, so that it can travel.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    named = isinstance(config.get("matrix"), (str, Path))
    return {**config, "matrix": load_matrix(config["matrix"]).tolist()} if named else dict(config)


def check_matrix(matrix: np.ndarray, kind: str, total: float) -> None:
    """Raises ValueError, naming the offending entry, unless all [..., S, S] have rows of rates or chances of this sum.

    Args:
        matrix: any array.
        kind: what it is, for the message.
        total: 1, or 0, of a generator, whose diagonal alone is not positive.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] < 2:
        raise ValueError(f"a {kind} is a square matrix of two states or more, not of shape {matrix.shape}")
    ensure(matrix.dtype.kind in "fiu", f"a {kind} holds real numbers, not {matrix.dtype}")
    ensure(np.isfinite(matrix).all(), f"a {kind} has entries that are not finite")
    exempt = np.eye(matrix.shape[-1], dtype=bool) & (total == 0)
    for place in np.argwhere((matrix < 0) & ~exempt):
        off = ", off its diagonal" if total == 0 else ""
        told = f"{place.tolist()} is {matrix[tuple(place)]:g} (from the state of its row to that of its column)"
        raise ValueError(f"a {kind} has no negative entries{off}, but {told}")
    sums = matrix.sum(-1, dtype=np.float64)
    worst = np.unravel_index(int(np.abs(sums - total).argmax()), sums.shape)
    if abs(sums[worst] - total) > _TOLERANCE * (total or np.abs(matrix).max()):
        where = f"row {worst[-1]}" + (f" of step {worst[0] + 1}" if matrix.ndim > 2 else "")
        raise ValueError(f"the rows of a {kind} sum to {total:g}, but {where} sums to {sums[worst]:g}")


class MatrixExponential:
    """tau -> exp(Q tau), for tau of any shape, by scaling and squaring.

    Uniformisation [Jensen 1953], e^(-x) exp(x (I + Q / rate)), x = rate tau: all terms are non-negative, so that small
    probabilities keep their relative accuracy. (The eigenvectors of a reversible Q take one product instead of log2(x),
    but are right to an absolute 1e-16 only.)

    Args:
        generator: float64 [S, S] on the CPU, rows summing to 0.
    """

    def __init__(self, generator: Tensor) -> None:
        self.generator = generator
        self.rate = float(-generator.diagonal().min())
        self._powers: dict[torch.device, Tensor] = {}
        # by a weak reference: in a circle with its cache it would outlive its last use until the collector runs
        of_one = partial(MatrixExponential._of_one, weakref.proxy(self))  # type: ignore[arg-type]
        self._kept = lru_cache(max(1, _CACHE_BYTES // (8 * generator.numel())))(of_one)

    def __call__(self, tau: Tensor) -> Tensor:
        """float64 [*tau.shape, S, S] on tau's device, rows summing to 1."""
        if len(self.generator) < _CACHED_FROM or not tau.numel():
            return self._compute(tau.reshape(-1)).view(*tau.shape, *self.generator.shape)
        found = [self._kept(tau.device, value) for value in tau.reshape(-1).tolist()]
        return torch.stack(found).view(*tau.shape, *self.generator.shape)

    def _of_one(self, device: torch.device, tau: float) -> Tensor:
        return self._compute(torch.tensor([tau], dtype=torch.float64, device=device))[0]

    def __reduce__(self) -> tuple[type[MatrixExponential], tuple[Tensor]]:
        """Copies, and what is sent to other processes, begin without matrices: a cache cannot be pickled."""
        return MatrixExponential, (self.generator,)

    def _compute(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S], by the class's series [Jensen 1953] and squaring."""
        if tau.device not in self._powers:  # A^k / k!, k = 0..20, of A = I + Q / rate >= 0
            made = [torch.eye(len(self.generator), dtype=torch.float64)]
            jump = (made[0] + self.generator / self.rate).clamp_(min=0.0) if self.rate > 0 else made[0]
            for power in range(1, _TERMS + 1):
                made.append(made[-1] @ jump / power)
            self._powers[tau.device] = torch.stack(made).to(tau.device)
        x, powers = tau * self.rate, self._powers[tau.device]
        # every element is halved until x <= 1 / 4, those done drop out of the squaring; twice at least, so that what
        # takes more jumps than there are terms is there as well
        need = torch.ceil(torch.log2(x.clamp(min=1e-300))).clamp_(min=0).long() + 2
        y = x / 2.0**need
        k = torch.arange(_TERMS + 1, dtype=x.dtype, device=x.device)
        matrix = torch.einsum("bk,kij->bij", torch.exp(-y)[:, None] * y[:, None] ** k, powers)
        for done in range(int(need.max()) if len(need) else 0):
            go_on = (need > done).nonzero().squeeze(1)
            squared = matrix[go_on] @ matrix[go_on]
            matrix[go_on] = squared / squared.sum(-1, keepdim=True)
        return matrix / matrix.sum(-1, keepdim=True)


class DenseGenerator(FiniteJumpProcess):
    """A generator of moderate size, Q [S, S] float64, rows summing to 0: tables of exp(Q t)."""

    def __init__(self, max_count: int, generator: Tensor, ordered: bool) -> None:
        super().__init__(max_count, len(generator), ordered)
        self._generator, self._exponential = generator, MatrixExponential(generator)

    def generator(self) -> Tensor:
        """Q, float64 [S, S]."""
        return self._generator

    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""
        return self._exponential(tau)


@component("process")
def from_generator(max_count: int = 255, matrix: Matrix | None = None, ordered: bool = False) -> DenseGenerator:
    """The jump process of a generator matrix Q: Q_ij >= 0 is the rate from state i to j, and rows sum to 0.

    Data levels are states 0..max_count; states above are the process's own.

    Args:
        max_count: largest data level.
        matrix: an array [S, S], a `.npy` file of one, a SciPy sparse matrix, or its `.npz` file.
        ordered: whether several jumps in one step add up, as for counts.

    Raises:
        UserError: the file cannot be read.
        ValueError: not a generator, or too few states for the data.
    """
    ensure(matrix is not None, "matrix must be given: a .npy file with the generator, or .npz for a SciPy sparse one")
    loaded = load_matrix(matrix)
    ensure(loaded.ndim == 2, f"a generator is one matrix [S, S], not of shape {loaded.shape}")
    check_matrix(loaded, "generator", 0.0)
    return DenseGenerator(max_count, torch.from_numpy(np.ascontiguousarray(loaded, dtype=np.float64)), ordered)


@component("process")
class Ordinal(DenseGenerator):
    """Jumps between near levels: reversible, time-scaled so that its slowest mode decays as e^-t.

    Q_ij = c w(|i - j|) sqrt(pi_j / pi_i), pi being the stationary distribution: detailed balance holds by construction,
    Q [S, S] for S = max_count + 1 [after Campbell 2022, appendix E].

    Args:
        max_count: largest data level.
        width: w(d) = exp(-d^2 / 2 width^2), the discretised Gaussian; None jumps to the nearest neighbours only.
        spread: standard deviation of a discretised Gaussian pi about the middle level; None for uniform pi.

    Raises:
        ValueError: width or spread is not positive.
    """

    def __init__(self, max_count: int = 255, width: float | None = None, spread: float | None = None) -> None:
        check_max_count(max_count)
        for name, value in (("width", width), ("spread", spread)):
            ensure(value is None or value > 0, f"{name} must be positive or null, not {value}")
        levels = torch.arange(max_count + 1, dtype=torch.float64)
        distance = (levels[:, None] - levels[None, :]).abs()
        weight = (distance == 1).double() if width is None else torch.exp(-((distance / width) ** 2) / 2)
        weight.fill_diagonal_(0.0)
        log_root = torch.zeros_like(levels) if spread is None else -(((levels - max_count / 2) / spread) ** 2) / 4
        self.stationary = torch.softmax(2 * log_root, 0)
        rate = weight * torch.exp(log_root[None, :] - log_root[:, None])
        generator = rate - torch.diag(rate.sum(1))
        gap = -float(torch.linalg.eigvalsh(weight - torch.diag(rate.sum(1)))[-2])
        ensure(1e-12 < gap < math.inf, f"levels 0..{max_count} hardly mix: widen width={width} or spread={spread}")
        super().__init__(max_count, generator / gap, ordered=True)
