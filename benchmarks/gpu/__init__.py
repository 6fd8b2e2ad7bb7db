"""Checks and measurements of one GPU: `python -m benchmarks.gpu`."""
