"""Samples of every posterior method against enumerated posteriors."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.calibration import calibrate
from benchmarks.exact_posteriors import exact_problems
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.diffusion.time_grids import logit_times
from blackout.errors import UserError
from blackout.posterior import (
    SMC,
    Auto,
    Binomial,
    BlindProblem,
    Camera,
    Coupling,
    Direct,
    Exact,
    Flips,
    Function,
    Gaussian,
    Identity,
    Inpaint,
    InverseProblem,
    Matrix,
    NoiseDenoise,
    Poisson,
    Prior,
    SplitGibbs,
    UnknownParameter,
    anneal,
)
from blackout.posterior.diagnostics import log_mean_exp
from blackout.random import SampleStreams, categorical
from blackout.verification.draws import ExactDenoiser, count_states, p_value, state_numbers
from blackout.verification.toys import Toy, pixel_pair, total_variation
from tests.verification.posterior_claims import (
    BlackBoxed,
    ExactPrior,
    SplitToy,
    cases,
    death_element,
    draws,
    likelihoods,
    matrices,
    uniform_element,
)

CHAINS = 10_000


@pytest.mark.parametrize("claims", [matrices, likelihoods, draws])
def test_every_claim_holds(claims):
    results = list(claims())
    assert results and [(result.name, result.error) for result in results if not result.holds] == []


def test_the_published_potential_has_another_distribution():
    """The published potential differs by more than the tolerance of any claim."""
    toy = SplitToy(np.array([0.5, 0.2, 0.3]), np.array([1.0, 0.5, 0.1]), 3, 1, uniform_element(3))
    assert total_variation(toy.split(0.1), toy.posterior) > 1e-3
    assert total_variation(toy.sweep(0.1, 2.0) @ np.ones(3) / 3, toy.split(0.1)) > 1e-3


def problem_of_counts(levels, seed=1):
    """Return (p, likelihood, problem) of three spiky counts, with photons of their weighted sum."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(0.3 * np.ones(levels**3))
    axes = np.stack(np.meshgrid(*[np.arange(levels)] * 3, indexing="ij"), -1).reshape(-1, 3)
    likelihood = stats.poisson.pmf(6, axes @ [1.0, 2.0, 0.5] + 0.5)
    return (
        p,
        likelihood,
        InverseProblem(
            Matrix(torch.tensor([[1.0, 2.0, 0.5]])), Poisson(1.0, 0.5), torch.tensor([6.0])
        ),
    )


def excess_total_variation(samples, posterior, levels):
    """Total variation less that of as many independent draws."""
    floor = np.random.default_rng(0).multinomial(len(samples), posterior) / len(samples)
    frequencies = count_states(samples, levels) / len(samples)
    return total_variation(frequencies, posterior) - total_variation(floor, posterior)


@pytest.mark.deep
def test_black_box_photons_of_125_states():
    p, likelihood, problem = problem_of_counts(5)
    toy = SplitToy(p, likelihood, 5, 3, death_element(5), lambda t: np.zeros(125))
    prior = ExactPrior(None, PureDeath(4), (3,), toy=toy)
    split = SplitGibbs(anneal(60, 3.0, 0.01)).sample(prior, BlackBoxed(problem), CHAINS)
    moves = NoiseDenoise((1.0, 0.4, 0.1), 24).sample(
        prior, BlackBoxed(problem), CHAINS, seed=1, start=split.samples
    )
    assert excess_total_variation(split.samples, toy.posterior, 5) <= 0.045
    assert excess_total_variation(moves.samples, toy.posterior, 5) <= 0.025


def test_reverse_runs_take_the_requested_steps():
    """H steps above the first time of the grid, and one to 0 (Chu et al. 2025, Table 7)."""
    prior = Prior(ExactDenoiser(pixel_pair()), PureDeath(15), (2,), times=logit_times(8, 5.0, -5.0))
    problem = InverseProblem(Identity(), Poisson(), torch.tensor([1.0, 2.0]))
    posterior = SplitGibbs((3.0, 1.0), steps=7).sample(prior, problem, 2)
    assert [sweep["network_evaluations"] for sweep in posterior.trace] == [8, 8]


