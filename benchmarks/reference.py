"""Baselines: a training step and a sampling step like those of the paper's reference code.

Single precision, eager, NCHW. Resampling inserts zeros and applies a one-channel convolution. x_t
comes from a table of distribution functions: a row is gathered for every element and searched by
argmax. Sampling uses SciPy's binomial samples, and the weights are averaged parameter by parameter.
The code is written from a description of the reference.

"The usual two lines" are the same with bfloat16 autocast and channels_last memory.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.diffusion.survival import step_fraction
from blackout.diffusion.time_grids import fisher_times
from blackout.networks import CountNetwork, NCSNpp, PaperInputs
from blackout.networks.layers import GroupNorm
from blackout.networks.ncsnpp import FIRDownsample, FIRFilter, FIRUpsample


class Resample(nn.Module):
    """Insert zeros, pad, filter, and subsample."""

    kernel: Tensor

    def __init__(
        self, up: int, down: int, pad: tuple[int, int], gain: float, kernel: Tensor
    ) -> None:
        super().__init__()
        self.up = up
        self.down = down
        self.pad = pad
        self.register_buffer("kernel", gain * kernel[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.reshape(-1, 1, height, 1, width, 1)
        x = F.pad(x, (0, self.up - 1, 0, 0, 0, self.up - 1)).view(
            -1, 1, height * self.up, width * self.up
        )
        x = F.conv2d(F.pad(x, (*self.pad, *self.pad)), self.kernel)[
            :, :, :: self.down, :: self.down
        ]
        return x.reshape(batch, channels, *x.shape[2:])


class PlainNorm(nn.GroupNorm):
    """PyTorch's group norm, with the following operations in separate passes."""

    def activate(self, x: Tensor, dropout: nn.Module | None = None) -> Tensor:
        h = F.silu(self(x))
        return h if dropout is None else dropout(h)


def reference_network(network: CountNetwork, channels_last: bool = False) -> CountNetwork:
    """Return a copy of a network, NCHW by default, with the reference's norms and resampling."""
    network = copy.deepcopy(network)
    network.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    kinds: dict[type[nn.Module], tuple[int, int, tuple[int, int], float]] = {
        FIRUpsample: (2, 1, (2, 1), 4.0),
        FIRDownsample: (1, 2, (1, 1), 1.0),
        FIRFilter: (1, 1, (2, 2), 1.0),
    }
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GroupNorm):
                plain = PlainNorm(child.num_groups, child.num_channels, child.eps).to(child.weight)
                plain.load_state_dict(child.state_dict())
                setattr(parent, name, plain)
            if isinstance(child, FIRFilter):
                setattr(parent, name, Resample(*kinds[type(child)], child.kernel[0, 0]))
    return network


def distribution_table(num_steps: int, max_count: int) -> Tensor:
    """Return P(Binomial(n, q_k) <= m), float32 [T, n, m]: 250 MiB for the paper's T and counts."""
    q = torch.exp(-fisher_times(num_steps)[1:])
    n = torch.arange(max_count + 1, dtype=torch.float64)[:, None]
    m = n.T
    ways = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma((n - m).clamp(min=0) + 1)
    table = torch.empty(num_steps, max_count + 1, max_count + 1)
    for k in range(num_steps):
        log_mass = ways + m * torch.log(q[k]) + (n - m) * torch.log(-torch.expm1(torch.log(q[k])))
        table[k] = log_mass.masked_fill(m > n, -torch.inf).exp().cumsum(1).float()
    return table


class ReferenceTraining:
    """Training steps on given images."""

    def __init__(
        self,
        network: CountNetwork,
        x0: Tensor,
        num_steps: int,
        max_count: int = 255,
        two_lines: bool = False,
    ) -> None:
        self.network, self.x0, self.num_steps = (
            reference_network(network, two_lines).train(),
            x0.long(),
            num_steps,
        )
        self.two_lines = two_lines
        self.table = distribution_table(num_steps, max_count).to(x0.device)
        times = fisher_times(num_steps).to(x0.device)
        self.t, self.weight = times[1:], (times.diff() * torch.exp(-times[1:])).float() * num_steps
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-4, foreach=False)
        self.average = [p.detach().clone() for p in self.network.parameters()]

    def draw(self, k: Tensor) -> Tensor:
        """x_t at the times of index k [B]."""
        rows = self.table[k[:, None], self.x0.flatten(1)]
        uniform = torch.rand(*rows.shape[:-1], 1, device=rows.device)
        return (rows >= uniform).to(torch.uint8).argmax(-1).view(self.x0.shape)

    def step(self) -> Tensor:
        k = torch.randint(0, self.num_steps, (len(self.x0),), device=self.x0.device)
        xt = self.draw(k)
        with torch.autocast(xt.device.type, torch.bfloat16, enabled=self.two_lines):
            y = F.softplus(self.network(xt, self.t[k])[:, 0])
        target = (self.x0 - xt).float()
        loss = (
            self.weight[k].view(-1, 1, 1, 1) * (y - target * torch.log(y.clamp(min=1e-30)))
        ).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for average, weight in zip(self.average, self.network.parameters(), strict=True):
                average.sub_(1e-4 * (average - weight))
        return loss.detach()


class ReferenceSampling:
    """Reverse steps, one at a time, from k = T down."""

    def __init__(
        self,
        network: CountNetwork,
        xt: Tensor,
        num_steps: int,
        max_count: int = 255,
        two_lines: bool = False,
    ) -> None:
        self.network, self.xt, self.max_count = (
            reference_network(network, two_lines).eval(),
            xt.long(),
            max_count,
        )
        self.times = fisher_times(num_steps)
        self.two_lines = two_lines

    @torch.no_grad()
    def step(self, k: int) -> Tensor:
        from scipy import stats

        with torch.autocast(self.xt.device.type, torch.bfloat16, enabled=self.two_lines):
            y = F.softplus(self.network(self.xt, self.times[k].to(self.xt.device))[:, 0])
        missing = torch.minimum(torch.round(y).long(), self.max_count - self.xt)
        r = float(step_fraction(self.times[k - 1], self.times[k]))
        births = torch.from_numpy(stats.binom.rvs(missing.cpu().numpy(), r)).to(self.xt.device)
        return self.xt + births


def paper_network(quick: bool, channels_last: bool) -> CountNetwork:
    """Return the paper's CIFAR-10 network with 62.7 million parameters, or a small one."""
    torch.manual_seed(0)
    body = (
        NCSNpp((3, 32, 32), channels=8, multipliers=(1, 1), blocks_per_level=1)
        if quick
        else NCSNpp((3, 32, 32))
    )
    return CountNetwork(body, PaperInputs(255), channels_last)
