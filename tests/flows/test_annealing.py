"""Classical samplers: compiled sweeps and clusters, and what they are worth against exact free energies."""

from __future__ import annotations

import pytest
import torch

from blackout.errors import UserError
from blackout.flows import Clusters, Gibbs
from blackout.flows.annealing import Near, anneal, samples_of
from blackout.flows.targets import Couplings, Ising, SpinGlass, Target
from blackout.flows.weights import log_mean_exp


@pytest.mark.parametrize("target", [Ising([3, 4], 0.3, 0.1), SpinGlass(3), Ising(3, -0.1), Couplings(h=[0.3, -1.0])])
def test_compiled_sweeps_draw_what_sweeps_draw(target: Target) -> None:
    centres = torch.randint(2, (50, target.sites), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for law, below in ((target, None), (target, 0.9), (Near(target, centres), None)):
        quick, slow = anneal(law, 50, 40, 3, below), anneal(law, 50, 40, 3, below, refine=Gibbs())
        assert torch.equal(quick.states.x, slow.states.x)
        torch.testing.assert_close(quick.log_weights, slow.log_weights, rtol=0, atol=1e-11)
        torch.testing.assert_close(quick.states.log_density, law.log_density(quick.states.x), rtol=0, atol=1e-11)


def test_annealing_finds_log_z_of_a_large_lattice() -> None:
    for refine, sweeps in ((None, 2048), (Clusters(), 128)):
        found = anneal(Ising(10, 0.22035), 64, sweeps, 0, refine=refine)
        assert abs(float(log_mean_exp(found.log_weights)) - 93.612250) < 0.15


def test_long_chains_are_of_their_law() -> None:
    for target, refine in ((Ising(8, 0.15), None), (Ising(10, 0.22035), Clusters()), (Ising(8, 0.5), Clusters())):
        x, exact = samples_of(target, 200, 48, 0, refine), target.exact()
        density = target.log_density(x)
        assert exact is not None
        assert abs(float(density.mean()) - exact["mean_log_density"]) < 4 * float(density.std()) / 200**0.5
        assert abs(float(target.statistics(x)["magnetisation"].mean())) < 4 / 200**0.5  # both signs


def test_clusters_are_for_what_attracts() -> None:
    for target, clusters in ((SpinGlass(3), Clusters()), (Ising(3, 0.1, 0.2), Clusters(single=True))):
        with pytest.raises(UserError, match="refine=gibbs"):
            anneal(target, 4, 2, refine=clusters)
