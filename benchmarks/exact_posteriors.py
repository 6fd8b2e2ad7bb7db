"""Inverse problems of three to five counts whose posteriors are sums over all states.

Every problem has an exact denoiser in place of a network, so that what is measured is the sampler.
Used by `python -m benchmarks.posterior_accuracy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.time_grids import logit_times
from blackout.posterior import (
    Binomial,
    Camera,
    Flips,
    Gaussian,
    Identity,
    Inpaint,
    InverseProblem,
    Matrix,
    Noise,
    Operator,
    Poisson,
    Pool,
    Prior,
    Xor,
)
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, count_states
from blackout.verification.toys import Toy, total_variation

NUM_STEPS = 13  # of unconditional samples; with the trapezoidal kernel 25 evaluations
FIRST_LOGIT = 6.0
LAST_LOGIT = -6.0
ROUGH_CONCENTRATION = 0.3  # of the Dirichlet distribution from which a rough prior is drawn


def smooth_prior(elements: int, levels: int) -> Toy:
    """Return an even mixture of two correlated discretised normal distributions: many dim, few
    bright."""
    states = np.indices([levels] * elements).reshape(elements, -1).T
    covariance = 0.5 * np.eye(elements) + 0.5
    p = np.zeros(len(states))
    for centre, width in ((0.25, 0.15), (0.7, 0.25)):
        z = (states / (levels - 1) - centre) / width
        p += np.exp(-0.5 * np.einsum("si,ij,sj->s", z, np.linalg.inv(covariance), z))
    return Toy("smooth", p.reshape([levels] * elements))


def rough_prior(elements: int, levels: int, seed: int = 0) -> Toy:
    """Return a random prior, most of whose mass lies on a few unrelated states."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(levels**elements, ROUGH_CONCENTRATION))
    return Toy("rough", p.reshape([levels] * elements))


def grid_of_times() -> Tensor:
    """Return the grid of the smallest default models."""
    return logit_times(NUM_STEPS, FIRST_LOGIT, LAST_LOGIT)


@cache
def exact_denoiser(toy: Toy) -> ExactDenoiser:
    """Return the exact denoiser of a toy, which keeps its tables."""
    return ExactDenoiser(toy)


def as_prior(toy: Toy) -> Prior:
    """Return a toy as a prior with the exact denoiser."""
    mean = torch.from_numpy(toy.mean)[None]
    return Prior(
        exact_denoiser(toy),
        PureDeath(toy.max_count),
        (toy.pixels,),
        Trapezoidal(),
        mean,
        grid_of_times(),
    )


@dataclass(frozen=True)
class ExactProblem:
    """A prior and a measurement of it, with all posteriors.

    Args:
        kind: of the measurement.
        toy: the prior.
        operator: what is measured.
        noise: how.
    """

    kind: str
    toy: Toy
    operator: Operator
    noise: Noise

    @property
    def name(self) -> str:
        """Return the kind of measurement and of prior."""
        return f"{self.kind}, {self.toy.name}"

    @cached_property
    def states(self) -> Tensor:
        """Return all data, int64 [S, D]."""
        return torch.from_numpy(np.ascontiguousarray(self.toy.states))

    def prior(self) -> Prior:
        """Return the prior, whose evaluations are counted from 0."""
        return as_prior(self.toy)

    def truths(self, number: int, seed: int) -> Tensor:
        """Draw data of the prior, int64 [number, D]."""
        rng = np.random.default_rng(seed)
        return self.states[rng.choice(len(self.states), number, p=self.toy.p0)]

    def measure(self, truths: Tensor, seed: int) -> InverseProblem:
        """Simulate a measurement of each truth [n, D]; of flips, whose simulated values have none,
        the errors too."""
        m = self.operator(truths.double())
        source = SampleStreams(seed, torch.arange(len(truths))).step(0)
        y = self.noise.draw(m, source)
        if isinstance(self.noise, Flips):
            odds = np.exp(-self.noise.penalty)
            is_flipped = source.next_draw().uniform(tuple(y.shape)) < odds / (1 + odds)
            y = torch.where(is_flipped, 1 - y, y)
        return InverseProblem(self.operator, self.noise, y)

    def posteriors(self, problem: InverseProblem) -> np.ndarray:
        """Return p(x | y) of each measurement, [measurements, S]."""
        rows = problem.measurement
        tables = []
        for y in rows:
            single = InverseProblem(self.operator, self.noise, y[None])
            log_likelihood = single.log_likelihood(self.states.double()).numpy()
            weights = self.toy.p0 * np.exp(log_likelihood - log_likelihood.max())
            tables.append(weights / weights.sum())
        return np.stack(tables)


def pooled_total_variation(samples: Tensor, posteriors: np.ndarray, levels: int) -> float:
    """Return the distance of all samples, as many of each measurement, to the mean of the
    posteriors.

    Args:
        samples: [n, D].
        posteriors: [measurements, S].
        levels: of an element.
    """
    return total_variation(count_states(samples, levels) / len(samples), posteriors.mean(0))


def floor_of_draws(posteriors: np.ndarray, num_samples: int, repeats: int = 20) -> float:
    """Return the mean distance of perfect draws, `num_samples` of each posterior [measurements,
    S]."""
    rng = np.random.default_rng(0)
    distances = []
    for _ in range(repeats):
        counts = np.sum([rng.multinomial(num_samples, p) for p in posteriors], axis=0)
        distances.append(total_variation(counts / counts.sum(), posteriors.mean(0)))
    return float(np.mean(distances))


def exact_problems() -> list[ExactProblem]:
    """Return twelve problems: seven kinds of measurement, on smooth and rough priors."""
    blur = Matrix(torch.tensor([[0.7, 0.3, 0.0], [0.15, 0.7, 0.15], [0.0, 0.3, 0.7]]))
    half = Inpaint(torch.tensor([True, False, True, False]))
    three = (smooth_prior(3, 5), rough_prior(3, 5))
    four = (smooth_prior(4, 4), rough_prior(4, 4))
    problems = []
    for kind, operator, noise in (
        ("thinning", Identity(), Binomial(0.3)),
        ("sum of photons", Pool(3), Poisson(0.5)),
        ("blurred photons", blur, Poisson(1.0)),
        ("normal noise", Identity(), Gaussian(1.0)),
    ):
        problems += [ExactProblem(kind, toy, operator, noise) for toy in three]
    camera = Camera(1.0, 0.2, gain=2.0, offset=10.0, readout=1.5)
    problems.append(ExactProblem("camera", three[1], Identity(), camera))
    problems += [ExactProblem("hidden elements", toy, half, half.noise) for toy in four]
    problems.append(ExactProblem("xor of bits", rough_prior(5, 2), Xor(0.8), Flips(2.0)))
    return problems
