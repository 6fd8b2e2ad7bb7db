"""Frechet distance between Gaussians: with Inception features, the Frechet Inception Distance; the moments it is of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.errors import ensure


class Moments(NamedTuple):
    """Mean `mu` [F], unbiased covariance `sigma` [F, F] (both float64) and number of samples `n`."""

    mu: Tensor
    sigma: Tensor
    n: int


class FeatureStatistics(Metric):
    """Mean and covariance of features, accumulated in float64 and put together over processes.

    The states are n, the mean and the sum of outer products about it, 8 F^2 bytes (32 MiB for 2048 features), updated
    and merged pairwise [Chan 1983]: raw sums lose the digits of features whose mean is large beside their spread.

    Args:
        num_features: F, the width of the features.
    """

    count: Tensor
    mean: Tensor
    outer: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        zeros = torch.zeros(num_features, num_features, dtype=torch.float64)
        # over processes they are stacked, for `compute` to merge
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("mean", zeros[0].clone(), dist_reduce_fx=None)
        self.add_state("outer", zeros, dist_reduce_fx=None)

    def update(self, features: Tensor) -> None:
        """Add a batch of features [B, F], merging mean [F] and outer products [F, F] pairwise [Chan 1983].

        Raises:
            ValueError: one is not finite.
        """
        ensure(bool(torch.isfinite(features).all()), "features contain NaN or infinity")
        if not len(features):
            return
        wide = features.detach().to(device=self.mean.device, dtype=torch.float64)
        mean = wide.mean(dim=0)
        share = len(wide) / (int(self.count) + len(wide))
        apart, centred = mean - self.mean, wide - mean
        self.outer.addmm_(centred.T, centred).addr_(apart, apart, alpha=share * float(self.count))
        self.mean += share * apart
        self.count += len(wide)

    def compute(self) -> Moments:
        """Mean [F] and unbiased covariance [F, F] over all processes, merged pairwise [Chan 1983].

        Raises:
            ValueError: fewer than two samples were added.
        """
        n = int(self.count.sum())
        ensure(n >= 2, f"a covariance needs at least 2 samples, but {n} were added")
        counts, means = self.count.reshape(-1, 1).double(), self.mean.view(-1, self.num_features)
        mu = means[0] + (counts * (means - means[0])).sum(0) / n
        apart = means - mu
        sigma = (self.outer.view(-1, *self.outer.shape[-2:]).sum(0) + apart.T @ (counts * apart)) / (n - 1)
        return Moments(mu, (sigma + sigma.T) / 2, n)


Array = Tensor | np.ndarray
_ROUNDING = 1e-5
"""Of covariances that other programs computed in float32, relative to the largest."""


def frechet_distance(mu_a: Array, sigma_a: Array, mu_b: Array, sigma_b: Array) -> float:
    """Squared 2-Wasserstein distance of two Gaussians [Dowson 1982], the FID of [Heusel 2017, eq. 6].

        |mu_a - mu_b|^2 + tr(S_a) + tr(S_b) - 2 tr((S_a S_b)^(1/2))

    The last trace is the sum of the square roots of the eigenvalues of the symmetric matrix R^T S_b R with S_a = R R^T,
    which are those of S_a^(1/2) S_b S_a^(1/2). They are real for singular covariances (fewer samples than features)
    too. Directions in which S_a is zero to rounding are left out of R: the root would amplify their noise from 1e-16 to
    1e-8.

    Args:
        mu_a, mu_b: means [F].
        sigma_a, sigma_b: covariances [F, F], symmetric and positive semi-definite, possibly singular.

    Returns:
        The distance, at least 0, computed in float64.

    Raises:
        ValueError: shapes do not fit, a value is not finite, or a matrix is not a covariance.
    """
    mean_a, cov_a = _gaussian(mu_a, sigma_a, "a")
    mean_b, cov_b = _gaussian(mu_b, sigma_b, "b")
    if mean_a.shape != mean_b.shape:
        raise ValueError(f"{len(mean_a)} and {len(mean_b)} features: statistics must come from one extractor")
    mean_b, cov_b = mean_b.to(mean_a.device), cov_b.to(mean_a.device)
    root = _factor(cov_a)
    cross = torch.linalg.eigvalsh(root.T @ cov_b @ root).clamp_min(0).sqrt().sum()
    distance = (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(distance), 0.0)


def _gaussian(mu: Array, sigma: Array, name: str) -> tuple[Tensor, Tensor]:
    """Mean [F] and covariance [F, F] in float64, exactly symmetric; raises ValueError, see `frechet_distance`."""
    mean, cov = (torch.as_tensor(value).to(torch.float64) for value in (mu, sigma))
    if mean.dim() != 1 or cov.shape != (len(mean), len(mean)):
        shapes = f"{tuple(mean.shape)} and {tuple(cov.shape)}"
        raise ValueError(f"statistics {name}: mu must be [F] and sigma [F, F], but they are {shapes}")
    ensure(bool(torch.isfinite(mean).all() & torch.isfinite(cov).all()), f"statistics {name} contain NaN or infinity")
    symmetric = (cov - cov.T).abs().max() <= _ROUNDING * cov.abs().max()
    ensure(symmetric, f"statistics {name}: sigma is no covariance, it is not symmetric")
    return mean, (cov + cov.T) / 2


def _factor(cov: Tensor) -> Tensor:
    """R [F, r] with R R^T = cov [F, F], r its numerical rank: eigenvectors times roots of eigenvalues.

    Ours (tests/evaluation/test_frechet.py), see `frechet_distance`.
    """
    values, vectors = torch.linalg.eigh(cov)
    least, largest = float(values[0]), float(values[-1].clamp_min(0))
    if least < -_ROUNDING * largest - 1e-300:
        pair = f"the negative eigenvalue {least:.3g} beside {largest:.3g}"
        raise ValueError(f"sigma is not a covariance: it has {pair}")
    kept = values > len(values) * torch.finfo(torch.float64).eps * largest
    return vectors[:, kept] * values[kept].sqrt()
