"""The claims about flows hold, and the checks detect errors."""

from __future__ import annotations

import pytest
import torch

from blackout.flows.refinement import Gibbs
from blackout.flows.simulation import Events
from blackout.flows.targets import Ising, Potts
from tests.verification import flow_claims as flows
from tests.verification.flow_claims import Enumeration, claims, untrained


@pytest.mark.parametrize("size", [[2, 3], pytest.param(3, marks=pytest.mark.deep)])
def test_every_claim_holds(monkeypatch: pytest.MonkeyPatch, size: list[int] | int) -> None:
    """All claims hold for Potts models of 729 states, and in the deep test for one of 19,683."""
    monkeypatch.setattr(
        flows, "Potts", lambda shape, *rest: Potts(size if shape == 3 else shape, *rest)
    )
    checked = list(claims())
    assert len({claim.name.split(",")[0].split(":")[0] for claim in checked}) >= 8
    assert [(claim.name, claim.error) for claim in checked if not claim.holds] == []


def test_wrong_weights_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.verification import flow_claims as flow_toys

    correct_residual = flow_toys.forward_residual
    monkeypatch.setattr(
        flow_toys,
        "forward_residual",
        lambda f, g, ratios: correct_residual(f, g, ratios) + 1e-4 * g.abs().sum((1, 2)),
    )
    toy = Enumeration(Ising([2, 3], 0.4))
    mass = toy.propagate(untrained(toy.target), 1, weighted=True)
    rho = toy.states.log_density.exp()
    assert float(((mass - rho).abs() / rho.max()).max()) > 1e-6


def test_samples_do_not_depend_on_their_batch_and_resampling_is_unbiased() -> None:
    toy = Enumeration(Ising(3, 0.2))
    scores = toy.lookup(untrained(toy.target, scale=1.0))
    together = Events(3).run(toy.target, scores, torch.arange(40), 5)
    alone = Events(3).run(toy.target, scores, torch.tensor([17, 31]), 5)
    assert torch.equal(alone.states.x, together.states.x[[17, 31]])
    assert torch.allclose(alone.log_weights, together.log_weights[[17, 31]], rtol=0, atol=1e-12)
    with_sweeps = Events(3, gibbs_sweeps=1)
    refined = Events(3).run(toy.target, scores, torch.arange(40), 5, refine=Gibbs())
    assert torch.equal(
        with_sweeps.run(toy.target, scores, torch.arange(40), 5).log_weights, refined.log_weights
    )
    groups = Events(4, resample_below=0.5, group_size=64).run(
        toy.target, scores, torch.arange(64 * 150), 0
    )
    means = groups.log_weights.view(150, 64).exp().mean(1) / torch.tensor(toy.log_z).exp()
    assert abs(float(means.mean()) - 1) < 4 * float(means.std()) / 150**0.5
    # 104 chains: a group of 64 and an incomplete group
    simulation = Events(4, resample_below=0.9, group_size=64)
    uneven = simulation.run(toy.target, scores, torch.arange(104), 0)
    parts = [simulation.run(toy.target, scores, part, 0) for part in torch.arange(104).split(64)]
    assert torch.equal(uneven.states.x, torch.cat([part.states.x for part in parts]))
    together = torch.cat([part.log_weights for part in parts])
    assert torch.allclose(uneven.log_weights, together, rtol=0, atol=1e-12)
    assert not torch.allclose(
        together, Events(4).run(toy.target, scores, torch.arange(104), 0).log_weights
    )
