"""Laws that are known exactly, in place of a trained model: `law=` of `sample.py`.

Markov chains of names: reverse runs, posteriors of single elements and tilts of pairs are sums over messages
[Rabiner 1989, section III].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blackout.diffusion.kernels import LevelBridge
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Process, Uniform
from blackout.diffusion.samplers import Evaluation, Sampler
from blackout.diffusion.schedules import logit_times
from blackout.errors import UserError
from blackout.family import Draw, Drawn, refuse_unknown
from blackout.posterior.operators import Judged
from blackout.posterior.prior import Prior, Streams, numbers_at
from blackout.random import RandomSource, SampleStreams, cumulative, uniform
from blackout.training.components import make
from blackout.training.model import Model


@dataclass(frozen=True)
class Chain:
    """Names x_1..x_D in 0..N - 1 with weight first(x_1) prod_i weight(x_i, x_{i + 1}).

    Args:
        first: non-negative, float64 [N].
        weight: non-negative, float64 [N, N]; rows need not sum to 1, so that a tilted chain is one as well.
        length: D.

    Raises:
        ValueError: a length below 2.
    """

    first: Tensor
    weight: Tensor
    length: int

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"elements must be at least 2, not {self.length}")

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
        return self.chain.draw(node.to(self.device), numbers_at(source, 0)).to(torch.uint8)


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


class ExactFamily:
    """What `sample.py` asks of an exact law: samples of posteriors alone."""

    def draw(self, model: Any, request: Mapping[str, Any]) -> Draw:
        """Samples of posteriors.

        Raises:
            UserError: no posterior is asked for, or options of a trained model.
        """
        refuse_unknown(request, "posterior", "operator", "noise", "measurement", "calibrate")
        if not request.get("posterior"):
            raise UserError("an exact law is for posteriors: posterior=sgdd must be given")
        draw: Draw = make(request["posterior"], "posterior").draw(model, model.sampler, request)
        return draw


class ExactModel(Model):
    """A Markov chain of names under the uniform process: its network is Bayes' rule.

    Reverse runs from a state are exact; methods that walk a grid of times, step by step, are given exact marginals.

    Args:
        name: for the folder of the results.
        chain: p(x), normalised.
        num_steps: of those walks.
        batch_size: chains at once.
    """

    mean: Tensor
    family: Any = ExactFamily()

    def __init__(self, name: str, chain: Chain, num_steps: int = 25, batch_size: int = 256) -> None:
        super().__init__(nn.Identity())
        self.name, self.chain, self.shape = name, chain, (chain.length,)
        self.process = Uniform(len(chain.first) - 1)
        batches = Evaluation(batch_size=batch_size)
        self.sampler = Sampler(LevelBridge(), num_steps, poisson_start=False, evaluation=batches)
        self.register_buffer("mean", torch.zeros(self.shape))
        self.config = {"law": name, "elements": chain.length, "names": len(chain.first)}

    @property
    def device(self) -> torch.device:
        """Where states are."""
        return self.mean.device

    def prior(self) -> ChainPrior:
        """With exact reverse runs."""
        denoiser, times = ChainDenoiser(self.chain, self.process), logit_times(self.sampler.num_steps, 6.0, -6.0)
        return ChainPrior(denoiser, self.process, self.shape, times=times, device=self.device, chain=self.chain)

    def batches(
        self, indices: Tensor, seed: int = 0, batch_size: int | None = None, sampler: Sampler | None = None
    ) -> Drawn:
        """(indices [b], `samples` [b, D]): sample k is a function of (seed, k)."""
        for part in indices.split(batch_size or self.sampler.evaluation.batch_size):
            yield part, {"samples": self.prior().draw(len(part), SampleStreams(seed, part.to(self.device)))}

    def judge(self, judged: Judged, directory: Path) -> dict[str, Any]:
        """What is known exactly of what was drawn: `values` and more, for metrics.json; may write pictures."""
        return {}

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Refused."""
        raise UserError("an exact law is not trained")

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Refused."""
        raise UserError("an exact law is not trained")

    def example(self) -> tuple[Tensor, Tensor]:
        """One state and a time."""
        return torch.zeros((1, *self.shape), dtype=torch.uint8), torch.ones(1, dtype=torch.float64)
