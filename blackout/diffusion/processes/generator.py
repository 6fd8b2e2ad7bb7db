"""Jump processes of finite generator matrices Q, and exp(Q tau).

    from_generator    any generator, from an array or a file
    Ordinal           jumps between near levels

References: Santos et al. 2023, appendix B; Campbell et al. 2022, appendix E.
"""

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
from blackout.data.formats import load_arrays, sparse_matrix
from blackout.diffusion.processes.base import check_max_count
from blackout.diffusion.processes.finite_states import FiniteJumpProcess
from blackout.errors import UserError, ensure

# name of a `.npy` or sparse `.npz` file, an array or nested list, or a SciPy sparse matrix
Matrix: TypeAlias = str | Path | np.ndarray | list | Any

SUM_TOLERANCE = 1e-8  # of the sum of a row, relative to the largest rate or to 1
MIN_CACHED_STATES = 64  # states from which exponentials are worth caching
CACHE_BYTES = 640 << 20  # 1,000 times of 256 states in float64 take 500 MiB
NUM_TERMS = 20  # Taylor terms of exp(x), x <= 1, to 1 / 20! = 4e-19
MIN_GAP = 1e-12  # of the spectrum of a generator whose levels mix


def load_matrix(matrix: Matrix) -> np.ndarray:
    """Return a matrix as an array.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if not isinstance(matrix, (str, Path)):
        return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
    try:
        loaded = load_arrays(Path(matrix))
        if isinstance(loaded, dict):
            form = str(loaded["format"].astype(str))
            return sparse_matrix(form, loaded["shape"], loaded).toarray()
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{matrix} cannot be read as a matrix: {error}; "
            "the matrix must be a .npy array, or .npz for a SciPy sparse one"
        ) from None
    return loaded


def embed_matrix(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a process's configuration with its matrix in place of the name of the matrix's file.

    Raises:
        UserError: the file cannot be read as a matrix.
    """
    if not isinstance(config.get("matrix"), (str, Path)):
        return dict(config)
    return {**config, "matrix": load_matrix(config["matrix"]).tolist()}


