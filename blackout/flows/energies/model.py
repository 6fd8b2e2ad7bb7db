"""Models that learn an energy from data together with a flow that samples it.

Also pair energies, and their maximum-likelihood couplings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.distributed import world_size
from blackout.errors import ensure, refuse
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, NegativeSampler
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import ChainSampler
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import ReplayBuffer, Rollout, roll_out
from blackout.flows.simulation import Events, Paths, Simulation
from blackout.flows.targets import all_states
from blackout.flows.targets.couplings import SpinPairs
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.flows.weights import effective_sample_size
from blackout.networks import LocallyEquivariant
from blackout.protocols import Source
from blackout.random import fold_seed

# keys that separate the uses of one seed, besides those of `blackout.flows.model`
NEGATIVE_KEY = 4
START_KEY = 5

MAX_LIKELIHOOD_STATES = 1 << 18  # above it the pseudo-likelihood is maximised instead
MAX_COUPLING = 5.0  # where a sample that lacks some states would make it infinite
TOLERANCE = 1e-9  # of the optimiser of the couplings

# (J [d, d], h [d]) -> a scalar
PairLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@component("energy", "target")
class PairEnergy(SpinPairs, LearnedEnergy):
    """-E = s' J s + h . s of spins s = 2x - 1, J symmetric with a zero diagonal.

    References: Ou et al. 2025, section 4.2.

    Args:
        sites: number of spins.
        l1: weight of the penalty l1 sum_ij |J_ij|.
        learn_field: whether h is learned too.

    Raises:
        ValueError: fewer than two spins, or a negative weight.
    """

    def __init__(self, sites: int, l1: float = 0.0, learn_field: bool = False) -> None:
        super().__init__(2, [sites])
        ensure(sites >= 2, f"a pair energy needs at least two spins, not {sites}")
        ensure(l1 >= 0, f"energy.l1 must be at least 0, not {l1}")
        self.l1 = l1
        self.learn_field = learn_field
        # J above its diagonal, row by row
        self.upper = nn.Parameter(torch.zeros(sites * (sites - 1) // 2))
        zeros = torch.zeros(sites)
        self.field = nn.Parameter(zeros) if learn_field else nn.Buffer(zeros, persistent=False)

    @property
    def couplings(self) -> Tensor:
        """J, [d, d]."""
        rows, columns = torch.triu_indices(self.sites, self.sites, 1, device=self.upper.device)
        matrix = self.upper.new_zeros(self.sites, self.sites)
        matrix = matrix.index_put((rows, columns), self.upper)
        return matrix + matrix.T

    @property
    def pair(self) -> Tensor:  # type: ignore[override]
        """P = 2 J, [d, d]; see `SpinPairs`."""
        return 2 * self.couplings

    def energy(self, x: Tensor) -> Tensor:
        """Return -s' J s - h . s, [...] of states [..., d].

        References: Ou et al. 2025, section 4.2.
        """
        s = self._spins(x)
        return -((s @ self.couplings) * s).sum(-1) - s @ self.field

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Draw every site in turn, [B, d]; local fields are updated when a spin flips.

        References: this project; checked in tests/flows/energies/test_gradients.py.
        """
        with torch.no_grad():
            s = self._spins(x).double()
            pair = self.pair.double()
            local_field = s @ pair + self.field
            for site in range(self.sites):
                probability_of_down = torch.sigmoid(-2 * t * local_field[:, site])
                spin = 2.0 * (probability_of_down <= uniforms[:, site]) - 1
                local_field.addcmul_((spin - s[:, site])[:, None], pair[site])
                s[:, site] = spin
            return (s > 0).to(x.dtype)

    def penalty(self) -> Tensor:
        """Return l1 sum_ij |J_ij|, a scalar.

        References: Ou et al. 2025, appendix E.2.
        """
        return self.l1 * 2 * self.upper.abs().sum()

    def couplings_to_save(self) -> dict[str, np.ndarray]:
        """Return `couplings` J [d, d] and `field` h [d], float32, of -E = s' J s + h . s."""
        return {
            "couplings": self.couplings.detach().cpu().numpy(),
            "field": self.field.detach().cpu().numpy(),
        }

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its settings; the couplings are saved as tensors."""
        return {
            "_target_": "blackout.flows.energies.PairEnergy",
            "sites": self.sites,
            "l1": self.l1,
            "learn_field": self.learn_field,
        }


def fit_couplings(energy: PairEnergy, x: Tensor, *, exact: bool = True) -> bool:
    """Set couplings and fields of a pair energy to those of the largest penalised likelihood.

    Where there are too many states to sum over, half the pseudo-likelihood takes its place, whose
    couplings agree to first order where they are weak. Both are concave.

    References: Besag 1975.

    Args:
        energy: is changed.
        x: data, integers [n, d].
        exact: False for the pseudo-likelihood, whatever the number of states.

    Returns:
        Whether it is the likelihood that was maximised.
    """
    d = energy.sites
    num_pairs = len(energy.upper)
    s = 2 * x.cpu().double() - 1
    exact = exact and 2**d <= MAX_LIKELIHOOD_STATES

    # 1. The pseudo-likelihood first; its maximum is where the likelihood starts.
    losses = [_pseudo_likelihood_loss(s)]
    if exact:
        losses.append(_likelihood_loss(s))

    # 2. Variables: positive and negative parts of the couplings, so that the penalty is smooth, and
    #    fields.
    variables = np.zeros(2 * num_pairs + d)
    coupling_bounds = [(0.0, MAX_COUPLING)] * (2 * num_pairs)
    field_bound = (-MAX_COUPLING, MAX_COUPLING) if energy.learn_field else (0, 0)
    bounds = coupling_bounds + [field_bound] * d
    for loss in losses:
        objective = _penalised_objective(loss, d, energy.l1)
        result = minimize(
            objective,
            variables,
            jac=True,
            bounds=bounds,
            method="L-BFGS-B",
            tol=TOLERANCE,
        )
        variables = result.x
    positive, negative, field = np.split(variables, [num_pairs, 2 * num_pairs])
    with torch.no_grad():
        energy.upper.copy_(torch.from_numpy(positive - negative))
        energy.field.copy_(torch.from_numpy(field))
    return exact


def _pseudo_likelihood_loss(s: Tensor) -> PairLoss:
    """Return minus half the mean log pseudo-likelihood of spins [n, d].

    References: Besag 1975.
    """

    def loss(J: Tensor, h: Tensor) -> Tensor:
        return F.softplus(-2 * s * (2 * s @ J + h)).mean(0).sum() / 2

    return loss


def _likelihood_loss(s: Tensor) -> PairLoss:
    """Return minus the mean log-likelihood of spins [n, d], by a sum over all states."""
    moments = s.T @ s / len(s)
    mean = s.mean(0)
    states = 2 * all_states(2, s.shape[1]).double() - 1

    def loss(J: Tensor, h: Tensor) -> Tensor:
        log_z = torch.logsumexp(((states @ J) * states).sum(-1) + states @ h, 0)
        return log_z - (J * moments).sum() - h @ mean

    return loss


def _penalised_objective(
    loss: PairLoss,
    d: int,
    l1: float,
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return a loss plus the penalty, with its gradient, of the variables of `fit_couplings`."""
    num_pairs = d * (d - 1) // 2
    rows, columns = torch.triu_indices(d, d, 1)

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        variables = torch.tensor(values, requires_grad=True)
        positive, negative, h = variables.split([num_pairs, num_pairs, d])
        J = h.new_zeros(d, d).index_put((rows, columns), positive - negative)
        value = loss(J + J.T, h) + l1 * 2 * (positive + negative).sum()
        (gradient,) = torch.autograd.grad(value, variables)
        return float(value.detach()), gradient.numpy()

    return objective


