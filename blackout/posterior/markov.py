"""Markov chains as priors that are known exactly: reverse runs, posteriors of single elements, tilts of pairs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Process
from blackout.posterior.prior import Prior, Streams
from blackout.random import RandomSource, SampleStreams, cumulative, uniform


@dataclass(frozen=True)
class Chain:
    """Names x_1..x_D in 0..N - 1 with weight first(x_1) prod_i weight(x_i, x_{i + 1}).

    Args:
        first: non-negative, float64 [N].
        weight: non-negative, float64 [N, N]; rows need not sum to 1, so that a tilted chain is one as well.
        length: D.
    """

    first: Tensor
    weight: Tensor
    length: int

    def tilted(self, pair: Tensor, scale: float) -> Chain:
        """This law times exp(scale sum_i pair(x_i, x_{i + 1})), pair [N, N]."""
        return replace(self, weight=self.weight * torch.exp(scale * pair))

    def draw(self, node: Tensor, source: RandomSource = None) -> Tensor:
        """x in law proportional to the chain's times prod_i node[i, x_i], by backward messages and forward draws.

        Args:
            node: float64 [n, D, N].
            source: one uniform is taken for every element.

        Returns:
            int64 [n, D].
        """
        weight, node = self.weight.to(node.device), node * self._messages(node)
        u = uniform((len(node), self.length), source, node.device).unsqueeze(-1)
        x = torch.empty(node.shape[:2], dtype=torch.int64, device=node.device)
        before = self.first.to(node.device).expand(len(node), -1)
        for i in range(self.length):
            rows = cumulative(before * node[:, i])
            x[:, i] = torch.searchsorted(rows, u[:, i].contiguous(), right=True)[:, 0].clamp_(max=len(weight) - 1)
            before = weight[x[:, i]]
        return x

    def marginals(self, node: Tensor) -> Tensor:
        """P(x_i = v) under the same law, float64 [n, D, N]."""
        weight, after = self.weight.to(node.device), self._messages(node)
        found, before = torch.empty_like(after), self.first.to(node.device).expand(len(node), -1)
        for i in range(self.length):
            both = before * node[:, i] * after[:, i]
            found[:, i] = both / both.sum(1, keepdim=True)
            before = (before * node[:, i]) @ weight
            before = before / before.sum(1, keepdim=True)
        return found

    def expected(self, pair: Tensor) -> float:
        """E sum_i pair(x_i, x_{i + 1}), pair float64 [N, N]."""
        after = self._messages(torch.ones(1, self.length, len(self.first), dtype=torch.float64))[0]
        before, total = self.first, 0.0
        for i in range(self.length - 1):
            both = before[:, None] * self.weight * after[i + 1]
            total += float((both * pair).sum() / both.sum())
            before = before @ self.weight
            before = before / before.sum()
        return total

    def _messages(self, node: Tensor) -> Tensor:
        """The weight of everything after element i given x_i, each up to a factor: float64 [n, D, N]."""
        weight, after = self.weight.to(node.device), torch.ones_like(node)
        for i in range(self.length - 2, -1, -1):
            message = (node[:, i + 1] * after[:, i + 1]) @ weight.T
            after[:, i] = message / message.amax(1, keepdim=True)
        return after


@dataclass(frozen=True)
class ChainPrior(Prior):
    """A prior whose reverse runs are draws from p(x_0 | X_t = z) itself; each counts as one evaluation.

    Args:
        chain: p(x), normalised.
    """

    chain: Chain = field(kw_only=True)

    def reverse(self, z: Tensor, t: float, source: Streams = None, steps: int | None = None) -> Tensor:
        """X_0 given X_t = z, exactly, whatever `steps` is."""
        self.denoiser.evaluations += 1  # type: ignore[attr-defined]
        return self._drawn(noise_of(self.process, z, torch.tensor(t, dtype=torch.float64)), source)

    def draw(self, number: int, source: Streams = None) -> Tensor:
        """Unconditional samples, counts [number, D]."""
        return self._drawn(torch.ones(number, *self.shape, len(self.chain.first), dtype=torch.float64), source)

    def _drawn(self, node: Tensor, source: Streams) -> Tensor:
        x = self.chain.draw(node.to(self.device), source.at(0) if isinstance(source, SampleStreams) else source)
        return x.to(torch.uint8)


def noise_of(process: Process, z: Tensor, t: Tensor) -> Tensor:
    """P(X_t = z_i | x_i = v) for states z [n, D]: float64 [n, D, N]."""
    levels = torch.arange(process.max_count + 1, device=z.device)
    return process.pmf(levels, t.to(z.device)).T.contiguous()[z.long()]


@dataclass(frozen=True)
class ChainDenoiser:
    """P(x_i = v | X_t = z) of every element, exactly: what a perfect network would predict.

    Args:
        chain: p(x), normalised.
        process: forward.
    """

    chain: Chain
    process: Process

    def __call__(self, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Log-probabilities [n, N, D]."""
        found = self.chain.marginals(noise_of(self.process, xt, t))
        return CategoricalPrediction(found.clamp(min=1e-300).log().transpose(1, 2))
