"""What `sample.py` can ask of a flow: a simulation, moves, resampled samples, likelihood bounds of given states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import BaseDraw, Names, Outputs, Samples, Watch
from blackout.flows.interface import FlowModel
from blackout.flows.likelihood import run_backwards
from blackout.flows.outputs import FlowOutputs, LikelihoodOutputs, named
from blackout.flows.plots import grid
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Paths, Simulation
from blackout.flows.targets import Target
from blackout.flows.targets.base import read_arrays
from blackout.training.components import make
from blackout.training.model import refuse_unknown

if TYPE_CHECKING:
    from PIL import Image

_BATCH = 1024
_REVERSED = 16
"""Reverse chains of every state whose likelihood is bounded."""
_CLOSING = 1024
"""Samples from which the estimates at the end of a run are made."""


@dataclass
class FlowDraw(BaseDraw):
    """Weighted samples.

    Args:
        model: in eval mode.
        simulation: of its chain.
        refine: moves after every step; None for none.
        resample: add indices of samples drawn by their weights.
        description: of all this as plain values.
        own: make the estimates from so many samples, rather than from those that are written.
    """

    model: FlowModel
    simulation: Simulation
    refine: Refinement | None = None
    resample: bool = False
    description: Mapping[str, Any] = field(default_factory=dict)
    own: int | None = None

    batch_size: int = _BATCH
    resumable = True

    @property
    def steps(self) -> int:
        return self.simulation.num_steps

    @property
    def nfe(self) -> int:
        """At least: `events` takes one more for every jump, and metrics.json has their number."""
        return self.simulation.num_steps

    def run(self, indices: Tensor, seed: int, watch: Watch | None = None, observe: bool = False) -> Paths:
        """Chains with these numbers, int64 [b], on the model's device."""
        model, group = self.model, self.simulation.group
        whole = indices
        if self.simulation.resample_below is not None:  # whole groups, of which these are part
            first = (indices // group).unique() * group
            whole = (first[:, None] + torch.arange(group)).flatten()
        paths = self.simulation.run(
            model.target, model.rates(), whole.to(model.device), seed, self.refine, watch, observe
        )
        if len(whole) == len(indices):
            return paths
        return paths.rows(torch.searchsorted(whole, indices).to(model.device))

    def batches(
        self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Tensor, Samples]]:
        """(indices [b], samples [b, *shape], log_weights and log_density float64 [b], jumps, evaluations)."""
        shape = self.model.shape

        def shown(step: int, steps: int, x: Tensor) -> None:
            if watch is not None:
                watch(step, steps, x.view(-1, *shape))

        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            paths = self.run(part, seed, shown)
            yield part, named(paths, shape)

    def outputs(self, seed: int) -> Outputs | None:
        return FlowOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image:
        """A grid of the states, black at 0."""
        return grid(samples["samples"], self.model.target.levels, columns)


@dataclass
class LikelihoodDraw(BaseDraw):
    """Likelihood bounds of given states by the chain run backwards.

    Args:
        model: in eval mode.
        states: uint8 [n, d].
        num_steps: intervals on which rates are frozen.
    """

    model: FlowModel
    states: Tensor
    num_steps: int

    names = Names(folder="likelihood", file="likelihood", array="states", picture="states")
    batch_size = _BATCH // _REVERSED
    resumable = True

    def rows(self, num_samples: int) -> int:
        return len(self.states)

    @property
    def steps(self) -> int:
        return 1

    @property
    def nfe(self) -> int:
        return self.num_steps * _REVERSED

    @property
    def description(self) -> Mapping[str, Any]:
        return {"likelihood": "reverse chains", "num_steps": self.num_steps, "chains": _REVERSED}

    def batches(
        self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Tensor, Samples]]:
        """(indices [b], the states, `log_likelihood_bound` and `log_likelihood` float64 [b])."""
        model, target = self.model, self.model.target
        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            x = self.states[part].repeat_interleave(_REVERSED, 0).to(model.device)
            chain = (part[:, None] * _REVERSED + torch.arange(_REVERSED)).flatten().to(model.device)
            weights = run_backwards(target, model.rates(), x, self.num_steps, chain, seed).log_weights
            weights = weights.view(-1, _REVERSED)
            if watch is not None:
                watch(1, 1, self.states[part].view(-1, *model.shape))
            yield (
                part,
                {
                    "samples": self.states[part].view(-1, *model.shape),
                    "log_likelihood_bound": weights.mean(1),
                    "log_likelihood": weights.logsumexp(1) - float(np.log(_REVERSED)),
                },
            )

    def outputs(self, seed: int) -> Outputs | None:
        return LikelihoodOutputs()

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image:
        return grid(samples["samples"], self.model.target.levels, columns)


def requested(model: FlowModel, request: Mapping[str, Any]) -> Any:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `simulation` (a description, or fields that replace the model's own), `refine`, `resample`,
            `likelihood` (an .npz with states), `num_samples`.

    Raises:
        UserError: another option, or a wrong value.
    """
    refuse_unknown(request, "simulation", "refine", "resample", "likelihood")
    described = dict(model.config.get("model", {}).get("simulation", {}))
    given = {name: value for name, value in (request.get("simulation") or {}).items() if value is not None}
    described = given if "_target_" in given else described | given
    simulation: Simulation = make(described, "simulation") if given else model.simulation
    if request.get("likelihood") is not None:
        return LikelihoodDraw(model, read_states(request["likelihood"], model.target), simulation.num_steps)
    refine, resample = request.get("refine"), request.get("resample", False)
    if not isinstance(resample, bool):
        raise UserError(f"resample must be true or false, not {resample!r}")
    moves: Refinement | None = make(refine, "refine") if refine else None
    description = {"simulation": described, "refine": refine, "resample": resample}
    return FlowDraw(model, simulation, moves, resample, description)


def preview(model: FlowModel) -> FlowDraw:
    """The draw of pictures during and after training; estimates are made from more samples than are shown."""
    return FlowDraw(model, model.simulation, description={"simulation": "as configured"}, own=_CLOSING)


def read_states(path: Any, target: Target) -> Tensor:
    """States in an .npz, array `states` or `samples` [n, *shape]: uint8 [n, d].

    Raises:
        UserError: unreadable, or not states of the target.
    """
    arrays = read_arrays(str(path), "likelihood")
    found = arrays.get("states", arrays.get("samples"))
    if found is None or found.dtype.kind not in "iub" or found.ndim < 2 or found[:1].size != target.sites:
        raise UserError(f"likelihood: {path} needs an array `states` of integers [n, {target.sites}]")
    states = torch.from_numpy(np.ascontiguousarray(found)).long().flatten(1)
    if not len(states) or int(states.min()) < 0 or int(states.max()) >= target.levels:
        raise UserError(f"likelihood: states in {path} must be from 0 to {target.levels - 1}")
    return states.to(torch.uint8)
