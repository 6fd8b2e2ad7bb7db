"""The sampler against exact transition matrices: which kernels are exact, which are biased, and by how much."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.heads import Prediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.samplers import (
    BinomialBridge,
    PoissonLeap,
    nearest_rounding,
    sample,
    stochastic_rounding,
)
from blackout.diffusion.schedules import fisher_times, step_fraction
from blackout.diffusion.streams import SampleStreams
from tests.laws import toys


def marginals(p0, times, kernel_of):
    """Walk the exact chain from black; yield (k, law of X_{t_k}) from k = T - 1 down to 0."""
    law = np.zeros(len(p0))
    law[0] = 1.0
    for k in range(len(times) - 1, 0, -1):
        q, r = float(torch.exp(-times[k])), float(step_fraction(times[k - 1], times[k]))
        law = law @ kernel_of(q, r, times[k - 1], times[k])
        yield k - 1, law


def final_law(p0, num_steps, kernel_of):
    return list(marginals(p0, fisher_times(num_steps), kernel_of))[-1][1]


@pytest.mark.parametrize("num_steps", [10, 100])
def test_with_known_origin_the_binomial_bridge_is_exact_at_every_level(num_steps):
    """X_0 = 9 in 0..15: after the last step X_0 with probability 1, each level's law right up to what black ignores."""
    p0 = np.eye(16)[9]
    times = fisher_times(num_steps)
    y = 9.0 - np.arange(16).clip(max=9)
    for k, law in marginals(p0, times, lambda q, r, s, t: toys.rounded_kernel(y, r, stochastic=False)):
        expected = toys.thinning(15, float(torch.exp(-times[k])))[9]
        assert toys.total_variation(law, expected) < 9 * np.exp(-15.0) * 1.01
    assert law[9] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("num_steps, right, wrong", [(10, 0.647, 0.99), (100, 0.132, 0.95), (1000, 0.0144, 0.99)])
def test_poisson_leaps_need_the_step_fraction_not_the_printed_rate(num_steps, right, wrong):
    """Worst level's total variation: y r converges, Algorithm 2's printed y e^-t / (1 - e^-t) does not."""
    times = fisher_times(num_steps)
    y = 9.0 - np.arange(16).clip(max=9)

    def worst(rate):
        chain = marginals(np.eye(16)[9], times, lambda q, r, s, t: toys.poisson_kernel(y * rate(q, r)))
        return max(toys.total_variation(p, toys.thinning(15, float(torch.exp(-times[k])))[9]) for k, p in chain)

    assert worst(lambda q, r: r) == pytest.approx(right, rel=0.02)
    assert worst(lambda q, r: q / (1 - q)) > wrong


def test_ten_steps_with_a_posterior_draw_are_exact():
    p0 = toys.two_bumps()
    law = final_law(p0, 10, lambda q, r, s, t: toys.mixture_kernel(p0, q, r))
    assert toys.total_variation(law, p0) < 1e-4


@pytest.mark.parametrize("num_steps, nearest, stochastic, poisson", [
    (10, 0.393, 0.380, 0.331), (30, 0.127, 0.125, 0.106), (100, 0.044, 0.037, 0.030),
])  # fmt: skip
def test_the_bias_of_each_kernel_on_a_two_bump_pixel(num_steps, nearest, stochastic, poisson):
    p0 = toys.two_bumps()

    def error(kernel):
        return toys.total_variation(final_law(p0, num_steps, kernel), p0)

    assert error(lambda q, r, s, t: toys.rounded_kernel(toys.missing_mean(p0, q), r, False)) == pytest.approx(
        nearest, rel=0.1
    )
    assert error(lambda q, r, s, t: toys.rounded_kernel(toys.missing_mean(p0, q), r, True)) == pytest.approx(
        stochastic, rel=0.1
    )
    assert error(lambda q, r, s, t: toys.poisson_kernel(toys.missing_mean(p0, q) * r)) == pytest.approx(
        poisson, rel=0.1
    )


@pytest.mark.parametrize("num_steps", [10, 100, 1000])
def test_nearest_rounding_never_lights_a_rare_pixel_and_stochastic_rounding_is_exact(num_steps):
    p0 = toys.bernoulli(0.3)
    nearest = final_law(p0, num_steps, lambda q, r, s, t: toys.rounded_kernel(toys.missing_mean(p0, q), r, False))
    stochastic = final_law(p0, num_steps, lambda q, r, s, t: toys.rounded_kernel(toys.missing_mean(p0, q), r, True))
    assert nearest[1] == 0.0
    assert stochastic[1] == pytest.approx(0.3, abs=1e-6)


