"""Training times: intervals of a grid, and their stratification."""

import pytest
import torch

from blackout.diffusion.schedule import Schedule, stratified
from blackout.diffusion.time_grids import fisher_times, logit_times


def test_discrete_intervals_are_those_of_the_grid_with_equal_frequency():
    schedule = Schedule(num_steps=50)
    v = (torch.arange(5000, dtype=torch.float64) + 0.5) / 5000
    s, t = schedule.intervals(v)
    assert torch.equal(t.view(50, 100)[:, 0], schedule.times[1:])
    assert torch.equal(s.view(50, 100)[:, 99], schedule.times[:-1])


@pytest.mark.parametrize("grid", [fisher_times, logit_times])
def test_continuous_intervals_pass_through_the_grid(grid):
    schedule = Schedule(grid, num_steps=50, continuous=True)
    s, t = schedule.intervals(torch.arange(50, dtype=torch.float64) / 49)
    assert torch.allclose(t, schedule.times[1:], rtol=1e-12)
    assert torch.allclose(s[1:], schedule.times[1:-1], rtol=1e-12)
    assert 0 < s[0] < t[0]


def test_stratified_numbers_cover_the_unit_interval_once_per_batch():
    v = stratified(torch.arange(64), 64, torch.tensor(0.25, dtype=torch.float64))
    assert torch.equal((v * 64).long(), torch.arange(64))
    halves = [
        stratified(torch.arange(rank, 64, 2), 64, torch.tensor(0.25).double()) for rank in (0, 1)
    ]
    assert torch.equal(torch.cat(halves).sort().values, v)


def test_continuous_times_of_a_single_step_are_refused():
    with pytest.raises(ValueError, match="num_steps"):
        Schedule(num_steps=1, continuous=True)


def test_a_grid_that_does_not_increase_is_refused():
    with pytest.raises(ValueError, match="increase"):
        Schedule(lambda num_steps: torch.zeros(num_steps + 1, dtype=torch.float64))
