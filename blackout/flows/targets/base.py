"""The interface of a target: an unnormalised distribution rho on {0, ..., S - 1}^d.

A target needs only its log-density. Log-ratios of neighbours and Gibbs sweeps follow from it by
brute force. A target is also what a flow is trained on (`TargetSource`), and its tensors may come
from a file of the user (`read_arrays`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from blackout.config.instantiate import instantiate
from blackout.data.formats import load_arrays
from blackout.errors import UserError, error_context, refuse
from blackout.files import hash_tensors
from blackout.protocols import Source, Split
from blackout.representation import changed_arguments, join_values

MAX_LEVELS = 256  # states are stored as uint8
NEIGHBOURS_PER_BATCH = 1 << 16  # neighbouring states evaluated together by brute force
NUM_CHECKED_SITES = 64  # sites whose log-ratios `Target.check` compares with brute force
NOT_FINITE = (
    "target: the log-density is not finite at some state; give forbidden states a very low, finite "
    "log-density such as -1e3"
)


class Target(nn.Module):
    """An unnormalised distribution. Subclasses define `log_density` and may override the rest.

    Args:
        levels: number S of values of a site, 2 to 256.
        shape: of the sites as they are shown and saved: [d] for a vector, [H, W] for a lattice.

    Raises:
        ValueError: fewer than 2 levels, more than 256, or no sites.

    Example:
        >>> class Independent(Target):
        ...     def log_density(self, x):
        ...         return 0.5 * x.sum(-1).double()
        >>> target = Independent(levels=2, shape=[3])
        >>> target.log_ratios(torch.zeros(1, 3, dtype=torch.uint8))[0, 0].tolist()
        [0.0, 0.5]
    """

    # [H, W] of a torus that looks the same from every site, for networks that share weights
    lattice: list[int] | None = None
    # whether changing a single site leads to another state of the support
    allows_single_flips = True
    # whether this is a family of many targets (instances), which one flow learns together
    amortised = False
    # whether a state encodes a point of the plane, as `targets.energy_network.encode` does
    plane = False
    # sites of each row that never change, bool [B, d]; None where there are none
    frozen_sites: Tensor | None = None
    # log-probabilities [d, S] of the sites at t = 0 of the path; None for the uniform distribution
    log_initial: Tensor | None = None

    def __init__(self, levels: int, shape: Sequence[int]) -> None:
        super().__init__()
        valid_shape = bool(shape) and all(type(size) is int and size >= 1 for size in shape)
        if not 2 <= levels <= MAX_LEVELS or not valid_shape:
            raise ValueError(
                f"a target has 2 to {MAX_LEVELS} levels and at least one site, "
                f"not {levels} levels of shape {list(shape)}"
            )
        self.levels = levels
        self.shape = tuple(shape)
        self.sites = math.prod(shape)
        self._site_groups: list[Tensor] | None = None

    def __repr__(self) -> str:
        """Return a summary of one line; that of `nn.Module` lists what a target wraps."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """Return shape, levels and the arguments that are kept, for `repr`."""
        return join_values({"shape": self.shape, "levels": self.levels} | changed_arguments(self))

    @property
    def facts(self) -> dict[str, Any]:
        """Values that networks ask for by name: `levels`, `sites`, `lattice` ([H, W] or None)."""
        return {"levels": self.levels, "sites": self.sites, "lattice": self.lattice}

    def summary(self) -> str:
        """Describe the target in one line for the summary of a run."""
        sizes = " x ".join(map(str, self.shape))
        name = type(self).__name__.lower()
        return f"{name}: an energy of {sizes} sites with {self.levels} levels; no data"

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        tensors = self.state_dict().values()
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def log_num_states(self) -> float | Tensor:
        """-log eta = d log S, a float; [B] where rows have different numbers of states.

        References: Ou et al. 2025, section 3.
        """
        return self.sites * math.log(self.levels)

    def sample_initial(self, uniforms: Tensor) -> Tensor:
        """Draw states from the uniform distribution eta by uniforms [B, d]: uint8 [B, d].

        References: Ou et al. 2025, section 3.
        """
        return (uniforms * self.levels).clamp_(max=self.levels - 1).to(torch.uint8)

    def select(self, rows: Tensor) -> Target:
        """Return the targets of some rows, by index or mask; itself if all rows have the same."""
        return self

    def context(self) -> tuple[Any, ...]:
        """Return further arguments of the network that identify the target of each row."""
        return ()

    def log_density(self, x: Tensor) -> Tensor:
        """Return log rho of states.

        Args:
            x: integers [..., d].

        Returns:
            Float [...].
        """
        raise NotImplementedError(f"{type(self).__name__} does not define log_density")

    def log_ratios(self, x: Tensor) -> Tensor:
        """Return log rho(Swap(x, i, tau)) - log rho(x) for all sites i and values tau; 0 at x_i.

        References: Ou et al. 2025, appendix C.2.

        Args:
            x: states, integers [B, d].

        Returns:
            Float [B, d, S].
        """
        return self.log_ratios_at(x, torch.arange(self.sites, device=x.device))

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return the log-ratios of some sites, int64 [n], of states [B, d]: float [B, n, S].

        References: Ou et al. 2025, appendix C.2.
        """
        # a subclass may define only `log_ratios`
        if getattr(self.log_ratios, "__func__", None) is not Target.log_ratios:
            return self.log_ratios(x)[:, sites]
        return self._brute_force_log_ratios(x, sites)

    def _brute_force_log_ratios(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return differences of the log-density of all neighbours and x; see `log_ratios_at`.

        References: Ou et al. 2025, appendix C.2.
        """
        rows = torch.arange(len(sites), device=x.device)
        values = torch.arange(self.levels, dtype=x.dtype, device=x.device)
        batch_size = max(1, NEIGHBOURS_PER_BATCH // (len(sites) * self.levels))
        log_ratios = list[Tensor]()
        for batch in x.split(batch_size):
            neighbours = batch[:, None, None, :].repeat(1, len(sites), self.levels, 1)
            neighbours[:, rows, :, sites] = values
            density = self.log_density(batch)[:, None, None]
            log_ratios.append(self.log_density(neighbours) - density)
        return torch.cat(log_ratios)

    def check(self) -> Tensor:
        """Evaluate the target at three states, and compare log-ratios with brute force.

        Returns:
            The states, uint8 [3, d].

        Raises:
            UserError: a log-density that is not finite or has another shape, or log-ratios that
                are not its differences.
        """
        site = torch.arange(self.sites, device=self.device)
        zeros = torch.zeros_like(site)
        x = torch.stack([zeros, zeros + self.levels - 1, site % self.levels]).to(torch.uint8)
        density = self.log_density(x)
        log_ratios = self.log_ratios(x)

        shapes = (list(density.shape), list(log_ratios.shape))
        expected = ([3], [3, self.sites, self.levels])
        if shapes != expected:
            raise UserError(
                f"target: log_density and log_ratios of 3 states must have shapes {expected[0]} "
                f"and {expected[1]}, not {shapes[0]} and {shapes[1]}"
            )
        finite = bool(torch.isfinite(density).all() and torch.isfinite(log_ratios).all())
        refuse(not finite, NOT_FINITE)

        checked_sites = site[:NUM_CHECKED_SITES]
        expected_log_ratios = self._brute_force_log_ratios(x[2:], checked_sites)
        difference = log_ratios[2:, :NUM_CHECKED_SITES] - expected_log_ratios
        largest = float(difference.abs().max())
        rounding = 1e-2 + 1e-5 * float(density.abs().max())  # single precision is allowed
        refuse(
            largest > rounding,
            f"target: log_ratios differ by up to {largest:.3g} from differences of log_density: "
            "correct one of them, or define log_density alone",
        )
        return x

    def conditional_logits(self, x: Tensor, sites: Tensor, t: float) -> Tensor:
        """Return log p_t(x_i | other sites) + constant of some sites: float64 [B, n, S].

        These are t times the log-ratios, as p_t is proportional to rho^t eta^(1 - t), eta uniform.

        References: Ou et al. 2025, section 3.

        Args:
            x: states [B, d].
            sites: int64 [n].
            t: time.
        """
        return t * self.log_ratios_at(x, sites).double()

    def independent_sites(self) -> list[Tensor]:
        """Partition the sites: those of a group, int64 [n], are independent given all others."""
        terms = self.pairwise_terms()
        if terms is None:
            return list(torch.arange(self.sites).split(1))
        groups = greedy_colouring(csr_array(terms[0].cpu().numpy()))
        return [torch.from_numpy(group) for group in groups]

    def site_groups(self) -> list[Tensor]:
        """Return `independent_sites`, computed once."""
        if self._site_groups is None:
            self._site_groups = self.independent_sites()
        return self._site_groups

    def gibbs_sweep(self, x: Tensor, uniforms: Tensor, t: float) -> Tensor:
        """Draw every site from its conditional distribution of p_t, independent sites together.

        References: Geman and Geman 1984.

        Args:
            x: states, integers [B, d].
            uniforms: [B, d].
            t: time.

        Returns:
            States [B, d] with the dtype of x.
        """
        x = x.clone()
        for group in self.site_groups():
            sites = group.to(x.device)
            probabilities = self.conditional_logits(x, sites, t).softmax(-1)
            # without the last running sum, which may be below 1 by rounding
            cumulative = probabilities[..., :-1].cumsum(-1)
            x[:, sites] = (cumulative <= uniforms[:, sites, None]).sum(-1).to(x.dtype)
        return x

    def pairwise_terms(self) -> tuple[Tensor, Tensor] | None:
        """Return (w, f) of log rho = sum_{i<j} w_ij [x_i = x_j] + sum_i f_i(x_i) + constant.

        Compiled sweeps and cluster moves need this form.

        Returns:
            Float64 [d, d], symmetric with a zero diagonal, and [d, S]; None for other targets.
        """
        return None

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Return quantities whose means are reported with the energy: name -> [B] of [B, d]."""
        return {}

    def check_tensors(self) -> None:
        """Check the values of tensors that were loaded from a file; by default any are possible.

        Raises:
            ValueError: values that the target cannot have.
        """

    def description(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return plain settings that build a target of this shape, before its tensors are loaded.

        Args:
            settings: those from which this target was built.
        """
        return settings

    def couplings_to_save(self) -> dict[str, NDArray[Any]]:
        """Return learned couplings by name, for couplings.npz; empty if there are none."""
        return {}

    def closed_form(self, t: float = 1.0) -> dict[str, float] | None:
        """Return `log_z` and means of rho^t where a formula gives them, without enumeration."""
        return None


class WrappedTarget(Target):
    """A user's object with `levels`, `sites` or `shape`, and `log_density`.

    Args:
        wrapped: the object, which is not a `Target`.
    """

    def __init__(self, wrapped: Any) -> None:
        shape = getattr(wrapped, "shape", None) or [wrapped.sites]
        super().__init__(wrapped.levels, [int(size) for size in shape])
        self.wrapped = wrapped

    def log_density(self, x: Tensor) -> Tensor:
        """Return the object's log rho of states [..., d], float [...]."""
        log_density: Tensor = self.wrapped.log_density(x)
        return log_density

    def log_ratios(self, x: Tensor) -> Tensor:
        """Return the object's log-ratios of states [B, d], or those by brute force, [B, d, S]."""
        if not hasattr(self.wrapped, "log_ratios"):
            return self._brute_force_log_ratios(x, torch.arange(self.sites, device=x.device))
        log_ratios: Tensor = self.wrapped.log_ratios(x)
        return log_ratios

    def log_ratios_at(self, x: Tensor, sites: Tensor) -> Tensor:
        """Return the log-ratios of some sites, int64 [n], of states [B, d]: float [B, n, S]."""
        if not hasattr(self.wrapped, "log_ratios"):
            return self._brute_force_log_ratios(x, sites)
        return self.log_ratios(x)[:, sites]


def greedy_colouring(adjacency: Any) -> list[NDArray[np.int64]]:
    """Partition nodes into groups without edges, greedily, nodes of high degree first.

    References: Welsh and Powell 1967.

    Args:
        adjacency: SciPy's CSR matrix [d, d], with an entry for each pair of neighbours.

    Returns:
        Nodes of each colour, int64 [n].
    """
    neighbours = np.split(adjacency.indices, adjacency.indptr[1:-1])
    degrees = np.diff(adjacency.indptr)
    colours = np.full(adjacency.shape[0], -1)
    for node in np.argsort(-degrees, kind="stable"):
        neighbour_colours = set(colours[neighbours[node]].tolist())
        colours[node] = next(
            c for c in range(len(neighbour_colours) + 1) if c not in neighbour_colours
        )
    return [np.flatnonzero(colours == colour) for colour in range(colours.max() + 1)]


def flip_log_ratios(flips: Tensor, x: Tensor) -> Tensor:
    """Arrange the log-ratios of flips [B, n] of binary states [B, n] as [B, n, 2]: 0 at x_i.

    References: this project; checked in tests/flows/test_targets.py.
    """
    return flips[..., None] * (1 - F.one_hot(x.long(), 2))


@dataclass(frozen=True)
class TargetSource:
    """A target as a source of training batches, which contain no data but their indices.

    Args:
        target: the distribution.
        num_validation_chains: chains simulated by a validation, and by a test.
    """

    target: Target
    num_validation_chains: int = 512

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    @property
    def name(self) -> str:
        """Name of the target, for logs and directories."""
        return type(self.target).__name__.lower()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Values of the target that networks ask for by name."""
        return self.target.facts

    def __str__(self) -> str:
        return self.target.summary()

    def size(self, split: Split) -> int | None:
        """Return the number of chains of a split; None for endless training batches."""
        return None if split == "train" else self.num_validation_chains

    def batch(
        self,
        split: Split,
        index: Tensor,
        augment: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return no data: chains are functions of their indices."""
        return {}

    def fingerprint(self, split: Split) -> str:
        """Return a hash of the target's tensors: a run only continues with the same target."""
        return hash_tensors(self.name, self.target.state_dict())

    def to(self, device: torch.device) -> Source:
        """Return itself: there are no data to move."""
        return self


def read_arrays(path: str | Path, npy_name: str = "") -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, by name.

    Args:
        path: of the file.
        npy_name: name of the single array of an .npy file; "" refuses .npy files.

    Raises:
        UserError: the file does not exist, is no .npz, is damaged, or contains Python objects.
    """
    try:
        arrays = load_arrays(Path(path))
    except UserError as error:
        raise UserError(f"target.path: {error}") from None
    if isinstance(arrays, dict):
        return arrays
    refuse(not npy_name, f"target.path: {path} must be an .npz file with named arrays")
    return {npy_name: arrays}


def make_target(description: Any) -> Target:
    """Build a target; a user's class needs `levels`, `sites` or `shape`, and `log_density`.

    Raises:
        UserError: it cannot be built, or lacks one of these attributes.

    Example:
        >>> make_target({"_target_": "blackout.flows.Ising", "size": 3}).sites
        9
    """
    target = instantiate(description, "target")
    if isinstance(target, Target):
        return target
    if not hasattr(target, "log_density") or not hasattr(target, "levels"):
        raise UserError(
            f"target: {type(target).__name__} must have log_density, levels, and sites or shape",
        )
    with error_context("target"):
        return WrappedTarget(target)
