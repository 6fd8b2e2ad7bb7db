"""The path from the uniform distribution to the target, p_t proportional to rho^t eta^(1 - t).

Rates carry this path if they satisfy the Kolmogorov forward equation. By local equivariance its
residual at a state x needs no evaluation at other states: with the net rates
G(tau, i | x) = R(tau, i | x) - R(x_i, i | y) p_t(y) / p_t(x), y = Swap(x, i, tau), the rates out
of x are [G]_+ and the rates from its neighbours into x are [-G]_+. Importance weights are the
integral of the residual along a chain. At time t the path is the target at temperature 1 / t.

References: Ou et al. 2025, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.flows.targets import Target, exact_values
from blackout.flows.weights import estimate_means, weighted_mean
from blackout.representation import format_fields

CHANGE_PROBABILITY = 0.1  # that a site differs from the centre at t = 0 of a `PathFromState`


@dataclass
class States:
    """A batch of states and their log-densities; log-ratios are evaluated on demand and kept.

    Args:
        x: integers [B, d].
        log_density: log rho, float64 [B].
        target: of all rows, or with a target for each row.
        net_rates: G at some time, float64 [B, d, S], where a step has left it for the next one.
        cached_log_ratios: float64 [B, d, S], where they have been evaluated.
    """

    x: Tensor
    log_density: Tensor
    target: Target
    net_rates: Tensor | None = None
    cached_log_ratios: Tensor | None = None

    __repr__ = format_fields

    @classmethod
    def evaluate(cls, target: Target, x: Tensor) -> States:
        """Evaluate the target at states [B, d]."""
        return cls(x, target.log_density(x).double(), target)

    @classmethod
    def initial(cls, target: Target, uniforms: Tensor) -> States:
        """Draw states at t = 0 by uniforms [B, d]."""
        return cls.evaluate(target, target.sample_initial(uniforms))

    @property
    def log_ratios(self) -> Tensor:
        """Log-ratios of all neighbours, float64 [B, d, S]; see `Target.log_ratios`.

        References: Ou et al. 2025, appendix C.2.
        """
        if self.cached_log_ratios is None:
            self.cached_log_ratios = self.target.log_ratios(self.x).double()
        return self.cached_log_ratios

    @property
    def dlogp_dt(self) -> Tensor:
        """The derivative f = d log p~_t / dt = log rho - log eta, [B]; the same at all times.

        References: Ou et al. 2025, eq. 8, of this path.
        """
        return self.log_density + self.target.log_num_states

    def select(self, rows: Tensor) -> States:
        """Return some rows, by index, int64 [b], or mask, bool [B]."""
        net_rates = None if self.net_rates is None else self.net_rates[rows]
        log_ratios = None if self.cached_log_ratios is None else self.cached_log_ratios[rows]
        return States(
            self.x[rows],
            self.log_density[rows],
            self.target.select(rows),
            net_rates,
            log_ratios,
        )

    def replace(self, rows: Tensor, states: States) -> States:
        """Return a copy with other states at these rows, int64 [b] or bool [B], without G."""
        index = torch.nonzero(rows).flatten() if rows.dtype == torch.bool else rows
        x = self.x.index_copy(0, index, states.x)
        log_density = self.log_density.index_copy(0, index, states.log_density)
        log_ratios = None
        if self.cached_log_ratios is not None:
            log_ratios = self.cached_log_ratios.index_copy(0, index, states.log_ratios)
        return States(x, log_density, self.target, None, log_ratios)


class PathFromState(Target):
    """A target whose path starts near a given state instead of the uniform distribution.

    p_t is proportional to rho^t b^(1 - t), b a product distribution around the state.

    References: this project; checked in tests/flows/test_annealing.py.

    Args:
        inner: the target.
        centre: the state, uint8 [d].
    """

    log_num_states = 0.0  # b is normalised
    log_initial: Tensor

    def __init__(self, inner: Target, centre: Tensor) -> None:
        super().__init__(inner.levels, inner.shape)
        self.inner = inner
        self.centre = centre
        log_changed = math.log(CHANGE_PROBABILITY / (self.levels - 1))
        log_same = math.log1p(-CHANGE_PROBABILITY)
        is_centre = F.one_hot(centre.long(), self.levels).double()
        self.log_initial = log_changed + is_centre * (log_same - log_changed)

    def sample_initial(self, uniforms: Tensor) -> Tensor:
        """Draw states from b by uniforms [B, d]: uint8 [B, d]."""
        # below the threshold the quotient is uniform again: which other value
        shift = (uniforms / CHANGE_PROBABILITY * (self.levels - 1)).long() + 1
        changed = (self.centre + shift) % self.levels
        return torch.where(uniforms < CHANGE_PROBABILITY, changed, self.centre).to(torch.uint8)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log rho - log b of states [B, d], the derivative of log p~_t: float64 [B]."""
        log_b = (F.one_hot(x.long(), self.levels) * self.log_initial).sum((-1, -2))
        return self.inner.log_density(x).double() - log_b

    def conditional_logits(self, x: Tensor, sites: Tensor, t: float) -> Tensor:
        """Return log p_t(x_i | other sites) + constant of rho^t b^(1 - t): float64 [B, n, S]."""
        return self.inner.conditional_logits(x, sites, t) + (1 - t) * self.log_initial[sites]

    def pairwise_terms(self) -> tuple[Tensor, Tensor] | None:
        """Return (w, f) of log rho - log b; see `Target.pairwise_terms`."""
        terms = self.inner.pairwise_terms()
        return None if terms is None else (terms[0], terms[1] - self.log_initial)


