"""The family of discrete neural flow samplers: models from settings, and from descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from blackout.comparisons import Baseline
from blackout.component import Plain, component
from blackout.config.allowed_components import remove_paths
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import find_target, instantiate
from blackout.errors import UserError, refuse
from blackout.flows.annealing import TARGETS, Annealing, load_target
from blackout.flows.draw import build_draw, preview_draw
from blackout.flows.graphs.draw import build_graph_draw, preview_graph_draw
from blackout.flows.graphs.graph_solver import METHODS, GraphSolver, load_problems
from blackout.flows.graphs.reductions import ACCEPTED_WEIGHTS, Problem, reduce_problem
from blackout.flows.graphs.solvers import EXACT_SOLVERS, simulated_annealing
from blackout.flows.graphs.target import GraphTarget
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import AmortisedFlow, FlowSampler, GraphFlow
from blackout.flows.replay import Rollout
from blackout.flows.targets import Target, TargetSource, make_target
from blackout.networks import LocallyEquivariant
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily

DEFAULT_VALIDATION_CHAINS = 512
HORIZON_FRACTION = 0.7  # of a run in which the horizon grows to 1
MAX_MESSAGE_LENGTH = 200  # characters of PyTorch's message about tensors that do not fit

# baseline next to the solutions of graphs
ANNEALING_SWEEPS = 1000
ANNEALING_SECONDS_PER_GRAPH = 0.01


@component("family")
@dataclass(frozen=True)
class FlowFamily(ComponentFamily):
    """Samplers of unnormalised targets on discrete states, trained without data.

    Args:
        monitor: validation metric that selects the best checkpoint; more is better.
    """

    monitor: str = "val/ess"
    parts = ("target", "network", "simulation")
    annealing_targets: ClassVar[tuple[str, ...]] = tuple(TARGETS)  # of `blackout anneal`, by name
    graph_problems: ClassVar[tuple[str, ...]] = tuple(ACCEPTED_WEIGHTS)  # of `blackout solve`
    graph_methods: ClassVar[tuple[str, ...]] = METHODS
    exact_graph_methods: ClassVar[tuple[str, ...]] = tuple(EXACT_SOLVERS)
    title = "A discrete neural flow sampler"
    usage = "x = model.sample(16, seed=0)  # integers; `python sample.py ckpt=...` gives log Z too"

    def source(
        self,
        settings: Plain,
        description: Plain | None = None,
        trusted: tuple[str, ...] = (),
    ) -> TargetSource:
        """Return the target of the settings, or of a trained model's description, as a source.

        Raises:
            UserError: there is no target, or it cannot be built.
        """
        target = settings.get("target") if description is None else description["model"]["target"]
        refuse(not target, "target=... must be given, such as target=ising")
        num_chains = settings.get("validation_samples", DEFAULT_VALIDATION_CHAINS)
        return TargetSource(make_target(target), int(num_chains))

    def describe_parts(self, settings: Plain, source: TargetSource) -> dict[str, Any]:
        """Return the descriptions of target, network and simulation with all their arguments.

        A target from a file is described by its shape.
        """
        network = complete_description(settings["network"], source.facts, "network")
        if getattr(find_target(settings["loss"], "loss"), "learns_partition", False):
            network["partition"] = True
        target = remove_paths(source.target.description(dict(settings["target"])))
        simulation = complete_description(settings["simulation"], source.facts, "simulation")
        return {
            "target": complete_description(target, {}, "target"),
            "network": network,
            "simulation": simulation,
        }

    def tensors(self, source: TargetSource) -> dict[str, Tensor]:
        """Return the target's tensors, which are saved with the model."""
        return {f"target.{name}": value for name, value in source.target.state_dict().items()}

    def assemble(
        self,
        description: Plain,
        tensors: Mapping[str, Tensor],
        **training: Any,
    ) -> FlowSampler:
        """Build a model from its description and the target's tensors.

        Raises:
            UserError: tensors that do not fit, or a network that is not locally equivariant.
        """
        parts = description["model"]
        target = make_target(parts["target"])
        _load_target(target, tensors)
        network = instantiate(parts["network"], "network")
        if not isinstance(network, LocallyEquivariant):
            name = type(network).__name__
            advice = "choose lesite, letf, lemlp or leconv"
            raise UserError(f"network: {name} is not locally equivariant: {advice}")
        model_class = FlowSampler
        if isinstance(target, GraphTarget):
            model_class = GraphFlow
        elif target.amortised:
            model_class = AmortisedFlow
        return model_class(
            network,
            target,
            instantiate(parts["simulation"], "simulation"),
            **training,
        )

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return objective and rollout; by default the horizon grows for 70 % of the run.

        Raises:
            UserError: a loss or rollout of another family.
        """
        loss = instantiate(settings["loss"], "loss")
        rollout = instantiate(settings["rollout"], "rollout")
        if not isinstance(loss, EstimatedPartition):
            raise UserError("loss: family=flow needs loss=dnfs or loss=leaps")
        if not isinstance(rollout, Rollout):
            raise UserError("rollout: family=flow needs blackout.flows.Rollout")
        if rollout.horizon_steps is None:
            horizon_steps = int(HORIZON_FRACTION * settings["trainer"]["max_steps"])
            rollout = replace(rollout, horizon_steps=horizon_steps)
        return {"objective": loss, "rollout": rollout}

    def draw(self, model: FlowSampler, request: Plain) -> Draw:
        """Return the requested draw: weighted samples, or solutions of graphs."""
        if isinstance(model, GraphFlow):
            return build_graph_draw(model, request)
        return build_draw(model, request)

    def preview(self, model: FlowSampler, num_samples: int, num_steps: int | None = None) -> Draw:
        """Return the draw of pictures during and after training."""
        if isinstance(model, GraphFlow):
            return preview_graph_draw(model)
        return preview_draw(model, model.rollout)

    def baselines(
        self,
        source: TargetSource,
        size: int,
        settings: Plain,
    ) -> dict[str, dict[str, Baseline]]:
        """Return the values of one chain of simulated annealing for the test graphs, if any."""
        target = source.target
        if not isinstance(target, GraphTarget):
            return {}
        graphs = [target.graph(index) for index in target.test_instances.tolist()]
        problems = [reduce_problem(target.problem, graph) for graph in graphs]
        solutions = simulated_annealing(
            problems[0].base,
            [problem.base_graph for problem in problems],
            num_chains=1,
            num_sweeps=ANNEALING_SWEEPS,
            seconds=ANNEALING_SECONDS_PER_GRAPH * len(graphs),
            seed=0,
        )
        values = [problem.best_value(x) for problem, x in zip(problems, solutions, strict=True)]
        baseline = Baseline(torch.tensor(values, dtype=torch.float64))
        return {"test/value": {"anneal": baseline}}

    def annealing(
        self,
        target: str | None,
        settings: Plain,
        ckpt: Path | None = None,
        composition: list[int] | None = None,
        **options: Any,
    ) -> Annealing:
        """Return an annealing of a target without a network, as `blackout anneal` runs it.

        Args:
            target: its name, or the dotted name of a class; None with `ckpt`.
            settings: arguments of the target.
            ckpt: a trained flow, whose target is used; None with `target`.
            composition: numbers of sites at level 0, 1, ..., which are then conserved.
            options: arguments of `Annealing`.

        Raises:
            UserError: no such target, wrong settings, or a number out of range.
        """
        return Annealing(load_target(target, settings, ckpt, composition), **options)

    def graph_solver(self, **options: Any) -> GraphSolver:
        """Return a method for problems on graphs, as `blackout solve` runs it."""
        return GraphSolver(**options)

    def load_graph_problems(
        self, name: str, graphs: Path | None, ckpt: Path | None, colours: int, unit_weights: bool
    ) -> list[Problem]:
        """Return a problem on the graphs in files or of a trained flow, see `load_problems`."""
        return load_problems(name, graphs, ckpt, colours, unit_weights)


def _load_target(target: Target, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors called `target.*` into a target.

    Raises:
        UserError: they do not fit.
    """
    prefix = "target."
    names = [name for name in tensors if name.startswith(prefix)]
    state = {name.removeprefix(prefix): tensors[name] for name in names}
    expected_state = target.state_dict()
    for name in state.keys() & expected_state.keys():
        dtype = state[name].dtype
        expected_dtype = expected_state[name].dtype
        message = f"target: its tensor {name} is {dtype}, not {expected_dtype}"
        refuse(dtype != expected_dtype, message)
    try:
        target.load_state_dict(state)
    except RuntimeError as error:  # missing or unexpected names, or other shapes
        message = " ".join(str(error).split())[:MAX_MESSAGE_LENGTH]
        raise UserError(f"target: its tensors do not fit: {message}") from None
    target.check_tensors()
