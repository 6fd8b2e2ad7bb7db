"""Spins and colours that interact in pairs: Potts and Ising models on periodic lattices, glasses, any couplings.

Homogeneous lattices have exact free energies by transfer matrices, Ising models without a field at any size.
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
from blackout.flows.targets.base import Target, of_flips, read_arrays

_LARGEST_MATRIX = 1100
"""Rows of a transfer matrix that is diagonalised."""
_STRONGEST = 300.0
"""Bond up to which the hyperbolic functions of Kaufman's formula are numbers."""
_STEPS = 1 << 20
"""Values of a parameter in a range of laws, which have numbers."""


Size: TypeAlias = int | Sequence[int]
"""The side of a lattice, or [height, width]."""
Range: TypeAlias = float | Sequence[float]
"""A number, or [start, end]."""
Numbers: TypeAlias = Tensor | Sequence[Any]


def lattice_bonds(size: Size) -> tuple[list[int], Tensor]:
    """(shape [H, W], pairs of sites beside each other on this torus, each once and in order: int64 [n, 2]).

    Ours (tests/flows/test_targets.py, by exact values of the lattices).

    Args:
        size: side of the lattice, or [H, W].

    Raises:
        ValueError: an impossible size.
    """
    shape = [size, size] if isinstance(size, int) else list(size)
    if len(shape) != 2 or any(type(n) is not int or n < 1 for n in shape):
        raise ValueError(f"a lattice has a size, or [height, width], of at least 1, not {list(shape)}")
    number = torch.arange(shape[0] * shape[1]).view(shape)
    pairs = torch.cat([torch.stack([number, number.roll(1, side)], -1).flatten(0, 1) for side in (0, 1)]).sort(1).values
    return shape, pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0)


