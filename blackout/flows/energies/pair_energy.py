"""Pair energies of spins, their maximum-likelihood couplings, and errors of the couplings.

References: Ou et al. 2025, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.errors import ensure, refuse
from blackout.flows.targets import all_states
from blackout.flows.targets.couplings import SpinPairs
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.protocols import Source

# (J [d, d], h [d]) -> a scalar
PairLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

MAX_LIKELIHOOD_STATES = 1 << 18  # above it the pseudo-likelihood is maximised instead
MAX_COUPLING = 5.0  # where a sample that lacks some states would make it infinite
TOLERANCE = 1e-9  # of the optimiser of the couplings


@component("energy", "target")
class PairEnergy(SpinPairs, LearnedEnergy):
    """-E = s' J s + h . s of spins s = 2x - 1, J symmetric with a zero diagonal.

    References: Ou et al. 2025, section 4.2.

    Args:
        sites: number of spins.
        l1: weight of the penalty l1 sum_ij |J_ij|.
        learn_field: whether h is learned too.

    Raises:
        ValueError: fewer than two spins, or a negative weight.
    """

    def __init__(self, sites: int, l1: float = 0.0, learn_field: bool = False) -> None:
        super().__init__(2, [sites])
        ensure(sites >= 2, f"a pair energy needs at least two spins, not {sites}")
        ensure(l1 >= 0, f"energy.l1 must be at least 0, not {l1}")
        self.l1 = l1
        self.learn_field = learn_field
        # J above its diagonal, row by row
        self.upper = nn.Parameter(torch.zeros(sites * (sites - 1) // 2))
        zeros = torch.zeros(sites)
        self.field = nn.Parameter(zeros) if learn_field else nn.Buffer(zeros, persistent=False)

    @property
    def couplings(self) -> Tensor:
        """J, [d, d]."""
        rows, columns = torch.triu_indices(self.sites, self.sites, 1, device=self.upper.device)
        matrix = self.upper.new_zeros(self.sites, self.sites)
        matrix = matrix.index_put((rows, columns), self.upper)
        return matrix + matrix.T

    @property
    def pair(self) -> Tensor:  # type: ignore[override]
        """P = 2 J, [d, d]; see `SpinPairs`."""
        return 2 * self.couplings

    def energy(self, x: Tensor) -> Tensor:
        """Return -s' J s - h . s, [...] of states [..., d].

        References: Ou et al. 2025, section 4.2.
        """
        s = self._spins(x)
        return -((s @ self.couplings) * s).sum(-1) - s @ self.field

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Draw every site in turn, [B, d]; local fields are updated when a spin flips.

        References: this project; checked in tests/flows/energies/test_gradients.py.
        """
        with torch.no_grad():
            s = self._spins(x).double()
            pair = self.pair.double()
            local_field = s @ pair + self.field
            for site in range(self.sites):
                probability_of_down = torch.sigmoid(-2 * t * local_field[:, site])
                spin = 2.0 * (probability_of_down <= uniforms[:, site]) - 1
                local_field.addcmul_((spin - s[:, site])[:, None], pair[site])
                s[:, site] = spin
            return (s > 0).to(x.dtype)

    def penalty(self) -> Tensor:
        """Return l1 sum_ij |J_ij|, a scalar.

        References: Ou et al. 2025, appendix E.2.
        """
        return self.l1 * 2 * self.upper.abs().sum()

    def couplings_to_save(self) -> dict[str, np.ndarray]:
        """Return `couplings` J [d, d] and `field` h [d], float32, of -E = s' J s + h . s."""
        return {
            "couplings": self.couplings.detach().cpu().numpy(),
            "field": self.field.detach().cpu().numpy(),
        }

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return its settings; the couplings are saved as tensors."""
        return {
            "_target_": "blackout.flows.energies.PairEnergy",
            "sites": self.sites,
            "l1": self.l1,
            "learn_field": self.learn_field,
        }


def fit_couplings(energy: PairEnergy, x: Tensor, *, exact: bool = True) -> bool:
    """Set couplings and fields of a pair energy to those of the largest penalised likelihood.

    Where there are too many states to sum over, half the pseudo-likelihood takes its place, whose
    couplings agree to first order where they are weak. Both are concave.

    References: Besag 1975.

    Args:
        energy: is changed.
        x: data, integers [n, d].
        exact: False for the pseudo-likelihood, whatever the number of states.

    Returns:
        Whether it is the likelihood that was maximised.
    """
    d = energy.sites
    num_pairs = len(energy.upper)
    s = 2 * x.cpu().double() - 1
    exact = exact and 2**d <= MAX_LIKELIHOOD_STATES

    # 1. The pseudo-likelihood first; its maximum is where the likelihood starts.
    losses = [_pseudo_likelihood_loss(s)]
    if exact:
        losses.append(_likelihood_loss(s))

    # 2. Variables: positive and negative parts of the couplings, so that the penalty is smooth, and
    #    fields.
    variables = np.zeros(2 * num_pairs + d)
    coupling_bounds = [(0.0, MAX_COUPLING)] * (2 * num_pairs)
    field_bound = (-MAX_COUPLING, MAX_COUPLING) if energy.learn_field else (0, 0)
    bounds = coupling_bounds + [field_bound] * d
    for loss in losses:
        objective = _penalised_objective(loss, d, energy.l1)
        result = minimize(
            objective,
            variables,
            jac=True,
            bounds=bounds,
            method="L-BFGS-B",
            tol=TOLERANCE,
        )
        variables = result.x
    positive, negative, field = np.split(variables, [num_pairs, 2 * num_pairs])
    with torch.no_grad():
        energy.upper.copy_(torch.from_numpy(positive - negative))
        energy.field.copy_(torch.from_numpy(field))
    return exact


def _pseudo_likelihood_loss(s: Tensor) -> PairLoss:
    """Return minus half the mean log pseudo-likelihood of spins [n, d].

    References: Besag 1975.
    """

    def loss(J: Tensor, h: Tensor) -> Tensor:
        return F.softplus(-2 * s * (2 * s @ J + h)).mean(0).sum() / 2

    return loss


def _likelihood_loss(s: Tensor) -> PairLoss:
    """Return minus the mean log-likelihood of spins [n, d], by a sum over all states."""
    moments = s.T @ s / len(s)
    mean = s.mean(0)
    states = 2 * all_states(2, s.shape[1]).double() - 1

    def loss(J: Tensor, h: Tensor) -> Tensor:
        log_z = torch.logsumexp(((states @ J) * states).sum(-1) + states @ h, 0)
        return log_z - (J * moments).sum() - h @ mean

    return loss


def _penalised_objective(
    loss: PairLoss,
    d: int,
    l1: float,
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return a loss plus the penalty, with its gradient, of the variables of `fit_couplings`."""
    num_pairs = d * (d - 1) // 2
    rows, columns = torch.triu_indices(d, d, 1)

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        variables = torch.tensor(values, requires_grad=True)
        positive, negative, h = variables.split([num_pairs, num_pairs, d])
        J = h.new_zeros(d, d).index_put((rows, columns), positive - negative)
        value = loss(J + J.T, h) + l1 * 2 * (positive + negative).sum()
        (gradient,) = torch.autograd.grad(value, variables)
        return float(value.detach()), gradient.numpy()

    return objective


