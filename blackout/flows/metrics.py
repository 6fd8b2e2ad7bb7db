"""Units and better directions of the estimates of flows, energies and annealing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from blackout.protocols import MetricDescription

METRICS = {
    "log_z": MetricDescription("nats", "reference"),
    "elbo": MetricDescription("nats", "higher"),
    "eubo": MetricDescription("nats", "lower"),
    "ess": MetricDescription("share of samples", "higher"),
    "pareto_k": MetricDescription(better="lower"),
    "r_hat": MetricDescription(better="lower"),
    "mean_energy": MetricDescription("nats", "reference"),
    "nll": MetricDescription("nats per sample", "lower"),
    "nll_ais": MetricDescription("nats per sample", "lower"),
    "nll_sampler": MetricDescription("nats per sample", "lower"),
    "nll_exact": MetricDescription("nats per sample", "lower"),
    "nll_chain_bound": MetricDescription("nats per sample", "lower"),
    "ess_ais": MetricDescription("share of samples", "higher"),
    "ess_sampler": MetricDescription("share of samples", "higher"),
    "coupling_slope": MetricDescription(better="reference"),
    "neg_log_rmse": MetricDescription(better="higher"),
    "max_gradient_z_score": MetricDescription("standard errors", "lower"),
    "evaluations_per_sample": MetricDescription(better="lower"),
    "jumps_per_sample": MetricDescription(),
}


def describe_estimates(values: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of metrics.json that describe estimates.

    Args:
        values: estimates by name; the exact value of `x` is `x_exact`.

    Returns:
        `references`, the exact values by estimate, and `metric_descriptions`.
    """
    return {
        "references": {
            name: {"exact": values[f"{name}_exact"]} for name in values if f"{name}_exact" in values
        },
        "metric_descriptions": {name: asdict(METRICS[name]) for name in values if name in METRICS},
    }
