"""Operators, noises, couplings and streams: small laws of each."""

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
from blackout.posterior.problem import repeat_rows
from blackout.posterior.split_gibbs import Coupling, colour_forests, find_possible_state, make_step
from blackout.random import SampleStreams
from blackout.verification.draws import p_value

SHAPE = (2, 6, 6)
OPERATORS = [
    (Identity(), SHAPE), (InpaintBox((1, 2), (0, 3)), SHAPE), (InpaintRandom(0.3), SHAPE), (Pool(2), SHAPE),
    (Pool(3), (12,)), (Blur(3, 0.8), SHAPE), (Matrix(torch.eye(12)[:5] + 1.0 * (torch.arange(12) == 3)), (12,)),
    (Xor(0.5), SHAPE), (And(2.0), (12,)), (Inpaint(torch.arange(12) % 3 > 0), (12,)),
]  # fmt: skip


@pytest.mark.parametrize("operator, shape", OPERATORS, ids=lambda one: type(one).__name__)
def test_an_operator_depends_on_what_it_says(operator, shape):
    x = torch.randint(0, 2, (1, *shape), generator=torch.Generator().manual_seed(0)).double()
    elements, m = math.prod(shape), operator(x).flatten()
    seen = operator.observed_mask(shape)
    pairs = {tuple(pair) for pair in operator.incidence(shape).T.tolist()}
    for element in range(elements):
        changed = x.flatten(1).clone()
        changed[:, element] += 1
        other = operator(changed.view_as(x)).flatten() != m
        other = other if seen is None else other & seen.flatten()
        assert {(int(k), element) for k in other.nonzero()[:, 0]} <= pairs
    made = colour_forests(operator.incidence(shape), elements)
    assert sorted(torch.cat([forest.elements for forest in made]).tolist()) == list(range(elements))
    for forest in made:
        assert len(forest.terms.unique()) == len(forest.terms) and not forest.branches
    # its levels tried one by one, as all at once where the operator is linear
    problem = InverseProblem(
        operator, Poisson(0.5, 0.2), torch.ones(1, *operator.measurement_shape(shape))
    )
    relaxed = Coupling(PureDeath(7)).relax(problem, shape, 0.3)
    z, inside = torch.cat([x, 3 * x]).to(torch.uint8), made[-1].elements
    tried = z.flatten(1).repeat(8, 1)
    tried[:, inside] = torch.arange(8, dtype=torch.uint8).repeat_interleave(2)[:, None]
    one_by_one = torch.cat(
        [relaxed.problem.terms(view) for view in relaxed.to_data(tried.view(-1, *shape))]
    )
    assert torch.allclose(relaxed.terms(z, inside, 8), one_by_one)


def test_a_box_hides_its_first_and_its_last_row_and_column():
    seen = InpaintBox((1, 2), (0, 3)).observed_mask((2, 4, 5))
    hidden = torch.zeros(2, 4, 5, dtype=torch.bool)
    hidden[:, 1:3, 0:4] = True
    assert torch.equal(seen, ~hidden)


def test_colours_are_few():
    assert (
        len(colour_forests(Pool(2).incidence((1, 8, 8)), 64)) == 4
        and len(colour_forests(Identity().incidence((1, 8, 8)), 64)) == 1
    )
    assert len(colour_forests(Xor(0.5).incidence((1, 32, 32)), 1024)) <= 5


def test_sums_are_what_they_are_called():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert Pool(2)(x).flatten().tolist() == [10, 18, 42, 50]
    assert torch.allclose(Pool(2)(Pool(2).back_project(Pool(2)(x), (1, 4, 4))), Pool(2)(x))
    assert torch.allclose(
        Blur(3, 1.0)(torch.ones(1, 1, 5, 5))[0, 0, 2, 2], torch.tensor(1.0, dtype=torch.float64)
    )


