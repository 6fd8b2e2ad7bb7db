"""The model: an energy that learns from data (couplings by likelihood too), and a flow that learns the energy, in one.

Energies of pairs have a start from their data: the couplings of greatest likelihood, or of pseudo-likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor, nn

from blackout.component import component
from blackout.data import CountData
from blackout.distributed import world_size
from blackout.errors import ensure, refuse
from blackout.flows.energies.negative import Discrepancy, FlowSamples, NegativeSampler
from blackout.flows.losses import EstimatedPartition
from blackout.flows.model import ChainSampler
from blackout.flows.path import States
from blackout.flows.refinement import Refinement
from blackout.flows.replay import Replay, Rollout, roll_out
from blackout.flows.simulation import Events, Paths, Simulation
from blackout.flows.targets import all_states
from blackout.flows.targets.energy_network import Learned
from blackout.flows.targets.lattice import SpinPairs
from blackout.flows.weights import effective_sample_size
from blackout.networks import LocallyEquivariant
from blackout.protocols import Source
from blackout.random import fold_seed

# keys that keep the uses of one seed apart, besides those of every sampler of chains
_NEGATIVE, _START = 4, 5
_LISTED = 1 << 18
"""States over which the likelihood of a pair energy is summed; of more, its pseudo-likelihood is maximised."""
_STRONGEST = 5.0
"""Coupling or field where a sample that lacks some states would have an infinite one."""


@component("energy", "target")
class PairEnergy(SpinPairs, Learned):
    """-E = s' J s + h . s of spins s = 2x - 1; J symmetric without diagonal [Ou 2025, section 4.2].

    Args:
        sites: number of spins.
        l1: weight of the sum of |J_ij| over all i and j.
        field: whether h is learned too.

    Raises:
        ValueError: fewer than two spins, or a negative weight.
    """

    def __init__(self, sites: int, l1: float = 0.0, field: bool = False) -> None:
        """No couplings, as many as pairs of sites, [d (d - 1) / 2], and no fields, [d], at the start: see the class."""
        super().__init__(2, [sites])
        ensure(sites >= 2 and l1 >= 0, f"a pair energy needs two spins and l1 of at least 0, not {sites} and {l1}")
        self.l1, self.fields = l1, field
        self.upper = nn.Parameter(torch.zeros(sites * (sites - 1) // 2))
        self.field = nn.Parameter(torch.zeros(sites)) if field else nn.Buffer(torch.zeros(sites), persistent=False)

    @property
    def couplings(self) -> Tensor:
        """J, [d, d], as in the class: symmetric, with `upper` above its diagonal."""
        first, second = torch.triu_indices(self.sites, self.sites, 1, device=self.upper.device)
        matrix = self.upper.new_zeros(self.sites, self.sites).index_put((first, second), self.upper)
        return matrix + matrix.T

    @property
    def pair(self) -> Tensor:  # type: ignore[override]
        """P = 2 J, [d, d]: see `SpinPairs`."""
        return 2 * self.couplings

    def energy(self, x: Tensor) -> Tensor:
        """-s' J s - h . s of states [..., d]: [...] [Ou 2025, section 4.2]."""
        s = self._spins(x)
        return -((s @ self.couplings) * s).sum(-1) - s @ self.field

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, [B, d], but what others do to a spin is kept, and changed by a row of J where one flips.

        Ours (tests/flows/energies/test_gradients.py compares it with the sweep of every target).
        """
        with torch.no_grad():
            s, pair = self._spins(x).double(), self.pair.double()
            local = s @ pair + self.field
            for site in range(self.sites):
                spin = 2.0 * (torch.sigmoid(-2 * t * local[:, site]) <= uniforms[:, site]) - 1
                local.addcmul_((spin - s[:, site])[:, None], pair[site])
                s[:, site] = spin
            return (s > 0).to(x.dtype)

    def penalty(self) -> Tensor:
        """l1 sum_ij |J_ij| [Ou 2025, appendix E.2], a scalar."""
        return self.l1 * 2 * self.upper.abs().sum()

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        kept = {"sites": self.sites, "l1": self.l1, "field": self.fields}
        return {"_target_": "blackout.flows.energies.PairEnergy", **kept}


def most_likely(energy: PairEnergy, x: Tensor, exact: bool = True) -> bool:
    """Give a pair energy the couplings and fields of greatest likelihood, less the penalty; whether of the likelihood.

    Where there are too many states to be summed over it is half the pseudo-likelihood [Besag 1975], whose couplings are
    as good to first order where they are weak. The likelihood is concave, so that there is one solution.

    Args:
        energy: to be changed.
        x: states, integers [n, d].
        exact: False for the pseudo-likelihood, whatever the number of states.
    """
    d, pairs = energy.sites, len(energy.upper)
    s, upper = 2 * x.cpu().double() - 1, torch.triu_indices(energy.sites, energy.sites, 1)
    moments, mean = s.T @ s / len(s), s.mean(0)

    def pseudo(J: Tensor, h: Tensor) -> Tensor:
        """Minus half the mean log pseudo-likelihood [Besag 1975] of couplings [d, d] and fields [d]: a scalar."""
        return F.softplus(-2 * s * (2 * s @ J + h)).mean(0).sum() / 2

    def whole(J: Tensor, h: Tensor) -> Tensor:
        """Minus the mean log-likelihood of couplings [d, d] and fields [d]: a scalar, for `most_likely`."""
        log_z = torch.logsumexp(((states @ J) * states).sum(-1) + states @ h, 0)
        return log_z - (J * moments).sum() - h @ mean

    found = np.zeros(2 * pairs + d)  # couplings above 0, those below, so that the penalty is smooth; fields
    sides = [(0.0, _STRONGEST)] * (2 * pairs) + [(-_STRONGEST, _STRONGEST) if energy.fields else (0, 0)] * d
    exact = exact and 2**d <= _LISTED
    states = 2 * all_states(2, d).double() - 1 if exact else s
    for loss in (pseudo, whole) if exact else (pseudo,):

        def objective(given: np.ndarray, loss: Any = loss) -> tuple[float, np.ndarray]:
            """The loss of `most_likely` and its gradient, of couplings above and below 0 and of fields,
            [2 pairs + d].
            """
            both = torch.tensor(given, requires_grad=True)
            above, below, h = both.split([pairs, pairs, d])
            J = h.new_zeros(d, d).index_put((upper[0], upper[1]), above - below)
            value = loss(J + J.T, h) + energy.l1 * 2 * (above + below).sum()
            (slope,) = torch.autograd.grad(value, both)
            return float(value.detach()), slope.numpy()

        found = minimize(objective, found, jac=True, bounds=sides, method="L-BFGS-B", tol=1e-9).x
    with torch.no_grad():
        energy.upper.copy_(torch.from_numpy(found[:pairs] - found[pairs : 2 * pairs]))
        energy.field.copy_(torch.from_numpy(found[2 * pairs :]))
    return exact


def couplings_found(target: PairEnergy, source: Source) -> dict[str, float]:
    """How good couplings are: -log RMSE over all d^2 [Ou 2025, table 4], beside that of J = 0, and their slope.

    Floats, of couplings [d, d]. `slope_of_couplings` is that of the least-squares line through 0 on the true ones, or
    where these are not known on those of the pseudo-likelihood of the data: below 1, they are too weak.

    Raises:
        UserError: the law whose samples were learned has other sites than the energy.
    """
    pair: Tensor | None = getattr(getattr(source, "truth", None), "pair", None)
    truth, found = None if pair is None else pair.cpu().double() / 2, target.couplings.detach().cpu().double()
    values = {}
    if truth is not None:
        refuse(truth.shape != found.shape, f"the data are of a law of {len(truth)} sites, the energy has {len(found)}")
        errors = (float(-(part - truth).square().mean().sqrt().log()) for part in (found, torch.zeros_like(found)))
        values = dict(zip(("minus_log_rmse", "minus_log_rmse_of_zero"), errors, strict=True))
    elif isinstance(source, CountData):
        rival = PairEnergy(target.sites, field=target.fields)
        most_likely(rival, source.train[:].flatten(1), exact=False)
        truth = rival.couplings.detach().double()
    if truth is not None and bool(truth.any()):
        values["slope_of_couplings"] = float((found * truth).sum() / truth.square().sum())
    return values


class Pair(nn.Module):
    """An energy and the rates of its sampler: what is trained and averaged.

    Args:
        energy: of the data.
        rates: from uniform noise to the energy's law.
    """

    def __init__(self, energy: Learned, rates: LocallyEquivariant) -> None:
        super().__init__()
        self.energy, self.rates = energy, rates

    def forward(self, x: Tensor, t: Tensor, ratios: Tensor) -> Tensor:
        """G(tau, i | x), [B, d, S]."""
        return cast(Tensor, self.rates(x, t, ratios))


class EnergySampler(ChainSampler):
    """Steps of the sampler and of the energy in turn; both resume exactly, with the buffer of states between them.

    Args:
        network: both.
        simulation: how chains are drawn, of the negative phase too.
        negative: how the energy learns.
        objective: of the sampler.
        rollout: how states for the sampler are made; one before each of its turns, the others are dropped, because the
            energy has moved. None for a model that is only used.
        inner: steps of the sampler for each of the energy.
        pretraining: first steps, in which the energy alone is trained: by its likelihood where `negative` sums over all
            states, else by energy discrepancy.
        energy_lr: learning rate of the energy as a share of the sampler's.
        learned: whether the energy is trained; not if it has been fitted to its data before.
        ema_decay: None for a model without an average (a loaded one).
        seed: with the number of the step it decides everything a training step draws.

    Raises:
        ValueError: numbers out of range, or a simulation in time steps, whose weights are not exact.
    """

    means = ("val/nll", "val/ess", "val/log_z")
    network: Pair

    def __init__(
        self,
        network: Pair,
        simulation: Simulation = Events(16),
        negative: NegativeSampler | None = None,
        objective: EstimatedPartition = EstimatedPartition(),
        rollout: Rollout | None = None,
        inner: int = 10,
        pretraining: int = 0,
        energy_lr: float = 1.0,
        learned: bool = True,
        ema_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        if inner < 1 or type(pretraining) is not int or pretraining < 0 or not energy_lr > 0:
            raise ValueError("inner must be at least 1, pretraining a whole number from 0 on, and energy_lr positive")
        self.simulation, self.objective = simulation, objective
        self.negative: NegativeSampler = FlowSamples() if negative is None else negative
        if self.negative.sampled and not isinstance(self.simulation, Events):
            raise ValueError("simulation must be events: those in time steps have no exact weights")
        self.rollout, self.inner, self.energy_lr, self.learned = rollout, inner, energy_lr, learned
        self.pretraining = pretraining if learned else 0
        energy = network.energy
        self.negative.prepare(energy.levels, energy.sites, fold_seed(seed, _START))
        self.replay_buffer = None if rollout is None else Replay(rollout, energy.levels, energy.sites)
        sums = isinstance(self.negative, FlowSamples) and self.negative.sums(energy)
        self._before = self.negative if sums else Discrepancy()

    @property
    def target(self) -> Learned:  # type: ignore[override]
        """The averaged energy, or the trained one where there is no average."""
        return cast(Pair, self.averaged).energy

    @property
    def energy(self) -> Learned:
        """The energy in training."""
        return self.network.energy

    def known(self) -> dict[str, float]:
        """Also how good couplings are."""
        found = couplings_found(self.target, self.require_source()) if isinstance(self.target, PairEnergy) else {}
        return super().known() | found

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The sampler's parameters, and the energy's with a learning rate of their own."""
        energy = {"params": list(self.network.energy.parameters()), "lr": lr * self.energy_lr}
        return [{"params": list(self.network.rates.parameters())}, energy]

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """A step of the sampler, or of the energy after `inner` of those: a scalar [Ou 2025, section 4.2].

        The batch has data `x0`, integers [b, *shape].
        """
        refuse(world_size() > 1, "family=energy trains on one device: trainer.devices=1")
        number = batch["batch"]
        with torch.autocast(self.device.type, enabled=False):  # both losses are differences of large numbers
            before, turn = number < self.pretraining, (number - self.pretraining) % (self.inner + 1)
            if before or (self.learned and (not self.negative.sampled or turn == self.inner)):
                phase, seed = self._before if before else self.negative, fold_seed(self.seed, _NEGATIVE, number)
                loss = phase.loss(self, batch["x0"].flatten(1), seed)
                self.log("train/energy_loss", loss.detach())
                return loss + self.energy.penalty()
            return self.learn(self.network.rates, batch, turn == 0)

    def roll_out(self, rollout: Rollout, replay: Replay, seed: int, number: int) -> None:
        """Of the energy in training."""
        roll_out(rollout, self.energy, self.rates(trained=True), seed, replay, number)

    @torch.no_grad()
    def fresh(self, number: int, seed: int) -> Paths:
        """Weighted chains of the energy in training, [number, d] and [number], for [Ou 2025, eq. 13]."""
        indices = torch.arange(number, device=self.device)
        paths = self.simulation.run(self.energy, self.rates(trained=True), indices, seed, self.moves)
        self.log("train/ess", effective_sample_size(paths.log_weights))
        return paths

    @property
    def moves(self) -> Refinement | None:
        """Those of the rollouts, which leave weights right and lessen what the rates miss."""
        return None if self.rollout is None else self.rollout.refine

    def look_at_data(self, batch: Mapping[str, Any], log_z: Tensor) -> None:
        """NLL, [b], of held-out data: E(x) + log Z [Ou 2025, appendix E.2], exactly where `negative` sums over states.

        Elsewhere log Z, a scalar, is the chains', which is too low while they miss what the energy prefers.
        """
        if self.sums_states:
            log_z = self.target.log_partition().double()
        self.record("val/nll", self.target.energy(batch["x0"].flatten(1)).double() + log_z)

    @property
    def sums_states(self) -> bool:
        """Whether log Z of validation and test metrics is summed over all states."""
        return isinstance(self.negative, FlowSamples) and self.negative.sums(self.target)

    def try_once(self) -> None:
        """Evaluate energy and rates at two states."""
        x = torch.zeros(2, self.energy.sites, dtype=torch.uint8, device=self.device)
        self.rates(trained=True)(States.of(self.energy, x), 0.5)
