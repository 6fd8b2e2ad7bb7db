"""Energies that are learned, p ~ exp(-E) [Ou 2025, eq. 12]: laws whose parameters have gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.family import Source
from blackout.flows.targets import EnergyNetwork, Target
from blackout.flows.targets.base import of_flips
from blackout.flows.targets.lattice import magnetisation

_SPREAD = 6.0
"""Scale of an energy network's first weights at the start, over PyTorch's; spins of +-1 in place of bits are 2."""


class Learned(Target):
    """A law p in proportion to exp(-E) whose energy is trained."""

    @abstractmethod
    def energy(self, x: Tensor) -> Tensor:
        """E of states [..., d], with gradients for its weights."""

    def log_density(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return -self.energy(x)

    def penalty(self) -> Tensor:
        """What is added to the negative log-likelihood of a sample, a scalar."""
        return torch.zeros((), device=self.device)


@component("energy", "target")
class PairEnergy(Learned):
    """-E = s' J s + h . s of spins s = 2x - 1; J symmetric without diagonal [Ou 2025, section 4.2].

    Args:
        sites: number of spins.
        l1: weight of the sum of |J_ij| over all i and j.
        field: whether h is learned too.

    Raises:
        ValueError: fewer than two spins, or a negative weight.
    """

    def __init__(self, sites: int, l1: float = 0.0, field: bool = False) -> None:
        super().__init__(2, [sites])
        if sites < 2 or l1 < 0:
            raise ValueError(f"a pair energy needs two spins and l1 of at least 0, not {sites} and {l1}")
        self.l1 = l1
        self.upper = nn.Parameter(torch.zeros(sites * (sites - 1) // 2))
        self.field = nn.Parameter(torch.zeros(sites)) if field else None

    @property
    def couplings(self) -> Tensor:
        """J, [d, d]."""
        first, second = torch.triu_indices(self.sites, self.sites, 1, device=self.upper.device)
        matrix = self.upper.new_zeros(self.sites, self.sites).index_put((first, second), self.upper)
        return matrix + matrix.T

    def energy(self, x: Tensor) -> Tensor:
        """-s' J s - h . s of states [..., d]: [...]."""
        s = self._spins(x)
        pairs = -((s @ self.couplings) * s).sum(-1)
        return pairs if self.field is None else pairs - s @ self.field

    def log_ratios(self, x: Tensor) -> Tensor:
        """-2 s_i (2 (J s)_i + h_i) for a flip, [B, d, 2] [Ou 2025, eq. 27, for spins]."""
        with torch.no_grad():
            s = self._spins(x)
            local = 2 * s @ self.couplings if self.field is None else 2 * s @ self.couplings + self.field
            return of_flips(-2 * s * local, x)

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """As of every target, [B, d], but what others do to a spin is kept, and changed by a row of J where one flips.

        Ours; a test compares it with the sweep of every target.
        """
        with torch.no_grad():
            s, couplings = self._spins(x).double(), self.couplings.double()
            local = 2 * s @ couplings if self.field is None else 2 * s @ couplings + self.field.double()
            for site in range(self.sites):
                spin = 2.0 * (torch.sigmoid(-2 * t * local[:, site]) <= uniforms[:, site]) - 1
                local.addcmul_((spin - s[:, site])[:, None], couplings[site], value=2)
                s[:, site] = spin
            return (s > 0).to(x.dtype)

    def pairs(self) -> tuple[Tensor, Tensor]:
        field = torch.zeros(self.sites) if self.field is None else self.field.detach()
        return 4 * self.couplings.detach().double(), torch.stack([-field, field], -1).double()

    def penalty(self) -> Tensor:
        """l1 sum_ij |J_ij| [Ou 2025, appendix E.2], a scalar."""
        return self.l1 * 2 * self.upper.abs().sum()

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        kept = {"sites": self.sites, "l1": self.l1, "field": self.field is not None}
        return {"_target_": "blackout.flows.energies.PairEnergy", **kept}

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Magnetisation per site and its size, [B] each."""
        return magnetisation(self._spins(x))

    def _spins(self, x: Tensor) -> Tensor:
        return 2 * x.to(self.upper.dtype) - 1


@component("energy", "target")
class NetworkEnergy(EnergyNetwork, Learned):
    """E a multilayer perceptron of bits, or of one-hot states where there are more than two levels.

    [Ou 2025, appendix E.2], of bits.

    Args:
        sites: number of sites.
        levels: number of states of a site.
        widths: of the hidden layers.
    """

    def __init__(self, sites: int, levels: int = 2, widths: Sequence[int] = (256, 256, 256)) -> None:
        super().__init__(sites if levels == 2 else sites * levels, widths)
        self.levels, self.shape, self.sites = levels, (sites,), sites
        with torch.no_grad():  # as if it read spins, and with larger weights: else products of many bits are never seen
            self._first.weight.mul_(_SPREAD)
            self._first.bias.sub_(self._first.weight.sum(1) / levels)

    def energy(self, x: Tensor) -> Tensor:
        if self.levels == 2:
            return EnergyNetwork.energy(self, x)
        return EnergyNetwork.energy(self, F.one_hot(x.long(), self.levels).flatten(-2))

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """Exact, [B, n, S]; beyond two levels the first layer of a neighbour differs by a difference of two columns."""
        if self.levels == 2:
            return super().ratios_at(x, where)
        with torch.no_grad():
            weight = self._first.weight.T.view(self.sites, self.levels, -1)
            first = self._hidden(F.one_hot(x.long(), self.levels).flatten(1))
            own = weight[where, x[:, where].long()]
            moved = first[:, None, None] + weight[where] - own[:, :, None]
            ratios = self._after(first)[:, None, None] - self._after(moved)
            return ratios.masked_fill(F.one_hot(x[:, where].long(), self.levels).bool(), 0.0)

    def taylor_ratios(self, x: Tensor) -> Tensor:
        return super().taylor_ratios(x) if self.levels == 2 else self.log_ratios(x)

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Mean state, [B]."""
        return {"mean_state": x.double().mean(-1)}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        kept = {"sites": self.sites, "levels": self.levels, "widths": self.widths}
        return {"_target_": "blackout.flows.energies.NetworkEnergy", **kept}


def couplings_found(target: PairEnergy, source: Source) -> dict[str, float]:
    """-log RMSE over all d^2 couplings [Ou 2025, table 4], and that of J = 0, which says what the number is worth."""
    truth = truth_of(source)
    if truth is None:
        return {}
    found = target.couplings.detach().cpu().double()
    error, nothing = (float(-(part - truth).square().mean().sqrt().log()) for part in (found, torch.zeros_like(found)))
    return {"minus_log_rmse": error, "minus_log_rmse_of_zero": nothing}


def truth_of(source: Source) -> Tensor | None:
    """J of the law that the data are samples of, symmetric without diagonal, float64 [d, d]."""
    truth = getattr(source, "truth", None)
    pair: Tensor | None = getattr(truth, "pair", None)
    return None if pair is None else pair.cpu().double() / 2
