"""What a target is: an unnormalised law rho on {0, ..., S - 1}^d, and what follows from its log-density alone.

By brute force: log-ratios of neighbours, Gibbs sweeps, and the exact values of laws with few states. A target is also
what a flow is trained on (`EnergySource`), and its tensors may come from a file of the user's (`read_arrays`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from blackout.config.instantiate import instantiate
from blackout.data.file_formats import load_arrays
from blackout.errors import UserError, error_context, refuse
from blackout.files import tensors_hash
from blackout.protocols import Source, Split

_NEIGHBOURS, _STATES = 1 << 16, 1 << 15
"""Neighbouring states that brute force evaluates together, and states that enumeration does."""
_TRIED = 64
"""Sites whose log-ratios are compared with those of brute force."""
MOST_STATES = 1 << 20
"""States that are enumerated."""
NOT_FINITE = "target: the log-density is not finite at some state; let forbidden ones have a low one"


class Target(nn.Module):
    """A subclass gives `log_density`; the rest follows from it by brute force, and may be overridden.

    Args:
        levels: number S of states of a site.
        shape: of the sites as they are shown and written: [d] for a vector, [H, W] for a lattice.

    Raises:
        ValueError: fewer than two levels, more than 256, or no sites.
    """

    lattice: list[int] | None = None
    """[H, W] if the target is the same seen from every site of a torus, for networks that share weights."""
    flips = True
    """Whether states of which one site differs are states of the law, too."""
    many = False
    """Whether it is many laws, of which a flow learns all."""
    plane = False
    """Whether a state codes a point of the plane, as `targets.energy_network.encode` does."""
    frozen: Tensor | None = None
    """Sites of each row that never move, bool [B, d]; None where there are none."""
    log_start: Tensor | None = None
    """log-probabilities [d, S] of the sites where a path begins; None for uniform noise."""

    def __init__(self, levels: int, shape: Sequence[int]) -> None:
        super().__init__()
        if not 2 <= levels <= 256 or not shape or any(type(n) is not int or n < 1 for n in shape):
            raise ValueError(f"a target has 2 to 256 levels and some sites, not {levels} levels of shape {list(shape)}")
        self.levels, self.shape = levels, tuple(shape)
        self.sites = math.prod(shape)
        self._groups: list[Tensor] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What networks may ask for: `levels`, `sites`, `lattice` ([H, W] of a homogeneous one, or None)."""
        return {"levels": self.levels, "sites": self.sites, "lattice": self.lattice}

    def summary(self) -> str:
        """One line for the summary of a run."""
        sizes = " x ".join(map(str, self.shape))
        return f"{type(self).__name__.lower()}: an energy of {sizes} sites with {self.levels} levels; no data"

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))

    @property
    def log_volume(self) -> float | Tensor:
        """log of the number of states: d log S, a float, or that of every row, [B]: -log eta of
        [Ou 2025, section 3].
        """
        return self.sites * math.log(self.levels)

    def uniform(self, uniforms: Tensor) -> Tensor:
        """States drawn from eta [Ou 2025, section 3], uniformly from all, by uniforms [B, d]: uint8 [B, d]."""
        return (uniforms * self.levels).clamp_(max=self.levels - 1).to(torch.uint8)

    def rows(self, which: Tensor) -> Target:
        """The laws of some rows, by number or mask, where every row has a law of its own; the one law otherwise."""
        return self

    def context(self) -> tuple[Any, ...]:
        """What a network is told about the laws of the rows, besides states, times and log-ratios."""
        return ()

    def log_density(self, x: Tensor) -> Tensor:
        """log rho.

        Args:
            x: states, integers [..., d].

        Returns:
            [...], float.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_density")

    def log_ratios(self, x: Tensor) -> Tensor:
        """log rho(Swap(x, i, tau)) - log rho(x) for every site i and state tau, 0 at tau = x_i [Ou 2025, appendix C.2].

        Args:
            x: states, integers [B, d].

        Returns:
            [B, d, S], float.
        """
        return self.ratios_at(x, torch.arange(self.sites, device=x.device))

    def ratios_at(self, x: Tensor, where: Tensor) -> Tensor:
        """The log-ratios of some sites, int64 [n], of states [B, d]: [B, n, S] [Ou 2025, appendix C.2].

        See `log_ratios`.
        """
        if getattr(self.log_ratios, "__func__", None) is not Target.log_ratios:
            return self.log_ratios(x)[:, where]
        site, parts = torch.arange(len(where), device=x.device), list[Tensor]()
        for part in x.split(max(1, _NEIGHBOURS // (len(where) * self.levels))):
            swapped = part[:, None, None, :].repeat(1, len(where), self.levels, 1)
            swapped[:, site, :, where] = torch.arange(self.levels, dtype=x.dtype, device=x.device)
            parts.append(self.log_density(swapped) - self.log_density(part)[:, None, None])
        return torch.cat(parts)

    def try_once(self) -> Tensor:
        """Evaluate it at three states, uint8 [3, d], which are returned, and at neighbours of the last.

        Raises:
            UserError: a log-density that is not finite or of another shape, or log-ratios that are not its differences.
        """
        site = torch.arange(self.sites, device=self.device)
        x = torch.stack([0 * site, 0 * site + self.levels - 1, site % self.levels]).to(torch.uint8)
        density, ratios = self.log_density(x), self.log_ratios(x)
        shapes = list(density.shape), list(ratios.shape)
        if shapes != ([3], [3, self.sites, self.levels]):
            raise UserError(f"target: log_density and log_ratios of 3 states have shapes {shapes[0]} and {shapes[1]}")
        refuse(not bool(torch.isfinite(density).all() and torch.isfinite(ratios).all()), NOT_FINITE)
        bare = Wrapped(SimpleNamespace(levels=self.levels, shape=self.shape, log_density=self.log_density))
        off = float((ratios[2:, :_TRIED] - bare.ratios_at(x[2:], site[:_TRIED])).abs().max())
        rounding = 1e-2 + 1e-5 * float(density.abs().max())
        refuse(off > rounding, f"target: log_ratios are up to {off:.3g} from differences of log_density")
        return x

    def conditional(self, x: Tensor, where: Tensor, t: float) -> Tensor:
        """log p_t(. | x without i) up to a constant for some sites i, int64 [n]: float64 [B, n, S].

        t times the log-ratios, as p_t ~ rho^t eta^(1 - t) with eta uniform [Ou 2025, section 3].
        """
        return t * self.ratios_at(x, where).double()

    def independent_sites(self) -> list[Tensor]:
        """Sites in groups, int64 [n] each: those of a group are independent given all others."""
        pairs = self.pairs()
        if pairs is None:
            return list(torch.arange(self.sites).split(1))
        return [torch.from_numpy(group) for group in coloured(csr_array(pairs[0].cpu().numpy()))]

    def swept(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """A Gibbs sweep at time t: every site drawn from its conditional law p_t, independent sites together.

        [Geman and Geman 1984], by a sum over the states of a site.

        Args:
            x: states, integers [B, d].
            uniforms: [B, d].
            t: time.

        Returns:
            uint8 [B, d], as x.
        """
        x = x.clone()
        for group in self.site_groups():
            where = group.to(x.device)
            law = self.conditional(x, where, t).softmax(-1)
            # the last running sum may fall short of 1 by rounding
            x[:, where] = (law[..., :-1].cumsum(-1) <= uniforms[:, where, None]).sum(-1).to(x.dtype)
        return x

    def site_groups(self) -> list[Tensor]:
        """Return `independent_sites`, which are found once."""
        if self._groups is None:
            self._groups = self.independent_sites()
        return self._groups

    def pairs(self) -> tuple[Tensor, Tensor] | None:
        """(w, f) where log rho = sum over i < j of w_ij [x_i = x_j] + sum_i f_i(x_i) + a constant; None of others.

        Returns:
            [d, d], symmetric and zero on its diagonal, and [d, S], float64; what compiled sweeps and clusters need.
        """
        return None

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Quantities whose means are reported besides that of log rho: name -> [B] for states [B, d]."""
        return {}

    def description(self, given: dict[str, Any]) -> dict[str, Any]:
        """The plain description from which a target of this shape is made, before its tensors are loaded.

        Args:
            given: the one it was made from.
        """
        return given

    def exact(self, t: float = 1.0) -> dict[str, float] | None:
        """`log_z` and means of rho^t, if another method than enumeration has them."""
        return None


