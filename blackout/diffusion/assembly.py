"""Networks and heads from their descriptions, with what they need besides: the process, the data's elements."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from blackout.component import leaves
from blackout.data.moments import Sums, sums
from blackout.diffusion.heads import Head
from blackout.diffusion.processes import Process
from blackout.errors import UserError
from blackout.networks.inputs import Elements, concentration, gain, measure
from blackout.training.components import find, make

_MEASURED = frozenset(("blackout.diffusion.GammaHead", "blackout.networks.CountInputs"))
"""Components that know every element's mean and concentration."""


def make_head(config: Mapping[str, Any], process: Process, elements: Elements | None = None) -> Head:
    """The head, with the process and the elements where its signature, or that of a head within it, asks for them.

    Args:
        config: its description.
        process: the forward process.
        elements: of the data; None where no component asks for them, or only `outputs` is wanted.

    Raises:
        UserError: it cannot be made, or does not say how many outputs it reads.
    """
    wanted = inspect.signature(find(config, "head")).parameters
    known = {"process": process, "elements": elements or Elements(torch.ones(()), torch.ones(()), torch.ones(()))}
    given = {name: value for name, value in known.items() if name in wanted}
    if isinstance(base := config.get("base"), Mapping):
        given["base"] = make_head(base, process, elements)
        config = {name: value for name, value in config.items() if name != "base"}
    head: Head = make(config, "head", **given)
    if not isinstance(getattr(head, "outputs", None), int):
        raise UserError(f"head: {type(head).__name__} does not say how many `outputs` of the network it reads")
    return head


def make_network(config: Mapping[str, Any], elements: Elements | None = None) -> nn.Module:
    """The network, whose inputs measure counts by the data's elements where there are such inputs."""
    network: nn.Module = make(config, "network")
    if elements is not None and isinstance(network, nn.Module):
        measure(network, elements)
    return network


def asks_for_elements(model: Mapping[str, Any]) -> bool:
    """Whether a component of a model, by its description, knows every element's mean and concentration."""
    return any(name.endswith("_target_") and value in _MEASURED for name, value in leaves(model))


def elements_of(counts: Tensor, mean: Tensor, known: Sums | None = None) -> Elements:
    """Mean, concentration and gain by moments, float32.

    Args:
        counts: integers [N, *shape].
        mean: of every element, positive, [*shape].
        known: sums of the counts, where they were taken before.
    """
    found = known or sums(counts)
    own, variance = found.element.double() / len(found.sample), found.variance
    shared = gain(found.sample.var(correction=0), own, variance)
    return Elements(mean, concentration(mean.double(), variance).float(), shared.float())
