"""A flow that serves many graphs: one network, a law and a normaliser for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import Drawn, Watch
from blackout.flows.graphs.problems import GraphTarget
from blackout.flows.model import BATCH, VALIDATION, FlowSampler
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import LawsReplay, Replay, ReplayBatch, Rollout, roll_out
from blackout.flows.simulation import Simulation
from blackout.flows.weights import effective_sample_size
from blackout.random import fold_seed

_EACH = 8
"""Chains of every graph in a validation."""


class GraphFlow(FlowSampler):
    """A continuous-time Markov chain from uniform states of the nodes of a graph to a law on them.

    Args: as for `FlowSampler`; the target is a `GraphTarget`.

    Raises:
        ValueError: a rollout whose chains are not whole laws, or that resamples them.
    """

    means = ("val/value", "val/ess")
    replay_type = LawsReplay
    target: GraphTarget

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if (rollout := self.rollout) is not None:
            if rollout.chains % rollout.chains_per_law:
                raise ValueError(f"rollout.chains={rollout.chains} is no multiple of {rollout.chains_per_law}")
            if rollout.resample_below is not None:
                raise ValueError("rollout.resample_below is for targets of one law, not for graphs")
        if self.simulation.resample_below is not None:
            raise ValueError("simulation.resample_below is for targets of one law, not for graphs")

    def roll_out(self, rollout: Rollout, replay: Replay, seed: int, number: int) -> None:
        """Some training graphs, drawn for this rollout, each with chains of its own."""
        assert isinstance(replay, LawsReplay)
        laws = rollout.chains // rollout.chains_per_law
        law = self.target.drawn(laws, rollout.chains_per_law, seed, rollout.relabel).to(self.device)
        replay.law[replay.slot] = law
        roll_out(rollout, self.target.of(law), self.rates(trained=True), seed, replay, number, laws)

    def informed(self, seen: ReplayBatch) -> ReplayBatch:
        assert seen.law is not None
        return replace(seen, context=self.target.of(seen.law).context())

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Mean value of solutions without refinement, and ESS of the chains of each graph."""
        indices, numbers = batch["index"].to(self.device), self.target.numbers.to(self.device)
        law = numbers[indices // _EACH % len(numbers)]
        on = self.target.of(law)
        with torch.autocast(self.device.type, enabled=False):
            paths = self.simulation.run(on, self.rates(), indices, fold_seed(self.seed, VALIDATION))
        self.record("val/value", on.solutions(paths.states.x)[1].double())
        for graph in law.unique():
            weights = paths.log_weights[law == graph]
            self.record("val/ess", effective_sample_size(weights).expand(len(weights)))

    def solve(
        self,
        part: Tensor,
        seed: int,
        target: GraphTarget,
        law: Tensor,
        simulation: Simulation | None = None,
        refine: Refinement | None = None,
        watch: Watch | None = None,
    ) -> dict[str, Tensor]:
        """Chains with the numbers `part`, int64 [b], on graphs `law` [b] of `target`, and the solutions they end in.

        Returns:
            samples and solutions uint8 [b, d], value and nodes int64 [b], log_weights float64 [b].
        """
        on = target.of(law.to(self.device))
        paths = (simulation or self.simulation).run(on, self.rates(), part.to(self.device), seed, refine, watch)
        solutions, value = on.solutions(paths.states.x)
        return {
            "samples": paths.states.x,
            "solutions": solutions,
            "value": value,
            "graph": law,
            "nodes": on.nodes,
            "log_weights": paths.log_weights,
        }

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Solutions of the held-out graphs, one of each in turn, without refinement; see `solve`."""
        self.target.to(self.device)
        numbers = self.target.numbers
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            yield part, self.solve(part, seed, self.target, numbers[part % len(numbers)])

    def try_once(self) -> None:
        """Evaluate problem and network once."""
        on = self.target.of(torch.zeros(2, dtype=torch.int64, device=self.device))
        states = States.uniform(on, torch.rand(2, self.target.sites, device=self.device))
        try:
            self.rates(trained=True)(states, 0.5)
        except TypeError as error:
            name = type(self.network).__name__
            raise UserError(f"network: {name} does not know graphs: choose lesite or legf") from error

    def example(self) -> tuple[Any, ...]:
        on = self.target.of(torch.zeros(1, dtype=torch.int64, device=self.device))
        x = torch.zeros(1, self.target.sites, dtype=torch.uint8, device=self.device)
        ratios = torch.zeros(1, self.target.sites, 2, device=self.device)
        return x, torch.zeros(1, device=self.device), ratios, *on.context()
