"""The model: a target, rates that carry noise to it, and how they are trained. It contains no formula: those of the
rates are the network's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.errors import UserError, ensure
from blackout.flows.graphs.problems import GraphTarget, OnGraphs
from blackout.flows.losses import EstimatedPartition
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import Replay, ReplayBatch, Rollout, roll_out
from blackout.flows.simulation import Events, Paths, Scores, Simulation
from blackout.flows.targets import Target
from blackout.flows.weights import effective_sample_size, known_values, log_mean_exp
from blackout.networks import LocallyEquivariant
from blackout.protocols import Drawn, Watch
from blackout.random import SampleStreams, fold_seed
from blackout.training.model import Model

# keys that keep the uses of one seed apart; 2 is dropout's
_BATCH, _ROLLOUT, _VALIDATION, _TEST = 0, 1, 3, 6


BATCH = 1024
"""Chains simulated together unless the caller says otherwise."""


class ChainSampler(Model):
    """A target and rates that carry noise to it: what trained flows and energies with a flow inside have in common."""

    target: Target
    simulation: Simulation
    objective: EstimatedPartition
    rollout: Rollout | None
    replay_buffer: Replay | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.target.shape

    def rates(self, trained: bool = False) -> Scores:
        """The scores as simulations take them, in float64; of the trained weights, or else of the averaged ones.

        G(tau, i | x): rates out [G]_+ and in [-G]_+.
        """
        network = self.network if trained else self.averaged
        dtype = next(network.parameters()).dtype

        def scores(states: States, t: float) -> Tensor:
            with torch.no_grad():
                times = torch.full((len(states.x),), t, dtype=dtype, device=states.x.device)
                return network(states.x, times, states.ratios.to(dtype), *states.target.context()).double()

        return scores

    def known(self) -> dict[str, float]:
        """What is said beside the estimates from samples: exact values, as far as they are within reach."""
        return known_values(self.target)

    def learn(self, network: nn.Module, batch: Mapping[str, Any], due: bool) -> Tensor:
        """The mean squared residual of rates over states of the replay buffer, after a new rollout where one is due.

        A scalar; b states, one for each position, int64 [b] [Ou 2025, Algorithm 1].
        """
        rollout, replay, number = self.rollout, self.replay_buffer, batch["batch"]
        assert rollout is not None and replay is not None and isinstance(network, LocallyEquivariant)
        if due or int(replay.made) == 0:
            self.roll_out(rollout, replay, fold_seed(self.seed, _ROLLOUT, number), number)
        streams = SampleStreams(fold_seed(self.seed, _BATCH), batch["position"].to(self.device)).step(batch["batch"])
        seen = replay.pick(streams.next_draw().uniform((len(batch["position"]), 3)))
        squared, clipped = self.objective(network, self.informed(seen))
        loss = squared.mean()
        self.log("train/loss", loss.detach())
        self.log("train/share_clipped", clipped)
        return loss

    def roll_out(self, rollout: Rollout, replay: Replay, seed: int, number: int) -> None:
        """Make a rollout before the batch of this number."""
        roll_out(rollout, self.target, self.rates(trained=True), seed, replay, number)

    def informed(self, seen: ReplayBatch) -> ReplayBatch:
        """The same with what the network is told about laws, where there are many."""
        return seen

    def paths(
        self,
        indices: Tensor,
        seed: int,
        simulation: Simulation | None = None,
        refine: Refinement | None = None,
        watch: Watch | None = None,
        observe: bool = False,
    ) -> Paths:
        """Chains with these numbers, int64 [b], on the model's device; of groups that are resampled, these members.

        Args:
            indices, seed: the random numbers of chain k are a function of (seed, k); where there is resampling, the
                chain also depends on its group.
            simulation, refine: the model's own simulation and no moves, unless given.
            watch, observe: see `Simulation.run`.
        """
        how, whole = simulation or self.simulation, indices
        if how.resample_below is not None:  # whole groups, of which these are part
            first = (indices // how.group).unique() * how.group
            whole = (first[:, None] + torch.arange(how.group)).flatten()
        paths = how.run(self.target, self.rates(), whole.to(self.device), seed, refine, watch, observe)
        return paths if len(whole) == len(indices) else paths.rows(torch.searchsorted(whole, indices).to(self.device))

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Unweighted output of the chain, `samples` [b, *shape], with `log_weights` float64 [b].

        Samples are of the target only as far as ESS is 1.
        """
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            paths = self.paths(part, seed)
            yield part, {"samples": paths.states.x.view(-1, *self.shape), "log_weights": paths.log_weights}

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """ESS and log Z of the group of chains with the batch's numbers, int64 [b] [Ou 2025, eqs. 30 and 38].

        Chains of a test are others than those of validations, which may have chosen a checkpoint.
        """
        indices, seed = batch["index"].to(self.device), self.chain_seed(batch)
        with torch.autocast(self.device.type, enabled=False):
            log_weights = self.simulation.run(self.target, self.rates(), indices, seed, self.moves).log_weights
            self.look_at_data(batch, log_mean_exp(log_weights))
        self.record("val/ess", effective_sample_size(log_weights).expand(len(indices)))
        self.record("val/log_z", log_mean_exp(log_weights).expand(len(indices)))

    def chain_seed(self, batch: Mapping[str, Any]) -> int:
        """The seed of the chains of a validation or test."""
        return fold_seed(self.seed, _TEST if is_test(batch) else _VALIDATION)

    def look_at_data(self, batch: Mapping[str, Any], log_z: Tensor) -> None:
        """Record what there is to say of a batch that has data."""

    @property
    def moves(self) -> Refinement | None:
        """Moves of the chains of a validation."""
        return None

    @property
    def validation_cost(self) -> int:
        return self.simulation.num_steps

    def example(self) -> tuple[Any, ...]:
        x = torch.zeros(1, self.target.sites, dtype=torch.uint8, device=self.device)
        ratios = torch.zeros(1, self.target.sites, self.target.levels, device=self.device)
        return x, torch.zeros(1, device=self.device), ratios, *self.target.context()


