import numpy as np
import pytest
import torch

from blackout.diffusion.losses import GradientImportance, loss_weights
from blackout.diffusion.schedules import Schedule, fisher_times
from blackout.laws.toys import two_bumps


@pytest.mark.parametrize("continuous", [False, True])
def test_weighted_means_do_not_depend_on_the_importance(continuous):
    """The mean over draws of weight x f(t) is that over equally likely intervals."""
    plain = Schedule(fisher_times, 50, continuous)
    chosen = Schedule(fisher_times, 50, continuous, GradientImportance())
    v = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    s, t, weight = chosen.draw(v)
    _, t_plain, ones = plain.draw(v)
    assert bool((ones == 1).all()) and bool((s < t).all())
    for f in (torch.exp, lambda t: torch.ones_like(t), lambda t: torch.exp(-t) ** 2):
        assert float((weight * f(-t)).mean()) == pytest.approx(float(f(-t_plain).mean()), rel=1e-3)
    assert float(weight.max()) <= 1 / 0.15 + 1e-9
    assert not continuous or torch.isin(t_plain, plain.times).double().mean() < 0.01


def test_on_the_grid_only_grid_times_are_drawn_and_as_often_as_wanted():
    schedule = Schedule(fisher_times, 20, importance=GradientImportance(floor=0.2))
    _, t, weight = schedule.draw((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)
    share = torch.bincount(torch.searchsorted(schedule.times, t), minlength=21)[1:] / 100_000
    density = GradientImportance(floor=0.2)(schedule.times[:-1], schedule.times[1:])
    assert torch.allclose(share.double(), density / 20, atol=1e-4)
    assert torch.allclose(weight.unique(), (1 / density).unique(), rtol=1e-9)


@pytest.mark.parametrize("weighting, gain", [("paper", 3.5), ("likelihood", 2.5)])
def test_gradients_at_the_optimum_vary_less(weighting, gain):
    """Exactly, on the two-bump pixel: E (w / p)^2 Var[N | X_t] over equally likely times against these."""
    times, toy = fisher_times(200), two_bumps()
    variance = np.array([toy.marginal(q) @ toy.beliefs(q).variance for q in torch.exp(-times[1:]).tolist()])
    squares = torch.from_numpy(variance) * loss_weights(times, "instantaneous", weighting) ** 2
    density = GradientImportance("instantaneous", weighting)(times[:-1], times[1:])
    assert float(squares.sum() / (squares / density).sum()) > gain


def test_impossible_floors_are_refused():
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match="floor"):
            GradientImportance(floor=wrong)
    with pytest.raises(ValueError, match="unknown loss"):
        GradientImportance(kind="x")
