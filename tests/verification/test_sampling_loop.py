"""The sampling loop: independence of the batch, correctors, known elements."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from blackout import from_data
from blackout.diffusion.conditions import Conditions
from blackout.diffusion.correctors import Correction, LevelCorrector, ThinAndBridge
from blackout.diffusion.evaluations import count_evaluations
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.heads import SoftplusHead
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import PoissonLeap, ReverseStep, Trapezoidal
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.survival import time_of_logit
from blackout.diffusion.time_grids import fisher_times, logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import PURE_DEATH_KERNELS, ExactDenoiser, p_value
from blackout.verification.exact_steps import independent_step, poisson_births, step_matrix
from blackout.verification.toys import Toy, pixel_pair, total_variation
from tests.training.test_python import BODY, COUNTS
from tests.verification.test_kernel_bias import final_distribution

PAIR = pixel_pair()
CORRECTIONS = {
    "none": Correction(),
    "thin and bridge": Correction(2, ThinAndBridge()),
    "level": Correction(1, LevelCorrector()),
}


def count_states(x, toy):
    """Count how often every state of a toy was sampled."""
    index = np.ravel_multi_index(tuple(x.long().numpy().T), (toy.max_count + 1,) * toy.pixels)
    return np.bincount(index, minlength=len(toy.p0))


@pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS)
@pytest.mark.parametrize("kernel", PURE_DEATH_KERNELS.values(), ids=PURE_DEATH_KERNELS)
def test_samples_do_not_depend_on_their_batch(kernel, correction):
    def draw(indices):
        streams = SampleStreams(1, torch.tensor(indices))
        known_elements = KnownElements(
            torch.full((1, 2), 7, dtype=torch.uint8), torch.tensor([[False, True]])
        )
        shape = (len(indices), 2)
        data_mean = torch.tensor(PAIR.mean)
        return run_sampler(
            SamplingPlan(
                ExactDenoiser(PAIR),
                PureDeath(15),
                fisher_times(9),
                kernel=kernel,
                correction=correction,
                data_mean=data_mean,
                known_elements=known_elements,
            ),
            shape,
            streams,
        )

    together = draw(list(range(12)))
    assert torch.equal(draw([7, 2]), together[[7, 2]]) and int(together.max()) <= 15
    assert together.unique(dim=0).shape[0] > 3 and bool((together[:, 1] == 7).all())


def test_the_callback_receives_every_time_and_counts_only_grow():
    calls = []
    streams = SampleStreams(9, torch.arange(50))
    run_sampler(
        SamplingPlan(ExactDenoiser(PAIR), PureDeath(15), fisher_times(12), kernel=Trapezoidal()),
        (50, 2),
        streams,
        callback=lambda k, x, _: calls.append((k, x)),
    )
    assert [k for k, _ in calls] == list(range(12, -1, -1))
    assert all(bool((after >= before).all()) for (_, before), (_, after) in pairwise(calls))


@pytest.mark.parametrize(
    "kernel, correction, expected",
    [
        (PoissonLeap(), Correction(), 10),
        (Trapezoidal(), Correction(), 19),
        (PoissonLeap(), Correction(2), 28),
        (Trapezoidal(), Correction(1, LevelCorrector()), 28),
        (PoissonLeap(), Correction(2, logit_range=(0.0, 100.0)), 20),
    ],
)
def test_counted_evaluations_are_those_the_loop_makes(kernel, correction, expected):
    times = logit_times(10, 6.0, -6.0)
    calls = []

    def denoiser(xt, t):
        calls.append(float(t))
        return CountPrediction(torch.ones(xt.shape), torch.zeros(xt.shape))

    run_sampler(
        SamplingPlan(denoiser, PureDeath(50), times, kernel=kernel, correction=correction),
        (1, 1),
        torch.Generator(),
    )
    sampler = Sampler(kernel, correction=correction, guidance=Guidance(2.0))
    assert (
        len(calls) == count_evaluations(times, PureDeath(50), SoftplusHead(), sampler) == expected
    )
    assert (
        count_evaluations(times, PureDeath(50), SoftplusHead(), sampler, guided=True)
        == 2 * expected
    )


class ExactJointKernel:
    """Samples X_s from the toy's exact joint distribution given X_t, by table."""

    def __call__(self, at):
        table = torch.from_numpy(PAIR.reverse(float(torch.exp(-at.s)), float(torch.exp(-at.t))))
        state = at.x[:, 0].long() * 16 + at.x[:, 1].long()
        u = at.generator.next_draw().uniform((len(at.x), 1))
        index = (table[state].cumsum(1) < u).sum(1).clamp(max=255)
        return torch.stack([index // 16, index % 16], dim=1).to(at.x.dtype)


@pytest.mark.parametrize("back", [0.3, 1.0])
def test_thin_and_bridge_leaves_the_distribution_at_its_time_invariant(back):
    n = 40_000
    s, t = (time_of_logit(torch.tensor(u).double()) for u in (0.5, -1.5))
    streams = SampleStreams(2, torch.arange(n))
    x0 = torch.from_numpy(PAIR.states[np.random.default_rng(0).choice(256, n, p=PAIR.p0)]).to(
        torch.uint8
    )
    xs = PureDeath(15).sample(x0, s, streams.step(1))
    expected = PAIR.marginal(float(torch.exp(-s)))
    for step in (2, 3):
        before = xs
        xs = ThinAndBridge(back)(
            ExactJointKernel(), ReverseStep(None, PureDeath(15), xs, s, t, streams.step(step))
        )
        assert float((xs != before).double().mean()) > 0.2
        assert p_value(count_states(xs, PAIR), expected) > 1e-4
    wrong = PureDeath(15).sample(xs, (t - s) * 0.05, streams.step(4))
    # the test would detect 5 % of a step too much
    assert p_value(count_states(wrong, PAIR), expected) < 1e-6


def test_birth_and_death_leave_the_distribution_invariant_as_steps_shrink():
    """Exact matrices of one leap: the change of p_s per unit of length vanishes with the length."""
    q = 0.4
    marginal = PAIR.marginal(q)
    levels = np.arange(16)

    def change(length):
        missing = PAIR.missing_counts(q)
        births = poisson_births(missing, length * q / (1 - q)).reshape(256, 2, 16)
        survive = np.exp(-length)
        per_pixel = np.zeros((256, 2, 16))
        for pixel in range(2):
            for state in range(256):
                survivors = np.zeros(16)
                level = PAIR.states[state, pixel]
                survivors[: level + 1] = np.array(
                    [_binomial(level, k, survive) for k in range(level + 1)]
                )
                total = np.convolve(survivors, births[state, pixel])
                per_pixel[state, pixel] = total[:16]
                per_pixel[state, pixel, 15] += 1 - total[:16].sum()
        joint = (per_pixel[:, 0, levels][:, :, None] * per_pixel[:, 1][:, None, :]).reshape(
            256, 256
        )
        return total_variation(marginal @ joint, marginal)

    errors = [change(length) for length in (0.1, 0.05, 0.025)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.15)


def _binomial(n, k, p):
    """Return the probability of k successes among n."""
    from math import comb

    return comb(int(n), k) * p**k * (1 - p) ** (int(n) - k)


def corrected_distribution(toy, times, sigma, corrector_steps=0, seed=0):
    """Return the final distribution of Poisson leaps with a wrong network.

    Its mean is off by a fixed log-normal factor. Correctors thin and bridge by half a step.
    """
    rng = np.random.default_rng(seed)
    survivals = np.exp(-times.numpy())
    # one fixed factor per (state, pixel), independent of time
    factor = np.exp(sigma * rng.standard_normal(len(toy.p0) * toy.pixels) - sigma**2 / 2)

    def wrong_births(missing, r):
        return poisson_births(missing._replace(mean=missing.mean * factor), r)

    def step(toy, distribution, q_s, q_t):
        distribution = independent_step(toy, distribution, q_s, q_t, wrong_births)
        if q_s == 1:
            return distribution
        odds = np.sqrt((1 / q_s - 1) * (1 / q_t - 1))  # half a step back in logit survival
        earlier = 1 / (1 + odds)
        for _ in range(corrector_steps):
            distribution = (
                distribution
                @ toy.thinning(earlier / q_s)
                @ step_matrix(toy, wrong_births, q_s, earlier)
            )
        return distribution

    return final_distribution(toy, survivals, step)


@pytest.mark.deep
def test_correctors_reduce_the_error_of_the_model_but_not_of_the_discretisation():
    def error(num_steps, sigma, corrector_steps):
        return total_variation(
            corrected_distribution(PAIR, logit_times(num_steps, 5.0, -8.0), sigma, corrector_steps),
            PAIR.p0,
        )

    # a perfect network: evaluations are better spent on the predictor
    assert error(64, 0.0, 0) < error(32, 0.0, 1)
    # a wrong network: evaluations are better spent on the corrector
    assert error(64, 0.3, 1) < error(128, 0.3, 0)
    assert error(64, 0.1, 1) < error(128, 0.1, 0)


@pytest.mark.parametrize(
    "make_corrector",
    [
        lambda: Correction(-1),
        lambda: Correction(logit_range=(1.0, 0.0)),
        lambda: ThinAndBridge(0.0),
        lambda: LevelCorrector(-1.0),
    ],
)
def test_invalid_correctors_are_refused(make_corrector):
    with pytest.raises(ValueError):
        make_corrector()


def test_known_elements_follow_the_forward_process_and_end_at_their_values():
    toy = Toy("line", np.eye(31)[30])
    x0 = torch.tensor([[30, 0]], dtype=torch.uint8)
    known_elements = KnownElements(x0, torch.tensor([[True, False]]))
    times = logit_times(6, 3.0, -4.0)
    n = 20_000
    states = {}
    run_sampler(
        SamplingPlan(
            lambda x, t: CountPrediction(torch.ones(x.shape), torch.zeros(x.shape)),
            PureDeath(30),
            times,
            kernel=PoissonLeap(),
            known_elements=known_elements,
        ),
        (n, 2),
        SampleStreams(0, torch.arange(n)),
        callback=lambda k, x, _: states.update({k: x}),
    )
    assert bool((states[0][:, 0] == 30).all()) and len(states[0][:, 1].unique()) > 3
    for k in range(1, 7):
        counts = np.bincount(states[k][:, 0].long().numpy(), minlength=31)
        assert p_value(counts, toy.marginal(float(torch.exp(-times[k])))) > 1e-4
        assert bool((states[k - 1][:, 0] >= states[k][:, 0]).all())
    with pytest.raises(ValueError, match="mask"):
        KnownElements(x0, x0)


def test_every_sample_may_have_its_own_known_elements_in_any_batch():
    # in float64, rounding that depends on the batch shape changes no sample
    model = from_data(COUNTS, BODY, seed=0).model.eval().double()
    mask = torch.eye(6, 4).bool() | (torch.arange(6) > 3)[:, None]
    known_elements = KnownElements(COUNTS[:6], mask)
    samples = [
        torch.cat(
            [
                part["samples"]
                for _, part in model.batches(
                    torch.arange(6),
                    0,
                    sampler=sampler,
                    conditions=Conditions(known_elements=known_elements),
                )
            ]
        )
        for sampler in (Sampler(num_steps=3), Sampler(num_steps=3, batch_size=4))
    ]
    assert torch.equal(*samples) and torch.equal(samples[0][mask].int(), COUNTS[:6][mask])
    assert not torch.equal(samples[0][~mask].int(), COUNTS[:6][~mask])
