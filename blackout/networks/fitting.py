"""Bodies for counts of any shape, in sizes that train in minutes on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from blackout.networks.mlp import ElementwiseMLP
from blackout.networks.sequence import SequenceConvolution
from blackout.networks.unet import UNet

_COARSEST, _MOST_LEVELS = 4, 3
_DENSE = 2**13
"""Most numbers on a U-Net's coarsest level for perceptrons over all of them."""
_KINDS = {"ElementwiseMLP": ElementwiseMLP, "SequenceConvolution": SequenceConvolution, "UNet": UNet}


def described_body(
    shape: Sequence[int],
    levels: int | None = None,
    width: int | None = None,
    depth: int | None = None,
    channels: int | None = None,
    dropout: float = 0.0,
) -> dict[str, Any]:
    """The description of a body that fits the data.

    A residual perceptron for vectors of counts, dilated convolutions for vectors of levels without an order, a U-Net
    for images.

    Args:
        shape: of the data, (D,) or (C, H, W).
        levels: states there can be, where they have no order; None for counts.
        width, depth: of the perceptron (None for 256 and 4) and the convolutions (None for 96 and 6).
        channels: of the U-Net's finest level; None for 32 on up to 256 pixels, 8 beyond.
        dropout: of all.

    Returns:
        A mapping with `_target_`, without the shape.
    """
    if len(shape) == 3:
        return _described_unet(shape, channels, dropout)
    if levels is None:
        sizes: dict[str, Any] = {"width": width or 256, "depth": depth or 4}
        return {"_target_": "blackout.networks.ElementwiseMLP", **sizes, "dropout": dropout}
    sizes = {"levels": levels, "width": width or 96, "depth": depth or 6, "kernel": 3}
    return {"_target_": "blackout.networks.SequenceConvolution", **sizes, "dropout": dropout}


def _described_unet(shape: Sequence[int], channels: int | None, dropout: float) -> dict[str, Any]:
    sides, levels = tuple(shape[1:]), 1
    while levels < _MOST_LEVELS and all(side % 2 == 0 and side // 2 >= _COARSEST for side in sides):
        sides, levels = tuple(side // 2 for side in sides), levels + 1
    finest = channels or (32 if math.prod(shape[1:]) <= 256 else 8)
    multipliers = [2**level for level in range(levels)]
    dense = 2 if finest * multipliers[-1] * math.prod(sides) <= _DENSE else 0
    return {
        "_target_": "blackout.networks.UNet", "channels": finest, "multipliers": multipliers, "blocks_per_level": 1,
        "attention_resolutions": [], "dense_blocks": dense, "dense_width": 256, "dropout": dropout,
    }  # fmt: skip


def body_for(
    shape: Sequence[int],
    outputs: int = 1,
    levels: int | None = None,
    width: int | None = None,
    depth: int | None = None,
    channels: int | None = None,
    dropout: float = 0.0,
    num_classes: int | None = None,
) -> nn.Module:
    """The body of `described_body`; a saved model names the body itself.

    Args:
        shape, levels, width, depth, channels, dropout: as for `described_body`.
        outputs: number of output groups per element of the data.
        num_classes: number of classes of a conditional network; None for an unconditional one.
    """
    arguments = described_body(shape, levels, width, depth, channels, dropout)
    kind = _KINDS[arguments.pop("_target_").rsplit(".", 1)[-1]]
    body: nn.Module = kind(shape=shape, outputs=outputs, num_classes=num_classes, **arguments)
    return body
