"""Logits of survival, fractions of a reverse step, and the reverse clock."""

import pytest
import torch

from blackout.diffusion.survival import (
    logit_survival,
    reverse_clock,
    step_fraction,
    time_of_logit,
)
from blackout.diffusion.time_grids import fisher_times


@pytest.mark.parametrize("final_time", [1e-6, 0.1, 1.0, 15.0, 300.0])
def test_logit_and_time_invert_each_other(final_time):
    t = torch.tensor([final_time], dtype=torch.float64)
    assert torch.allclose(time_of_logit(logit_survival(t)), t, rtol=1e-13, atol=0)


def test_step_fractions_are_exact_at_the_last_step_and_compose():
    t = fisher_times()
    r = step_fraction(t[:-1], t[1:])
    assert r[0] == 1.0
    assert float(r[1]) == pytest.approx(0.02958, abs=5e-6)
    assert float(r[499]) == pytest.approx(0.01512, abs=5e-6)
    assert float(r[999]) == pytest.approx(9.3256e-9, rel=1e-4)
    remaining = torch.prod(1 - r[1:])
    assert float(remaining) == pytest.approx(
        float(torch.expm1(-t[1]) / torch.expm1(-t[-1])), rel=1e-9
    )


def test_the_reverse_clock_is_an_involution_and_makes_births_memoryless():
    t = torch.logspace(-9, 1.4, 200, dtype=torch.float64)
    assert torch.allclose(reverse_clock(reverse_clock(t)), t, rtol=1e-9)
    s = t[:-1]
    r = step_fraction(t[:-1], t[1:])
    assert torch.allclose(r, -torch.expm1(reverse_clock(t[1:]) - reverse_clock(s)), rtol=1e-7)