def score_couplings(energy: PairEnergy, source: Source) -> dict[str, float]:
    """Compare couplings with the true ones.

    `neg_log_rmse` is -log RMSE over all d^2 entries, `neg_log_rmse_zero_couplings` that of J = 0.
    `coupling_slope` is the slope of the least-squares line through 0 on the true couplings, or on
    those of the pseudo-likelihood where the true ones are unknown: below 1 they are too weak.

    References: Ou et al. 2025, table 4.

    Raises:
        UserError: the true target has another number of sites than the energy.
    """
    learned = energy.couplings.detach().cpu().double()
    true_pair: Tensor | None = getattr(getattr(source, "truth", None), "pair", None)
    reference: Tensor | None = None
    values = {}
    if true_pair is not None:
        reference = true_pair.cpu().double() / 2
        refuse(
            reference.shape != learned.shape,
            f"the data are of a target of {len(reference)} sites, the energy has {len(learned)}",
        )
        values["neg_log_rmse"] = _neg_log_rmse(learned, reference)
        zeros = torch.zeros_like(learned)
        values["neg_log_rmse_zero_couplings"] = _neg_log_rmse(zeros, reference)
    elif isinstance(source, CountData):
        fitted = PairEnergy(energy.sites, learn_field=energy.learn_field)
        fit_couplings(fitted, source.train[:].flatten(1), exact=False)
        reference = fitted.couplings.detach().double()
    if reference is not None and bool(reference.any()):
        slope = (learned * reference).sum() / reference.square().sum()
        values["coupling_slope"] = float(slope)
    return values


