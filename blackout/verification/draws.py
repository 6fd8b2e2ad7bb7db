"""Draws of the package's own kernels with exact denoisers, and the test that they are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    Trapezoidal,
    nearest_rounding,
    stochastic_rounding,
)
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Denoiser,
    Prediction,
)
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.random import RandomSource, SampleStreams, categorical
from blackout.verification.toys import Array, JumpToy, Toy

# (toy, t) -> E[statistic | X_t], [states ** elements, elements, K]
ExactMean: TypeAlias = Callable[[JumpToy, float], Array]

MIN_P_VALUE = 1e-6  # in one of 10,000 runs, a hundred tests of correct draws have a smaller one
MIN_EXPECTED_COUNT = 5  # of a cell in a chi-square test; rarer states share one cell
MIN_CELL = 1e-9  # expected count below which a cell is left out

PURE_DEATH_KERNELS: dict[str, Kernel] = {
    "nearest": BinomialBridge(nearest_rounding),
    "stochastic": BinomialBridge(stochastic_rounding),
    "poisson": PoissonLeap(),
    "posterior": PosteriorBridge(),
    "trapezoidal": Trapezoidal(),
    "posterior_trapezoidal": PosteriorTrapezoidal(),
}


# --- exact denoisers
# Their tables are float64, as the distributions that draws are compared with; a network gives
# float32.


@dataclass(frozen=True)
class TabulatedCounts:
    """A distribution of the missing count N, given as P(N = n), float64 [..., levels]."""

    pmf: Tensor

    def log_prob(self, missing: Tensor) -> Tensor:
        """Return log P(N = missing) of integers [...], float32 [...]."""
        return torch.log(self.pmf.gather(-1, missing.long().unsqueeze(-1)).squeeze(-1)).float()

    def sample(self, generator: RandomSource = None) -> Tensor:
        """Draw N by inversion, int64 [...]."""
        return categorical(self.pmf, generator)


class ExactDenoiser:
    """Exact denoiser of toy data under pure death: what a perfect network would predict.

    Args:
        toy: the data.
    """

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.process = PureDeath(toy.max_count)
        self._tables = lru_cache(maxsize=None)(self._compute_tables)

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return E[N | X_t] and P(N | X_t) of states [n, elements] at a scalar time."""
        states = torch.from_numpy(state_numbers(xt, self.toy.size))
        mean_table, pmf_table = self._tables(float(t))
        mean = mean_table[states]
        log_mean = torch.log(mean.clamp(min=1e-30))
        return CountPrediction(mean, log_mean, TabulatedCounts(pmf_table[states]))

    def _compute_tables(self, t: float) -> tuple[Tensor, Tensor]:
        """Return E[N | X_t], [S, elements], and P(N | X_t), [S, elements, levels]."""
        missing = self.toy.missing_counts(math.exp(-t))
        shape = (len(self.toy.p0), self.toy.pixels)
        mean = torch.from_numpy(missing.mean).reshape(shape)
        return mean, torch.from_numpy(missing.pmf).reshape(*shape, -1)


class ExactJumpDenoiser:
    """Exact denoiser of toy data under any process: what a perfect network would predict.

    Args:
        toy: data and process.
        exact_mean: the exact mean of the statistic that the process needs.
        prediction: kind of prediction that the process needs.
    """

    def __init__(
        self,
        toy: JumpToy,
        exact_mean: ExactMean,
        prediction: type[Prediction] = CategoricalPrediction,
    ) -> None:
        self.toy = toy
        self.prediction = prediction
        self._table = lru_cache(maxsize=None)(lambda t: torch.from_numpy(exact_mean(toy, t)))

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Return the exact mean for states [n, elements] at a scalar time, and its logarithm."""
        states = torch.from_numpy(state_numbers(xt, self.toy.size))
        mean = self._table(float(t))[states].movedim(-1, 1)
        log_mean = torch.log(mean.clamp(min=1e-300))
        if self.prediction is CategoricalPrediction:
            return CategoricalPrediction(log_mean)
        return BirthDeathPrediction(mean, log_mean)


# --- draws


@dataclass(frozen=True)
class KernelUnderTest:
    """A kernel of the package on toy data with its exact denoiser, whose draws are counted."""

    toy: Toy | JumpToy
    denoiser: Denoiser
    process: Process
    kernel: Kernel

    def step_counts(self, state: int, s: float, t: float, n: int, seed: int = 0) -> Array:
        """Draw n steps from a state at time t, and count the states at s.

        Args:
            state: number of the state at time t from which every draw starts.
            s: time of the step's end.
            t: time of the step's start.
            n: number of draws.
            seed: of the random numbers.

        Returns:
            int64 [states ** elements].
        """
        s_tensor, t_tensor = torch.tensor([s, t], dtype=torch.float64)
        xt = torch.from_numpy(self.toy.states[state]).expand(n, -1).to(torch.uint8).contiguous()
        source = SampleStreams(seed, torch.arange(n)).step(1)
        step = ReverseStep(self.denoiser, self.process, xt, s_tensor, t_tensor, source)
        return count_states(self.kernel(step), self.toy.size)

    def sample_counts(self, times: Tensor, n: int, seed: int = 0) -> Array:
        """Draw n samples with the whole sampling loop, and count their states.

        Args:
            times: grid of the loop, float64 [T + 1].
            n: number of samples.
            seed: of the random numbers.

        Returns:
            int64 [levels ** elements].
        """
        streams = SampleStreams(seed, torch.arange(n))
        data_mean = torch.from_numpy(self.toy.mean)
        plan = SamplingPlan(self.denoiser, self.process, times, self.kernel, data_mean=data_mean)
        x0 = run_sampler(plan, (n, self.toy.elements), streams)
        return count_states(x0, self.toy.levels)


def state_numbers(x: Tensor, size: int) -> Array:
    """Return the numbers of states [n, elements] of `size` levels per element, int64 [n]."""
    return np.ravel_multi_index(tuple(x.long().numpy().T), [size] * x.shape[1])


def count_states(x: Tensor, size: int) -> Array:
    """Return how often each state occurs among x [n, elements], int64 [size ** elements]."""
    return np.bincount(state_numbers(x, size), minlength=size ** x.shape[1])


def p_value(observed: Array, pmf: Array) -> float:
    """Return the p-value of Pearson's chi-square test of counts against a distribution, [S] each.

    States that are expected less than five times share a cell. The value is 0 if a state of
    probability 0 was drawn.
    """
    expected = pmf * observed.sum()
    if observed[pmf <= 0].any():
        return 0.0
    rare = expected < MIN_EXPECTED_COUNT
    expected_cells = np.append(expected[~rare], expected[rare].sum())
    observed_cells = np.append(observed[~rare], observed[rare].sum())
    is_used = expected_cells > MIN_CELL
    expected_cells = expected_cells[is_used]
    observed_cells = observed_cells[is_used]
    if len(expected_cells) < 2:
        return 1.0
    expected_cells = expected_cells * observed_cells.sum() / expected_cells.sum()
    return float(stats.chisquare(observed_cells, expected_cells).pvalue)