@pytest.mark.parametrize("noise, m, mean, variance", [
    (Binomial(0.3), 20.0, 6.0, 4.2), (Poisson(0.5, 2.0), 8.0, 6.0, 6.0), (Gaussian(1.5), 4.0, 4.0, 2.25),
    (Flips(2.0), 1.0, 1.0, 0.0), (Camera(0.5, 1.0, 2.0, 100.0, 1.5), 10.0, 112.0, 26.25),
])  # fmt: skip
def test_noises_draw_what_they_say(noise, m, mean, variance):
    values = torch.full((1, 40_000), m, dtype=torch.float64)
    y = noise.draw(values, SampleStreams(0, torch.zeros(1, dtype=torch.int64)).step(0))
    assert float(noise.mean(values)[0, 0]) == pytest.approx(mean) and float(
        y.mean()
    ) == pytest.approx(mean, abs=0.05)
    assert float(noise.variance(values)[0, 0]) == pytest.approx(variance)
    assert float(y.var()) == pytest.approx(variance, rel=0.05, abs=1e-9)
    least = float(noise.mean(0 * values[:, :1]))
    assert torch.allclose(noise.mean(noise.estimate(y[:, :5])), y[:, :5].clamp(min=least))


@pytest.mark.parametrize("noise, m", [(Binomial(0.3), 7.0), (Poisson(0.5, 2.0), 3.0)])
def test_noises_of_counts_are_normalised(noise, m):
    y = torch.arange(60.0, dtype=torch.float64)[:, None]
    assert float(noise.log_prob(y, torch.full_like(y, m)).exp().sum()) == pytest.approx(1.0)


def test_a_camera_writes_what_it_says():
    """Its density is normalised, and that of photons alone where nothing is read out: against a sum by hand."""
    noise = Camera(0.5, 1.0, 2.0, 100.0, 1.5)
    y = torch.arange(80.0, 170.0, 0.05, dtype=torch.float64)[:, None]
    density = noise.log_prob(y, torch.full_like(y, 7.0)).exp()[:, 0]
    photons = stats.poisson.pmf(np.arange(60), 4.5)
    by_hand = (photons * stats.norm.pdf(y.numpy(), 100 + 2 * np.arange(60), 1.5)).sum(1)
    assert np.allclose(density, by_hand, atol=1e-9) and float(
        density.sum() * 0.05
    ) == pytest.approx(1.0, abs=1e-6)


def test_an_unknown_number_is_integrated_over():
    """Against a grid of 20,000, 280 times as fine as the one that is laid first."""
    x = torch.tensor([[3.0, 9.0], [8.0, 2.0], [40.0, 40.0]], dtype=torch.float64)
    y = torch.tensor([[18.0, 60.0]], dtype=torch.float64)
    problem = BlindProblem(
        Identity(), Gaussian(1.0), y, UnknownParameter("noise", "std", 0.01, 100.0)
    )
    shares = (torch.arange(20_000).double() + 0.5) / 20_000
    std = (0.01 * 1e4**shares)[:, None, None]
    log_l = (-(((y - x) / std) ** 2) / 2 - (std * math.sqrt(2 * math.pi)).log()).sum(2)
    assert torch.allclose(
        problem.log_likelihood(x), torch.logsumexp(log_l, 0) - math.log(20_000), atol=2e-3
    )
    drawn = (
        problem.draw_value(x.repeat(4000, 1), SampleStreams(0, torch.arange(12_000)).step(0))
        .view(4000, 3)
        .log()
        .mean(0)
    )
    assert torch.allclose(drawn, (torch.softmax(log_l, 0) * std[:, :, 0].log()).sum(0), atol=0.05)


def test_narrow_peaks_of_an_unknown_gain_are_not_missed():
    """Photons are whole, so that a camera of little readout noise has a likelihood of many peaks."""
    x, y = torch.tensor([[1.0, 3.0, 2.0]]).double(), torch.tensor([[15.1, 27.0, 20.2]]).double()
    problem = BlindProblem(
        Identity(), Camera(3.0, 0.5, 2.0, 10.0, 0.3), y, UnknownParameter("noise", "gain", 0.5, 4.0)
    )
    gains = problem.unknown.quantile((torch.arange(20_000).double() + 0.5) / 20_000)[:, None]
    exact = torch.logsumexp(
        problem.with_value(gains).log_likelihood(x.expand(20_000, 3)), 0
    ) - math.log(20_000)
    assert float(problem.log_likelihood(x)) == pytest.approx(float(exact), abs=0.06)


