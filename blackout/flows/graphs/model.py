"""A flow that serves many graphs: one network, a law and a normaliser for each of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blackout.errors import ensure
from blackout.family import Drawn
from blackout.flows.graphs.problems import GraphTarget, OnGraphs
from blackout.flows.model import BATCH, LawsFlow
from blackout.flows.simulation import Paths


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

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Solutions of the held-out graphs, one of each in turn, without refinement; see `solved`."""
        self.target.to(self.device)
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            law = self.target.numbers[part % len(self.target.numbers)]
            on = self.target.of(law.to(self.device))
            yield part, solved(self.simulation.run(on, self.rates(), part.to(self.device), seed), law)


def solved(paths: Paths, law: Tensor) -> dict[str, Tensor]:
    """The solutions that chains on graphs with these numbers, int64 [b], end in.

    Returns:
        samples and solutions uint8 [b, d], graph and nodes int64 [b], value and log_weights float64 [b].
    """
    on, x = paths.states.target, paths.states.x
    assert isinstance(on, OnGraphs)
    solutions, value = on.solutions(x)
    found = {"samples": x, "solutions": solutions, "value": value, "log_weights": paths.log_weights}
    return found | {"graph": law, "nodes": on.nodes}
