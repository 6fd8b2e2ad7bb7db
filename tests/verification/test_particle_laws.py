"""Particles against enumeration: distributions given known elements, and what correctors leave as it is."""

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
from blackout.diffusion.schedules import logit_times
from blackout.random import SampleStreams, systematic_resampling
from blackout.verification.draws import ExactDenoiser
from blackout.verification.exact_steps import add_births, birth_fraction, poisson_pmf
from blackout.verification.toys import Toy, pixel_pair, total_variation
from tests.verification.test_guidance_laws import ALL, CLASSES, SHARES

LEVELS = np.arange(16)
ONE = [Toy(str(m), np.exp(-((LEVELS - m) ** 2) / (2 * w**2)) + 1e-4) for m, w in ((5, 2.0), (9, 3.0))]
ONE_ALL = Toy("all", sum(share * toy.p0 for share, toy in zip(SHARES, ONE, strict=True)))
PAIR, TIMES = pixel_pair(), logit_times(25, 5.0, -7.0)


def tilted(p, p_c, g):
    """(p^(1 - g) p_c^g normalised, its sum before)."""
    law = np.where(p_c > 0, np.maximum(p, 1e-300) ** (1 - g) * p_c**g, 0.0)
    return law / law.sum(), float(law.sum())


def distance(x, law, levels=16):
    """(total variation of draws [n, elements] to a law, what draws of the law itself would have)."""
    index = np.ravel_multi_index(tuple(x.long().numpy().T), (levels,) * x.shape[1])
    n, rng = len(x), np.random.default_rng(0)
    floor = np.mean([total_variation(rng.multinomial(n, law) / n, law) for _ in range(8)])
    return total_variation(np.bincount(index, minlength=len(law)) / n, law), float(floor)


# --- guided rates, by matrices


def walk_of_rates(plain, given, g, weighed, num_steps=400):
    """Law of walks at guided rates on one pixel, whole matrices of short steps, with or without exp(V r)."""
    times = logit_times(num_steps, 6.0, -8.0).numpy()
    law = poisson_pmf(plain.mean ** (1 - g) * given.mean**g * math.exp(-times[-1]), 15)[0]
    for s, t in zip(times[-2::-1], times[:0:-1], strict=True):
        q_s, q_t = math.exp(-s), math.exp(-t)
        y, y_c = (toy.missing_counts(q_t).mean for toy in (plain, given))
        y_g = np.where(LEVELS < 15, np.maximum(y, 1e-30) ** (1 - g) * y_c**g, 0.0)
        r = birth_fraction(q_s, q_t)
        step = add_births(poisson_pmf(y_g * r, 15), LEVELS)
        law = (law * np.exp((y_g - (1 - g) * y - g * y_c) * r if weighed else 0.0)) @ step
    return law / law.sum()


@pytest.mark.parametrize("g, off", [(2.0, 0.03), (3.0, 0.08)])
def test_guided_rates_have_another_law_and_the_potential_is_the_difference(g, off):
    law, _ = tilted(ONE_ALL.p0, ONE[1].p0, g)
    assert total_variation(walk_of_rates(ONE_ALL, ONE[1], g, weighed=False), law) > off
    errors = [total_variation(walk_of_rates(ONE_ALL, ONE[1], g, True, steps), law) for steps in (200, 400)]
    assert errors[1] < 0.05 and errors[0] / errors[1] > 1.7  # what is left is the steps' own, of first order


# --- known elements


@pytest.mark.parametrize("pixel, y", [pytest.param(0, 8, marks=pytest.mark.deep), (1, 2)])
def test_particles_complete_known_elements_where_overwriting_does_not(pixel, y):
    joint = PAIR.p0.reshape(16, 16).take(y, axis=pixel)
    law, mask = joint / joint.sum(), torch.arange(2)[None] == pixel
    known = KnownElements(torch.full((1, 2), y, dtype=torch.uint8), mask)

    def draw(number, n):
        streams = SampleStreams(0, torch.arange(n))
        how = {"kernel": Trapezoidal(), "known": known, "mean": torch.tensor(PAIR.mean)}
        if number == 1:
            return run_sampler(SamplingPlan(ExactDenoiser(PAIR), PureDeath(15), TIMES, **how), (n, 2), streams), None
        drawn = run_particles(
            SamplingPlan(ExactDenoiser(PAIR), PureDeath(15), TIMES, **how),
            (n, 2),
            streams,
            Particles(number),
        )
        return drawn.samples, drawn.log_normaliser

    overwritten, _ = draw(1, 4000)
    assert distance(overwritten[:, [1 - pixel]], law)[0] > 0.2
    for number, n, most in ((16, 2500, 0.05), (64, 5000, 0.03))[: 2 - pixel]:
        x, log_normaliser = draw(number, n)
        found, _ = distance(x[:, [1 - pixel]], law)
        assert found < most and bool((x[:, pixel] == y).all())
        error = 4 * float(log_normaliser.exp().std()) / math.sqrt(n)
        assert float(log_normaliser.exp().mean()) == pytest.approx(joint.sum(), abs=error, rel=0.03)