class FlowSampler(ChainSampler):
    """A continuous-time Markov chain from uniform noise to an unnormalised law.

    Args:
        network: (x [B, d], t [B], log-ratios [B, d, S]) -> G [B, d, S], locally equivariant.
        target: the law.
        simulation: how samples are drawn by default.
        objective: what is minimised.
        rollout: how states to learn from are made; None for a model that is only used.
        ema_decay: None for a model without an average (a loaded one).
        seed: with the number of the step it decides everything a training step draws.
    """

    means: ClassVar[tuple[str, ...]] = ("val/ess", "val/log_z")

    def __init__(
        self,
        network: LocallyEquivariant,
        target: Target,
        simulation: Simulation = Events(16),
        objective: EstimatedPartition = EstimatedPartition(),
        rollout: Rollout | None = None,
        ema_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        self.target, self.rollout = target.requires_grad_(False), rollout
        self.simulation, self.objective = simulation, objective
        self.replay_buffer = None if rollout is None else Replay(rollout, target.levels, target.sites, target.many)

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """See `learn`."""
        assert self.rollout is not None
        with torch.autocast(self.device.type, enabled=False):  # the residual is a difference of large numbers
            return self.learn(self.network, batch, batch["batch"] % self.rollout.every == 0)

    def try_once(self) -> None:
        """Evaluate target and network once.

        Raises:
            UserError: see `Target.try_once`.
        """
        self.rates(trained=True)(States.of(self.target, self.target.try_once()), 0.5)

    def tensors(self) -> dict[str, Tensor]:
        """The target's."""
        return {f"target.{name}": value for name, value in self.target.state_dict().items()}


class LawsFlow(FlowSampler):
    """One network for many laws, which it is told, with a normaliser for each of them. As a sampler, of one of them.

    Args: as for `FlowSampler`; the target is an `Ising` with ranges, or a `GraphTarget`.

    Raises:
        ValueError: a rollout whose chains, or whose groups that are resampled, are not those of whole laws.
    """

    means: ClassVar[tuple[str, ...]] = ("val/ess",)
    target: Any
    each = 64
    """Chains of every law in a validation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if (rollout := self.rollout) is not None:
            sizes = [rollout.chains] if rollout.resample_below is None else [rollout.chains, rollout.group]
            if any(size % rollout.chains_per_law for size in sizes):
                raise ValueError(f"rollout.chains and group, {sizes}, are no multiples of {rollout.chains_per_law}")

    def roll_out(self, rollout: Rollout, replay: Replay, seed: int, number: int) -> None:
        """Some laws, drawn for this rollout, each with chains of its own."""
        laws = rollout.chains // rollout.chains_per_law
        law = self.target.drawn(laws, rollout.chains_per_law, seed, rollout.relabel).to(self.device)
        replay.law[replay.slot] = law
        roll_out(rollout, self.target.of(law), self.rates(trained=True), seed, replay, number, laws)

    def informed(self, seen: ReplayBatch) -> ReplayBatch:
        return replace(seen, context=self.target.of(seen.law).context())

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """ESS [Ou 2025, eq. 38] of the chains of each law, with the batch's numbers, int64 [b]."""
        numbers = self.target.numbers if is_test(batch) else self.target.validation_numbers
        indices, numbers = batch["index"].to(self.device), numbers.to(self.device)
        law = numbers[indices // self.each % len(numbers)]
        with torch.autocast(self.device.type, enabled=False):
            paths = self.simulation.run(self.target.of(law), self.rates(), indices, self.chain_seed(batch))
        self.look_at(paths)
        ess = torch.zeros_like(paths.log_weights)
        for one in law.unique():
            ess[law == one] = effective_sample_size(paths.log_weights[law == one])
        self.record("val/ess", ess)

    def look_at(self, paths: Paths) -> None:
        """Record what else there is to say of the chains of a validation."""

    def try_once(self) -> None:
        """Evaluate target and network once."""
        on = self.target.of(torch.zeros(2, dtype=torch.int64, device=self.device))
        states = States.uniform(on, torch.rand(2, self.target.sites, device=self.device))
        try:
            self.rates(trained=True)(states, 0.5)
        except TypeError as error:
            name = type(self.network).__name__
            raise UserError(f"network: {name} cannot be told of many laws: take lesite, or legf for graphs") from error


class GraphFlow(LawsFlow):
    """A continuous-time Markov chain from uniform states of the nodes of a graph to a law on them.

    Args: as for `LawsFlow`; the target is a `GraphTarget`.

    Raises:
        ValueError: a simulation that resamples, or as for `LawsFlow`.
    """

    means = ("val/value", "val/ess")
    target: GraphTarget
    each = 8

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ensure(self.simulation.resample_below is None, "simulation.resample_below is for one law, not for graphs")

    def look_at(self, paths: Paths) -> None:
        """Mean value of solutions without refinement."""
        on = paths.states.target
        assert isinstance(on, OnGraphs)
        self.record("val/value", on.solutions(paths.states.x)[1])

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Solutions of the test graphs, one of each in turn, without refinement; see `ended`."""
        self.target.to(self.device)
        for part in indices.split(batch_size or BATCH) if len(indices) else ():
            law = self.target.numbers[part % len(self.target.numbers)]
            on = self.target.of(law.to(self.device))
            yield part, ended(self.simulation.run(on, self.rates(), part.to(self.device), seed), law)


def is_test(batch: Mapping[str, Any]) -> bool:
    """Whether a batch is of test data, rather than of validation data."""
    return batch.get("split") == "test"


def ended(paths: Paths, law: Tensor) -> dict[str, Tensor]:
    """The solutions that chains on graphs with these numbers, int64 [b], end in.

    Returns:
        samples and solutions uint8 [b, d], graph and nodes int64 [b], value and log_weights float64 [b].
    """
    on, x = paths.states.target, paths.states.x
    assert isinstance(on, OnGraphs)
    solutions, value = on.solutions(x)
    found = {"samples": x, "solutions": solutions, "value": value, "log_weights": paths.log_weights}
    return found | {"graph": law, "nodes": on.nodes}
