"""The Ising model on a square lattice, with one coupling and field or ranges of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, refuse
from blackout.flows.targets.base import Target, flip_log_ratios
from blackout.flows.targets.couplings import Couplings
from blackout.flows.targets.lattice import Size, kaufman_log_z, lattice_bonds, transfer_matrix
from blackout.representation import join_values

# a number, or [start, end]
Range: TypeAlias = float | Sequence[float]

MAX_KAUFMAN_COUPLING = 300.0  # above it cosh and sinh in Kaufman's formula overflow
RANGE_STEPS = 1 << 20  # values of a parameter in a range; an instance is a pair of them


@component("target")
class Ising(Couplings):
    """Ising model on a torus: log rho = coupling * sum_<ij> s_i s_j + field * sum_i s_i.

    Each bond <ij> is counted once, so that `coupling` is the textbook's beta J. Without a field
    the critical coupling is log(1 + sqrt(2)) / 2 = 0.44068679. The paper writes s' (sigma A) s
    with the 0/1 adjacency A; its sigma is half of `coupling`.

    With a range, one flow learns the models of all couplings and fields in it. As a single target,
    the object is then the model at the ends of the ranges.

    References: Ou et al. 2025, eq. 11.

    Args:
        size: side of the lattice, or [H, W].
        coupling: of a bond, or [start, end]; positive for a ferromagnet.
        field: on every spin, or [start, end].

    Raises:
        ValueError: an impossible size, or a range without two ends.

    Example:
        >>> Ising(size=3, coupling=0.5).log_density(torch.ones(9, dtype=torch.uint8)).item()
        9.0
    """

    def __init__(self, size: Size = 4, coupling: Range = 0.2, field: Range = 0.0) -> None:
        shape, bonds = lattice_bonds(size)
        ranges = [_as_range(coupling), _as_range(field)]
        ensure(
            all(len(ends) == 2 for ends in ranges),
            f"coupling and field must be a number or [start, end], not {coupling} and {field}",
        )
        last_coupling = ranges[0][1]
        last_field = ranges[1][1]
        sites = shape[0] * shape[1]
        upper = torch.zeros(sites, sites).index_put(bonds.unbind(1), torch.tensor(1.0)).double()
        h = torch.full((sites,), float(last_field), dtype=torch.float64)
        super().__init__(last_coupling * upper, h, shape)
        self.lattice = shape
        self._parameters_at_end = (last_coupling, last_field)
        self.adjacency = nn.Buffer(upper + upper.T, persistent=False)  # [d, d]
        self.ranges = torch.tensor(ranges, dtype=torch.float64)  # [2, 2], rows coupling and field
        self.amortised = any(start != end for start, end in ranges)

    def extra_repr(self) -> str:
        """Return shape, coupling and field, or their ranges, for `repr`."""
        values: dict[str, Any] = {"shape": self.shape}
        for name, ends, last in zip(
            ("coupling", "field"), self.ranges.tolist(), self._parameters_at_end, strict=True
        ):
            values[name] = ends if self.amortised else last
        return join_values(values)

    @property
    def facts(self) -> dict[str, Any]:
        """Values for networks; also `parameters`, how many identify a model of the range."""
        return super().facts | ({"parameters": 2} if self.amortised else {})

    def with_parameters(self, **parameters: float) -> Ising:
        """Return one model of the range.

        Args:
            parameters: `coupling` and `field`; each defaults to the end of its range.

        Raises:
            UserError: a value outside its range, or another name.
        """
        ranges = dict(zip(("coupling", "field"), self.ranges.tolist(), strict=True))
        for name, value in parameters.items():
            refuse(
                name not in ranges,
                f"target.{name} is fixed; only {' and '.join(ranges)} can change",
            )
            is_number = type(value) in (int, float)
            if not is_number or not min(ranges[name]) <= value <= max(ranges[name]):
                raise UserError(f"target.{name}={value} is outside the trained ranges: {ranges}")
        values = {name: end for name, (_, end) in ranges.items()} | parameters
        model = Ising(list(self.shape), **values)
        model.ranges = self.ranges
        model.amortised = self.amortised
        return model.to(self.device)

    def instances(self, index: Tensor) -> Target:
        """Return the models with these indices, int64 [B], one per row.

        An index is a step of the coupling times `RANGE_STEPS` plus a step of the field.

        References: this project; checked in tests/flows/test_targets.py.
        """
        steps = torch.stack([index // RANGE_STEPS, index % RANGE_STEPS], -1)
        fraction = steps / (RANGE_STEPS - 1)
        start, end = self.ranges.to(index.device).unbind(1)
        return _IsingInstances(self, start + fraction * (end - start))

    def sample_instances(
        self, num_instances: int, chains: int, seed: int, *, relabel: bool
    ) -> Tensor:
        """Draw indices to train on, int64 [num_instances * chains]: each `chains` times in a row.

        Args:
            num_instances: uniform draws from the ranges.
            chains: of each instance.
            seed: of the draws.
            relabel: no effect; graphs relabel their nodes.
        """
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(RANGE_STEPS**2, (num_instances,), generator=generator)
        return index.repeat_interleave(chains)

    @property
    def test_instances(self) -> Tensor:
        """Indices of the models at the ends of the ranges, int64 [4]."""
        ends = torch.tensor([0, RANGE_STEPS - 1])
        return (ends[:, None] * RANGE_STEPS + ends).flatten()

    @property
    def validation_instances(self) -> Tensor:
        """The same as `test_instances`: there are no data to keep apart."""
        return self.test_instances

    def scale_parameters(self, parameters: Tensor) -> Tensor:
        """Map coupling and field, [B, 2], from their ranges to [-1, 1], as networks read them.

        References: this project; checked in tests/flows/test_targets.py.
        """
        start, end = self.ranges.to(parameters.device).unbind(1)
        width = torch.where(start == end, 1.0, (end - start).abs())
        return (2 * parameters - start - end) / width

    def context(self) -> tuple[Any, ...]:
        """Return the scaled parameters of this model, [1, 2]; nothing without a range."""
        if not self.amortised:
            return ()
        values = [list(self._parameters_at_end)]
        parameters = torch.tensor(values, dtype=torch.float64, device=self.device)
        return (self.scale_parameters(parameters),)

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its settings."""
        return settings

    def closed_form(self, t: float = 1.0) -> dict[str, float] | None:
        """Return `log_z` and `mean_energy` of rho^t by Kaufman's formula or `transfer_matrix`."""
        coupling, field = self._parameters_at_end
        # with even sides, turning every other spin makes an antiferromagnet a ferromagnet
        frustrated = coupling < 0 and any(side % 2 for side in self.shape)
        within_limits = 0 < abs(coupling) * t < MAX_KAUFMAN_COUPLING and min(self.shape) > 2
        if within_limits and not field and not frustrated:
            scales = (1 - 1e-5, 1.0, 1 + 1e-5)
            strength = abs(coupling) * t
            below, log_z, above = (kaufman_log_z(strength * scale, self.shape) for scale in scales)
            # minus the derivative of log Z with respect to t, by central differences
            return {"log_z": log_z, "mean_energy": (below - above) / 2e-5 / t}
        spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        bond = coupling * spins[:, None] * spins
        return transfer_matrix(bond, field * spins, self.shape, t)