def score_couplings(energy: PairEnergy, source: Source) -> dict[str, float]:
    """Compare couplings with the true ones.

    `neg_log_rmse` is -log RMSE over all d^2 entries, `neg_log_rmse_zero_couplings` that of J = 0.
    `coupling_slope` is the slope of the least-squares line through 0 on the true couplings, or on
    those of the pseudo-likelihood where the true ones are unknown: below 1 they are too weak.

    References: Ou et al. 2025, table 4.

    Raises:
        UserError: the true target has another number of sites than the energy.
    """
    learned = energy.couplings.detach().cpu().double()
    true_pair: Tensor | None = getattr(getattr(source, "truth", None), "pair", None)
    reference: Tensor | None = None
    values = {}
    if true_pair is not None:
        reference = true_pair.cpu().double() / 2
        refuse(
            reference.shape != learned.shape,
            f"dataset: its target has {len(reference)} sites, but the energy has {len(learned)}; "
            "they must be the same number",
        )
        values["neg_log_rmse"] = _neg_log_rmse(learned, reference)
        zeros = torch.zeros_like(learned)
        values["neg_log_rmse_zero_couplings"] = _neg_log_rmse(zeros, reference)
    elif isinstance(source, CountData):
        fitted = PairEnergy(energy.sites, learn_field=energy.learn_field)
        fit_couplings(fitted, source.train[:].flatten(1), exact=False)
        reference = fitted.couplings.detach().double()
    if reference is not None and bool(reference.any()):
        slope = (learned * reference).sum() / reference.square().sum()
        values["coupling_slope"] = float(slope)
    return values


def _neg_log_rmse(couplings: Tensor, reference: Tensor) -> float:
    """Return -log of the root mean squared error of couplings [d, d]."""
    return float(-(reference - couplings).square().mean().sqrt().log())