def _neg_log_rmse(couplings: Tensor, reference: Tensor) -> float:
    """Return -log of the root mean squared error of couplings [d, d]."""
    return float(-(reference - couplings).square().mean().sqrt().log())


class EnergyWithRates(nn.Module):
    """An energy and the rates of its flow: what is trained and averaged.

    Args:
        energy: of the data.
        rates: from the uniform distribution to that of the energy.
    """

    def __init__(self, energy: LearnedEnergy, rates: LocallyEquivariant) -> None:
        super().__init__()
        self.energy = energy
        self.rates = rates

    def forward(self, x: Tensor, t: Tensor, log_ratios: Tensor) -> Tensor:
        """Return G(tau, i | x), [B, d, S]."""
        return cast(Tensor, self.rates(x, t, log_ratios))


class EnergySampler(ChainSampler):
    """An energy and its flow, trained in turn: `flow_steps` of the flow for each of the energy.

    References: Ou et al. 2025, section 4.2.

    Args:
        network: both.
        simulation: of chains, also those of the negative phase.
        negative: training loss of the energy.
        objective: training loss of the flow.
        rollout: settings of the rollouts; one is made before each turn of the flow, and others are
            dropped, because the energy has changed. None for a model that is not trained.
        flow_steps: steps of the flow for each step of the energy.
        pretraining_steps: first steps, of the energy alone: by its likelihood if `negative`
            enumerates all states, otherwise by energy discrepancy.
        energy_lr: learning rate of the energy as a fraction of the flow's.
        train_energy: False if the energy has been fitted to the data before.
        ema_decay: of the average of the weights; None for none.
        seed: with the training step it determines all random numbers of training.

    Raises:
        ValueError: a number out of range, or a simulation in time steps, whose weights are not
            exact.
    """

    validation_metrics = ("val/nll", "val/ess", "val/log_z")
    network: EnergyWithRates

    def __init__(  # noqa: PLR0913 - the parts of a model, as in its description
        self,
        network: EnergyWithRates,
        simulation: Simulation = Events(16),
        negative: NegativeSampler | None = None,
        objective: EstimatedPartition = EstimatedPartition(),
        rollout: Rollout | None = None,
        flow_steps: int = 10,
        pretraining_steps: int = 0,
        energy_lr: float = 1.0,
        train_energy: bool = True,
        ema_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        ensure(flow_steps >= 1, f"flow_steps must be at least 1, not {flow_steps}")
        ensure(
            type(pretraining_steps) is int and pretraining_steps >= 0,
            f"pretraining_steps must be a whole number of at least 0, not {pretraining_steps}",
        )
        ensure(energy_lr > 0, f"energy_lr must be positive, not {energy_lr}")
        self.simulation = simulation
        self.objective = objective
        self.negative: NegativeSampler = FlowSamples() if negative is None else negative
        ensure(
            not self.negative.needs_flow or isinstance(simulation, Events),
            "simulation must be events: simulations in time steps have no exact weights",
        )
        self.rollout = rollout
        self.flow_steps = flow_steps
        self.energy_lr = energy_lr
        self.train_energy = train_energy
        self.pretraining_steps = pretraining_steps if train_energy else 0

        energy = network.energy
        self.negative.prepare(energy.levels, energy.sites, fold_seed(seed, START_KEY))
        self.replay_buffer = None
        if rollout is not None:
            self.replay_buffer = ReplayBuffer(rollout, energy.levels, energy.sites)
        enumerates = isinstance(self.negative, FlowSamples) and self.negative.enumerates(energy)
        self._pretraining_loss = self.negative if enumerates else EnergyDiscrepancy()

    @property
    def target(self) -> LearnedEnergy:  # type: ignore[override]
        """The averaged energy, or that in training if there is no average."""
        return cast(EnergyWithRates, self.averaged).energy

    @property
    def energy(self) -> LearnedEnergy:
        """The energy in training."""
        return self.network.energy

    def exact_references(self) -> dict[str, float]:
        """Return exact values, and how good the couplings of a pair energy are."""
        values = super().exact_references()
        if isinstance(self.target, PairEnergy):
            values |= score_couplings(self.target, self.require_source())
        return values

    def compiled_modules(self, network: nn.Module) -> list[nn.Module]:
        """Return the rates, the large part of `EnergyWithRates`."""
        return [cast(EnergyWithRates, network).rates]

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the flow's parameters, and the energy's with a learning rate of their own."""
        return [
            {"params": list(self.network.rates.parameters())},
            {"params": list(self.network.energy.parameters()), "lr": lr * self.energy_lr},
        ]

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a step of the energy or of the flow, a scalar.

        References: Ou et al. 2025, section 4.2.

        Args:
            batch: with data `x0`, integers [b, *shape].
        """
        refuse(world_size() > 1, "family=energy trains on one device: use trainer.devices=1")
        step = batch["batch_number"]
        turn = (step - self.pretraining_steps) % (self.flow_steps + 1)
        # both losses are differences of large numbers
        with torch.autocast(self.device.type, enabled=False):
            if step < self.pretraining_steps:
                return self._energy_loss(self._pretraining_loss, batch, step)
            is_energy_turn = not self.negative.needs_flow or turn == self.flow_steps
            if self.train_energy and is_energy_turn:
                return self._energy_loss(self.negative, batch, step)
            return self.training_loss(self.network.rates, batch, rollout_due=turn == 0)

    def _energy_loss(
        self,
        negative: NegativeSampler,
        batch: Mapping[str, Any],
        step: int,
    ) -> Tensor:
        """Return a loss of the energy with its penalty, a scalar."""
        loss = negative.loss(self, batch["x0"].flatten(1), fold_seed(self.seed, NEGATIVE_KEY, step))
        self.log("train/energy_loss", loss.detach())
        return loss + self.energy.penalty()

    def roll_out(self, rollout: Rollout, replay_buffer: ReplayBuffer, seed: int, step: int) -> None:
        """Make a rollout of the energy in training."""
        roll_out(rollout, self.energy, self.rates(trained=True), seed, replay_buffer, step)

    @torch.no_grad()
    def draw_negative_chains(self, num_chains: int, seed: int) -> Paths:
        """Simulate weighted chains of the energy in training, [num_chains, d].

        References: Ou et al. 2025, eq. 13.
        """
        indices = torch.arange(num_chains, device=self.device)
        paths = self.simulation.run(
            self.energy,
            self.rates(trained=True),
            indices,
            seed,
            refine=self.validation_refinement,
        )
        self.log("train/ess", effective_sample_size(paths.log_weights))
        return paths

    @property
    def validation_refinement(self) -> Refinement | None:
        """Moves of the rollouts, which leave weights exact and raise the ESS."""
        return None if self.rollout is None else self.rollout.refine

    def record_data(self, batch: Mapping[str, Any], log_z: Tensor) -> None:
        """Record the NLL of held-out data, E(x) + log Z, [b].

        log Z is exact where `negative` enumerates all states. Elsewhere it is the estimate of the
        chains, a scalar, which is too low while they miss modes of the energy.

        References: Ou et al. 2025, appendix E.2.
        """
        if self.enumerates_states:
            log_z = self.target.log_partition().double()
        self.record("val/nll", self.target.energy(batch["x0"].flatten(1)).double() + log_z)

    @property
    def enumerates_states(self) -> bool:
        """Whether log Z of validation and test metrics is a sum over all states."""
        return isinstance(self.negative, FlowSamples) and self.negative.enumerates(self.target)

    def try_once(self) -> None:
        """Evaluate energy and rates at two states."""
        x = torch.zeros(2, self.energy.sites, dtype=torch.uint8, device=self.device)
        self.rates(trained=True)(States.evaluate(self.energy, x), 0.5)
