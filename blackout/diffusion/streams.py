"""Counter-based random numbers; they live in `blackout.random`."""

from blackout.random.streams import RandomSource, SampleStreams, StepStreams, fold_seed

__all__ = ["RandomSource", "SampleStreams", "StepStreams", "fold_seed"]
