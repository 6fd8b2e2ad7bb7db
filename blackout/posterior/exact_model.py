"""Laws that are known exactly, in place of a trained model: `law=` of `sample.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blackout.diffusion.kernels import LevelBridge
from blackout.diffusion.processes import Uniform
from blackout.diffusion.samplers import Evaluation, Sampler
from blackout.diffusion.schedules import logit_times
from blackout.errors import UserError
from blackout.family import Draw
from blackout.posterior.findings import Findings
from blackout.posterior.markov import Chain, ChainDenoiser, ChainPrior
from blackout.random import SampleStreams
from blackout.training.components import make
from blackout.training.model import Model, refuse_unknown


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

    def __init__(self, name: str, chain: Chain, num_steps: int = 25, batch_size: int = 256) -> None:
        super().__init__(nn.Identity())
        self.name, self.chain, self.shape = name, chain, (chain.length,)
        self.process = Uniform(len(chain.first) - 1)
        grid = partial(logit_times, first=6.0, last=-6.0)
        self.sampler = Sampler(
            LevelBridge(), num_steps, grid, poisson_start=False, evaluation=Evaluation(batch_size=batch_size)
        )
        self.register_buffer("mean", torch.zeros(self.shape))
        self.config = {"law": name, "elements": chain.length, "names": len(chain.first)}

    def draw(self, request: Mapping[str, Any]) -> Draw:
        """Samples of posteriors alone.

        Raises:
            UserError: no posterior is asked for, or options of a trained model.
        """
        refuse_unknown(request, "posterior", "operator", "noise", "measurement")
        if not request.get("posterior"):
            raise UserError("an exact law is for posteriors: posterior=sgdd must be given")
        draw: Draw = make(request["posterior"], "posterior").draw(self, self.sampler, request)
        return draw

    @property
    def device(self) -> torch.device:
        """Where states are."""
        return self.mean.device

    def prior(self) -> ChainPrior:
        """With exact reverse runs."""
        return ChainPrior(
            ChainDenoiser(self.chain, self.process), self.process, self.shape, self.sampler.kernel,
            times=self.times(self.sampler), device=self.device, chain=self.chain,
        )  # fmt: skip

    def times(self, sampler: Sampler) -> Tensor:
        """The grid of a walk, float64 [T + 1]."""
        assert sampler.grid is not None
        return sampler.grid(sampler.num_steps)

    def sample_batches(
        self, indices: Tensor, seed: int = 0, sampler: Sampler | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(indices [b], samples [b, D]): sample k is a function of (seed, k)."""
        for part in indices.split(batch_size or self.sampler.evaluation.batch_size):
            yield part, self.prior().draw(len(part), SampleStreams(seed, part.to(self.device)))

    def judge(self, findings: Findings, directory: Path) -> dict[str, Any]:
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
