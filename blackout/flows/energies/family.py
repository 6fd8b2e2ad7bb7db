"""The family of energies trained with a sampler inside: from data to a model, and back from its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from blackout.component import component
from blackout.data import CountData
from blackout.errors import UserError, error_context
from blackout.family import Source
from blackout.flows.energies.data import BinaryData, known_samples
from blackout.flows.energies.energies import Learned
from blackout.flows.energies.model import EnergySampler, Pair
from blackout.flows.energies.negative import NegativeSampler
from blackout.flows.family import make_target, whole
from blackout.flows.losses import Objective
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Simulation
from blackout.networks import LocallyEquivariant
from blackout.training.components import fill, find, make
from blackout.training.descriptions import named_in_file, pathless

_PARTS = ("energy", "network", "simulation")
_OF_THE_SAMPLER = (
    ("network", LocallyEquivariant, "chosen by network@rates=letf, and set by rates.channels=64"),
    ("loss", Objective, "chosen by loss@objective=dnfs"),
)
"""Names that recipes of datasets use for another family: those of the flow are refused, others are not looked at."""
_MOST_LEVELS = 256


@component("family")
@dataclass(frozen=True)
class EnergyFamily:
    """Energies p in proportion to exp(-E) learned from data, each with a flow that samples it.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen; less is better.
    """

    monitor: str = "val/nll"

    def source(
        self, settings: Mapping[str, Any], description: Mapping[str, Any] | None = None, trusted: tuple[str, ...] = ()
    ) -> BinaryData:
        """The dataset in the settings, or samples of the target in them; or those of a trained model.

        Raises:
            UserError: there is neither, it cannot be had, or has too many levels.
        """
        made = (
            settings
            if description is None or settings.get("dataset")
            else _of_the_model(description, settings, trusted)
        )
        if chosen := made.get("dataset"):
            facts = {"data_dir": settings.get("data_dir", "data")}
            data = make(fill(dict(chosen), facts, "dataset"), "dataset")
            return _states(data, str(chosen["density"]) if "density" in chosen else None)
        if not (target := made.get("target")):
            raise UserError("dataset=... must be given, such as dataset=counts dataset.path=binary.npy")
        number = made.get("number")
        if type(number) is not int or number < 2:
            raise UserError(f"number must be a whole number of samples of at least 2, not {number!r}")
        law = make_target(target)
        return known_samples(law, number, int(made.get("data_seed") or 0), type(law).__name__.lower())

    def describe(self, settings: Mapping[str, Any], source: Source) -> dict[str, Any]:
        """Energy, rates and simulation with all their arguments, and where the data are from."""
        for name, kind, instead in _OF_THE_SAMPLER:
            if (other := settings.get(name)) and issubclass(cast(type, find(other, name)), kind):
                raise UserError(f"{name}: that of the sampler is {instead}")
        parts = {"energy": settings["energy"], "network": settings["rates"]}
        parts = {part: fill(dict(chosen), source.facts, part) for part, chosen in parts.items()}
        model = {"model": {**parts, "simulation": settings["simulation"]}}
        if settings.get("dataset"):
            return model | {"dataset": pathless(settings["dataset"])}
        return model | {"truth": {name: settings[name] for name in ("target", "number", "data_seed")}}

    def tensors(self, source: Source) -> dict[str, Tensor]:
        """None: all that is learned is weights."""
        return {}

    def build(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> EnergySampler:
        """The model of a description.

        Raises:
            UserError: a part is missing, or a component refused its arguments.
        """
        described = whole(description, _PARTS)
        names = ("energy", "rates", "simulation")
        energy, network, simulation = (make(described[part], name) for part, name in zip(_PARTS, names, strict=True))
        if not isinstance(energy, Learned) or not isinstance(simulation, Simulation):
            raise UserError("energy: choose mlp or pairs; simulation: events")
        if not isinstance(network, LocallyEquivariant):
            name = type(network).__name__
            raise UserError(f"rates: {name} is not locally equivariant: choose lesite, letf, lemlp or leattn")
        if settings is not None:
            training |= _training(settings)
        with error_context("model"):
            model = EnergySampler(Pair(energy, network), simulation, **training)
        model.config = dict(description)
        return model

    def card(self, description: Mapping[str, Any], parameters: int) -> str:
        """The README.md of an exported model."""
        kinds = [str(description["model"][part]["_target_"]).rsplit(".", 1)[-1] for part in _PARTS]
        return f"""# An energy, and a discrete neural flow sampler of it

- energy: {kinds[0]}; rates: {kinds[1]}; together {parameters:,} parameters (averaged weights); simulation: {kinds[2]}
- trained with blackout {description["blackout"]}

```python
from blackout import load_model

model = load_model("path/to/this/directory")
x = model.sample(16, seed=0)  # integers; model.target.log_density(x) is -E(x)
```
"""


def _of_the_model(
    description: Mapping[str, Any], settings: Mapping[str, Any], trusted: tuple[str, ...]
) -> Mapping[str, Any]:
    """The data that a trained model names."""
    if truth := description.get("truth"):
        return dict(truth)
    if not (chosen := description.get("dataset")):
        return {}
    return {"dataset": named_in_file(chosen, "dataset", settings.get("data_dir", "data"), trusted)}


def _training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How a model is trained, by the settings."""
    loss, rollout, negative = (make(settings[part], part) for part in ("objective", "rollout", "negative"))
    if not (isinstance(loss, Objective) and isinstance(rollout, Rollout) and isinstance(negative, NegativeSampler)):
        raise UserError(
            "objective, rollout and negative must be those of this family: loss@objective=dnfs, negative=flow"
        )
    if loss.learns_partition:
        raise UserError("leaps learns the normaliser of one energy; one that is trained needs loss@objective=dnfs")
    numbers = {name: settings[name] for name in ("inner", "pretraining", "energy_lr")}
    return {"objective": loss, "rollout": replace(rollout, kept=1), "negative": negative, **numbers}


def _states(data: Any, density: str | None) -> BinaryData:
    if not isinstance(data, CountData):
        raise UserError("dataset: family=energy learns from arrays of states, such as dataset=counts or dataset=planar")
    if data.train_seen is not None:
        raise UserError("dataset: missing entries need family=blackout")
    if data.max_count >= _MOST_LEVELS:
        raise UserError(f"dataset: states must be from 0 to {_MOST_LEVELS - 1}; this data has {data.max_count}")
    return BinaryData(data, None, density)
