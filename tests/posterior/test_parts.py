"""Operators, noises, couplings, diagnostics and streams."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from blackout import from_data
from blackout.diffusion.processes import Absorbing, PureDeath, Uniform, UniformChain
from blackout.diffusion.schedules import logit_survival
from blackout.posterior import (
    And,
    Auto,
    Binomial,
    BlindProblem,
    Blur,
    Camera,
    Exact,
    Flips,
    Function,
    Gaussian,
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    InverseProblem,
    Matrix,
    Poisson,
    Pool,
    Prior,
    SplitGibbs,
    UnknownParameter,
    Xor,
    anneal,
    conjugate_state,
)
from blackout.posterior.coupling import Coupling
from blackout.posterior.diagnostics import (
    coverage,
    ess_bulk,
    ess_tail,
    log_mean_exp,
    normalised_ranks,
    posterior_predictive_p_value,
    predictive_quantiles,
    prior_predictive_p_value,
    r_hat,
    r_hat_limit,
    rank_discrepancies,
    rank_p_value,
)
from blackout.posterior.draw import make_prior
from blackout.posterior.likelihood_steps import colour_forests, make_step
from blackout.posterior.problem import repeat_rows
from blackout.posterior.split_gibbs import find_possible_state
from blackout.random import SampleStreams
from blackout.verification.draws import p_value

SHAPE = (2, 6, 6)
OPERATORS = [
    (Identity(), SHAPE),
    (InpaintBox((1, 2), (0, 3)), SHAPE),
    (InpaintRandom(0.3), SHAPE),
    (Pool(2), SHAPE),
    (Pool(3), (12,)),
    (Blur(3, 0.8), SHAPE),
    (Matrix(torch.eye(12)[:5] + 1.0 * (torch.arange(12) == 3)), (12,)),
    (Xor(0.5), SHAPE),
    (And(2.0), (12,)),
    (Inpaint(torch.arange(12) % 3 > 0), (12,)),
]


@pytest.mark.parametrize("operator, shape", OPERATORS, ids=lambda part: type(part).__name__)
def test_the_incidence_lists_every_dependence_of_an_operator(operator, shape):
    x = torch.randint(0, 2, (1, *shape), generator=torch.Generator().manual_seed(0)).double()
    elements = math.prod(shape)
    m = operator(x).flatten()
    observed = operator.observed_mask(shape)
    pairs = {tuple(pair) for pair in operator.incidence(shape).T.tolist()}
    for element in range(elements):
        changed = x.flatten(1).clone()
        changed[:, element] += 1
        differs = operator(changed.view_as(x)).flatten() != m
        differs = differs if observed is None else differs & observed.flatten()
        assert {(int(k), element) for k in differs.nonzero()[:, 0]} <= pairs
    forests = colour_forests(operator.incidence(shape), elements)
    assert sorted(torch.cat([forest.elements for forest in forests]).tolist()) == list(
        range(elements)
    )
    for forest in forests:
        assert len(forest.terms.unique()) == len(forest.terms) and not forest.branches
    # levels tried one by one give the terms of all levels at once
    problem = InverseProblem(
        operator, Poisson(0.5, 0.2), torch.ones(1, *operator.measurement_shape(shape))
    )
    relaxed = Coupling(PureDeath(7)).relax(problem, shape, 0.3)
    z = torch.cat([x, 3 * x]).to(torch.uint8)
    inside = forests[-1].elements
    candidates = z.flatten(1).repeat(8, 1)
    candidates[:, inside] = torch.arange(8, dtype=torch.uint8).repeat_interleave(2)[:, None]
    one_by_one = torch.cat(
        [relaxed.problem.terms(view) for view in relaxed.to_data(candidates.view(-1, *shape))]
    )
    assert torch.allclose(relaxed.terms(z, inside, 8), one_by_one)


def test_a_box_hides_its_first_and_its_last_row_and_column():
    observed = InpaintBox((1, 2), (0, 3)).observed_mask((2, 4, 5))
    hidden = torch.zeros(2, 4, 5, dtype=torch.bool)
    hidden[:, 1:3, 0:4] = True
    assert torch.equal(observed, ~hidden)


def test_forests_of_regular_operators_need_few_colours():
    assert (
        len(colour_forests(Pool(2).incidence((1, 8, 8)), 64)) == 4
        and len(colour_forests(Identity().incidence((1, 8, 8)), 64)) == 1
    )
    assert len(colour_forests(Xor(0.5).incidence((1, 32, 32)), 1024)) <= 5


def test_pooling_sums_blocks_and_a_blur_keeps_constants():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert Pool(2)(x).flatten().tolist() == [10, 18, 42, 50]
    assert torch.allclose(Pool(2)(Pool(2).back_project(Pool(2)(x), (1, 4, 4))), Pool(2)(x))
    assert torch.allclose(
        Blur(3, 1.0)(torch.ones(1, 1, 5, 5))[0, 0, 2, 2], torch.tensor(1.0, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    "noise, m, mean, variance",
    [
        (Binomial(0.3), 20.0, 6.0, 4.2),
        (Poisson(0.5, 2.0), 8.0, 6.0, 6.0),
        (Gaussian(1.5), 4.0, 4.0, 2.25),
        (Flips(2.0), 1.0, 1.0, 0.0),
        (Camera(0.5, 1.0, 2.0, 100.0, 1.5), 10.0, 112.0, 26.25),
    ],
)
def test_draws_of_noises_have_their_mean_and_variance(noise, m, mean, variance):
    values = torch.full((1, 40_000), m, dtype=torch.float64)
    y = noise.draw(values, SampleStreams(0, torch.zeros(1, dtype=torch.int64)).step(0))
    assert float(noise.mean(values)[0, 0]) == pytest.approx(mean) and float(
        y.mean()
    ) == pytest.approx(mean, abs=0.05)
    assert float(noise.variance(values)[0, 0]) == pytest.approx(variance)
    assert float(y.var()) == pytest.approx(variance, rel=0.05, abs=1e-9)
    dark_mean = float(noise.mean(0 * values[:, :1]))
    assert torch.allclose(noise.mean(noise.estimate(y[:, :5])), y[:, :5].clamp(min=dark_mean))


@pytest.mark.parametrize("noise, m", [(Binomial(0.3), 7.0), (Poisson(0.5, 2.0), 3.0)])
def test_noises_of_counts_are_normalised(noise, m):
    y = torch.arange(60.0, dtype=torch.float64)[:, None]
    assert float(noise.log_prob(y, torch.full_like(y, m)).exp().sum()) == pytest.approx(1.0)


def test_the_density_of_a_camera_is_its_sum_over_photons():
    """The density is normalised and equals a sum over photons; without readout it is theirs."""
    noise = Camera(0.5, 1.0, 2.0, 100.0, 1.5)
    y = torch.arange(80.0, 170.0, 0.05, dtype=torch.float64)[:, None]
    density = noise.log_prob(y, torch.full_like(y, 7.0)).exp()[:, 0]
    photons = stats.poisson.pmf(np.arange(60), 4.5)
    by_hand = (photons * stats.norm.pdf(y.numpy(), 100 + 2 * np.arange(60), 1.5)).sum(1)
    assert np.allclose(density, by_hand, atol=1e-9) and float(
        density.sum() * 0.05
    ) == pytest.approx(1.0, abs=1e-6)


def test_the_likelihood_integrates_over_an_unknown_parameter():
    """Compared with a grid of 20,000 values, 280 times as fine as the first one."""
    x = torch.tensor([[3.0, 9.0], [8.0, 2.0], [40.0, 40.0]], dtype=torch.float64)
    y = torch.tensor([[18.0, 60.0]], dtype=torch.float64)
    problem = BlindProblem(
        Identity(), Gaussian(1.0), y, UnknownParameter("noise", "std", 0.01, 100.0)
    )
    shares = (torch.arange(20_000).double() + 0.5) / 20_000
    std = (0.01 * 1e4**shares)[:, None, None]
    log_likelihood = (-(((y - x) / std) ** 2) / 2 - (std * math.sqrt(2 * math.pi)).log()).sum(2)
    assert torch.allclose(
        problem.log_likelihood(x), torch.logsumexp(log_likelihood, 0) - math.log(20_000), atol=2e-3
    )
    log_values = (
        problem.draw_value(x.repeat(4000, 1), SampleStreams(0, torch.arange(12_000)).step(0))
        .view(4000, 3)
        .log()
        .mean(0)
    )
    assert torch.allclose(
        log_values, (torch.softmax(log_likelihood, 0) * std[:, :, 0].log()).sum(0), atol=0.05
    )


def test_narrow_peaks_of_an_unknown_gain_are_not_missed():
    """Photons are integers, so a camera of little readout noise has a likelihood of many peaks."""
    x = torch.tensor([[1.0, 3.0, 2.0]]).double()
    y = torch.tensor([[15.1, 27.0, 20.2]]).double()
    problem = BlindProblem(
        Identity(), Camera(3.0, 0.5, 2.0, 10.0, 0.3), y, UnknownParameter("noise", "gain", 0.5, 4.0)
    )
    gains = problem.unknown.quantile((torch.arange(20_000).double() + 0.5) / 20_000)[:, None]
    exact = torch.logsumexp(
        problem.with_value(gains).log_likelihood(x.expand(20_000, 3)), 0
    ) - math.log(20_000)
    assert float(problem.log_likelihood(x)) == pytest.approx(float(exact), abs=0.06)


def test_a_fit_uses_the_unknown_value_of_each_sample():
    """A brighter image goes with a shorter exposure."""
    x = torch.tensor([[2.0, 4.0], [8.0, 16.0]]).double()
    numbers = torch.tensor([4.0, 1.0]).double()
    exposure = BlindProblem(
        Identity(),
        Poisson(2.0),
        torch.tensor([[8.0, 16.0]]),
        UnknownParameter("noise", "exposure", 1.0, 4.0),
    )
    noise, m = exposure.with_row_values(x, numbers)
    assert noise.mean(m).tolist() == [[8, 16], [8, 16]]
    image = x.view(2, 1, 1, 2)
    width = BlindProblem(
        Blur(3, 1.0),
        Poisson(),
        torch.ones(1, 1, 1, 2),
        UnknownParameter("operator", "width", 0.5, 4.0),
    )
    noise, m = width.with_row_values(image, numbers)
    assert (
        torch.equal(m, torch.cat([Blur(3, 4.0)(image[:1]), Blur(3, 1.0)(image[1:])]))
        and noise == Poisson()
    )


def test_any_callable_is_an_operator():
    linear = torch.nn.Linear(6, 4)
    x = torch.rand(5, 6, dtype=torch.float64)
    signed = Matrix(linear.weight.detach())
    physics = type("Physics", (), {"A": staticmethod(lambda x: x[:, :3] - x[:, 3:])})()
    for operator, expected in (
        (Function(linear), linear(x.float()).double()),
        (Function(physics), x[:, :3] - x[:, 3:]),
        (Function(lambda x: x.cumsum(1)), x.cumsum(1)),
        (signed, x @ linear.weight.double().T),
    ):
        assert torch.allclose(operator(x), expected) and operator.measurement_shape((6,)) == tuple(
            expected.shape[1:]
        )
        assert isinstance(operator.noise, Gaussian)
    back_projected = signed.back_project(signed(x), (6,))
    assert float(back_projected.min()) >= 0 and torch.allclose(
        Matrix(-torch.eye(6)).back_project(-x, (6,)), x
    )
    assert Poisson().log_prob(torch.ones(1, 1), torch.full((1, 1), -2.0)).item() == -math.inf
    with pytest.raises(ValueError, match=r"function must return m \[n, \.\.\.\]"):
        Function(lambda x: x.sum(1)).measurement_shape((6,))


def test_maps_and_masks_of_files_have_channels_last(tmp_path):
    """Both settings read channels last."""
    survival = np.linspace(0.1, 0.9, 24).reshape(3, 4, 2)
    y = torch.ones(1, 2, 3, 4)
    np.save(tmp_path / "map.npy", survival)
    probability = Binomial(str(tmp_path / "map.npy")).log_prob(y, y).exp()
    assert np.allclose(probability[0].permute(1, 2, 0), survival)
    np.save(tmp_path / "mask.npy", survival[..., 0] > 0.5)
    assert np.array_equal(
        Inpaint(str(tmp_path / "mask.npy")).observed_mask((1, 3, 4))[0], survival[..., 0] > 0.5
    )


def test_maps_from_files(tmp_path):
    np.save(tmp_path / "map.npy", np.array([0.1, 0.9]))
    y = torch.tensor([[1.0, 1.0]])
    probability = Binomial(str(tmp_path / "map.npy")).log_prob(y, 2 * y)
    assert torch.allclose(probability.exp(), torch.tensor([[0.18, 0.18]], dtype=torch.float64))


def test_folded_streams_differ_and_are_repeatable():
    streams = SampleStreams(3, torch.arange(4))
    numbers = [
        source.step(0).next_draw().uniform((4, 9))
        for source in (
            streams,
            streams.fold_in(0),
            streams.fold_in(1),
            streams.fold_in(0).fold_in(0),
        )
    ]
    for i, first in enumerate(numbers):
        assert all((first != second).all() for second in numbers[i + 1 :])
    alone = SampleStreams(3, torch.tensor([2])).fold_in(1).step(0).next_draw().uniform((1, 9))
    assert torch.equal(alone[0], numbers[2][2])


def test_invalid_levels_and_processes_are_refused():
    prior = Prior(None, PureDeath(4), (2,))
    problem = InverseProblem(Identity(), Poisson(), torch.tensor([1.0, 2.0]))
    for make_invalid in (
        lambda: anneal(5, 0.1, 1.0),
        lambda: anneal(0),
        lambda: anneal(5, 1.0, 0.0),
    ):
        with pytest.raises(ValueError):
            make_invalid()
    with pytest.raises(ValueError, match="last time"):
        SplitGibbs(anneal(3, 50.0, 1.0)).check(prior, problem)
    with pytest.raises(ValueError, match="discrete time"):
        Prior(None, UniformChain(4, 10), (2,))
    with pytest.raises(ValueError, match="heat_bath"):
        make_step(
            type("Black", (), {"log_likelihood": lambda self, x: x.sum(1)})(),
            None,
            (2,),
            "heat_bath",
        )
    assert conjugate_state(PureDeath(4), problem, (2,)) is None
    hidden = InverseProblem(Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([1.0, 0.0]))
    assert (
        conjugate_state(PureDeath(4), hidden, (2,)) is None
        and conjugate_state(Uniform(4), hidden, (2,)) is None
    )
    z, level = conjugate_state(Absorbing(4), hidden, (2,))
    assert z.tolist() == [[1, 5]] and level == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "operator, noise, y",
    [
        (Matrix(torch.tensor([[1.0, -1.0]])), Poisson(), [3.0]),
        (Xor(0.5), Binomial(0.9), [1.0]),
    ],
)
def test_differences_element_ranks_are_not_called_impossible(operator, noise, y):
    """Elements of equal levels give a measurement of 0."""
    InverseProblem(operator, noise, torch.tensor(y)).check((2,), 1)
    with pytest.raises(ValueError, match="y = 4, element 0 of measurement 0, is impossible"):
        InverseProblem(operator, Binomial(0.5), torch.tensor([4.0])).check((2,), 1)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_heat_bath_makes_the_requested_passes(passes):
    problem = InverseProblem(Pool(3), Flips(), torch.zeros(4))
    step = make_step(problem, Coupling(Uniform(1)), (12,), "heat_bath", passes=passes)
    x = torch.zeros(2, 12, dtype=torch.uint8)
    streams = SampleStreams(0, torch.arange(2))
    assert (
        len(step.forests) == 3
        and step(x, x, 0.5, streams)[1].likelihood_evaluations == passes * 3 * 2
    )


@pytest.mark.parametrize(
    "process", [Uniform(1), PureDeath(1), Absorbing(1)], ids=lambda part: type(part).__name__
)
@pytest.mark.parametrize("operator, count", [(Xor(0.6), 1), (And(1.5), 2)], ids=["xor", "and"])
def test_trees_of_pairs_are_drawn_from_their_exact_conditional(process, operator, count):
    """Six bits with a penalty of one nat against enumeration."""
    shape = (1, 2, 3)
    t = 0.7
    n = 20_000
    problem = InverseProblem(
        operator,
        Flips(1.0),
        (torch.arange(math.prod(operator.measurement_shape(shape))) % 2).double(),
    )
    coupling = Coupling(process)
    x = torch.tensor([0, 1, 1, 1, 1, 0], dtype=torch.uint8).view(1, *shape)
    step = make_step(problem, coupling, shape, passes=5)
    assert len(step.forests) == count and any(forest.branches for forest in step.forests)
    z = step(x.expand(n, *shape), x.expand(n, *shape), t, SampleStreams(0, torch.arange(n)))[0]
    states = torch.cartesian_prod(*[torch.arange(process.num_states)] * 6)
    log_k = coupling.log_table(t)[x.flatten().long().expand(len(states), -1), states].sum(1)
    weight = torch.softmax(
        log_k + coupling.relax(problem, shape, t).log_likelihood(states.view(-1, *shape)), 0
    )
    frequencies = torch.bincount(
        (z.flatten(1).long() * process.num_states ** torch.arange(5, -1, -1)).sum(1),
        minlength=len(weight),
    )
    assert p_value(frequencies.numpy(), weight.numpy()) > 1e-3


def test_elements_are_hidden_by_a_seed():
    masks = [InpaintRandom(0.3, seed).observed_mask((1, 8, 8)) for seed in (0, 0, 1)]
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    assert {int((~mask).sum()) for mask in masks} == {19}


def test_impossible_elements_are_repaired():
    problem = InverseProblem(Identity(), Binomial(0.5), torch.tensor([3.0, 0.0]))
    assert problem.repair(torch.tensor([[1, 2], [4, 0]], dtype=torch.uint8)).tolist() == [
        [3, 2],
        [4, 0],
    ]


# rhat, ess(method="bulk") and ess(method="tail") of ArviZ 0.23.4 for `known_chains`
ARVIZ_VALUES = {
    "independent": (1.01009717465, 318.883169879, 251.366221706),
    "two modes, stuck": (1.71163525502, 15.4197825115, 89.5291313995),
    "walks": (2.12027771454, 5.9425196334, 12.5622698722),
    "waves": (1.08546602059, 571.250698011, 156.39167087),
    "counts": (1.04758560324, 143.862401699, 99.1056998168),
    "widths": (1.19881799597, 331.78844958, 135.886985873),
    "short": (1.05698720748, 12.9501749526, 12.9501749526),
}


def known_chains():
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(8, 30))
    walk = np.cumsum(rng.normal(size=(4, 60)), 1)
    waves = noise.copy()
    for k in range(1, 30):
        waves[:, k] -= 0.8 * waves[:, k - 1]
    return {
        "independent": noise,
        "two modes, stuck": noise + 20 * (np.arange(8) % 2)[:, None],
        "walks": walk,
        "waves": waves,
        "counts": rng.poisson(1.0, (4, 31)).astype(float),
        "widths": noise * (1 + np.arange(8))[:, None],
        "short": noise[:3, :5],
    }


@pytest.mark.parametrize("name", ARVIZ_VALUES)
def test_r_hat_and_effective_sizes_equal_arviz(name):
    chains = known_chains()[name]
    assert (r_hat(chains), ess_bulk(chains), ess_tail(chains)) == pytest.approx(
        ARVIZ_VALUES[name], rel=1e-6
    )


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_rows_repeat_to_any_number(n):
    rows = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert torch.equal(repeat_rows(rows, n), torch.stack([rows[r % 3] for r in range(n)]))
    assert torch.equal(repeat_rows(rows[:1], n), rows[:1])


def test_equal_evidence_has_an_error():
    """Eight equal estimates leave room for a share of 1 - 0.025^(1/8) of different ones."""
    assert log_mean_exp(np.full(8, 2.0)) == (2.0, pytest.approx((1 - 0.025 ** (1 / 8)) / 1.959964))
    logs = np.log([1.0, 2.0, 3.0])
    assert log_mean_exp(logs) == (pytest.approx(np.log(2)), pytest.approx(1 / 2 / 3**0.5))


def test_an_impossible_state_is_the_lowest_not_left_out():
    """One chain at -inf has the ranks, and so the figures, of one far below the others."""
    chains = known_chains()["independent"]
    chains[0] = -np.inf
    low = known_chains()["independent"]
    low[0] = -50.0
    assert r_hat(chains) == pytest.approx(r_hat(low)) and r_hat(chains) > 1.05
    assert ess_bulk(chains) == pytest.approx(ess_bulk(low)) and ess_bulk(chains) < 100
    assert r_hat(np.ones((4, 9))) == 1.0 and r_hat(np.arange(4.0)[:, None].repeat(9, 1)) == math.inf
    assert np.isnan([r_hat(chains[:1]), r_hat(chains[:, :3]), ess_bulk(chains[:, :3])]).all()


@pytest.mark.parametrize(
    "chains, sweeps", [(4, 30), (12, 12), pytest.param(3, 8, marks=pytest.mark.deep)]
)
def test_perfect_chains_exceed_the_limit_of_r_hat_in_one_run_of_twenty(chains, sweeps):
    """The largest of 18 statistics of independent normal draws exceeds 1.05 in most runs."""
    rng = np.random.default_rng(0)
    runs = 200
    limit = r_hat_limit(chains, sweeps, 18, 0.05)
    largest = np.array(
        [max(r_hat(rng.normal(size=(chains, sweeps))) for _ in range(18)) for _ in range(runs)]
    )
    assert (largest > limit).mean() <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert (largest > 1.05).mean() > 0.3 and (largest > 1 + 0.5 * (limit - 1)).mean() > 0.5


PLANTED = {
    "right": (1.0, 0.0, 0.0, False),
    "outlier": (1.0, 0.0, 1000.0, True),
    "more noise": (2.0, 0.0, 0.0, True),
    "less noise": (0.3, 0.0, 0.0, True),
    "background": (1.0, 1.5, 0.0, True),
    "another operator": (1.0, 0.0, 0.0, True),
}


@pytest.mark.parametrize("noise", [Gaussian(2.0), Poisson(3.0)], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("planted", PLANTED)
def test_measurements_that_no_sample_explains_have_small_p_values(noise, planted):
    """Eight measurements each, samples spread about the truth as a posterior's are."""
    factor, background, outlier, wrong = PLANTED[planted]
    rng = np.random.default_rng(0)
    p = []
    for number in range(8):
        truth = torch.from_numpy(rng.poisson(8.0, (1, 64)).astype(float))
        m = torch.from_numpy(rng.poisson(8.0, (6, 64)) * 0.1) + truth * 0.9
        errors = torch.from_numpy(factor * rng.normal(size=(1, 64)) + background)
        truth = truth.roll(1, 1) if planted == "another operator" else truth
        y = noise.mean(truth) + errors * noise.variance(truth).sqrt()
        y[0, 5] += outlier
        p.append(posterior_predictive_p_value(noise, y, m, None, number))
    assert (max(p) < 1e-3) if wrong else (min(p) > 1e-2 and np.mean(p) > 0.1)


