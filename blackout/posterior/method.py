"""Posterior samplers: their interface `Method`, a `Run` with its trace, and steps of chains."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from blackout.counts import count_dtype, per_row
from blackout.diffusion.sampler import Sampler
from blackout.errors import ensure
from blackout.posterior.diagnostics import CHAIN_STATISTICS, projection_weights
from blackout.posterior.draw import PosteriorDraw, make_draw
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Problem
from blackout.random import SampleStreams
from blackout.representation import format_arguments, format_fields

INITIAL_KEY = -1  # random numbers of unconditional samples from which chains start

# called with (sweep, number of sweeps, x, z, level) after every sweep
Observer: TypeAlias = Callable[[int, int, Tensor, Tensor, float], None]


@dataclass
class PosteriorSamples:
    """Samples of p(x | y).

    Attributes:
        samples: counts [n, *shape].
        log_likelihood: log p(y | x), float64 [n].
        trace: one dictionary per sweep: `level`; means over chains of `CHAIN_STATISTICS`;
            `network_evaluations` and `likelihood_evaluations` per chain; `seconds`.
        chains: statistics of every chain and sweep, float32 [n, sweeps, 4 + projections]: those of
            `CHAIN_STATISTICS`, then projections of x.
        num_repaired: elements of each sample that contradicted y and were replaced, int64 [n].
        log_evidence: log of an estimate of p(y) from the particles of each sample, float64 [n];
            unbiased up to the error of the steps. Empty for methods without weights.
    """

    samples: Tensor
    log_likelihood: Tensor
    trace: list[dict[str, float]] = field(default_factory=list)
    chains: Tensor = field(default_factory=lambda: torch.empty(0))
    num_repaired: Tensor = field(default_factory=lambda: torch.empty(0))
    log_evidence: Tensor = field(default_factory=lambda: torch.empty(0))

    __repr__ = format_fields


@dataclass
class Run:
    """One run of a posterior sampler: its inputs, and the trace it leaves.

    Args:
        prior: p(x), which counts its network evaluations.
        problem: p(y | x).
        num_samples: n.
        streams: random numbers of every sample.
        start: counts [n, *shape] to start from; None for the method's own choice.
        num_sweeps: how many sweeps there will be.
        observer: called after every sweep.
        trace: see `PosteriorSamples`.
        chains: statistics of every sweep, float32 [n, 4 + projections] each.
        log_evidence: see `PosteriorSamples`.
    """

    prior: Prior
    problem: Problem
    num_samples: int
    streams: SampleStreams
    start: Tensor | None
    num_sweeps: int
    observer: Observer | None = None
    trace: list[dict[str, float]] = field(default_factory=list)
    chains: list[Tensor] = field(default_factory=list)
    log_evidence: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        self._start_sweep()

    def _start_sweep(self) -> None:
        self._evaluations_before = self.prior.evaluations
        self._start_time = time.perf_counter()

    @property
    def sweep_evaluations(self) -> int:
        """The network evaluations of batches since the last recorded sweep."""
        return self.prior.evaluations - self._evaluations_before

    def initial_samples(self, start: str) -> Tensor:
        """Return where chains start, counts [n, *shape].

        Args:
            start: "data" for an estimate from the measurement if there is one; "prior" for
                unconditional samples.

        Raises:
            ValueError: `self.start` has another shape, or is not integer.
        """
        prior = self.prior
        shape = (self.num_samples, *prior.shape)
        dtype = count_dtype(prior.process.max_count)
        if self.start is not None:
            if tuple(self.start.shape) != shape or self.start.is_floating_point():
                raise ValueError(
                    f"start must be counts of shape {shape}, not {self.start.dtype} of shape "
                    f"{tuple(self.start.shape)}"
                )
            return self.start.to(prior.device, dtype)
        estimate = None
        if start == "data":
            estimate = initial_estimate(self.problem, self.num_samples, prior.shape)
        if estimate is None:
            return prior.draw(self.num_samples, self.streams.fold_in(INITIAL_KEY))
        return estimate.to(prior.device).round().clamp(0, prior.process.max_count).to(dtype)

    def record(
        self,
        level: float,
        x: Tensor,
        z: Tensor | None = None,
        log_likelihood: Tensor | None = None,
        acceptance: Tensor | float = 1.0,
        likelihood_evaluations: int = 1,
        network_evaluations: int | None = None,
    ) -> None:
        """Record the end of a sweep, and call the observer.

        Args:
            level: of the sweep.
            x: samples [n, *shape].
            z: states [n, *shape]; None for x.
            log_likelihood: of x, float64 [n]; None to evaluate it.
            acceptance: acceptance rate of every chain, [n].
            likelihood_evaluations: per chain.
            network_evaluations: per chain; None for those of batches since the last sweep.
        """
        # 1. Statistics of the chains.
        if z is None:
            z = x
        if log_likelihood is None:
            data = x.double().clamp(max=self.prior.process.max_count)
            log_likelihood = self.problem.log_likelihood(data)
        flat = x.double().flatten(1)
        mismatch = (x != z).flatten(1).double().mean(1)
        acceptance_of_chains = torch.ones_like(mismatch) * acceptance
        columns = [log_likelihood, mismatch, acceptance_of_chains, flat.sum(1)]
        chain_statistics = torch.stack(columns, 1)
        projections = flat @ projection_weights(flat.shape[1]).to(flat.device)
        self.chains.append(torch.cat([chain_statistics, projections], 1).float())

        # 2. Their means, and the cost of the sweep.
        if network_evaluations is None:
            network_evaluations = self.sweep_evaluations
        means = chain_statistics.mean(0).tolist()
        self.trace.append(
            {
                "sweep": len(self.trace),
                "level": level,
                **dict(zip(CHAIN_STATISTICS, means, strict=True)),
                "network_evaluations": network_evaluations,
                "likelihood_evaluations": likelihood_evaluations,
                "seconds": time.perf_counter() - self._start_time,
            }
        )

        # 3. The observer, whose time belongs to no sweep.
        if self.observer is not None:
            self.observer(len(self.trace), self.num_sweeps, x, z, level)
        self._start_sweep()


def initial_estimate(problem: Problem, num_samples: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return a problem's estimate of the data, float64 [num_samples, *shape], or None."""
    estimate = getattr(problem, "estimate", None)
    return None if estimate is None else estimate(num_samples, shape)


