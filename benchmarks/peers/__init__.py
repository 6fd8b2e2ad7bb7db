"""Comparisons with other libraries, one command per table: `python -m benchmarks.peers.images`.

    images       digits against torchcfm, diffusers and flow_matching
    processes    every process on the same digits with the same network
    cells        counts of genes against scVI, a copula and negative binomials
    energies     log Z and mean energy of a critical Ising model against annealing and Swendsen-Wang
    posteriors   coverage of intervals against importance sampling over training data

A table's results are benchmarks/results/peers_<table>.json. docs/results/images.md, counts.md,
energies.md and posteriors.md show them. The other libraries are the extra `peers`.
"""
