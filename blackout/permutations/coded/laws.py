"""Datasets whose law is known: cycles, Mallows for every phi at once, Plackett-Luce; and permutations of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Size, Tensor

from blackout.errors import UserError, naming
from blackout.family import Samples
from blackout.permutations.coded.data import (
    PermutationData,
    check_length,
    check_permutations,
    check_share,
    hash_share,
    held_out,
    ranks,
)
from blackout.permutations.codes import FisherYates
from blackout.permutations.distributions import PlackettLuce
from blackout.permutations.families import Mallows
from blackout.permutations.group import num_cycles
from blackout.random import SampleStreams

_ENUMERATED = 10
"""Most items whose cycles are all held in memory."""
_HELD_OUT = 2000
_PHIS = (0.2, 0.5, 0.8, 1.0)


def cycles(length: int = 10, share: float = 0.2, seed: int = 0) -> PermutationData:
    """All permutations that are one cycle, `share` of them to train on, the others held out (Kim et al., section 5.2).

    Which ones is decided by a hash of the permutation: the training set is the same everywhere, and whether a sample is
    in it needs no list.

    Args:
        length: 2 to 10.
        share: of the (length - 1)! cycles, in (0, 1]; 1 trains and validates on all.
        seed: of the hash.

    Raises:
        ValueError: values outside these limits, or so small a share that nothing is left to train on.
    """
    check_length("cycles", length)
    check_share("cycles", share)
    if length > _ENUMERATED:
        raise ValueError(f"cycles: length must be at most {_ENUMERATED}: all are held in memory; not {length}")
    x = all_cycles(length)
    drawn = hash_share(ranks(x), seed) < share
    if not bool(drawn.any()):
        raise ValueError(f"cycles: share={share} of {len(x)} cycles leaves none to train on")
    rest = x if bool(drawn.all()) else x[~drawn]

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        found = samples["samples"]
        cyclic = num_cycles(found) == 1
        inside = cyclic & (hash_share(ranks(found), seed) < share)
        return {"cyclic": cyclic.double(), "in_train": inside.double()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        log_p = torch.full((len(points),), -math.log(len(x)), dtype=torch.float64)
        return log_p.masked_fill(num_cycles(points) != 1, -math.inf)

    picked = rest[torch.linspace(0, len(rest) - 1, min(len(rest), _HELD_OUT)).long()]
    return PermutationData(
        "cycles", {"x": x[drawn]}, {"x": picked}, judge=judge, truth=truth, members=x, shown={"": {}}
    )


def all_cycles(n: int) -> Tensor:
    """The (n - 1)! permutations that are one cycle, int64 [(n - 1)!, n]: no Fisher-Yates digit but the last is 0."""
    digits = torch.cartesian_prod(*(torch.arange(1, n - i) for i in range(n - 1))).reshape(-1, n - 1)
    return FisherYates.decode(torch.cat([digits, torch.zeros(len(digits), 1, dtype=torch.int64)], 1))


def mallows(length: int = 8, least_phi: float = 0.1) -> PermutationData:
    """Mallows orders for every phi between `least_phi` and 1, which the model is told: one network for all of them.

    Raises:
        ValueError: a length below 2, or least_phi outside (0, 1).
    """
    check_length("mallows", length)
    if not 0 < least_phi < 1:
        raise ValueError(f"mallows: least_phi must be between 0 and 1, not {least_phi}")

    def make(index: Tensor, augment: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
        streams, size = SampleStreams(seed, index).at(0), len(index)
        phi = least_phi + (1 - least_phi) * streams.next_draw().uniform((size, 1))
        return {"x": Mallows(length, phi.squeeze(1)).sample(generator=streams), "condition": phi.float()}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        return Mallows(length, context["condition"].double().flatten()[0]).log_prob(points)

    def judge(samples: Samples) -> Mapping[str, Tensor]:
        from blackout.permutations.group import kendall_distance

        distance = kendall_distance(samples["samples"]).double()
        exact = Mallows(length, samples["condition"].double().squeeze(1)).distance_mean
        return {"distance": distance, "expected_distance": exact}

    test = make(torch.arange(512), seed=1)
    shown = {f"phi={phi}": {"condition": torch.tensor([[phi]])} for phi in _PHIS}
    return PermutationData("mallows", make, test, judge=judge, truth=truth, shown=shown)


def plackett_luce(length: int = 5, ratio: float = 2.0) -> PermutationData:
    """Orders drawn without replacement by weights 1, ratio, ratio^2, ...: no product of digits is this law.

    Raises:
        ValueError: a length below 2, or a ratio that is not positive.
    """
    check_length("plackett_luce", length)
    if not (ratio > 0 and math.isfinite(ratio)):
        raise ValueError(f"plackett_luce: ratio must be positive, not {ratio}")
    law = PlackettLuce(math.log(ratio) * torch.arange(length).double())

    def make(index: Tensor, augment: Tensor | None = None, seed: int = 0) -> dict[str, Tensor]:
        return {"x": law.sample(Size([len(index)]), SampleStreams(seed, index).at(0))}

    def truth(context: Mapping[str, Tensor], points: Tensor) -> Tensor:
        return law.log_prob(points)

    test = make(torch.arange(512), seed=1)
    return PermutationData("plackett_luce", make, test, truth=truth, shown={"": {}})


def permutations(path: str | Path, holdout: float = 0.1, seed: int = 0) -> PermutationData:
    """Your own: an `.npy` file of permutations [N, n], rows of 0..n-1.

    Args:
        path: the file.
        holdout: share of the rows to hold out.
        seed: of the split.

    Raises:
        UserError: a file that is missing, damaged, or holds anything else; the message names the row.
    """
    file = Path(path).expanduser()
    x = read_integers(file)
    with naming(str(file)):
        check_permutations(file.stem, x)
        train, test = held_out(len(x), holdout, seed)
    return PermutationData(file.stem, {"x": x[train]}, {"x": x[test]})


def read_integers(path: Path) -> Tensor:
    """The integers in an `.npy` file, int64 of its shape.

    Raises:
        UserError: no such file, or no integers in it.
    """
    if not path.is_file():
        raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        values = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise UserError(f"{path}: not a readable .npy file") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise UserError(f"{path}: an .npy file of integers is needed")
    return torch.from_numpy(values.astype(np.int64))
