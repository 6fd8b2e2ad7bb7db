"""Kernel distance of features (KID): the mean squared maximum mean discrepancy of subsets."""

from __future__ import annotations

from torch import Tensor

# torch-fidelity's settings
SUBSETS = 100  # random subsets
SUBSET_SEED = 2020
# samples in a subset; half of the smaller set if that is fewer, because subsets of all samples
# would be equal and the standard deviation 0
SUBSET_SIZE = 1000


def choose_subset_size(smaller_size: int) -> int:
    """Return the number of samples in a subset, given the size of the smaller of both sets."""
    if smaller_size < SUBSET_SIZE:
        return max(2, smaller_size // 2)
    return SUBSET_SIZE


def kernel_distance(samples: Tensor, reference: Tensor, subset_size: int) -> tuple[float, float]:
    """Return mean and standard deviation of the kernel distance over random subsets.

    A distance is the unbiased estimate of the squared maximum mean discrepancy, with the polynomial
    kernel of torch-fidelity. It can be slightly negative.

    Args:
        samples: features [n, F] of generated images.
        reference: features [m, F] of reference images.
        subset_size: images of either set in a subset.

    References: Gretton et al. 2012, eq. 3; Binkowski et al. 2018, section 4.
    """
    from torch_fidelity.metric_kid import kid_features_to_metric

    distances = kid_features_to_metric(
        samples,
        reference,
        kid_subsets=SUBSETS,
        kid_subset_size=subset_size,
        rng_seed=SUBSET_SEED,
        verbose=False,
    )
    mean = distances["kernel_inception_distance_mean"]
    std = distances["kernel_inception_distance_std"]
    return mean, std
