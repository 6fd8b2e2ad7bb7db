"""Random numbers: counter-based streams, and exact draws from streams or a torch generator.

Draws take their numbers from a `RandomSource`. `SampleStreams(seed, indices).step(t)` gives sample
k numbers that depend on (seed, k, t) only, whatever the batch; a `torch.Generator` works, too.

Example:
    >>> import torch
    >>> streams = SampleStreams(seed=0, indices=torch.arange(100))
    >>> counts = poisson(torch.full((100, 8), 3.0), streams.step(0))
    >>> counts.shape
    torch.Size([100, 8])
"""

from blackout.random.compiled_draws import compiler_version
from blackout.random.counts import bernoulli, binomial, poisson
from blackout.random.discrete import (
    categorical,
    cumulative_probabilities,
    inverse_cdf,
    systematic_resampling,
)
from blackout.random.low_discrepancy import low_discrepancy
from blackout.random.streams import (
    Draw,
    RandomSource,
    SampleStreams,
    StepStreams,
    fold_seed,
    uniform,
)

__all__ = [
    "Draw",
    "RandomSource",
    "SampleStreams",
    "StepStreams",
    "bernoulli",
    "binomial",
    "categorical",
    "compiler_version",
    "cumulative_probabilities",
    "fold_seed",
    "inverse_cdf",
    "low_discrepancy",
    "poisson",
    "systematic_resampling",
    "uniform",
]
