"""The family of discrete neural flow samplers: from a target to a model, and back from its description."""

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
from blackout.flows.draw import preview, requested
from blackout.flows.graphs.draw import preview_graphs, requested_graphs
from blackout.flows.graphs.graph_solver import METHODS, GraphSolver, load_problems
from blackout.flows.graphs.problems import TAKES, GraphTarget, Problem, problem_of
from blackout.flows.graphs.solvers import EXACT, annealed
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import FlowSampler, GraphFlow, LawsFlow
from blackout.flows.replay import Rollout
from blackout.flows.targets import EnergySource, make_target
from blackout.networks import LocallyEquivariant
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily

_ANNEALED = 0.7
"""Share of a run in which the horizon grows."""
_SWEEPS, _SECONDS = 1000, 0.01
"""Of simulated annealing beside solutions: sweeps at most, seconds a graph."""


@component("family")
@dataclass(frozen=True)
class FlowFamily(ComponentFamily):
    """Samplers of unnormalised laws on discrete states, trained without data.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen; more is better.
    """

    monitor: str = "val/ess"
    parts = ("target", "network", "simulation")
    annealing_targets: ClassVar[tuple[str, ...]] = tuple(TARGETS)
    """Targets that `blackout anneal` knows by name."""
    graph_problems: ClassVar[tuple[str, ...]] = tuple(TAKES)
    """Problems of `blackout solve`."""
    graph_methods: ClassVar[tuple[str, ...]] = METHODS
    exact_graph_methods: ClassVar[tuple[str, ...]] = tuple(EXACT)
    title = "A discrete neural flow sampler"
    usage = "x = model.sample(16, seed=0)  # integers; `python sample.py ckpt=...` gives their weights and log Z too"

    def source(self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()) -> EnergySource:
        """The target in the settings, or of a trained model.

        Raises:
            UserError: there is none, or it cannot be made.
        """
        chosen = description["model"]["target"] if description is not None else settings.get("target")
        refuse(not chosen, "target=... must be given")
        return EnergySource(make_target(chosen), int(settings.get("validation_samples", 512)))

    def described_parts(self, settings: Plain, source: EnergySource) -> dict[str, Any]:
        """Target, network and simulation with all their arguments; a target from a file by its shape."""
        network = complete_description(settings["network"], source.facts, "network")
        if getattr(find_target(settings["loss"], "loss"), "learns_partition", False):
            network["partition"] = True
        target = complete_description(remove_paths(source.target.description(dict(settings["target"]))), {}, "target")
        simulation = complete_description(settings["simulation"], source.facts, "simulation")
        return {"target": target, "network": network, "simulation": simulation}

    def tensors(self, source: EnergySource) -> dict[str, Tensor]:
        """The target's, which travel with the model."""
        return {f"target.{name}": value for name, value in source.target.state_dict().items()}

    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> FlowSampler:
        """Target, with its tensors, network and simulation together."""
        described = description["model"]
        target = make_target(described["target"])
        own = {name.removeprefix("target."): value for name, value in tensors.items() if name.startswith("target.")}
        try:
            target.load_state_dict(own)
        except RuntimeError as error:
            raise UserError(f"target: its tensors do not fit: {' '.join(str(error).split())[:200]}") from None
        network = instantiate(described["network"], "network")
        if not isinstance(network, LocallyEquivariant):
            name = type(network).__name__
            raise UserError(f"network: {name} is not locally equivariant: choose lesite, letf, lemlp or leconv")
        flow = LawsFlow if target.many else FlowSampler
        sampler = GraphFlow if isinstance(target, GraphTarget) else flow
        return sampler(network, target, instantiate(described["simulation"], "simulation"), **training)

    def training(self, settings: Plain) -> dict[str, Any]:
        """Objective and rollout; the horizon of a rollout grows over a share of the run unless it says otherwise."""
        loss, rollout = instantiate(settings["loss"], "loss"), instantiate(settings["rollout"], "rollout")
        if not isinstance(loss, EstimatedPartition) or not isinstance(rollout, Rollout):
            raise UserError("loss and rollout must be those of this family: loss=dnfs or loss=leaps")
        if rollout.horizon_steps is None:
            rollout = replace(rollout, horizon_steps=int(_ANNEALED * settings["trainer"]["max_steps"]))
        return {"objective": loss, "rollout": rollout}

    def draw(self, model: FlowSampler, request: Plain) -> Draw:
        """Weighted samples; of graphs solutions."""
        return requested_graphs(model, request) if isinstance(model, GraphFlow) else requested(model, request)

    def preview(self, model: FlowSampler, num_samples: int, num_steps: int | None = None) -> Draw:
        """Samples with estimates from more of them than are shown."""
        return preview_graphs(model) if isinstance(model, GraphFlow) else preview(model, model.rollout)

    def baselines(self, source: EnergySource, size: int, settings: Plain) -> dict[str, dict[str, Baseline]]:
        """Of held-out graphs, what one chain of simulated annealing finds in up to a hundredth of a second a graph."""
        target = source.target
        if not isinstance(target, GraphTarget):
            return {}
        problems = [problem_of(target.problem, target.graph(number)) for number in target.numbers.tolist()]
        graphs = [problem.graph for problem in problems]
        found = annealed(problems[0].base, graphs, 1, _SWEEPS, _SECONDS * len(graphs), 0)
        values = [problem.best_of(x) for problem, x in zip(problems, found, strict=True)]
        return {"test/value": {"anneal": Baseline(torch.tensor(values, dtype=torch.float64))}}

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
