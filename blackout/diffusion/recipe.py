"""What a recipe leaves to the data: network, head, the times that training looks at most, and its length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blackout.diffusion.data_stats import DataEnds
from blackout.errors import error_context
from blackout.networks.fitting import described_body

_BODY, _TIMES = "blackout.networks.body_for", "blackout.diffusion.logistic_times"
_HEAD = "blackout.diffusion.GammaHead"
_SCALED_LEVELS, _STATES = "blackout.networks.LevelInputs", "blackout.networks.StateInputs"
_PERCEPTRON_STEPS, _STEPS = 2500, 1000
"""Of a perceptron, which costs a quarter of the others and needs more, and of the others."""
_LAST = -7.0
"""Logit of survival at which every process has forgotten nearly everything."""


def fitted(part: Any, facts: Mapping[str, Any]) -> Any:
    """A description with what the data decide in place of what it leaves open.

    A `body_for` becomes the body that it stands for, which embeds levels where a process takes away their order and the
    data are vectors; nulls of `logistic_times` become numbers; a `GammaHead` looks at an element's own count where
    elements are in no order.

    Args:
        part: plain containers.
        facts: of the data, and whether a vector is `ordered`.
    """
    if isinstance(part, list):
        return [fitted(item, facts) for item in part]
    if not isinstance(part, Mapping):
        return part
    if _is(part.get("body"), _BODY):
        return _with_body(part, facts)
    known = _decided(part, facts)
    return {key: known[key] if value is None and key in known else fitted(value, facts) for key, value in part.items()}


def _decided(part: Mapping[str, Any], facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of a component that follow from the data where they are null."""
    if _is(part, _TIMES):
        return _times(facts)
    return {"own_counts": len(facts["shape"]) == 1 and not facts.get("ordered")} if _is(part, _HEAD) else {}


def _is(part: Any, address: str) -> bool:
    return isinstance(part, Mapping) and part.get("_target_") == address


def _with_body(network: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A network with the body that its inputs and the data decide."""
    embeds = _is(network.get("inputs"), _SCALED_LEVELS) and len(facts["shape"]) == 1
    levels = facts["max_count"] + 2 if embeds else None  # those of the data, and a mask
    given = {name: value for name, value in network["body"].items() if not name.startswith("_")}
    if given.get("ordered") is None:
        given["ordered"] = facts.get("ordered")
    with error_context("network.body"):
        body = described_body(facts["shape"], **{"levels": levels, **given})
    return {**network, "body": body} | ({"inputs": {"_target_": _STATES}} if embeds else {})


def _times(facts: Mapping[str, Any]) -> dict[str, float]:
    """Where counts of this size take shape: from survival of about one unit, q E[X^2] / E[X] = 1, to nearly all."""
    ends = DataEnds.of(facts)
    if ends is None or not facts["mean"] > 0:
        return {}
    biased = math.log1p(facts["mean"] + facts["std"] ** 2 / facts["mean"])
    return {
        "first": ends.first + 1,
        "last": min(ends.last, _LAST),
        "location": -biased / 2,
        "scale": 1 + biased / 5,
    }


def steps_for(network: Mapping[str, Any]) -> int:
    """Optimiser steps that suit a network, whose body is fitted."""
    body = network.get("body")
    perceptron = isinstance(body, Mapping) and str(body.get("_target_")).endswith("MLP")
    return _PERCEPTRON_STEPS if perceptron else _STEPS
