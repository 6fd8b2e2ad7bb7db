"""Reproducible measurements; benchmarks/README.md lists them by subject."""
