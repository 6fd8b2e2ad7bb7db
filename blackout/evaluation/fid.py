"""Frechet distance between Gaussians: with Inception features, the Frechet Inception Distance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


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
    spectrum = torch.linalg.eigvalsh(root.T @ cov_b @ root)
    cross = spectrum.clamp_min(0).sqrt().sum()
    distance = (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(distance), 0.0)


def _gaussian(mu: Array, sigma: Array, name: str) -> tuple[Tensor, Tensor]:
    mean, cov = (torch.as_tensor(value).to(torch.float64) for value in (mu, sigma))
    if mean.dim() != 1 or cov.shape != (len(mean), len(mean)):
        shapes = f"{tuple(mean.shape)} and {tuple(cov.shape)}"
        raise ValueError(f"statistics {name}: mu must be [F] and sigma [F, F], but they are {shapes}")
    if not bool(torch.isfinite(mean).all() & torch.isfinite(cov).all()):
        raise ValueError(f"statistics {name} contain NaN or infinity")
    return mean, (cov + cov.T) / 2


def _factor(cov: Tensor) -> Tensor:
    """R [F, r] with R R^T = cov [F, F], r its numerical rank."""
    values, vectors = torch.linalg.eigh(cov)
    least, largest = float(values[0]), float(values[-1].clamp_min(0))
    if least < -1e-6 * largest - 1e-300:
        pair = f"the negative eigenvalue {least:.3g} beside {largest:.3g}"
        raise ValueError(f"sigma is not a covariance: it has {pair}")
    kept = values > len(values) * torch.finfo(torch.float64).eps * largest
    root: Tensor = vectors[:, kept] * values[kept].sqrt()
    return root