@component("target")
class Potts(Target):
    """Potts model on a torus: log rho = beta * (number of bonds between equal states), each counted once [Wu 1982].

    Args:
        size: side of the lattice, or [H, W].
        q: number of states.
        beta: inverse temperature; log(1 + sqrt q) is critical.

    Raises:
        ValueError: an impossible size, or q below 2.
    """

    def __init__(self, size: Size = 4, q: int = 3, beta: float = 1.0) -> None:
        """beta, a scalar, and which sites are neighbours, [d, d]."""
        shape, pairs = lattice_bonds(size)
        super().__init__(q, shape)
        self.lattice = shape
        self.beta = nn.Buffer(torch.tensor(float(beta), dtype=torch.float64))
        joined = torch.zeros(self.sites, self.sites).index_put(pairs.unbind(1), torch.tensor(1.0)).double()
        self.beside = nn.Buffer(joined + joined.T)

    def log_density(self, x: Tensor) -> Tensor:
        """beta times the number of bonds between equal states, of x [..., d]: [...] [Wu 1982]."""
        of_state = self._one_hot(x)
        return self.beta * ((self.beside @ of_state) * of_state).sum((-1, -2)) / 2

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """beta (n_i(tau) - n_i(x_i)), n_i the neighbours in a state: [B, n, S]. Ours, tested by brute force."""
        gain = self.beta * (self.beside[where] @ self._one_hot(x))
        return gain - gain.gather(-1, x[:, where].long()[..., None])

    def pairs(self) -> tuple[Tensor, Tensor]:
        """w [d, d] and f [d, S] of the class: see `Target.pairs`."""
        return self.beta * self.beside, torch.zeros(self.sites, self.levels, dtype=torch.float64, device=self.device)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Order parameter (q max_k share_k - 1) / (q - 1), [B] [Wu 1982]."""
        largest = self._one_hot(x).mean(-2).amax(-1)
        return {"order_parameter": (self.levels * largest - 1) / (self.levels - 1)}

    def exact(self, t: float = 1.0) -> dict[str, float] | None:
        """Floats: see `transfer_matrix`."""
        q = self.levels
        return transfer_matrix(float(self.beta) * torch.eye(q, dtype=torch.float64), torch.zeros(q), self.shape, t)

    def _one_hot(self, x: Tensor) -> Tensor:
        """States [..., d] as [..., d, S], 1 at their own."""
        return F.one_hot(x.long(), self.levels).to(self.beta.dtype)


def transfer_matrix(pair: Tensor, field: Tensor, shape: Sequence[int], t: float = 1.0) -> dict[str, float] | None:
    """log Z of rho^t, and E[-log rho] as minus its derivative in t, of a homogeneous model on a torus.

    The trace of a power of the matrix between neighbouring columns [Kramers and Wannier 1941]; tests compare it with
    enumeration and with published values.

    Args:
        pair: log-weight of a bond, [S, S] symmetric.
        field: log-weight of a state, [S].
        shape: [H, W]; None is returned where the shorter side is too long, or shorter than 3.
        t: inverse temperature.
    """
    length, width = max(shape), min(shape)
    if width < 3 or len(field) ** width > _LARGEST_MATRIX:
        return None
    grid = torch.cartesian_prod(*[torch.arange(len(field))] * width)
    within = pair[grid, grid.roll(1, 1)].sum(1) + field.double()[grid].sum(1)
    between = sum(pair[grid[:, k][:, None], grid[:, k][None]] for k in range(width))
    log_matrix = between + (within[:, None] + within[None]) / 2

    top_weight = t * log_matrix.max()
    matrix = (t * log_matrix - top_weight).exp()
    values, vectors = torch.linalg.eigh(matrix)
    powers = (values / values.abs().max()) ** (length - 1)
    total = powers @ values
    # log Z = log tr M^L, and its derivative is L tr (M^(L-1) M log M) / tr M^L
    slopes = ((matrix * log_matrix) @ vectors * vectors).sum(0)
    log_z = length * top_weight + (length - 1) * values.abs().max().log() + total.log()
    return {"log_z": float(log_z), "mean_energy": -float(length * (powers @ slopes) / total)}


def kaufman(beta: float, shape: Sequence[int]) -> float:
    """log Z of the Ising model on a torus of any size, sides of at least 3 [Kaufman 1949, eq. 82].

    Args:
        beta: of a bond counted once, positive.
        shape: [H, W].
    """
    rows, columns = shape
    q = torch.arange(2 * rows, dtype=torch.float64)
    gamma = torch.acosh((math.cosh(2 * beta) / math.tanh(2 * beta) - torch.cos(math.pi * q / rows)).clamp(min=1))
    gamma[0] = 2 * beta + math.log(math.tanh(beta))  # with its sign
    half = columns * gamma.abs() / 2
    cosh, sinh = half + torch.log1p((-2 * half).exp()), half + torch.log(-torch.expm1(-2 * half))
    products = torch.stack([part[first::2].sum() for first in (1, 0) for part in (cosh, sinh)])
    signs = torch.tensor([1.0, 1.0, 1.0, math.copysign(1.0, float(gamma[0]))], dtype=torch.float64)
    total = (signs * (products - products.max()).exp()).sum().log() + products.max()
    return float(total) - math.log(2) + rows * columns / 2 * math.log(2 * math.sinh(2 * beta))


class SpinPairs(Target):
    """Spins s = 2x - 1 that interact in pairs: log rho = s' P s / 2 + h . s + a constant.

    [Ou 2025, eq. 11, with a field].

    Attributes:
        pair: P, [d, d], symmetric and zero on its diagonal.
        field: h, [d].
    """

    pair: Tensor
    field: Tensor

    @torch.no_grad()
    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """-2 s_i (P s + h)_i for a flip: [B, n, 2] [Ou 2025, eq. 25, for spins]."""
        s = self._spins(x)
        return of_flips(-2 * s[:, where] * (s @ self.pair[:, where] + self.field[where]), x[:, where])

    def pairs(self) -> tuple[Tensor, Tensor]:
        """w [d, d] and f [d, S]: see `Target.pairs`. P_ij s_i s_j = 2 P_ij [s_i = s_j] - P_ij, so that w = 2 P."""
        pair, field = self.pair.detach().double(), self.field.detach().double()
        return 2 * pair, torch.stack([-field, field], -1)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Magnetisation per site, the mean of the spins of states [B, d], and its size, [B] each."""
        m = self._spins(x).mean(-1)
        return {"magnetisation": m, "abs_magnetisation": m.abs()}

    def _spins(self, x: Tensor) -> Tensor:
        """s = 2x - 1 of states [..., d], of that shape: see the class."""
        return 2 * x.to(self.field.dtype) - 1


