"""Posterior samplers with particles: SMC, SVDD-PM, FK steering, TDS, DPS and replacement.

References: Chu et al. 2025, appendix C.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import (
    THRESHOLD,
    Particles,
    Steering,
    floor_values,
    normalise_weights,
    run_particles,
)
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler
from blackout.errors import check_at_least_one, ensure
from blackout.posterior.method import Method, Run
from blackout.posterior.noise_denoise import polish
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem, Problem, repeat_rows
from blackout.random import SampleStreams, systematic_resampling, uniform

DEFAULT_ROLLOUTS = 4  # one-step samples of a state that expected data cannot value
# neighbours of a state: every step of a guided run evaluates the network once for each
MAX_NEIGHBOURS = 20_000
POLISH_KEY = -3  # random numbers of moves after the last step


def select_problem(problem: Problem, rows: Tensor, shape: tuple[int, ...]) -> Problem:
    """Return the problem of samples `rows`, int64 [m], if each has a measurement of its own."""
    return problem.select(rows, shape) if isinstance(problem, InverseProblem) else problem


class Resampling(NamedTuple):
    """Particles of each sample after resampling.

    Attributes:
        ancestors: particle that each one continues from, int64 [n, M].
        log_weight: their weights afterwards, float64 [n, M].
        log_mean_weight: of the particles before resampling, float64 [n]; 0 without resampling.
    """

    ancestors: Tensor
    log_weight: Tensor
    log_mean_weight: Tensor


@dataclass(frozen=True)
class SMC(Method):
    """Sequential Monte Carlo: reverse runs of several particles per sample, weighted and resampled.

    A step from x_t to x_s has the weight (p(y | x_s) / p(y | x_t))^power. Particles are resampled
    when their effective number falls below `threshold`.

    The value log p(y | x_s) of a state follows from the network's prediction, which the next step
    reuses. For births it is `look_ahead` times log L at the expected data, which adds no noise;
    less than 1, because elements are not independent. Otherwise it is the log mean of L over a few
    one-step samples.

    A state whose one-step samples all contradict y may still lead to data that do not. If it were
    dropped, the limit of many particles would be wrong (total variation 0.2 to 0.3, growing with M,
    for binomial thinning). Its value is therefore raised (`floor_values`), separately for every
    number of y, because nearly all samples contradict one of many numbers. Only L itself, at the
    end, is 0 where y is impossible. As M grows, the distribution tends to p(x) L(x)^power / Z. For
    any M the product of the mean weights has the expectation Z, the evidence p(y) for power 1. Here
    p(x) is the distribution that the steps of the run draw from.

    Args:
        particles: M, of every sample.
        rollouts: one-step samples per state. None takes expected data, or four samples if data are
            not born as counts, L is not smooth, or `greedy` is set.
        power: exponent of the likelihood.
        threshold: effective share of particles below which they are resampled; 1 resamples after
            every step, as published.
        polish: noise-denoise moves of the final sample, which reduce the bias of few particles.
        greedy: SVDD-PM, in which all particles continue from the best one. With many particles it
            finds the best of them, not the posterior.
        look_ahead: power of L at the expected data that values a state. L itself replaces it at the
            end, so that neither the limit nor the expectation of the evidence depends on it.
            On four exact posteriors no other power is better than 0.5, and 1 is worse
            (benchmarks/results/posterior_constants.json).

    References: Chu et al. 2025, appendix C.2.3 and eq. 55 and 56; Li et al. 2024 (SVDD-PM);
        Del Moral et al. 2006, section 3.2 (evidence); values of states: this project, checked in
        tests/posterior/test_samples.py.
    """

    follows_grid: ClassVar[bool] = True
    particles: int = 20
    rollouts: int | None = None
    power: float = 1.0
    threshold: float = THRESHOLD
    polish: int = 0
    greedy: bool = False
    look_ahead: float = 0.5

    def num_sweeps(self, prior: Prior) -> int:
        """Return the number of steps and moves."""
        return len(prior.times) - 1 + self.polish

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range."""
        check_at_least_one(particles=self.particles, rollouts=self.rollouts)
        ensure(0 < self.power < math.inf, f"power must be positive, not {self.power}")
        ensure(0 <= self.threshold <= 1, f"threshold must be from 0 to 1, not {self.threshold}")
        ensure(self.polish >= 0, f"polish must be at least 0, not {self.polish}")
        ensure(self.look_ahead >= 0, f"look_ahead must be at least 0, not {self.look_ahead}")
        targets_posterior = self.power == 1 and not self.greedy
        ensure(
            targets_posterior or not self.polish,
            "polish needs power=1 and greedy=false, because moves target p(x) L(x)",
        )

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        num_samples = run.num_samples
        num_particles = self.particles

        # 1. All particles start from the prior, with equal weights.
        particle_streams = run.streams.particles(num_particles)
        x = prior.initial_states(num_samples * num_particles, particle_streams)
        sample_index = torch.arange(num_samples).repeat_interleave(num_particles)
        problem = select_problem(run.problem, sample_index, prior.shape)
        value = torch.zeros(num_samples, num_particles, dtype=torch.float64, device=x.device)
        log_weight = value
        log_evidence = value[:, 0]
        times = prior.times.to(prior.device)
        first_row = torch.arange(num_samples, device=x.device)[:, None] * num_particles
        for k in range(len(times) - 2, -1, -1):
            s = times[k]
            t = times[k + 1]

            # 2. A step of the prior, and the values of the new states.
            x = prior.step(x, s, t, particle_streams.step(k + 1))
            data, factor = self._predict_data(prior, problem, x, s, particle_streams.fold_in(k))
            is_last = float(s) == 0
            new_value = factor * self._log_mean_likelihood(problem, data, raise_zeros=not is_last)

            # 3. Weights, and resampling where they are too uneven.
            u = uniform((num_samples, 1), run.streams.step(k + 1), x.device)
            resampling = self._resample(log_weight, value, new_value, u, is_last)
            log_weight = resampling.log_weight
            log_evidence = log_evidence + resampling.log_mean_weight
            rows = (first_row + resampling.ancestors).flatten()
            x = x[rows]
            value = new_value.gather(1, resampling.ancestors)

            # 4. The next step reuses the predictions of the particles that remain.
            cast(CountingDenoiser, prior.denoiser).reuse(rows, s)
            run.record(
                float(t),
                x[::num_particles],
                likelihood_evaluations=num_particles * len(data),
                network_evaluations=num_particles * run.sweep_evaluations,
            )

        # 5. The first particle of each sample is the result.
        run.log_evidence = torch.empty(0) if self.greedy else log_evidence
        x = x[::num_particles].clamp(max=prior.process.max_count)
        if self.polish:
            x = polish(run, x, self.polish, run.streams.fold_in(POLISH_KEY))
        return x

    def _predict_data(
        self, prior: Prior, problem: Problem, x: Tensor, s: Tensor, streams: SampleStreams
    ) -> tuple[list[Tensor], float]:
        """Return data that states lead to, by which they are valued.

        Returns:
            Data, float64 [rows, *shape], one or several; the factor of the log of their mean L.
        """
        if s == 0:
            return [x.double()], 1.0
        is_smooth = isinstance(prior.process, PureDeath) and getattr(problem, "smooth", True)
        if is_smooth and self.rollouts is None and not self.greedy:
            return [prior.expected_data(x, s)], self.look_ahead
        num_rollouts = self.rollouts or DEFAULT_ROLLOUTS
        samples = prior.one_step_samples(x, s, streams, num_rollouts)
        return [x0.double() for x0 in samples], 1.0

    def _log_mean_likelihood(
        self, problem: Problem, data: list[Tensor], raise_zeros: bool
    ) -> Tensor:
        """Return the log of the mean likelihood of every particle's data, float64 [n, M].

        Args:
            problem: of all particles.
            data: float64 [n M, *shape], one or several per particle.
            raise_zeros: whether terms of -inf are raised by `floor_values`, as for states.

        References: Chu et al. 2025, eq. 55, with the change that the class describes.
        """
        terms = []
        for x in data:
            term = (
                problem.terms(x)
                if isinstance(problem, InverseProblem)
                else problem.log_likelihood(x)[:, None]
            )
            terms.append(term.unflatten(0, (-1, self.particles)))
        groups = torch.cat(terms, 1)  # [n, data x M, K]
        if raise_zeros:
            groups = floor_values(groups)
        log_likelihood = groups.sum(2).view(len(groups), -1, self.particles)
        return torch.logsumexp(log_likelihood, 1) - math.log(len(data))

    def _resample(
        self, log_weight: Tensor, value: Tensor, new_value: Tensor, u: Tensor, is_last: bool
    ) -> Resampling:
        """Update weights by a step, and resample the particles of samples with uneven weights.

        Args:
            log_weight: before the step, float64 [n, M].
            value: of the states before the step, float64 [n, M].
            new_value: of the states after the step, float64 [n, M].
            u: uniforms [n, 1].
            is_last: whether all samples are resampled.

        References: Chu et al. 2025, appendix C.2.3; Del Moral et al. 2006, section 3.2.
        """
        num_particles = new_value.shape[1]
        gain = torch.where(torch.isneginf(new_value), -math.inf, new_value - value)
        log_weight = log_weight + self.power * gain
        identity = torch.arange(num_particles, device=u.device)
        if self.greedy:
            best = new_value.argmax(1, keepdim=True).expand(-1, num_particles)
            return Resampling(best, torch.zeros_like(new_value), torch.zeros_like(new_value[:, 0]))
        weight = normalise_weights(log_weight)
        effective_number = 1 / (weight**2).sum(1, keepdim=True)
        resampled = (effective_number < self.threshold * num_particles) | is_last
        log_mean = torch.logsumexp(log_weight, 1) - math.log(num_particles)
        log_mean = torch.where(resampled[:, 0], log_mean, 0.0)
        # Systematic resampling sorts particles, but the first one is the final sample: rotate
        # them by an independent number
        rotation = (u * 1e6).long() % num_particles
        new_ancestors = systematic_resampling(weight, u).gather(
            1, (identity + rotation) % num_particles
        )
        ancestors = torch.where(resampled, new_ancestors, identity)
        return Resampling(ancestors, torch.where(resampled, 0.0, log_weight), log_mean)