class Wrapped(Target):
    """A user's class with `levels`, `sites` or `shape`, and `log_density`, that does not derive from `Target`.

    Args:
        inner: the user's object.
    """

    def __init__(self, inner: Any) -> None:
        shape = getattr(inner, "shape", None) or [inner.sites]
        super().__init__(inner.levels, [int(n) for n in shape])
        self.inner, self.log_density = inner, inner.log_density  # type: ignore[method-assign]
        if hasattr(inner, "log_ratios"):
            self.log_ratios = inner.log_ratios  # type: ignore[method-assign]


def coloured(matrix: Any) -> list[NDArray[np.int64]]:
    """Sites in groups without neighbours, greedily, those of many neighbours first [Welsh and Powell 1967].

    Args:
        matrix: SciPy's CSR matrix [d, d], in which neighbours have an entry.
    """
    colours, rows = np.full(matrix.shape[0], -1), np.split(matrix.indices, matrix.indptr[1:-1])
    for node in np.argsort(-np.diff(matrix.indptr), kind="stable"):
        taken = set(colours[rows[node]].tolist())
        colours[node] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
    return [np.flatnonzero(colours == colour) for colour in range(colours.max() + 1)]


def of_flips(flips: Tensor, x: Tensor) -> Tensor:
    """Log-ratios of two levels, [B, n, 2], from those of the flips, [B, n], of states [B, n]: 0 at x_i.

    Ours (tests/flows/test_targets.py compares ratios with brute force).
    """
    return flips[..., None] * (1 - F.one_hot(x.long(), 2))


