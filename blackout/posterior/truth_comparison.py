"""Errors of samples, and ranks of truths among samples, where the truths are known."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.posterior import diagnostics
from blackout.posterior.gathered_samples import GatheredSamples


def measure_errors(samples: GatheredSamples, truths: Tensor) -> dict[str, float]:
    """Return errors against truths [M, *shape], and the standard deviation of samples.

    References: `diagnostics.psnr`.
    """
    max_count = samples.draw.model.process.max_count
    problem = samples.problem.select(samples.measurement_ids, samples.shape)
    variance = (samples.std**2)[samples.group_index]
    return {
        "psnr": float(diagnostics.psnr(samples.x, truths[samples.group_index], max_count).mean()),
        "psnr_of_mean": float(diagnostics.psnr(samples.mean, truths, max_count).mean()),
        "std": float(variance.mean().sqrt()),
        "log_likelihood_of_truth": float(problem.log_likelihood(truths.double()).mean()),
    }


def reference_values(samples: GatheredSamples, truths: Tensor) -> dict[str, dict[str, float]]:
    """Return reference values of errors.

    They are the error of the mean of the training data, which ignores the measurement, and of
    samples against other samples of their measurement, which is what a truth would have.

    References: `diagnostics.psnr`.
    """
    model = samples.draw.model
    max_count = model.process.max_count
    training_mean = model.data_mean.double().cpu().expand(truths.shape)
    baseline = float(diagnostics.psnr(training_mean, truths, max_count).mean())
    references = {
        "psnr": {"training_mean": baseline},
        "psnr_of_mean": {"training_mean": baseline},
    }
    if min(map(len, samples.rows)) > 1:
        rows = torch.cat(samples.rows)
        other_rows = torch.cat([rows.roll(1) for rows in samples.rows])
        values = diagnostics.psnr(samples.x[rows], samples.x[other_rows], max_count)
        references["psnr"] = {"of_other_samples": float(values.mean()), **references["psnr"]}
    return references


def rank_truths(
    samples: GatheredSamples, truths: Tensor
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return normalised ranks of truths [M, *shape] among their samples.

    Returns:
        Ranks of every statistic, [M] each, and of every element, [M, D]; if some elements are
        hidden, of these only.
    """
    mask = samples.problem.operator.observed_mask(samples.shape)
    hidden = None
    is_hidden = mask is not None and not bool(mask.all())
    if mask is not None and is_hidden and samples.y.shape[1:] == samples.shape:
        hidden = ~mask.flatten().numpy()
    problem = samples.problem.select(samples.measurement_ids, samples.shape)
    log_likelihoods = problem.log_likelihood(truths.double()).numpy()
    flat_truths = truths.double().flatten(1).numpy()
    rng = np.random.default_rng(samples.seed)
    ranks: dict[str, list[float]] = {}
    element_ranks = []
    for rows, x_true, log_likelihood in zip(
        samples.rows, flat_truths, log_likelihoods, strict=True
    ):
        x = samples.x[rows].double().flatten(1).numpy()
        sample_log_likelihoods = samples.log_likelihood[rows].numpy()
        sample_statistics = diagnostics.rank_statistics(x, sample_log_likelihoods, hidden)
        true_statistics = diagnostics.rank_statistics(x_true, log_likelihood, hidden)
        for name, values in sample_statistics.items():
            true_value = np.asarray(true_statistics[name])
            rank = diagnostics.normalised_ranks(values, true_value, rng)
            ranks.setdefault(name, []).append(float(rank))
        element_ranks.append(diagnostics.normalised_ranks(x, x_true, rng))
    stacked = np.stack(element_ranks)
    if hidden is not None:
        stacked = stacked[:, hidden]
    return {name: np.array(values) for name, values in ranks.items()}, stacked
