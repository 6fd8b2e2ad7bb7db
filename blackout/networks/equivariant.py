"""Locally equivariant networks: one evaluation gives the rates out of a state and into it.

A network G is locally equivariant if G(tau, i | x) = -G(x_i, i | Swap(x, i, tau)), where Swap sets
site i to tau. This holds by construction for G(tau, i | x) = (omega_tau - omega_{x_i}) . H_i(x)
with hollow features H: those of site i do not depend on x_i. The networks differ in how they make
H hollow:

    LEMLP          linear maps with zero diagonals
    LEConvolution  convolutions of the input without the middle of the window, layer after layer
    LETransformer  two causal streams, one from either end (`equivariant_transformer.py`)
    LESite         a hollow linear layer, then a deep network at every site
                   (`equivariant_sitewise.py`)

LETransformer and LESite also serve graphs of different sizes (`GraphBatch`).

References: Ou et al. 2025, Prop. 2, section 3.3, appendix B.2; Holderrieth et al. 2025. That no
site sees itself, and sees every other one, is checked for all networks in
tests/networks/test_equivariant.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure

# --- Inputs


class UnitTimeEmbedding(nn.Module):
    """Embedding of times in [0, 1]: sines, cosines and a two-layer MLP, [B] -> [B, width].

    Args:
        width: number of features.
        frequencies: number of sines, with periods from 4 down to 4 / 2^(frequencies - 1).

    References: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, width: int, frequencies: int = 6) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.layers = nn.Sequential(
            nn.Linear(2 * frequencies + 1, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, t: Tensor) -> Tensor:
        """Embed times [B]; returns [B, width]."""
        octaves = 2.0 ** torch.arange(self.frequencies, device=t.device, dtype=t.dtype)
        angle = t[:, None] * octaves * (math.pi / 2)
        return self.layers(torch.cat([t[:, None], angle.sin(), angle.cos()], 1))


class StateEncoding(nn.Module):
    """Encoding of states: ±1 for two states, else one-hot; integers [B, d] -> [B, d, channels].

    Args:
        levels: number S of states of a site.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels
        self.channels = 1 if levels == 2 else levels

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Encode states [B, d]; returns [B, d, channels]."""
        if self.levels == 2:
            return (2 * x.to(dtype) - 1)[..., None]
        return F.one_hot(x.long(), self.levels).to(dtype)


# --- Hollow bodies and the readout


class HollowBody(nn.Module):
    """Base class of bodies whose features of site i do not depend on x_i.

    Args:
        width: number of features of a site.
        layers: number of further layers.
        heads: of attention.

    Raises:
        ValueError: `width` is below 1 or no multiple of `heads`, or `layers` is negative.

    References: Ou et al. 2025, Definition 3.
    """

    def __init__(self, width: int, layers: int = 0, heads: int = 1) -> None:
        super().__init__()
        ensure(width >= 1, f"channels must be at least 1, not {width}")
        ensure(layers >= 0, f"layers must be at least 0, not {layers}")
        message = f"channels must be a multiple of heads, not channels={width} and heads={heads}"
        ensure(width % heads == 0, message)
        self.width = width

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Return features [B, d, width].

        Args:
            x: states, integers [B, d].
            t: times in [0, 1], [B].
            conditional: log p(tau | x without site i) up to a constant, [B, d, S]. It is hollow.
        """
        raise NotImplementedError


# Scale of the readout at first. With rates of order 1, importance weights would degenerate and
# training would stall.
READOUT_SCALE = 0.1


class LocallyEquivariant(nn.Module):
    """Locally equivariant network: a hollow body and its readout, optionally a heat-bath term.

    The heat-bath term is a(t, H_i) Delta(tau, i) max(pi_t(tau), pi_t(x_i)). Delta are the target's
    log-ratios, pi_t is the conditional distribution of site i at time t, and a is a learned gate
    that starts at 1/2. The term is exact for every product target.

    Args:
        body: the hollow features.
        levels: number S of states of a site.
        heat_bath: whether to add the heat-bath term.
        partition: whether to learn a function of time whose derivative is d log Z_t / dt, for the
            objective of LEAPS.

    References: Ou et al. 2025, Prop. 2; Holderrieth et al. 2025. The heat-bath term is this
    project's, checked in tests/verification/flow_claims.py.
    """

    def __init__(
        self, body: HollowBody, levels: int, heat_bath: bool = False, partition: bool = False
    ) -> None:
        super().__init__()
        self.body = body
        self.levels = levels
        omega = READOUT_SCALE * torch.randn(levels, body.width) / math.sqrt(body.width)
        self.omega = nn.Parameter(omega)
        self.gate = nn.Linear(body.width, 1) if heat_bath else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
        self.partition = _scalar_mlp() if partition else None

    def forward(self, x: Tensor, t: Tensor, log_ratios: Tensor, context: Any = None) -> Tensor:
        """Return G(tau, i | x), which is 0 at tau = x_i and at padding sites.

        Args:
            x: states, integers [B, d].
            t: times in [0, 1], [B].
            log_ratios: the target's log p(Swap(x, i, tau)) - log p(x) at t = 1, [B, d, S].
            context: for bodies that serve many targets: the target's parameters, [1 or B, P], or
                the graphs whose nodes are the sites, `GraphBatch`.

        Returns:
            [B, d, S].
        """
        # 1. Hollow features.
        log_ratios = log_ratios.to(self.omega.dtype)
        conditional = log_ratios - log_ratios.mean(-1, keepdim=True)
        extra = () if context is None else (context,)
        hollow = self.body(x, t, conditional, *extra)
        mask = getattr(context, "mask", None)
        if mask is not None:
            hollow = hollow * mask[..., None]

        # 2. Readout, (omega_tau - omega_{x_i}) . H_i.
        state = x.long()[..., None]
        potential = hollow @ self.omega.T
        scores = potential - potential.gather(-1, state)
        if self.gate is None:
            return scores

        # 3. Heat-bath term.
        probabilities = torch.softmax(t[:, None, None] * log_ratios, -1)
        larger = torch.maximum(probabilities, probabilities.gather(-1, state))
        return scores + torch.sigmoid(self.gate(hollow)) * log_ratios * larger

    def log_partition_slope(self, t: Tensor) -> Tensor:
        """Return the learned d log Z_t / dt at times [B]; [B], for networks with `partition`."""
        assert self.partition is not None
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.partition(t[:, None]).sum(), t, create_graph=True)
        return slope


def _scalar_mlp(width: int = 200) -> nn.Sequential:
    """Make a smooth function of one number, [B, 1] -> [B, 1]."""
    hidden: list[nn.Module] = []
    for _ in range(2):
        hidden += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(nn.Linear(1, width), nn.SiLU(), *hidden, nn.Linear(width, 1))


# --- leMLP


class HollowLinear(nn.Module):
    """Linear map of the features of all other sites, [B, d, F] -> [B, d, C].

    Args:
        sites: number d of sites.
        features: F.
        channels: C.
        lattice: [H, W] to share weights over translations of the torus; None for free weights.

    Raises:
        ValueError: the lattice has another number of sites.

    References: Ou et al. 2025, appendix B.2. Shared weights are this project's, checked in
    tests/networks/test_equivariant.py.
    """

    weight: nn.Parameter
    offset: Tensor

    def __init__(
        self, sites: int, features: int, channels: int, lattice: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.sites = sites
        self.features = features
        self.channels = channels
        self.shares_weights = lattice is not None
        scale = 1 / math.sqrt(features * max(1, sites - 1))
        num_pairs = sites if lattice is not None else sites * sites
        self.weight = nn.Parameter(scale * torch.randn(num_pairs, features * channels))
        offset = torch.zeros(0, dtype=torch.int64)
        if lattice is not None:
            offset = translation_numbers(sites, lattice)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return sum_{j != i} W_ij f_j, [B, d, C] of f [B, d, F]."""
        weight = self.weight[self.offset.flatten()] if self.shares_weights else self.weight
        weight = weight.view(self.sites, self.sites, self.features, self.channels)
        off_diagonal = 1 - torch.eye(self.sites, dtype=weight.dtype, device=weight.device)
        hollow = weight * off_diagonal[..., None, None]
        matrix = hollow.permute(0, 2, 1, 3).reshape(self.sites * self.features, -1)
        return (features.flatten(1) @ matrix).view(-1, self.sites, self.channels)


def translation_numbers(sites: int, lattice: Sequence[int]) -> Tensor:
    """Return the number of the translation from site j to site i of a torus, int64 [j, i].

    Raises:
        ValueError: the lattice [H, W] has another number of sites.
    """
    height, width = lattice
    message = f"a lattice of {height} x {width} has {height * width} sites, not {sites}"
    ensure(height * width == sites, message)
    row = torch.arange(sites) // width
    column = torch.arange(sites) % width
    down = (row[None] - row[:, None]) % height
    right = (column[None] - column[:, None]) % width
    return down * width + right


class _MLPBody(HollowBody):
    """Hollow features of `LEMLP`, [B, d, channels].

    References: Ou et al. 2025, appendix B.2.
    """

    def __init__(self, sites: int, levels: int, channels: int) -> None:
        super().__init__(channels)
        self.states = StateEncoding(levels)
        self.first = HollowLinear(sites, self.states.channels, channels)
        self.bias = nn.Parameter(0.1 * torch.randn(sites, channels))
        self.time = UnitTimeEmbedding(channels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Return the features of states [B, d], see `HollowBody.forward`."""
        shift = self.time(t.to(conditional.dtype))[:, None]
        hidden = self.first(self.states(x, conditional.dtype))
        return F.silu(hidden + self.bias + shift)


@component("network")
class LEMLP(LocallyEquivariant):
    """leMLP: H = sum_k act(W^k e + b^k(t)) with zero diagonals of W^k.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        channels: number of terms k.
        heat_bath: whether to add the heat-bath term.
        partition: whether to learn d log Z_t / dt.

    Example:
        >>> network = LEMLP(sites=4, levels=2, channels=8)
        >>> x = torch.tensor([[0, 1, 1, 0]])
        >>> scores = network(x, torch.tensor([0.5]), torch.zeros(1, 4, 2))
        >>> scores.gather(-1, x[..., None]).flatten().tolist()  # 0 at the current states
        [0.0, 0.0, 0.0, 0.0]

    References: Ou et al. 2025, appendix B.2.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 64,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        super().__init__(_MLPBody(sites, levels, channels), levels, heat_bath, partition)


# --- leConv


class _ConvolutionBody(HollowBody):
    """Hollow features of `LEConvolution`, [B, d, channels].

    Layer after layer, out_i[c] is the sum over o != 0 of
    {SiLU(A[c, o] SiLU(prev_i) + b_1) + b_2 + mlp_o(t)} x_{i + o}[c]. Every layer multiplies the raw
    input at the other sites, so no layer sees x_i.

    References: Holderrieth et al. 2025.
    """

    def __init__(
        self, lattice: Sequence[int], levels: int, channels: int, kernels: Sequence[int]
    ) -> None:
        super().__init__(channels)
        self.lattice = list(lattice)
        self.kernels = list(kernels)
        self.states = StateEncoding(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.time = UnitTimeEmbedding(channels)
        offsets = [size * size - 1 for size in kernels]  # number per window
        self.first = nn.Parameter(torch.randn(channels, offsets[0]) / offsets[0] ** 0.5)
        self.slopes = nn.ParameterList(
            torch.randn(channels, number) / number**0.5 for number in offsets[1:]
        )
        self.inner = nn.ParameterList(torch.zeros(channels, number) for number in offsets[1:])
        self.outer = nn.ParameterList(
            torch.randn(channels, number) / number**0.5 for number in offsets[1:]
        )
        self.drift = nn.ModuleList(nn.Linear(channels, number) for number in offsets)
        self.mix = nn.ModuleList(nn.Linear(channels, channels) for _ in kernels)

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        """Return the features of states [B, d], see `HollowBody.forward`."""
        time = F.silu(self.time(t.to(conditional.dtype)))
        embedded = self.embed(self.states(x, conditional.dtype))

        # 1. The first layer's weights depend on time only.
        neighbours = self._neighbours(embedded, self.kernels[0])
        weight = self.first + self.drift[0](time)[:, None, None]
        hidden = self.mix[0](F.silu((weight * neighbours).sum(-1)))

        # 2. Those of the others also depend on the features of the layer before.
        for k, size in enumerate(self.kernels[1:]):
            gate = F.silu(self.slopes[k] * F.silu(hidden)[..., None] + self.inner[k])
            weight = gate + self.outer[k] + self.drift[k + 1](time)[:, None, None]
            neighbours = self._neighbours(embedded, size)
            hidden = hidden + self.mix[k + 1]((weight * neighbours).sum(-1))
        return hidden

    def _neighbours(self, embedded: Tensor, size: int) -> Tensor:
        """Return the windows around all sites of the torus without their middle.

        Args:
            embedded: [B, d, C].
            size: side of the window.

        Returns:
            [B, d, C, size^2 - 1].
        """
        image = embedded.unflatten(1, self.lattice)
        steps = range(-(size // 2), size // 2 + 1)
        offsets = [(i, j) for i in steps for j in steps if (i, j) != (0, 0)]
        shifted = [image.roll((-i, -j), (1, 2)) for i, j in offsets]
        return torch.stack(shifted, -1).flatten(1, 2)


@component("network")
class LEConvolution(LocallyEquivariant):
    """leConv, for lattices: convolutions without the middle, whose weights depend on the state.

    Args:
        levels: number of states of a site.
        lattice: [H, W] of the torus.
        channels: width.
        kernels: sides of the windows, odd and no larger than the lattice: a larger window would
            wrap around and see the site itself.
        heat_bath: whether to add the heat-bath term.
        partition: whether to learn d log Z_t / dt.

    Raises:
        ValueError: there is no lattice or no window, or a window is even or larger than the
            lattice.

    References: Holderrieth et al. 2025.
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
            raise ValueError(
                "leConv needs a target on a lattice, such as ising or potts: choose another network"
            )
        for size in kernels:
            if size % 2 == 0 or not 3 <= size <= min(lattice):
                raise ValueError(
                    f"kernels must be odd, from 3 to the side of the lattice ({min(lattice)}), "
                    f"not {size}: a wider window wraps around and sees the site itself"
                )
        ensure(kernels, "kernels must have at least one window, not []")
        body = _ConvolutionBody(lattice, levels, channels, kernels)
        super().__init__(body, levels, heat_bath, partition)