@dataclass(frozen=True)
class EnergySource:
    """A target as a source of endless training "samples", which are only numbers.

    Args:
        target: the law.
        validation: chains that a validation simulates, and a test, which has others.
    """

    target: Target
    validation: int = 512

    @property
    def name(self) -> str:
        return type(self.target).__name__.lower()

    @property
    def facts(self) -> Mapping[str, Any]:
        """The target's."""
        return self.target.facts

    def __str__(self) -> str:
        return self.target.summary()

    def size(self, split: Split) -> int | None:
        return None if split == "train" else self.validation

    def batch(self, split: Split, index: Tensor, augment: Tensor | None = None) -> dict[str, Tensor]:
        return {}

    def fingerprint(self, split: Split) -> str:
        """A hash of the target's tensors, so that a run continues with its own energy only."""
        return tensors_hash(self.name, self.target.state_dict())

    def to(self, device: torch.device) -> Source:
        return self


def all_states(levels: int, sites: int) -> Tensor:
    """Every state, uint8 [levels ** sites, sites]; the last site changes fastest."""
    return torch.cartesian_prod(*[torch.arange(levels, dtype=torch.uint8)] * sites).view(-1, sites)


def enumerated(target: Target) -> tuple[Tensor, Tensor]:
    """All states, uint8 [n, d], and their log rho, float64 [n], on the target's device."""
    states = all_states(target.levels, target.sites).to(target.device)
    return states, torch.cat([target.log_density(part).double() for part in states.split(_STATES)])


def can_enumerate(target: Target) -> bool:
    """Whether there are few enough states, S^d, a number."""
    return target.sites * math.log2(target.levels) <= math.log2(MOST_STATES)


def exact_values(target: Target, t: float = 1.0) -> dict[str, float] | None:
    """`log_z`, `mean_energy` and, by enumeration, the mean of every statistic of rho^t; None if out of reach.

    `mean_energy` is that of -log rho, whatever t. Ours (tests/flows/test_targets.py): floats, sums over states [n, d].
    """
    if not can_enumerate(target):
        return target.exact() if t == 1 else target.exact(t)
    states, log_density = enumerated(target)
    log_z = torch.logsumexp(t * log_density, 0)
    weight = (t * log_density - log_z).exp()
    values = {"log_z": float(log_z), "mean_energy": -float(weight @ log_density.nan_to_num(neginf=0.0))}
    for name, value in target.statistics(states).items():
        values[f"mean_{name}"] = float(weight @ value.double())
    return values


def read_arrays(path: str | Path, alone: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of an .npz; that of an .npy is called `alone`, where it may be.

    Raises:
        UserError: it does not exist, is no .npz, is damaged, or holds objects.
    """
    try:
        arrays = load_arrays(Path(path))
    except UserError as error:
        raise UserError(f"target.path: {error}") from None
    refuse(not alone and not isinstance(arrays, dict), f"target.path: {path} is no .npz of arrays")
    return arrays if isinstance(arrays, dict) else {alone: arrays}


def make_target(described: Any) -> Target:
    """The target of a description; a user's class needs `levels`, `sites` or `shape`, and `log_density`.

    Raises:
        UserError: it cannot be made, or lacks one of these.
    """
    made = instantiate(described, "target")
    if isinstance(made, Target):
        return made
    if not hasattr(made, "log_density") or not hasattr(made, "levels"):
        raise UserError(f"target: {type(made).__name__} needs log_density, levels, and sites or shape")
    with error_context("target"):
        return Wrapped(made)
