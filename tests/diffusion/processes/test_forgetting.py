"""What uniform and absorbing processes know in closed form is what their matrices say."""

from __future__ import annotations

import pytest
import torch

from blackout.diffusion.processes import Absorbing, Uniform
from blackout.diffusion.processes.finite import FiniteJumpProcess, FiniteProcess

GENERATOR = torch.Generator().manual_seed(0)
S, T = torch.tensor([0.1, 0.7]).double(), torch.tensor([0.4, 2.5]).double()
ZERO = torch.zeros(2).double()


@pytest.mark.parametrize("process", [Uniform(6), Absorbing(6), Absorbing(6, mask=2)])
def test_closed_forms_are_those_of_the_matrices(process: FiniteJumpProcess) -> None:
    x = torch.randint(process.num_states, (2, 40), generator=GENERATOR)
    for name in ("rows", "columns"):
        exact = getattr(FiniteProcess, name)(process, x, S, T)
        assert torch.allclose(getattr(process, name)(x, S, T), exact, atol=1e-14)
    weights = torch.rand(2, 5, process.num_states, dtype=torch.float64, generator=GENERATOR)
    assert torch.allclose(process.propagate(weights, S, T), FiniteProcess.propagate(process, weights, S, T))
    t = torch.tensor(0.9)
    assert torch.allclose(process.prior_pmf(t), FiniteProcess.prior_pmf(process, t), atol=1e-14)
    for own, exact in zip(process._against_prior(t), FiniteProcess._against_prior(process, t), strict=True):
        assert torch.allclose(own, exact, atol=1e-14)
    for name in ("_rates_into", "_rates_out"):
        assert torch.allclose(getattr(process, name)(x), getattr(FiniteJumpProcess, name)(process, x))
    u = torch.rand(2, 40, dtype=torch.float64, generator=GENERATOR)
    assert torch.equal(process._draw_rows(x, T, u), FiniteProcess._draw_rows(process, x, T, u))


def test_thousands_of_levels_take_no_matrix() -> None:
    process = Absorbing(20_000)
    x = torch.randint(20_001, (4, 3), generator=GENERATOR)
    process.check_final_time(12.0)
    xt, _ = process.observe(x, torch.tensor([0.1, 1.0, 3.0, 9.0]).double())
    assert bool(((xt == x) | (xt == process.mask)).all())
    assert process.reverse_rates(x, xt, torch.ones(4).double()).shape == (4, 20_002, 3)
