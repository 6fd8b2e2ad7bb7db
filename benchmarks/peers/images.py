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
    choose,
    earlier_results,
    image_options,
    train_in_turns,
)
from benchmarks.peers.generators import DDPM, Blackout, DiscreteFlow, RectifiedFlow
from benchmarks.peers.judges import Judge
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
    options = image_options("images", __doc__ or "", (200, 20), argv)
    evaluations = (2,) if options.quick else EVALUATIONS
    data = digits()
    judgement = Judgement(data, Judge(data), options.num_samples, evaluations)

    # 1. Settings of the others, chosen on validation images.
    entries = [Entry("blackout", Blackout, Budget(options.seconds, BLACKOUT_LR, BLACKOUT_BETAS))]
    trials = []
    for name in OTHERS:
        tried_settings = candidates(name, options.tuning_seconds)
        best, tried = choose(tried_settings, judgement, earlier_results(options))
        trials += tried
        budget = Budget(options.seconds, best.budget.lr)
        entries.append(Entry(name, best.make, budget, best.settings))

    # 2. Trainings.
    train_in_turns(options, "8x8 digits", entries, trials, judgement)


if __name__ == "__main__":
    main()
