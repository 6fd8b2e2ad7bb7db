"""Energies that are learned, p ~ exp(-E) [Ou 2025, section 4.2]: of pairs, or neural networks, also those of a file.

Those of pairs have a start from their data: the couplings of greatest likelihood, or of pseudo-likelihood.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.errors import UserError, ensure, refuse
from blackout.family import Source
from blackout.flows.targets.base import Target, all_states, of_flips, read_arrays
from blackout.flows.targets.lattice import magnetisation
from blackout.training.export import load_model

BITS = 16
"""Of a coordinate: a sign, and the Gray code of the size."""
_SPREAD = 6.0
"""Scale of an energy network's first weights at the start, over PyTorch's; spins of +-1 in place of bits are 2."""

_LISTED = 1 << 18
"""States over which the likelihood of a pair energy is summed; of more, its pseudo-likelihood is maximised."""
_STRONGEST = 5.0
"""Coupling or field where a sample that lacks some states would have an infinite one."""


class Learned(Target):
    """A law p in proportion to exp(-E) whose energy is trained."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], with gradients for its weights."""

    def log_density(self, x: Tensor) -> Tensor:
        """Of states [..., d], [...]."""
        with torch.no_grad():
            return -self.energy(x)

    def penalty(self) -> Tensor:
        """What is added to the negative log-likelihood of a sample, a scalar."""
        return torch.zeros((), device=self.device)


