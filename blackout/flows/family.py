"""The family of discrete neural flow samplers: from a target to a model, and back from its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from blackout.component import component
from blackout.errors import UserError, error_context
from blackout.flows.graphs import GraphFlow, GraphTarget
from blackout.flows.losses import Objective
from blackout.flows.model import FlowSampler
from blackout.flows.replay import Rollout
from blackout.flows.targets import EnergySource, Target, Wrapped
from blackout.networks import LocallyEquivariant
from blackout.training.components import fill, find, make
from blackout.training.descriptions import pathless

PARTS = ("target", "network", "simulation")
_ANNEALED = 0.7
"""Share of a run in which the horizon grows."""


@component("family")
@dataclass(frozen=True)
class FlowFamily:
    """Samplers of unnormalised laws on discrete states, trained without data.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen; more is better.
    """

    monitor: str = "val/ess"

    def source(
        self, settings: Mapping[str, Any], description: Mapping[str, Any] | None = None, trusted: tuple[str, ...] = ()
    ) -> EnergySource:
        """The target in the settings, or of a trained model.

        Raises:
            UserError: there is none, or it cannot be made.
        """
        chosen = description["model"]["target"] if description is not None else settings.get("target")
        if not chosen:
            raise UserError("target=... must be given")
        return EnergySource(make_target(chosen), int(settings.get("validation_samples", 512)))

    def describe(self, settings: Mapping[str, Any], source: EnergySource) -> dict[str, Any]:
        """Target, network and simulation with all their arguments; a target from a file by its shape."""
        network = fill(dict(settings["network"]), source.facts, "network")
        if getattr(find(settings["loss"], "loss"), "learns_partition", False):
            network["partition"] = True
        target = pathless(source.target.description(dict(settings["target"])))
        return {"model": {"target": target, "network": network, "simulation": settings["simulation"]}}

    def tensors(self, source: EnergySource) -> dict[str, Tensor]:
        """The target's, which travel with the model."""
        return {f"target.{name}": value for name, value in source.target.state_dict().items()}

    def build(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> FlowSampler:
        """The model of a description.

        Raises:
            UserError: a part is missing, a component refused its arguments, or tensors of another target.
        """
        described = whole(description, PARTS)
        target = make_target(described["target"])
        own = {name.removeprefix("target."): value for name, value in tensors.items() if name.startswith("target.")}
        try:
            target.load_state_dict(own)
        except RuntimeError as error:
            raise UserError(f"target: its tensors do not fit: {' '.join(str(error).split())[:200]}") from None
        network = make(described["network"], "network")
        if not isinstance(network, LocallyEquivariant):
            name = type(network).__name__
            raise UserError(f"network: {name} is not locally equivariant: choose lesite, letf, lemlp, leattn or leconv")
        if settings is not None:
            training |= _training(settings)
        simulation = make(described["simulation"], "simulation")
        with error_context("model"):
            sampler = GraphFlow if isinstance(target, GraphTarget) else FlowSampler
            model = sampler(network, target, simulation, **training)
        model.config = dict(description)
        return model

    def card(self, description: Mapping[str, Any], parameters: int) -> str:
        """The README.md of an exported model."""
        parts = {part: str(description["model"][part]["_target_"]).rsplit(".", 1)[-1] for part in PARTS}
        return f"""# A discrete neural flow sampler of {parts["target"]}

- target: {_arguments(description["model"]["target"])}
- network: {parts["network"]}, {parameters:,} parameters (averaged weights); simulation: {parts["simulation"]}
- trained with blackout {description["blackout"]}

```python
from blackout import load_model

model = load_model("path/to/this/directory")
x = model.sample(16, seed=0)  # integers; `python sample.py ckpt=...` gives their weights and log Z too
```
"""


def whole(description: Mapping[str, Any], parts: tuple[str, ...]) -> Mapping[str, Any]:
    """The parts of a model's description.

    Raises:
        UserError: one is missing.
    """
    described = description.get("model")
    if not isinstance(described, Mapping) or any(not isinstance(described.get(part), Mapping) for part in parts):
        raise UserError(f"there is no description of a whole model: it needs {', '.join(parts)}")
    return described


def _training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How a model is trained, by the settings."""
    loss, rollout = make(settings["loss"], "loss"), make(settings["rollout"], "rollout")
    if not isinstance(loss, Objective) or not isinstance(rollout, Rollout):
        raise UserError("loss and rollout must be those of this family: loss=dnfs or loss=leaps")
    if rollout.horizon_steps is None:
        rollout = replace(rollout, horizon_steps=int(_ANNEALED * settings["trainer"]["max_steps"]))
    return {"objective": loss, "rollout": rollout}


def make_target(described: Any) -> Target:
    """The target of a description; a user's class needs `levels`, `sites` or `shape`, and `log_density`.

    Raises:
        UserError: it cannot be made, or lacks one of these.
    """
    made = make(described, "target")
    if isinstance(made, Target):
        return made
    if not hasattr(made, "log_density") or not hasattr(made, "levels"):
        raise UserError(f"target: {type(made).__name__} needs log_density, levels, and sites or shape")
    with error_context("target"):
        return Wrapped(made)


def _arguments(part: Mapping[str, Any]) -> str:
    name = str(part["_target_"]).rsplit(".", 1)[-1]
    return f"{name}({', '.join(f'{key}={value}' for key, value in part.items() if key != '_target_')})"
