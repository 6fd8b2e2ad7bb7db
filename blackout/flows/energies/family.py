"""The family of energies trained with a sampler inside: from data to a model, and back from its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from blackout.component import component
from blackout.data import CountData
from blackout.errors import UserError
from blackout.family import Draw, Samples, Source
from blackout.flows.draw import FlowDraw, preview, requested
from blackout.flows.energies.data import BITS, DENSITIES, BinaryData, decode, encode, known_samples
from blackout.flows.energies.energies import Learned, PairEnergy, most_likely
from blackout.flows.energies.model import EnergySampler, Pair
from blackout.flows.energies.negative import FlowSamples, NegativeSampler
from blackout.flows.energies.report import classical_nats, report
from blackout.flows.losses import EstimatedPartition
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Simulation
from blackout.flows.targets import make_target
from blackout.networks import LocallyEquivariant
from blackout.training.descriptions import named_in_file
from blackout.training.family import ComponentFamily, name_of
from blackout.training.instantiate import fill, make, resolve

_MOST_LEVELS = 256
_CELLS, _REACH, _DEPTH, _SIDE = 100, 0.75, 12.0, 400
"""Of a landscape: cells along it, its share of the plane of all states, nats below the top that are black; pixels."""
_ALONE = 0.3
"""Share of a run in which the energy alone is trained, where its likelihood can be summed over all states."""


@component("family")
@dataclass(frozen=True)
class EnergyFamily(ComponentFamily):
    """Energies p in proportion to exp(-E) learned from data, each with a flow that samples it.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen; less is better.
    """

    monitor: str = "val/nll"
    parts = ("energy", "network", "simulation")
    title = "An energy, and a discrete neural flow sampler of it"
    usage = """```python
from blackout import load_model

model = load_model("path/to/this/directory")
x = model.sample(16, seed=0)  # integers; model.target.log_density(x) is -E(x)
```"""

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
            return _states(make(fill(dict(chosen), facts, "dataset"), "dataset"))
        if not (target := made.get("target")):
            raise UserError("dataset=... must be given, such as dataset=counts dataset.path=binary.npy")
        number = made.get("number")
        if type(number) is not int or number < 2:
            raise UserError(f"number must be a whole number of samples of at least 2, not {number!r}")
        law = make_target(target)
        return known_samples(law, number, int(made.get("data_seed") or 0), type(law).__name__.lower())

    def source_of(self, data: Any) -> BinaryData:
        """States from `CountData`, or what `CountData.from_array` takes."""
        return _states(data if isinstance(data, CountData) else CountData.from_array(data))

    def described_parts(self, settings: Mapping[str, Any], source: Source) -> dict[str, Any]:
        """Energy, rates and simulation with all their arguments."""
        chosen = {"energy": "energy", "network": "rates", "simulation": "simulation"}
        return {part: resolve(settings[name], source.facts, part) for part, name in chosen.items()}

    def data_of(self, settings: Mapping[str, Any], source: Source) -> dict[str, Any]:
        """Where the data are from: a dataset, or a target whose samples are learned from."""
        if settings.get("dataset"):
            return {}
        return {"truth": {name: settings[name] for name in ("target", "number", "data_seed")}}

    def tensors(self, source: BinaryData) -> dict[str, Tensor]:
        """`states`, from which pair energies start; exported models have none."""
        return {"states": source.counts.train[:].flatten(1)}

    def assemble(self, description: Mapping[str, Any], tensors: Mapping[str, Tensor], **training: Any) -> EnergySampler:
        """Energy, rates and simulation together; in training pair energies begin with their most likely couplings."""
        described = description["model"]
        energy, simulation = make(described["energy"], "energy"), make(described["simulation"], "simulation")
        network = make(described["network"], "rates")
        if not isinstance(energy, Learned) or not isinstance(simulation, Simulation):
            raise UserError("energy: choose mlp or pairs; simulation: events")
        if not isinstance(network, LocallyEquivariant):
            name = type(network).__name__
            raise UserError(f"rates: {name} is not locally equivariant: choose lesite, letf or lemlp")
        alone, negative = training.pop("alone", 0), training.get("negative")
        if training.get("pretraining", 0) is None:
            training["pretraining"] = alone if isinstance(negative, FlowSamples) and negative.sums(energy) else 0
        if training.pop("start", "zero") == "likelihood" and isinstance(energy, PairEnergy):
            training["learned"] = False
            exact = most_likely(energy, tensors["states"])
            kind = "likelihood, summed over all states" if exact else "pseudo-likelihood"
            print(f"energy:  couplings of the greatest {kind}; the steps train its sampler (start=zero: both in turn)")
        return EnergySampler(Pair(energy, network), simulation, **training)

    def training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """How a model is trained, by the settings."""
        loss, rollout, negative = (make(settings[part], part) for part in ("objective", "rollout", "negative"))
        ours = isinstance(loss, EstimatedPartition) and isinstance(rollout, Rollout)
        if not ours or not isinstance(negative, NegativeSampler):
            raise UserError(
                "objective, rollout and negative must be those of this family: loss@objective=dnfs, negative=flow"
            )
        if loss.learns_partition:
            raise UserError("leaps learns the normaliser of one energy; one that is trained needs loss@objective=dnfs")
        if settings["start"] not in ("likelihood", "zero"):
            raise UserError(f"start must be likelihood or zero, not {settings['start']!r}")
        numbers = {name: settings[name] for name in ("inner", "pretraining", "energy_lr", "start")}
        numbers["alone"] = int(_ALONE * (settings["trainer"]["max_steps"] or 0))
        return {"objective": loss, "rollout": replace(rollout, kept=1), "negative": negative, **numbers}

    def draw(self, model: EnergySampler, request: Mapping[str, Any]) -> Draw:
        """As for a flow."""
        return _shown(model, requested(model, request))

    def preview(self, model: EnergySampler, num_samples: int, num_steps: int | None = None) -> Draw:
        """Samples with estimates from more of them than are shown."""
        return _shown(model, preview(model))

    def dry_run(self, model: EnergySampler) -> None:
        """Evaluate energy and rates once."""
        model.try_once()

    def report(self, model: EnergySampler, source: Source, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Likelihoods of held-out data by several estimates of log Z, and MMD of samples."""
        return report(model, source, int(settings.get("seed") or 0))

    def baselines(self, source: BinaryData, settings: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Nats per held-out state of models that need no log Z."""
        return dict.fromkeys(("val/nll", "nll_ais", "nll_sampler", "nll_chain_bound"), classical_nats(source))

    def facts_of(self, description: Mapping[str, Any], parameters: int) -> dict[str, str]:
        """Energy and rates, with the parameters of both."""
        kinds = {part: name_of(description["model"][part]) for part in self.parts}
        rates = f"{kinds['network']}; together {parameters:,} parameters (averaged weights)"
        return {"energy": kinds["energy"], "rates": rates, "simulation": kinds["simulation"]}


@dataclass
class PlanarDraw(FlowDraw):
    """Chains whose states code points of the plane."""

    @cached_property
    @torch.no_grad()
    def _heights(self) -> Image.Image:
        """log rho over the plane, the highest the brightest."""
        line = torch.linspace(-_REACH, _REACH, _CELLS, dtype=torch.float64) * 2 ** (BITS - 1)
        plane = torch.stack(torch.meshgrid(line, line.flip(0), indexing="xy"), -1).view(-1, 2)
        height = self.model.target.log_density(encode(plane, 1.0).to(self.model.device)).double().cpu()
        shades = (160 * (1 + (height - height.max()) / _DEPTH)).clamp(min=0).to(torch.uint8)
        return Image.fromarray(shades.view(_CELLS, _CELLS).numpy()).convert("RGB").resize((_SIDE, _SIDE))

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Points over the landscape of the energy; None for states side by side."""
        if columns:
            return None
        picture, places = self._heights.copy(), decode(samples["samples"].cpu(), 2.0 ** (BITS - 1)) / _REACH
        for x, y in ((places * torch.tensor([1, -1]) + 1) * _SIDE / 2).tolist():
            ImageDraw.Draw(picture).ellipse((x - 2, y - 2, x + 2, y + 2), fill=(251, 146, 60))
        return picture


def _shown(model: EnergySampler, draw: FlowDraw) -> FlowDraw:
    """The draw with pictures for its data."""
    planar = (model.config.get("dataset") or {}).get("density") in DENSITIES
    return PlanarDraw(**vars(draw)) if planar else draw


def _of_the_model(
    description: Mapping[str, Any], settings: Mapping[str, Any], trusted: tuple[str, ...]
) -> Mapping[str, Any]:
    """The data that a trained model names."""
    if truth := description.get("truth"):
        return dict(truth)
    if not (chosen := description.get("dataset")):
        return {}
    return {"dataset": named_in_file(chosen, "dataset", settings.get("data_dir", "data"), trusted)}


def _states(data: Any) -> BinaryData:
    if not isinstance(data, CountData):
        raise UserError("dataset: family=energy learns from arrays of states, such as dataset=counts or dataset=planar")
    if data.train_seen is not None:
        raise UserError("dataset: missing entries need family=blackout")
    if data.max_count >= _MOST_LEVELS:
        raise UserError(f"dataset: states must be from 0 to {_MOST_LEVELS - 1}; this data has {data.max_count}")
    return BinaryData(data)
