"""Distributions of counts of any size with exact denoisers in closed form, d exchangeable
pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from blackout.diffusion.finite_time_bound import start_bound, step_bound
from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.predictions import CountPrediction


def prediction(y, xt):
    """Broadcast a mean to the shape of the counts, as a prediction."""
    y = y.expand(xt.shape)
    return CountPrediction(y, y.clamp(min=1e-300).log())


def clock(t, xt):
    """Return t in float64, as a column if every sample has its own time."""
    t = torch.as_tensor(t, dtype=torch.float64)
    return t if t.ndim == 0 else t.view(-1, 1)


@dataclass(frozen=True)
class PoissonCounts:
    """X_0 ~ Poisson(mean): X_t carries no information about what is missing."""

    mean: float
    pixels: int = 1

    def draw(self, n):
        return torch.from_numpy(np.random.default_rng(1).poisson(self.mean, (n, 1)))

    def __call__(self, xt, t):
        return prediction(-torch.expm1(-clock(t, xt)) * self.mean, xt)

    @property
    def entropy(self):
        if self.mean < 1e3:
            return float(stats.poisson(self.mean).entropy())
        return math.log(2 * math.pi * math.e * self.mean) / 2 - 1 / (12 * self.mean)


@dataclass(frozen=True)
class GammaPoisson:
    """Correlated counts: pixels Poisson(g) with a common g ~ Gamma(shape), negative binomial."""

    mean: float
    pixels: int = 1
    shape: float = 4.0

    def draw(self, n):
        source = np.random.default_rng(2)
        rate = source.gamma(self.shape, self.mean / self.shape, (n, 1))
        return torch.from_numpy(source.poisson(rate, (n, self.pixels)))

    def __call__(self, xt, t):
        t = clock(t, xt)
        total = xt.double().sum(1, keepdim=True)
        exposure = self.pixels * torch.exp(-t)
        return prediction(
            -torch.expm1(-t) * (self.shape + total) / (self.shape / self.mean + exposure), xt
        )

    @property
    def entropy(self):
        """Monte Carlo estimate from 100,000 samples, with an error below 0.02 nats."""
        x = self.draw(100_000).double()
        total = x.sum(1)
        scale = self.shape / (self.shape + self.pixels * self.mean)
        log_p = (
            torch.lgamma(total + self.shape) - math.lgamma(self.shape) - torch.lgamma(x + 1).sum(1)
        )
        log_p += self.shape * math.log(scale) + total * (math.log1p(-scale) - math.log(self.pixels))
        return -float(log_p.mean())

    @property
    def variation(self):
        """Coefficient of variation of the total."""
        return math.sqrt(1 / self.shape + 1 / (self.pixels * self.mean))

    @property
    def covariance(self):
        diagonal = torch.eye(self.pixels).double()
        ones = torch.ones(self.pixels, self.pixels).double()
        return self.mean * diagonal + self.mean**2 / self.shape * ones

    def ends(self, max_count):
        excess = self.pixels * self.mean / self.shape
        return GridEnds(1 + excess, excess, max_count)

    def start_divergence(self, q):
        """Return the exact KL of X_t from independent Poisson counts.

        Given the total, both distribute it over the pixels in the same way.
        """
        total = self.pixels * self.mean * q
        n = np.arange(int(60 + 40 * total))
        true = stats.nbinom(self.shape, self.shape / (self.shape + total))
        return float(true.pmf(n) @ (true.logpmf(n) - stats.poisson(total).logpmf(n)))


@dataclass(frozen=True)
class TwoPoint:
    """One of two counts, with equal probability."""

    low: int
    high: int
    entropy: float = math.log(2)
    pixels: int = 1

    @property
    def mean(self):
        return (self.low + self.high) / 2

    def draw(self, n):
        return torch.where(
            torch.from_numpy(np.random.default_rng(4).random((n, 1)) < 0.5), self.low, self.high
        )

    def __call__(self, xt, t):
        t = clock(t, xt)
        x = xt.double()

        # log P(X_t | X_0 = o) up to a term common to both values of o
        def log_p(o):
            return (
                math.lgamma(o + 1)
                - torch.lgamma((o - x).clamp(min=0) + 1)
                + (o - x) * torch.log(-torch.expm1(-t))
            )

        low = torch.where(x <= self.low, torch.sigmoid(log_p(self.low) - log_p(self.high)), 0.0)
        return prediction((low * self.low + (1 - low) * self.high - x).clamp(min=0), xt)


def finite_time_bound(denoiser, process, times, x0, data_mean, generator):
    """Return the complete bound of the T-step Poisson sampler: the start and every step."""
    total = start_bound(process, x0, times[-1], data_mean)
    for k in range(len(times) - 1, 0, -1):
        total = total + step_bound(denoiser, process, x0, times[k - 1], times[k], generator)
    return total
