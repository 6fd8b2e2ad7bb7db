"""Shared plumbing of a training run: optimisation, EMA, run directory, callbacks, loggers, export."""
