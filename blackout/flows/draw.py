"""What `sample.py` can ask of a flow, and what it leaves besides samples.

A simulation and moves; estimates, and pictures of how it did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.config.instantiate import instantiate
from blackout.errors import UserError, refuse
from blackout.flows import diagnostics
from blackout.flows.model import BATCH, ChainSampler, LawsFlow
from blackout.flows.plots import (
    Collected,
    grid,
    landscape,
    named,
    points_over,
    save_diagnostics,
    save_path,
)
from blackout.flows.refinement import Refinement
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Events, Paths, Simulation
from blackout.flows.weights import estimates
from blackout.protocols import Draw, Drawn, Outputs, References, Samples, Watch, refuse_unknown
from blackout.random import fold_seed

if TYPE_CHECKING:
    from PIL import Image

_CLOSING = 1024
"""Samples from which the estimates at the end of a run are made."""
_CHECKED = 13
"""Key among the uses of a seed."""


class ChainDraw(Draw):
    """A draw of chains that are simulated in steps."""

    references = References(
        suffixes=(*References().suffixes, "annealed", "of_zero"),
        bounds={"log_z_lower": "log_z", "eubo": "log_z"},
        ideal={"ess": 1.0, "r_hat": 1.0, "slope_of_couplings": 1.0},
    )

    simulation: Simulation
    resumable = True

    @property
    def steps(self) -> int:
        return self.simulation.num_steps

    nfe = steps
    """At least: `events` takes one more for every jump, and metrics.json has their number."""


@dataclass
class FlowDraw(ChainDraw):
    """Weighted samples.

    Args:
        model: in eval mode.
        simulation: of its chain.
        refine: moves after every step; None for none.
        description: of all this as plain values.
        own: make the estimates from so many samples, rather than from those that are written.
        path: also observe what the law is at every temperature of the path.
    """

    model: ChainSampler
    simulation: Simulation
    refine: Refinement | None = None
    description: Plain = field(default_factory=dict)
    own: int | None = None
    path: bool = False

    batch_size: int = BATCH
    fewest = BATCH

    def run(self, indices: Tensor, seed: int, watch: Watch | None = None, observe: bool = False) -> Paths:
        """Chains with these numbers, int64 [b], on the model's device."""
        return self.model.paths(indices, seed, self.simulation, self.refine, watch, observe)

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], samples [b, *shape], log_weights and log_density float64 [b], jumps, evaluations)."""
        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            paths = self.run(part, seed, watch, observe=self.path)
            path = {"path": paths.observed(self.model.target)} if self.path else {}
            yield part, named(paths, self.model.shape) | path

    def groups(self, indices: Tensor) -> Tensor | None:
        """Which chains with these numbers, int64 [b], are resampled together; None where none are."""
        return None if self.simulation.resample_below is None else indices // self.simulation.group

    def outputs(self, seed: int) -> Outputs | None:
        return FlowOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """A grid of the states, black at 0; of those that code points the points, None for some side by side."""
        if self.model.target.plane:
            return None if columns else points_over(landscape(self.model.target), samples["samples"])
        return grid(samples["samples"].view(-1, *self.model.shape), self.model.target.levels, columns)


class FlowOutputs(Collected):
    """Estimates from the samples of a `FlowDraw`, and pictures."""

    draw: FlowDraw

    def write(self, directory: Path) -> dict[str, Any]:
        """Write diagnostics.png; with `path` also what the law is at every temperature."""
        draw, target, arrays = self.draw, self.draw.model.target, self.arrays()
        number = draw.own or len(arrays["samples"])
        observed = draw.run(torch.arange(min(number, draw.batch_size)), fold_seed(self.seed, number), observe=True)
        if draw.own is not None:
            arrays = {name: values.cpu() for name, values in named(observed, draw.model.shape).items()}
            number = len(arrays["samples"])
        groups = draw.groups(self.indices() if draw.own is None else torch.arange(number))
        x, weights = arrays["samples"].flatten(1), arrays["log_weights"]
        values = estimates(target, x, weights, arrays["log_density"], groups)
        for name in ("evaluations", "jumps"):
            values[f"{name}_per_sample"] = float(arrays[name].double().mean())
        values |= draw.model.known()
        flags = diagnostics.judge(target, x, weights, values, fold_seed(self.seed, _CHECKED), groups)
        path = save_path(target, observed.times, arrays["path"], directory, groups) if draw.path else None
        values |= diagnostics.upper_bound(draw.model, fold_seed(self.seed, _CHECKED))
        said: dict[str, Any] = {"values": values, "estimated_from": number, **diagnostics.said(flags)}
        said |= {"path": path} if path else {}
        if flags:
            print(f"warning: {said['warning']}")
        if not isinstance(draw.simulation, Events):
            said["time_steps"] = diagnostics.compared_with_truth(draw.model, draw.simulation, values, self.seed)
            print(said["time_steps"])
        save_diagnostics(target, arrays, observed, values, directory / "diagnostics.png")
        return said


def requested_chains(model: ChainSampler, request: Plain) -> tuple[Simulation, Refinement | None, dict[str, Any]]:
    """The simulation that is asked for, whole or by fields that replace the model's own; moves; and descriptions."""
    described = dict(model.config.get("model", {}).get("simulation", {}))
    given = {name: value for name, value in (request.get("simulation") or {}).items() if value is not None}
    described = given if "_target_" in given else described | given
    simulation, refine = instantiate(described, "simulation") if given else model.simulation, request.get("refine")
    return simulation, instantiate(refine, "refine") if refine else None, {"simulation": described, "refine": refine}


def requested(model: ChainSampler, request: Plain) -> FlowDraw:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `simulation` (a description, or fields that replace the model's own), `refine`, `path`, `target`
            (`sigma` and `bias` in trained ranges), `num_samples`.

    Raises:
        UserError: another option, or a wrong value.
    """
    refuse_unknown(request, "simulation", "refine", "path", "target")
    law = {name: value for name, value in (request.get("target") or {}).items() if value is not None}
    if law:
        if not isinstance(model, LawsFlow):
            raise UserError("target: a trained model keeps it, but for sigma and bias that it learned ranges of")
        config, model = model.config, LawsFlow(model.averaged, model.target.at(**law), model.simulation).eval()
        model.config = config
    simulation, moves, description = requested_chains(model, request)
    refuse(not isinstance(path := request.get("path", False), bool), f"path must be true or false, not {path!r}")
    return FlowDraw(model, simulation, moves, description, path=path)


def preview(model: ChainSampler, rollout: Rollout | None) -> FlowDraw:
    """The draw of pictures during and after training; estimates are made from more samples than are shown.

    Where rollouts are small, as in a rehearsal, from fewer.
    """
    chains = _CLOSING if rollout is None else min(_CLOSING, 16 * rollout.chains)
    return FlowDraw(model, model.simulation, description={"simulation": "as configured"}, own=chains)