def test_samples_that_do_not_explain_y_have_small_p_values():
    """200 normal truths, 8 samples; p is hardly ever small for draws from the exact posterior."""
    rng = np.random.default_rng(0)
    noise = Gaussian(1.0)
    truth, error, spread = (
        torch.from_numpy(rng.normal(size=size)) for size in ((200, 6), (200, 6), (200, 8, 6))
    )
    y = truth + error
    exact_samples = y[:, None] / 2 + spread * 0.5**0.5
    p = np.array(
        [
            posterior_predictive_p_value(noise, y[k : k + 1], exact_samples[k], None, k)
            for k in range(200)
        ]
    )
    assert (p < 0.01).mean() < 0.03 and (p < 1e-3).sum() == 0
    exact_samples[0, 5:7] += 3.0
    assert posterior_predictive_p_value(noise, y[:1], exact_samples[0], None, 0) < 1e-3


def test_predictive_intervals_cover_the_next_draw():
    """Intervals of 19 samples; those of linear interpolation cover 81 % only."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 20_000)))
    ends = predictive_quantiles(x[1:])
    assert float(((ends[0] < x[0]) & (x[0] < ends[-1])).double().mean()) == pytest.approx(
        0.9, abs=0.01
    )


def test_measurements_unlike_the_model_have_small_p_values():
    """For right measurements p is small no more often than it says; for four faults p < 0.001."""
    rng = np.random.default_rng(0)

    def simulate_discrepancies(n, fault=lambda y, mean: y):
        mean = rng.gamma(4.0, 2.0, (n, 48))  # the model's estimate, which is slightly off
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, 48))) for size in ((), (64,))
        )
        return rank_discrepancies(
            *(
                torch.from_numpy(np.asarray(values, dtype=float))
                for values in (fault(y, mean), simulated)
            )
        )

    simulated_discrepancies = simulate_discrepancies(64)
    p = np.array(
        [
            prior_predictive_p_value(values, simulated_discrepancies, 48)
            for values in simulate_discrepancies(600)
        ]
    )
    assert (p < 0.05).mean() < 0.06 and (p < 1e-3).mean() < 0.004
    faults = {
        "dead": lambda y, mean: np.where(np.arange(48) < 12, 0, y),
        "saturated": lambda y, mean: np.minimum(y, 6),
        "gain": lambda y, mean: np.round(1.5 * y),
        "another order": lambda y, mean: y[:, ::-1],
    }
    for name, fault in faults.items():
        assert (
            np.mean(
                [
                    prior_predictive_p_value(values, simulated_discrepancies, 48) < 1e-3
                    for values in simulate_discrepancies(40, fault)
                ]
            )
            > 0.8
        ), name
    assert np.isnan(
        [
            prior_predictive_p_value(simulated_discrepancies[0], too_few, 48)
            for too_few in (simulated_discrepancies[:15], simulated_discrepancies[:1].repeat(20, 1))
        ]
    ).all()


@pytest.mark.parametrize("numbers", [48, 1])
def test_p_values_do_not_depend_on_brightness(numbers):
    """For totals that differ a thousandfold, p is small no more often than it says."""
    rng = np.random.default_rng(0)

    def simulate_discrepancies(n):
        mean = np.exp(2 * rng.normal(size=(n, 1))) * rng.gamma(4.0, 2.0, (n, numbers))
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, numbers))) for size in ((), (64,))
        )
        return rank_discrepancies(
            *(torch.from_numpy(values.astype(float)) for values in (y, simulated))
        )

    simulated_discrepancies = simulate_discrepancies(64)
    p = np.array(
        [
            prior_predictive_p_value(values, simulated_discrepancies, numbers)
            for values in simulate_discrepancies(600)
        ]
    )
    assert np.isfinite(p).all() and (p < 0.05).mean() < 0.08 and (p < 1e-3).mean() < 0.004


def test_a_noise_without_variance_has_no_predictive_p_value():
    assert math.isnan(
        posterior_predictive_p_value(Exact(), torch.ones(1, 3), torch.ones(2, 3), None, 0)
    )


def test_calibration_detects_samples_that_are_too_narrow():
    """Samples of the truth's distribution are calibrated despite ties; narrower ones are not."""
    rng = np.random.default_rng(0)
    mean = rng.gamma(1.0, 1.0, size=200)
    truth = rng.poisson(mean)
    exact_samples = rng.poisson(mean, (20, 200))
    wrong = np.round(mean)[None].repeat(20, 0)
    good, bad = (normalised_ranks(samples, truth, rng) for samples in (exact_samples, wrong))
    assert rank_p_value({"x": good}) > 1e-3 > rank_p_value({"x": bad})
    assert coverage(good, 0.9) == pytest.approx(0.9, abs=0.05) and coverage(bad, 0.9) < 0.7


