"""Energies that are neural networks on binary sites."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import UserError
from blackout.flows.targets.base import Target, read_arrays


@component("target")
class EnergyNetwork(Target):
    """log rho(x) = -E(x), E a multilayer perceptron of the bits with SiLU activations.

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
        weight = self._first.weight
        return self._after(F.linear(x.to(weight.dtype), weight, self._first.bias))

    def log_density(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return -self.energy(x)

    def log_ratios(self, x: Tensor) -> Tensor:
        return self.ratios_at(x, torch.arange(self.sites, device=x.device))

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        with torch.no_grad():
            first = F.linear(x.to(self._first.weight.dtype), self._first.weight, self._first.bias)
            step = 1 - 2 * x[:, where].to(first.dtype)
            moved = first[:, None] + step[..., None] * self._first.weight.T[where]
            flip = self._after(first)[:, None] - self._after(moved)
            return flip[..., None] * (1 - F.one_hot(x[:, where].long(), 2))

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, but with one evaluation a site of two levels: the energy of the state itself is kept."""
        if self.levels != 2:
            return super().swept(x, uniforms, t)
        with torch.no_grad():
            x = x.clone()
            first = F.linear(x.to(self._first.weight.dtype), self._first.weight, self._first.bias)
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

    def taylor_ratios(self, x: Tensor) -> Tensor:
        """First-order log-ratios from one gradient, which are biased (Fig. 9 of the paper)."""
        with torch.enable_grad():
            inputs = x.to(self._first.weight.dtype).requires_grad_()
            (slope,) = torch.autograd.grad(-self.energy(inputs).sum(), inputs)
        flip = slope * (1 - 2 * inputs.detach())
        return flip[..., None] * (1 - F.one_hot(x.long(), 2))

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """Its sizes: the weights travel as tensors."""
        return {"_target_": "blackout.flows.EnergyNetwork", "sites": self.sites, "widths": self.widths}

    @property
    def _first(self) -> nn.Linear:
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        return layer

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
    advice = "python -m blackout.flows.energies.negative makes one"
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path).items() if array.dtype.kind == "f"}
    layers: list[tuple[Tensor, Tensor]] = []
    while {f"weight_{len(layers)}", f"bias_{len(layers)}"} <= arrays.keys():
        layers.append((arrays[f"weight_{len(layers)}"], arrays[f"bias_{len(layers)}"]))
    if not layers:
        raise UserError(f"target.path: {path} needs arrays weight_0, bias_0, weight_1, ... of numbers; {advice}")
    if not all(bool(torch.isfinite(part).all()) for layer in layers for part in layer):
        raise UserError(f"target.path: {path} holds weights that are not finite")
    return _assembled(path, layers)


def save_energy_network(network: EnergyNetwork, path: Path) -> None:
    """Write the .npz that `read_energy_network` reads."""
    arrays: dict[str, Any] = {}
    for k, layer in enumerate(network.layers):
        assert isinstance(layer, nn.Linear)
        arrays[f"weight_{k}"], arrays[f"bias_{k}"] = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _assembled(path: str | Path, layers: list[tuple[Tensor, Tensor]]) -> EnergyNetwork:
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