def test_correctors_after_overwriting_bring_the_others_in_line():
    """The law of the unknown pixel given the known one's level, under exact steps of a corrector, whole matrices."""
    q, short = 0.4, 0.02
    joint = PAIR.marginal(q).reshape(16, 16)
    rate = PAIR.missing_counts(q).mean.reshape(16, 16, 2)[..., 0] * q / (1 - q)
    for known in (3, 7):
        law = joint[:, known] / joint[:, known].sum()
        generator = np.diag(rate[:15, known], 1) + np.diag(np.arange(1.0, 16.0), -1)
        generator -= np.diag(generator.sum(1))
        assert total_variation(law @ expm(generator * short), law) < 1e-9  # frozen rates, known element held
        # thin both, take the exact pixelwise steps back, put the known pixel in its place again
        back = PAIR.reverse(q, q * math.exp(-short)).reshape(16, 16, 16, 16)
        thin = PAIR.thinning(math.exp(-short)).reshape(16, 16, 16, 16)[:, known]
        stay = np.einsum("aij,ijb->ab", thin, back.sum(3))
        assert total_variation(law @ stay, law) < 2 * short**2


@pytest.mark.parametrize("corrector", [LevelCorrector(0.5), pytest.param(ThinAndBridge(1.0), marks=pytest.mark.deep)])
def test_correctors_mend_overwriting_and_keep_what_particles_found(corrector):
    law = PAIR.p0.reshape(16, 16)[:, 5] / PAIR.p0.reshape(16, 16)[:, 5].sum()
    known = KnownElements(torch.full((1, 2), 5, dtype=torch.uint8), torch.tensor([[False, True]]))
    how = {"kernel": Trapezoidal(), "known": known, "mean": torch.tensor(PAIR.mean)}
    found = []
    for number in (0, 4):
        streams = SampleStreams(0, torch.arange(1500))
        x = run_sampler(
            SamplingPlan(
                ExactDenoiser(PAIR),
                PureDeath(15),
                TIMES,
                correction=Correction(number, corrector),
                **how,
            ),
            (1500, 2),
            streams,
        )
        found.append(distance(x[:, :1], law)[0])
    assert found[1] < 0.8 * found[0]
    streams = SampleStreams(0, torch.arange(1500))
    drawn = run_particles(
        SamplingPlan(
            ExactDenoiser(PAIR), PureDeath(15), TIMES, correction=Correction(1, corrector), **how
        ),
        (1500, 2),
        streams,
        Particles(16),
    )
    assert distance(drawn.samples[:, :1], law)[0] < 0.05


# --- the loop


HELD = KnownElements(torch.tensor([[0, 5]], dtype=torch.uint8), torch.tensor([[False, True]]))


@pytest.mark.parametrize("correction", [Correction(), Correction(1, ThinAndBridge())])
def test_a_sample_is_a_function_of_seed_and_number(correction):
    def draw(indices):
        denoiser = GuidedDenoiser(ExactDenoiser(CLASSES[1]), ExactDenoiser(ALL), Guidance(2.5), 15)
        streams = SampleStreams(3, torch.tensor(indices))
        drawn = run_particles(
            SamplingPlan(
                denoiser,
                PureDeath(15),
                TIMES,
                kernel=Trapezoidal(),
                correction=correction,
                known=HELD,
                mean=torch.tensor(ALL.mean),
            ),
            (len(indices), 2),
            streams,
            Particles(5, threshold=0.9),
        )
        return drawn.samples, drawn.log_normaliser

    together, weights = draw(list(range(10)))
    alone, weight = draw([7, 2])
    assert torch.equal(alone, together[[7, 2]])
    torch.testing.assert_close(weight, weights[[7, 2]])  # products of matrices of other shapes may add in another order
    assert len(weights.unique()) == 10


def test_particles_have_streams_of_their_own():
    streams = SampleStreams(1, torch.tensor([4, 9]))
    many, few = streams.particles(6), SampleStreams(1, torch.tensor([9])).particles(2)
    numbers = many.step(3).next_draw().uniform((12, 4))
    assert torch.equal(numbers[6:8], few.step(3).next_draw().uniform((2, 4)))
    others = [streams.step(step).next_draw().uniform((2, 4)) for step in range(-8, 9)]
    assert len(torch.cat([numbers, *others]).unique()) == 48 + 8 * 17


def test_resampling_is_systematic():
    weight = normalise_weights(
        torch.log(torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64))
    )
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    counts = torch.stack(
        [torch.stack([row.bincount(minlength=4) for row in systematic_resampling(weight, v.expand(2, 1))]) for v in u]
    )
    assert torch.allclose(counts.double().mean(0), 4 * weight, atol=0.01)
    assert bool(((counts - 4 * weight).abs() < 1).all())
    assert normalise_weights(torch.full((1, 4), -math.inf)).tolist() == [[0.25] * 4]


def test_what_has_no_such_law_is_refused():
    x, t = torch.ones(1, 2, dtype=torch.uint8), torch.tensor(0.7, dtype=torch.float64)
    s = t / 2
    counts = GuidedDenoiser(ExactDenoiser(CLASSES[1]), ExactDenoiser(ALL), Guidance(2.0), 15)
    with pytest.raises(ValueError, match="guidance leaves no distribution"):
        PosteriorBridge()(ReverseStep(counts, PureDeath(15), x, s, t))
    with pytest.raises(ValueError, match="guidance leaves no distribution"):
        PosteriorTrapezoidal()(ReverseStep(counts, PureDeath(15), x, s, t))