@component("target")
class Couplings(SpinPairs):
    """Any pair energy of spins: log rho(x) = s' J s + h . s, s = 2x - 1 in {-1, +1}^d [Ou 2025, eq. 11, with a field].

    Args:
        J: [d, d], float; need not be symmetric, its diagonal only adds to log Z. None for zeros, to be loaded.
        h: [d], float; None for zeros.
        shape: of the sites; None for a vector of as many as J or h have.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """

    def __init__(self, J: Numbers | None = None, h: Numbers | None = None, shape: Sequence[int] | None = None) -> None:
        """P = J + J' without its diagonal, [d, d], whose sum is the constant; h, [d]: see the class."""
        given = h if J is None else J
        ensure(given is not None or shape is not None, "couplings need J, h or a shape")
        super().__init__(2, list(torch.as_tensor(given).shape[:1] if shape is None else shape))
        d = self.sites
        matrix = torch.as_tensor(torch.zeros(d, d) if J is None else J, dtype=torch.float64)
        field = torch.as_tensor(torch.zeros(d) if h is None else h, dtype=torch.float64)
        ensure(matrix.shape == (d, d), f"J must be square, [{d}, {d}] for {d} sites, not {list(matrix.shape)}")
        ensure(field.shape == (d,), f"h must be [{d}] as J is [{d}, {d}], not {list(field.shape)}")
        ensure(bool(torch.isfinite(matrix).all() and torch.isfinite(field).all()), "J and h must be finite")
        both = matrix + matrix.T
        self.pair = nn.Buffer(both - torch.diag(both.diag()))
        self.field = nn.Buffer(field.clone())
        self.constant = nn.Buffer(matrix.diag().sum())

    def log_density(self, x: Tensor) -> Tensor:
        """s' J s + h . s of x [..., d]: [...] [Ou 2025, eq. 11, with a field]."""
        s = self._spins(x)
        return ((s @ self.pair) * s).sum(-1) / 2 + s @ self.field + self.constant

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its shape: the couplings travel as tensors."""
        return {"_target_": "blackout.flows.Couplings", "shape": list(self.shape)}


@component("target")
class Ising(Couplings):
    """Ising model on a torus: log rho = s' (sigma A) s + bias sum_i s_i, A the 0/1 adjacency [Ou 2025, eq. 11].

    The usual inverse temperature, of a bond counted once, is 2 sigma. One flow learns all laws of a range, and is told
    which one it serves; as a single law, this is the one at the ends of the ranges.

    Args:
        size: side of the lattice, or [H, W].
        sigma: strength; 0.22034340 is critical; [start, end] is a range.
        bias: of every spin, or a range.

    Raises:
        ValueError: an impossible size, or a range that has not two ends.
    """

    def __init__(self, size: Size = 4, sigma: Range = 0.1, bias: Range = 0.0) -> None:
        """J, [d, d], 2 sigma on every bond once, so that s'Js = s'(sigma A)s of the class; ranges are kept, [2, 2]."""
        shape, pairs = lattice_bonds(size)
        ends = [[part, part] if isinstance(part, int | float) else list(part) for part in (sigma, bias)]
        ensure(all(len(part) == 2 for part in ends), f"sigma, bias: numbers or [start, end], not {sigma}, {bias}")
        (_, strength), (_, field) = ends
        sites = shape[0] * shape[1]
        matrix = torch.zeros(sites, sites).index_put(pairs.unbind(1), torch.tensor(2.0)).double()
        super().__init__(strength * matrix, torch.full((sites,), float(field), dtype=torch.float64), shape)
        self.lattice, self._strength = shape, (2 * strength, field)
        self.bonds = nn.Buffer(matrix + matrix.T, persistent=False)
        self.ranges = torch.tensor(ends, dtype=torch.float64)
        self.many = any(start != end for start, end in ends)

    @property
    def facts(self) -> dict[str, Any]:
        """Also `parameters`: how many numbers tell a network which law it serves."""
        return super().facts | ({"parameters": 2} if self.many else {})

    def at(self, **chosen: float) -> Ising:
        """One of these laws, of `sigma` and `bias`, each the end of its range unless given.

        Raises:
            UserError: outside of the ranges, or no such number.
        """
        ends = dict(zip(("sigma", "bias"), self.ranges.tolist(), strict=True))
        for name, value in chosen.items():
            if type(value) not in (int, float) or not min(ends.get(name, [1])) <= value <= max(ends.get(name, [0])):
                raise UserError(f"target.{name}={value} is in none of the ranges it was trained on: {ends}")
        law = Ising(list(self.shape), **{name: end for name, (_, end) in ends.items()} | chosen)
        law.ranges, law.many = self.ranges, self.many
        return law.to(self.device)

    def of(self, law: Tensor) -> Target:
        """The laws with these numbers, int64 [B], one for each row: 2^20 steps of sigma, each with as many of bias.

        Ours (tests/flows/test_targets.py compares them with single models).
        """
        share = torch.stack([law // _STEPS, law % _STEPS], -1) / (_STEPS - 1)
        start, end = self.ranges.to(law.device).unbind(1)
        return _IsingRows(self, start + share * (end - start))

    def drawn(self, laws: int, chains: int, seed: int, relabel: bool) -> Tensor:
        """Numbers of laws to train on, int64 [laws * chains]: each of `laws` uniform ones `chains` times in a row."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(_STEPS**2, (laws,), generator=generator).repeat_interleave(chains)

    @property
    def numbers(self) -> Tensor:
        """Of the laws that validation and test look at, those at the ends of the ranges: int64 [4], see `of`."""
        ends = torch.tensor([0, _STEPS - 1])
        return (ends[:, None] * _STEPS + ends).flatten()

    @property
    def validation_numbers(self) -> Tensor:
        """The same: there are no data."""
        return self.numbers

    def told(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """sigma and bias, [B, 2], as networks are told them: from -1 to 1 along the ranges.

        Ours (tests/flows/test_targets.py).
        """
        start, end = self.ranges.to(parameters.device).unbind(1)
        return ((2 * parameters - start - end) / torch.where(start == end, 1.0, (end - start).abs()),)

    def context(self) -> tuple[Any, ...]:
        """What networks are `told` of this single law, [1, 2]; nothing where it is no range."""
        own = torch.tensor([[self._strength[0] / 2, self._strength[1]]], dtype=torch.float64, device=self.device)
        return self.told(own) if self.many else ()

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        return given

    def exact(self, t: float = 1.0) -> dict[str, float] | None:
        """log Z by `kaufman`, the energy as minus its derivative in t by differences; or by `transfer_matrix`:
        floats.
        """
        beta, bias = self._strength
        frustrated = beta < 0 and any(n % 2 for n in self.shape)  # else every second spin may be read upside down
        if 0 < abs(beta) * t < _STRONGEST and not bias and not frustrated and min(self.shape) > 2:
            below, log_z, above = (kaufman(abs(beta) * t * scale, self.shape) for scale in (1 - 1e-5, 1.0, 1 + 1e-5))
            return {"log_z": log_z, "mean_energy": (below - above) / 2e-5 / t}
        spins = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        return transfer_matrix(beta * spins[:, None] * spins, bias * spins, self.shape, t)


class _IsingRows(Target):
    """Ising models [Ou 2025, eq. 11, with a field] of which every row has its own sigma and bias.

    Args:
        ising: one on their torus.
        parameters: float64 [B, 2].
    """

    ising: Ising

    def __init__(self, ising: Ising, parameters: Tensor) -> None:
        super().__init__(2, ising.shape)
        vars(self)["ising"], self.parameters_of = ising, nn.Buffer(parameters)

    def site_groups(self) -> list[Tensor]:
        return self.ising.site_groups()

    def rows(self, which: Tensor) -> Target:
        return _IsingRows(self.ising, self.parameters_of[which])

    def context(self) -> tuple[Any, ...]:
        return self.ising.told(self.parameters_of)

    def log_density(self, x: Tensor) -> Tensor:
        """sigma s' A s + bias sum_i s_i of states [B, d], each row with its own: [B]. See the class."""
        s = 2 * x.double() - 1
        bonds = ((s @ self.ising.bonds) * s).sum(-1) / 2
        return (torch.stack([bonds, s.sum(-1)], -1) * self.parameters_of).sum(-1)

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """-2 s_i (2 sigma A s + bias)_i for a flip, as in `SpinPairs.ratios_at`: [B, n, 2]."""
        s, (sigma, bias) = 2 * x.double() - 1, self.parameters_of[..., None].unbind(1)
        return of_flips(-2 * s[:, where] * (sigma * (s @ self.ising.bonds[:, where]) + bias), x[:, where])


@component("target")
class SpinGlass(Couplings):
    """A glass: normal couplings on the bonds of a periodic lattice, normal fields [Edwards and Anderson 1975].

    log rho = sum over bonds J_ij s_i s_j + sum_i h_i s_i.

    Args:
        size: side of the lattice, or [H, W].
        coupling: standard deviation of J_ij.
        disorder: standard deviation of h_i.
        seed: of both.
    """

    def __init__(self, size: Size = 4, coupling: float = 0.4, disorder: float = 0.2, seed: int = 0) -> None:
        """J, [d, d], each bond once and above the diagonal, and h, [d]: see the class."""
        shape, pairs = lattice_bonds(size)
        d = shape[0] * shape[1]
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.zeros(d, d, dtype=torch.float64)
        matrix[pairs[:, 0], pairs[:, 1]] = coupling * torch.randn(len(pairs), generator=generator, dtype=torch.float64)
        super().__init__(matrix, disorder * torch.randn(d, generator=generator, dtype=torch.float64), shape)


class Conserved(Target):
    """A law on the states with given numbers of sites at every level, such as a lattice gas: its sweeps exchange sites.

    Args:
        inner: the law.
        numbers: of sites at level 0, 1, ...

    Raises:
        ValueError: numbers that are not those of all sites.
    """

    flips = False

    def __init__(self, inner: Target, numbers: Sequence[int]) -> None:
        """Exchanges of every site, numbers [2 d, 2], with the next one and with one drawn once for all: see `swept`."""
        super().__init__(inner.levels, inner.shape)
        if len(numbers) != self.levels or min(numbers) < 0 or sum(numbers) != self.sites:
            raise ValueError(f"numbers of the {self.levels} levels must add up to {self.sites}, not {list(numbers)}")
        self.inner, self.numbers = inner, torch.tensor(list(numbers))
        far = torch.randperm(self.sites, generator=torch.Generator().manual_seed(0)).tolist()
        self._exchanges = [(i, j) for i in range(self.sites) for j in ((i + 1) % self.sites, far[i])]

    @property
    def log_volume(self) -> float:
        """log of the multinomial coefficient d! / (n_0! n_1! ...), a float: by definition the number of such states.

        Ours (tests/flows/test_annealing.py).
        """
        return math.lgamma(self.sites + 1) - sum(math.lgamma(n + 1) for n in self.numbers.tolist())

    def uniform(self, uniforms: Tensor) -> Tensor:
        """States of this composition, as the ranks of uniforms [B, d] order them: uint8 [B, d].

        Ours (tests/flows/test_annealing.py).
        """
        edges = self.numbers.cumsum(0)[:-1]
        return torch.searchsorted(edges, uniforms.argsort(1).argsort(1), right=True).to(torch.uint8)

    def log_density(self, x: Tensor) -> Tensor:
        """log rho of states [..., d], minus infinity for any other composition: [...].

        Ours (tests/flows/test_annealing.py).
        """
        there = F.one_hot(x.long(), self.levels).sum(-2)
        return self.inner.log_density(x).masked_fill((there != self.numbers).any(-1), -math.inf)

    def log_ratios(self, x: Tensor) -> Tensor:
        """None: raises UserError."""
        raise UserError("a law of conserved composition moves by exchanges: blackout anneal draws it")

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Exchanges of every site with the next one, and with one that is drawn once for all, by heat baths, [B, d].

        [Kawasaki 1966]; tests compare log Z with enumeration and transfer matrices (tests/flows/test_annealing.py).
        """
        x, rows = x.clone(), torch.arange(len(x))
        for k, (i, j) in enumerate(self._exchanges):
            u = uniforms[:, i] if k % 2 == 0 else uniforms[:, i] * 2**26 % 1  # of one uniform two
            a, b = x[:, i].clone(), x[:, j].clone()
            gain = self.inner.ratios_at(x, torch.tensor([i]))[rows, 0, b.long()].double()
            x[:, i] = b
            gain = gain + self.inner.ratios_at(x, torch.tensor([j]))[rows, 0, a.long()]
            stays = u >= torch.sigmoid(t * gain)
            x[:, i], x[:, j] = torch.where(stays, a, b), torch.where(stays, b, a)
        return x

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Those of the law, of states [B, d]: [B] each."""
        return self.inner.statistics(x)


@component("target", ask="target=couplings target.path=...")
def read_couplings(path: str | Path) -> Couplings:
    """The pair energy in an .npz with arrays `J` [d, d] and, if there is a field, `h` [d], or in an .npy of J alone.

    Raises:
        UserError: unreadable, J missing or not square, h of another size, or values that are not finite.
    """
    arrays = {name: array for name, array in read_arrays(path, alone="J").items() if name in ("J", "h")}
    refuse("J" not in arrays, f"target.path: {path} has no array J [d, d]")
    refuse(any(part.dtype.kind not in "iuf" for part in arrays.values()), f"target.path: {path}: J and h must be real")
    with error_context(f"target.path: {path}"):
        return Couplings(torch.from_numpy(arrays["J"]), torch.from_numpy(arrays["h"]) if "h" in arrays else None)
