"""Draws of a flow as `sample.py` requests them: simulation and moves, estimates and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.config.instantiate import instantiate
from blackout.errors import UserError, refuse
from blackout.files import save_arrays
from blackout.flows.diagnostics import (
    check_estimates,
    describe_time_step_error,
    evidence_upper_bound,
    format_flags,
)
from blackout.flows.metrics import METRICS
from blackout.flows.model import BATCH_SIZE, AmortisedFlow, ChainSampler
from blackout.flows.plots import (
    CollectedSamples,
    plot_landscape,
    plot_points,
    plot_state_grid,
    sample_arrays,
    save_diagnostics,
    save_path,
)
from blackout.flows.refinement import Refinement
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Events, Paths, Simulation
from blackout.flows.weights import estimate_target
from blackout.protocols import Draw, Drawn, Outputs, References, Samples, Watch, refuse_unknown
from blackout.random import fold_seed

if TYPE_CHECKING:
    from PIL import Image

MAX_PREVIEW_CHAINS = 1024  # chains of the estimates at the end of a run
PREVIEW_ROLLOUTS = 16  # rollouts whose number of chains limits those of the estimates
CHECK_KEY = 13  # separates the draws of the checks from other uses of a seed


class ChainDraw(Draw):
    """A draw of chains that are simulated in steps."""

    references = References(
        suffixes=(*References().suffixes, "annealed", "zero_couplings"),
        bounds={"elbo": "log_z", "eubo": "log_z"},
        ideal={"ess": 1.0, "r_hat": 1.0, "coupling_slope": 1.0},
        metrics=METRICS,
    )

    simulation: Simulation
    resumable = True

    @property
    def steps(self) -> int:
        """Number of steps, as the progress of a draw counts them."""
        return self.simulation.num_steps

    # at least: `events` needs one evaluation more for every jump, reported in metrics.json
    nfe = steps


@dataclass
class FlowDraw(ChainDraw):
    """Weighted samples of a flow.

    Args:
        model: in eval mode.
        simulation: of its chain.
        refine: moves after every step; None for none.
        description: of these settings, as plain values.
        num_estimation_samples: make the estimates from this many samples of their own, instead of
            those that are written.
        path: also estimate properties of the target at every temperature of the path.
    """

    model: ChainSampler
    simulation: Simulation
    refine: Refinement | None = None
    description: Plain = field(default_factory=dict)
    num_estimation_samples: int | None = None
    path: bool = False

    batch_size: int = BATCH_SIZE
    fewest = BATCH_SIZE

    def simulate(
        self,
        indices: Tensor,
        seed: int,
        watch: Watch | None = None,
        *,
        record: bool = False,
    ) -> Paths:
        """Simulate the chains with these indices, int64 [b], on the model's device."""
        return self.model.simulate(
            indices,
            seed,
            simulation=self.simulation,
            refine=self.refine,
            watch=watch,
            record=record,
        )

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Yield indices [b] and the arrays of `sample_arrays`, with `path` also `path` [b, ...]."""
        if len(indices) == 0:
            return
        for part in indices.split(batch_size or self.batch_size):
            paths = self.simulate(part, seed, watch, record=self.path)
            arrays = sample_arrays(paths, self.model.shape)
            if self.path:
                arrays["path"] = paths.observables(self.model.target)
            yield part, arrays

    def resampling_groups(self, indices: Tensor) -> Tensor | None:
        """Return the resampling groups of chains with these indices, int64 [b]; None for none."""
        if self.simulation.resample_below is None:
            return None
        return indices // self.simulation.group_size

    def outputs(self, seed: int) -> Outputs | None:
        """Return the collector of the samples, which makes estimates and pictures."""
        return FlowOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Draw a grid of the states; of states that encode points of the plane the points.

        Points have no picture of several sets side by side, `columns`.
        """
        target = self.model.target
        if target.plane:
            if columns:
                return None
            return plot_points(plot_landscape(target), samples["samples"])
        states = samples["samples"].view(-1, *self.model.shape)
        return plot_state_grid(states, target.levels, columns)