def test_particles_reuse_the_evaluations_that_value_their_states():
    """One evaluation a step, of every particle, and the evidence of the pair's sum is right."""
    pair = pixel_pair()
    prior = Prior(ExactDenoiser(pair), PureDeath(15), (2,), times=logit_times(8, 5.0, -5.0))
    posterior = SMC(10).sample(
        prior, problem := InverseProblem(Identity(), Poisson(), torch.tensor([4.0, 2.0])), 100
    )
    assert sum(sweep["network_evaluations"] for sweep in posterior.trace) == 10 * (
        len(prior.times) - 1
    )
    likelihood = problem.log_likelihood(torch.from_numpy(pair.states).double()).exp().numpy()
    estimate, error = log_mean_exp(posterior.log_evidence.numpy())
    assert abs(estimate - math.log((pair.cube.ravel() * likelihood).sum())) < 4 * error + 0.05 < 0.4


@pytest.mark.deep
def test_one_proposal_per_sweep_is_enough_for_categories():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(25))
    axes = np.stack(np.meshgrid(*[np.arange(5)] * 2, indexing="ij"), -1).reshape(-1, 2)
    likelihood = stats.poisson.pmf(4, axes @ [1.0, 1.0] + 0.2)
    toy = SplitToy(p, likelihood, 5, 2, uniform_element(5))
    problem = BlackBoxed(
        InverseProblem(Matrix(torch.ones(1, 2)), Poisson(1.0, 0.2), torch.tensor([4.0]))
    )
    prior = ExactPrior(None, Uniform(4), (2,), toy=toy)
    posterior = SplitGibbs(anneal(400, 3.0, 0.01), proposals=1).sample(prior, problem, CHAINS // 2)
    assert excess_total_variation(posterior.samples, toy.posterior, 5) <= 0.05


@pytest.mark.parametrize("y", [1, pytest.param(3, marks=pytest.mark.deep)])
def test_a_known_pixel(y):
    """Overwriting is off by 0.1 to 0.3 here."""
    p, _, _ = problem_of_counts(5)
    p = p.reshape(25, 5).sum(1)
    likelihood = (np.arange(25) // 5 == y) * 1.0
    toy = SplitToy(p, likelihood, 5, 2, death_element(5))
    prior = ExactPrior(None, PureDeath(4), (2,), toy=toy)
    problem = InverseProblem(
        Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([float(y), 0.0])
    )
    posterior = SplitGibbs(anneal(60, 3.0, 0.01)).sample(prior, problem, CHAINS)
    assert (posterior.samples[:, 0] == y).all() and bool(
        torch.isfinite(posterior.log_likelihood).all()
    )
    assert 0 < float(posterior.num_repaired.double().mean()) < 0.5
    assert excess_total_variation(posterior.samples, toy.posterior, 5) <= 0.085


@dataclass(frozen=True)
class WalkingPrior(Prior):
    """A prior of pure death whose steps, too, are draws from Bayes' rule."""

    toy: Toy = field(kw_only=True)

    def _draw_states(self, rows, source):
        numbers = categorical(torch.from_numpy(rows), source).numpy()
        return torch.from_numpy(self.toy.states[numbers]).to(torch.uint8)

    def initial_states(self, num_samples, source=None):
        initial = self.toy.marginal(math.exp(-self.final_time))
        return self._draw_states(np.tile(initial, (num_samples, 1)), source.step(0))

    def step(self, x, s, t, source=None):
        matrix = self.toy.reverse(math.exp(-float(s)), math.exp(-float(t)))
        return self._draw_states(matrix[state_numbers(x, self.toy.levels)], source)

    def expected_data(self, x, s):
        rows = self.toy.reverse(1.0, math.exp(-float(s)))[state_numbers(x, self.toy.levels)]
        return torch.from_numpy(rows @ self.toy.states).double()

    def one_step_samples(self, x, s, streams, num_samples):
        return [
            self.step(x, torch.zeros_like(s), s, streams.fold_in(k).step(0))
            for k in range(num_samples)
        ]

    def reverse(self, z, t, source=None, num_steps=None):
        return self._draw_states(
            self.toy.reverse(1.0, math.exp(-t))[state_numbers(z, self.toy.levels)], source.step(0)
        )


@pytest.mark.deep
def test_particles_reach_the_posterior_of_a_likelihood_with_zeros():
    """With binomial thinning a rollout may contradict y although its particle does not."""
    p, _, _ = problem_of_counts(5)
    toy = Toy("counts", p.reshape(5, 5, 5))
    problem = InverseProblem(Identity(), Binomial([0.3, 0.5, 0.4]), torch.tensor([1.0, 2.0, 0.0]))
    prior = WalkingPrior(None, PureDeath(4), (3,), times=logit_times(12, 5.0, -5.0), toy=toy)
    posterior = SMC(40, rollouts=1).sample(prior, problem, 1500)
    weight = p * problem.log_likelihood(torch.from_numpy(toy.states).double()).exp().numpy()
    assert excess_total_variation(posterior.samples, weight / weight.sum(), 5) <= 0.035


def all_alike(x, t):
    """The exact denoiser of bits that are all 0 or all 1, as often."""
    odds = (2 * x.double() - 1).sum(1, keepdim=True) * -(torch.tanh(t / 2)).log()
    results = torch.stack(
        [torch.nn.functional.logsigmoid(-odds), torch.nn.functional.logsigmoid(odds)], 1
    )
    return CategoricalPrediction(results.expand(-1, -1, x.shape[1]).float())


def test_greedy_particles_are_valued_by_their_own_guesses():
    """Guesses of the common parent would not tell the particles from each other."""
    prior = Prior(all_alike, Uniform(1), (8,), times=logit_times(20, 5.0, -5.0))
    problem = InverseProblem(Inpaint(torch.arange(8) == 0), Flips(3.0), torch.ones(8))
    posterior = SMC(4, greedy=True).sample(prior, problem, 200)
    assert float((posterior.samples == 1).all(1).double().mean()) >= 0.95
    assert sum(sweep["network_evaluations"] for sweep in posterior.trace) == 4 * (
        len(prior.times) - 1
    )


def test_a_guess_that_contradicts_one_measurement_keeps_the_other_terms():
    """Nearly all guesses contradict one of many thinned pixels."""
    problem = InverseProblem(Identity(), Binomial(0.5), torch.tensor([2.0, 1.0]))
    data = torch.tensor([[1.0, 1.0], [1.0, 3.0]]).double()
    assert SMC(2)._log_mean_likelihood(problem, [data], raise_zeros=True).exp().tolist() == [
        pytest.approx([0.5, 0.375])
    ]
    assert SMC(2)._log_mean_likelihood(problem, [data], raise_zeros=False).exp().tolist() == [
        [0, 0]
    ]


BLUR = torch.tensor([[0.7, 0.3, 0.0], [0.15, 0.7, 0.15], [0.0, 0.3, 0.7]])
MEASURED = torch.tensor([1.0, 2.0, 0.0])
PROBLEMS = {
    "sum": InverseProblem(Matrix(torch.ones(1, 3)), Poisson(1.0, 0.5), torch.tensor([6.0])),
    "thinning with zeros": InverseProblem(Identity(), Binomial([0.3, 0.5, 0.4]), MEASURED),
    "blur": InverseProblem(Matrix(BLUR), Poisson(), torch.tensor([2.0, 1.0, 3.0])),
    "exposure map": InverseProblem(
        Identity(), Poisson([0.5, 2.0, 1.0]), torch.tensor([1.0, 3.0, 0.0])
    ),
    "gaussian": InverseProblem(Identity(), Gaussian(0.8), torch.tensor([1.5, 2.2, 0.3])),
}


def evidence(problem, number, particles=20, seed=0):
    """Of 125 states: log p(y) by particles with its standard error, and by enumeration."""
    p, _, _ = problem_of_counts(5)
    toy = Toy("counts", p.reshape(5, 5, 5))
    prior = WalkingPrior(None, PureDeath(4), (3,), times=logit_times(12, 5.0, -5.0), toy=toy)
    posterior = SMC(particles).sample(prior, problem, number, seed)
    exact = float(
        (p * problem.log_likelihood(torch.from_numpy(toy.states).double()).exp().numpy()).sum()
    )
    return *log_mean_exp(posterior.log_evidence.numpy()), math.log(exact)


@pytest.mark.deep
def test_an_unknown_exposure_and_the_counts_are_drawn_together():
    """posterior=auto against enumeration, with a likelihood that has zeros."""
    p, _, _ = problem_of_counts(5)
    blind = BlindProblem(
        Identity(),
        Poisson(1.0),
        torch.tensor([[2.0, 3.0, 1.0]]),
        UnknownParameter("noise", "exposure", 0.25, 4.0),
    )
    states = torch.from_numpy(Toy("counts", p.reshape(5, 5, 5)).states)
    toy = SplitToy(p, blind.log_likelihood(states.double()).exp().numpy(), 5, 3, death_element(5))
    prior = ExactPrior(None, PureDeath(4), (3,), toy=toy)
    method = Auto().resolve(prior, blind)
    posterior = method.sample(prior, blind, 1000)
    assert type(method).__name__ == "Auto" and bool(torch.isfinite(posterior.log_likelihood).all())
    assert excess_total_variation(posterior.samples, toy.posterior, 5) <= 0.03


@pytest.mark.deep
def test_confidence_intervals_of_an_unknown_gain_cover():
    """Of 200 truths and gains of the prior, nine tenths of the gains lie within 19 joint draws."""
    p, _, _ = problem_of_counts(5)
    rng = np.random.default_rng(0)
    states = torch.from_numpy(Toy("counts", p.reshape(5, 5, 5)).states).double()
    gain = torch.from_numpy(0.5 * 8 ** rng.random(200))
    x = states[rng.choice(125, 200, p=p)]
    cameras = [Camera(3.0, 0.5, float(value), 10.0, 0.3) for value in gain]
    streams = SampleStreams(1, torch.arange(200))
    sources = [SampleStreams(1, torch.tensor([k])).step(0) for k in range(200)]
    y = torch.cat([camera.draw(x[k : k + 1], sources[k]) for k, camera in enumerate(cameras)])
    problem = BlindProblem(
        Identity(), Camera(3.0, 0.5, 2.0, 10.0, 0.3), y, UnknownParameter("noise", "gain", 0.5, 4.0)
    )
    log_likelihood = problem.log_likelihood(states.repeat_interleave(200, 0)).view(125, 200)
    weight = log_likelihood.T.exp() * torch.from_numpy(p)
    draws = torch.stack(
        [
            problem.draw_value(
                states[categorical(weight, streams.fold_in(k).step(1))], streams.fold_in(k).step(2)
            )
            for k in range(200, 219)
        ]
    )
    assert 0.87 <= float(((draws.amin(0) < gain) & (gain < draws.amax(0))).double().mean()) <= 0.93
    # the data are informative: the spread is far below that of the log-uniform prior
    prior_spread = math.log(8) / math.sqrt(12)
    assert float(draws.log().std(0).median()) < 0.6 * prior_spread


@pytest.mark.parametrize("name", ["exposure map", pytest.param("gaussian", marks=pytest.mark.deep)])
def test_moves_remove_the_bias_of_few_particles(name):
    """What posterior=auto does with black boxes; 16 particles alone are off by 0.03 to 0.04."""
    p, _, _ = problem_of_counts(5)
    toy = Toy("counts", p.reshape(5, 5, 5))
    problem = PROBLEMS[name]
    prior = WalkingPrior(None, PureDeath(4), (3,), times=logit_times(12, 6.0, -6.0), toy=toy)
    weight = p * problem.log_likelihood(torch.from_numpy(toy.states).double()).exp().numpy()
    posterior = Auto().resolve(prior, BlackBoxed(problem)).sample(prior, BlackBoxed(problem), 1500)
    assert len(posterior.log_evidence) == 1500
    assert excess_total_variation(posterior.samples, weight / weight.sum(), 5) <= 0.02


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_evidence_is_that_of_enumeration(name):
    estimate, error, exact = evidence(PROBLEMS[name], 100)
    assert abs(estimate - exact) < 4 * error < 0.4


@pytest.mark.deep
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_evidence_is_within_a_twentieth_of_a_nat(name):
    estimate, error, exact = evidence(PROBLEMS[name], 1200)
    assert abs(estimate - exact) < 0.05 and error < 0.03


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_default_method_has_no_bias(name):
    """posterior=auto; its sweeps alone are off by 0.07 (exposure map) and 0.2 (gaussian)."""
    p, _, _ = problem_of_counts(5)
    problem = PROBLEMS[name]
    axes = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), -1).reshape(-1, 3)
    toy = SplitToy(
        p,
        problem.log_likelihood(torch.from_numpy(axes).double()).exp().numpy(),
        5,
        3,
        death_element(5),
    )
    prior = ExactPrior(None, PureDeath(4), (3,), toy=toy)
    posterior = Auto().resolve(prior, problem).sample(prior, problem, 3000)
    assert (
        excess_total_variation(posterior.samples, toy.posterior, 5) <= 0.02
        and not posterior.num_repaired.any()
    )