def check_matrix(matrix: np.ndarray, kind: str, total: float) -> None:
    """Raise ValueError unless a matrix is a generator (row sums 0) or transition matrix (sums 1).

    Args:
        matrix: any array, [..., S, S] if it is right.
        kind: of matrix, for the message.
        total: 1; or 0 for a generator, whose diagonal alone may be negative.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] < 2:
        raise ValueError(
            f"a {kind} must be a square matrix of two states or more, not of shape {matrix.shape}"
        )
    ensure(matrix.dtype.kind in "fiu", f"a {kind} must hold real numbers, not {matrix.dtype}")
    ensure(np.isfinite(matrix).all(), f"a {kind} must have finite entries")

    # 1. Signs.
    exempt = np.eye(matrix.shape[-1], dtype=bool) & (total == 0)
    for place in np.argwhere((matrix < 0) & ~exempt):
        off_diagonal = ", off its diagonal" if total == 0 else ""
        raise ValueError(
            f"a {kind} must have no negative entries{off_diagonal}, but {place.tolist()} is "
            f"{matrix[tuple(place)]:g} (from the state of its row to that of its column)"
        )

    # 2. Sums of rows.
    sums = matrix.sum(-1, dtype=np.float64)
    worst = np.unravel_index(int(np.abs(sums - total).argmax()), sums.shape)
    if abs(sums[worst] - total) > SUM_TOLERANCE * (total or np.abs(matrix).max()):
        row = f"row {worst[-1]}"
        if matrix.ndim > 2:
            row += f" of step {worst[0] + 1}"
        raise ValueError(
            f"the rows of a {kind} must sum to {total:g}, but {row} sums to {sums[worst]:g}: "
            "correct its diagonal"
        )


class MatrixExponential:
    """tau -> exp(Q tau), for tau of any shape, by uniformisation, scaling and squaring.

    e^(-x) exp(x (I + Q / rate)), x = rate tau: all terms are non-negative, so that small
    probabilities keep their relative accuracy. (The eigenvectors of a reversible Q take one product
    instead of log2(x), but have an absolute error of 1e-16.)

    References: Jensen 1953.

    Args:
        generator: float64 [S, S] on the CPU, rows summing to 0.
    """

    def __init__(self, generator: Tensor) -> None:
        self.generator = generator
        self.rate = float(-generator.diagonal().min())
        self._powers: dict[torch.device, Tensor] = {}
        # a weak reference: in a reference cycle with its cache the object would outlive its last
        # use until the garbage collector runs
        compute = partial(
            MatrixExponential._compute_single,
            weakref.proxy(self),  # type: ignore[arg-type]
        )
        self._compute_cached = lru_cache(max(1, CACHE_BYTES // (8 * generator.numel())))(compute)

    def __call__(self, tau: Tensor) -> Tensor:
        """Return float64 [*tau.shape, S, S] on tau's device, rows summing to 1."""
        shape = (*tau.shape, *self.generator.shape)
        if len(self.generator) < MIN_CACHED_STATES or not tau.numel():
            return self._compute(tau.reshape(-1)).view(shape)
        matrices = [self._compute_cached(tau.device, value) for value in tau.reshape(-1).tolist()]
        return torch.stack(matrices).view(shape)

    def _compute_single(self, device: torch.device, tau: float) -> Tensor:
        """Return exp(Q tau) for one tau, float64 [S, S]."""
        return self._compute(torch.tensor([tau], dtype=torch.float64, device=device))[0]

    def __reduce__(self) -> tuple[type[MatrixExponential], tuple[Tensor]]:
        """Copy and pickle without the cache, which cannot be pickled."""
        return MatrixExponential, (self.generator,)

    def _compute(self, tau: Tensor) -> Tensor:
        """Return exp(Q tau) for tau [b]: float64 [b, S, S], by the class's series and squaring."""
        x = tau * self.rate
        powers = self._powers_on(tau.device)
        # every element is halved until x <= 1 / 4, and at least twice, so that matrices that take
        # more jumps than there are terms are there as well; those done drop out of the squaring
        halvings = torch.ceil(torch.log2(x.clamp(min=1e-300))).clamp_(min=0).long() + 2
        y = x / 2.0**halvings
        k = torch.arange(NUM_TERMS + 1, dtype=x.dtype, device=x.device)
        weights = torch.exp(-y)[:, None] * y[:, None] ** k
        matrix = torch.einsum("bk,kij->bij", weights, powers)
        for squarings in range(int(halvings.max()) if len(halvings) else 0):
            unfinished = (halvings > squarings).nonzero().squeeze(1)
            squared = matrix[unfinished] @ matrix[unfinished]
            matrix[unfinished] = squared / squared.sum(-1, keepdim=True)
        return matrix / matrix.sum(-1, keepdim=True)

    def _powers_on(self, device: torch.device) -> Tensor:
        """Return A^k / k!, k = 0..20, of A = I + Q / rate, float64 [21, S, S]; computed once."""
        if device not in self._powers:
            identity = torch.eye(len(self.generator), dtype=torch.float64)
            jump = identity
            if self.rate > 0:
                jump = (identity + self.generator / self.rate).clamp_(min=0.0)
            powers = [identity]
            for power in range(1, NUM_TERMS + 1):
                powers.append(powers[-1] @ jump / power)
            self._powers[device] = torch.stack(powers).to(device)
        return self._powers[device]


