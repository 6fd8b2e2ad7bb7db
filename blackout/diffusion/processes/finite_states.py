"""Processes on finitely many states, known by their transition matrices: everything else is Bayes' rule.

In discrete time [Austin 2021], and in continuous time [Campbell 2022; Santos 2023, appendix B].

With P_st the transition matrix from time s to t, o = X_0, n = X_s, m = X_t:

    forward   P(m | o) = P_0t[o, m]                                  [Austin 2021, eq. 3]
    bridge    P(n | o, m) = P_0s[o, n] P_st[n, m] / P_0t[o, m]       [Austin 2021, eq. 3]
    reverse   rate(m -> j | o) = Q_t[j, m] P_0t[o, j] / P_0t[o, m]   [Santos 2023, eq. 71], with generator Q_t
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
from blackout.random import RandomSource, categorical, cumulative, invert_rows, uniform

_REMEMBERED = 0.05
"""Largest total variation between X_t given X_0 and the prior that a final time may leave."""


class FiniteProcess(Process):
    """A Markov process on 0..num_states - 1 whose data are 0..max_count.

    The statistic that its reverse steps and rates are linear in is X_0 itself, one-hot.

    Args:
        max_count: largest data level.
        num_states: S.

    Raises:
        ValueError: max_count is no whole number in 1..num_states - 1.
    """

    prediction: ClassVar[type[CategoricalPrediction]] = CategoricalPrediction
    tables: ClassVar[bool] = True
    """Whether matrices [S, S] are made, one for every time of a batch."""

    def __init__(self, max_count: int, num_states: int) -> None:
        check_max_count(max_count)
        ensure(max_count < num_states, f"the process has {num_states} states: too few for counts 0..{max_count}")
        self.max_count = max_count
        self.num_states = num_states

    @abstractmethod
    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """P_st for times [b] and [b]: float64 [b, S, S], rows summing to 1."""

    def rows(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[x, .], float64 [B, ..., S], for states x, int64 [B, ...], and times [1] or [B]: of `transition`."""
        matrix = self.transition(s, t)
        return matrix[_own(matrix, x), x]

    def columns(self, x: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """P_st[., x], float64 [B, ..., S], as for `rows`."""
        matrix = self.transition(s, t).mT
        return matrix[_own(matrix, x), x]

    def propagate(self, weights: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """sum_i weights_i P_st[i, .], float64 [B, ..., S], for weights [B, ..., S] and times as for `rows`.

        The law at t of a process that has the law `weights` at s [Austin 2021, eq. 3].
        """
        return torch.einsum("b...i,bij->b...j", weights, self.transition(s, t))

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """X_t | X_0 by inversion of a row of P_0t, integers of x0's shape [B, ...] [Austin 2021, eq. 3]."""
        u = uniform(tuple(x0.shape), generator, x0.device)
        return self._draw_rows(x0.long(), per_sample_time(t, x0), u).to(self.dtype)

    def _draw_rows(self, x: Tensor, t: Tensor, u: Tensor) -> Tensor:
        """The levels at which the sums of rows P_0t[x, .] exceed u: int64 of x's and u's shape [B, ...], t [1] or [B].

        Ours (tests/random/test_counts.py), see `invert_rows`.
        """
        sums = cumulative(self.transition(torch.zeros_like(t), t))
        return invert_rows(sums, _own(sums, x) * self.num_states + x, u)

    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Observation]:
        """X_t, and X_0 with it as the target."""
        xt = self.sample(x0, t, generator)
        return xt, Observation(self, x0, xt)

    def pmf(self, x0: Tensor, t: Time) -> Tensor:
        """P_0t[x0, .], float64 [B, ..., S] [Austin 2021, eq. 3]."""
        t = per_sample_time(t, x0)
        return self.rows(x0.long(), torch.zeros_like(t), t)

    def log_likelihood(self, xt: Tensor, t: Time) -> Tensor:
        """log P_0t[o, X_t] of every data level o, float64 [B, max_count + 1, ...] [Austin 2021, eq. 3].

        What is impossible is finite, near -690.
        """
        t = per_sample_time(t, xt)
        columns = self.columns(xt.long(), torch.zeros_like(t), t)[..., : self.max_count + 1]
        return columns.clamp(min=TINY).log().movedim(-1, 1)

    def bridge(self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None) -> Tensor:
        """X_s | X_0, X_t, of x0's shape [B, ...], from `bridge_pmf`; an impossible pair gives an X_s that X_0 can
        reach.
        """
        return categorical(self.bridge_pmf(x0, xt, s, t), generator).to(self.dtype)

    def bridge_pmf(self, x0: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """P(X_s = . | X_0, X_t), float64 [B, ..., S] [Austin 2021, eq. 3]."""
        s, t = per_sample_time(s, x0), per_sample_time(t, x0)
        first = self.rows(x0.long(), torch.zeros_like(s), s)
        joint = first * self.columns(xt.long(), s, t)
        mass = joint.sum(-1, keepdim=True)
        return torch.where(mass > 0, joint / mass.clamp(min=TINY), first)

    def step_divergence(self, expected: Tensor, x0: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """KL(P(X_s | X_0, X_t) || sum_o expected_o P(X_s | o, X_t)), float64 of x0's shape [Austin 2021, eq. 1].

        Args:
            expected: P(X_0 = . | X_t), [B, max_count + 1, ...].
        """
        model, exact = self.step_pmf(expected, xt, s, t), self.bridge_pmf(x0, xt, s, t)
        return (torch.special.xlogy(exact, exact) - torch.special.xlogy(exact, model.clamp(min=TINY))).sum(-1)

    def step_pmf(self, expected: Tensor, xt: Tensor, s: Time, t: Time) -> Tensor:
        """sum_o expected_o P(X_s = . | o, X_t), float64 [B, ..., S], for `expected` as in `step_divergence`.

        The model's step [Austin 2021, eq. 4].
        """
        s, t = per_sample_time(s, xt), per_sample_time(t, xt)
        return self.relative(expected, xt, t, s) * self.columns(xt.long(), s, t)

    def relative(self, expected: Tensor, xt: Tensor, t: Time, other: Time) -> Tensor:
        """P(X_other,i = ., the rest of X_t) / P(X_t), float64 [B, ..., S], for `expected` as in `step_divergence`.

        That is sum_o expected_o P_0u[o, .] / P_0t[o, X_t], u = other, if each o that leads there leads to X_t as well.
        At u = t it is the ratio in the reverse rates [Campbell 2022, Proposition 1]; elsewhere it is ours
        (tests/verification/test_guided_processes.py, test_particle_laws.py).
        """
        other, t = per_sample_time(other, xt), per_sample_time(t, xt)
        weights, seen = expected.double().movedim(1, -1), self.columns(xt.long(), torch.zeros_like(t), t)
        ratio = torch.where(seen > 0, F.pad(weights, (0, self.num_states - weights.shape[-1])), 0.0)
        return self.propagate(ratio / seen.clamp(min=TINY), torch.zeros_like(other), other)

    def prior_pmf(self, t: Time) -> Tensor:
        """The distribution sampling starts from: X_t's, averaged over all data levels. float64 [S], on t's device.

        Ours (tests/diffusion/processes/test_forgetting.py).
        """
        t = torch.as_tensor(t, dtype=torch.float64).reshape(1)
        data = torch.arange(self.num_states, device=t.device) <= self.max_count
        return self.propagate(data.double()[None] / (self.max_count + 1), torch.zeros_like(t), t)[0]

    def prior(self, shape: Shape, t: Time, generator: RandomSource = None, mean: Tensor | None = None) -> Tensor:
        """Independent draws of `prior_pmf`, states of `shape` [B, ...]; the data's mean is not needed."""
        sums = cumulative(self.prior_pmf(t))
        return torch.searchsorted(sums, uniform(shape, generator, sums.device), right=True).to(self.dtype)

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """KL(P_0t[x0, .] || prior_pmf), float64 of x0's shape [B, ...]: the prior's term of [Austin 2021, eq. 1]."""
        return self._against_prior(time_on(t, x0.device))[0][x0.long()]

    def _against_prior(self, t: Time) -> tuple[Tensor, Tensor]:
        """KL and total variation between P_0t[o, .] of every level o and the prior, float64 [max_count + 1] each.

        At a scalar time t; the KL is the prior's term of [Austin 2021, eq. 1].
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
        _, distance = self._against_prior(t)
        worst = int(distance.argmax())
        if distance[worst] > _REMEMBERED:
            raise ValueError(
                f"the data never reach the prior: from count {worst} X_t at the final time {float(t):g} is still "
                f"{float(distance[worst]):.2f} (total variation, at most {_REMEMBERED} is allowed) away from the "
                "average over all counts; a later final time, larger rates or a generator with one closed class "
                "of states is needed"
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
        """Q, float64 [S, S], rows summing to 0."""

    @abstractmethod
    def transition_after(self, tau: Tensor) -> Tensor:
        """exp(Q tau) for tau [b]: float64 [b, S, S]."""

    def transition(self, s: Tensor, t: Tensor) -> Tensor:
        """P_st = exp(Q (t - s)) for times [b] and [b]: float64 [b, S, S], see `transition_after`."""
        return self.transition_after(t - s)

    def _rates_into(self, x: Tensor) -> Tensor:
        """Q[., x] without the diagonal, float64 [B, ..., S] for x [B, ...]: forward jumps into x, which reverse jumps
        undo.
        """
        return _without_stay(self.generator().to(x.device).T)[x]

    def _rates_out(self, x: Tensor) -> Tensor:
        """Q[x, .] without the diagonal, float64 [B, ..., S] for x [B, ...]."""
        return _without_stay(self.generator().to(x.device))[x]

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Reverse rates into every state, averaged over `expected` = P(X_0 = . | X_t), [B, max_count + 1, ...].

        rate(m -> j) = Q[j, m] sum_o w_o P_0t[o, j], w_o = P(o | m) / P_0t[o, m] [Campbell 2022, Proposition 1]. Float64
        [B, S, ...] per unit of t.
        """
        return (self._rates_into(xt.long()) * self.relative(expected, xt, t, t)).movedim(-1, 1)

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Reverse rates into every state given X_0, float64 [B, S, ...] [Santos 2023, eq. 71]."""
        t = per_sample_time(t, xt)
        row = self.rows(x0.long(), torch.zeros_like(t), t)
        seen = row.gather(-1, xt.long()[..., None])
        ratio = torch.where(seen > 0, row / seen.clamp(min=TINY), 0.0)
        return (self._rates_into(xt.long()) * ratio).movedim(-1, 1)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Forward rates into every state, float64 [B, S, ...]."""
        return self._rates_out(xt.long()).movedim(-1, 1)

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """From X_t [B, ...] to every state, int64 [B, S, ...]: j - X_t, by which the types of the class are named."""
        return per_row(torch.arange(self.num_states, device=xt.device), xt) - xt.long()[:, None]

    forward_jumps = reverse_jumps


def _own(matrix: Tensor, x: Tensor) -> Tensor:
    """Which matrix [b, S, S] each of x [B, ...] uses, broadcastable to x; b is 1 or B."""
    return per_row(torch.arange(len(matrix), device=x.device), x)


def _without_stay(matrix: Tensor) -> Tensor:
    """The matrix [S, S] with zeros on its diagonal."""
    return matrix - torch.diag(matrix.diagonal())