def test_a_fit_is_judged_by_the_number_drawn_with_each_sample():
    """Not by the middle of all: a brighter image goes with a shorter exposure."""
    x, numbers = torch.tensor([[2.0, 4.0], [8.0, 16.0]]).double(), torch.tensor([4.0, 1.0]).double()
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
    for operator, wanted in (
        (Function(linear), linear(x.float()).double()), (Function(physics), x[:, :3] - x[:, 3:]),
        (Function(lambda x: x.cumsum(1)), x.cumsum(1)), (signed, x @ linear.weight.double().T),
    ):  # fmt: skip
        assert torch.allclose(operator(x), wanted) and operator.measurement_shape((6,)) == tuple(
            wanted.shape[1:]
        )
        assert isinstance(operator.noise, Gaussian)
    near = signed.back_project(signed(x), (6,))
    assert float(near.min()) >= 0 and torch.allclose(
        Matrix(-torch.eye(6)).back_project(-x, (6,)), x
    )
    assert Poisson().log_prob(torch.ones(1, 1), torch.full((1, 1), -2.0)).item() == -math.inf
    with pytest.raises(ValueError, match=r"function must return m \[n, \.\.\.\]"):
        Function(lambda x: x.sum(1)).measurement_shape((6,))


def test_maps_and_masks_lie_as_measurements_do(tmp_path):
    """Channels last in files, whichever setting they are of."""
    survival, y = np.linspace(0.1, 0.9, 24).reshape(3, 4, 2), torch.ones(1, 2, 3, 4)
    np.save(tmp_path / "map.npy", survival)
    found = Binomial(str(tmp_path / "map.npy")).log_prob(y, y).exp()
    assert np.allclose(found[0].permute(1, 2, 0), survival)
    np.save(tmp_path / "mask.npy", survival[..., 0] > 0.5)
    assert np.array_equal(
        Inpaint(str(tmp_path / "mask.npy")).observed_mask((1, 3, 4))[0], survival[..., 0] > 0.5
    )


def test_maps_from_files(tmp_path):
    np.save(tmp_path / "map.npy", np.array([0.1, 0.9]))
    y = torch.tensor([[1.0, 1.0]])
    found = Binomial(str(tmp_path / "map.npy")).log_prob(y, 2 * y)
    assert torch.allclose(found.exp(), torch.tensor([[0.18, 0.18]], dtype=torch.float64))


def test_folded_streams_are_new_ones_and_repeatable():
    streams = SampleStreams(3, torch.arange(4))
    numbers = [
        one.step(0).next_draw().uniform((4, 9))
        for one in (streams, streams.fold_in(0), streams.fold_in(1), streams.fold_in(0).fold_in(0))
    ]
    for i, first in enumerate(numbers):
        assert all((first != other).all() for other in numbers[i + 1 :])
    alone = SampleStreams(3, torch.tensor([2])).fold_in(1).step(0).next_draw().uniform((1, 9))
    assert torch.equal(alone[0], numbers[2][2])


def test_what_cannot_work_is_refused():
    prior = Prior(None, PureDeath(4), (2,))
    problem = InverseProblem(Identity(), Poisson(), torch.tensor([1.0, 2.0]))
    for bad in (lambda: anneal(5, 0.1, 1.0), lambda: anneal(0), lambda: anneal(5, 1.0, 0.0)):
        with pytest.raises(ValueError):
            bad()
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


@pytest.mark.parametrize("operator, noise, y", [
    (Matrix(torch.tensor([[1.0, -1.0]])), Poisson(), [3.0]), (Xor(0.5), Binomial(0.9), [1.0]),
])  # fmt: skip
def test_differences_of_elements_are_not_called_impossible(operator, noise, y):
    """Data all of one level give 0."""
    InverseProblem(operator, noise, torch.tensor(y)).check((2,), 1)
    with pytest.raises(ValueError, match="y = 4, element 0 of measurement 0, is impossible"):
        InverseProblem(operator, Binomial(0.5), torch.tensor([4.0])).check((2,), 1)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_heat_bath_passes_over_all_forests_as_often_as_it_is_told(passes):
    problem = InverseProblem(Pool(3), Flips(), torch.zeros(4))
    step = make_step(problem, Coupling(Uniform(1)), (12,), "heat_bath", passes=passes)
    x, streams = torch.zeros(2, 12, dtype=torch.uint8), SampleStreams(0, torch.arange(2))
    assert (
        len(step.forests) == 3
        and step(x, x, 0.5, streams)[1].likelihood_evaluations == passes * 3 * 2
    )