@component("energy", "target")
class PairEnergy(Learned):
    """-E = s' J s + h . s of spins s = 2x - 1; J symmetric without diagonal [Ou 2025, section 4.2].

    Args:
        sites: number of spins.
        l1: weight of the sum of |J_ij| over all i and j.
        field: whether h is learned too.

    Raises:
        ValueError: fewer than two spins, or a negative weight.
    """

    def __init__(self, sites: int, l1: float = 0.0, field: bool = False) -> None:
        super().__init__(2, [sites])
        ensure(sites >= 2 and l1 >= 0, f"a pair energy needs two spins and l1 of at least 0, not {sites} and {l1}")
        self.l1 = l1
        self.upper = nn.Parameter(torch.zeros(sites * (sites - 1) // 2))
        self.field = nn.Parameter(torch.zeros(sites)) if field else None

    @property
    def couplings(self) -> Tensor:
        """J, [d, d]."""
        first, second = torch.triu_indices(self.sites, self.sites, 1, device=self.upper.device)
        matrix = self.upper.new_zeros(self.sites, self.sites).index_put((first, second), self.upper)
        return matrix + matrix.T

    def energy(self, x: Tensor) -> Tensor:
        """-s' J s - h . s of states [..., d]: [...]."""
        s = self._spins(x)
        pairs = -((s @ self.couplings) * s).sum(-1)
        return pairs if self.field is None else pairs - s @ self.field

    def log_ratios(self, x: Tensor) -> Tensor:
        """-2 s_i (2 (J s)_i + h_i) for a flip, [B, d, 2] [Ou 2025, eq. 27, for spins]."""
        with torch.no_grad():
            s = self._spins(x)
            local = 2 * s @ self.couplings if self.field is None else 2 * s @ self.couplings + self.field
            return of_flips(-2 * s * local, x)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, [B, d], but what others do to a spin is kept, and changed by a row of J where one flips.

        Ours; a test compares it with the sweep of every target.
        """
        with torch.no_grad():
            s, couplings = self._spins(x).double(), self.couplings.double()
            local = 2 * s @ couplings if self.field is None else 2 * s @ couplings + self.field.double()
            for site in range(self.sites):
                spin = 2.0 * (torch.sigmoid(-2 * t * local[:, site]) <= uniforms[:, site]) - 1
                local.addcmul_((spin - s[:, site])[:, None], couplings[site], value=2)
                s[:, site] = spin
            return (s > 0).to(x.dtype)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """w [d, d] and f [d, S]: see `Target.pairs`."""
        field = torch.zeros(self.sites) if self.field is None else self.field.detach()
        return 4 * self.couplings.detach().double(), torch.stack([-field, field], -1).double()

    def penalty(self) -> Tensor:
        """l1 sum_ij |J_ij| [Ou 2025, appendix E.2], a scalar."""
        return self.l1 * 2 * self.upper.abs().sum()

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        kept = {"sites": self.sites, "l1": self.l1, "field": self.field is not None}
        return {"_target_": "blackout.flows.energies.PairEnergy", **kept}

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Magnetisation per site and its size, [B] each."""
        return magnetisation(self._spins(x))

    def _spins(self, x: Tensor) -> Tensor:
        return 2 * x.to(self.upper.dtype) - 1


@component("energy", "target")
class EnergyNetwork(Learned):
    """log rho(x) = -E(x), E a multilayer perceptron of bits with SiLU activations [Ou 2025, appendices E.1 and E.2].

    Beyond two levels it reads functions of the level, which is ours: a level k is told as cos(pi j (k + 1/2) / S), j =
    1, 2, ..., and as a number, so that neighbouring counts are alike to the network; levels that have no order,
    categories, are told apart with `waves` 0.

    The log-ratios are exact: the first layer of a neighbour differs from that of x by a column of its weights, the
    layers after it are evaluated for every neighbour.

    Args:
        sites: number of sites.
        widths: of the hidden layers.
        levels: number of states of a site.
        waves: cosines of a level, at most; 0 for one-hot states.
        plane: whether the bits code a point of the plane, see `encode`.

    Raises:
        ValueError: fewer than no waves, or bits that are no points of the plane.
    """

    def __init__(
        self, sites: int, widths: Sequence[int] = (256, 256, 256), levels: int = 2, waves: int = 8, plane: bool = False
    ) -> None:
        super().__init__(levels, [sites])
        ensure(waves >= 0, f"waves must be at least 0, not {waves}")
        ensure(not plane or sites == 2 * BITS, f"points of the plane have {2 * BITS} bits, not {sites}")
        self.widths, self.waves, self.plane = list(widths), waves, plane
        place = (torch.arange(levels) + 0.5) / levels
        each = [(12**0.5 * (place - 0.5)), *(2**0.5 * (torch.pi * j * place).cos() for j in range(1, waves + 1))]
        basis = torch.stack(each[: levels + 1], 1) if waves and levels > 2 else torch.eye(levels)
        self.basis = nn.Buffer(basis, persistent=False)
        sizes = [sites if levels == 2 else sites * basis.shape[1], *widths, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        if levels == 2 or not waves:
            with torch.no_grad():  # as if it read spins, with larger weights: else products of many bits are never seen
                self._first.weight.mul_(_SPREAD)
                self._first.bias.sub_(self._first.weight.sum(1) / levels)

    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], with gradients for its weights."""
        return self._after(self._hidden(x))

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """Exact, [B, n, S]; beyond two levels the first layer of a neighbour differs by what two levels give it."""
        with torch.no_grad():
            first = self._hidden(x)
            if self.levels == 2:
                step = 1 - 2 * x[:, where].to(first.dtype)
                moved = first[:, None] + step[..., None] * self._first.weight.T[where]
                return of_flips(self._after(first)[:, None] - self._after(moved), x[:, where])
            weight = self.basis @ self._first.weight.T.view(self.sites, self.basis.shape[1], -1)
            own = weight[where, x[:, where].long()]
            moved = first[:, None, None] + weight[where] - own[:, :, None]
            ratios = self._after(first)[:, None, None] - self._after(moved)
            return ratios.masked_fill(F.one_hot(x[:, where].long(), self.levels).bool(), 0.0)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, [B, d], but with one evaluation a site of two levels: the state's own energy is kept."""
        if self.levels != 2:
            return super().swept(x, uniforms, t)
        with torch.no_grad():
            x = x.clone()
            first = self._hidden(x)
            energy = self._after(first)
            for site in range(self.sites):
                own = x[:, site] > 0
                moved = first + torch.where(own, -1.0, 1.0)[:, None] * self._first.weight[:, site]
                other = self._after(moved)
                ratio = t * torch.where(own, energy - other, other - energy).double()  # log of p(0) / p(1)
                drawn = torch.sigmoid(ratio) <= uniforms[:, site]
                x[:, site] = drawn
                flip = drawn != own
                first, energy = torch.where(flip[:, None], moved, first), torch.where(flip, other, energy)
        return x

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Mean state, [B]; of points of the plane nothing."""
        return {} if self.plane else {"mean_state": x.double().mean(-1)}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its sizes: the weights travel as tensors."""
        kept = {name: getattr(self, name) for name in ("sites", "widths", "levels", "waves", "plane")}
        return {"_target_": "blackout.flows.EnergyNetwork", **kept}

    @property
    def _first(self) -> nn.Linear:
        return cast(nn.Linear, self.layers[0])

    def _hidden(self, x: Tensor) -> Tensor:
        """Of the first layer, before its activation."""
        read = x if self.levels == 2 else self.basis[x.long()].flatten(-2)
        return F.linear(read.to(self._first.weight.dtype), self._first.weight, self._first.bias)

    def _after(self, hidden: Tensor) -> Tensor:
        for layer in self.layers[1:]:
            hidden = layer(F.silu(hidden))
        return hidden.squeeze(-1)


@component("target", ask="target=energy_network target.path=...")
def read_energy_network(path: str | Path, plane: bool = False) -> EnergyNetwork:
    """The energy network in an .npz with arrays `weight_0` [n_1, d], `bias_0` [n_1], `weight_1`, ... to one output.

    Args:
        path: of the file.
        plane: whether its states are points of the plane, which pictures then show.

    Raises:
        UserError: unreadable, or arrays that are no such network.
    """
    advice = "python -m benchmarks.energy_discrepancy makes one"
    refuse(not Path(path).is_file(), f"target.path: {path} does not exist; {advice}")
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path).items() if array.dtype.kind == "f"}
    layers: list[tuple[Tensor, Tensor]] = []
    while {f"weight_{len(layers)}", f"bias_{len(layers)}"} <= arrays.keys():
        layers.append((arrays[f"weight_{len(layers)}"], arrays[f"bias_{len(layers)}"]))
    refuse(not layers, f"target.path: {path} needs arrays weight_0, bias_0, weight_1, ... of numbers; {advice}")
    if not all(bool(torch.isfinite(part).all()) for layer in layers for part in layer):
        raise UserError(f"target.path: {path} holds weights that are not finite")
    sizes = [layers[0][0].shape[-1], *(len(bias) for _, bias in layers)]
    for (weight, bias), before, after in zip(layers, sizes[:-1], sizes[1:], strict=True):
        if weight.shape != (after, before) or bias.shape != (after,):
            raise UserError(f"target.path: {path}: weights {list(weight.shape)} do not follow layers of {before}")
    refuse(sizes[-1] != 1, f"target.path: {path}: an energy has one output, not {sizes[-1]}")
    network = EnergyNetwork(sizes[0], sizes[1:-1], plane=plane)
    for layer, (weight, bias) in zip(network.layers, layers, strict=True):
        layer.load_state_dict({"weight": weight, "bias": bias})
    return network.requires_grad_(False)


