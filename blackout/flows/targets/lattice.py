"""Spin models with pair interactions: Ising, Potts, spin glasses, and couplings from a file.

Homogeneous lattices have exact free energies by transfer matrices, and Ising models without a
field at any size by Kaufman's formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, error_context, refuse
from blackout.flows.targets.base import Target, flip_log_ratios, read_arrays
from blackout.representation import join_values

MAX_TRANSFER_MATRIX = 1100  # rows; a larger matrix takes too long to diagonalise
MAX_KAUFMAN_COUPLING = 300.0  # above it cosh and sinh in Kaufman's formula overflow
RANGE_STEPS = 1 << 20  # values of a parameter in a range; an instance is a pair of them

# side of a square lattice, or [height, width]
Size: TypeAlias = int | Sequence[int]
# a number, or [start, end]
Range: TypeAlias = float | Sequence[float]
Array: TypeAlias = Tensor | Sequence[Any]


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


@component("target")
class Potts(Target):
    """Potts model on a torus: log rho = beta * (number of bonds between equal values).

    Each bond is counted once. The critical point is beta = log(1 + sqrt(q)), 1.00505254 for q = 3.

    References: Wu 1982.

    Args:
        size: side of the lattice, or [H, W].
        q: number of values of a site.
        beta: inverse temperature.

    Raises:
        ValueError: an impossible size, or q below 2.

    Example:
        >>> Potts(size=3, q=2, beta=0.5).log_density(torch.zeros(9, dtype=torch.uint8)).item()
        9.0
    """

    def __init__(self, size: Size = 4, q: int = 3, beta: float = 1.0) -> None:
        shape, bonds = lattice_bonds(size)
        super().__init__(q, shape)
        self.lattice = shape
        self.beta = nn.Buffer(torch.tensor(float(beta), dtype=torch.float64))
        upper = torch.zeros(self.sites, self.sites)
        upper = upper.index_put(bonds.unbind(1), torch.tensor(1.0)).double()
        self.adjacency = nn.Buffer(upper + upper.T)  # [d, d]

    def log_density(self, x: Tensor) -> Tensor:
        """Return beta times the number of bonds between equal values, [...] of x [..., d].

        References: Wu 1982.
        """
        one_hot = self._one_hot(x)
        return self.beta * ((self.adjacency @ one_hot) * one_hot).sum((-1, -2)) / 2

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return beta (n_i(tau) - n_i(x_i)), n_i the number of neighbours by value: [B, n, S].

        References: this project; checked in tests/flows/test_targets.py.
        """
        energy = self.beta * (self.adjacency[sites] @ self._one_hot(x))
        return energy - energy.gather(-1, x[:, sites].long()[..., None])

    def pairwise_terms(self) -> tuple[Tensor, Tensor]:
        """Return w = beta A, [d, d], and f = 0, [d, S]; see `Target.pairwise_terms`."""
        field = torch.zeros(self.sites, self.levels, dtype=torch.float64, device=self.device)
        return self.beta * self.adjacency, field

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the order parameter (q max_k fraction_k - 1) / (q - 1), [B].

        References: Wu 1982.
        """
        largest = self._one_hot(x).mean(-2).amax(-1)
        return {"order_parameter": (self.levels * largest - 1) / (self.levels - 1)}

    def closed_form(self, t: float = 1.0) -> dict[str, float] | None:
        """Return `log_z` and `mean_energy` of rho^t by `transfer_matrix`."""
        bond = float(self.beta) * torch.eye(self.levels, dtype=torch.float64)
        return transfer_matrix(bond, torch.zeros(self.levels), self.shape, t)

    def _one_hot(self, x: Tensor) -> Tensor:
        """Return states [..., d] as one-hot vectors, [..., d, S]."""
        return F.one_hot(x.long(), self.levels).to(self.beta.dtype)


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
        ensure(values is not None or shape is not None, "couplings need J, h or shape")
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
        ensure(finite, "J and h must be finite")
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
            ends = ranges.get(name)
            valid = type(value) in (int, float) and ends is not None
            if not valid or not min(ends) <= value <= max(ends):  # type: ignore[arg-type]
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

    def sample_instances(self, num_instances: int, chains: int, seed: int, relabel: bool) -> Tensor:
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
        return self.ising.site_groups()

    def select(self, rows: Tensor) -> Target:
        return _IsingInstances(self.ising, self.row_parameters[rows])

    def context(self) -> tuple[Any, ...]:
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


class FixedComposition(Target):
    """A target restricted to states with fixed numbers of sites per level, as a lattice gas.

    Its sweeps exchange the values of two sites.

    Args:
        unrestricted: the target.
        counts: number of sites at level 0, 1, ...

    Raises:
        ValueError: counts that do not add up to the number of sites.

    References: Kawasaki 1966; checked in tests/flows/test_annealing.py.

    Example:
        >>> target = FixedComposition(Ising(2), counts=[2, 2])
        >>> target.log_density(torch.tensor([[0, 0, 0, 1]], dtype=torch.uint8)).tolist()
        [-inf]
    """

    allows_single_flips = False

    def __init__(self, unrestricted: Target, counts: Sequence[int]) -> None:
        super().__init__(unrestricted.levels, unrestricted.shape)
        if len(counts) != self.levels or min(counts) < 0 or sum(counts) != self.sites:
            raise ValueError(
                f"counts of {self.levels} levels must add up to {self.sites}, not {list(counts)}",
            )
        self.unrestricted = unrestricted
        self.counts = torch.tensor(list(counts))
        # every site is exchanged with the next one and with a fixed distant one
        generator = torch.Generator().manual_seed(0)
        distant = torch.randperm(self.sites, generator=generator).tolist()
        self._exchanges = list[tuple[int, int]]()
        for i in range(self.sites):
            self._exchanges.append((i, (i + 1) % self.sites))
            self._exchanges.append((i, distant[i]))

    @property
    def log_num_states(self) -> float:
        """The log of the multinomial coefficient d! / (n_0! n_1! ...).

        References: this project; checked in tests/flows/test_annealing.py.
        """
        log_permutations = sum(math.lgamma(n + 1) for n in self.counts.tolist())
        return math.lgamma(self.sites + 1) - log_permutations

    def sample_initial(self, uniforms: Tensor) -> Tensor:
        """Draw uniform states of this composition by the ranks of uniforms [B, d]: uint8 [B, d].

        References: this project; checked in tests/flows/test_annealing.py.
        """
        edges = self.counts.cumsum(0)[:-1]
        ranks = uniforms.argsort(1).argsort(1)
        return torch.searchsorted(edges, ranks, right=True).to(torch.uint8)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log rho of states [..., d], minus infinity for other compositions: [...].

        References: this project; checked in tests/flows/test_annealing.py.
        """
        counts = F.one_hot(x.long(), self.levels).sum(-2)
        outside = (counts != self.counts).any(-1)
        return self.unrestricted.log_density(x).masked_fill(outside, -math.inf)

    def log_ratios(self, x: Tensor) -> Tensor:
        """Refuse: a single flip changes the composition.

        Raises:
            UserError: always.
        """
        raise UserError(
            "a target of fixed composition moves by exchanges; draw it with blackout anneal",
        )

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Exchange every site with the next one and a distant one by heat baths, [B, d].

        References: Kawasaki 1966; checked in tests/flows/test_annealing.py.
        """
        x = x.clone()
        rows = torch.arange(len(x))
        for k, (i, j) in enumerate(self._exchanges):
            # the low bits of a uniform are a second, independent one
            u = uniforms[:, i] if k % 2 == 0 else uniforms[:, i] * 2**26 % 1
            a = x[:, i].clone()
            b = x[:, j].clone()
            log_ratio_i = self.unrestricted.log_ratios_at(x, torch.tensor([i]))
            log_ratio = log_ratio_i[rows, 0, b.long()].double()
            x[:, i] = b
            log_ratio_j = self.unrestricted.log_ratios_at(x, torch.tensor([j]))
            log_ratio = log_ratio + log_ratio_j[rows, 0, a.long()]
            rejected = u >= torch.sigmoid(t * log_ratio)
            x[:, i] = torch.where(rejected, a, b)
            x[:, j] = torch.where(rejected, b, a)
        return x

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the statistics of the unrestricted target, of states [B, d]: [B] each."""
        return self.unrestricted.statistics(x)


@component("target", ask="target=couplings target.path=...")
def read_couplings(path: str | Path) -> Couplings:
    """Read couplings `J` [d, d] and a field `h` [d] (optional) from an .npz, or J from an .npy.

    Raises:
        UserError: an unreadable file, J missing or not square, h of another size, or values that
            are not real and finite.
    """
    arrays = read_arrays(path, npy_name="J")
    arrays = {name: array for name, array in arrays.items() if name in ("J", "h")}
    refuse("J" not in arrays, f"target.path: {path} must have an array J [d, d]")
    refuse(
        any(array.dtype.kind not in "iuf" for array in arrays.values()),
        f"target.path: {path}: J and h must be real numbers",
    )
    J = torch.from_numpy(arrays["J"])
    h = torch.from_numpy(arrays["h"]) if "h" in arrays else None
    with error_context(f"target.path: {path}"):
        return Couplings(J, h)