@pytest.mark.parametrize(
    "process", [Uniform(1), PureDeath(1), Absorbing(1)], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("operator, count", [(Xor(0.6), 1), (And(1.5), 2)], ids=["xor", "and"])
def test_trees_of_pairs_are_drawn_from_their_exact_conditional(process, operator, count):
    """Six bits and a penalty of one nat, by enumeration: of one forest after a single pass."""
    shape, t, n = (1, 2, 3), 0.7, 20_000
    problem = InverseProblem(
        operator,
        Flips(1.0),
        (torch.arange(math.prod(operator.measurement_shape(shape))) % 2).double(),
    )
    coupling, x = (
        Coupling(process),
        torch.tensor([0, 1, 1, 1, 1, 0], dtype=torch.uint8).view(1, *shape),
    )
    step = make_step(problem, coupling, shape, passes=5)
    assert len(step.forests) == count and any(forest.branches for forest in step.forests)
    z = step(x.expand(n, *shape), x.expand(n, *shape), t, SampleStreams(0, torch.arange(n)))[0]
    states = torch.cartesian_prod(*[torch.arange(process.num_states)] * 6)
    log_k = coupling.log_table(t)[x.flatten().long().expand(len(states), -1), states].sum(1)
    weight = torch.softmax(
        log_k + coupling.relax(problem, shape, t).log_likelihood(states.view(-1, *shape)), 0
    )
    found = torch.bincount(
        (z.flatten(1).long() * process.num_states ** torch.arange(5, -1, -1)).sum(1),
        minlength=len(weight),
    )
    assert p_value(found.numpy(), weight.numpy()) > 1e-3


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


ARVIZ = {
    "independent": (1.01009717465, 318.883169879, 251.366221706),
    "two modes, stuck": (1.71163525502, 15.4197825115, 89.5291313995),
    "walks": (2.12027771454, 5.9425196334, 12.5622698722),
    "waves": (1.08546602059, 571.250698011, 156.39167087),
    "counts": (1.04758560324, 143.862401699, 99.1056998168),
    "widths": (1.19881799597, 331.78844958, 135.886985873),
    "short": (1.05698720748, 12.9501749526, 12.9501749526),
}
"""rhat, ess(method="bulk") and ess(method="tail") of ArviZ 0.23.4 for `known_chains`."""


def known_chains():
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(8, 30))
    walk = np.cumsum(rng.normal(size=(4, 60)), 1)
    waves = noise.copy()
    for k in range(1, 30):
        waves[:, k] -= 0.8 * waves[:, k - 1]
    return {
        "independent": noise, "two modes, stuck": noise + 20 * (np.arange(8) % 2)[:, None], "walks": walk,
        "waves": waves, "counts": rng.poisson(1.0, (4, 31)).astype(float),
        "widths": noise * (1 + np.arange(8))[:, None], "short": noise[:3, :5],
    }  # fmt: skip


@pytest.mark.parametrize("name", ARVIZ)
def test_chains_are_judged_as_by_arviz(name):
    chains = known_chains()[name]
    assert (r_hat(chains), ess_bulk(chains), ess_tail(chains)) == pytest.approx(
        ARVIZ[name], rel=1e-6
    )


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_rows_repeat_to_any_number(n):
    rows = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert torch.equal(repeat_rows(rows, n), torch.stack([rows[r % 3] for r in range(n)]))
    assert torch.equal(repeat_rows(rows[:1], n), rows[:1])