@dataclass(frozen=True)
class SteeredParticles(Method):
    """Steered reverse runs: FK steering, or TDS if they are guided, or DPS with one particle.

    Args:
        particles: of every sample.
        guided: multiply the rate of every jump x -> x' by p(y | x') / p(y | x), where p(y | x_t) is
            L at the expected data. Each step evaluates the network once for every neighbour x'.
        interval: steps between two uses of the likelihood, counted from the end.
        draws: samples of X_0 by which a particle is weighted.

    References: Chu et al. 2025, eq. 52 and 53 (DPS); see `blackout.diffusion.particles`.
    """

    follows_grid: ClassVar[bool] = True
    particles: int = 20
    guided: bool = False
    interval: int = 4
    draws: int = 4

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range, or guided runs with too many neighbours."""
        check_at_least_one(particles=self.particles, interval=self.interval, draws=self.draws)
        num_neighbours = self.num_neighbours(prior)
        if self.guided and num_neighbours > MAX_NEIGHBOURS:
            raise ValueError(
                f"guided=true would evaluate the network {num_neighbours:,} times in every step; "
                f"at most {MAX_NEIGHBOURS:,} are allowed. Use posterior=smc or posterior=fk"
            )

    @staticmethod
    def num_neighbours(prior: Prior) -> int:
        """Return the number of states that one jump leads to.

        References: Chu et al. 2025, eq. 52.
        """
        is_death = isinstance(prior.process, PureDeath)
        return math.prod(prior.shape) * (1 if is_death else prior.process.num_states)

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        sample_index = torch.arange(run.num_samples, device=prior.device)
        sample_index = sample_index.repeat_interleave(self.particles)

        def likelihood(x: Tensor, rows: Tensor) -> Tensor:
            problem = select_problem(run.problem, sample_index[rows], prior.shape)
            return problem.log_likelihood(x)

        def classifier(x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
            return likelihood(prior.expected_data(x, t), rows)

        steering = Steering(
            prior.process,
            likelihood,
            self.particles,
            classifier=classifier if self.guided else None,
            guided=self.guided,
            draws=self.draws,
            every=self.interval,
            kernel=None if self.guided else prior.kernel,
        )
        plan = SamplingPlan(
            prior.denoiser,
            prior.process,
            prior.times,
            data_mean=prior.data_mean,
            device=prior.device,
        )
        result = steering.run(plan, (run.num_samples, *prior.shape), run.streams)
        evaluations_per_step = self.num_neighbours(prior) + 2 if self.guided else 1
        evaluations = self.particles * (len(prior.times) - 1) * evaluations_per_step
        run.record(
            prior.final_time,
            result.samples,
            likelihood_evaluations=max(evaluations, self.particles * self.draws),
            network_evaluations=evaluations,
        )
        run.log_evidence = result.log_normaliser
        return result.samples


@dataclass(frozen=True)
class Overwrite(Method):
    """The replacement method: known elements are overwritten after every step; as `inpaint=`.

    With one particle the other elements never look ahead: the distribution is wrong for any number
    of steps. More particles are weighted by the paths of the known elements.

    Args:
        particles: of every sample.
        steps: evenly spaced in the logit of survival between the ends of the sampler's grid; None
            for that grid.

    References: Song et al. 2021, appendix I.2 (imputation).
    """

    follows_grid: ClassVar[bool] = True
    particles: int = 1
    steps: int | None = None

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range, or without known elements."""
        ensure(self.particles >= 1, f"particles must be at least 1, not {self.particles}")
        has_steps = self.steps is None or self.steps >= 2
        ensure(has_steps, f"steps must be at least 2, not {self.steps}")
        self._known_elements(problem, prior)

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        shape = (run.num_samples, *prior.shape)
        times = prior.times
        if self.steps is not None:
            times = prior.reverse_times(prior.final_time, self.steps - 1)
        y, mask = self._known_elements(run.problem, prior)
        plan = SamplingPlan(
            prior.denoiser,
            prior.process,
            times,
            prior.kernel,
            data_mean=prior.data_mean,
            known_elements=KnownElements(
                repeat_rows(y, run.num_samples).expand(shape), mask.expand(shape)
            ),
            device=prior.device,
        )
        if self.particles == 1:
            x = run_sampler(plan, shape, run.streams)
        else:
            x, run.log_evidence = run_particles(plan, shape, run.streams, Particles(self.particles))
        run.record(
            prior.final_time,
            x,
            likelihood_evaluations=self.particles,
            network_evaluations=self.particles * run.sweep_evaluations,
        )
        return x

    @staticmethod
    def _known_elements(problem: Problem, prior: Prior) -> tuple[Tensor, Tensor]:
        """Return known counts [n or 1, *shape], and where they are known, bool [*shape]."""
        elements = None
        if isinstance(problem, InverseProblem):
            elements = problem.known_elements(prior.shape)
        if elements is None:
            raise ValueError(
                "posterior=overwrite needs exactly known elements: use noise=exact with "
                "operator=inpaint, inpaint_box or inpaint_random"
            )
        y, mask = elements
        return y.to(prior.device, count_dtype(prior.process.max_count)), mask.to(prior.device)
