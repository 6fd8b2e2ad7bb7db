"""Spins with pair interactions: any couplings, couplings from a file, and spin glasses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure, error_context, refuse
from blackout.flows.targets.base import Target, flip_log_ratios, read_arrays
from blackout.flows.targets.lattice import Size, lattice_bonds

Array: TypeAlias = Tensor | Sequence[Any]


class SpinPairs(Target):
    """Spins s = 2x - 1 with pair interactions: log rho = s' P s / 2 + h . s + constant.

    References: Ou et al. 2025, eq. 11, with a field.

    Attributes:
        pair: P, [d, d], symmetric with a zero diagonal.
        field: h, [d].
    """

    pair: Tensor
    field: Tensor

    @torch.no_grad()
    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return the log-ratios -2 s_i (P s + h)_i of flips, [B, n, 2] of states [B, d].

        References: Ou et al. 2025, eq. 25, for spins.
        """
        s = self._spins(x)
        local_field = s @ self.pair[:, sites] + self.field[sites]
        return flip_log_ratios(-2 * s[:, sites] * local_field, x[:, sites])

    def pairwise_terms(self) -> tuple[Tensor, Tensor]:
        """Return w = 2 P, [d, d], and f, [d, S]: P_ij s_i s_j = 2 P_ij [s_i = s_j] - P_ij."""
        pair = self.pair.detach().double()
        field = self.field.detach().double()
        return 2 * pair, torch.stack([-field, field], -1)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the magnetisation per site of states [B, d] and its absolute value, [B] each."""
        magnetisation = self._spins(x).mean(-1)
        return {"magnetisation": magnetisation, "abs_magnetisation": magnetisation.abs()}

    def _spins(self, x: Tensor) -> Tensor:
        """Return s = 2x - 1 of states of any shape."""
        return 2 * x.to(self.field.dtype) - 1


@component("target")
class Couplings(SpinPairs):
    """Spins with any couplings: log rho(x) = s' J s + h . s, s = 2x - 1 in {-1, +1}^d.

    The coupling of a bond counted once is J_ij + J_ji.

    References: Ou et al. 2025, eq. 11, with a field.

    Args:
        J: float [d, d]; need not be symmetric, and its diagonal only adds a constant. None for
            zeros, before tensors are loaded.
        h: float [d]; None for zeros.
        shape: of the sites; None for a vector.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.

    Example:
        >>> Couplings(J=[[0.0, 0.5], [0.0, 0.0]]).log_density(torch.tensor([1, 1])).item()
        0.5
    """

    def __init__(
        self,
        J: Array | None = None,
        h: Array | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        values = h if J is None else J
        ensure(
            values is not None or shape is not None,
            "couplings need J, h or shape, such as J=[[0, 1], [1, 0]]",
        )
        if shape is None:
            shape = list(torch.as_tensor(values).shape[:1])
        super().__init__(2, list(shape))
        d = self.sites
        matrix = torch.as_tensor(torch.zeros(d, d) if J is None else J, dtype=torch.float64)
        field = torch.as_tensor(torch.zeros(d) if h is None else h, dtype=torch.float64)
        ensure(
            matrix.shape == (d, d),
            f"J must be square, [{d}, {d}] for {d} sites, not {list(matrix.shape)}",
        )
        ensure(
            field.shape == (d,),
            f"h must be [{d}], because J is [{d}, {d}], not {list(field.shape)}",
        )
        finite = bool(torch.isfinite(matrix).all() and torch.isfinite(field).all())
        ensure(finite, "J and h must be finite: replace NaN and infinity")
        symmetric = matrix + matrix.T
        self.pair = nn.Buffer(symmetric - torch.diag(symmetric.diag()))
        self.field = nn.Buffer(field.clone())
        self.constant = nn.Buffer(matrix.diag().sum())

    def log_density(self, x: Tensor) -> Tensor:
        """Return s' J s + h . s, [...] of x [..., d].

        References: Ou et al. 2025, eq. 11, with a field.
        """
        s = self._spins(x)
        return ((s @ self.pair) * s).sum(-1) / 2 + s @ self.field + self.constant

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its shape; the couplings are saved as tensors."""
        return {"_target_": "blackout.flows.Couplings", "shape": list(self.shape)}


@component("target")
class SpinGlass(Couplings):
    """Spin glass: normal couplings on the bonds of a torus, and normal fields.

    log rho = sum_<ij> J_ij s_i s_j + sum_i h_i s_i, each bond counted once.

    References: Edwards and Anderson 1975.

    Args:
        size: side of the lattice, or [H, W].
        coupling_std: standard deviation of J_ij.
        field_std: standard deviation of h_i.
        seed: of both.

    Example:
        >>> SpinGlass(3).log_density(torch.zeros(2, 9, dtype=torch.uint8)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        size: Size = 4,
        coupling_std: float = 0.4,
        field_std: float = 0.2,
        seed: int = 0,
    ) -> None:
        shape, bonds = lattice_bonds(size)
        sites = shape[0] * shape[1]
        generator = torch.Generator().manual_seed(seed)
        J = torch.zeros(sites, sites, dtype=torch.float64)
        normal = torch.randn(len(bonds), generator=generator, dtype=torch.float64)
        J[bonds[:, 0], bonds[:, 1]] = coupling_std * normal
        h = field_std * torch.randn(sites, generator=generator, dtype=torch.float64)
        super().__init__(J, h, shape)


@component("target", command_line="target=couplings target.path=...")
def read_couplings(path: str | Path) -> Couplings:
    """Read couplings `J` [d, d] and a field `h` [d] (optional) from an .npz, or J from an .npy.

    Raises:
        UserError: an unreadable file, J missing or not square, h of another size, other arrays, or
            values that are not real and finite.
    """
    arrays = read_arrays(path, npy_name="J")
    refuse("J" not in arrays, f"target.path: {path} must have an array J [d, d]")
    unused = sorted(arrays.keys() - {"J", "h"})
    refuse(
        bool(unused),
        f"target.path: {path} has arrays that are not used: {', '.join(unused)}; rename couplings "
        "to J and fields to h, and remove all others",
    )
    refuse(
        any(array.dtype.kind not in "iuf" for array in arrays.values()),
        f"target.path: {path}: J and h must be real numbers",
    )
    J = torch.from_numpy(arrays["J"])
    h = torch.from_numpy(arrays["h"]) if "h" in arrays else None
    with error_context(f"target.path: {path}"):
        return Couplings(J, h)