@pytest.mark.deep
def test_two_islands_have_their_weights():
    """Weights 0.7 and 0.3, far apart; annealing alone freezes at other weights."""
    states = np.indices((16, 16))
    p = sum(
        w * np.exp(-((states - centre) ** 2).sum(0) / 2) for w, centre in ((0.7, 3.0), (0.3, 12.0))
    ).ravel()
    problem = InverseProblem(Identity(), Gaussian(3.0), torch.tensor([7.5, 7.5]))
    likelihood = (
        problem.log_likelihood(torch.from_numpy(states.reshape(2, -1).T).double()).exp().numpy()
    )
    toy = SplitToy(p / p.sum(), likelihood, 16, 2, death_element(16))
    prior = ExactPrior(None, PureDeath(15), (2,), toy=toy)
    posterior = Auto().resolve(prior, problem).sample(prior, problem, 3000)
    assert float((posterior.samples.sum(1) < 15).double().mean()) == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("start", ["wrong", pytest.param("right", marks=pytest.mark.deep)])
def test_moves_with_known_elements_keep_and_reach_the_posterior(start):
    """One pixel of a pair is known; proposals that must hit it by chance would hardly move."""
    pair = pixel_pair()
    n = 1200
    conditional = pair.cube[8] / pair.cube[8].sum()
    hidden = (
        np.random.default_rng(0).choice(16, n, p=conditional)
        if start == "right"
        else np.zeros(n, dtype=int)
    )
    x = torch.from_numpy(np.stack([np.full(n, 8), hidden], 1)).to(torch.uint8)
    times = logit_times(25, 6.0, -6.0)
    prior = Prior(
        ExactDenoiser(pair), PureDeath(15), (2,), Trapezoidal(), times=times, steps_per_logit=2.0
    )
    problem = InverseProblem(
        Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([8.0, 0.0])
    )
    posterior = NoiseDenoise((3.0, 1.0, 0.4), 6).sample(prior, problem, n, start=x)
    assert (posterior.samples[:, 0] == 8).all() and min(
        row["acceptance"] for row in posterior.trace
    ) > 0.3
    assert (
        excess_total_variation(posterior.samples, np.outer(np.eye(16)[8], conditional).ravel(), 16)
        <= 0.03
    )
    assert posterior.trace[0]["network_evaluations"] > 4  # four particles


