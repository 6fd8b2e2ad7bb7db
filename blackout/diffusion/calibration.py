"""Corrections that bring samples in line with the data, or with what is asked of them: totals, brightness, equal pairs.

Predicted means are scaled on the way, to a total that is given (`TotalDenoiser`) or so that samples are as bright as
the training data (`calibration`); pairs of elements are made equal at the end as often as in the data (`tied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.counts import per_row
from blackout.data.count_statistics import TIED_FROM
from blackout.diffusion.predictions import CountPrediction, Denoiser, Prediction
from blackout.diffusion.processes import Process
from blackout.diffusion.samplers import Kernel, sample
from blackout.diffusion.schedules import logit_survival
from blackout.random import SampleStreams

_LEAST = 1e-12
"""Units that are still missing where the total is there already."""
_PARTED, _PARTS = 1e-3, 997
"""How far apart distances are that would be equal, in units of theirs, and in how many steps."""


@dataclass(frozen=True)
class TotalDenoiser:
    """Predictions given the total count of X_0 too: as much is missing in all as the total lacks.

    E[sum N | X_t, sum X_0 = T] = T - sum X_t exactly, whatever the data; a network that was told a total satisfies it
    only nearly. What it says of how that is divided among the elements is left as it is. Ours; its law is that samples
    have the total (`tests/diffusion/test_conditions.py`).

    Args:
        denoiser: of pure death, told the total.
        total: T.
    """

    denoiser: Denoiser
    total: float

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """y (T - sum X_t) / sum y of states [B, ...] at times t, a scalar or [B], with y [B, ...]: see the class."""
        prediction = self.denoiser(xt, t)
        if type(prediction) is not CountPrediction:
            raise ValueError("a total needs a head that predicts means alone, such as head=gamma")
        lacking = (self.total - xt.flatten(1).sum(1, dtype=torch.float64)).clamp(min=_LEAST)
        factor = lacking / prediction.expected.flatten(1).sum(1).clamp(min=_LEAST)
        return _scaled(prediction, per_row(factor, xt))


@dataclass(frozen=True)
class CalibratedDenoiser:
    """Predicted means times a number of each time (`calibration`).

    Args:
        denoiser: of pure death.
        logits: of survival, rising.
        factors: the number at each, between them linear in the logit, beyond them the outermost.
    """

    denoiser: Denoiser
    logits: Sequence[float]
    factors: Sequence[float]

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """y [B, ...] times the interpolated factor, of states [B, ...] at times t, a scalar or [B]; ours, see
        `calibration`.
        """
        factor = np.interp(logit_survival(t.cpu()), self.logits, self.factors)
        return _scaled(self.denoiser(xt, t), per_row(torch.as_tensor(factor), xt).to(xt.device))


def _scaled(prediction: Prediction, factor: Tensor) -> CountPrediction:
    """The prediction of [B, ...] with its mean times the positive `factor`, broadcastable to it: ours, see
    `TotalDenoiser`.
    """
    assert isinstance(prediction, CountPrediction)
    log_mean = prediction.log_mean + factor.log().to(prediction.log_mean)
    return replace(prediction, mean=log_mean.exp(), log_mean=log_mean)


def calibration(
    denoiser: Denoiser, process: Process, times: Tensor, shape: tuple[int, ...], streams: SampleStreams, *,
    mean: Tensor, kernel: Kernel, batch_size: int,
) -> dict[str, list[float]]:  # fmt: skip
    """What `CalibratedDenoiser` needs, from samples that are drawn together: at each time of theirs the factor c with

        sum X_t + c sum y = the sum of as many E[X_0].

    E[X_0 | X_t] is a martingale: whatever the states and the steps, X_t + y has the mean of the data at every time. An
    overfitted network errs to both sides in the logarithm on what it has not seen, its own samples too, and expects too
    much on average; what was born too much then makes it expect more. Ours (tests/laws/test_kernel_laws.py).

    Args:
        denoiser: of pure death.
        process, times, shape, streams, kernel: as for `sample`; factors are as uncertain as the mean of `shape`[0]
            samples is.
        mean: E[X_0] of the training data.
        batch_size: of one evaluation.
    """
    found: dict[float, float] = {}
    total = float(mean.double().sum()) * shape[0]

    def pinned(xt: Tensor, t: Tensor) -> Prediction:
        """Predictions of all states [n, ...] times one factor, the c of `calibration`, which is kept."""
        parts = [denoiser(part, t) for part in xt.split(batch_size)]
        log_mean = torch.cat([part.log_mean for part in parts if isinstance(part, CountPrediction)])
        prediction = CountPrediction(log_mean.exp(), log_mean)
        factor = (total - xt.sum(dtype=torch.float64)).clamp(min=_LEAST) / prediction.expected.sum().clamp(min=_LEAST)
        found[float(logit_survival(t))] = float(factor)
        return _scaled(prediction, factor)

    sample(pinned, process, times, shape, streams, kernel=kernel, mean=mean, device=mean.device)
    return {"logits": sorted(found), "factors": [found[logit] for logit in sorted(found)]}


def distances(pairs: list[list[Any]], samples: Tensor) -> list[list[Any]]:
    """Pairs of elements [i, j, share] with how near they must be to be made equal, so that this share of samples is.

    The distance is that of `tied`, and its quantile over samples: ours (tests/diffusion/test_pairs.py).

    Args:
        pairs: of the data, see `equal_pairs`.
        samples: counts [n, D] of the model's own.
    """
    rows, found = samples.cpu().double(), []
    parted = _parted(rows)
    for i, j, share, *_ in pairs:
        apart = (_apart(rows, i, j) * parted)[rows[:, [i, j]].amax(1) >= TIED_FROM]
        found.append([i, j, share, float(torch.quantile(apart, share, interpolation="lower")) if len(apart) else 0.0])
    return found


def tied(samples: Tensor, pairs: list[list[Any]]) -> Tensor:
    """Counts [b, D] whose pairs are equal where they are nearest.

    A step in which elements are born on their own blurs what holds exactly: of two counts that are equal in 88 % of the
    data few are, though nearly all are near. This moves the distribution of their distance |x_i - x_j| / sqrt(x_i + x_j
    + 1), as of Poisson counts, to the data's at 0, monotonically: j gets the count of i where the distance is least, in
    as large a share of samples as in the data. Samples that have that share are left as they are. Ours
    (tests/diffusion/test_pairs.py).

    Args:
        pairs: [i, j, share, distance] with the largest distance that is made 0, from `distances`.
    """
    made, rows = samples.clone(), samples.double()
    parted = _parted(rows)
    for i, j, _, most in pairs:
        made[:, j] = torch.where(_apart(rows, i, j) * parted <= most, made[:, i], made[:, j])
    return made


def _apart(rows: Tensor, i: int, j: int) -> Tensor:
    """|x_i - x_j| / sqrt(x_i + x_j + 1) of rows [n, D], float64 [n]: the distance of `tied`."""
    return (rows[:, i] - rows[:, j]).abs() / (rows[:, i] + rows[:, j] + 1).sqrt()


def _parted(rows: Tensor) -> Tensor:
    """Factors [n] of the distances of rows [n, D], see `tied`; those of small counts would have few values.

    What counts a sample has sets it apart from others, whole numbers alone, so that no more samples than wanted are
    below one of them. Ours (tests/diffusion/test_pairs.py).
    """
    among = (rows * torch.arange(1, 1 + rows.shape[1], device=rows.device)).sum(1) % _PARTS / _PARTS
    return 1 + _PARTED * among
