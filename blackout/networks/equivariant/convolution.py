"""leConv: convolutions with a hole whose weights depend on the state (Holderrieth et al., LEAPS, 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from blackout.networks.equivariant.base import Features, Hollow, LocallyEquivariant, TimeEmbedding


class _ConvolutionBody(Hollow):
    """out_i[c] = sum_{o != 0} {SiLU(A[c, o] SiLU(prev_i) + b_1) + b_2 + mlp_o(t)} x_{i + o}[c], layer after layer.

    Every layer multiplies the raw input at the other sites, so that no layer sees x_i.
    """

    def __init__(self, lattice: Sequence[int], levels: int, channels: int, kernels: Sequence[int]) -> None:
        super().__init__(channels)
        self.lattice, self.kernels = list(lattice), list(kernels)
        self.states = Features(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.time = TimeEmbedding(channels)
        holes = [size * size - 1 for size in kernels]
        self.first = nn.Parameter(torch.randn(channels, holes[0]) / holes[0] ** 0.5)
        self.slopes = nn.ParameterList(torch.randn(channels, hole) / hole**0.5 for hole in holes[1:])
        self.inner = nn.ParameterList(torch.zeros(channels, hole) for hole in holes[1:])
        self.outer = nn.ParameterList(torch.randn(channels, hole) / hole**0.5 for hole in holes[1:])
        self.drift = nn.ModuleList(nn.Linear(channels, hole) for hole in holes)
        self.mix = nn.ModuleList(nn.Linear(channels, channels) for _ in kernels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        time = nn.functional.silu(self.time(t.to(conditional.dtype)))
        raw = self.embed(self.states(x, conditional.dtype))
        others = self._around(raw, self.kernels[0])
        hidden = ((self.first + self.drift[0](time)[:, None, None]) * others).sum(-1)
        hidden = self.mix[0](nn.functional.silu(hidden))
        for number, size in enumerate(self.kernels[1:]):
            gate = nn.functional.silu(self.slopes[number] * nn.functional.silu(hidden)[..., None] + self.inner[number])
            weight = gate + self.outer[number] + self.drift[number + 1](time)[:, None, None]
            hidden = hidden + self.mix[number + 1]((weight * self._around(raw, size)).sum(-1))
        return hidden

    def _around(self, raw: Tensor, size: int) -> Tensor:
        """The states in the window around every site without its middle: [B, d, C] -> [B, d, C, size^2 - 1]."""
        image = raw.unflatten(1, self.lattice)
        reach = range(-(size // 2), size // 2 + 1)
        window = [image.roll((-i, -j), (1, 2)) for i in reach for j in reach if (i, j) != (0, 0)]
        return torch.stack(window, -1).flatten(1, 2)


class LEConvolution(LocallyEquivariant):
    """leConv, for lattices.

    Args:
        lattice: [H, W] of the torus.
        levels: number of states of a site.
        channels: width.
        kernels: sides of the windows, odd; larger than the lattice they would wrap around and see the site itself.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.

    Raises:
        ValueError: an even window, or one larger than the lattice, or none.
    """

    def __init__(
        self,
        levels: int,
        lattice: Sequence[int] | None = None,
        channels: int = 20,
        kernels: Sequence[int] = (3, 3, 3),
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        if lattice is None:
            raise ValueError("leConv needs a target on a lattice, such as ising or potts: choose another network")
        for size in kernels:
            if size % 2 == 0 or not 3 <= size <= min(lattice):
                raise ValueError(
                    f"kernels must be odd, from 3 to the side of the lattice ({min(lattice)}), not {size}: "
                    "a wider one wraps around and sees the site itself"
                )
        if not kernels:
            raise ValueError("kernels must name at least one window")
        super().__init__(_ConvolutionBody(lattice, levels, channels, kernels), levels, heat_bath, partition)