@pytest.mark.deep
def test_a_known_element_of_a_spiky_distribution_conditions_the_others():
    """posterior=auto, given the rarest of 125 states; 16 particles of 25 steps are off by 0.06."""
    cube = problem_of_counts(5)[0].reshape(5, 5, 5)
    y = int(cube.sum((1, 2)).argmin())
    prior = Prior(ExactDenoiser(Toy("counts", cube)), PureDeath(4), (3,), Trapezoidal())
    problem = InverseProblem(
        Inpaint(torch.tensor([True, False, False])), Exact(), torch.tensor([float(y), 0.0, 0.0])
    )
    posterior = Auto().resolve(prior, problem).sample(prior, problem, 400)
    conditional = (np.arange(5) == y)[:, None, None] * cube
    assert (
        excess_total_variation(posterior.samples, (conditional / conditional.sum()).ravel(), 5)
        <= 0.02
    )
    exact = math.log(cube[y].sum())
    estimate, error = log_mean_exp(posterior.log_evidence.numpy())
    assert abs(estimate - exact) < 0.05 and error < 0.02


def problem_named(name):
    """One of the twelve exact problems."""
    return next(problem for problem in exact_problems() if problem.name == name)


@pytest.mark.deep
@pytest.mark.parametrize(
    "name, method, is_calibrated",
    [
        ("thinning, rough", Direct(), True),
        ("sum of photons, smooth", SMC(16), True),
        ("sum of photons, smooth", SplitGibbs(sweeps=30, polish=10), True),
        ("blurred photons, smooth", Auto(), True),
        ("sum of photons, smooth", SMC(8, power=4.0), False),
    ],
)
def test_truths_have_uniform_ranks_among_samples_of_their_measurement(name, method, is_calibrated):
    """Simulation-based calibration (Talts et al. 2018) detects a likelihood that counts twice."""
    exact = problem_named(name)
    truths = exact.truths(300, 3)
    prior = exact.prior()
    problem = exact.measure(truths, 4)
    samples = method.sample(prior, problem, 19 * len(truths)).samples
    p_values, _ = calibrate(exact, problem, truths, samples)
    assert (len(p_values) * min(p_values.values()) > 1e-3) == is_calibrated