def test_metropolis_starts_at_a_possible_state():
    """At a high noise level all pixels are dark and send no photons; the chain starts lower."""
    y = torch.tensor([3.0, 0.0, 1.0, 2.0])
    problem = InverseProblem(Pool(2), Poisson(), y)
    streams = SampleStreams(0, torch.arange(6))
    x = torch.zeros(6, 8, dtype=torch.uint8)
    z = find_possible_state(problem, Coupling(PureDeath(4)), x, 6.0, streams)
    assert bool(torch.isfinite(problem.log_likelihood(z.double())).all())
    dark = InverseProblem(Matrix(torch.zeros(1, 8)), Poisson(), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="positive likelihood"):
        find_possible_state(dark, Coupling(PureDeath(4)), x, 6.0, streams)


def test_ranks_among_draws_of_the_same_distribution_are_uniform():
    rng = np.random.default_rng(0)
    samples, truth = (rng.choice(3, size, p=[0.5, 0.3, 0.2]) for size in ((4, 20_000), 20_000))
    assert stats.kstest(normalised_ranks(samples, truth, rng), "uniform").pvalue > 1e-3


def test_a_walk_to_a_level_has_equal_steps_of_the_logit_of_survival() -> None:
    prior = Prior(lambda x, _: x, PureDeath(4), (2,), steps_per_logit=2.0)
    first = float(prior.times[1])
    for steps, length in ((None, None), (5, 7)):
        walk = prior.reverse_times(1.5, steps)
        gaps = logit_survival(walk[1:]).diff()
        assert walk[0] == 0 and float(walk[-1]) == 1.5 and float(walk[1]) == pytest.approx(first)
        torch.testing.assert_close(gaps, gaps.mean().expand_as(gaps))
        assert float(gaps.abs().max()) <= 0.5 if length is None else len(walk) == length
    assert prior.reverse_times(first / 2).tolist() == [0, first / 2]


def test_the_prior_of_a_lightning_module_is_that_of_its_model():
    module = from_data(torch.arange(200).view(50, 4) % 5, batch_size=16)
    of_module = make_prior(module, module.sampler)
    of_model = make_prior(module.model, module.model.sampler)
    assert torch.equal(of_module.data_mean, of_model.data_mean)
    is_known = torch.tensor([True, False, True, False])
    problem = InverseProblem(Inpaint(is_known), Exact(), torch.tensor([1, 0, 3, 0]))
    result = Auto().sample(of_module, problem, 4)
    assert result.samples[:, 0].eq(1).all() and result.samples[:, 2].eq(3).all()
