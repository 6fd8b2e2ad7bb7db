"""The path of laws from uniform noise to the target, p_t ~ rho^t eta^(1 - t) with eta uniform [Ou 2025, section 3], the
forward equation's residual at its states, and the Stein control variate.

Rates carry this path if they satisfy the Kolmogorov forward equation. Its residual at a state needs no evaluation
elsewhere: rates out of x are [G]_+, those into x from its neighbours [-G]_+, by local equivariance. The integral of the
residual along a chain is what weights are made of. On its way the path is the law at every higher temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.flows.targets import Target, exact_values
from blackout.flows.weights import estimated, weighted_mean

_STRAY = 0.1
"""Probability that a site starts elsewhere than in the state that its path begins about."""


@dataclass
class States:
    """States, and what the target says about each of them; evaluated once, and ratios only if they are asked for.

    Args:
        x: integers [B, d].
        log_density: log rho, float64 [B].
        target: the law, or the laws of the rows.
        scores: G at some time, float64 [B, d, S], where a step has left it for the next one.
        known: the ratios, where they have been evaluated.
    """

    x: Tensor
    log_density: Tensor
    target: Target
    scores: Tensor | None = None
    known: Tensor | None = None

    @classmethod
    def of(cls, target: Target, x: Tensor) -> States:
        """Evaluate the target at states [B, d]."""
        return cls(x, target.log_density(x).double(), target)

    @classmethod
    def uniform(cls, target: Target, uniforms: Tensor) -> States:
        """States drawn from eta by uniforms [B, d]."""
        return cls.of(target, target.uniform(uniforms))

    @property
    def ratios(self) -> Tensor:
        """log rho of every neighbour relative to that of the state, float64 [B, d, S]; evaluated once.

        [Ou 2025, appendix C.2].
        """
        if self.known is None:
            self.known = self.target.log_ratios(self.x).double()
        return self.known

    @property
    def dlogp_dt(self) -> Tensor:
        """f = d log p~_t / dt = log rho + log of the number of states, the same at all times; [B].

        [Ou 2025, eq. 8], of this path.
        """
        return self.log_density + self.target.log_volume

    def rows(self, which: Tensor) -> States:
        """Some of them, by number, int64 [b], or mask, bool [B]."""
        scores, known = (None if part is None else part[which] for part in (self.scores, self.known))
        return States(self.x[which], self.log_density[which], self.target.rows(which), scores, known)

    def updated(self, which: Tensor, others: States) -> States:
        """A copy with other states at these rows, int64 [b] or bool [B], and without scores."""
        index = torch.nonzero(which).flatten() if which.dtype == torch.bool else which
        pairs = ((self.x, others.x), (self.log_density, others.log_density))
        x, log_density = (mine.index_copy(0, index, theirs) for mine, theirs in pairs)
        known = None if self.known is None else self.known.index_copy(0, index, others.ratios)
        return States(x, log_density, self.target, None, known)


class Near(Target):
    """A law whose path begins in a product law b about a state in place of noise: p_t ~ rho^t b^(1 - t). Ours
    (tests/flows/test_annealing.py).

    Args:
        inner: the law.
        centre: the state, uint8 [d].
    """

    log_volume = 0.0
    log_start: Tensor

    def __init__(self, inner: Target, centre: Tensor) -> None:
        """log b of the state and of those beside it, [d, S]: see the class."""
        super().__init__(inner.levels, inner.shape)
        self.inner, self.centre = inner, centre
        away = math.log(_STRAY / (self.levels - 1))
        self.log_start = away + F.one_hot(centre.long(), self.levels).double() * (math.log1p(-_STRAY) - away)

    def uniform(self, uniforms: Tensor) -> Tensor:
        """States drawn from b of the class by uniforms [B, d]: uint8 [B, d]."""
        other = (uniforms / _STRAY * (self.levels - 1)).long() + 1
        return torch.where(uniforms < _STRAY, (self.centre + other) % self.levels, self.centre).to(torch.uint8)

    def log_density(self, x: Tensor) -> Tensor:
        """log rho - log b of states [B, d], what the path of the class gains along its way: float64 [B]."""
        start = (F.one_hot(x.long(), self.levels) * self.log_start).sum((-1, -2))
        return self.inner.log_density(x).double() - start

    def conditional(self, x: Tensor, where: Tensor, t: float) -> Tensor:
        """log p_t(. | x without i) of rho^t b^(1 - t) up to a constant, float64 [B, n, S]: see `Target.conditional`."""
        return self.inner.conditional(x, where, t) + (1 - t) * self.log_start[where]

    def pairs(self) -> tuple[Tensor, Tensor] | None:
        """(w [d, d], f [d, S]) of log rho - log b: see `Target.pairs`."""
        pairs = self.inner.pairs()
        return None if pairs is None else (pairs[0], pairs[1] - self.log_start)


def outgoing(scores: Tensor) -> Tensor:
    """Rates R(tau, i | x) = [G(tau, i | x)]_+, [B, d, S] [Ou 2025, section 3.2]."""
    return scores.clamp(min=0)


def incoming(scores: Tensor) -> Tensor:
    """Rates R(x_i, i | Swap(x, i, tau)) = [-G(tau, i | x)]_+, [B, d, S] [Ou 2025, eqs. 9 and 10]."""
    return (-scores).clamp(min=0)


def stein(scores: Tensor, log_ratios: Tensor) -> Tensor:
    """g = sum_y R(x, y) p(y) / p(x), the Stein control variate: its mean under p_t is 0 for any rates.

    [Ou 2025, eq. 17], with the rates of eq. 10.

    Args:
        scores: G, [B, d, S].
        log_ratios: log p_t(y) / p_t(x), of that shape.

    Returns:
        [B].
    """
    return (incoming(scores) * log_ratios.exp() - outgoing(scores)).sum((-1, -2))


def residual(dlogp_dt: Tensor, scores: Tensor, log_ratios: Tensor) -> Tensor:
    """xi = f - g; constant in x, and equal to d log Z_t / dt, if and only if the rates carry p_t [Ou 2025, eq. 8].

    Args:
        dlogp_dt: f, [B].
        scores: G, [B, d, S].
        log_ratios: log p_t(y) / p_t(x), of that shape.

    Returns:
        [B].
    """
    return dlogp_dt - stein(scores, log_ratios)


def integrated_residual(dlogp_dt: Tensor, scores: Tensor, ratios: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The integral of xi over [a, b] while neither state nor G changes and log-ratios grow as t Delta.

    Ours; the laws of flows compare it with quadrature.

    Args:
        dlogp_dt: f, [B].
        scores: G, [B, d, S].
        ratios: Delta, the log-ratios at t = 1, of that shape.
        a, b: times [B].

    Returns:
        [B], float64.
    """
    length = b - a
    growth = exponential_integral(ratios, a[:, None, None], length[:, None, None])
    return (dlogp_dt + outgoing(scores).sum((-1, -2))) * length - (incoming(scores) * growth).sum((-1, -2))


