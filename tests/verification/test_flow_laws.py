"""The claims about flows hold, and notice what is wrong."""

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
    """With Potts models of 729 states, and with one of 19,683 as the command has it."""
    monkeypatch.setattr(flows, "Potts", lambda given, *rest: Potts(size if given == 3 else given, *rest))
    found = list(claims())
    assert len({claim.name.split(",")[0].split(":")[0] for claim in found}) >= 8
    assert [(claim.name, claim.error) for claim in found if not claim.holds] == []


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.verification import flow_claims as flow_toys

    true = flow_toys.forward_residual
    monkeypatch.setattr(
        flow_toys, "forward_residual", lambda f, g, ratios: true(f, g, ratios) + 1e-4 * g.abs().sum((1, 2))
    )
    toy = Enumeration(Ising([2, 3], 0.4))
    mass = toy.transported(untrained(toy.target), 1, weighted=True)
    rho = toy.states.log_density.exp()
    assert float(((mass - rho).abs() / rho.max()).max()) > 1e-6


def test_samples_do_not_depend_on_the_others_and_resampling_stays_unbiased() -> None:
    toy = Enumeration(Ising(3, 0.2))
    scores = toy.lookup(untrained(toy.target, scale=1.0))
    together = Events(3).run(toy.target, scores, torch.arange(40), 5)
    alone = Events(3).run(toy.target, scores, torch.tensor([17, 31]), 5)
    assert torch.equal(alone.states.x, together.states.x[[17, 31]])
    assert torch.allclose(alone.log_weights, together.log_weights[[17, 31]], rtol=0, atol=1e-12)
    own, asked = Events(3, gibbs_sweeps=1), Events(3).run(toy.target, scores, torch.arange(40), 5, refine=Gibbs())
    assert torch.equal(own.run(toy.target, scores, torch.arange(40), 5).log_weights, asked.log_weights)
    groups = Events(4, resample_below=0.5, group_size=64).run(toy.target, scores, torch.arange(64 * 150), 0)
    means = groups.log_weights.view(150, 64).exp().mean(1) / torch.tensor(toy.log_z).exp()
    assert abs(float(means.mean()) - 1) < 4 * float(means.std()) / 150**0.5
    simulation = Events(4, resample_below=0.9, group_size=64)  # 104 chains: a group of 64, and what is left over
    uneven = simulation.run(toy.target, scores, torch.arange(104), 0)
    parts = [simulation.run(toy.target, scores, part, 0) for part in torch.arange(104).split(64)]
    assert torch.equal(uneven.states.x, torch.cat([part.states.x for part in parts]))
    together = torch.cat([part.log_weights for part in parts])
    assert torch.allclose(uneven.log_weights, together, rtol=0, atol=1e-12)
    assert not torch.allclose(together, Events(4).run(toy.target, scores, torch.arange(104), 0).log_weights)
