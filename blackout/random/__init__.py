"""Random numbers: counter-based streams, and exact draws from a torch generator or from streams."""

from blackout.random.counts import (
    bernoulli,
    binomial,
    categorical,
    compiled_by,
    cumulative,
    invert_rows,
    poisson,
    systematic,
)
from blackout.random.low_discrepancy import low_discrepancy
from blackout.random.streams import Draw, RandomSource, SampleStreams, StepStreams, fold_seed, uniform

__all__ = [
    "Draw", "RandomSource", "SampleStreams", "StepStreams", "bernoulli", "binomial", "categorical", "compiled_by",
    "cumulative", "fold_seed", "invert_rows", "low_discrepancy", "poisson", "systematic", "uniform",
]  # fmt: skip
