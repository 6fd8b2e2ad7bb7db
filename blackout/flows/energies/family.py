"""The family of energies learned from data with a flow inside, and their evaluation.

`evaluate_energy` reports likelihoods of held-out data by several estimates of log Z, next to
classical models.
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
from blackout.data.count_data import split_array
from blackout.errors import UserError, refuse
from blackout.flows.annealed_importance import anneal
from blackout.flows.draw import build_draw, preview_draw
from blackout.flows.energies.data import DENSITIES, StateData, target_samples
from blackout.flows.energies.model import (
    EnergySampler,
    EnergyWithRates,
    PairEnergy,
    fit_couplings,
    score_couplings,
)
from blackout.flows.energies.negative import FlowSamples, NegativeSampler
from blackout.flows.losses import EstimatedPartition
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Simulation, run_reverse
from blackout.flows.targets import can_enumerate, exact_values, make_target
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.flows.weights import effective_sample_size, jackknife_error, log_mean_exp
from blackout.networks import LocallyEquivariant
from blackout.protocols import Draw, Source
from blackout.random import fold_seed
from blackout.safe_reading import available_memory
from blackout.training.family import ComponentFamily, make_dataset

MAX_LEVELS = 256  # states are stored as uint8
# Fraction of a run in which the energy alone is trained, if its likelihood is a sum over all
# states.
PRETRAINING_FRACTION = 0.3

# evaluation
NUM_AIS_CHAINS = 1024
NUM_AIS_SWEEPS = 256
AIS_CHAINS_PER_ROLLOUT_CHAIN = 16  # limits the chains after a short test run
NUM_TEST_STATES = 4000  # held-out states that are scored (Ou et al. 2025, appendix E.2), and chains
TEST_STATES_PER_ROLLOUT_CHAIN = 64  # limits them after a short test run
NUM_BOUND_STATES = 500  # held-out states whose likelihood is bounded by the reverse chain
NUM_BOUND_STEPS = 32  # of the reverse chain
MAX_PAIR_TABLE = 2048  # sites times levels; a larger table of all pairs does not fit into memory
# z-score that chance does not reach in the largest of a thousand gradients
MAX_GRADIENT_Z_SCORE = 4.5
MIN_VARIANCE = 1e-12  # of a gradient
# keys that separate the uses of the evaluation's seed
SAMPLER_KEY = 1
AIS_KEY = 2
BOUND_KEY = 4


def evaluate_energy(model: EnergySampler, source: Source, seed: int) -> dict[str, Any]:
    """Evaluate the NLL of test data with log Z by AIS and by the flow, and bounds by the chain.

    References: Ou et al. 2025, appendix E.2; AIS: this project, checked in
    tests/flows/energies/test_gradients.py.

    Args:
        model: in eval mode.
        source: of its data.
        seed: of all samples.

    Returns:
        `values`, and how they were made, for metrics.json.
    """
    target = model.target
    assert isinstance(source, StateData) and isinstance(target, LearnedEnergy)
    # 1. Test states, chains of the flow, and annealed chains.
    rollout_chains = NUM_AIS_CHAINS if model.rollout is None else model.rollout.chains
    num_ais_chains = min(NUM_AIS_CHAINS, AIS_CHAINS_PER_ROLLOUT_CHAIN * rollout_chains)
    num_states = min(NUM_TEST_STATES, TEST_STATES_PER_ROLLOUT_CHAIN * rollout_chains)
    test = source.test[:num_states].flatten(1).to(model.device)
    chains = torch.arange(num_states, device=model.device)
    rates = model.rates()
    paths = model.simulation.run(target, rates, chains, fold_seed(seed, SAMPLER_KEY))
    annealed = anneal(target, num_ais_chains, NUM_AIS_SWEEPS, fold_seed(seed, AIS_KEY))

    # 2. NLL by the two estimates of log Z.
    energies = target.energy(test).double().detach().cpu()
    mean_energy = float(energies.mean())
    indices = torch.arange(len(test))
    values = {"mean_data_energy": mean_energy, "num_test_states": float(len(test))}
    sample_values = dict[str, SampleValues]()
    for name, log_weights in (("ais", annealed.log_weights), ("sampler", paths.log_weights)):
        log_z = float(log_mean_exp(log_weights))
        error = jackknife_error(log_weights)
        values[f"nll_{name}"] = mean_energy + log_z
        values[f"nll_{name}_error"] = error
        values[f"ess_{name}"] = float(effective_sample_size(log_weights))
        # by Jensen's inequality the logarithm of a mean is too small on average
        sample_values[f"nll_{name}"] = SampleValues(indices, energies + log_z, "lower bound", error)

    # 3. The exact NLL, where all states can be enumerated.
    references = {}
    exact = exact_values(target) if can_enumerate(target) else None
    if exact is not None:
        values["nll_exact"] = mean_energy + exact["log_z"]
        sample_values["nll_exact"] = SampleValues(indices, energies + exact["log_z"])
        references = {"exact": values["nll_exact"]}

    # 4. An upper bound by the reverse chain.
    bound_states = test[:NUM_BOUND_STATES]
    log_likelihood, _ = run_reverse(
        target,
        rates,
        bound_states,
        NUM_BOUND_STEPS,
        chains[: len(bound_states)],
        fold_seed(seed, BOUND_KEY),
    )
    values["nll_chain_bound"] = -float(log_likelihood.mean())
    sample_values["nll_chain_bound"] = SampleValues(
        torch.arange(len(log_likelihood)), -log_likelihood.double().cpu(), "upper bound"
    )

    # 5. Couplings, and whether the likelihood is at its maximum.
    if isinstance(target, PairEnergy):
        values |= score_couplings(target, source)
    train = source.train[:].flatten(1).to(model.device)
    z_score = max_gradient_z_score(target, train, annealed.states.x, annealed.log_weights)
    values["max_gradient_z_score"] = z_score
    convergence = _describe_convergence(z_score, values.get("coupling_slope"))
    print(convergence)
    return {
        "values": values,
        "references": dict.fromkeys(("nll_ais", "nll_sampler", "nll_chain_bound"), references),
        "ais": {"chains": num_ais_chains, "sweeps": NUM_AIS_SWEEPS},
        "sample_values": sample_values,
        "convergence": convergence,
    }


def _describe_convergence(z_score: float, coupling_slope: float | None) -> str:
    """Describe whether training has reached the maximum of the likelihood."""
    verb = "is not" if z_score > MAX_GRADIENT_Z_SCORE else "is"
    sentence = (
        f"the likelihood {verb} at its maximum: its largest gradient is {z_score:.1f} standard "
        f"errors (chance: up to {MAX_GRADIENT_Z_SCORE})"
    )
    if coupling_slope is not None:
        sentence += f"; couplings are {coupling_slope:.2f} times their reference values"
    return sentence


def baseline_nats(source: StateData, num_test: int) -> dict[str, Baseline]:
    """Return -log p of test states by a uniform model, independent sites and a Chow-Liu tree.

    They are fitted to the training states and one more state, which is spread over all. The tree
    is left out if its table of pairs is large.

    References: Chow and Liu 1968.

    Args:
        source: of the data.
        num_test: number of test states, the first ones.
    """
    num_validation = min(NUM_TEST_STATES, source.size("val") or 0)
    validation = source.batch("val", torch.arange(num_validation))["x0"]
    test = source.batch("test", torch.arange(num_test))["x0"]
    held_out = torch.cat([validation, test]).flatten(1).long().cpu()
    train = source.train[:].flatten(1).long().cpu()
    nats = _fit_baselines(train, held_out, source.max_count + 1)
    return {name: Baseline.from_values(values, num_validation) for name, values in nats.items()}


def _fit_baselines(train: Tensor, test: Tensor, levels: int) -> dict[str, Tensor]:
    """Return -log p of test states [m, d], float64 [m], by model; see `baseline_nats`.

    References: Chow and Liu 1968.
    """
    sites = train.shape[1]
    size = len(train) + 1  # with the additional state
    indicators = one_hot(train, levels).double()
    marginals = (indicators.sum(0) + 1 / levels) / size
    log_independent = marginals.log().gather(1, test.T).sum(0)
    uniform = torch.full((len(test),), sites * math.log(levels), dtype=torch.float64)
    nats = {"uniform": uniform, "independent_sites": -log_independent}
    if sites * levels > MAX_PAIR_TABLE:
        return nats
    from scipy.sparse.csgraph import minimum_spanning_tree  # slow to import

    flat = indicators.flatten(1)
    counts = (flat.T @ flat).view(sites, levels, sites, levels)
    pair_marginals = counts.add(levels**-2) / size
    log_ratios = (pair_marginals / (marginals[:, :, None, None] * marginals)).log()
    mutual_information = (pair_marginals * log_ratios).sum((1, 3)).clamp(min=0)
    # shifted, because an edge of weight 0 would be missing
    edges = minimum_spanning_tree(-1 - mutual_information.numpy()).nonzero()
    gain = sum(log_ratios[i, test[:, i], j, test[:, j]] for i, j in zip(*edges, strict=True))
    nats["chow_liu_tree"] = -(log_independent + gain)
    return nats


@torch.no_grad()
def max_gradient_z_score(
    target: LearnedEnergy,
    data: Tensor,
    x: Tensor,
    log_weights: Tensor,
) -> float:
    """Return the largest z-score of the gradient of the penalised likelihood of data.

    The gradient is with respect to all couplings and fields of a pair energy, and to the inverse
    temperature of any other; its standard error is that of data and model samples.

    References: this project; checked in tests/flows/energies/test_gradients.py.

    Args:
        target: the energy.
        data: training states, [n, d].
        x: samples of the energy, [N, d].
        log_weights: of the samples, [N].
    """
    # 1. Gradient and variance.
    data_statistics = _sufficient_statistics(target, data)
    model_statistics = _sufficient_statistics(target, x)
    weights = torch.softmax(log_weights.double(), 0)
    model_mean = weights @ model_statistics
    gradient = data_statistics.mean(0) - model_mean
    data_variance = data_statistics.var(0) / len(data)
    model_variance = weights.square() @ (model_statistics - model_mean).square()
    variance = data_variance + model_variance

    # 2. The penalty, whose subgradient at a coupling of 0 is anything in [-l1, l1].
    if isinstance(target, PairEnergy) and target.l1:
        upper = target.upper.double()
        num_pairs = len(upper)
        at_zero = gradient[:num_pairs].clamp(-target.l1, target.l1)
        gradient[:num_pairs] -= torch.where(upper == 0, at_zero, target.l1 * upper.sign())
    return float((gradient.abs() / variance.clamp(min=MIN_VARIANCE).sqrt()).max())


def _sufficient_statistics(target: LearnedEnergy, states: Tensor) -> Tensor:
    """Return the factors of the parameters in -E, of states [n, d]: [n, parameters]."""
    if not isinstance(target, PairEnergy):
        return -target.energy(states).double()[:, None]
    s = 2 * states.double() - 1
    first, second = torch.triu_indices(target.sites, target.sites, 1, device=s.device)
    products = s[:, first] * s[:, second]
    return torch.cat([products, s], 1) if target.learn_field else products


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
