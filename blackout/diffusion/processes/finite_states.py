"""Processes on finitely many states, known by their transition matrices; the rest is Bayes' rule.

With P_st the transition matrix from time s to t, o = X_0, n = X_s, m = X_t:

    forward   P(m | o) = P_0t[o, m]                                  Austin et al. 2021, eq. 3
    bridge    P(n | o, m) = P_0s[o, n] P_st[n, m] / P_0t[o, m]       Austin et al. 2021, eq. 3
    reverse   rate(m -> j | o) = Q_t[j, m] P_0t[o, j] / P_0t[o, m]   Santos et al. 2023, eq. 71

with generator Q_t.

References: Austin et al. 2021 in discrete time; Campbell et al. 2022 and Santos et al. 2023,
    appendix B, in continuous time.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.counts import Shape, Time, per_row, per_sample_time, time_on
from blackout.diffusion.predictions import TINY, CategoricalPrediction
from blackout.diffusion.processes.base import JumpProcess, Observation, Process, check_max_count
from blackout.errors import ensure
from blackout.random import (
    RandomSource,
    categorical,
    cumulative_probabilities,
    inverse_cdf,
    uniform,
)

MAX_PRIOR_DISTANCE = 0.05  # total variation between X_t given X_0 and the prior at a final time


class FiniteProcess(Process):
    """A Markov process on 0..num_states - 1 whose data are 0..max_count.

    The statistic in which its reverse steps and rates are linear is X_0 itself, one-hot.

    Args:
        max_count: largest data level.
        num_states: S.

    Raises:
        ValueError: max_count is no whole number in 1..num_states - 1.
    """

    prediction: ClassVar[type[CategoricalPrediction]] = CategoricalPrediction
    tables: ClassVar[bool] = True  # whether it computes matrices [S, S], one per time of a batch

    def __init__(self, max_count: int, num_states: int) -> None:
        check_max_count(max_count)
        ensure(
            max_count < num_states,
            f"counts 0..{max_count} need at least {max_count + 1} states, not {num_states}",
        )
        self.max_count = max_count
        self.num_states = num_states

    # --- transition probabilities

    @abstractmethod
    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st for times [b] and [b]: float64 [b, S, S], rows summing to 1."""

    def rows(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st[x, .], float64 [B, ..., S].

        Args:
            x: states, int64 [B, ...].
            s: earlier times, [1] or [B].
            t: later times, [1] or [B].
        """
        matrix = self.transition(s, t)
        return matrix[_matrix_index(matrix, x), x]

    def columns(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st[., x], float64 [B, ..., S]; arguments as for `rows`."""
        matrix = self.transition(s, t).mT
        return matrix[_matrix_index(matrix, x), x]

    def propagate(self, weights: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return sum_i weights_i P_st[i, .], float64 [B, ..., S].

        It is the distribution at t of a process with the distribution `weights` at s.

        References: Austin et al. 2021, eq. 3.

        Args:
            weights: [B, ..., S].
            s: earlier times, [1] or [B].
            t: later times, [1] or [B].
        """
        return torch.einsum("b...i,bij->b...j", weights, self.transition(s, t))

    # --- forward draws

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """Draw X_t | X_0 by inversion of a row of P_0t, integers of x0's shape [B, ...].

        References: Austin et al. 2021, eq. 3.
        """
        u = uniform(tuple(x0.shape), generator, x0.device)
        return self._draw_rows(x0.long(), per_sample_time(t, x0), u).to(self.dtype)

    def _draw_rows(self, x: Tensor, t: Tensor, u: Tensor) -> Tensor:
        """Return the levels at which the cumulative sums of rows P_0t[x, .] exceed u.

        References: this project; checked in tests/random/test_counts.py; see `inverse_cdf`.

        Args:
            x: states, int64 [B, ...].
            t: times, [1] or [B].
            u: uniforms of x's shape.

        Returns:
            int64 [B, ...].
        """
        sums = cumulative_probabilities(self.transition(torch.zeros_like(t), t))
        return inverse_cdf(sums, _matrix_index(sums, x) * self.num_states + x, u)

    def observe(
        self, x0: Tensor, t: Time, generator: RandomSource = None
    ) -> tuple[Tensor, Observation]:
        """Draw X_t, and return it with the target, X_0 together with X_t."""
        xt = self.sample(x0, t, generator)
        return xt, Observation(self, x0, xt)

    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """Return P_0t[x0, .], float64 [B, ..., S].

        References: Austin et al. 2021, eq. 3.
        """
        t = per_sample_time(t, x0)
        return self.rows(x0.long(), torch.zeros_like(t), t)

    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """Return log P_0t[o, X_t] of every data level o, float64 [B, max_count + 1, ...].

        It is near -690 for what is impossible.

        References: Austin et al. 2021, eq. 3.
        """
        t = per_sample_time(t, xt)
        columns = self.columns(xt.long(), torch.zeros_like(t), t)[..., : self.max_count + 1]
        return columns.clamp(min=TINY).log().movedim(-1, 1)

    # --- bridges and reverse steps

    def bridge(
        self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None
    ) -> Tensor:
        """Draw X_s | X_0, X_t, of x0's shape [B, ...], from `bridge_pmf`.

        For an impossible pair, X_s is a state that X_0 can reach.
        """
        return categorical(self.bridge_pmf(x0, xt, s, t), generator).to(self.dtype)

    def bridge_pmf(self, x0: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """Return P(X_s = . | X_0, X_t), float64 [B, ..., S].

        References: Austin et al. 2021, eq. 3.
        """
        s = per_sample_time(s, x0)
        t = per_sample_time(t, x0)
        row = self.rows(x0.long(), torch.zeros_like(s), s)
        joint = row * self.columns(xt.long(), s, t)
        mass = joint.sum(-1, keepdim=True)
        return torch.where(mass > 0, joint / mass.clamp(min=TINY), row)

    def step_pmf(self, expected: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """Return the model's step, sum_o expected_o P(X_s = . | o, X_t), float64 [B, ..., S].

        References: Austin et al. 2021, eq. 4.

        Args:
            expected: P(X_0 = . | X_t), [B, max_count + 1, ...].
            xt: states [B, ...].
            s: time of the step's end.
            t: time of `xt`, after s.
        """
        s = per_sample_time(s, xt)
        t = per_sample_time(t, xt)
        return self.probability_ratios(expected, xt, t, s) * self.columns(xt.long(), s, t)

    def step_divergence(self, expected: Tensor, x0: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """Return KL(P(X_s | X_0, X_t) || `step_pmf`), float64 of x0's shape.

        References: Austin et al. 2021, eq. 1.

        Args:
            expected: P(X_0 = . | X_t), [B, max_count + 1, ...].
            x0: states [B, ...].
            xt: states [B, ...].
            s: time of the step's end.
            t: time of `xt`, after s.
        """
        model = self.step_pmf(expected, xt, s, t)
        exact = self.bridge_pmf(x0, xt, s, t)
        log_model = torch.special.xlogy(exact, model.clamp(min=TINY))
        return (torch.special.xlogy(exact, exact) - log_model).sum(-1)

    def probability_ratios(self, expected: Tensor, xt: Tensor, t: Time, u: Time) -> Tensor:
        """Return P(X_u,i = ., the rest of X_t) / P(X_t), float64 [B, ..., S].

        That is sum_o expected_o P_0u[o, .] / P_0t[o, X_t], if each o that leads there leads to X_t
        as well. At u = t it is the ratio in the reverse rates.

        References: Campbell et al. 2022, Proposition 1, at u = t; elsewhere this project, checked
            in tests/verification/test_guided_processes.py and
            tests/verification/test_particles.py.

        Args:
            expected: P(X_0 = . | X_t), [B, max_count + 1, ...].
            xt: states [B, ...].
            t: time of the states.
            u: the other time.
        """
        u = per_sample_time(u, xt)
        t = per_sample_time(t, xt)
        weights = expected.double().movedim(1, -1)
        likelihood = self.columns(xt.long(), torch.zeros_like(t), t)
        padded = F.pad(weights, (0, self.num_states - weights.shape[-1]))
        ratio = torch.where(likelihood > 0, padded, 0.0) / likelihood.clamp(min=TINY)
        return self.propagate(ratio, torch.zeros_like(u), u)

    # --- prior

    def prior_pmf(self, t: Time) -> Tensor:
        """Return the distribution that sampling starts from, float64 [S] on t's device.

        It is that of X_t for data that are uniform over all levels.

        References: this project; checked in tests/diffusion/processes/test_closed_forms.py.
        """
        t = torch.as_tensor(t, dtype=torch.float64).reshape(1)
        is_level = torch.arange(self.num_states, device=t.device) <= self.max_count
        uniform_levels = is_level.double()[None] / (self.max_count + 1)
        return self.propagate(uniform_levels, torch.zeros_like(t), t)[0]

    def prior(
        self, shape: Shape, t: Time, generator: RandomSource = None, data_mean: Tensor | None = None
    ) -> Tensor:
        """Draw independent states of `shape` [B, ...] from `prior_pmf`; `data_mean` is ignored."""
        sums = cumulative_probabilities(self.prior_pmf(t))
        u = uniform(shape, generator, sums.device)
        return torch.searchsorted(sums, u, right=True).to(self.dtype)

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """Return KL(P_0t[x0, .] || prior_pmf), float64 of x0's shape [B, ...].

        References: Austin et al. 2021, eq. 1, the prior's term.
        """
        divergence, _ = self._prior_distances(time_on(t, x0.device))
        return divergence[x0.long()]

    def _prior_distances(self, t: Time) -> tuple[Tensor, Tensor]:
        """Return KL and total variation between P_0t[o, .] of every level o and the prior.

        Float64 [max_count + 1] each, at a scalar time t.

        References: Austin et al. 2021, eq. 1, for the KL.
        """
        prior = self.prior_pmf(t)
        p = self.pmf(torch.arange(self.max_count + 1, device=prior.device)[None], t)[0]
        nats = (torch.special.xlogy(p, p) - torch.special.xlogy(p, prior)).sum(-1).clamp(min=0.0)
        return nats, (p - prior).abs().sum(-1) / 2

    def check_final_time(self, t: Time) -> None:
        """Refuse a final time at which the data's levels can still be told apart.

        Raises:
            ValueError: X_t given some level is further than 0.05 (total variation) from the prior.
        """
        _, distance = self._prior_distances(t)
        worst = int(distance.argmax())
        if distance[worst] > MAX_PRIOR_DISTANCE:
            raise ValueError(
                f"the data never reach the prior: at the final time {float(t):g}, X_t from count "
                f"{worst} is at the distance {float(distance[worst]):.2f} from the average over "
                f"all counts (total variation, at most {MAX_PRIOR_DISTANCE}): use a later final "
                "time, larger rates, or a generator with one closed class of states"
            )


class FiniteJumpProcess(FiniteProcess, JumpProcess):
    """A finite process in continuous time with generator Q.

    Types of jumps are their destinations 0..num_states - 1.

    Args:
        max_count: largest data level.
        num_states: S.
        ordered: whether several jumps in one step add up, as for counts.
    """

    def __init__(self, max_count: int, num_states: int, ordered: bool = False) -> None:
        super().__init__(max_count, num_states)
        self.ordered = ordered

    @abstractmethod
    def generator(self) -> Tensor:
        """Return Q, float64 [S, S], rows summing to 0."""

    @abstractmethod
    def transition_after(self, tau: Tensor) -> Tensor:
        """Return exp(Q tau) for tau [b]: float64 [b, S, S]."""

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """Return P_st = exp(Q (t - s)) for times [b] and [b]: float64 [b, S, S]."""
        return self.transition_after(t - s)

    def _rates_into(self, x: Tensor) -> Tensor:
        """Return Q[., x] without the diagonal, float64 [B, ..., S]: rates of forward jumps into x.

        Reverse jumps undo them.
        """
        return _clear_diagonal(self.generator().to(x.device).T)[x]

    def _rates_out(self, x: Tensor) -> Tensor:
        """Return Q[x, .] without the diagonal, float64 [B, ..., S] for x [B, ...]."""
        return _clear_diagonal(self.generator().to(x.device))[x]

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return reverse rates into every state, float64 [B, S, ...] per unit of t.

        rate(m -> j) = Q[j, m] sum_o w_o P_0t[o, j], w_o = P(o | m) / P_0t[o, m].

        References: Campbell et al. 2022, Proposition 1.

        Args:
            expected: P(X_0 = . | X_t), [B, max_count + 1, ...].
            xt: states [B, ...].
            t: times.
        """
        ratios = self.probability_ratios(expected, xt, t, t)
        return (self._rates_into(xt.long()) * ratios).movedim(-1, 1)

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return reverse rates into every state given X_0, float64 [B, S, ...].

        References: Santos et al. 2023, eq. 71.
        """
        t = per_sample_time(t, xt)
        row = self.rows(x0.long(), torch.zeros_like(t), t)
        likelihood = row.gather(-1, xt.long()[..., None])
        ratio = torch.where(likelihood > 0, row / likelihood.clamp(min=TINY), 0.0)
        return (self._rates_into(xt.long()) * ratio).movedim(-1, 1)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Return forward rates into every state, float64 [B, S, ...]."""
        return self._rates_out(xt.long()).movedim(-1, 1)

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """Return the jump j - X_t from X_t [B, ...] to every state j, int64 [B, S, ...]."""
        return per_row(torch.arange(self.num_states, device=xt.device), xt) - xt.long()[:, None]

    forward_jumps = reverse_jumps


def _matrix_index(matrix: Tensor, x: Tensor) -> Tensor:
    """Return which matrix of [b, S, S] each of x [B, ...] uses, broadcastable to x; b is 1 or B."""
    return per_row(torch.arange(len(matrix), device=x.device), x)


def _clear_diagonal(matrix: Tensor) -> Tensor:
    """Return the matrix [S, S] with zeros on its diagonal."""
    return matrix - torch.diag(matrix.diagonal())
