"""Models: a target, the rates that carry the uniform distribution to it, and their training.

Formulas are elsewhere: those of the path in `path`, of the loss in `losses`, of the rates in the
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.errors import UserError, ensure
from blackout.flows.graphs.target import GraphInstances, GraphTarget
from blackout.flows.losses import EstimatedPartition
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import ReplayBatch, ReplayBuffer, Rollout, roll_out
from blackout.flows.simulation import Events, NetRates, Paths, Simulation
from blackout.flows.targets import Target
from blackout.flows.weights import effective_sample_size, exact_references, log_mean_exp
from blackout.networks import LocallyEquivariant
from blackout.protocols import Drawn, Watch
from blackout.random import SampleStreams, fold_seed
from blackout.representation import join_values
from blackout.training.model import Model

# keys that separate the uses of one seed; 2 is the key of dropout
BATCH_KEY = 0
ROLLOUT_KEY = 1
VALIDATION_KEY = 3
TEST_KEY = 6

BATCH_SIZE = 1024  # chains simulated together unless the caller chooses


class ChainSampler(Model):
    """A target with rates: what trained flows and energies with a flow inside have in common."""

    target: Target
    simulation: Simulation
    objective: EstimatedPartition
    rollout: Rollout | None
    replay_buffer: ReplayBuffer | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.target.shape

    def rates(self, *, trained: bool = False) -> NetRates:
        """Return the net rates G as simulations call them, in float64.

        Args:
            trained: use the weights in training instead of their average.
        """
        network = self.network if trained else self.averaged
        dtype = next(network.parameters()).dtype

        def net_rates(states: States, t: float) -> Tensor:
            with torch.no_grad():
                times = torch.full((len(states.x),), t, dtype=dtype, device=states.x.device)
                log_ratios = states.log_ratios.to(dtype)
                g = network(states.x, times, log_ratios, *states.target.context())
                return g.double()

        return net_rates

    def exact_references(self) -> dict[str, float]:
        """Return values that are shown next to the estimates: exact ones, where known."""
        return exact_references(self.target)

    def training_loss(
        self, network: nn.Module, batch: Mapping[str, Any], *, rollout_due: bool
    ) -> Tensor:
        """Return the mean squared residual over states of the replay buffer, a scalar.

        References: Ou et al. 2025, Algorithm 1.

        Args:
            network: the rates in training.
            batch: with the training step `batch` and `position`, int64 [b].
            rollout_due: whether a rollout is made first.
        """
        rollout = self.rollout
        replay_buffer = self.replay_buffer
        assert rollout is not None and replay_buffer is not None
        assert isinstance(network, LocallyEquivariant)
        step = batch["batch_number"]
        if rollout_due or int(replay_buffer.num_rollouts) == 0:
            self.roll_out(rollout, replay_buffer, fold_seed(self.seed, ROLLOUT_KEY, step), step)
        position = batch["position"].to(self.device)
        streams = SampleStreams(fold_seed(self.seed, BATCH_KEY), position).step(step)
        uniforms = streams.next_draw().uniform((len(position), 3))
        replay_batch = self.add_context(replay_buffer.sample(uniforms))
        squared_residuals, clipped_fraction = self.objective(network, replay_batch)
        loss = squared_residuals.mean()
        self.log("train/loss", loss.detach())
        self.log("train/clipped_fraction", clipped_fraction)
        return loss

    def roll_out(self, rollout: Rollout, replay_buffer: ReplayBuffer, seed: int, step: int) -> None:
        """Make a rollout before a training step."""
        roll_out(rollout, self.target, self.rates(trained=True), seed, replay_buffer, step)

    def add_context(self, batch: ReplayBatch) -> ReplayBatch:
        """Add what identifies the target of each row, for families of targets."""
        return batch

    def simulate(
        self,
        indices: Tensor,
        seed: int,
        *,
        simulation: Simulation | None = None,
        refine: Refinement | None = None,
        watch: Watch | None = None,
        record: bool = False,
    ) -> Paths:
        """Simulate the chains with these indices, int64 [b], on the model's device.

        Args:
            indices: of the chains; with resampling their whole groups are simulated.
            seed: chain k is a function of (seed, k), and of its group if it is resampled.
            simulation: in place of the model's own.
            refine: moves after every step.
            watch: see `Simulation.run`.
            record: see `Simulation.run`.
        """
        simulation = simulation or self.simulation
        simulated = indices
        if simulation.resample_below is not None:
            group_size = simulation.group_size
            first = (indices // group_size).unique() * group_size
            simulated = (first[:, None] + torch.arange(group_size)).flatten()
        paths = simulation.run(
            self.target,
            self.rates(),
            simulated.to(self.device),
            seed,
            refine=refine,
            watch=watch,
            record=record,
        )
        if len(simulated) == len(indices):
            return paths
        return paths.select(torch.searchsorted(simulated, indices).to(self.device))

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Yield indices [b] and final states `samples` [b, *shape] with `log_weights` float64 [b].

        The samples have the target's distribution only if the ESS is 1.
        """
        if len(indices) == 0:
            return
        for part in indices.split(batch_size or BATCH_SIZE):
            paths = self.simulate(part, seed)
            samples = paths.states.x.view(-1, *self.shape)
            yield part, {"samples": samples, "log_weights": paths.log_weights}

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record ESS and log Z of the chains with the indices of a batch, int64 [b].

        A test has other chains than validations, which may have chosen the checkpoint.

        References: Ou et al. 2025, eqs. 30 and 38.
        """
        indices = batch["index"].to(self.device)
        seed = self.chain_seed(batch)
        with torch.autocast(self.device.type, enabled=False):
            paths = self.simulation.run(
                self.target,
                self.rates(),
                indices,
                seed,
                refine=self.validation_refinement,
            )
            log_z = log_mean_exp(paths.log_weights)
            self.record_data_metrics(batch, log_z)
        self.record("val/ess", effective_sample_size(paths.log_weights).expand(len(indices)))
        self.record("val/log_z", log_z.expand(len(indices)))

    def chain_seed(self, batch: Mapping[str, Any]) -> int:
        """Return the seed of the chains of a validation or test."""
        return fold_seed(self.seed, TEST_KEY if is_test_batch(batch) else VALIDATION_KEY)

    def record_data_metrics(self, batch: Mapping[str, Any], log_z: Tensor) -> None:
        """Record metrics of the data in a batch, if there are data."""

    @property
    def validation_refinement(self) -> Refinement | None:
        """Moves of the chains of a validation."""
        return None

    @property
    def validation_cost(self) -> int:
        """Network evaluations per chain of a validation."""
        return self.simulation.num_steps

    def example_inputs(self) -> tuple[Any, ...]:
        """Return arguments of one network evaluation for one state."""
        x = torch.zeros(1, self.target.sites, dtype=torch.uint8, device=self.device)
        log_ratios = torch.zeros(1, self.target.sites, self.target.levels, device=self.device)
        return x, torch.zeros(1, device=self.device), log_ratios, *self.target.context()


class FlowSampler(ChainSampler):
    """Discrete neural flow sampler: a continuous-time Markov chain to an unnormalised target.

    References: Ou et al. 2025.

    Args:
        network: (x [B, d], t [B], log-ratios [B, d, S]) -> G [B, d, S], locally equivariant.
        target: the distribution.
        simulation: of samples by default.
        objective: training loss.
        rollout: settings of the rollouts; None for a model that is not trained.
        ema_decay: of the average of the weights; None for none.
        seed: with the training step it determines all random numbers of training.

    Example:
        >>> from blackout.flows import Ising
        >>> from blackout.networks import LESite
        >>> model = FlowSampler(LESite(sites=9, levels=2, channels=8), Ising(size=3))
        >>> [samples["samples"].shape for _, samples in model.eval().batches(torch.arange(4))]
        [torch.Size([4, 3, 3])]
    """

    validation_metrics: ClassVar[tuple[str, ...]] = ("val/ess", "val/log_z")

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
        self.target = target.requires_grad_(False)
        self.rollout = rollout
        self.simulation = simulation
        self.objective = objective
        self.replay_buffer = None
        if rollout is not None:
            self.replay_buffer = ReplayBuffer(
                rollout,
                target.levels,
                target.sites,
                target.amortised,
            )

    def extra_repr(self) -> str:
        """Return what `repr` shows of the model."""
        parts = {"target": self.target, "simulation": self.simulation}
        return f"{join_values(parts)}, {super().extra_repr()}"

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a training step; see `training_loss`."""
        assert self.rollout is not None
        rollout_due = batch["batch_number"] % self.rollout.every_n_steps == 0
        # the residual is a difference of large numbers
        with torch.autocast(self.device.type, enabled=False):
            return self.training_loss(self.network, batch, rollout_due=rollout_due)

    def try_once(self) -> None:
        """Evaluate target and network once.

        Raises:
            UserError: see `Target.check`.
        """
        states = States.evaluate(self.target, self.target.check())
        self.rates(trained=True)(states, 0.5)

    def tensors(self) -> dict[str, Tensor]:
        """Return the target's tensors, which are saved with the model."""
        return {f"target.{name}": value for name, value in self.target.state_dict().items()}