def _as_range(value: Range) -> list[float]:
    """Return [start, end]; a number is both."""
    return [value, value] if isinstance(value, int | float) else list(value)


class _IsingInstances(Target):
    """Ising models with a coupling and a field for each row.

    References: Ou et al. 2025, eq. 11, with a field.

    Args:
        ising: a model on the same torus.
        parameters: coupling and field, float64 [B, 2].
    """

    ising: Ising

    def __init__(self, ising: Ising, parameters: Tensor) -> None:
        super().__init__(2, ising.shape)
        vars(self)["ising"] = ising  # not a submodule, whose tensors would be this target's state
        self.row_parameters = nn.Buffer(parameters)

    def site_groups(self) -> list[Tensor]:
        """Return the groups of independent sites, which are those of any model on the torus."""
        return self.ising.site_groups()

    def select(self, rows: Tensor) -> Target:
        """Return the models of some rows, by index or mask."""
        return _IsingInstances(self.ising, self.row_parameters[rows])

    def context(self) -> tuple[Any, ...]:
        """Return the scaled parameters of the rows, [B, 2]."""
        return (self.ising.scale_parameters(self.row_parameters),)

    def log_density(self, x: Tensor) -> Tensor:
        """Return coupling * sum_<ij> s_i s_j + field * sum_i s_i, [B] of states [B, d]."""
        s = 2 * x.double() - 1
        bond_sum = ((s @ self.ising.adjacency) * s).sum(-1) / 2
        return (torch.stack([bond_sum, s.sum(-1)], -1) * self.row_parameters).sum(-1)

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return -2 s_i (coupling * A s + field)_i of flips, [B, n, 2] of states [B, d]."""
        s = 2 * x.double() - 1
        coupling, field = self.row_parameters[..., None].unbind(1)
        local_field = coupling * (s @ self.ising.adjacency[:, sites]) + field
        return flip_log_ratios(-2 * s[:, sites] * local_field, x[:, sites])