def test_equal_evidence_has_an_error():
    """Eight equal estimates leave a share of 1 - 0.025^(1/8) of others open; others show their own error."""
    assert log_mean_exp(np.full(8, 2.0)) == (2.0, pytest.approx((1 - 0.025 ** (1 / 8)) / 1.959964))
    logs = np.log([1.0, 2.0, 3.0])
    assert log_mean_exp(logs) == (pytest.approx(np.log(2)), pytest.approx(1 / 2 / 3**0.5))


def test_an_impossible_state_is_the_lowest_not_left_out():
    """One chain at -inf, the others free: the same ranks, and so the same figures, as one far below them."""
    chains = known_chains()["independent"]
    chains[0], low = -np.inf, known_chains()["independent"]
    low[0] = -50.0
    assert r_hat(chains) == pytest.approx(r_hat(low)) and r_hat(chains) > 1.05
    assert ess_bulk(chains) == pytest.approx(ess_bulk(low)) and ess_bulk(chains) < 100
    assert r_hat(np.ones((4, 9))) == 1.0 and r_hat(np.arange(4.0)[:, None].repeat(9, 1)) == math.inf
    assert np.isnan([r_hat(chains[:1]), r_hat(chains[:, :3]), ess_bulk(chains[:, :3])]).all()


@pytest.mark.parametrize("chains, sweeps", [(4, 30), (12, 12), pytest.param(3, 8, marks=pytest.mark.deep)])
def test_perfect_chains_exceed_the_limit_of_r_hat_in_one_run_of_twenty(chains, sweeps):
    """The largest of 18 statistics of independent normal draws exceeded 1.05 in half of all runs, and in most."""
    rng, runs = np.random.default_rng(0), 200
    limit = r_hat_limit(chains, sweeps, 18, 0.05)
    largest = np.array([
        max(r_hat(rng.normal(size=(chains, sweeps))) for _ in range(18)) for _ in range(runs)
    ])
    assert (largest > limit).mean() <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert (largest > 1.05).mean() > 0.3 and (largest > 1 + 0.5 * (limit - 1)).mean() > 0.5


PLANTED = {
    "right": (1.0, 0.0, 0.0, False), "outlier": (1.0, 0.0, 1000.0, True), "more noise": (2.0, 0.0, 0.0, True),
    "less noise": (0.3, 0.0, 0.0, True), "background": (1.0, 1.5, 0.0, True), "another operator": (1.0, 0.0, 0.0, True),
}  # fmt: skip


