"""Time grids: published values, ends, densities, and refusals."""

import math

import pytest
import torch

from blackout.diffusion.survival import half_width, logit_survival, step_fraction
from blackout.diffusion.time_grids import (
    choose_logistic_times,
    fisher_times,
    logistic_times,
    logit_times,
)


def test_the_paper_grid_has_its_published_values():
    t = fisher_times(1000, 15.0)
    assert t.dtype == torch.float64 and t.shape == (1001,) and t[0] == 0
    assert half_width(15.0) == pytest.approx(14.9999996941, abs=1e-10)
    assert float(t[1]) == pytest.approx(3.0590236729e-7, rel=1e-9)
    assert float(t[1000]) == pytest.approx(15.0, abs=1e-12)
    assert float(t[500]) == pytest.approx(0.685668, abs=1e-6)
    assert float(t[501]) == pytest.approx(0.700683, abs=1e-6)
    assert (t.diff() > 0).all()
    assert int((t[1:] < math.log(2)).sum()) == 500


def test_survival_on_the_paper_grid_is_symmetric():
    q = torch.exp(-fisher_times()[1:])
    assert torch.allclose(q + q.flip(0), torch.ones(1000, dtype=torch.float64), atol=1e-15, rtol=0)


def test_the_softplus_form_equals_equation_60_as_printed():
    t = fisher_times(1000, 15.0)[1:]
    k = torch.arange(1, 1001, dtype=torch.float64)
    high = torch.tensor(15.0, dtype=torch.float64)
    limit = torch.logit(-torch.expm1(-high))
    printed = -torch.log(
        torch.sigmoid(limit + (torch.logit(torch.exp(-high)) - limit) * (k - 1) / 999)
    )
    assert torch.allclose(t, printed, rtol=1e-9, atol=0)


@pytest.mark.parametrize("grid", [fisher_times, logit_times, logistic_times])
@pytest.mark.parametrize("num_steps", [1, 2, 7, 1000])
def test_every_grid_starts_at_zero_and_increases(grid, num_steps):
    t = grid(num_steps)
    assert t.shape == (num_steps + 1,) and t.dtype == torch.float64
    assert t[0] == 0 and (t.diff() > 0).all()


def test_the_fisher_grid_ends_at_the_final_time():
    assert float(fisher_times(50, 12.0)[-1]) == pytest.approx(12.0, rel=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fisher_times(0),
        lambda: fisher_times(10, 0.5),
        lambda: fisher_times(5, -1.0),
        lambda: logit_times(5, -1.0, 1.0),
        lambda: logistic_times(5, floor=0.0),
        lambda: fisher_times(5, math.inf),
    ],
)
def test_invalid_grids_are_refused(call):
    with pytest.raises(ValueError):
        call()


def test_the_logistic_grid_has_a_logistic_density_and_preserves_integrals():
    """The spacing is 1 / (T density), as in importance sampling.

    Sums of step fractions over grids of any density therefore agree.
    """
    u = logit_survival(logistic_times(4001, floor=0.1)[1:])
    spread = 1 / torch.sigmoid(torch.tensor([7.0, -6.0], dtype=torch.float64) / 1.3).diff().abs()
    z = (u[1:] + u[:-1]) / 2
    logistic = torch.sigmoid((z + 1) / 1.3) * torch.sigmoid(-(z + 1) / 1.3) / 1.3 * spread
    density = 0.9 * logistic + 0.1 / 13
    assert torch.allclose(-u.diff() * 4000 * density, torch.ones_like(z), rtol=5e-3)
    bump = lambda t: torch.exp(-((logit_survival(t) - 1) ** 2))  # noqa: E731
    integrals = [
        float((step_fraction(t[1:-1], t[2:]) * bump(t[2:])).sum())
        for t in (logistic_times(4000), logit_times(4000, 6.0, -7.0))
    ]
    assert integrals[0] == pytest.approx(integrals[1], rel=2e-3)


@pytest.mark.parametrize("mean, std", [(0.01, 0.1), (3.0, 2.0), (5000.0, 9000.0)])
def test_training_times_are_centred_between_an_even_chance_and_one_unit(mean, std):
    names = ("first", "last", "location", "scale")
    stats = {"mean": mean, "std": std, "grid_ends": {"first": 5.0, "last": -3.0}}
    chosen = choose_logistic_times(dict.fromkeys(names), stats)
    one_unit = torch.tensor(math.log(2 + mean + std**2 / mean), dtype=torch.float64)
    even_chance = torch.tensor(math.log(2), dtype=torch.float64)
    centre = (logit_survival(one_unit) + logit_survival(even_chance)) / 2
    assert chosen["location"] == pytest.approx(float(centre), rel=1e-9) and chosen["scale"] > 1
    assert chosen["first"] == 6 and chosen["last"] <= -7
    assert choose_logistic_times({"location": 0.5, "scale": None}, stats).keys() == {"scale"}
