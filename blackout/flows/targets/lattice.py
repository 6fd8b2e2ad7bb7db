"""Square lattices with periodic boundaries, and exact free energies of models on them.

Homogeneous models have exact free energies by transfer matrices, and Ising models without a field
at any size by Kaufman's formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

# side of a square lattice, or [height, width]
Size: TypeAlias = int | Sequence[int]

MAX_TRANSFER_MATRIX = 1100  # rows; a larger matrix takes too long to diagonalise


def lattice_bonds(size: Size) -> tuple[list[int], Tensor]:
    """Return the shape of a torus, [H, W], and its bonds, each once in order: int64 [n, 2].

    References: this project; checked in tests/flows/test_targets.py.

    Args:
        size: side of the lattice, or [H, W].

    Raises:
        ValueError: a size that is not one or two positive integers.

    Example:
        >>> shape, bonds = lattice_bonds(3)
        >>> shape, len(bonds)
        ([3, 3], 18)
    """
    shape = [size, size] if isinstance(size, int) else list(size)
    if len(shape) != 2 or any(type(n) is not int or n < 1 for n in shape):
        raise ValueError(f"size must be a positive integer or [height, width], not {list(shape)}")
    site = torch.arange(shape[0] * shape[1]).view(shape)
    bonds = [torch.stack([site, site.roll(1, axis)], -1).flatten(0, 1) for axis in (0, 1)]
    pairs = torch.cat(bonds).sort(1).values
    # sides of length 1 and 2 have self-loops and double bonds
    return shape, pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0)


def transfer_matrix(
    bond: Tensor,
    field: Tensor,
    shape: Sequence[int],
    t: float = 1.0,
) -> dict[str, float] | None:
    """Return log Z of rho^t, and E[-log rho], of a homogeneous model on a torus.

    log Z is the trace of a power of the matrix between neighbouring columns; the mean energy is
    minus the derivative of log Z with respect to t.

    References: Kramers and Wannier 1941.

    Args:
        bond: log-weight of a bond, symmetric [S, S].
        field: log-weight of a value, [S].
        shape: [H, W].
        t: inverse temperature.

    Returns:
        `log_z` and `mean_energy`; None where the shorter side is below 3, or too long.
    """
    length = max(shape)
    width = min(shape)
    if width < 3 or len(field) ** width > MAX_TRANSFER_MATRIX:
        return None

    # 1. Logarithm of the matrix between the states of two columns.
    columns = torch.cartesian_prod(*[torch.arange(len(field))] * width)
    column_weights = bond[columns, columns.roll(1, 1)].sum(1) + field.double()[columns].sum(1)
    neighbour_weights = sum(bond[columns[:, k][:, None], columns[:, k][None]] for k in range(width))
    log_matrix = neighbour_weights + (column_weights[:, None] + column_weights[None]) / 2

    # 2. Its eigenvalues, scaled so that no power overflows.
    max_log_weight = t * log_matrix.max()
    matrix = (t * log_matrix - max_log_weight).exp()
    values, vectors = torch.linalg.eigh(matrix)
    largest = values.abs().max()
    powers = (values / largest) ** (length - 1)
    total = powers @ values

    # 3. log Z = log tr M^L, and its derivative is L tr (M^(L-1) M log M) / tr M^L.
    slopes = ((matrix * log_matrix) @ vectors * vectors).sum(0)
    log_z = length * max_log_weight + (length - 1) * largest.log() + total.log()
    return {"log_z": float(log_z), "mean_energy": -float(length * (powers @ slopes) / total)}


def kaufman_log_z(coupling: float, shape: Sequence[int]) -> float:
    """Return log Z of the Ising model without a field on a torus of any size.

    References: Kaufman 1949, eq. 82.

    Args:
        coupling: of a bond counted once, positive.
        shape: [H, W], sides of at least 3.

    Example:
        >>> round(kaufman_log_z(0.2, [4, 4]), 6)
        11.77147
    """
    rows, columns = shape
    twice = 2 * coupling
    q = torch.arange(2 * rows, dtype=torch.float64)
    cosh_gamma = math.cosh(twice) / math.tanh(twice) - torch.cos(math.pi * q / rows)
    gamma = torch.acosh(cosh_gamma.clamp(min=1))
    gamma[0] = twice + math.log(math.tanh(coupling))  # this root has a sign

    # logarithms of 2 cosh and 2 sinh of half the exponents
    half = columns * gamma.abs() / 2
    log_cosh = half + torch.log1p((-2 * half).exp())
    log_sinh = half + torch.log(-torch.expm1(-2 * half))

    # the four products over odd and even q
    products = torch.stack(
        [
            log_cosh[1::2].sum(),
            log_sinh[1::2].sum(),
            log_cosh[0::2].sum(),
            log_sinh[0::2].sum(),
        ]
    )
    last_sign = math.copysign(1.0, float(gamma[0]))
    signs = torch.tensor([1.0, 1.0, 1.0, last_sign], dtype=torch.float64)
    total = (signs * (products - products.max()).exp()).sum().log() + products.max()
    prefactor = rows * columns / 2 * math.log(2 * math.sinh(twice))
    return float(total) - math.log(2) + prefactor