class Method(ABC):
    """A posterior sampler.

    Example:
        >>> import torch
        >>> from blackout.diffusion.predictions import CountPrediction
        >>> from blackout.diffusion.processes import PureDeath
        >>> from blackout.posterior import Binomial, Direct, Identity, InverseProblem, Prior
        >>> def denoiser(xt, t):  # exact for independent Poisson counts of mean 5
        ...     missing = (1 - torch.exp(-t)) * torch.full(xt.shape, 5.0, dtype=torch.float64)
        ...     return CountPrediction(missing, missing.log())
        >>> prior = Prior(denoiser, PureDeath(255), (3,))
        >>> problem = InverseProblem(Identity(), Binomial(0.5), torch.tensor([2.0, 0.0, 7.0]))
        >>> result = Direct().sample(prior, problem, num_samples=2000)
        >>> [round(float(mean), 1) for mean in result.samples.double().mean(0)]  # y + 2.5
        [4.5, 2.5, 9.5]
    """

    # whether late sweeps are states of Markov chains, so that R-hat and effective sizes apply
    is_markov_chain: ClassVar[bool] = False
    # whether the method follows the sampler's time grid, and not only runs between its ends
    follows_grid: ClassVar[bool] = False

    __repr__ = format_arguments

    def sample(
        self,
        prior: Prior,
        problem: Problem,
        num_samples: int,
        seed: int | SampleStreams = 0,
        start: Tensor | None = None,
        observer: Observer | None = None,
    ) -> PosteriorSamples:
        """Draw samples 0 to num_samples - 1 of a seed.

        The random numbers of sample k are a function of (seed, k). Chains at a positive level may
        leave elements that contradict y; they are replaced, and counted, if the problem has a
        method `repair`.

        Args:
            prior: p(x).
            problem: p(y | x).
            num_samples: n.
            seed: seed, or the random numbers of each sample.
            start: counts [num_samples, *shape] to start from; None for the method's own choice.
            observer: called after every sweep.

        Raises:
            ValueError: a problem that the method cannot solve.
        """
        method = self.resolve(prior, problem)
        method.check(prior, problem)
        streams = seed
        if isinstance(streams, int):
            streams = SampleStreams(streams, torch.arange(num_samples, device=prior.device))
        run = Run(prior, problem, num_samples, streams, start, method.num_sweeps(prior), observer)
        samples = method.draw(run)
        repair = getattr(problem, "repair", None)
        x = samples if repair is None else repair(samples)
        return PosteriorSamples(
            samples=x,
            log_likelihood=problem.log_likelihood(x.double()),
            trace=run.trace,
            chains=torch.stack(run.chains, 1),
            num_repaired=(x != samples).flatten(1).sum(1),
            log_evidence=run.log_evidence,
        )

    def resolve(self, prior: Prior, problem: Problem) -> Method:
        """Return the method with defaults that depend on the problem filled in."""
        return self

    def make_draw(self, model: Any, sampler: Sampler, request: Mapping[str, Any]) -> PosteriorDraw:
        """Return the draw of `sample.py`; see `draw.make_draw`."""
        return make_draw(self, model, sampler, request)

    def uses_grid(self, prior: Prior, problem: Problem) -> bool:
        """Return whether any state is drawn by steps of the sampler's grid.

        These are methods that follow it, and unconditional samples from which chains start.
        """
        if self.follows_grid and getattr(self, "steps", None) is None:
            return True
        if getattr(self, "start", "data") == "prior":
            return True
        return self.is_markov_chain and initial_estimate(problem, 1, prior.shape) is None

    @abstractmethod
    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape], and record every sweep."""

    def check(self, prior: Prior, problem: Problem) -> None:
        """Check settings and problem before anything long starts.

        Raises:
            ValueError: a run that cannot work.
        """
        return

    def num_sweeps(self, prior: Prior) -> int:
        """Return the number of sweeps that observers will see."""
        return 1


def check_levels(levels: Sequence[float], prior: Prior) -> None:
    """Check noise levels.

    Raises:
        ValueError: none, or levels that are not positive or beyond the prior's final time.
    """
    is_positive = levels and all(0 < t < math.inf for t in levels)
    ensure(is_positive, f"levels must be positive, not {list(levels)}")
    if max(levels) > prior.final_time * (1 + 1e-9):
        raise ValueError(
            f"level {max(levels):g} is beyond the model's last time; "
            f"it must be at most {prior.final_time:.4g}"
        )


def metropolis_accept(log_ratio: Tensor, log_likelihood: Tensor, u: Tensor) -> Tensor:
    """Return which proposals a Metropolis step accepts, bool [n], with probability min(1, ratio).

    From a state of likelihood 0 every proposal is accepted.

    Args:
        log_ratio: log of the acceptance ratio, [n].
        log_likelihood: of the current states, [n].
        u: uniforms [n, 1].

    References: Hastings 1970; states of likelihood 0: this project.
    """
    return u[:, 0].log() < torch.where(torch.isneginf(log_likelihood), math.inf, log_ratio)


def select_rows(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return samples [n, *shape] of `first` where `rows`, bool [n], is true, else of `second`."""
    return torch.where(per_row(rows, first), first, second)