@pytest.mark.parametrize("noise", [Gaussian(2.0), Poisson(3.0)], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("planted", PLANTED)
def test_measurements_that_no_sample_explains_are_told_from_others(noise, planted):
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


def test_some_samples_that_do_not_explain_y_are_seen_among_others():
    """Their mean p is a half. Of draws of the posterior itself p is hardly ever small: 200 normal truths, 8 samples."""
    rng, noise = np.random.default_rng(0), Gaussian(1.0)
    truth, error, spread = (
        torch.from_numpy(rng.normal(size=size)) for size in ((200, 6), (200, 6), (200, 8, 6))
    )
    y = truth + error
    right = y[:, None] / 2 + spread * 0.5**0.5
    p = np.array(
        [posterior_predictive_p_value(noise, y[k : k + 1], right[k], None, k) for k in range(200)]
    )
    assert (p < 0.01).mean() < 0.03 and (p < 1e-3).sum() == 0
    right[0, 5:7] += 3.0
    assert posterior_predictive_p_value(noise, y[:1], right[0], None, 0) < 1e-3


def test_the_next_draw_lies_within_an_interval_as_often_as_it_says():
    """Of 19 samples; linear interpolation, which takes the samples for the law, holds 81 %."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 20_000)))
    ends = predictive_quantiles(x[1:])
    assert float(((ends[0] < x[0]) & (x[0] < ends[-1])).double().mean()) == pytest.approx(
        0.9, abs=0.01
    )


def test_measurements_that_the_model_would_not_give_are_told_from_others():
    """64 of its own: of right ones p is small no more often than it says; of four faults it is below .001."""
    rng = np.random.default_rng(0)

    def found(n, fault=lambda y, mean: y):
        mean = rng.gamma(4.0, 2.0, (n, 48))  # what is known of each; it is off by a little
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, 48))) for size in ((), (64,))
        )
        return rank_discrepancies(
            *(torch.from_numpy(np.asarray(one, dtype=float)) for one in (fault(y, mean), simulated))
        )

    own = found(64)
    p = np.array([prior_predictive_p_value(one, own, 48) for one in found(600)])
    assert (p < 0.05).mean() < 0.06 and (p < 1e-3).mean() < 0.004
    faults = {
        "dead": lambda y, mean: np.where(np.arange(48) < 12, 0, y), "saturated": lambda y, mean: np.minimum(y, 6),
        "gain": lambda y, mean: np.round(1.5 * y), "another order": lambda y, mean: y[:, ::-1],
    }  # fmt: skip
    for name, fault in faults.items():
        assert (
            np.mean([prior_predictive_p_value(one, own, 48) < 1e-3 for one in found(40, fault)])
            > 0.8
        ), name
    assert np.isnan(
        [prior_predictive_p_value(own[0], few, 48) for few in (own[:15], own[:1].repeat(20, 1))]
    ).all()


@pytest.mark.parametrize("numbers", [48, 1])
def test_bright_measurements_are_no_less_like_the_model(numbers):
    """Totals that differ a thousandfold: of right ones p is small no more often than it says, also of one number."""
    rng = np.random.default_rng(0)

    def found(n):
        mean = np.exp(2 * rng.normal(size=(n, 1))) * rng.gamma(4.0, 2.0, (n, numbers))
        y, simulated = (
            rng.poisson(mean * rng.gamma(50.0, 0.02, (*size, n, numbers))) for size in ((), (64,))
        )
        return rank_discrepancies(*(torch.from_numpy(one.astype(float)) for one in (y, simulated)))

    own = found(64)
    p = np.array([prior_predictive_p_value(one, own, numbers) for one in found(600)])
    assert np.isfinite(p).all() and (p < 0.05).mean() < 0.08 and (p < 1e-3).mean() < 0.004


def test_a_noise_without_variance_has_no_predictive_p_value():
    assert math.isnan(
        posterior_predictive_p_value(Exact(), torch.ones(1, 3), torch.ones(2, 3), None, 0)
    )


def test_calibration_sees_what_is_wrong():
    """Samples of the truth's own law are calibrated, narrower ones are not: of counts, most of which are equal."""
    rng = np.random.default_rng(0)
    mean = rng.gamma(1.0, 1.0, size=200)
    truth, right = rng.poisson(mean), rng.poisson(mean, (20, 200))
    wrong = np.round(mean)[None].repeat(20, 0)
    good, bad = (normalised_ranks(samples, truth, rng) for samples in (right, wrong))
    assert rank_p_value({"x": good}) > 1e-3 > rank_p_value({"x": bad})
    assert coverage(good, 0.9) == pytest.approx(0.9, abs=0.05) and coverage(bad, 0.9) < 0.7


def test_metropolis_begins_at_a_possible_state():
    """At a high level all is dark, and dark pixels send no photons: the chain begins nearer to the data."""
    y = torch.tensor([3.0, 0.0, 1.0, 2.0])
    problem, streams = InverseProblem(Pool(2), Poisson(), y), SampleStreams(0, torch.arange(6))
    x = torch.zeros(6, 8, dtype=torch.uint8)
    z = find_possible_state(problem, Coupling(PureDeath(4)), x, 6.0, streams)
    assert bool(torch.isfinite(problem.log_likelihood(z.double())).all())
    dark = InverseProblem(Matrix(torch.zeros(1, 8)), Poisson(), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="positive likelihood"):
        find_possible_state(dark, Coupling(PureDeath(4)), x, 6.0, streams)


def test_the_truth_is_anywhere_among_draws_of_its_own_law():
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
    assert torch.equal(of_module.mean, of_model.mean)
    problem = InverseProblem(Inpaint(torch.tensor([True, False, True, False])), Exact(), torch.tensor([1, 0, 3, 0]))
    result = Auto().sample(of_module, problem, 4)
    assert result.samples[:, 0].eq(1).all() and result.samples[:, 2].eq(3).all()