@component("target", ask="target=energy_network with target.path=... or target.ckpt=...")
def read_energy(path: str | None = None, ckpt: str | None = None) -> Target:
    """An energy network from an .npz, or the law that a trained model has.

    Args:
        path: an .npz, see `read_energy_network`.
        ckpt: a run, checkpoint or exported model of family=energy, whose averaged energy is taken.

    Raises:
        UserError: neither is given, or both; unreadable, or a model without an energy.
    """
    refuse((path is None) == (ckpt is None), "give either target.path, an .npz, or target.ckpt, a run of family=energy")
    if path is not None:
        return read_energy_network(path)
    target: Any = getattr(load_model(str(ckpt)), "target", None)
    refuse(not isinstance(target, Target), f"ckpt: {ckpt} has no target; give a run of family=energy or family=flow")
    return target.requires_grad_(False)


def most_likely(energy: PairEnergy, x: Tensor, exact: bool = True) -> bool:
    """Give a pair energy the couplings and fields of greatest likelihood, less the penalty; whether of the likelihood.

    Where there are too many states to be summed over it is half the pseudo-likelihood [Besag 1975], whose couplings are
    as good to first order where they are weak. The likelihood is concave, so that there is one solution.

    Args:
        energy: to be changed.
        x: states, integers [n, d].
        exact: False for the pseudo-likelihood, whatever the number of states.
    """
    d, pairs = energy.sites, len(energy.upper)
    s, upper = 2 * x.cpu().double() - 1, torch.triu_indices(energy.sites, energy.sites, 1)
    moments, mean = s.T @ s / len(s), s.mean(0)

    def pseudo(J: Tensor, h: Tensor) -> Tensor:
        return F.softplus(-2 * s * (2 * s @ J + h)).mean(0).sum() / 2

    def whole(J: Tensor, h: Tensor) -> Tensor:
        log_z = torch.logsumexp(((states @ J) * states).sum(-1) + states @ h, 0)
        return log_z - (J * moments).sum() - h @ mean

    found = np.zeros(2 * pairs + d)  # couplings above 0, those below, so that the penalty is smooth; fields
    sides = [(0.0, _STRONGEST)] * (2 * pairs) + [(-_STRONGEST, _STRONGEST) if energy.field is not None else (0, 0)] * d
    exact = exact and 2**d <= _LISTED
    states = 2 * all_states(2, d).double() - 1 if exact else s
    for loss in (pseudo, whole) if exact else (pseudo,):

        def objective(given: np.ndarray, loss: Any = loss) -> tuple[float, np.ndarray]:
            both = torch.tensor(given, requires_grad=True)
            above, below, h = both.split([pairs, pairs, d])
            J = h.new_zeros(d, d).index_put((upper[0], upper[1]), above - below)
            value = loss(J + J.T, h) + energy.l1 * 2 * (above + below).sum()
            (slope,) = torch.autograd.grad(value, both)
            return float(value.detach()), slope.numpy()

        found = minimize(objective, found, jac=True, bounds=sides, method="L-BFGS-B", tol=1e-9).x
    with torch.no_grad():
        energy.upper.copy_(torch.from_numpy(found[:pairs] - found[pairs : 2 * pairs]))
        if energy.field is not None:
            energy.field.copy_(torch.from_numpy(found[2 * pairs :]))
    return exact


