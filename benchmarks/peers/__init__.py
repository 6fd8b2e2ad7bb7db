"""Comparisons with other libraries, one command per table: `python -m benchmarks.peers.images`.

    images       digits against torchcfm, diffusers and flow_matching
    processes    every process on the same digits with the same network
    energies     log Z of a critical Ising model against annealing and Swendsen-Wang
    posteriors   coverage of intervals against importance sampling over training data

A table's results are benchmarks/results/peers_<table>.json, and docs/results/peers.md shows them.
The other libraries are the extra `peers`.
"""
