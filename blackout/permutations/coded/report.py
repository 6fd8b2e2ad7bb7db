"""Likelihoods of coded models: bits of test permutations, and divergences from the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from blackout.comparisons import SampleValues
from blackout.permutations.coded.baselines import ranking_baselines
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.decoding import Order, Passes
from blackout.permutations.coded.likelihood import MAX_EXACT_ITEMS, exact_mixture
from blackout.permutations.coded.losses import autoregressive_loss
from blackout.permutations.coded.model import CodeModel
from blackout.permutations.group import all_permutations
from blackout.permutations.metrics import kl_bits
from blackout.protocols import MetricDescription
from blackout.random import SampleStreams

MAX_ONE_PASS_ITEMS = 9  # items up to which all permutations are evaluated in one pass each
NETWORK_BATCH = 1000  # permutations in one network evaluation


def likelihood_report(
    model: CodeModel, source: PermutationData, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the bits per test permutation, and the divergence from a known distribution.

    Args:
        model: in eval mode.
        source: of the test permutations.
        settings: `likelihood.images` and `likelihood.baselines` of conf/sample.yaml, and how
            samples are drawn.

    Returns:
        `values`: `nll_bits_test`, and `kl_bits` and `total_variation` for each reported context;
        `likelihood`: how they were computed, and scores of ranking baselines; `sample_values`: bits
        of each test permutation.
    """
    options = settings["likelihood"]
    size = min(options["images"], source.size("test") or 0)
    if not size:
        return {"values": {}}
    passes = model.passes.with_settings(settings).resolve(model.length, model.objective)
    bits = held_out_bits(model, source, size, passes)
    divergences = _divergences(model, source, passes)
    values = {"nll_bits_test": float(bits.mean()), **divergences}
    if size > 1:
        values["nll_bits_test_error"] = float(bits.std()) / math.sqrt(size)
    kind = model.likelihood_kind(passes)
    likelihood: dict[str, Any] = {"held_out": size, "nll_bits": kind, **asdict(passes)}
    if passes.greedy:
        likelihood["note"] = (
            "greedy draws have no density: the bits are those of the same passes and order "
            "without it"
        )
    condition = settings.get("condition")
    if condition is not None:
        likelihood["condition"] = "none: the bits are those of whole permutations"
    if options["baselines"] and source.kind == "rankings":
        num_observed = condition if type(condition) is int else 0
        likelihood["rankings"] = ranking_baselines(source, num_observed, size)
    sample_values = {"nll_bits_test": SampleValues(torch.arange(size), bits, kind)}
    return {
        "values": values,
        "likelihood": likelihood,
        "sample_values": sample_values,
        "metric_descriptions": dict.fromkeys(
            divergences, asdict(MetricDescription(better="lower"))
        ),
    }


def _divergences(model: CodeModel, source: PermutationData, passes: Passes) -> dict[str, float]:
    """Return KL(truth || model) in bits and the total variation for every reported context.

    The result is empty if the truth is unknown or there are too many permutations.

    References: this project; checked in tests/permutations/coded/test_model.py.
    """
    if source.log_prob is None:
        return {}
    values: dict[str, float] = {}
    num_passes = passes.passes or model.length
    for name, context in source.reported_contexts.items():
        distribution = exact_distribution(model, context, num_passes, passes.order)
        if distribution is None:
            continue
        permutations, log_q = distribution
        log_p = source.log_prob(context, permutations)
        values[f"kl_bits {name}".strip()] = kl_bits(log_p, log_q)
        distance = 0.5 * float((log_p.exp() - log_q.exp()).abs().sum())
        values[f"total_variation {name}".strip()] = distance
    return values


@torch.no_grad()
def held_out_bits(model: CodeModel, source: PermutationData, size: int, passes: Passes) -> Tensor:
    """Return the bits of the first test permutations, float64 [size].

    `CodeModel.likelihood_kind` says whether they are exact.
    """
    bits = torch.zeros(size, dtype=torch.float64)
    for index in torch.arange(size).split(NETWORK_BATCH):
        batch = {
            name: values.to(model.device) for name, values in source.batch("test", index).items()
        }
        streams = SampleStreams(0, index.to(model.device)).step(0)
        nll = model.nll(model.denoiser(batch), model.encode(batch["x"]), streams, passes)
        bits[index] = nll.cpu() / math.log(2)
    return bits


@torch.no_grad()
def exact_distribution(
    model: CodeModel, context: Mapping[str, Tensor], passes: int, order: Order | None = "random"
) -> tuple[Tensor, Tensor] | None:
    """Return all permutations and their log-probabilities for a context.

    The result is None if there are too many. They are enumerated up to 7 items for any number of
    passes, and up to 9 items in one pass or for an autoregressive model. Inline codes that are no
    permutations are left out, so that the probabilities sum to less than 1. With order=confidence
    and several passes the order depends on the digits, and None is returned.

    Args:
        model: trained.
        context: arrays [1, ...].
        passes: network evaluations.
        order: of the digits.

    Returns:
        Permutations int64 [n!, n] and log p float64 [n!].

    References: Severo et al. 2025, eq. 2; see `exact_mixture`.
    """
    n = model.length
    causal = model.objective == "autoregressive"
    single_pass = causal or passes <= 1
    if n > MAX_ONE_PASS_ITEMS:
        return None
    if not single_pass and (n > MAX_EXACT_ITEMS or order == "confidence"):
        return None
    denoiser = model.denoiser({name: values.to(model.device) for name, values in context.items()})
    permutations = all_permutations(n).to(model.device)
    codes = model.encode(permutations)
    if not single_pass:
        probabilities = exact_mixture(
            denoiser, codes, model.support, passes, random_order=order == "random"
        )
        return permutations.cpu(), probabilities.log()
    # with a single pass all codes have the logits of masked digits
    masked_logits = denoiser(torch.full_like(codes[:1], n))

    def one_pass(part: Tensor) -> Tensor:
        """Return logits [b, n, n] of codes [b, n]."""
        return denoiser(part) if causal else masked_logits.expand(len(part), -1, -1)

    log_p = [
        -autoregressive_loss(one_pass, part, model.support) for part in codes.split(NETWORK_BATCH)
    ]
    return permutations.cpu(), torch.cat(log_p).double().cpu()
