"""The family of energies trained with a sampler inside: from data to a model, and back from its description.

What one is worth is `report`: likelihoods of held-out data by several estimates of log Z, beside classical models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain, component
from blackout.config.allowed_components import check_components, remove_paths
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.data.count_data import divided_counts
from blackout.errors import UserError, refuse
from blackout.files import memory
from blackout.flows.annealed_importance import anneal
from blackout.flows.draw import preview, requested
from blackout.flows.energies.data import DENSITIES, StateData, known_samples
from blackout.flows.energies.model import EnergySampler, Pair, PairEnergy, couplings_found, most_likely
from blackout.flows.energies.negative import FlowSamples, NegativeSampler
from blackout.flows.losses import EstimatedPartition
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Simulation, run_backwards
from blackout.flows.targets import can_enumerate, exact_values, make_target
from blackout.flows.targets.energy_network import Learned
from blackout.flows.weights import effective_sample_size, jackknife, log_mean_exp
from blackout.networks import LocallyEquivariant
from blackout.protocols import Draw, Source
from blackout.random import fold_seed
from blackout.training.family import ComponentFamily, make_dataset

_CHAINS, _SWEEPS = 1024, 256
"""Of annealed importance sampling."""
_COMPARED = 4000
"""Held-out states that are scored, and chains of the sampler."""
_BOUNDED = 500
"""Held-out states whose likelihood by the chain is bounded."""
_MOST_CELLS = 2048
"""Sites times levels, of a table of pairs."""
_STEEP = 4.5
"""Standard errors of a slope of the likelihood that chance does not reach, of up to some thousand slopes."""


def report(model: EnergySampler, source: Source, seed: int) -> dict[str, Any]:
    """NLL with log Z by AIS and by the sampler's weights; NLL by the chain's bound.

    [Ou 2025, appendix E.2]: floats, of held-out states [n, d]. AIS is ours (tests/flows/energies/test_gradients.py).

    Args:
        model: in eval mode.
        source: what it was learned from.
        seed: of all samples.
    """
    target = model.target
    assert isinstance(source, StateData) and isinstance(target, Learned)
    trained = _CHAINS if model.rollout is None else model.rollout.chains
    chains, compared = min(_CHAINS, 16 * trained), min(_COMPARED, 64 * trained)  # few in a rehearsal
    test = source.test[:compared].flatten(1).to(model.device)
    indices = torch.arange(compared, device=model.device)
    paths = model.simulation.run(target, model.rates(), indices, fold_seed(seed, 1))
    annealed = anneal(target, chains, _SWEEPS, fold_seed(seed, 2))
    energies = target.energy(test).double().detach().cpu()
    mean = float(energies.mean())
    values = {"mean_energy_of_data": mean, "held_out": float(len(test))}
    estimates = {"ais": annealed.log_weights, "sampler": paths.log_weights}
    sample_values = dict[str, SampleValues]()
    for name, weights in estimates.items():
        log_z = float(log_mean_exp(weights))
        values[f"nll_{name}"] = mean + log_z
        values[f"nll_{name}_error"] = jackknife(weights)
        # the logarithm of a mean of weights is too small on average, by Jensen's inequality
        sample_values[f"nll_{name}"] = SampleValues(
            torch.arange(len(test)), energies + log_z, "lower bound", values[f"nll_{name}_error"]
        )
        values[f"ess_{name}"] = float(effective_sample_size(weights))
    if (known := exact_values(target) if can_enumerate(target) else None) is not None:
        values["nll_exact"] = mean + known["log_z"]
        sample_values["nll_exact"] = SampleValues(torch.arange(len(test)), energies + known["log_z"])
    bounded, _ = run_backwards(target, model.rates(), test[:_BOUNDED], 32, indices[:_BOUNDED], fold_seed(seed, 4))
    values["nll_chain_bound"] = -float(bounded.mean())
    sample_values["nll_chain_bound"] = SampleValues(
        torch.arange(len(bounded)), -bounded.double().cpu(), "upper bound"
    )
    if isinstance(target, PairEnergy):
        values |= couplings_found(target, source)
    near = {"exact": values["nll_exact"]} if known is not None else {}
    references = dict.fromkeys(("nll_ais", "nll_sampler", "nll_chain_bound"), near)
    train = source.train[:].flatten(1).to(model.device)
    values["steepest_slope"] = steepest_slope(target, train, annealed.states.x, annealed.log_weights)
    far = values["steepest_slope"] > _STEEP
    said: dict[str, Any] = {"values": values, "references": references, "ais": {"chains": chains, "sweeps": _SWEEPS}}
    said["sample_values"] = sample_values
    said["convergence"] = (
        f"the likelihood is {'not ' * far}at its maximum: along a parameter it rises by {values['steepest_slope']:.1f} "
        f"standard errors (chance: up to {_STEEP})"
    )
    if "slope_of_couplings" in values:
        said["convergence"] += f"; couplings are {values['slope_of_couplings']:.2f} times those they are compared with"
    print(said["convergence"])
    return said


def classical_nats(source: StateData, size: int) -> dict[str, Baseline]:
    """-log p of each test state: uniform, sites that are independent, and the best tree of pairs [Chow and Liu 1968].

    Of the first `size` test states [size, d]. Fitted to training states, with one state more that is spread over all.
    The tree is left out where its table of pairs is large.
    """
    number_of_validation = min(_COMPARED, source.size("val") or 0)
    validation = source.batch("val", torch.arange(number_of_validation))["x0"]
    test = source.batch("test", torch.arange(size))["x0"]
    held_out = torch.cat([validation, test]).flatten(1).long().cpu()
    nats = _classical_nats(source.train[:].flatten(1).long().cpu(), held_out, source.max_count + 1)
    return {name: Baseline.from_values(values, number_of_validation) for name, values in nats.items()}


def _classical_nats(train: Tensor, test: Tensor, levels: int) -> dict[str, Tensor]:
    """See `classical_nats`: float64 [m] of states [m, d]."""
    sites = train.shape[1]
    hot, size = one_hot(train, levels).double(), len(train) + 1
    single = (hot.sum(0) + 1 / levels) / size
    alone = single.log().gather(1, test.T).sum(0)
    uniform = torch.full((len(test),), sites * math.log(levels), dtype=torch.float64)
    nats = {"uniform": uniform, "independent_sites": -alone}
    if sites * levels > _MOST_CELLS:
        return nats
    from scipy.sparse.csgraph import minimum_spanning_tree  # what starts a program need not load it

    both = (hot.flatten(1).T @ hot.flatten(1)).view(sites, levels, sites, levels).add(levels**-2) / size
    ratio = (both / (single[:, :, None, None] * single)).log()
    tree = minimum_spanning_tree(-1 - (both * ratio).sum((1, 3)).clamp(min=0).numpy()).nonzero()
    gained = sum(ratio[i, test[:, i], j, test[:, j]] for i, j in zip(*tree, strict=True))
    return nats | {"tree_of_pairs": -(alone + gained)}


@torch.no_grad()
def steepest_slope(target: Learned, data: Tensor, x: Tensor, log_weights: Tensor) -> float:
    """The greatest slope of the likelihood of data, less the penalty's, in standard errors of both sets of states. Ours
    (tests/flows/energies/test_gradients.py).

    Along every coupling and field of a pair energy, and along the inverse temperature of any other.

    Args:
        target: the energy.
        data: what it was learned from, [n, d].
        x, log_weights: weighted states of it, [N, d] and [N].
    """

    def along(states: Tensor) -> Tensor:
        """What parameters multiply in -E, of states [n, d]: [n, parameters]. Of `steepest_slope`."""
        if not isinstance(target, PairEnergy):
            return -target.energy(states).double()[:, None]
        s = 2 * states.double() - 1
        one, two = torch.triu_indices(target.sites, target.sites, 1, device=s.device)
        return s[:, one] * s[:, two] if not target.fields else torch.cat([s[:, one] * s[:, two], s], 1)

    share, model, given = torch.softmax(log_weights.double(), 0), along(x), along(data)
    slope, mean = given.mean(0) - share @ model, share @ model
    variance = given.var(0) / len(data) + share.square() @ (model - mean).square()
    if isinstance(target, PairEnergy) and target.l1:
        upper = target.upper.double()
        pulled = torch.where(upper == 0, slope[: len(upper)].clamp(-target.l1, target.l1), target.l1 * upper.sign())
        slope[: len(upper)] -= pulled
    return float((slope.abs() / variance.clamp(min=1e-12).sqrt()).max())


_MOST_LEVELS = 256
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
    values: ClassVar[Plain] = {"truth.number": int | None, "truth.data_seed": int | None}
    title = "An energy, and a discrete neural flow sampler of it"
    usage = "x = model.sample(16, seed=0)  # integers; model.target.log_density(x) is -E(x)"

    def source(self, settings: Plain, description: Plain | None = None, trusted: tuple[str, ...] = ()) -> StateData:
        """The dataset in the settings, or samples of the target in them; or those of a trained model.

        Raises:
            UserError: there is neither, it cannot be had, or has too many levels.
        """
        made = settings if description is None else description.get("truth") or {}
        if settings.get("dataset") or not made.get("target"):
            advice = "dataset=... must be given, such as dataset=counts dataset.path=binary.npy"
            refuse(description is None and not settings.get("dataset"), advice)
            return _states(make_dataset(settings, description, trusted))
        if description is not None:
            check_components({"target": made["target"]}, "model", trusted)
        law = make_target(made["target"])
        number, most = made.get("number", 0), memory() // (24 * law.sites)  # three splits, and their chains
        refuse(type(number) is not int or not 2 <= number <= most, f"number must be 2 to {most:,}, not {number!r}")
        return known_samples(law, number, made.get("data_seed") or 0, type(law).__name__.lower())

    def source_of(self, data: Any) -> StateData:
        """States from `CountData`, or what `CountData.from_array` takes."""
        return _states(data if isinstance(data, CountData) else CountData.from_array(data))

    def divide(self, data: Any, validation: float) -> CountData:
        """See `divided_counts`."""
        return divided_counts(data, validation)

    def described_parts(self, settings: Plain, source: Source) -> dict[str, Any]:
        """Energy, rates and simulation with all their arguments."""
        chosen = {"energy": "energy", "network": "rates", "simulation": "simulation"}
        return {part: complete_description(settings[name], source.facts, part) for part, name in chosen.items()}

    def data_of(self, settings: Plain, source: Source) -> dict[str, Any]:
        """Where the data are from: a dataset, or a target, of no file, whose samples are learned from."""
        truth = {name: settings.get(name) for name in ("target", "number", "data_seed")}
        return {} if settings.get("dataset") or remove_paths(truth) != truth else {"truth": truth}

    def tensors(self, source: StateData) -> dict[str, Tensor]:
        """`states`, from which pair energies start; exported models have none."""
        return {"states": source.train[:].flatten(1)}

    def assemble(self, description: Plain, tensors: Mapping[str, Tensor], **training: Any) -> EnergySampler:
        """Energy, rates and simulation together; in training pair energies begin with their most likely couplings."""
        described = description["model"]
        energy = instantiate(described["energy"], "energy")
        simulation = instantiate(described["simulation"], "simulation")
        network = instantiate(described["network"], "rates")
        if not isinstance(energy, Learned) or not isinstance(simulation, Simulation):
            raise UserError("energy: choose mlp or pairs; simulation: events")
        if not isinstance(network, LocallyEquivariant):
            raise UserError(f"rates: {type(network).__name__} is not locally equivariant: choose lesite, letf or lemlp")
        if energy.levels != network.levels:
            advice = "energy=mlp takes any number" if isinstance(energy, PairEnergy) else "they must agree"
            raise UserError(f"the energy has {energy.levels} levels, rates and data {network.levels}: {advice}")
        energy.plane = (description.get("dataset") or {}).get("density") in list(DENSITIES)
        alone, negative = training.pop("alone", 0), training.get("negative")
        if training.get("pretraining", 0) is None:
            training["pretraining"] = alone if isinstance(negative, FlowSamples) and negative.sums(energy) else 0
        if training.pop("start", "zero") == "likelihood" and isinstance(energy, PairEnergy):
            training["learned"] = False
            exact = most_likely(energy, tensors["states"])
            kind = "likelihood, summed over all states" if exact else "pseudo-likelihood"
            print(f"energy:  couplings of the greatest {kind}; the steps train its sampler (start=zero: both in turn)")
        return EnergySampler(Pair(energy, network), simulation, **training)

    def training(self, settings: Plain) -> dict[str, Any]:
        """How a model is trained, by the settings."""
        loss, rollout, negative = (instantiate(settings[part], part) for part in ("objective", "rollout", "negative"))
        ours = isinstance(loss, EstimatedPartition) and isinstance(rollout, Rollout)
        if not ours or not isinstance(negative, NegativeSampler):
            raise UserError("objective, rollout and negative must be this family's: loss@objective=dnfs, negative=flow")
        refuse(loss.learns_partition, "leaps learns one energy's normaliser: one in training needs loss@objective=dnfs")
        start = settings["start"]
        refuse(start not in ("likelihood", "zero"), f"start must be likelihood or zero, not {start!r}")
        numbers = {name: settings[name] for name in ("inner", "pretraining", "energy_lr", "start")}
        numbers["alone"] = int(_ALONE * (settings["trainer"]["max_steps"] or 0))
        return {"objective": loss, "rollout": replace(rollout, kept=1), "negative": negative, **numbers}

    def draw(self, model: EnergySampler, request: Plain) -> Draw:
        """As for a flow."""
        return requested(model, request)

    def preview(self, model: EnergySampler, num_samples: int, num_steps: int | None = None) -> Draw:
        """Samples with estimates from more of them than are shown."""
        return preview(model, model.rollout)

    def report(self, model: EnergySampler, source: Source, settings: Plain) -> dict[str, Any]:
        """Likelihoods of held-out data by several estimates of log Z, and MMD of samples."""
        return report(model, source, int(settings.get("seed") or 0))

    def sample_values(
        self, model: EnergySampler, source: Source, name: str, index: Tensor, values: Tensor
    ) -> SampleValues | None:
        """Nats of each test state, where log Z is summed over all states; estimates of it have no known error here."""
        return SampleValues(index, values) if name == "test/nll" and model.sums_states else None

    def baselines(self, source: StateData, size: int, settings: Plain) -> dict[str, dict[str, Baseline]]:
        """Nats per test state of models that need no log Z."""
        names = ("test/nll", "nll_exact", "nll_ais", "nll_sampler", "nll_chain_bound")
        return dict.fromkeys(names, classical_nats(source, size) if size else {})


def _states(data: Any) -> StateData:
    if not isinstance(data, CountData):
        raise UserError("dataset: family=energy learns from arrays of states, such as dataset=counts or dataset=planar")
    refuse(data.train_seen is not None, "dataset: missing entries need family=blackout")
    refuse(data.max_count >= _MOST_LEVELS, f"dataset: states go from 0 to {_MOST_LEVELS - 1}, not to {data.max_count}")
    return StateData(**{one.name: getattr(data, one.name) for one in fields(data) if one.init})
