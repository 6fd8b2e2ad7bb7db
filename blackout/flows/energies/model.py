"""The model: an energy that learns from data, and a flow that learns the energy, in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from blackout.distributed import world_size
from blackout.errors import refuse
from blackout.flows.energies.negative import Discrepancy, FlowSamples, NegativeSampler
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import VALIDATION, ChainSampler
from blackout.flows.path import States
from blackout.flows.replay import Replay, Rollout, roll_out
from blackout.flows.simulation import Events, Paths, Scores, Simulation
from blackout.flows.targets.energies import Learned, PairEnergy, couplings_found
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.networks import LocallyEquivariant
from blackout.random import fold_seed

# keys that keep the uses of one seed apart, besides those of every sampler of chains
_NEGATIVE, _START = 4, 5


class Pair(nn.Module):
    """An energy and the rates of its sampler: what is trained and averaged.

    Args:
        energy: of the data.
        rates: from uniform noise to the energy's law.
    """

    def __init__(self, energy: Learned, rates: LocallyEquivariant) -> None:
        super().__init__()
        self.energy, self.rates = energy, rates

    def forward(self, x: Tensor, t: Tensor, ratios: Tensor) -> Tensor:
        """G(tau, i | x), [B, d, S]."""
        return cast(Tensor, self.rates(x, t, ratios))


class EnergySampler(ChainSampler):
    """Steps of the sampler and of the energy in turn; both resume exactly, with the buffer of states between them.

    Args:
        network: both.
        simulation: how chains are drawn, of the negative phase too.
        negative: how the energy learns.
        objective: of the sampler.
        rollout: how states for the sampler are made; one before each of its turns, the others are dropped, because the
            energy has moved. None for a model that is only used.
        inner: steps of the sampler for each of the energy.
        pretraining: first steps, in which the energy alone is trained: by its likelihood where `negative` sums over all
            states, else by energy discrepancy.
        energy_lr: learning rate of the energy as a share of the sampler's.
        learned: whether the energy is trained; not if it has been fitted to its data before.
        ema_decay: None for a model without an average (a loaded one).
        seed: with the number of the step it decides everything a training step draws.

    Raises:
        ValueError: numbers out of range, or a simulation in time steps, whose weights are not exact.
    """

    means = ("val/nll", "val/ess", "val/log_z")
    network: Pair

    def __init__(
        self,
        network: Pair,
        simulation: Simulation = Events(16),
        negative: NegativeSampler | None = None,
        objective: EstimatedPartition = EstimatedPartition(),
        rollout: Rollout | None = None,
        inner: int = 10,
        pretraining: int = 0,
        energy_lr: float = 1.0,
        learned: bool = True,
        ema_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        if inner < 1 or pretraining < 0 or not energy_lr > 0:
            raise ValueError("inner must be at least 1, pretraining 0, and energy_lr positive")
        self.simulation, self.objective = simulation, objective
        self.negative: NegativeSampler = FlowSamples() if negative is None else negative
        if self.negative.sampled and not isinstance(self.simulation, Events):
            raise ValueError("simulation must be events: those in time steps have no exact weights")
        self.rollout, self.inner, self.energy_lr, self.learned = rollout, inner, energy_lr, learned
        self.pretraining = pretraining if learned else 0
        energy = network.energy
        self.negative.prepare(energy.levels, energy.sites, fold_seed(seed, _START))
        self.replay_buffer = None if rollout is None else Replay(rollout, energy.levels, energy.sites)
        sums = isinstance(self.negative, FlowSamples) and self.negative.sums(energy)
        self._before = self.negative if sums else Discrepancy()

    @property
    def target(self) -> Learned:  # type: ignore[override]
        """The averaged energy, or the trained one where there is no average."""
        return cast(Pair, self.averaged).energy

    @property
    def energy(self) -> Learned:
        """The energy in training."""
        return self.network.energy

    def known(self) -> dict[str, float]:
        """Also how good couplings are."""
        found = couplings_found(self.target, self.require_source()) if isinstance(self.target, PairEnergy) else {}
        return super().known() | found

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The sampler's parameters, and the energy's with a learning rate of their own."""
        energy = {"params": list(self.network.energy.parameters()), "lr": lr * self.energy_lr}
        return [{"params": list(self.network.rates.parameters())}, energy]

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """A step of the sampler, or of the energy after `inner` of those."""
        refuse(world_size() > 1, "family=energy trains on one device: trainer.devices=1")
        number = batch["batch"]
        with torch.autocast(self.device.type, enabled=False):  # both losses are differences of large numbers
            before, turn = number < self.pretraining, (number - self.pretraining) % (self.inner + 1)
            if before or (self.learned and (not self.negative.sampled or turn == self.inner)):
                phase, seed = self._before if before else self.negative, fold_seed(self.seed, _NEGATIVE, number)
                loss = phase.loss(self, batch["x0"].flatten(1), seed)
                self.log("train/energy_loss", loss.detach())
                return loss + self.energy.penalty()
            return self.learn(self.network.rates, batch, turn == 0)

    def roll_out(self, rollout: Rollout, replay: Replay, seed: int, number: int) -> None:
        """Of the energy in training."""
        roll_out(rollout, self.energy, self.rates(trained=True), seed, replay, number)

    @torch.no_grad()
    def fresh(self, number: int, seed: int) -> Paths:
        """Weighted chains of the energy in training."""
        indices = torch.arange(number, device=self.device)
        paths = self._chains(self.energy, self.rates(trained=True), indices, seed)
        self.log("train/ess", effective_sample_size(paths.log_weights))
        return paths

    def _chains(self, energy: Learned, scores: Scores, indices: Tensor, seed: int) -> Paths:
        """With the moves of the rollouts, which leave weights right and lessen what the rates miss."""
        moves = None if self.rollout is None else self.rollout.refine
        return self.simulation.run(energy, scores, indices, seed, moves)

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """ESS, log Z, and NLL of held-out data by this log Z."""
        indices = batch["index"].to(self.device)
        with torch.autocast(self.device.type, enabled=False):
            paths = self._chains(self.target, self.rates(), indices, fold_seed(self.seed, VALIDATION))
            log_z = log_mean_exp(paths.log_weights)
            self.record("val/nll", self.target.energy(batch["x0"].flatten(1)).double() + log_z)
        self.record("val/ess", effective_sample_size(paths.log_weights).expand(len(indices)))
        self.record("val/log_z", log_z.expand(len(indices)))

    def try_once(self) -> None:
        """Evaluate energy and rates at two states."""
        x = torch.zeros(2, self.energy.sites, dtype=torch.uint8, device=self.device)
        self.rates(trained=True)(States.of(self.energy, x), 0.5)
