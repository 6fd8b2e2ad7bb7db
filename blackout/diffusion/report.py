"""Bits per dimension of a model for metrics.json: on both splits, by the bounds asked for, beside simple baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from blackout.data import CountData
from blackout.diffusion.bits import (
    Estimate,
    continuous_bits,
    end_bits,
    finite_time_bits,
    histogram_bits,
    uniform_bits,
    weighted_path_bits,
)
from blackout.diffusion.interface import CountModel
from blackout.diffusion.likelihood import adds_ends
from blackout.diffusion.processes import PureDeath
from blackout.distributed import rank
from blackout.errors import UserError


def likelihood_report(
    model: CountModel, untrained: CountModel | None, data: CountData, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What `sample.py evaluate=true` says of likelihoods.

    Those of a model with classes are given the classes, as in validation, and its bounds on -log p(x), by the null
    class, are called unconditional.

    Args:
        model: in eval mode.
        untrained: the same with fresh weights, a baseline; None for no baselines.
        data: whose first few samples of each split are bounded.
        settings: images, repeats, finite_steps and baselines of conf/sample.yaml.

    Returns:
        values: held-out and training bits per dimension by name; likelihood: how they were made. Both are of samples
        without missing entries, and empty where a split has none.
    """
    n, likelihood = settings["images"], dict[str, Any]()
    complete = data.complete
    if not n or complete is None:
        return {"values": {}, "likelihood": likelihood}
    data, values = complete, dict[str, float]()
    given = {"": True, "_unconditional": False} if model.num_classes is not None else {"": False}
    for split, counts, of_split in (("train", data.train, data.train_labels), ("test", data.test, data.test_labels)):
        for suffix, conditional in given.items():
            labels = of_split[:n] if conditional and of_split is not None else None
            bounds = _bounds(model, counts[:n], labels, settings)
            likelihood[f"{split}{suffix}"] = bounds
            values[f"bits_per_dim_{split}{suffix}"] = bounds["continuous"]["value"]
    if settings["finite_steps"]:
        _print_cost(likelihood["test"]["finite_time"])
    if untrained is not None:
        likelihood["baselines"] = _baselines(untrained, data, data.test[:n], settings["repeats"])
    return {"values": values, "likelihood": likelihood}


def _print_cost(bound: Mapping[str, Any]) -> None:
    if rank() == 0:
        steps, cost = bound["num_steps"], bound["cost_of_steps"]
        print(f"{steps} Poisson steps cost {cost:.3f} bits per dimension more than infinitely many (held-out data)")


def _bounds(model: CountModel, counts: Tensor, labels: Tensor | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds that are asked for, of counts given their labels or not."""
    found: dict[str, Any] = {"continuous": asdict(continuous_bits(model, counts, settings["repeats"], labels=labels))}
    if ends := end_bits(model, counts, labels=labels):
        found["ends"] = asdict(ends)
    if settings["finite_steps"]:
        found |= _finite(model, counts, labels, found, settings)
    return found


def _finite(
    model: CountModel, counts: Tensor, labels: Tensor | None, found: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The bounds of the sampler with so many steps, and what these cost beside infinitely many."""
    steps, paths = settings["finite_steps"], settings["paths"]
    parts = {name: asdict(bound) for name, bound in finite_time_bits(model, counts, steps, labels=labels).items()}
    total = parts.pop("total")
    limit = found["continuous"]["value"]
    if isinstance(model.process, PureDeath) and not adds_ends(model.process):
        limit += found["ends"]["value"]
    bounds = {"finite_time": {"num_steps": steps, **total, "cost_of_steps": total["value"] - limit, "parts": parts}}
    if paths:
        weighted = weighted_path_bits(model, counts, steps, paths, labels=labels)
        bounds["importance_weighted"] = {"num_steps": steps, "paths": paths, **asdict(weighted)}
    return bounds


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of `likelihood_report` before samples are drawn.

    Raises:
        UserError: a number out of range.
    """
    least = {"images": 0, "repeats": 1, "finite_steps": 1, "paths": 1}
    for name, smallest in least.items():
        value = settings[name]
        if value is not None and (type(value) is not int or value < smallest):
            raise UserError(f"likelihood.{name} must be a whole number of at least {smallest}, not {value!r}")
    if settings["paths"] and not settings["finite_steps"]:
        raise UserError("likelihood.paths needs likelihood.finite_steps: paths are of a sampler with so many steps")


def _baselines(untrained: CountModel, data: CountData, test: Tensor, repeats: int) -> dict[str, Any]:
    """Held-out bits per dimension of models that know little or nothing."""
    from blackout.evaluation.count_baselines import baseline_bits  # which loads what only scores need

    uniform = Estimate(uniform_bits(data.max_count), 0.0, len(test))
    return {
        "uniform": asdict(uniform),
        "independent_histograms": asdict(histogram_bits(data.train, test, data.max_count)),
        **{name: {"value": bits, "n": len(test)} for name, bits in baseline_bits(data.train, test).items()},
        "untrained_network": asdict(continuous_bits(untrained, test, repeats)),
    }
