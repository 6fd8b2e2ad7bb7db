"""Energies that are neural networks on binary sites, with weights from a file or from a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError
from blackout.flows.targets.base import Target, of_flips, read_arrays
from blackout.training.export import load_model


@component("target")
class EnergyNetwork(Target):
    """log rho(x) = -E(x), E a multilayer perceptron of the bits with SiLU activations [Ou 2025, appendix E.1].

    The log-ratios are exact: the first layer of a neighbour differs from that of x by a column of its weights, the
    layers after it are evaluated for every neighbour.

    Args:
        sites: number of bits.
        widths: of the hidden layers.
    """

    def __init__(self, sites: int, widths: Sequence[int] = (256, 256, 256)) -> None:
        super().__init__(2, [sites])
        sizes = [sites, *widths, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.widths = list(widths)

    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], with gradients for its weights."""
        return self._after(self._hidden(x))

    def log_density(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return -self.energy(x)

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """Exact, [B, n, 2]."""
        with torch.no_grad():
            first = self._hidden(x)
            step = 1 - 2 * x[:, where].to(first.dtype)
            moved = first[:, None] + step[..., None] * self._first.weight.T[where]
            return of_flips(self._after(first)[:, None] - self._after(moved), x[:, where])

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

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its sizes: the weights travel as tensors."""
        return {"_target_": "blackout.flows.EnergyNetwork", "sites": self.sites, "widths": self.widths}

    @property
    def _first(self) -> nn.Linear:
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def _hidden(self, x: Tensor) -> Tensor:
        """Of the first layer, before its activation."""
        return F.linear(x.to(self._first.weight.dtype), self._first.weight, self._first.bias)

    def _after(self, hidden: Tensor) -> Tensor:
        for layer in self.layers[1:]:
            hidden = layer(F.silu(hidden))
        return hidden.squeeze(-1)


@component("target", ask="target=energy_network target.path=...")
def read_energy_network(path: str | Path) -> EnergyNetwork:
    """The energy network in an .npz with arrays `weight_0` [n_1, d], `bias_0` [n_1], `weight_1`, ... to one output.

    Raises:
        UserError: unreadable, or arrays that are no such network.
    """
    advice = "python -m benchmarks.energy_discrepancy makes one"
    if not Path(path).is_file():
        raise UserError(f"target.path: {path} does not exist; {advice}")
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path).items() if array.dtype.kind == "f"}
    layers: list[tuple[Tensor, Tensor]] = []
    while {f"weight_{len(layers)}", f"bias_{len(layers)}"} <= arrays.keys():
        layers.append((arrays[f"weight_{len(layers)}"], arrays[f"bias_{len(layers)}"]))
    if not layers:
        raise UserError(f"target.path: {path} needs arrays weight_0, bias_0, weight_1, ... of numbers; {advice}")
    if not all(bool(torch.isfinite(part).all()) for layer in layers for part in layer):
        raise UserError(f"target.path: {path} holds weights that are not finite")
    sizes = [layers[0][0].shape[-1], *(len(bias) for _, bias in layers)]
    for (weight, bias), before, after in zip(layers, sizes[:-1], sizes[1:], strict=True):
        if weight.shape != (after, before) or bias.shape != (after,):
            raise UserError(f"target.path: {path}: weights {list(weight.shape)} do not follow layers of {before}")
    if sizes[-1] != 1:
        raise UserError(f"target.path: {path}: an energy has one output, not {sizes[-1]}")
    network = EnergyNetwork(sizes[0], sizes[1:-1])
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
    if (path is None) == (ckpt is None):
        raise UserError("target: give either target.path, an .npz of weights, or target.ckpt, a run of family=energy")
    if path is not None:
        return read_energy_network(path)
    target = getattr(load_model(str(ckpt)), "target", None)
    if not isinstance(target, Target):
        raise UserError(f"ckpt: {ckpt} has no target; give a run of family=energy or family=flow")
    return target.requires_grad_(False)