def outgoing_rates(net_rates: Tensor) -> Tensor:
    """Return the rates R(tau, i | x) = [G(tau, i | x)]_+, [B, d, S].

    References: Ou et al. 2025, section 3.2.
    """
    return net_rates.clamp(min=0)


def incoming_rates(net_rates: Tensor) -> Tensor:
    """Return the rates R(x_i, i | Swap(x, i, tau)) = [-G(tau, i | x)]_+, [B, d, S].

    References: Ou et al. 2025, eqs. 9 and 10.
    """
    return (-net_rates).clamp(min=0)


def stein_control_variate(net_rates: Tensor, log_ratios: Tensor) -> Tensor:
    """Return g = sum_y R(x, y) p_t(y) / p_t(x), whose mean under p_t is 0 for any rates: [B].

    References: Ou et al. 2025, eq. 17, with the rates of eq. 10.

    Args:
        net_rates: G, [B, d, S].
        log_ratios: log p_t(y) / p_t(x), [B, d, S].
    """
    inflow = incoming_rates(net_rates) * log_ratios.exp()
    return (inflow - outgoing_rates(net_rates)).sum((-1, -2))


def forward_residual(dlogp_dt: Tensor, net_rates: Tensor, log_ratios: Tensor) -> Tensor:
    """Return the residual xi = f - g of the Kolmogorov forward equation, [B].

    It is constant in x, and equal to d log Z_t / dt, if and only if the rates carry p_t.

    References: Ou et al. 2025, eq. 8.

    Args:
        dlogp_dt: f, [B].
        net_rates: G, [B, d, S].
        log_ratios: log p_t(y) / p_t(x), [B, d, S].
    """
    return dlogp_dt - stein_control_variate(net_rates, log_ratios)


def integrated_residual(
    dlogp_dt: Tensor,
    net_rates: Tensor,
    log_ratios: Tensor,
    start: Tensor,
    end: Tensor,
) -> Tensor:
    """Return the integral of xi over [start, end], float64 [B], while x and G stay the same.

    References: this project; checked in tests/verification/test_flow_claims.py.

    Args:
        dlogp_dt: f, [B].
        net_rates: G, [B, d, S].
        log_ratios: those of the target, at t = 1, [B, d, S]; at time t they are t times these.
        start: times [B].
        end: times [B].
    """
    length = end - start
    growth = integrate_exponential(log_ratios, start[:, None, None], length[:, None, None])
    outflow = outgoing_rates(net_rates).sum((-1, -2))
    inflow = (incoming_rates(net_rates) * growth).sum((-1, -2))
    return (dlogp_dt + outflow) * length - inflow


def integrate_exponential(exponent: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Return the integral of e^(exponent s) over s in [start, start + length]; shapes broadcast.

    References: this project; checked in tests/verification/test_flow_claims.py.
    """
    nonzero = torch.where(exponent == 0, 1.0, exponent)
    integral = (start * nonzero).exp() * torch.expm1(length * nonzero) / nonzero
    return torch.where(exponent == 0, length, integral)


def estimate_along_path(
    target: Target,
    times: list[float],
    observables: Tensor,
    groups: Tensor | None = None,
    log_z_errors: list[float] | None = None,
) -> list[dict[str, float]]:
    """Estimate properties of rho^t, the target at temperature 1 / t, at every time t > 0.

    A row has `t`, `ess`, `log_z`, `free_energy` = -log Z(t) / t, the mean `energy` -log rho,
    `heat_capacity` = t^2 Var(energy), every statistic of the target and d times its variance,
    `<statistic>_susceptibility`, each with `_error`; `log_z_exact` and `energy_exact` where known.

    References: this project; checked in tests/flows/test_weights.py.

    Args:
        target: the distribution.
        times: t_0, ..., t_K.
        observables: of all chains at these times, [N, K + 1, 2 + q]; see `Paths.observables`.
        groups: int64 [N], chains that were resampled together; None for none.
        log_z_errors: at these times, where the states have no weights of their own.
    """
    no_states = torch.zeros(1, target.sites, dtype=torch.uint8)
    names = ["energy", *target.statistics(no_states)]
    rows = []
    for k, t in enumerate(times):
        if t == 0:
            continue
        # 1. log Z of rho^t, whose path starts from a distribution with Z = 1.
        w = observables[:, k, 0].double()
        quantities = dict(zip(names, observables[:, k, 1:].double().unbind(-1), strict=True))
        log_z_error = None if log_z_errors is None else log_z_errors[k]
        values = estimate_means(quantities, w, groups, log_z_error)
        log_z = values["log_z"] + (1 - t) * float(target.log_num_states)
        row = {
            "t": t,
            "ess": values["ess"],
            "log_z": log_z,
            "log_z_error": values["log_z_error"],
            "free_energy": -log_z / t,
            "free_energy_error": values["log_z_error"] / t,
        }

        # 2. Means and variances.
        for name, quantity in quantities.items():
            mean = values[f"mean_{name}"]
            row[name] = mean
            row[f"{name}_error"] = values[f"mean_{name}_error"]
            variance, variance_error = weighted_mean((quantity - mean).square(), w, groups)
            if name == "energy":
                response = "heat_capacity"
                scale: float = t**2
            else:
                response = f"{name}_susceptibility"
                scale = target.sites
            row[response] = scale * variance
            row[f"{response}_error"] = scale * variance_error

        # 3. Exact values.
        exact = exact_values(target, t) or {}
        if "log_z" in exact:
            row["log_z_exact"] = exact["log_z"]
        if "mean_energy" in exact:
            row["energy_exact"] = exact["mean_energy"]
        rows.append(row)
    return rows
