"""Laws of counts of any size with exact denoisers in closed form, d pixels alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from blackout.diffusion import likelihood
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.schedules import DataEnds


def prediction(y, like):
    y = y.expand(like.shape)
    return CountPrediction(y, y.clamp(min=1e-300).log())


def clock(t, x):
    t = torch.as_tensor(t, dtype=torch.float64)
    return t if t.ndim == 0 else t.view(-1, 1)


@dataclass(frozen=True)
class PoissonCounts:
    """X_0 ~ Poisson(mean): X_t tells nothing of what is missing."""

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
    """Pixels Poisson(g), of one g ~ Gamma(shape 4) for all: negative binomial, CV 1/2, correlated."""

    mean: float
    pixels: int = 1
    shape: float = 4.0

    def draw(self, n):
        source = np.random.default_rng(2)
        rate = source.gamma(self.shape, self.mean / self.shape, (n, 1))
        return torch.from_numpy(source.poisson(rate, (n, self.pixels)))

    def __call__(self, xt, t):
        t, total = clock(t, xt), xt.double().sum(1, keepdim=True)
        known = self.pixels * torch.exp(-t)
        return prediction(-torch.expm1(-t) * (self.shape + total) / (self.shape / self.mean + known), xt)

    @property
    def entropy(self):
        """By 100,000 draws, with an error below 0.02 nats."""
        x = self.draw(100_000).double()
        total, scale = x.sum(1), self.shape / (self.shape + self.pixels * self.mean)
        log_p = torch.lgamma(total + self.shape) - math.lgamma(self.shape) - torch.lgamma(x + 1).sum(1)
        log_p += self.shape * math.log(scale) + total * (math.log1p(-scale) - math.log(self.pixels))
        return -float(log_p.mean())

    @property
    def variation(self):
        """CV of the total."""
        return math.sqrt(1 / self.shape + 1 / (self.pixels * self.mean))

    @property
    def covariance(self):
        diagonal, everywhere = torch.eye(self.pixels).double(), torch.ones(self.pixels, self.pixels).double()
        return self.mean * diagonal + self.mean**2 / self.shape * everywhere

    def ends(self, max_count):
        excess = self.pixels * self.mean / self.shape
        return DataEnds(1 + excess, excess, max_count)

    def start_divergence(self, q):
        """KL of X_t from independent Poisson counts, exactly: given the total, both are spread alike."""
        total = self.pixels * self.mean * q
        n = np.arange(int(60 + 40 * total))
        true = stats.nbinom(self.shape, self.shape / (self.shape + total))
        return float(true.pmf(n) @ (true.logpmf(n) - stats.poisson(total).logpmf(n)))


@dataclass(frozen=True)
class TwoPoint:
    """One count or another, each half of the time."""

    low: int
    high: int
    entropy: float = math.log(2)
    pixels: int = 1

    @property
    def mean(self):
        return (self.low + self.high) / 2

    def draw(self, n):
        return torch.where(torch.from_numpy(np.random.default_rng(4).random((n, 1)) < 0.5), self.low, self.high)

    def __call__(self, xt, t):
        t, x = clock(t, xt), xt.double()

        def log_p(o):  # of X_t given X_0 = o, up to what both have in common
            return math.lgamma(o + 1) - torch.lgamma((o - x).clamp(min=0) + 1) + (o - x) * torch.log(-torch.expm1(-t))

        low = torch.where(x <= self.low, torch.sigmoid(log_p(self.low) - log_p(self.high)), 0.0)
        return prediction((low * self.low + (1 - low) * self.high - x).clamp(min=0), xt)


def finite_time_bound(denoiser, process, times, x0, mean, generator):
    """The whole bound of the T-step Poisson sampler: its start and each of its steps."""
    total = likelihood.start_bound(process, x0, times[-1], mean)
    for k in range(len(times) - 1, 0, -1):
        total = total + likelihood.step_bound(denoiser, process, x0, times[k - 1], times[k], generator)
    return total
