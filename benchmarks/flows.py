"""An epoch of training a flow compared with the paper's procedure: `python -m benchmarks.flows`.

An epoch is a rollout of 256 chains at 64 times and 100 steps of 128 states, on a 4x4 Ising model.
In the paper's procedure, estimates of d log Z / dt take a second pass over all states of the
rollout, and energies are evaluated at every visit. An epoch on graphs of 16 to 20 nodes is a
rollout of 24 graphs x 8 chains at 33 times and 40 steps of 160 states. All times are CPU time of
one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.measure import arguments, interleaved, report, summary
from blackout.flows.graphs.problems import graph_problem
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import GraphFlow
from blackout.flows.path import States, forward_residual
from blackout.flows.refinement import DMALA
from blackout.flows.replay import ReplayBuffer, Rollout, roll_out
from blackout.flows.targets import Ising, Target
from blackout.networks import LESite, LETransformer, LocallyEquivariant
from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES


class Epochs:
    """The two ways of training a network for an epoch.

    Args:
        network: to be trained.
        target: the distribution.
        sizes: times, chains, steps and states of a step.
    """

    def __init__(
        self,
        network: LocallyEquivariant,
        target: Target,
        sizes: tuple[int, int, int, int] = (64, 256, 100, 128),
    ) -> None:
        self.network = network
        self.target = target
        self.points, self.chains, self.steps, self.batch = sizes
        self.rollout = Rollout(
            num_times=self.points, chains=self.chains, buffer_size=1, group_size=self.chains
        )
        self.replay = ReplayBuffer(self.rollout, target.levels, target.sites)
        self.optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
        self.objective = EstimatedPartition()

    def training_step(self) -> None:
        """Train with a rollout whose rates give d log Z / dt, stored with its energies."""

        def net_rates(states: States, t: float) -> Tensor:
            with torch.no_grad():
                return self.network(
                    states.x, torch.full((len(states.x),), t), states.log_ratios.float()
                ).double()

        roll_out(self.rollout, self.target, net_rates, 0, self.replay)
        for _ in range(self.steps):
            squared, _ = self.objective(
                self.network, self.replay.sample(torch.rand(self.batch, 3).double())
            )
            self._step(squared.mean())

    def as_published(self) -> None:
        """Train by Algorithm 1, line by line."""
        x = torch.randint(2, (self.chains, self.target.sites), dtype=torch.uint8)
        states = []
        times = torch.linspace(0, 1, self.points)
        with torch.no_grad():
            for t in times:
                states.append(x)
                g = self.network(x, t.expand(len(x)), self.target.log_ratios(x).float())
                rate = g.clamp(min=0).sum(-1)
                x = torch.where(torch.rand(x.shape) < rate / (self.points - 1), 1 - x, x)
            pairs = zip(states, times, strict=True)
            estimates = torch.stack(
                [self._xi(part, t.expand(len(part))).mean() for part, t in pairs]
            )
        all_states = torch.stack(states)
        for _ in range(self.steps):
            k = torch.randint(self.points, (self.batch,))
            m = torch.randint(self.chains, (self.batch,))
            self._step((self._xi(all_states[k, m], times[k]) - estimates[k]).square().mean())

    def _xi(self, x: Tensor, t: Tensor) -> Tensor:
        states = States.evaluate(self.target, x)
        f = states.dlogp_dt.float()
        ratios = states.log_ratios.float()
        return forward_residual(
            f, self.network(x, t, ratios), (t[:, None, None] * ratios).clamp(max=5)
        )

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def on_graphs(quick: bool) -> Callable[[], None]:
    """Measure an epoch of maximum independent set, with `recipe=flow/sets`."""
    graphs, points, steps, batch = (3, 3, 2, 8) if quick else (24, 33, 40, 160)
    target = graph_problem("mis", num_training=graphs, num_test=1)
    rollout = Rollout(
        num_times=points,
        chains=8 * graphs,
        every_n_steps=steps,
        buffer_size=1,
        refine=DMALA(1, 0.4),
    )
    network = LESite(
        target.sites,
        levels=2,
        channels=48,
        layers=3,
        messages=24,
        heat_bath=True,
        distances=NUM_DISTANCE_CLASSES,
        reach=NUM_DISTANCE_CLASSES - 1,
    )
    model = GraphFlow(network, target, rollout=rollout)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)

    def epoch() -> None:
        for step in range(steps):
            optimizer.zero_grad()
            model.training_step({"batch_number": step, "position": torch.arange(batch)}).backward()
            optimizer.step()

    return epoch


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(device="cpu", threads=1, repetitions=3)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    quick = options.quick
    target = Ising(4, 0.4)
    sizes = ((4, 8, 2, 4),) if quick else ()
    letf = Epochs(LETransformer(16, 2, 8 if quick else 64, 1 if quick else 3), target, *sizes)
    lesite = Epochs(LESite(16, 2, 8 if quick else 32, lattice=[4, 4]), target, *sizes)
    cases = {
        "letf, written out": letf.as_published,
        "letf": letf.training_step,
        "lesite": lesite.training_step,
    }
    cases |= {"lesite on graphs": on_graphs(quick)}
    seconds = interleaved(cases, 1 if quick else options.repetitions, torch.device("cpu"))
    medians = {name: summary(values)["median"] for name, values in seconds.items()}
    rows = [
        {
            "epoch of": name,
            "seconds": value,
            "times faster than written out": medians["letf, written out"] / value,
        }
        for name, value in medians.items()
    ]
    report("one epoch, medians of interleaved runs", rows, options)


if __name__ == "__main__":
    main()
