"""Particles against enumeration: conditional distributions and the invariance of correctors."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from blackout.diffusion.correctors import Correction, LevelCorrector, ThinAndBridge
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import (
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    Trapezoidal,
)
from blackout.diffusion.particles import Particles, normalise_weights, run_particles
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams, systematic_resampling
from blackout.verification.draws import ExactDenoiser
from blackout.verification.exact_steps import add_births, birth_fraction, poisson_pmf
from blackout.verification.toys import Toy, pixel_pair, total_variation
from tests.verification.test_guidance import ALL, CLASSES, SHARES

LEVELS = np.arange(16)
SINGLE = [
    Toy(str(m), np.exp(-((LEVELS - m) ** 2) / (2 * w**2)) + 1e-4) for m, w in ((5, 2.0), (9, 3.0))
]
SINGLE_ALL = Toy("all", sum(share * toy.p0 for share, toy in zip(SHARES, SINGLE, strict=True)))
PAIR = pixel_pair()
TIMES = logit_times(25, 5.0, -7.0)


def tilted(p, p_c, g):
    """Return (p^(1 - g) p_c^g normalised, its sum before)."""
    weights = np.where(p_c > 0, np.maximum(p, 1e-300) ** (1 - g) * p_c**g, 0.0)
    return weights / weights.sum(), float(weights.sum())


def distance(x, expected, levels=16):
    """Return the total variation of samples [n, elements], and that of exact samples."""
    index = np.ravel_multi_index(tuple(x.long().numpy().T), (levels,) * x.shape[1])
    n = len(x)
    rng = np.random.default_rng(0)
    noise_floor = np.mean(
        [total_variation(rng.multinomial(n, expected) / n, expected) for _ in range(8)]
    )
    return total_variation(np.bincount(index, minlength=len(expected)) / n, expected), float(
        noise_floor
    )


# --- guided rates, by matrices


def guided_walk(of_all, of_class, g, weighted, num_steps=400):
    """Return the distribution of walks at guided rates on one pixel.

    It uses whole matrices of short steps, with or without the weights exp(V r).
    """
    times = logit_times(num_steps, 6.0, -8.0).numpy()
    distribution = poisson_pmf(
        of_all.mean ** (1 - g) * of_class.mean**g * math.exp(-times[-1]), 15
    )[0]
    for s, t in zip(times[-2::-1], times[:0:-1], strict=True):
        q_s = math.exp(-s)
        q_t = math.exp(-t)
        y, y_c = (toy.missing_counts(q_t).mean for toy in (of_all, of_class))
        y_g = np.where(LEVELS < 15, np.maximum(y, 1e-30) ** (1 - g) * y_c**g, 0.0)
        r = birth_fraction(q_s, q_t)
        step = add_births(poisson_pmf(y_g * r, 15), LEVELS)
        distribution = (
            distribution * np.exp((y_g - (1 - g) * y - g * y_c) * r if weighted else 0.0)
        ) @ step
    return distribution / distribution.sum()


@pytest.mark.parametrize("g, min_error", [(2.0, 0.03), (3.0, 0.08)])
def test_guided_rates_need_the_potential_to_reach_the_tilted_distribution(g, min_error):
    expected, _ = tilted(SINGLE_ALL.p0, SINGLE[1].p0, g)
    assert (
        total_variation(guided_walk(SINGLE_ALL, SINGLE[1], g, weighted=False), expected) > min_error
    )
    errors = [
        total_variation(guided_walk(SINGLE_ALL, SINGLE[1], g, True, steps), expected)
        for steps in (200, 400)
    ]
    # the remaining error is that of the steps, of first order
    assert errors[1] < 0.05 and errors[0] / errors[1] > 1.7


# --- known elements


@pytest.mark.parametrize("pixel, y", [pytest.param(0, 8, marks=pytest.mark.deep), (1, 2)])
def test_particles_sample_the_conditional_distribution_and_overwriting_does_not(pixel, y):
    joint = PAIR.p0.reshape(16, 16).take(y, axis=pixel)
    conditional = joint / joint.sum()
    mask = torch.arange(2)[None] == pixel
    known_elements = KnownElements(torch.full((1, 2), y, dtype=torch.uint8), mask)

    def draw(number, n):
        streams = SampleStreams(0, torch.arange(n))
        options = {
            "kernel": Trapezoidal(),
            "known_elements": known_elements,
            "data_mean": torch.tensor(PAIR.mean),
        }
        if number == 1:
            return run_sampler(
                SamplingPlan(ExactDenoiser(PAIR), PureDeath(15), TIMES, **options), (n, 2), streams
            ), None
        result = run_particles(
            SamplingPlan(ExactDenoiser(PAIR), PureDeath(15), TIMES, **options),
            (n, 2),
            streams,
            Particles(number),
        )
        return result.samples, result.log_normaliser

    overwritten, _ = draw(1, 4000)
    assert distance(overwritten[:, [1 - pixel]], conditional)[0] > 0.2
    for number, n, tolerance in ((16, 2500, 0.05), (64, 5000, 0.03))[: 2 - pixel]:
        x, log_normaliser = draw(number, n)
        error, _ = distance(x[:, [1 - pixel]], conditional)
        assert error < tolerance and bool((x[:, pixel] == y).all())
        margin = 4 * float(log_normaliser.exp().std()) / math.sqrt(n)
        assert float(log_normaliser.exp().mean()) == pytest.approx(
            joint.sum(), abs=margin, rel=0.03
        )


def test_correctors_leave_the_conditional_distribution_invariant():
    """Exact corrector steps by matrices, for the unknown pixel given the level of the known one."""
    q = 0.4
    length = 0.02
    joint = PAIR.marginal(q).reshape(16, 16)
    rate = PAIR.missing_counts(q).mean.reshape(16, 16, 2)[..., 0] * q / (1 - q)
    for known in (3, 7):
        conditional = joint[:, known] / joint[:, known].sum()
        generator = np.diag(rate[:15, known], 1) + np.diag(np.arange(1.0, 16.0), -1)
        generator -= np.diag(generator.sum(1))
        # frozen rates, with the known element fixed
        assert total_variation(conditional @ expm(generator * length), conditional) < 1e-9
        # thin both, take the exact pixelwise steps back, restore the known pixel
        back = PAIR.reverse(q, q * math.exp(-length)).reshape(16, 16, 16, 16)
        thinning = PAIR.thinning(math.exp(-length)).reshape(16, 16, 16, 16)[:, known]
        step = np.einsum("aij,ijb->ab", thinning, back.sum(3))
        assert total_variation(conditional @ step, conditional) < 2 * length**2


@pytest.mark.parametrize(
    "corrector", [LevelCorrector(0.5), pytest.param(ThinAndBridge(1.0), marks=pytest.mark.deep)]
)
def test_correctors_reduce_the_error_of_overwriting_and_keep_that_of_particles_small(corrector):
    conditional = PAIR.p0.reshape(16, 16)[:, 5] / PAIR.p0.reshape(16, 16)[:, 5].sum()
    known_elements = KnownElements(
        torch.full((1, 2), 5, dtype=torch.uint8), torch.tensor([[False, True]])
    )
    options = {
        "kernel": Trapezoidal(),
        "known_elements": known_elements,
        "data_mean": torch.tensor(PAIR.mean),
    }
    errors = []
    for number in (0, 4):
        streams = SampleStreams(0, torch.arange(1500))
        x = run_sampler(
            SamplingPlan(
                ExactDenoiser(PAIR),
                PureDeath(15),
                TIMES,
                correction=Correction(number, corrector),
                **options,
            ),
            (1500, 2),
            streams,
        )
        errors.append(distance(x[:, :1], conditional)[0])
    assert errors[1] < 0.8 * errors[0]
    streams = SampleStreams(0, torch.arange(1500))
    result = run_particles(
        SamplingPlan(
            ExactDenoiser(PAIR),
            PureDeath(15),
            TIMES,
            correction=Correction(1, corrector),
            **options,
        ),
        (1500, 2),
        streams,
        Particles(16),
    )
    assert distance(result.samples[:, :1], conditional)[0] < 0.05


# --- the loop


KNOWN = KnownElements(torch.tensor([[0, 5]], dtype=torch.uint8), torch.tensor([[False, True]]))


@pytest.mark.parametrize("correction", [Correction(), Correction(1, ThinAndBridge())])
def test_a_sample_depends_on_seed_and_index_only(correction):
    def draw(indices):
        denoiser = GuidedDenoiser(ExactDenoiser(CLASSES[1]), ExactDenoiser(ALL), Guidance(2.5), 15)
        streams = SampleStreams(3, torch.tensor(indices))
        result = run_particles(
            SamplingPlan(
                denoiser,
                PureDeath(15),
                TIMES,
                kernel=Trapezoidal(),
                correction=correction,
                known_elements=KNOWN,
                data_mean=torch.tensor(ALL.mean),
            ),
            (len(indices), 2),
            streams,
            Particles(5, threshold=0.9),
        )
        return result.samples, result.log_normaliser

    together, weights = draw(list(range(10)))
    alone, weight = draw([7, 2])
    assert torch.equal(alone, together[[7, 2]])
    # matrix products of other shapes may sum in another order
    torch.testing.assert_close(weight, weights[[7, 2]])
    assert len(weights.unique()) == 10


def test_particles_have_separate_random_streams():
    streams = SampleStreams(1, torch.tensor([4, 9]))
    six_per_sample = streams.particles(6)
    two_per_sample = SampleStreams(1, torch.tensor([9])).particles(2)
    numbers = six_per_sample.step(3).next_draw().uniform((12, 4))
    assert torch.equal(numbers[6:8], two_per_sample.step(3).next_draw().uniform((2, 4)))
    sample_numbers = [streams.step(step).next_draw().uniform((2, 4)) for step in range(-8, 9)]
    assert len(torch.cat([numbers, *sample_numbers]).unique()) == 48 + 8 * 17


def test_resampling_is_systematic():
    weights = normalise_weights(
        torch.log(torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64))
    )
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    counts = torch.stack(
        [
            torch.stack(
                [
                    row.bincount(minlength=4)
                    for row in systematic_resampling(weights, v.expand(2, 1))
                ]
            )
            for v in u
        ]
    )
    assert torch.allclose(counts.double().mean(0), 4 * weights, atol=0.01)
    assert bool(((counts - 4 * weights).abs() < 1).all())
    assert normalise_weights(torch.full((1, 4), -math.inf)).tolist() == [[0.25] * 4]


def test_kernels_without_a_guided_distribution_are_refused():
    x = torch.ones(1, 2, dtype=torch.uint8)
    t = torch.tensor(0.7, dtype=torch.float64)
    s = t / 2
    counts = GuidedDenoiser(ExactDenoiser(CLASSES[1]), ExactDenoiser(ALL), Guidance(2.0), 15)
    with pytest.raises(ValueError, match="guidance leaves no distribution"):
        PosteriorBridge()(ReverseStep(counts, PureDeath(15), x, s, t))
    with pytest.raises(ValueError, match="guidance leaves no distribution"):
        PosteriorTrapezoidal()(ReverseStep(counts, PureDeath(15), x, s, t))