def couplings_found(target: PairEnergy, source: Source) -> dict[str, float]:
    """How good couplings are: -log RMSE over all d^2 [Ou 2025, table 4], beside that of J = 0, and their slope.

    `slope_of_couplings` is that of the least-squares line through 0 on the true ones, or where these are not known on
    those of the pseudo-likelihood of the data: below 1, they are too weak.

    Raises:
        UserError: the law whose samples were learned has other sites than the energy.
    """
    pair: Tensor | None = getattr(getattr(source, "truth", None), "pair", None)
    truth, found = None if pair is None else pair.cpu().double() / 2, target.couplings.detach().cpu().double()
    values = {}
    if truth is not None:
        refuse(truth.shape != found.shape, f"the data are of a law of {len(truth)} sites, the energy has {len(found)}")
        errors = (float(-(part - truth).square().mean().sqrt().log()) for part in (found, torch.zeros_like(found)))
        values = dict(zip(("minus_log_rmse", "minus_log_rmse_of_zero"), errors, strict=True))
    elif isinstance(source, CountData):
        rival = PairEnergy(target.sites, field=target.field is not None)
        most_likely(rival, source.train[:].flatten(1), exact=False)
        truth = rival.couplings.detach().double()
    if truth is not None and bool(truth.any()):
        values["slope_of_couplings"] = float((found * truth).sum() / truth.square().sum())
    return values


def encode(points: Tensor, scale: float) -> Tensor:
    """Points [n, 2] as bits, uint8 [n, 32]: of each coordinate a sign and 15 bits of Gray code, the highest first.

    [Ou 2025, section 4.1], as the authors' code does it.
    """
    size = (points.abs() * scale).long().clamp(max=2 ** (BITS - 1) - 1)
    gray = size ^ (size >> 1)
    places = torch.arange(BITS - 2, -1, -1)
    bits = torch.cat([(points < 0).long()[..., None], (gray[..., None] >> places) & 1], -1)
    return bits.flatten(1).to(torch.uint8)


def decode(x: Tensor, scale: float) -> Tensor:
    """The middles of the cells of states [n, 32]: float64 [n, 2]."""
    bits = x.long().view(-1, 2, BITS)
    # a Gray code is undone by running exclusive ors from the highest bit
    binary = bits[..., 1:].cumsum(-1) % 2
    size = (binary << torch.arange(BITS - 2, -1, -1, device=x.device)).sum(-1)
    return (1 - 2 * bits[..., 0]) * (size.double() + 0.5) / scale
