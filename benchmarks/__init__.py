"""Reproducible measurements: `python -m benchmarks.counts`, `.training`, `.sampling`, `.scores`,
..."""