def exponential_integral(ratios: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """The integral of e^(s Delta) over [start, start + length]; `length` itself where Delta is 0.

    Of `integrated_residual`; shapes broadcast, of ratios [B, d, S] and times [B, 1, 1] to [B, d, S].
    """
    safe = torch.where(ratios == 0, 1.0, ratios)
    return torch.where(ratios == 0, length, (start * safe).exp() * torch.expm1(length * safe) / safe)


def along_path(
    target: Target, times: list[float], at: Tensor, groups: Tensor | None = None, errors: list[float] | None = None
) -> list[dict[str, float]]:
    """What the law is at every time t > 0 of the path: that of rho^t, the target at 1 / t times its temperature.

    Rows of `t`, `ess`, `log_z` and `free_energy` = -log Z(t) / t, the mean `energy` -log rho and `heat_capacity` t^2
    Var(energy), every statistic of the target and d times its variance (`susceptibility_of_...`), each with `_error`,
    and `_exact` where log Z and energy are known. Ours (tests/flows/test_weights.py compares rows with enumeration).

    Args:
        target: the law.
        times: t_0, ..., t_K.
        at: of all chains at these times, [N, K + 1, 2 + q]: see `Paths.observed`.
        groups: int64 [N], which chains were resampled together; None where none were.
        errors: of log Z at these times, where the states have no weights of their own.
    """
    names, rows = ["energy", *target.statistics(torch.zeros(1, target.sites, dtype=torch.uint8))], []
    for k, t in enumerate(times):
        if not t:
            continue
        w, values = at[:, k, 0].double(), dict(zip(names, at[:, k, 1:].double().unbind(-1), strict=True))
        found, row = estimated(values, w, groups, None if errors is None else errors[k]), {"t": t}
        log_z = found["log_z"] + (1 - t) * float(target.log_volume)
        row |= {"ess": found["ess"], "log_z": log_z, "log_z_error": found["log_z_error"]}
        row |= {"free_energy": -log_z / t, "free_energy_error": found["log_z_error"] / t}
        for name, value in values.items():
            row |= {end: found[f"mean_{end}"] for end in (name, f"{name}_error")}
            spread = weighted_mean((value - found[f"mean_{name}"]).square(), w, groups)
            scale, of = (t**2, "heat_capacity") if name == "energy" else (target.sites, f"susceptibility_of_{name}")
            row |= {of: scale * spread[0], f"{of}_error": scale * spread[1]}
        known = exact_values(target, t) or {}
        exact = {"log_z": "log_z_exact", "mean_energy": "energy_exact"}
        row |= {exact[name]: known[name] for name in exact if name in known}
        rows.append(row)
    return rows
