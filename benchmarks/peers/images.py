"""Digits of 8x8 pixels against other libraries: `python -m benchmarks.peers.images`.

    blackout   this project's default model and sampler
    torchcfm   rectified flow: conditional flow matching with straight paths, Euler's method
    diffusers  DDPM, sampled by DPM-Solver++
    flow_matching  discrete flow matching, sampled by its Euler solver

All are trained by the same loop for the same CPU seconds (budget.py). Learning rate and network
(for flow_matching, the source distribution) of the others are those with the smallest Fréchet
distance to validation images after short trainings; this project's are its defaults. Samples are
judged against test images at equal numbers of network evaluations (judges.py), next to training
images and to images of independent pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.peers.budget import Budget, Generator
from benchmarks.peers.comparison import (
    EVALUATIONS,
    Entry,
    Judgement,
    baseline_runs,
    choose,
    judge_facts,
    run_entry,
    summarise,
)
from benchmarks.peers.generators import DDPM, Blackout, DiscreteFlow, RectifiedFlow
from benchmarks.peers.judges import Judge
from benchmarks.peers.results import make_parser, parse, write_results
from blackout.data import digits

BLACKOUT_LR = 3e-3  # conf/recipe/blackout/digits.yaml
BLACKOUT_BETAS = (0.9, 0.99)  # likewise
LEARNING_RATES = (1e-3, 3e-3)
OTHERS: dict[str, tuple[Callable[..., Generator], tuple[str, ...]]] = {
    "torchcfm rectified flow": (RectifiedFlow, ("shared", "library")),
    "diffusers DDPM, DPM-Solver++": (DDPM, ("shared", "library")),
    "flow_matching discrete flow": (DiscreteFlow, ("uniform", "mask")),
}


def candidates(name: str, seconds: float) -> list[Entry]:
    """Return the settings of another library that are tried."""
    make, choices = OTHERS[name]
    return [
        Entry(name, partial(make, choice=choice), Budget(seconds, lr), choice)
        for choice in choices
        for lr in LEARNING_RATES
    ]


def main(argv: list[str] | None = None) -> None:
    """Tune, train and judge all methods."""
    parser = make_parser("images", __doc__ or "", seconds=200)
    parser.add_argument("--tuning_seconds", type=float, default=20, help="of every tuning trial")
    parser.add_argument("--num_samples", type=int, default=360, help="that are judged")
    options = parse(parser, argv)
    evaluations = EVALUATIONS
    if options.quick:
        options.seconds, options.tuning_seconds, options.num_samples = 0.3, 0.1, 40
        options.trainings, evaluations = 1, (2,)
    data = digits()
    judgement = Judgement(data, Judge(data), options.num_samples, evaluations)

    # 1. Settings of the others, chosen on validation images.
    entries = [Entry("blackout", Blackout, Budget(options.seconds, BLACKOUT_LR, BLACKOUT_BETAS))]
    trials = []
    for name in OTHERS:
        best, tried = choose(candidates(name, options.tuning_seconds), judgement)
        trials += tried
        budget = Budget(options.seconds, best.budget.lr)
        entries.append(Entry(name, best.make, budget, best.settings))

    # 2. Trainings in turns, so that other work on the machine affects all methods alike.
    runs = list(baseline_runs(judgement, range(options.trainings)))
    for seed in range(options.trainings):
        for entry in entries:
            runs += run_entry(entry, seed, judgement)
        write_results(
            options,
            f"8x8 digits, {options.seconds:g} CPU s per training, trainings: {seed + 1}",
            summarise(runs),
            seconds=options.seconds,
            trainings=seed + 1,
            num_samples=options.num_samples,
            judge=judge_facts(judgement),
            tuning_seconds=options.tuning_seconds,
            tuning=trials,
            runs=runs,
        )


if __name__ == "__main__":
    main()
