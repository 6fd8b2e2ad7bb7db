"""The family of energies learned from data with a flow inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component
from blackout.config.allowed_components import check_components, remove_paths
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.data.count_data import split_array
from blackout.errors import UserError, refuse
from blackout.flows.draw import build_draw, preview_draw
from blackout.flows.energies.data import DENSITIES, StateData, target_samples
from blackout.flows.energies.evaluation import baseline_nats, evaluate_energy
from blackout.flows.energies.model import EnergySampler, EnergyWithRates
from blackout.flows.energies.negative import FlowSamples, NegativeSampler
from blackout.flows.energies.pair_energy import PairEnergy, fit_couplings
from blackout.flows.losses import EstimatedPartition
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Simulation
from blackout.flows.targets import make_target
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.networks import LocallyEquivariant
from blackout.protocols import Draw, Source
from blackout.safe_reading import available_memory
from blackout.training.family import ComponentFamily, make_dataset

MAX_LEVELS = 256  # states are stored as uint8
# Fraction of a run in which the energy alone is trained, if its likelihood is a sum over all
# states.
PRETRAINING_FRACTION = 0.3


@component("family")
@dataclass(frozen=True)
class EnergyFamily(ComponentFamily):
    """Energies p proportional to exp(-E) learned from data, each with a flow that samples it.

    Args:
        monitor: validation metric that selects the best checkpoint; less is better.
    """

    monitor: str = "val/nll"
    parts = ("energy", "network", "simulation")
    values: ClassVar[Plain] = {"truth.target_samples": int | None, "truth.data_seed": int | None}
    title = "An energy, and a discrete neural flow sampler of it"
    usage = "x = model.sample(16, seed=0)  # integers; model.target.log_density(x) is -E(x)"

    def source(
        self,
        settings: Plain,
        description: Plain | None = None,
        trusted: tuple[str, ...] = (),
    ) -> StateData:
        """Return the dataset, or samples of the target, of settings or of a trained model.

        Raises:
            UserError: there is neither, it cannot be loaded, or it has too many levels.
        """
        truth = settings if description is None else description.get("truth") or {}
        if settings.get("dataset") or not truth.get("target"):
            refuse(
                description is None and not settings.get("dataset"),
                "dataset=... must be given, such as dataset=counts dataset.path=binary.npy",
            )
            return _as_state_data(make_dataset(settings, description, trusted))
        if description is not None:
            check_components({"target": truth["target"]}, "model", trusted)
        target = make_target(truth["target"])
        num_samples = truth.get("target_samples", 0)
        limit = available_memory() // (
            24 * target.sites
        )  # bytes of three splits, and of their chains
        valid = type(num_samples) is int and 2 <= num_samples <= limit
        refuse(not valid, f"target_samples must be 2 to {limit:,}, not {num_samples!r}")
        name = type(target).__name__.lower()
        return target_samples(target, num_samples, truth.get("data_seed") or 0, name)

    def to_source(self, data: Any) -> StateData:
        """Return states from `CountData`, or from what `CountData.from_array` accepts."""
        if not isinstance(data, CountData):
            data = CountData.from_array(data)
        return _as_state_data(data)

    def divide(self, data: Any, validation: float) -> CountData:
        """Split data; see `split_array`."""
        return split_array(data, validation)

    def describe_parts(self, settings: Plain, source: Source) -> dict[str, Any]:
        """Return the descriptions of energy, rates and simulation with all their arguments."""
        names = {"energy": "energy", "network": "rates", "simulation": "simulation"}
        parts = {}
        for part, name in names.items():
            parts[part] = complete_description(settings[name], source.facts, part)
        return parts

    def describe_data(self, settings: Plain, source: Source) -> dict[str, Any]:
        """Return the description of the target whose samples are the data, if it has no file."""
        truth = {name: settings.get(name) for name in ("target", "target_samples", "data_seed")}
        if settings.get("dataset") or remove_paths(truth) != truth:
            return {}
        return {"truth": truth}

    def tensors(self, source: StateData) -> dict[str, Tensor]:
        """Return `states`, to which pair energies are fitted; exported models have none."""
        return {"states": source.train[:].flatten(1)}

    def assemble(
        self,
        description: Plain,
        tensors: Mapping[str, Tensor],
        **training: Any,
    ) -> EnergySampler:
        """Build a model; in training the couplings of pair energies are fitted first.

        Raises:
            UserError: components of another family, or different numbers of levels.
        """
        # 1. Components.
        parts = description["model"]
        energy = instantiate(parts["energy"], "energy")
        simulation = instantiate(parts["simulation"], "simulation")
        network = instantiate(parts["network"], "rates")
        _check_components(energy, simulation, network)
        density = (description.get("dataset") or {}).get("density")
        # a list, because the density of a damaged description may be unhashable
        energy.plane = density in list(DENSITIES)

        # 2. Pretraining, by default of energies whose likelihood is a sum over all states.
        default_pretraining = training.pop("default_pretraining_steps", 0)
        negative = training.get("negative")
        if training.get("pretraining_steps", 0) is None:
            enumerates = isinstance(negative, FlowSamples) and negative.enumerates(energy)
            training["pretraining_steps"] = default_pretraining if enumerates else 0

        # 3. Maximum-likelihood couplings.
        start = training.pop("start", "zero")
        if start == "likelihood" and isinstance(energy, PairEnergy):
            training["train_energy"] = False
            is_exact = fit_couplings(energy, tensors["states"])
            kind = "likelihood, summed over all states" if is_exact else "pseudo-likelihood"
            print(f"energy:  couplings of the largest {kind}; the steps train its flow")
            print("         (start=zero trains both in turn)")
        return EnergySampler(EnergyWithRates(energy, network), simulation, **training)

    def training_arguments(self, settings: Plain) -> dict[str, Any]:
        """Return the training settings of a model.

        Raises:
            UserError: components of another family, or an unknown `start`.
        """
        objective = instantiate(settings["objective"], "objective")
        rollout = instantiate(settings["rollout"], "rollout")
        negative = instantiate(settings["negative"], "negative")
        if not isinstance(objective, EstimatedPartition):
            raise UserError("objective: family=energy needs loss@objective=dnfs")
        if not isinstance(rollout, Rollout):
            raise UserError("rollout: family=energy needs blackout.flows.Rollout")
        if not isinstance(negative, NegativeSampler):
            raise UserError("negative: family=energy needs negative=flow, pcd or discrepancy")
        refuse(
            objective.learns_partition,
            "objective: leaps needs a fixed energy; choose loss@objective=dnfs",
        )
        start = settings["start"]
        refuse(
            start not in ("likelihood", "zero"),
            f"start must be likelihood or zero, not {start!r}",
        )
        max_steps = settings["trainer"]["max_steps"] or 0
        names = ("flow_steps", "pretraining_steps", "energy_lr", "start")
        return {
            "objective": objective,
            "rollout": replace(rollout, buffer_size=1),
            "negative": negative,
            "default_pretraining_steps": int(PRETRAINING_FRACTION * max_steps),
            **{name: settings[name] for name in names},
        }

    def draw(self, model: EnergySampler, request: Plain) -> Draw:
        """Return the requested draw, as of a flow."""
        return build_draw(model, request)

    def preview(self, model: EnergySampler, num_samples: int, num_steps: int | None = None) -> Draw:
        """Return the draw of pictures during and after training."""
        return preview_draw(model, model.rollout)

    def report(self, model: EnergySampler, source: Source, settings: Plain) -> dict[str, Any]:
        """Return the evaluation of test data; see `evaluate_energy`."""
        return evaluate_energy(model, source, int(settings.get("seed") or 0))

    def sample_values(
        self, model: EnergySampler, source: Source, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Return nats of each test state where log Z is exact; estimates have no error here."""
        if name == "test/nll" and model.enumerates_states:
            return SampleValues(index, values)
        return None

    def baselines(
        self,
        source: StateData,
        size: int,
        settings: Plain,
    ) -> dict[str, dict[str, Baseline]]:
        """Return nats per test state of models that need no log Z; see `baseline_nats`."""
        names = ("test/nll", "nll_exact", "nll_ais", "nll_sampler", "nll_chain_bound")
        return dict.fromkeys(names, baseline_nats(source, size) if size else {})


