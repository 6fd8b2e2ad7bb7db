"""The sampling loop: start and end, callbacks, counted evaluations, and stateful kernels."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from blackout.diffusion.correctors import Correction, LevelCorrector, ThinAndBridge
from blackout.diffusion.evaluations import count_evaluations
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.heads import (
    BirthDeathHead,
    LevelHead,
    LogisticMixtureHead,
    ScaledHead,
    SoftplusHead,
)
from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    LevelBridge,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    StatefulKernel,
    TauLeap,
    Trapezoidal,
)
from blackout.diffusion.likelihood import likelihood_bound
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction
from blackout.diffusion.processes import Absorbing, PureDeath, Uniform, UniformChain
from blackout.diffusion.processes import BirthDeath as Immigration
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler
from blackout.diffusion.time_grids import fisher_times, logit_times, step_times
from blackout.random import SampleStreams

SHAPE = (6, 2, 3)
TIMES = logit_times(8, 4.0, -5.0)


def constant_denoiser(head, logits=0.3):
    """Return a denoiser with constant logits."""
    return lambda xt, t: head(torch.full((len(xt), head.outputs, *xt.shape[1:]), logits), xt, t)


def streams():
    """Return random streams of six samples."""
    return SampleStreams(5, torch.arange(6))


@pytest.mark.parametrize(
    "process, head, kernel",
    [
        (PureDeath(9), ScaledHead(4.0), Trapezoidal()),
        (Immigration(9, 3.0), BirthDeathHead(3.0), BirthDeathBridge()),
        (Absorbing(9), LevelHead(Absorbing(9), 9), LevelBridge()),
        (Uniform(9), LevelHead(Uniform(9), 9), TauLeap()),
    ],
)
@pytest.mark.parametrize("cut", [0, 3, 8])
def test_sampling_in_two_parts_equals_sampling_in_one(process, head, kernel, cut):
    """Sampling may stop at any state, also one that no data have, and continue from there."""
    states = {}
    correction = Correction(1, LevelCorrector())
    denoiser = constant_denoiser(head)
    x0 = run_sampler(
        SamplingPlan(denoiser, process, TIMES, kernel=kernel, correction=correction),
        SHAPE,
        streams(),
        callback=lambda k, x, _: states.update({k: x}),
    )
    continued_states = {}
    continued = run_sampler(
        SamplingPlan(denoiser, process, TIMES[: cut + 1], kernel=kernel, correction=correction),
        SHAPE,
        streams(),
        start=states[cut],
        callback=lambda k, x, _: continued_states.update({k: x}),
    )
    assert torch.equal(continued, x0) and continued.dtype == torch.uint8
    assert sorted(continued_states) == list(range(cut + 1)) and all(
        torch.equal(continued_states[k], states[k]) for k in continued_states
    )


def test_a_grid_that_ends_above_zero_returns_the_state_at_that_time():
    process = Absorbing(9)
    state = run_sampler(
        SamplingPlan(
            constant_denoiser(LevelHead(process, 9)), process, TIMES[5:], kernel=LevelBridge()
        ),
        SHAPE,
        streams(),
    )
    # not a data level: some elements are still masked
    assert int(state.max()) == process.mask == 10
    assert (
        int(
            run_sampler(
                SamplingPlan(
                    constant_denoiser(LevelHead(process, 9)), process, TIMES, kernel=LevelBridge()
                ),
                SHAPE,
                streams(),
            ).max()
        )
        < 10
    )


@pytest.mark.parametrize(
    "times, start, word",
    [
        (TIMES.flip(0), None, "increase"),
        (TIMES - 1, None, "increase"),
        (TIMES[None], None, "increase"),
        (TIMES[:0], None, "increase"),
        (TIMES, torch.zeros(6, 2, dtype=torch.uint8), "shape"),
        (TIMES, torch.zeros(SHAPE), "integers"),
    ],
)
def test_invalid_grids_and_starts_are_refused(times, start, word):
    with pytest.raises(ValueError, match=word):
        run_sampler(
            SamplingPlan(constant_denoiser(ScaledHead(4.0)), PureDeath(9), times),
            SHAPE,
            start=start,
        )


@pytest.mark.parametrize("kernel, per_step", [(PoissonLeap(), 1), (Trapezoidal(), 2)])
def test_the_callback_receives_the_last_prediction_of_every_step(kernel, per_step):
    predictions = []
    calls = []

    def denoiser(xt, t):
        predictions.append(CountPrediction(torch.full(xt.shape, float(t)), torch.zeros(xt.shape)))
        return predictions[-1]

    run_sampler(
        SamplingPlan(denoiser, PureDeath(9), TIMES, kernel=kernel),
        SHAPE,
        streams(),
        callback=lambda k, _, p: calls.append((k, p)),
    )
    assert calls[0] == (8, None) and [k for k, _ in calls] == list(range(8, -1, -1))
    expected_predictions = [
        predictions[min(i, len(predictions) - 1)]
        for i in range(per_step - 1, 8 * per_step, per_step)
    ]
    assert all(
        actual is expected
        for (_, actual), expected in zip(calls[1:], expected_predictions, strict=True)
    )


@dataclass
class TwoSteps(StatefulKernel):
    """A multistep kernel: Poisson leaps with the Adams-Bashforth mean of two predictions."""

    memoryless = PoissonLeap()
    last: list = field(default_factory=list)

    def start(self, mean):
        return TwoSteps()

    def __call__(self, at):
        prediction = at.denoiser(at.x, at.t)
        before = self.last[-1] if self.last else prediction.mean
        self.last.append(prediction.mean)
        mean = (1.5 * prediction.mean - 0.5 * before).clamp(min=1e-30)
        leap = replace(prediction, mean=mean, log_mean=mean.log())
        return PoissonLeap()(replace(at, denoiser=lambda *_: leap))


def test_every_run_starts_a_fresh_kernel():
    kernel = TwoSteps()
    assert isinstance(kernel, StatefulKernel) and not isinstance(PoissonLeap(), StatefulKernel)
    first, second = (
        run_sampler(
            SamplingPlan(constant_denoiser(ScaledHead(4.0)), PureDeath(9), TIMES, kernel=kernel),
            SHAPE,
            streams(),
        )
        for _ in "ab"
    )
    assert torch.equal(first, second) and kernel.last == []
    memoryless = run_sampler(
        SamplingPlan(constant_denoiser(ScaledHead(4.0)), PureDeath(9), TIMES, kernel=PoissonLeap()),
        SHAPE,
        streams(),
    )
    assert not torch.equal(first, memoryless)
    assert (
        count_evaluations(TIMES, PureDeath(9), ScaledHead(4.0), Sampler(kernel)) == 8
        and kernel.last == []
    )


FULL = LogisticMixtureHead(SoftplusHead(), 9, 4.0, 2.0)
CORRECTED = Correction(1, LevelCorrector())
CHAIN = UniformChain(9, 20)
EVALUATION_COUNTS = [  # (grid, process, head, kernel, correction, guidance, NFE)
    (fisher_times(25), PureDeath(9), SoftplusHead(), Trapezoidal(), Correction(), Guidance(), 49),
    (fisher_times(1), PureDeath(9), SoftplusHead(), Trapezoidal(), Correction(), Guidance(), 1),
    (
        fisher_times(100),
        PureDeath(255),
        SoftplusHead(),
        BinomialBridge(),
        Correction(),
        Guidance(),
        100,
    ),
    (TIMES, PureDeath(9), FULL, PosteriorBridge(), Correction(2), Guidance(), 8 + 2 * 7),
    (TIMES, PureDeath(9), FULL, PosteriorTrapezoidal(), Correction(), Guidance(), 15),
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        Trapezoidal(),
        Correction(2, ThinAndBridge()),
        Guidance(),
        15 + 2 * 2 * 7,
    ),
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        Trapezoidal(),
        Correction(3, LevelCorrector()),
        Guidance(),
        15 + 3 * 7,
    ),
    # u = 4, 2.71, 1.43, 0.14, -1.14, -2.43, -3.71, -5: corrected at the first four, where steps end
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        PoissonLeap(),
        Correction(1, LevelCorrector(), (0.0, 9.0)),
        Guidance(),
        8 + 4,
    ),
    (TIMES, PureDeath(9), SoftplusHead(), PoissonLeap(), Correction(), Guidance(2.0), 16),
    (TIMES, PureDeath(9), SoftplusHead(), PoissonLeap(), Correction(), Guidance(0.0), 8),
    (TIMES, PureDeath(9), SoftplusHead(), PoissonLeap(), Correction(), Guidance(1.0), 8),
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        PoissonLeap(),
        Correction(),
        Guidance(2.0, (-3.0, 3.0)),
        8 + 5,
    ),
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        Trapezoidal(),
        Correction(),
        Guidance(2.0, (-3.0, 3.0)),
        15 + 10,
    ),
    (
        TIMES,
        PureDeath(9),
        SoftplusHead(),
        Trapezoidal(),
        Correction(1),
        Guidance(2.0),
        2 * (15 + 14),
    ),
    (
        TIMES,
        Immigration(9, 2.0),
        BirthDeathHead(2.0),
        BirthDeathBridge(),
        CORRECTED,
        Guidance(),
        8 + 7,
    ),
    (
        TIMES,
        Uniform(9),
        LevelHead(Uniform(9), 9),
        TauLeap(),
        Correction(2, LevelCorrector()),
        Guidance(),
        8 + 14,
    ),
    (step_times(5, 20), CHAIN, LevelHead(CHAIN, 9), LevelBridge(), Correction(), Guidance(), 5),
]


@pytest.mark.parametrize(
    "times, process, head, kernel, correction, guidance, expected", EVALUATION_COUNTS
)
def test_counted_network_evaluations_match_a_count_by_hand(
    times, process, head, kernel, correction, guidance, expected
):
    state = torch.random.get_rng_state()
    sampler = Sampler(kernel, correction=correction, guidance=guidance)
    assert count_evaluations(times, process, head, sampler, guided=True) == expected
    assert torch.equal(torch.random.get_rng_state(), state)
    if guidance == Guidance():
        counting = CountingDenoiser(constant_denoiser(head, 0.0))
        run_sampler(
            SamplingPlan(counting, process, times, kernel=kernel, correction=correction),
            SHAPE,
            streams(),
        )
        assert counting.evaluations == expected


def test_incompatible_components_are_refused_with_their_requirements():
    categorical = constant_denoiser(LevelHead(Uniform(9), 9))
    count_kernels = (
        BinomialBridge(),
        PoissonLeap(),
        PosteriorBridge(),
        PosteriorTrapezoidal(),
        Trapezoidal(),
    )
    for kernel in (*count_kernels, BirthDeathBridge()):
        with pytest.raises(
            ValueError, match=f"{type(kernel).__name__} does not fit the process Uniform"
        ):
            run_sampler(SamplingPlan(categorical, Uniform(9), TIMES, kernel=kernel), SHAPE)
    with pytest.raises(ValueError, match="TauLeap does not fit the process PureDeath"):
        run_sampler(SamplingPlan(categorical, PureDeath(9), TIMES, kernel=TauLeap()), SHAPE)
    with pytest.raises(
        ValueError, match=r"TauLeap does not fit the process UniformChain .* continuous time"
    ):
        run_sampler(
            SamplingPlan(categorical, UniformChain(9, 8), step_times(8, 8), kernel=TauLeap()), SHAPE
        )
    for corrector, word in (
        (ThinAndBridge(), "no rates"),
        (LevelCorrector(), "no rates"),
    ):
        with pytest.raises(ValueError, match=word):
            run_sampler(
                SamplingPlan(
                    categorical,
                    UniformChain(9, 8),
                    step_times(8, 8),
                    kernel=LevelBridge(),
                    correction=Correction(1, corrector),
                ),
                SHAPE,
            )
    with pytest.raises(ValueError, match="bound of the process PureDeath needs a CountPrediction"):
        likelihood_bound(
            categorical, PureDeath(9), torch.zeros(SHAPE).byte(), torch.full((6,), 0.5).double()
        )


def test_expected_counts_are_computed_from_the_logarithm():
    log_probs = torch.log_softmax(
        torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)), 1
    )
    prediction = CategoricalPrediction(log_probs)
    assert (
        torch.equal(prediction.expected, log_probs.double().exp())
        and prediction.expected.dtype == torch.float64
    )
    assert torch.equal(prediction.mean, log_probs.exp())
    tiny = CountPrediction(torch.zeros(1), torch.full((1,), -200.0))
    assert float(tiny.expected) == pytest.approx(1.384e-87, rel=1e-3)
