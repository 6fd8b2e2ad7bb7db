"""Targets whose energy is a neural network, p proportional to exp(-E), learned or read from a file.

Also the Gray code that turns points of the plane into bits and back.

References: Ou et al. 2025, section 4.2.
"""

from __future__ import annotations

import math
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
from blackout.flows.targets.base import Target, read_arrays
from blackout.flows.targets.enumeration import all_states
from blackout.training.loading import load_model

BITS_PER_COORDINATE = 16  # a sign bit and 15 bits of Gray code (Ou et al. 2025, section 4.1)
# Initial weights of the first layer over PyTorch's. With spins of ±1 in place of bits it would be
# 2; larger weights let the network represent products of many bits from the start.
FIRST_LAYER_SCALE = 6.0


class LearnedEnergy(Target):
    """A target proportional to exp(-E) whose energy E has trainable weights."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """Return E [...] of states [..., d], with gradients with respect to its weights."""

    def log_density(self, x: Tensor) -> Tensor:
        """Return -E [...] of states [..., d], without gradients."""
        with torch.no_grad():
            return -self.energy(x)

    def log_partition(self) -> Tensor:
        """Return log Z, a scalar with gradients: the sum over all S^d states."""
        states = all_states(self.levels, self.sites).to(self.device)
        return torch.logsumexp(-self.energy(states), 0)

    def penalty(self) -> Tensor:
        """Return the regularisation that is added to the negative log-likelihood, a scalar."""
        return torch.zeros((), device=self.device)


@component("energy", "target")
class EnergyNetwork(LearnedEnergy):
    """log rho(x) = -E(x), E a multilayer perceptron with SiLU activations.

    It reads bits as they are. Of more than two levels it reads each level k as a number and as
    cos(pi j (k + 1/2) / S), j = 1, 2, ..., so that neighbouring counts are similar inputs.
    Unordered categories need `num_cosines` 0, which reads one-hot states.

    Log-ratios are exact: the first layer of a neighbour differs from that of x by a column of
    weights, and the other layers are evaluated for every neighbour.

    References: Ou et al. 2025, appendices E.1 and E.2; more than two levels: this project, checked
    in tests/flows/energies/test_training.py.

    Args:
        sites: number of sites d.
        widths: of the hidden layers.
        levels: number S of values of a site.
        num_cosines: largest number of cosines of a level; 0 for one-hot states.
        plane: whether the bits encode a point of the plane, see `encode`.

    Raises:
        ValueError: `num_cosines` below 0, or `plane` with a number of bits that is not 32.
    """

    def __init__(
        self,
        sites: int,
        widths: Sequence[int] = (256, 256, 256),
        levels: int = 2,
        num_cosines: int = 8,
        plane: bool = False,
    ) -> None:
        super().__init__(levels, [sites])
        plane_bits = 2 * BITS_PER_COORDINATE
        ensure(num_cosines >= 0, f"num_cosines must be at least 0, not {num_cosines}")
        ensure(
            not plane or sites == plane_bits,
            f"plane=true needs {plane_bits} bits per state, not {sites}",
        )
        self.widths = list(widths)
        self.num_cosines = num_cosines
        self.plane = plane
        # input features of each level: [S, k], of bits [2, 1]
        self.basis = nn.Buffer(_level_features(levels, num_cosines), persistent=False)

        sizes = [sites * self.basis.shape[1], *widths, 1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        if levels == 2 or not num_cosines:
            with torch.no_grad():  # as if the network read spins
                self._input_layer.weight.mul_(FIRST_LAYER_SCALE)
                self._input_layer.bias.sub_(self._input_layer.weight.sum(1) / levels)

    def energy(self, x: Tensor) -> Tensor:
        """Return E [...] of states [..., d], with gradients with respect to its weights."""
        return self._apply_other_layers(self._apply_input_layer(x))

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return exact log-ratios of some sites, int64 [n], of states [B, d]: [B, n, S].

        References: this project; checked in tests/flows/test_targets.py.
        """
        with torch.no_grad():
            hidden = self._apply_input_layer(x)
            current = x[:, sites].long()
            shifts = torch.arange(1, self.levels, device=x.device)
            other_levels = (current[..., None] + shifts) % self.levels
            weight = self._input_layer.weight.T.view(self.sites, self.basis.shape[1], -1)
            columns = self.basis @ weight  # [d, S, h], contribution of a level to the first layer
            neighbours = hidden[:, None, None] + columns[sites[:, None], other_levels]
            neighbours = neighbours - columns[sites, current][:, :, None]
            energies = self._apply_other_layers(hidden)
            ratios = energies[:, None, None] - self._apply_other_layers(neighbours)
            log_ratios = ratios.new_zeros(*current.shape, self.levels)
            return log_ratios.scatter_(2, other_levels, ratios)

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Draw every site in turn, [B, d]; of two levels with one evaluation per site.

        The first layer and the energy of the current state are updated instead of recomputed.

        References: Geman and Geman 1984; the update is this project's, checked in
        tests/flows/energies/test_gradients.py.
        """
        if self.levels != 2:
            return super().gibbs_sweep(x, uniforms, t)
        with torch.no_grad():
            x = x.clone()
            hidden = self._apply_input_layer(x)
            energy = self._apply_other_layers(hidden)
            for site in range(self.sites):
                current = x[:, site] > 0
                sign = torch.where(current, -1.0, 1.0)[:, None]
                flipped_hidden = hidden + sign * self._input_layer.weight[:, site]
                flipped_energy = self._apply_other_layers(flipped_hidden)
                difference = torch.where(current, energy - flipped_energy, flipped_energy - energy)
                # difference = E(x_i = 1) - E(x_i = 0), so that this is P(x_i = 0)
                probability_of_zero = torch.sigmoid(t * difference.double())
                value = probability_of_zero <= uniforms[:, site]
                x[:, site] = value
                flip = value != current
                hidden = torch.where(flip[:, None], flipped_hidden, hidden)
                energy = torch.where(flip, flipped_energy, energy)
        return x

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return the mean state, [B]; nothing for points of the plane."""
        return {} if self.plane else {"mean_state": x.double().mean(-1)}

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its sizes; the weights are saved as tensors."""
        names = ("sites", "widths", "levels", "num_cosines", "plane")
        sizes = {name: getattr(self, name) for name in names}
        return {"_target_": "blackout.flows.EnergyNetwork", **sizes}

    @property
    def _input_layer(self) -> nn.Linear:
        return cast(nn.Linear, self.layers[0])

    def _apply_input_layer(self, x: Tensor) -> Tensor:
        """Return the first layer [..., h] of states [..., d], before its activation."""
        # bits are read as they are, so that gradients with respect to them exist
        features = x if self.levels == 2 else self.basis[x.long()].flatten(-2)
        layer = self._input_layer
        return F.linear(features.to(layer.weight.dtype), layer.weight, layer.bias)

    def _apply_other_layers(self, hidden: Tensor) -> Tensor:
        """Return E [...] of the first layer [..., h]."""
        for layer in self.layers[1:]:
            hidden = layer(F.silu(hidden))
        return hidden.squeeze(-1)


def _level_features(levels: int, num_cosines: int) -> Tensor:
    """Return the input features of each level, [S, k]: bits, one-hot, or a number and cosines."""
    if levels == 2:
        return torch.arange(2.0)[:, None]
    if num_cosines == 0:
        return torch.eye(levels)
    position = (torch.arange(levels) + 0.5) / levels
    features = [math.sqrt(12) * (position - 0.5)]  # unit variance
    for j in range(1, num_cosines + 1):
        features.append(math.sqrt(2) * (torch.pi * j * position).cos())
    return torch.stack(features[: levels + 1], 1)


@component("target", command_line="target=energy_network with target.path=... or target.ckpt=...")
def read_energy(
    path: str | Path | None = None,
    ckpt: str | None = None,
    plane: bool = False,
) -> Target:
    """Read an energy network from an .npz file, or take the target of a trained model.

    The file has arrays `weight_0` [n_1, d], `bias_0` [n_1], `weight_1`, ... up to one output.

    Args:
        path: of the file.
        ckpt: a run, checkpoint or exported model of family=energy (its averaged energy) or flow.
        plane: whether states of the network in the file encode points of the plane, for pictures.

    Raises:
        UserError: neither or both are given, an unreadable file, no such network, or a model
            without a target.
    """
    refuse(
        (path is None) == (ckpt is None),
        "give either target.path, an .npz file, or target.ckpt, a run of family=energy",
    )
    if path is None:
        target: Any = getattr(load_model(str(ckpt)), "target", None)
        refuse(
            not isinstance(target, Target),
            f"ckpt: {ckpt} has no target; give a run of family=energy or family=flow",
        )
        return target.requires_grad_(False)
    layers = _read_layers(path)
    input_size = layers[0][0].shape[-1]
    widths = [len(bias) for _, bias in layers[:-1]]
    network = EnergyNetwork(input_size, widths, plane=plane)
    for layer, (weight, bias) in zip(network.layers, layers, strict=True):
        layer.load_state_dict({"weight": weight, "bias": bias})
    return network.requires_grad_(False)


def _read_layers(path: str | Path) -> list[tuple[Tensor, Tensor]]:
    """Read and check weights and biases of a perceptron with one output; see `read_energy`."""
    advice = "python -m benchmarks.energy_discrepancy writes such a file"
    refuse(not Path(path).is_file(), f"target.path: {path} does not exist; {advice}")
    stored = read_arrays(path)
    arrays = {
        name: torch.from_numpy(array) for name, array in stored.items() if array.dtype.kind == "f"
    }
    layers = list[tuple[Tensor, Tensor]]()
    while {f"weight_{len(layers)}", f"bias_{len(layers)}"} <= arrays.keys():
        layers.append((arrays[f"weight_{len(layers)}"], arrays[f"bias_{len(layers)}"]))

    names = "weight_0, bias_0, weight_1, ..."
    refuse(not layers, f"target.path: {path} needs floating-point arrays {names}; {advice}")
    read = {f"{kind}_{number}" for number in range(len(layers)) for kind in ("weight", "bias")}
    unused = sorted(stored.keys() - read)
    refuse(
        bool(unused),
        f"target.path: {path} has arrays that belong to no complete layer: {', '.join(unused)}; "
        "add the missing weight or bias, or remove them",
    )
    if not all(bool(torch.isfinite(part).all()) for layer in layers for part in layer):
        raise UserError(f"target.path: {path} contains weights that are not finite")
    input_size = layers[0][0].shape[-1]
    for number, (weight, bias) in enumerate(layers):
        if weight.shape != (len(bias), input_size) or bias.ndim != 1:
            raise UserError(
                f"target.path: {path}: weight_{number} must be [{len(bias)}, {input_size}] and "
                f"bias_{number} [{len(bias)}], not {list(weight.shape)} and {list(bias.shape)}"
            )
        input_size = len(bias)
    refuse(
        input_size != 1,
        f"target.path: {path}: an energy must have one output, not {input_size}",
    )
    return layers


def encode(points: Tensor, scale: float) -> Tensor:
    """Encode points [n, 2] as bits, uint8 [n, 32].

    Each coordinate becomes a sign bit and 15 bits of the Gray code of |x| * scale, the highest
    bit first, as in the authors' code.

    References: Ou et al. 2025, section 4.1.
    """
    largest = 2 ** (BITS_PER_COORDINATE - 1) - 1
    magnitude = (points.abs() * scale).long().clamp(max=largest)
    gray = magnitude ^ (magnitude >> 1)
    places = torch.arange(BITS_PER_COORDINATE - 2, -1, -1)
    signs = (points < 0).long()[..., None]
    bits = torch.cat([signs, (gray[..., None] >> places) & 1], -1)
    return bits.flatten(1).to(torch.uint8)


def decode(x: Tensor, scale: float) -> Tensor:
    """Decode states [n, 32] to the centres of their cells, float64 [n, 2]: inverse of `encode`.

    References: Ou et al. 2025, section 4.1.
    """
    bits = x.long().view(-1, 2, BITS_PER_COORDINATE)
    # binary digits are the running parity of the Gray code
    binary = bits[..., 1:].cumsum(-1) % 2
    places = torch.arange(BITS_PER_COORDINATE - 2, -1, -1, device=x.device)
    magnitude = (binary << places).sum(-1)
    signs = 1 - 2 * bits[..., 0]
    return signs * (magnitude.double() + 0.5) / scale
