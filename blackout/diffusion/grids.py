"""Sampling grids fitted to a model: step where a Poisson step would go wrong the most.

One step of fraction r costs KL = r^2 G / 4 nats with

    G = E || D^-1/2 Cov(N | X_t) D^-1/2 - 1 ||_F^2,   D = diag E[N | X_t].

For a given number of steps the total is least when their density along the logit of survival u is proportional to
q sqrt(G). G needs no covariances: the predicted mean moves by as much as the births of a step are correlated, so that a
pilot run that records the predictions on a fine grid is enough. Ours (tests/laws/test_grid_laws.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.data_stats import DataEnds
from blackout.diffusion.kernels import PoissonLeap
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import Process
from blackout.diffusion.samplers import sample
from blackout.diffusion.schedules import logit_survival, logit_times, step_fraction, time_of_logit
from blackout.random import SampleStreams

FIRST_LOGIT, LAST_LOGIT = 10.0, -12.0
"""Where pilot runs look: beyond it, steps cost nothing that counts."""


def pilot_run(
    denoiser: Denoiser,
    process: Process,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    *,
    mean: Tensor | None = None,
    num_steps: int = 200,
    first: float = FIRST_LOGIT,
    last: float = LAST_LOGIT,
    device: torch.device | str = "cpu",
) -> dict[str, list[float]]:
    """Estimate G along a fine grid by sampling with Poisson leaps: E sum_i (y_s - (1 - r) y_t)_i^2 / (y_t)_i / r.

    Args:
        denoiser, process, generator, mean, device: as for `sample`.
        shape: [B, ...]; a few hundred elements in all, B of them independent, are plenty.
        num_steps: of the grid, one evaluation of the denoiser each; at least 3.
        first, last: logits of survival between which the grid runs.

    Returns:
        "logits": num_steps numbers, falling; "curvature": G between each of them and the next, num_steps - 1 numbers.

    Raises:
        ValueError: num_steps below 3.
    """
    if num_steps < 3:
        raise ValueError(f"a pilot run needs at least 3 steps, not {num_steps}")
    times = logit_times(num_steps, first, last)
    means: list[Tensor] = []

    def keep(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if prediction is not None:
            means.append(prediction.mean)  # at times[k + 1]

    sample(denoiser, process, times, shape, generator, keep, kernel=PoissonLeap(), mean=mean, device=device)
    curvature = []
    for k in range(1, num_steps):
        s, t = times[k], times[k + 1]
        r = float(step_fraction(s, t))
        y_s, y_t = (means[num_steps - j].double().flatten(1) for j in (k, k + 1))
        # E[X_0 | X_t] is a martingale: y_s is (1 - r) y_t on average, and its spread around that measures G
        moved = (y_s - (1 - r) * y_t) ** 2 / y_t.clamp(min=1e-30)
        curvature.append(float(moved.sum(1).mean()) / r)
    return {"logits": logit_survival(times[1:]).tolist(), "curvature": curvature}


def pilot_ends(facts: Mapping[str, Any]) -> dict[str, float]:
    """`first` and `last` logit of a pilot run: those above, or further out where the data ask for it.

    Args:
        facts: of the data, from a model's description.
    """
    ends = DataEnds.of(facts)
    if ends is None:
        return {"first": FIRST_LOGIT, "last": LAST_LOGIT}
    enough = ends.fits(time_of_logit(torch.tensor(LAST_LOGIT, dtype=torch.float64)))
    return {"first": max(FIRST_LOGIT, ends.first), "last": LAST_LOGIT if enough else ends.last}


@component("grid")
@dataclass(frozen=True)
class OptimalGrid:
    """num_steps -> times, each step with an equal share of the integral of q sqrt(G) over u. Ours (test_grid_laws.py).

    Args:
        pilot: what `pilot_run` returned for the model; a trained model brings its own.
        floor: share of the steps that is spread evenly over u, whatever the pilot says.

    Raises:
        ValueError: no pilot, one that is not as `pilot_run` makes it, or a floor outside [0, 1].
    """

    pilot: Mapping[str, Sequence[float]] | None = None
    floor: float = 0.02

    def __post_init__(self) -> None:
        if self.pilot is None:
            raise ValueError("the optimal grid needs a model with a pilot run, which a finished training leaves in it")
        logits, curvature = self.pilot.get("logits", []), self.pilot.get("curvature", [])
        falling = all(a > b for a, b in pairwise(logits))
        if len(logits) < 2 or len(curvature) != len(logits) - 1 or not falling or not min(curvature) >= 0:
            raise ValueError("the pilot run must be falling logits and a non-negative curvature between each two")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"the floor of the optimal grid must be in [0, 1], not {self.floor}")

    def __call__(self, num_steps: int) -> Tensor:
        """The grid, float64 [num_steps + 1]."""
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, not {num_steps}")
        assert self.pilot is not None
        u = torch.tensor(list(self.pilot["logits"]), dtype=torch.float64)
        width = -u.diff()
        curvature = torch.tensor(list(self.pilot["curvature"]), dtype=torch.float64)
        wanted = torch.sigmoid((u[1:] + u[:-1]) / 2) * curvature.sqrt() * width
        even = width / width.sum()
        share = (1 - self.floor) * wanted / wanted.sum() + self.floor * even if wanted.sum() > 0 else even
        passed = torch.cat([share.new_zeros(1), share.cumsum(0)])
        # where the running sum of shares passes 1/T, 2/T, ..., 1; the step to t = 0 takes the first
        goal = torch.linspace(0, 1, num_steps + 1, dtype=torch.float64)[1:] * passed[-1]
        k = (torch.searchsorted(passed, goal) - 1).clamp(0, len(share) - 1)
        logit = u[k] - (goal - passed[k]) / share[k].clamp(min=1e-300) * width[k]
        logit[-1] = u[-1]
        return torch.cat([share.new_zeros(1), time_of_logit(logit)])