class DenseGenerator(FiniteJumpProcess):
    """The jump process of a generator of moderate size, with tables of exp(Q t).

    Args:
        max_count: largest data level.
        generator: Q, float64 [S, S], rows summing to 0.
        ordered: whether several jumps in one step add up, as for counts.
    """

    def __init__(self, max_count: int, generator: Tensor, ordered: bool) -> None:
        super().__init__(max_count, len(generator), ordered)
        self._generator = generator
        self._exponential = MatrixExponential(generator)

    def generator(self) -> Tensor:
        """Return Q, float64 [S, S]."""
        return self._generator

    def transition_after(self, tau: Tensor) -> Tensor:
        """Return exp(Q tau) for tau [b]: float64 [b, S, S]."""
        return self._exponential(tau)


@component("process")
def from_generator(
    max_count: int = 255, matrix: Matrix | None = None, ordered: bool = False
) -> DenseGenerator:
    """Return the jump process of a generator matrix Q.

    Q_ij >= 0 is the rate from state i to j, and rows sum to 0. Data levels are states 0..max_count;
    states above are the process's alone.

    References: Santos et al. 2023, appendix B.

    Args:
        max_count: largest data level.
        matrix: an array [S, S], a `.npy` file of one, a SciPy sparse matrix, or its `.npz` file.
        ordered: whether several jumps in one step add up, as for counts.

    Raises:
        UserError: the file cannot be read.
        ValueError: not a generator, or too few states for the data.
    """
    ensure(
        matrix is not None,
        "matrix must be given: a .npy file with the generator, or .npz for a SciPy sparse one",
    )
    loaded = load_matrix(matrix)
    ensure(loaded.ndim == 2, f"a generator must be one matrix [S, S], not of shape {loaded.shape}")
    check_matrix(loaded, "generator", 0.0)
    generator = torch.from_numpy(np.ascontiguousarray(loaded, dtype=np.float64))
    return DenseGenerator(max_count, generator, ordered)


@component("process")
class Ordinal(DenseGenerator):
    """Jumps between near levels: reversible, time-scaled so that its slowest mode decays as e^-t.

    Q_ij = c w(|i - j|) sqrt(pi_j / pi_i), pi being the stationary distribution: detailed balance
    holds by construction, Q [S, S] for S = max_count + 1.

    References: Campbell et al. 2022, appendix E, of which this is a variant.

    Args:
        max_count: largest data level.
        width: w(d) = exp(-d^2 / 2 width^2), the discretised Gaussian; None jumps to the nearest
            neighbours only.
        spread: standard deviation of a discretised Gaussian pi about the middle level; None for
            uniform pi.

    Raises:
        ValueError: width or spread is not positive.
    """

    def __init__(
        self, max_count: int = 255, width: float | None = None, spread: float | None = None
    ) -> None:
        check_max_count(max_count)
        for name, value in (("width", width), ("spread", spread)):
            ensure(value is None or value > 0, f"{name} must be positive or null, not {value}")

        # 1. Weights w of jumps.
        levels = torch.arange(max_count + 1, dtype=torch.float64)
        distance = (levels[:, None] - levels[None, :]).abs()
        weight = (distance == 1).double()
        if width is not None:
            weight = torch.exp(-((distance / width) ** 2) / 2)
        weight.fill_diagonal_(0.0)

        # 2. Stationary distribution, from log sqrt(pi) up to a constant.
        log_root = torch.zeros_like(levels)
        if spread is not None:
            log_root = -(((levels - max_count / 2) / spread) ** 2) / 4
        self.stationary = torch.softmax(2 * log_root, 0)

        # 3. Generator, in units of time in which the slowest mode decays as e^-t.
        rate = weight * torch.exp(log_root[None, :] - log_root[:, None])
        generator = rate - torch.diag(rate.sum(1))
        symmetric = weight - torch.diag(rate.sum(1))
        gap = -float(torch.linalg.eigvalsh(symmetric)[-2])
        ensure(
            MIN_GAP < gap < math.inf,
            f"levels 0..{max_count} hardly mix: widen width={width} or spread={spread}",
        )
        super().__init__(max_count, generator / gap, ordered=True)
