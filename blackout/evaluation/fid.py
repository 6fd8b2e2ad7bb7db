"""Frechet distance between Gaussians; with Inception features the Frechet Inception Distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.errors import ensure
from blackout.representation import format_arguments

Array = Tensor | np.ndarray

# tolerance for covariances that other programs computed in float32, relative to the largest value
COVARIANCE_TOLERANCE = 1e-5


class Moments(NamedTuple):
    """Moments of features.

    Attributes:
        mu: mean, float64 [F].
        sigma: unbiased covariance, float64 [F, F].
        n: number of samples.
    """

    mu: Tensor
    sigma: Tensor
    n: int


class FeatureStatistics(Metric):
    """Mean and covariance of features, accumulated in float64 and merged over processes.

    The states are the number of samples, the mean, and the sum of outer products about the mean:
    8 F^2 bytes, 32 MiB for 2048 features. They are updated and merged pairwise, because raw sums
    lose the digits of features whose mean is large compared with their spread.

    Args:
        num_features: F, the width of the features.

    References: Chan et al. 1983.
    """

    count: Tensor
    mean: Tensor
    outer: Tensor

    __repr__ = format_arguments

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        zeros = torch.zeros(num_features, num_features, dtype=torch.float64)
        # without a reduction, states of all processes are stacked, and `compute` merges them
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("mean", zeros[0].clone(), dist_reduce_fx=None)
        self.add_state("outer", zeros, dist_reduce_fx=None)

    def update(self, features: Tensor) -> None:
        """Add a batch of features [B, F].

        Raises:
            ValueError: a feature is not finite.

        References: Chan et al. 1983.
        """
        ensure(bool(torch.isfinite(features).all()), "features contain NaN or infinity")
        if not len(features):
            return
        batch = features.detach().to(device=self.mean.device, dtype=torch.float64)
        batch_mean = batch.mean(dim=0)
        share = len(batch) / (int(self.count) + len(batch))
        difference = batch_mean - self.mean
        centred = batch - batch_mean
        self.outer.addmm_(centred.T, centred)
        self.outer.addr_(difference, difference, alpha=share * float(self.count))
        self.mean += share * difference
        self.count += len(batch)

    def compute(self) -> Moments:
        """Return mean [F] and unbiased covariance [F, F] over all processes.

        Raises:
            ValueError: fewer than two samples were added.

        References: Chan et al. 1983.
        """
        n = int(self.count.sum())
        ensure(n >= 2, f"a covariance needs at least 2 samples, but {n} were added")
        counts = self.count.reshape(-1, 1).double()
        means = self.mean.view(-1, self.num_features)
        outers = self.outer.view(-1, *self.outer.shape[-2:])
        mu = means[0] + (counts * (means - means[0])).sum(0) / n
        difference = means - mu
        sigma = (outers.sum(0) + difference.T @ (counts * difference)) / (n - 1)
        return Moments(mu, (sigma + sigma.T) / 2, n)


def frechet_distance(mu_a: Array, sigma_a: Array, mu_b: Array, sigma_b: Array) -> float:
    """Return the squared 2-Wasserstein distance of two Gaussians.

        |mu_a - mu_b|^2 + tr(S_a) + tr(S_b) - 2 tr((S_a S_b)^(1/2))

    The last trace is the sum of the square roots of the eigenvalues of the symmetric matrix
    R^T S_b R with S_a = R R^T, which are those of S_a^(1/2) S_b S_a^(1/2). They are also real for
    singular covariances (fewer samples than features). Directions in which S_a is zero to rounding
    are left out of R, because the root would amplify their noise from 1e-16 to 1e-8.

    Args:
        mu_a: mean [F].
        sigma_a: covariance [F, F], symmetric and positive semi-definite, possibly singular.
        mu_b: mean [F].
        sigma_b: covariance [F, F].

    Returns:
        The distance, at least 0, computed in float64; lower is better.

    Raises:
        ValueError: shapes do not fit, a value is not finite, or a matrix is not a covariance.

    References: Dowson and Landau 1982; Heusel et al. 2017, eq. 6 (FID).

    Example:
        >>> mean = np.zeros(2)
        >>> covariance = np.eye(2)
        >>> frechet_distance(mean, covariance, mean + 1, covariance)
        2.0
    """
    mean_a, cov_a = _check_gaussian(mu_a, sigma_a, "a")
    mean_b, cov_b = _check_gaussian(mu_b, sigma_b, "b")
    if mean_a.shape != mean_b.shape:
        raise ValueError(
            f"{len(mean_a)} and {len(mean_b)} features: both statistics must be from one extractor"
        )
    mean_b = mean_b.to(mean_a.device)
    cov_b = cov_b.to(mean_a.device)
    root = _factorise(cov_a)
    eigenvalues = torch.linalg.eigvalsh(root.T @ cov_b @ root)
    cross = eigenvalues.clamp_min(0).sqrt().sum()
    distance = (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(distance), 0.0)


def _check_gaussian(mu: Array, sigma: Array, name: str) -> tuple[Tensor, Tensor]:
    """Return mean [F] and covariance [F, F] in float64, the covariance exactly symmetric.

    Raises:
        ValueError: see `frechet_distance`.
    """
    mean = torch.as_tensor(mu).to(torch.float64)
    cov = torch.as_tensor(sigma).to(torch.float64)
    if mean.dim() == cov.dim() == 0:  # torchmetrics squeezes the statistics of a single feature
        mean = mean.view(1)
        cov = cov.view(1, 1)
    if mean.dim() != 1 or cov.shape != (len(mean), len(mean)):
        shapes = f"{tuple(mean.shape)} and {tuple(cov.shape)}"
        raise ValueError(f"statistics {name}: mu must be [F] and sigma [F, F], not {shapes}")
    is_finite = bool(torch.isfinite(mean).all() & torch.isfinite(cov).all())
    ensure(is_finite, f"statistics {name} contain NaN or infinity")
    is_symmetric = (cov - cov.T).abs().max() <= COVARIANCE_TOLERANCE * cov.abs().max()
    ensure(is_symmetric, f"statistics {name}: sigma is not symmetric, so not a covariance")
    return mean, (cov + cov.T) / 2


def _factorise(cov: Tensor) -> Tensor:
    """Return R [F, r] with R R^T = cov [F, F], where r is the numerical rank.

    R is the eigenvectors times the roots of the eigenvalues.

    References: this project, see `frechet_distance`; checked in tests/evaluation/test_frechet.py.
    """
    values, vectors = torch.linalg.eigh(cov)
    smallest = float(values[0])
    largest = float(values[-1].clamp_min(0))
    if smallest < -COVARIANCE_TOLERANCE * largest - 1e-300:
        raise ValueError(
            f"sigma is not a covariance: its eigenvalues are from {smallest:.3g} to {largest:.3g}"
        )
    is_positive = values > len(values) * torch.finfo(torch.float64).eps * largest
    return vectors[:, is_positive] * values[is_positive].sqrt()