def _check_components(energy: Any, simulation: Any, network: Any) -> None:
    """Refuse components that are not of this family, or do not fit each other.

    Raises:
        UserError: names the setting and what to choose.
    """
    if not isinstance(energy, LearnedEnergy):
        raise UserError("energy: choose energy=mlp or energy=pairs")
    if not isinstance(simulation, Simulation):
        raise UserError("simulation: choose simulation=events")
    if not isinstance(network, LocallyEquivariant):
        name = type(network).__name__
        raise UserError(f"rates: {name} is not locally equivariant: choose lesite, letf or lemlp")
    if energy.levels != network.levels:
        advice = "they must agree"
        if isinstance(energy, PairEnergy):
            advice = "energy=mlp accepts any number of levels"
        raise UserError(
            f"the energy has {energy.levels} levels, rates and data {network.levels}: {advice}",
        )


def _as_state_data(data: Any) -> StateData:
    """Return count data as states.

    Raises:
        UserError: other data, missing entries, or too many levels.
    """
    if not isinstance(data, CountData):
        raise UserError(
            "dataset: family=energy needs states, such as dataset=counts or dataset=planar",
        )
    refuse(
        data.train_observed is not None, "dataset: data with missing entries need family=blackout"
    )
    refuse(
        data.max_count >= MAX_LEVELS,
        f"dataset: states must be 0 to {MAX_LEVELS - 1}, but the largest is {data.max_count}",
    )
    arguments = {item.name: getattr(data, item.name) for item in fields(data) if item.init}
    return StateData(**arguments)
