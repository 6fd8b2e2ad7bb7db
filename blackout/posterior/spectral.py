"""The multi-scale intrinsic distance of two sets of features (Tsitsulin et al., ICLR 2020)."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

_NEIGHBOURS = 5
_SCALES = np.logspace(-1, 1, 256)


def heat_trace(features: Tensor) -> np.ndarray:
    """tr exp(-s L) / n for s in 0.1..10, L the normalised Laplacian of the graph of five nearest neighbours.

    By all eigenvalues, where the paper has random probes.

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
    edges = sparse.coo_matrix((np.ones(len(rows)), (rows, nearest)), (n, n)).toarray()
    edges = ((edges + edges.T) > 0).astype(np.float64)
    scale = 1 / np.sqrt(edges.sum(1))
    eigenvalues = 1 - np.linalg.eigvalsh(scale[:, None] * edges * scale)
    return np.exp(-np.outer(_SCALES, eigenvalues)).mean(1)


def spectral_distance(one: Tensor, other: Tensor) -> float:
    """The largest difference of two heat traces over all scales s, weighed by exp(-2 (s + 1 / s)), times 1e4.

    Args:
        one, other: features [n, f] and [m, f], more than five each.
    """
    weight = np.exp(-2 * (_SCALES + 1 / _SCALES))
    return float(1e4 * (weight * np.abs(heat_trace(one) - heat_trace(other))).max())
