"""The network that fits the data where nobody has named one: its architecture and its size, by the data's shape. Ours.

Vectors of counts get a residual perceptron, vectors of levels without an order dilated convolutions, images, series and
volumes a U-Net, whose levels, channels and dense blocks follow from its sides. The saved model names what was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from blackout.component import Stats
from blackout.errors import error_context
from blackout.networks.mlp import ResidualMLP, SequenceConvolution
from blackout.networks.unet import UNet

_COARSEST, _MOST_LEVELS = 4, 3
_DENSE = 2**13
"""Most numbers on a U-Net's coarsest level for perceptrons over all of them."""
_PLACES, _NARROW, _FOLDED = 256, 64, 16
"""Most places of a U-Net's finest level, as far as at most 16 elements together are one of them, and of an image of
narrow counts, whose many outputs ask for more channels, those beyond which neighbours are one place once."""
_WIDTHS = ((64, 32), (512, 16))
"""Channels of the finest level on up to so many places; 8 beyond."""
_CHOSEN = ("levels", "width", "depth", "channels", "dropout", "ordered")
"""What the user may choose of a body that is left to the data."""
_KINDS = {"ResidualMLP": ResidualMLP, "SequenceConvolution": SequenceConvolution, "UNet": UNet}


def described_body(shape: Sequence[int], levels: int | None = None, **chosen: Any) -> dict[str, Any]:
    """The description of a body that fits the data: a mapping with `_target_`, without the shape.

    Args:
        shape, levels: see `body_for`.
        chosen: of its other arguments width, depth, channels, dropout and ordered, and whether counts are `narrow`.
    """
    width, depth, ordered, narrow = (chosen.get(name) for name in ("width", "depth", "ordered", "narrow"))
    dropout = chosen.get("dropout", 0.0)
    if len(shape) > 1 or (ordered and levels is None):
        return _described_unet(shape[1:] or shape, _NARROW if narrow else _PLACES, chosen.get("channels"), dropout)
    if levels is None:
        sizes: dict[str, Any] = {"width": width or 256, "depth": depth or 4}
        return {"_target_": "blackout.networks.ResidualMLP", **sizes, "dropout": dropout, "knots": 9}
    sizes = {"levels": levels, "width": width or 96, "depth": depth or 6, "kernel": 3}
    return {"_target_": "blackout.networks.SequenceConvolution", **sizes, "dropout": dropout}


def _described_unet(sides: Sequence[int], most: int, channels: int | None, dropout: float) -> dict[str, Any]:
    """The U-Net for images of these sides: levels, channels and dense blocks by numbers of places.

    Ours (tests/networks/test_elements.py).
    """
    fold = 1
    while math.prod(sides) > most and (2 * fold) ** len(sides) <= _FOLDED and _halves(sides):
        sides, fold, most = tuple(side // 2 for side in sides), 2 * fold, _PLACES
    finest = channels or next((width for most, width in _WIDTHS if math.prod(sides) <= most), 8)
    multipliers = [1]
    while len(multipliers) < _MOST_LEVELS and _halves(sides, _COARSEST):
        sides, multipliers = tuple(side // 2 for side in sides), [*multipliers, 2 * multipliers[-1]]
    dense = 2 if finest * multipliers[-1] * math.prod(sides) <= _DENSE else 0
    return {
        "_target_": "blackout.networks.UNet", "channels": finest, "multipliers": multipliers, "blocks_per_level": 1,
        "attention_resolutions": [], "dense_blocks": dense, "dense_width": 256, "dropout": dropout, "fold": fold,
    }  # fmt: skip


def _halves(sides: Sequence[int], least: int = 1) -> bool:
    return all(side % 2 == 0 and side // 2 >= least for side in sides)


def body_for(
    shape: Sequence[int],
    outputs: int = 1,
    levels: int | None = None,
    width: int | None = None,
    depth: int | None = None,
    channels: int | None = None,
    dropout: float = 0.0,
    num_classes: int | None = None,
    ordered: bool | None = None,
    covariate_levels: Sequence[int] | None = None,
) -> nn.Module:
    """A residual perceptron for vectors of counts, dilated convolutions for vectors of levels without an order, a U-Net
    for images, series and volumes, and for vectors whose neighbours go together; a saved model names the body itself.

    Args:
        shape: of the data, (D,), (C, L), (C, H, W) or (C, D, H, W).
        outputs: number of output groups per element of the data.
        levels: states there can be, where they have no order; None for counts.
        width, depth: of the perceptron (None for 256 and 4) and the convolutions (None for 96 and 6).
        channels: of the U-Net's finest level; None for 32 on up to 64 places, 16 on up to 512, 8 beyond.
        dropout: of all.
        ordered: a vector is a series.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: levels of each covariate.
    """
    chosen = {"width": width, "depth": depth, "channels": channels, "dropout": dropout, "ordered": ordered}
    arguments = described_body(shape, levels, **chosen)
    kind = _KINDS[arguments.pop("_target_").rsplit(".", 1)[-1]]
    classes = {"num_classes": num_classes, "covariate_levels": covariate_levels}
    return kind(shape=shape, outputs=outputs, **classes, **arguments)


def body_and_inputs(given: Mapping[str, Any], stats: Stats) -> dict[str, Any]:
    """Body and inputs of a `CountNetwork` whose body is left to the data (`body_for`). Ours.

    Where a process takes away the order of levels and the data are vectors, that body, and a `Transformer`, embeds
    levels, those of the data and a mask, and the inputs leave them as they are.

    Args:
        given: arguments of the network.
        stats: shape and max_count of the data, whether a vector is `ordered`, and whether counts are `narrow`.
    """
    body, inputs = given.get("body"), given.get("inputs")
    if not isinstance(body, Mapping):
        return {}
    scaled = isinstance(inputs, Mapping) and inputs.get("_target_") == "blackout.networks.LevelInputs"
    embeds = scaled and len(stats["shape"]) == 1
    states = {"inputs": {"_target_": "blackout.networks.StateInputs"}} if embeds else {}
    kind = body.get("_target_")
    if kind == "blackout.networks.Transformer" and embeds and body.get("levels") is None:
        return {"body": {**body, "levels": stats["max_count"] + 2}} | states
    if kind != "blackout.networks.body_for":
        return {}
    asked = {name: body[name] for name in _CHOSEN if body.get(name) is not None}
    known = {"levels": stats["max_count"] + 2 if embeds else None} | {k: stats.get(k) for k in ("ordered", "narrow")}
    with error_context("network.body"):
        described = described_body(stats["shape"], **{**known, **asked})
    return {"body": described} | states
