"""Bits per dimension in reports: of a model on both splits, and of baselines."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from blackout.comparisons import Baseline, SampleValues
from blackout.component import Plain
from blackout.data import CountData
from blackout.data.count_statistics import load_samples
from blackout.diffusion.finite_time_bound import LARGEST_TABLE
from blackout.diffusion.likelihood import includes_ends
from blackout.diffusion.likelihood_estimates import (
    Estimate,
    continuous_nats,
    end_bits,
    finite_time_bits,
    strict_bits,
    weighted_path_bits,
)
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.distributed import rank
from blackout.errors import UserError
from blackout.protocols import Split
from blackout.random import low_discrepancy

MAX_HISTOGRAM_COUNT = 255  # of histograms as a baseline; above it most cells stay empty
NUM_BASELINE_SAMPLES = 10_000  # scored by baselines if no bounds of single samples are known


def check_likelihood_settings(model: BlackoutDiffusion, settings: Plain) -> None:
    """Refuse settings of the bits per dimension, before samples are drawn.

    Args:
        model: whose likelihood is bounded.
        settings: images, repeats, finite_steps and paths of `likelihood` in conf/sample.yaml.

    Raises:
        UserError: a number out of range, or the bound of a sampler that is not known for the
            process.
    """
    process = model.process
    for name, smallest in {"images": 0, "repeats": 1, "finite_steps": 1, "paths": 1}.items():
        value = settings[name]
        if value is not None and (type(value) is not int or value < smallest):
            raise UserError(
                f"likelihood.{name} must be a whole number of at least {smallest}, not {value!r}"
            )
    if settings["paths"] and not settings["finite_steps"]:
        raise UserError(
            "likelihood.paths needs likelihood.finite_steps: "
            "paths are of a sampler with so many steps"
        )
    if settings["finite_steps"] and not isinstance(process, PureDeath):
        raise UserError(
            "likelihood.finite_steps bounds the Poisson sampler of pure death: leave it out here"
        )
    if settings["finite_steps"] and process.max_count > LARGEST_TABLE:
        raise UserError(
            f"likelihood.finite_steps needs max_count up to {LARGEST_TABLE}, "
            f"not {process.max_count}: leave it out, and the bound in continuous time remains"
        )


def report_likelihood(
    model: BlackoutDiffusion, source: CountData, settings: Plain
) -> dict[str, Any]:
    """Return bits per dimension on both splits, by the requested bounds.

    Models with classes get the classes, as in validation; their bounds on -log p(x), by the null
    class, are called unconditional.

    Args:
        model: in eval mode.
        source: the first samples of each split are bounded.
        settings: as for `check_likelihood_settings`.

    Returns:
        values: test and training bits per dimension by name.
        likelihood: the bounds they come from.
        sample_values: of every test sample, to be compared with baselines.
        All are of samples without missing entries, and empty if a split has none.
    """
    values: dict[str, float] = {}
    likelihood: dict[str, Any] = {}
    num_images = settings["images"]
    complete = source.without_missing()
    if num_images and complete is None and rank() == 0:
        print(
            "left out: bits per dimension: "
            f"every sample of a split of {source.name} has missing entries"
        )
    if not num_images or complete is None:
        return {"values": values, "likelihood": likelihood}

    suffixes = {"": False}
    if model.num_classes is not None:
        suffixes = {"": True, "_unconditional": False}
    splits = {
        "train": (complete.train, complete.train_labels),
        "test": (complete.test, complete.test_labels),
    }
    sample_values: dict[str, SampleValues] = {}
    for split, (counts, split_labels) in splits.items():
        for suffix, conditional in suffixes.items():
            labels = None
            if conditional and split_labels is not None:
                labels = split_labels[:num_images]
            bounds, nats = _bounds(model, counts[:num_images], labels, settings)
            name = f"bits_per_dim_{split}{suffix}"
            likelihood[f"{split}{suffix}"] = bounds
            values[name] = bounds["continuous"]["value"]
            values[f"{name}_error"] = bounds["continuous"]["standard_error"]
            if split == "test" and not conditional:  # baselines do not know classes
                bits = strict_bits(model, counts[:num_images], nats)
                if bits is not None:
                    index = torch.arange(len(bits))
                    place = low_discrepancy(index)
                    sample_values[name] = SampleValues(index, bits, "upper bound", place=place)
    if settings["finite_steps"] and rank() == 0:
        cost = likelihood["test"]["finite_time"]["cost_of_steps"]
        print(
            f"{settings['finite_steps']} Poisson steps cost {cost:.3f} bits per dimension more "
            "than infinitely many (held-out data)"
        )
    return {"values": values, "likelihood": likelihood, "sample_values": sample_values}


def _bounds(
    model: BlackoutDiffusion, counts: Tensor, labels: Tensor | None, settings: Plain
) -> tuple[dict[str, Any], Tensor]:
    """Return the requested bounds of counts [n, *shape], given their labels or not.

    Returns:
        bounds: by name, in bits. Those of a sampler with a number of steps come with what these
            cost compared with infinitely many.
        nats: of every sample by the continuous bound, float64 [n].
    """
    shape = counts.shape[1:]
    nats = continuous_nats(model, counts, settings["repeats"], labels=labels)
    place = low_discrepancy(torch.arange(len(counts)))
    bounds: dict[str, Any] = {"continuous": asdict(Estimate.from_nats(nats, shape, place))}
    ends = end_bits(model, counts, labels=labels)
    if ends:
        bounds["ends"] = asdict(ends)
    num_steps = settings["finite_steps"]
    if not num_steps:
        return bounds, nats

    estimates = finite_time_bits(model, counts, num_steps, labels=labels)
    parts = {name: asdict(estimate) for name, estimate in estimates.items()}
    total = parts.pop("total")
    infinite_steps = bounds["continuous"]["value"]
    if isinstance(model.process, PureDeath) and not includes_ends(model.process):
        infinite_steps += bounds["ends"]["value"]
    cost = total["value"] - infinite_steps
    bounds["finite_time"] = {
        "num_steps": num_steps,
        **total,
        "cost_of_steps": cost,
        "parts": parts,
    }
    num_paths = settings["paths"]
    if num_paths:
        weighted = weighted_path_bits(model, counts, num_steps, num_paths, labels=labels)
        bounds["importance_weighted"] = {
            "num_steps": num_steps,
            "paths": num_paths,
            **asdict(weighted),
        }
    return bounds, nats


def bound_test_samples(
    model: BlackoutDiffusion, source: CountData, name: str, index: Tensor, values: Tensor
) -> SampleValues | None:
    """Return upper bounds on the bits per dimension of each test sample.

    Args:
        model: without classes, which baselines do not know.
        source: of the samples.
        name: of the metric that was recorded.
        index: of the test samples, int64 [n].
        values: bits per dimension that a validation of them recorded, float64 [n].

    Returns:
        None for other metrics and for models with classes, and where entries are missing or the
        bound of the process lacks a part, see `strict_bits`.
    """
    conditional = model.num_classes is not None
    if name != "test/bits_per_dim" or conditional or source.without_missing() is not source:
        return None
    counts = source.batch("test", index)["x0"]
    nats = values * math.prod(model.shape) * math.log(2)
    bits = strict_bits(model, counts.cpu(), nats)
    if bits is None:
        return None
    place = torch.frac(low_discrepancy(index) * model.validation_draws)
    return SampleValues(index, bits, "upper bound", place=place)


def baseline_values(
    source: CountData, size: int, settings: Plain
) -> dict[str, dict[str, Baseline]]:
    """Return bits per dimension of models of independent counts.

    Args:
        source: of training and held-out samples.
        size: number of held-out samples; 0 for that of the settings.
        settings: with `few`, only histograms of as many training samples are fitted.
    """
    complete = source.without_missing()
    num_train = settings.get("few")
    num_images = settings.get("likelihood", {}).get("images", NUM_BASELINE_SAMPLES)
    number = size or num_train or num_images
    if complete is None or number == 0:
        return {}

    validation = _first_counts(complete, "val", number)
    held_out = torch.cat([validation, _first_counts(complete, "test", number)])
    test = {
        name: Baseline.from_values(bits, len(validation), all_elements)
        for name, (bits, all_elements) in _fit_baselines(complete, num_train, held_out).items()
    }
    if "likelihood" not in settings:
        return {"test/bits_per_dim": test}

    train_counts = _first_counts(complete, "train", number)
    train = {
        name: Baseline(bits, covers_samples=all_elements)
        for name, (bits, all_elements) in _fit_baselines(complete, num_train, train_counts).items()
    }
    return {
        f"bits_per_dim_{split}{suffix}": baselines
        for split, baselines in (("train", train), ("test", test))
        for suffix in ("", "_unconditional")
    }


def _first_counts(source: CountData, split: Split, number: int) -> Tensor:
    """Return the first counts of a split, at most `number` of them, [n, *shape] on the CPU."""
    return source.batch(split, torch.arange(min(number, source.size(split))))["x0"].cpu()


def _fit_baselines(
    source: CountData, num_train: int | None, counts: Tensor
) -> dict[str, tuple[Tensor, bool]]:
    """Return bits per dimension of counts [m, *shape] by models of the training counts.

    Args:
        source: of the training counts.
        num_train: training samples of histograms, without the other models; None for all samples.
        counts: to be bounded.

    Returns:
        By name, float64 [m], and whether they are of all elements.
    """
    # imported here: only scores need it
    from blackout.evaluation.baselines import baseline_bits, fitted_elements, histogram_bits

    train = load_samples(source.train)[:num_train].cpu()
    uniform_bits = math.log2(source.max_count + 1)
    uniform = torch.full((len(counts),), uniform_bits, dtype=torch.float64)
    bits: dict[str, tuple[Tensor, bool]] = {"uniform": (uniform, True)}
    if num_train is None:
        num_elements = math.prod(source.shape)
        all_elements = len(fitted_elements(num_elements)) == num_elements
        for name, values in baseline_bits(train, counts).items():
            bits[name] = (values, all_elements)
    if source.max_count <= MAX_HISTOGRAM_COUNT:
        bits["histograms"] = (histogram_bits(train, counts, source.max_count), True)
    return bits
