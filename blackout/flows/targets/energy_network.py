"""Laws of neural networks, p ~ exp(-E) [Ou 2025, section 4.2]: learned, or from a file; points of the plane in bits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError, ensure, refuse
from blackout.flows.targets.base import Target, all_states, read_arrays
from blackout.training.export import load_model

BITS = 16
"""Of a coordinate: a sign, and the Gray code of the size."""
_SPREAD = 6.0
"""Scale of an energy network's first weights at the start, over PyTorch's; spins of +-1 in place of bits are 2."""


class Learned(Target):
    """A law p in proportion to exp(-E) whose energy is trained."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], with gradients for its weights."""

    def log_density(self, x: Tensor) -> Tensor:
        """-E of states [..., d], [...], without gradients."""
        with torch.no_grad():
            return -self.energy(x)

    def log_partition(self) -> Tensor:
        """log Z, a scalar, with gradients: the sum over all S^d states."""
        states = all_states(self.levels, self.sites).to(self.device)
        return torch.logsumexp(-self.energy(states), 0)

    def penalty(self) -> Tensor:
        """What is added to the negative log-likelihood of a sample, a scalar."""
        return torch.zeros((), device=self.device)


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
        """What a level is told as, as in the class, is `basis`, [S, k] or, of bits, [2, 1]."""
        super().__init__(levels, [sites])
        ensure(waves >= 0, f"waves must be at least 0, not {waves}")
        ensure(not plane or sites == 2 * BITS, f"points of the plane have {2 * BITS} bits, not {sites}")
        self.widths, self.waves, self.plane = list(widths), waves, plane
        place = (torch.arange(levels) + 0.5) / levels
        each = [(12**0.5 * (place - 0.5)), *(2**0.5 * (torch.pi * j * place).cos() for j in range(1, waves + 1))]
        many = torch.stack(each[: levels + 1], 1) if waves else torch.eye(levels)
        self.basis = nn.Buffer(torch.arange(2.0)[:, None] if levels == 2 else many, persistent=False)
        sizes = [sites * self.basis.shape[1], *widths, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        if levels == 2 or not waves:
            with torch.no_grad():  # as if it read spins, with larger weights: else products of many bits are never seen
                self._first.weight.mul_(_SPREAD)
                self._first.bias.sub_(self._first.weight.sum(1) / levels)

    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], [...], with gradients for its weights: see the class."""
        return self._after(self._hidden(x))

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """Exact log-ratios of some sites, int64 [n], of states [B, d]: [B, n, S].

        The first layer of a neighbour differs by what two levels give it, as in the class.
        """
        with torch.no_grad():
            first, own = self._hidden(x), x[:, where].long()
            others = (own[..., None] + torch.arange(1, self.levels, device=x.device)) % self.levels
            weight = self.basis @ self._first.weight.T.view(self.sites, self.basis.shape[1], -1)
            moved = first[:, None, None] + weight[where[:, None], others] - weight[where, own][:, :, None]
            ratios = self._after(first)[:, None, None] - self._after(moved)
            return ratios.new_zeros(*own.shape, self.levels).scatter_(2, others, ratios)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, [B, d], but with one evaluation a site of two levels: the state's own energy is kept.

        [Geman and Geman 1984]; ours is what is kept (tests/flows/energies/test_gradients.py).
        """
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
        """Of the first layer, before its activation: states [..., d] -> [..., h]."""
        read = x if self.levels == 2 else self.basis[x.long()].flatten(-2)  # of bits gradients are asked, too
        return F.linear(read.to(self._first.weight.dtype), self._first.weight, self._first.bias)

    def _after(self, hidden: Tensor) -> Tensor:
        """The layers after the first, of what it gives, [..., h]: E, [...], as in the class."""
        for layer in self.layers[1:]:
            hidden = layer(F.silu(hidden))
        return hidden.squeeze(-1)


@component("target", ask="target=energy_network with target.path=... or target.ckpt=...")
def read_energy(path: str | Path | None = None, ckpt: str | None = None, plane: bool = False) -> Target:
    """The energy network in an .npz with arrays `weight_0` [n_1, d], `bias_0` [n_1], `weight_1`, ... to one output.

    Or the law that a trained model has.

    Args:
        path: of the file.
        ckpt: a run, checkpoint or exported model of family=energy, whose averaged energy is taken.
        plane: whether the states of the network in the file are points of the plane, which pictures then show.

    Raises:
        UserError: neither file nor model is given, or both; unreadable, no such network, or a model without an energy.
    """
    refuse((path is None) == (ckpt is None), "give either target.path, an .npz, or target.ckpt, a run of family=energy")
    if path is None:
        target: Any = getattr(load_model(str(ckpt)), "target", None)
        refuse(not isinstance(target, Target), f"ckpt: {ckpt} has no target; give a run of family=energy or flow")
        return target.requires_grad_(False)
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
    """The middles of the cells of states [n, 32]: float64 [n, 2]. The way back of `encode` [Ou 2025, section 4.1]."""
    bits = x.long().view(-1, 2, BITS)
    # a Gray code is undone by running exclusive ors from the highest bit
    binary = bits[..., 1:].cumsum(-1) % 2
    size = (binary << torch.arange(BITS - 2, -1, -1, device=x.device)).sum(-1)
    return (1 - 2 * bits[..., 0]) * (size.double() + 0.5) / scale
