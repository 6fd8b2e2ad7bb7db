"""Evaluation of energies: likelihoods of test data by several estimates of log Z, and baselines.

References: Ou et al. 2025, appendix E.2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from blackout.comparisons import Baseline, SampleValues
from blackout.flows.annealed_importance import anneal
from blackout.flows.energies.data import StateData
from blackout.flows.energies.model import EnergySampler
from blackout.flows.energies.pair_energy import PairEnergy, score_couplings
from blackout.flows.simulation import run_reverse
from blackout.flows.targets import can_enumerate, exact_values
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.flows.weights import effective_sample_size, jackknife_error, log_mean_exp
from blackout.protocols import Source
from blackout.random import fold_seed

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