class FlowOutputs(CollectedSamples):
    """Estimates from the samples of a `FlowDraw`, and pictures."""

    draw: FlowDraw

    def write(self, directory: Path) -> dict[str, Any]:
        """Write diagnostics.png, and path.csv and path.png if requested; return the estimates."""
        draw = self.draw
        model = draw.model
        target = model.target
        arrays = self.arrays()

        # 1. Recorded chains, which are also the samples of the estimates if these have their own.
        num_samples = draw.num_estimation_samples or len(arrays["samples"])
        record_indices = torch.arange(min(num_samples, draw.batch_size))
        paths = draw.simulate(record_indices, fold_seed(self.seed, num_samples), record=True)
        if draw.num_estimation_samples is None:
            groups = draw.resampling_groups(self.indices())
        else:
            recorded = sample_arrays(paths, model.shape)
            arrays = {name: values.cpu() for name, values in recorded.items()}
            num_samples = len(arrays["samples"])
            groups = draw.resampling_groups(torch.arange(num_samples))

        # 2. Estimates.
        x = arrays["samples"].flatten(1)
        log_weights = arrays["log_weights"]
        values = estimate_target(target, x, log_weights, arrays["log_density"], groups)
        for name in ("evaluations", "jumps"):
            values[f"{name}_per_sample"] = float(arrays[name].double().mean())
        values |= model.exact_references()

        # 3. Checks, which may widen the errors.
        check_seed = fold_seed(self.seed, CHECK_KEY)
        flags = check_estimates(target, x, log_weights, values, check_seed, groups)
        path_summary = None
        if draw.path:
            path_summary = save_path(target, paths.times, arrays["path"], directory, groups)
        values |= evidence_upper_bound(model, check_seed)

        # 4. The report.
        report: dict[str, Any] = {"values": values, "estimated_from": num_samples}
        report |= format_flags(flags)
        if path_summary:
            report["path"] = path_summary
        if flags:
            print(f"warning: {report['warning']}")
        if not isinstance(draw.simulation, Events):
            sentence = describe_time_step_error(model, draw.simulation, values, self.seed)
            report["time_step_error"] = sentence
            print(sentence)
        save_diagnostics(target, arrays, paths, values, directory / "diagnostics.png")
        couplings = target.couplings_to_save()
        if couplings:
            save_arrays(directory / "couplings.npz", **couplings)
        return report


def build_simulation(
    model: ChainSampler,
    request: Plain,
) -> tuple[Simulation, Refinement | None, dict[str, Any]]:
    """Build the requested simulation and moves, and return their descriptions.

    Args:
        model: whose own simulation is the default.
        request: `simulation`, a complete description or some settings in place of the model's;
            `refine`, a description.
    """
    description = dict(model.config.get("model", {}).get("simulation", {}))
    requested = request.get("simulation") or {}
    settings = {name: value for name, value in requested.items() if value is not None}
    description = settings if "_target_" in settings else description | settings
    simulation = instantiate(description, "simulation") if settings else model.simulation
    refine_description = request.get("refine")
    refine = instantiate(refine_description, "refine") if refine_description else None
    return simulation, refine, {"simulation": description, "refine": refine_description}


def build_draw(model: ChainSampler, request: Plain) -> FlowDraw:
    """Build the draw that settings of `sample.py` request.

    Args:
        model: in eval mode.
        request: `simulation` and `refine` (see `build_simulation`), `path`, `num_samples`, and
            `target` with a `coupling` and `field` in trained ranges.

    Raises:
        UserError: another option, or an invalid value.
    """
    refuse_unknown(request, "simulation", "refine", "path", "target")
    requested_target = request.get("target") or {}
    parameters = {name: value for name, value in requested_target.items() if value is not None}
    if parameters:
        if not isinstance(model, AmortisedFlow):
            raise UserError(
                "target: a trained model keeps its target; only a model trained on ranges of "
                "coupling or field accepts target.coupling and target.field"
            )
        config = model.config
        target = model.target.with_parameters(**parameters)
        model = AmortisedFlow(model.averaged, target, model.simulation).eval()
        model.config = config
    simulation, refine, description = build_simulation(model, request)
    path = request.get("path", False)
    refuse(not isinstance(path, bool), f"path must be true or false, not {path!r}")
    return FlowDraw(model, simulation, refine, description, path=path)


def preview_draw(model: ChainSampler, rollout: Rollout | None) -> FlowDraw:
    """Build the draw of pictures during and after training.

    Its estimates use more samples than are shown, but few if rollouts are small, as in a test run.
    """
    num_chains = MAX_PREVIEW_CHAINS
    if rollout is not None:
        num_chains = min(MAX_PREVIEW_CHAINS, PREVIEW_ROLLOUTS * rollout.chains)
    return FlowDraw(
        model,
        model.simulation,
        description={"simulation": "as configured"},
        num_estimation_samples=num_chains,
    )