class AmortisedFlow(FlowSampler):
    """One network for a family of targets, with a d log Z_t / dt for each instance.

    `simulate` and `batches` draw from the target as a single one.

    References: this project; checked in tests/flows/test_training.py.

    Args:
        args, kwargs: see `FlowSampler`; the target is an `Ising` with ranges or a `GraphTarget`.

    Raises:
        ValueError: rollout.chains, or the groups that are resampled, are not multiples of
            rollout.chains_per_instance.
    """

    validation_metrics: ClassVar[tuple[str, ...]] = ("val/ess",)
    target: Any
    validation_chains_per_instance = 64

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rollout = self.rollout
        if rollout is None:
            return
        sizes = {"chains": rollout.chains}
        if rollout.resample_below is not None:
            sizes["group_size"] = rollout.group_size
        for name, size in sizes.items():
            ensure(
                size % rollout.chains_per_instance == 0,
                f"rollout.{name} must be a multiple of rollout.chains_per_instance, "
                f"{rollout.chains_per_instance}, not {size}",
            )

    def roll_out(self, rollout: Rollout, replay_buffer: ReplayBuffer, seed: int, step: int) -> None:
        """Make a rollout of some instances, each with `chains_per_instance` chains."""
        num_instances = rollout.chains // rollout.chains_per_instance
        index = self.target.sample_instances(
            num_instances, rollout.chains_per_instance, seed, relabel=rollout.relabel_nodes
        ).to(self.device)
        replay_buffer.instance[replay_buffer.next_slot] = index
        target = self.target.instances(index)
        net_rates = self.rates(trained=True)
        roll_out(rollout, target, net_rates, seed, replay_buffer, step, num_instances)

    def add_context(self, batch: ReplayBatch) -> ReplayBatch:
        """Add what identifies the target of each row."""
        return replace(batch, context=self.target.instances(batch.instance).context())

    @torch.no_grad()
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the ESS of the chains of each instance; the batch has their indices, int64 [b].

        References: Ou et al. 2025, eq. 38.
        """
        if is_test_batch(batch):
            instances = self.target.test_instances.to(self.device)
        else:
            instances = self.target.validation_instances.to(self.device)
        chains = batch["index"].to(self.device)
        row = chains // self.validation_chains_per_instance % len(instances)
        index = instances[row]
        target = self.target.instances(index)
        with torch.autocast(self.device.type, enabled=False):
            paths = self.simulation.run(target, self.rates(), chains, self.chain_seed(batch))
        self.record_chain_metrics(paths)
        ess = torch.zeros_like(paths.log_weights)
        for instance in index.unique():
            rows = index == instance
            ess[rows] = effective_sample_size(paths.log_weights[rows])
        self.record("val/ess", ess)

    def record_chain_metrics(self, paths: Paths) -> None:
        """Record further metrics of the chains of a validation."""

    def try_once(self) -> None:
        """Evaluate target and network once.

        Raises:
            UserError: the network cannot be conditioned on the instance.
        """
        index = torch.zeros(2, dtype=torch.int64, device=self.device)
        target = self.target.instances(index)
        states = States.initial(target, torch.rand(2, self.target.sites, device=self.device))
        network = self.network
        network = network.body if isinstance(network, LocallyEquivariant) else network
        try:
            # the arguments are states, times, log-ratios and the parameters of the target
            signature(network.forward).bind(None, None, None, *target.context())
        except TypeError as error:
            name = type(self.network).__name__
            raise UserError(
                f"network: {name} cannot be conditioned on a target's parameters; "
                "choose network=lesite, or lesite_graph or legf for graphs"
            ) from error
        self.rates(trained=True)(states, 0.5)


class GraphFlow(AmortisedFlow):
    """One flow for a problem on many graphs.

    References: Ou et al. 2025, section 4.3.

    Args:
        args, kwargs: see `FlowSampler`; the target is a `GraphTarget`.

    Raises:
        ValueError: a simulation with resampling, or see `AmortisedFlow`.
    """

    validation_metrics = ("val/value", "val/ess")
    target: GraphTarget
    validation_chains_per_instance = 8

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ensure(
            self.simulation.resample_below is None,
            "simulation.resample_below must be null for graphs",
        )

    def record_chain_metrics(self, paths: Paths) -> None:
        """Record the mean value of the repaired solutions."""
        target = paths.states.target
        assert isinstance(target, GraphInstances)
        _, values = target.solutions(paths.states.x)
        self.record("val/value", values)

    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Yield indices [b] and solutions of the test graphs in turn; see `solution_arrays`."""
        if len(indices) == 0:
            return
        self.target.to(self.device)
        graphs = self.target.test_instances
        for part in indices.split(batch_size or BATCH_SIZE):
            graph = graphs[part % len(graphs)]
            target = self.target.instances(graph.to(self.device))
            paths = self.simulation.run(target, self.rates(), part.to(self.device), seed)
            yield part, solution_arrays(paths, graph)


def is_test_batch(batch: Mapping[str, Any]) -> bool:
    """Return whether a batch is of test data, rather than of validation data."""
    return batch.get("split") == "test"


def solution_arrays(paths: Paths, graph: Tensor) -> dict[str, Tensor]:
    """Return the repaired solutions of chains on graphs with these indices, int64 [b].

    Returns:
        `samples` and `solutions` uint8 [b, d], `graph` and `nodes` int64 [b], `value` and
        `log_weights` float64 [b].
    """
    target = paths.states.target
    assert isinstance(target, GraphInstances)
    x = paths.states.x
    solutions, value = target.solutions(x)
    return {
        "samples": x,
        "solutions": solutions,
        "value": value,
        "log_weights": paths.log_weights,
        "graph": graph,
        "nodes": target.num_nodes,
    }
