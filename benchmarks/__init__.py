"""Measurements anyone can repeat: `python -m benchmarks.counts`, `.training`, `.sampling`, `.scores`."""
