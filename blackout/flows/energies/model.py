"""Models that learn an energy from data together with a flow that samples it.

References: Ou et al. 2025, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from blackout.distributed import world_size
from blackout.errors import ensure, refuse
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, NegativeSampler
from blackout.flows.energies.pair_energy import PairEnergy, score_couplings
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import ChainSampler
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import ReplayBuffer, Rollout, roll_out
from blackout.flows.simulation import Events, Paths, Simulation
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.flows.weights import effective_sample_size
from blackout.networks import LocallyEquivariant
from blackout.random import fold_seed

# keys that separate the uses of one seed, besides those of `blackout.flows.model`
NEGATIVE_KEY = 4
START_KEY = 5


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

    def record_data_metrics(self, batch: Mapping[str, Any], log_z: Tensor) -> None:
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
