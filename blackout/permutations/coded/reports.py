"""What `evaluate=true` says of a model besides its samples: likelihood, distance from a known law, baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from blackout.permutations.coded.baselines import likelihood_baselines, ranking_baselines
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.exact import MOST_ITEMS, ExactLaw, every_mask_nll
from blackout.permutations.coded.interface import CodedModel
from blackout.permutations.factorized import Denoiser, autoregressive_loss, code_log_prob, partition
from blackout.permutations.group import all_permutations
from blackout.random import RandomSource, SampleStreams, uniform

_ENUMERATED = 9
"""Most items whose law is enumerated where one pass over each permutation says it."""
_AT_ONCE = 1000


def likelihood_report(model: CodedModel, source: PermutationData, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bits per held-out permutation; where the law is known and its items are few, the divergence from it in bits.

    Args:
        model: in eval mode.
        source: of the held-out samples.
        settings: `likelihood.images` and `likelihood.baselines` of conf/sample.yaml, and how samples are drawn.

    Returns:
        values: `nll_bits_test`, `kl_bits` and `total_variation` of each shown context; likelihood: how they were made,
        and the baselines.
    """
    options = settings["likelihood"]
    size = min(options["images"], source.size("test") or 0)
    if not size:
        return {"values": {}}
    values = {"nll_bits_test": held_out_bits(model, source, size), **_divergences(model, source, settings)}
    exact = model.objective == "autoregressive"
    likelihood: dict[str, Any] = {"held_out": size, "nll_bits": "exact" if exact else "averaged over all orders"}
    likelihood["uniform_bits"] = math.lgamma(model.length + 1) / math.log(2)
    if options["baselines"]:
        likelihood["baselines"] = likelihood_baselines(source, size)
        if source.kind == "rankings":
            known = settings.get("given")
            likelihood["rankings"] = ranking_baselines(source, known if type(known) is int else 0, size)
    return {"values": values, "likelihood": likelihood}


def _divergences(model: CodedModel, source: PermutationData, settings: Mapping[str, Any]) -> dict[str, float]:
    """KL(truth || model) in bits and total variation for every shown context, where both laws can be enumerated."""
    if source.truth is None:
        return {}
    passes = settings.get("passes") or model.passes.passes or 1
    order = settings.get("order") or model.passes.order
    if order == "confidence" and passes > 1:  # an order of its own for every outcome
        return {}
    found = {}
    for name, context in source.shown.items():
        if (law := exact_law(model, context, passes, order == "random")) is not None:
            points, log_q = law
            log_p = source.truth(context, points)
            found[f"kl_bits {name}".strip()] = kl_bits(log_p, log_q)
            found[f"total_variation {name}".strip()] = 0.5 * float((log_p.exp() - log_q.exp()).abs().sum())
    return found


def kl_bits(log_p: Tensor, log_q: Tensor) -> float:
    """KL(p || q) in bits, of log-probabilities [m] in nats."""
    terms = log_p.exp() * (log_p - log_q)
    return float(terms.masked_fill(log_p == -math.inf, 0.0).sum()) / math.log(2)


@torch.no_grad()
def held_out_bits(model: CodedModel, source: PermutationData, size: int) -> float:
    """Mean bits per held-out permutation: exact, or the bound over all orders (without noise to 7 items)."""
    total = 0.0
    for index in torch.arange(size).split(_AT_ONCE):
        batch = {name: values.to(model.device) for name, values in source.batch("test", index).items()}
        streams = SampleStreams(0, index.to(model.device)).at(0)
        total += float(held_out_nll(model, model.denoiser(batch), model.encode(batch["x"]), streams).sum())
    return total / size / math.log(2)


def held_out_nll(model: CodedModel, denoiser: Denoiser, codes: Tensor, streams: RandomSource) -> Tensor:
    """-log p in nats, float64 [B]: exact of an autoregressive model, of a masked one the mean over orders of digits.

    To 7 items that mean is exact too, by every set of masked digits; above it is that of one random order per sample,
    digit by digit.
    """
    if model.objective == "autoregressive":
        return autoregressive_loss(denoiser, codes, model.support).double()
    n = codes.shape[1]
    if n <= MOST_ITEMS:
        return every_mask_nll(denoiser, codes, model.support)
    order = uniform(tuple(codes.shape), streams, codes.device).argsort(dim=1)
    return -code_log_prob(denoiser, codes, partition(n, n, order), model.support).double()


@torch.no_grad()
def exact_law(
    model: CodedModel, context: Mapping[str, Tensor], passes: int, random: bool = True
) -> tuple[Tensor, Tensor] | None:
    """All permutations and their log-probabilities for one context [1, ...], if they are few enough to enumerate.

    To 7 items for any number of passes, to 9 in one pass or of an autoregressive model. Of the inline code what is no
    permutation is left out, and the probabilities sum to less than 1.

    Returns:
        (permutations int64 [n!, n], log p float64 [n!]) or None.
    """
    n = model.length
    if n > _ENUMERATED:
        return None
    context = {name: values.to(model.device) for name, values in context.items()}
    denoiser, points = model.denoiser(context), all_permutations(n).to(model.device)
    codes = model.encode(points)
    log_q: Callable[[Tensor], Tensor]
    if model.objective == "autoregressive":
        log_q = lambda part: -autoregressive_loss(denoiser, part, model.support)  # noqa: E731
    elif passes == 1:
        logits = denoiser(torch.full_like(codes[:1], n))
        log_q = lambda part: code_log_prob(  # noqa: E731
            lambda shown: logits.expand(len(shown), -1, -1), part, partition(n, 1), model.support
        )
    elif n <= MOST_ITEMS:
        return points.cpu(), ExactLaw(denoiser, codes, model.support).mixture(passes, random).log().cpu()
    else:
        return None
    return points.cpu(), torch.cat([log_q(part).double() for part in codes.split(_AT_ONCE)]).cpu()
