"""Pair energies of spins +-1: log rho = s' J s + h . s with s = 2x - 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.flows.targets.base import Target
from blackout.flows.targets.files import read_arrays
from blackout.flows.targets.lattice import bonds, coloured


class Couplings(Target):
    """Any pair energy of spins: log rho(x) = s' J s + h . s, s = 2x - 1 in {-1, +1}^d.

    Args:
        J: [d, d], float; need not be symmetric, its diagonal only adds to log Z. None for zeros, to be loaded.
        h: [d], float; None for zeros.
        shape: of the sites; None for a vector of as many as J or h have.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """

    pair: Tensor
    field: Tensor
    constant: Tensor

    def __init__(
        self,
        J: Tensor | Sequence[Sequence[float]] | None = None,
        h: Tensor | Sequence[float] | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        given = _tensor(J if J is not None else h)
        if given is None and shape is None:
            raise ValueError("couplings need J, h or a shape")
        super().__init__(2, list(shape) if shape is not None else [len(given)] if given is not None else [])
        d = self.sites
        matrix, field = _tensor(J), _tensor(h)
        matrix = torch.zeros(d, d, dtype=torch.float64) if matrix is None else matrix
        field = torch.zeros(d, dtype=torch.float64) if field is None else field
        _check(matrix, field, d)
        both = matrix + matrix.T
        self.register_buffer("pair", both - torch.diag(both.diag()))
        self.register_buffer("field", field.clone())
        self.register_buffer("constant", matrix.diag().sum())

    def log_density(self, x: Tensor) -> Tensor:
        s = self._spins(x)
        return ((s @ self.pair) * s).sum(-1) / 2 + s @ self.field + self.constant

    def log_ratios(self, x: Tensor) -> Tensor:
        """-2 s_i ((J + J') s + h)_i for a flip, without the diagonal of J."""
        s = self._spins(x)
        return _flips(-2 * s * (s @ self.pair + self.field), x)

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        s = self._spins(x)
        return _flips(-2 * s[:, where] * (s @ self.pair[:, where] + self.field[where]), x[:, where])

    def independent_sites(self) -> list[Tensor]:
        return coloured(self.pair != 0)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Magnetisation per site and its size."""
        m = self._spins(x).mean(-1)
        return {"magnetisation": m, "abs_magnetisation": m.abs()}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its shape: the couplings travel as tensors."""
        return {"_target_": "blackout.flows.Couplings", "shape": list(self.shape)}

    def _spins(self, x: Tensor) -> Tensor:
        return 2 * x.to(self.pair.dtype) - 1


class SpinGlass(Couplings):
    """An Edwards-Anderson glass: normal couplings on the bonds of a periodic lattice, normal fields.

    log rho = sum over bonds J_ij s_i s_j + sum_i h_i s_i.

    Args:
        size: side of the lattice, or [H, W].
        coupling: standard deviation of J_ij.
        disorder: standard deviation of h_i.
        seed: of both.
    """

    def __init__(
        self, size: int | Sequence[int] = 4, coupling: float = 0.4, disorder: float = 0.2, seed: int = 0
    ) -> None:
        shape = [size, size] if isinstance(size, int) else list(size)
        pairs, d = bonds(shape), shape[0] * shape[1]
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.zeros(d, d, dtype=torch.float64)
        matrix[pairs[:, 0], pairs[:, 1]] = coupling * torch.randn(len(pairs), generator=generator, dtype=torch.float64)
        super().__init__(matrix, disorder * torch.randn(d, generator=generator, dtype=torch.float64), shape)


def read_couplings(path: str | Path) -> Couplings:
    """The pair energy in an .npz with arrays `J` [d, d] and, if there is a field, `h` [d].

    Raises:
        UserError: unreadable, J missing or not square, h of another size, or values that are not finite.
    """
    arrays = {name: array for name, array in read_arrays(path).items() if name in ("J", "h")}
    if "J" not in arrays:
        raise UserError(f"target.path: {path} has no array J [d, d]")
    if any(array.dtype.kind not in "iuf" for array in arrays.values()):
        raise UserError(f"target.path: {path}: J and h must hold real numbers")
    try:
        return Couplings(torch.from_numpy(arrays["J"]), torch.from_numpy(arrays["h"]) if "h" in arrays else None)
    except ValueError as error:
        raise UserError(f"target.path: {path}: {error}") from None


def _tensor(values: Tensor | Sequence[Any] | None) -> Tensor | None:
    return None if values is None else torch.as_tensor(values, dtype=torch.float64)


def _check(matrix: Tensor, field: Tensor, d: int) -> None:
    if matrix.shape != (d, d):
        raise ValueError(f"J must be square, [{d}, {d}] for {d} sites, not {list(matrix.shape)}")
    if field.shape != (d,):
        raise ValueError(f"h must be [{d}] as J is [{d}, {d}], not {list(field.shape)}")
    if not bool(torch.isfinite(matrix).all() and torch.isfinite(field).all()):
        raise ValueError("J and h must be finite")


def _flips(flip: Tensor, x: Tensor) -> Tensor:
    """Log-ratios [B, n, 2] from those of the flips [B, n]."""
    own = torch.nn.functional.one_hot(x.long(), 2)
    return flip[..., None] * (1 - own)
