"""How far samples of a posterior can be trusted: mixing of chains, calibration, and what they say about the truth."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

_PROJECTIONS = 16
_BINS = 10


def r_hat(chains: np.ndarray) -> float:
    """Split R-hat of chains [C, T]: near 1 where they agree [Gelman 2013, section 11.4].

    NaN of fewer than two chains or four values; 1 where nothing varies.
    """
    half = chains.shape[1] // 2
    if len(chains) < 2 or half < 2:
        return math.nan
    parts = np.concatenate([chains[:, :half], chains[:, -half:]])
    within, between = parts.var(1, ddof=1).mean(), half * parts.mean(1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return float(np.sqrt((half - 1) / half + between / within / half))


def effective_size(chains: np.ndarray) -> float:
    """Effective number of draws in chains [C, T], by the initial positive sequence of averaged covariances
    [Geyer 1992, section 3.3].
    """
    count, length = chains.shape
    centred = chains - chains.mean(1, keepdims=True)
    covariance = np.array(
        [(centred[:, : length - lag] * centred[:, lag:]).sum(1).mean() / length for lag in range(length)]
    )
    if not covariance[0] > 0:
        return float(count * length)
    rho = covariance / covariance[0]
    total = 1.0
    for lag in range(1, length - 1, 2):
        pair = rho[lag] + rho[lag + 1]
        if pair <= 0:
            break
        total += 2 * pair
    return float(count * length / max(total, 1.0))


def psnr(x: Tensor, truth: Tensor, max_count: int) -> Tensor:
    """Peak signal-to-noise ratio in dB of samples and truths [n, *shape], float64 [n]; at most 100."""
    error = ((x.double() - truth.double()) ** 2).flatten(1).mean(1) / max_count**2
    return -10 * error.clamp(min=1e-10).log10()


def positions(samples: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where truths lie among samples, in (0, 1): uniform if both are of one law, ties being broken at random
    [Talts 2018, theorem 1].

    Args:
        samples: [S, ...], axis 0 the samples.
        truth: [...].
        rng: breaks ties.
    """
    below, equal = (samples < truth).sum(0), (samples == truth).sum(0)
    return (below + rng.random(truth.shape) * (equal + 1)) / (len(samples) + 1)


def statistics(x: np.ndarray, log_likelihood: np.ndarray, hidden: np.ndarray | None) -> dict[str, np.ndarray]:
    """What ranks are taken of: total count, that of hidden elements, log-likelihood, and 16 fixed random projections.

    Args:
        x: [..., D].
        log_likelihood: [...].
        hidden: bool [D], if some elements are.
    """
    weights = np.random.default_rng(16).normal(size=(_PROJECTIONS, x.shape[-1]))
    named = {"total": x.sum(-1), "log_likelihood": log_likelihood}
    if hidden is not None:
        named["hidden total"] = (x * hidden).sum(-1)
    return named | {f"projection {number}": x @ one for number, one in enumerate(weights)}


def rank_p_value(found: dict[str, np.ndarray]) -> float:
    """Bonferroni's p-value of the least of the chi-square tests that positions [M] of each statistic are uniform."""
    p = []
    for values in found.values():
        bins = int(min(_BINS, len(values) // 5))
        if bins < 2:
            return math.nan
        p.append(float(stats.chisquare(np.histogram(values, bins, (0, 1))[0]).pvalue))
    return min(1.0, min(p) * len(p))


def coverage(at: np.ndarray, share: float) -> float:
    """Share of positions within the central interval of that share."""
    return float((np.abs(at - 0.5) <= share / 2).mean())


def nearest_labels(x: Tensor, train: Tensor, labels: Tensor, neighbours: int = 3) -> Tensor:
    """The label of most of the nearest training samples, int64 [n]; the smallest label where there is a draw.

    Args:
        x: samples [n, *shape].
        train, labels: samples [N, *shape] and their labels, int64 [N].
        neighbours: how many are asked.
    """
    flat, reference = x.float().flatten(1), train.float().flatten(1)
    found = []
    for part in flat.split(64):
        distance = (part**2).sum(1)[:, None] - 2 * part @ reference.T + (reference**2).sum(1)
        found.append(labels[distance.topk(neighbours, largest=False).indices].mode(1).values)
    return torch.cat(found)


_NEIGHBOURS = 5
_SCALES = np.logspace(-1, 1, 256)


def heat_trace(features: Tensor) -> np.ndarray:
    """tr exp(-s L) / n for s in 0.1..10, L the normalised Laplacian of the graph of five nearest neighbours.

    By all eigenvalues, where the paper has random probes [Tsitsulin 2020].

    Args:
        features: [n, f], n > 5.

    Returns:
        float64 [256].
    """
    flat = features.double()
    distance = torch.cdist(flat, flat).fill_diagonal_(torch.inf)
    nearest = distance.topk(_NEIGHBOURS, largest=False).indices.flatten().numpy()
    n = len(features)
    rows = np.repeat(np.arange(n), _NEIGHBOURS)
    edges = np.zeros((n, n))
    edges[rows, nearest] = edges[nearest, rows] = 1.0
    scale = 1 / np.sqrt(edges.sum(1))
    eigenvalues = 1 - np.linalg.eigvalsh(scale[:, None] * edges * scale)
    return np.exp(-np.outer(_SCALES, eigenvalues)).mean(1)


def spectral_distance(one: Tensor, other: Tensor) -> float:
    """The multi-scale intrinsic distance of two sets of features, times 1e4 [Tsitsulin 2020].

    It is the largest difference of two heat traces over all scales s, weighed by exp(-2 (s + 1 / s)).

    Args:
        one, other: features [n, f] and [m, f], more than five each.
    """
    weight = np.exp(-2 * (_SCALES + 1 / _SCALES))
    return float(1e4 * (weight * np.abs(heat_trace(one) - heat_trace(other))).max())