def test_auto_chooses_a_method_by_the_problem(capsys):
    inpainting = InverseProblem(
        Inpaint(torch.tensor([True, False])), Exact(), torch.tensor([1.0, 0.0])
    )
    sums = InverseProblem(Matrix(torch.ones(1, 2)), Poisson(), torch.tensor([2.0]))
    black_box = InverseProblem(
        Function(lambda x: x.sum(1, keepdim=True)), Gaussian(), torch.tensor([2.0])
    )
    prior = Prior(None, PureDeath(4), (2,))
    names = [
        type(Auto().resolve(prior, problem)).__name__ for problem in (inpainting, sums, black_box)
    ]
    short = InverseProblem(Matrix(torch.ones(1, 5)), Poisson(), torch.tensor([2.0]))
    assert Auto().resolve(replace(prior, shape=(5,)), short) == SMC(16)
    large = InverseProblem(Identity(), Poisson(), torch.ones(300))
    assert len(Auto().resolve(replace(prior, shape=(300,)), large).levels) == 42
    assert names == ["Overwrite", "Auto", "SMC"] and "64 particles" in capsys.readouterr().out
    assert type(Auto(sweeps=5).resolve(prior, black_box)).__name__ == "Auto"
    with pytest.raises(UserError, match=r"posterior\.sweeps: posterior=auto chose 64 particles"):
        Auto(sweeps=5).resolve(prior, inpainting)


@pytest.mark.parametrize("start", [(2, 1), (0, 0)])
def test_chains_reach_the_split_distribution_from_possible_and_impossible_states(start):
    """Two thinned counts at one level, compared with the enumerated split distribution."""
    problem = InverseProblem(Identity(), Binomial(0.3), torch.tensor([2.0, 1.0]))
    case = cases(separable=True)[1]
    assert case.name == "pure death"
    first = torch.tensor([start]).expand(4000, 2).to(torch.uint8)
    posterior = SplitGibbs((0.5,) * 12).sample(case.prior, problem, 4000, start=first)
    assert bool(torch.isfinite(posterior.log_likelihood).all())
    relaxed = Coupling(case.process).relax(problem, (2,), 0.5).log_likelihood
    states = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    toy = replace(case.toy, relaxed=lambda t: relaxed(states).exp().numpy())
    assert p_value(count_states(posterior.samples, 4), toy.split(0.5)) > 1e-3
