"""A flow that serves many graphs: one network, a law and a normaliser for each of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blackout.errors import ensure
from blackout.family import Drawn, Watch
from blackout.flows.graphs.problems import GraphTarget, OnGraphs
from blackout.flows.model import BATCH, LawsFlow
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Paths, Simulation


class GraphFlow(LawsFlow):
    """A continuous-time Markov chain from uniform states of the nodes of a graph to a law on them.

    Args: as for `LawsFlow`; the target is a `GraphTarget`.

    Raises:
        ValueError: a simulation that resamples, or as for `LawsFlow`.
    """

    means = ("val/value", "val/ess")
    target: GraphTarget
    each = 8

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ensure(self.simulation.resample_below is None, "simulation.resample_below is for one law, not for graphs")

    def look_at(self, paths: Paths) -> None:
        """Mean value of solutions without refinement."""
        on = paths.states.target
        assert isinstance(on, OnGraphs)
        self.record("val/value", on.solutions(paths.states.x)[1])

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
            samples and solutions uint8 [b, d], graph and nodes int64 [b], value and log_weights float64 [b].
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
