"""Compiled cluster moves equal the plain loop; sweeps are compared in test_annealing.py."""

from __future__ import annotations

import pytest
import torch

from blackout.flows import Clusters, numba_sweeps
from blackout.flows.refinement import States
from blackout.flows.targets import Ising, Potts, Target
from blackout.random import SampleStreams


@pytest.mark.parametrize(
    "target, single",
    [(Ising([3, 4], 0.6, 0.1), False), (Potts([2, 3], 3, 0.8), False), (Ising([3, 3], 0.6), True)],
)
def test_compiled_clusters_equal_the_plain_loop(
    target: Target, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(target.levels, (20, target.sites), generator=generator).to(torch.uint8)
    states = States.evaluate(target, x)
    moves = Clusters(single=single)

    def move() -> States:
        return moves.move(target, states, 0.8, SampleStreams(1, torch.arange(20)).step(0))

    compiled = move()
    monkeypatch.setattr(numba_sweeps, "cluster_move", numba_sweeps.cluster_move.py_func)
    plain = move()
    assert not torch.equal(plain.x, states.x)
    assert torch.equal(compiled.x, plain.x)
    torch.testing.assert_close(compiled.log_density, plain.log_density, rtol=0, atol=1e-12)
