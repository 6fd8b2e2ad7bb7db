"""Closed forms of uniform and absorbing processes equal their matrices."""

from __future__ import annotations

import pytest
import torch

from blackout.diffusion.processes import (
    Absorbing,
    BirthDeath,
    Ordinal,
    PureDeath,
    Uniform,
    UniformChain,
)
from blackout.diffusion.processes.finite_states import FiniteJumpProcess, FiniteProcess

S = torch.tensor([0.1, 0.7]).double()
T = torch.tensor([0.4, 2.5]).double()
ZERO = torch.zeros(2).double()


@pytest.mark.parametrize("process", [Uniform(6), Absorbing(6)])
def test_closed_forms_equal_the_matrices(process: FiniteJumpProcess) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(process.num_states, (2, 40), generator=generator)
    for name in ("rows", "columns"):
        exact = getattr(FiniteProcess, name)(process, x, S, T)
        assert torch.allclose(getattr(process, name)(x, S, T), exact, atol=1e-14)
    weights = torch.rand(2, 5, process.num_states, dtype=torch.float64, generator=generator)
    assert torch.allclose(
        process.propagate(weights, S, T), FiniteProcess.propagate(process, weights, S, T)
    )
    t = torch.tensor(0.9)
    assert torch.allclose(process.prior_pmf(t), FiniteProcess.prior_pmf(process, t), atol=1e-14)
    for closed_form, exact in zip(
        process._prior_distances(t), FiniteProcess._prior_distances(process, t), strict=True
    ):
        assert torch.allclose(closed_form, exact, atol=1e-14)
    for name in ("_rates_into", "_rates_out"):
        assert torch.allclose(
            getattr(process, name)(x), getattr(FiniteJumpProcess, name)(process, x)
        )
    u = torch.rand(2, 40, dtype=torch.float64, generator=generator)
    assert torch.equal(process._draw_rows(x, T, u), FiniteProcess._draw_rows(process, x, T, u))


def test_thousands_of_levels_need_no_matrix() -> None:
    process = Absorbing(20_000)
    x = torch.randint(20_001, (4, 3), generator=torch.Generator().manual_seed(0))
    process.check_final_time(12.0)
    xt, _ = process.observe(x, torch.tensor([0.1, 1.0, 3.0, 9.0]).double())
    assert bool(((xt == x) | (xt == process.mask)).all())
    assert process.reverse_rates(x, xt, torch.ones(4).double()).shape == (4, 20_002, 3)


@pytest.mark.parametrize("process", [Uniform(3), Absorbing(3), Ordinal(3), UniformChain(3, 10)])
def test_batches_may_be_empty_and_elements_need_no_axis(process: FiniteProcess) -> None:
    s = torch.tensor(2.0)
    t = torch.tensor(5.0)
    levels = torch.tensor([0, 1, 3])
    # one time per sample
    assert process.sample(torch.zeros(0, 2, dtype=torch.uint8), torch.zeros(0)).shape == (0, 2)
    for x in (torch.zeros(0, 2, dtype=torch.uint8), levels):
        xt = process.observe(x, t, torch.Generator().manual_seed(0))[0]
        assert xt.shape == process.bridge(x, xt, s, t).shape == x.shape
        assert (
            process.step_divergence(process.log_likelihood(xt, t).softmax(1), x, xt, s, t).shape
            == x.shape
        )
        if isinstance(process, FiniteJumpProcess):
            assert process.reverse_rates(x, xt, t).shape == (
                len(x),
                process.num_states,
                *x.shape[1:],
            )
    torch.testing.assert_close(process.pmf(levels, t), process.pmf(levels[:, None], t)[:, 0])


@pytest.mark.parametrize("process", [PureDeath, BirthDeath, Uniform, Absorbing, Ordinal])
@pytest.mark.parametrize("max_count", [0, -1])
def test_invalid_max_counts_are_refused(process: type, max_count: int) -> None:
    with pytest.raises(
        ValueError, match=f"max_count must be a whole number in 1..2147483647, not {max_count}"
    ):
        process(max_count)