KERNELS = {
    "nearest": (BinomialBridge(nearest_rounding), lambda y, r: toys.rounded_kernel(y, r, False)),
    "stochastic": (BinomialBridge(stochastic_rounding), lambda y, r: toys.rounded_kernel(y, r, True)),
    "poisson": (PoissonLeap(), lambda y, r: toys.poisson_kernel(y * r)),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("s, t", [(0.0, 0.2), (0.5, 0.9), (2.0, 6.0)])
def test_kernels_draw_from_their_exact_matrices(name, s, t):
    kernel, exact = KERNELS[name]
    s, t = torch.tensor(s).double(), torch.tensor(t).double()
    y = np.linspace(7.3, 0.05, 16)
    matrix = exact(y, float(step_fraction(s, t)))
    n = 4000
    xt = torch.arange(16, dtype=torch.uint8).repeat(n, 1)
    mean = torch.from_numpy(y).float().repeat(n, 1)
    xs = kernel(PureDeath(15), mean, xt, s, t, SampleStreams(4, torch.arange(n)).at(1))
    for m in range(16):
        observed = np.bincount(xs[:, m].numpy(), minlength=16)
        assert not observed[matrix[m] == 0].any()
        keep = matrix[m] * n > 5
        expected = matrix[m][keep] / matrix[m][keep].sum() * observed[keep].sum()
        assert observed[~keep].sum() <= 0.02 * n
        if keep.sum() > 1:
            assert stats.chisquare(observed[keep], expected).pvalue > 1e-4


def test_stochastic_rounding_is_unbiased_in_births():
    s, t = torch.tensor(0.5).double(), torch.tensor(0.9).double()
    y = torch.full((200_000, 1), 0.37)
    births = BinomialBridge()(
        PureDeath(255), y, torch.zeros(200_000, 1, dtype=torch.uint8), s, t, torch.Generator().manual_seed(0)
    )
    r = float(step_fraction(s, t))
    assert float(births.double().mean()) == pytest.approx(0.37 * r, abs=5 * (0.37 * r / 200_000) ** 0.5)


@pytest.mark.parametrize("name", KERNELS)
def test_the_whole_loop_follows_the_exact_chain(name):
    """60,000 one-pixel samples of the package's loop with the oracle denoiser, against the product of exact
    matrices.
    """
    kernel, exact = KERNELS[name]
    p0 = np.array([0.3, 0.1, 0.05, 0.05, 0.2, 0.0, 0.0, 0.3])
    times = fisher_times(12)
    expected = final_law(p0, 12, lambda q, r, s, t: exact(toys.missing_mean(p0, q), r))

    def denoiser(xt, t):
        y = torch.from_numpy(toys.missing_mean(p0, float(torch.exp(-t)))).float()[xt.long()]
        return Prediction(y, y.log())

    levels = []
    n = 60_000
    x0 = sample(
        denoiser,
        PureDeath(7),
        times,
        (n, 1),
        SampleStreams(9, torch.arange(n)),
        lambda k, x: levels.append((k, x)),
        kernel=kernel,
    )
    assert x0.dtype == torch.uint8 and [k for k, _ in levels] == list(range(12, -1, -1))
    for (_, before), (_, after) in pairwise(levels):
        assert (after >= before).all() and int(after.max()) <= 7
    observed = np.bincount(x0.flatten().numpy(), minlength=8)
    keep = expected * n > 5
    assert stats.chisquare(observed[keep], expected[keep] / expected[keep].sum() * observed[keep].sum()).pvalue > 1e-4


def test_samples_do_not_depend_on_their_batch():
    def denoiser(xt, t):
        y = (9.5 - xt.float()).clamp(min=0)
        return Prediction(y, y.log())

    def draw(indices):
        return sample(
            denoiser,
            PureDeath(20),
            fisher_times(15),
            (len(indices), 2, 3),
            SampleStreams(1, torch.tensor(indices)),
            kernel=PoissonLeap(),
        )

    together = draw(list(range(12)))
    assert torch.equal(draw([7, 2]), together[[7, 2]])
    assert not torch.equal(together[0], together[1])
