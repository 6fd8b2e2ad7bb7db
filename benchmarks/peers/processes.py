"""Processes on 8x8 digits, with one network and one budget: `python -m benchmarks.peers.processes`.

Every process has the head, loss and sampler of its recipe, and the same U-Net (its inputs and its
last layer depend on the process). Pure death is trained once and sampled in three ways. Continuous
flow matching (torchcfm, the same network) is the reference. Learning rates are chosen on
validation images after short trainings. Samples are judged as by `benchmarks.peers.images`; bits
per dimension are those of the likelihood bound of test images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.peers.budget import Budget, Generator
from benchmarks.peers.comparison import (
    EVALUATIONS,
    Entry,
    Judgement,
    choose,
    earlier_results,
    image_options,
    train_in_turns,
)
from benchmarks.peers.generators import Blackout, RectifiedFlow
from benchmarks.peers.judges import Judge
from blackout.data import digits

SCORES = ("bits/dim", "Fréchet distance", "recognised", "forest AUC")
LEARNING_RATES = (1e-3, 3e-3)
PURE_DEATH_SAMPLERS = ("binomial_bridge", "poisson", "multistep")
PROCESSES = {
    "birth-death": "birth_death",
    "uniform": "uniform",
    "absorbing": "absorbing",
    "ordinal": "ordinal",
    "discretised Gaussian": "discrete_gaussian",
}


def entries(seconds: float, lr: float) -> list[Entry]:
    """Return all methods of the table with one learning rate."""
    budget = Budget(seconds, lr, (0.9, 0.99))
    methods: dict[str, Callable[[int], Generator]] = {
        name: partial(Blackout, overrides=(f"process={process}",))
        for name, process in PROCESSES.items()
    }
    return [
        Entry("pure death", Blackout, budget, samplers=PURE_DEATH_SAMPLERS),
        *(Entry(name, make, budget) for name, make in methods.items()),
        Entry("continuous flow matching", partial(RectifiedFlow, choice="shared"), budget),
    ]


def main(argv: list[str] | None = None) -> None:
    """Train and judge every process."""
    options = image_options("processes", __doc__ or "", (60, 10), argv)
    evaluations = (4,) if options.quick else EVALUATIONS
    data = digits()
    judgement = Judgement(data, Judge(data), options.num_samples, evaluations)

    # 1. Learning rates.
    chosen = []
    trials = []
    tried_rates = [entries(options.tuning_seconds, lr) for lr in LEARNING_RATES]
    for same_method in zip(*tried_rates, strict=True):
        best, tried = choose(same_method, judgement, earlier_results(options))
        trials += tried
        chosen.append(replace(best, budget=replace(best.budget, seconds=options.seconds)))

    # 2. Trainings.
    train_in_turns(options, "processes on 8x8 digits", chosen, trials, judgement, SCORES)


if __name__ == "__main__":
    main()
