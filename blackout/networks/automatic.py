"""Choice of a network body, its architecture and its size, by the shape of the data.

Vectors of counts get a residual MLP, and vectors of unordered levels dilated convolutions. Images,
series and volumes get a U-Net, whose levels, channels and dense blocks follow from the sides. A
saved model names the body that was chosen.

References: this project; checked in tests/networks/test_elements.py.
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

MLP_WIDTH = 256
MLP_DEPTH = 4
MLP_KNOTS = 9  # knots of the curve of every element
SEQUENCE_WIDTH = 96
SEQUENCE_DEPTH = 6
SEQUENCE_KERNEL = 3

MAX_UNET_LEVELS = 3
MIN_COARSEST_SIDE = 4
DENSE_BLOCKS = 2
DENSE_WIDTH = 256
MAX_DENSE_SIZE = 2**13  # largest coarsest level, in numbers, that gets dense blocks

MAX_POSITIONS = 256  # positions of the finest level; larger images are folded
MAX_POSITIONS_NARROW = 64  # the same for narrow counts, whose many outputs need more channels
MAX_FOLDED = 16  # largest number of elements that are folded to one position

# (largest number of positions of the finest level, channels)
CHANNELS_BY_POSITIONS = ((64, 32), (512, 16))
MIN_CHANNELS = 8  # channels on more positions

# Settings of a body that is chosen automatically
USER_SETTINGS = ("levels", "width", "depth", "channels", "dropout", "ordered")
BODIES = {"ResidualMLP": ResidualMLP, "SequenceConvolution": SequenceConvolution, "UNet": UNet}


def describe_body(
    shape: Sequence[int], levels: int | None = None, **settings: Any
) -> dict[str, Any]:
    """Return the description of the body that `body_for` makes, a mapping with `_target_`.

    Args:
        shape: of one sample, see `body_for`.
        levels: number of states, where they have no order; None for counts.
        settings: width, depth, channels, dropout and ordered, see `body_for`, and `narrow`, whether
            counts are narrow.
    """
    dropout = settings.get("dropout", 0.0)
    if len(shape) > 1 or (settings.get("ordered") and levels is None):
        max_positions = MAX_POSITIONS_NARROW if settings.get("narrow") else MAX_POSITIONS
        sides = shape[1:] or shape
        return _describe_unet(sides, max_positions, settings.get("channels"), dropout)
    if levels is None:
        return {
            "_target_": "blackout.networks.ResidualMLP",
            "width": settings.get("width") or MLP_WIDTH,
            "depth": settings.get("depth") or MLP_DEPTH,
            "dropout": dropout,
            "knots": MLP_KNOTS,
        }
    return {
        "_target_": "blackout.networks.SequenceConvolution",
        "levels": levels,
        "width": settings.get("width") or SEQUENCE_WIDTH,
        "depth": settings.get("depth") or SEQUENCE_DEPTH,
        "kernel": SEQUENCE_KERNEL,
        "dropout": dropout,
    }


def _describe_unet(
    sides: Sequence[int], max_positions: int, channels: int | None, dropout: float
) -> dict[str, Any]:
    """Return the description of a U-Net for images of these sides.

    Args:
        sides: of the data.
        max_positions: of the finest level; with more, neighbours are folded.
        channels: of the finest level; None to choose them.
        dropout: probability.
    """
    # 1. Fold neighbours of large images to one position.
    fold = 1
    while math.prod(sides) > max_positions and _can_be_halved(sides):
        if (2 * fold) ** len(sides) > MAX_FOLDED:
            break
        sides = _halve(sides)
        fold *= 2
        max_positions = MAX_POSITIONS

    # 2. Channels of the finest level.
    if not channels:
        channels = MIN_CHANNELS
        for positions, width in reversed(CHANNELS_BY_POSITIONS):
            if math.prod(sides) <= positions:
                channels = width

    # 3. Levels, each with half the sides and twice the channels.
    multipliers = [1]
    while len(multipliers) < MAX_UNET_LEVELS and _can_be_halved(sides, MIN_COARSEST_SIDE):
        sides = _halve(sides)
        multipliers.append(2 * multipliers[-1])

    # 4. Dense blocks, if the coarsest level is small.
    coarsest_size = channels * multipliers[-1] * math.prod(sides)
    return {
        "_target_": "blackout.networks.UNet",
        "channels": channels,
        "multipliers": multipliers,
        "blocks_per_level": 1,
        "attention_resolutions": [],
        "dense_blocks": DENSE_BLOCKS if coarsest_size <= MAX_DENSE_SIZE else 0,
        "dense_width": DENSE_WIDTH,
        "dropout": dropout,
        "fold": fold,
    }


def _can_be_halved(sides: Sequence[int], min_side: int = 1) -> bool:
    return all(side % 2 == 0 and side // 2 >= min_side for side in sides)


def _halve(sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(side // 2 for side in sides)


def body_for(  # noqa: PLR0913 - built from YAML
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
    """Make the default network body for a shape: a residual MLP, dilated convolutions or a U-Net.

    Vectors of counts get a residual MLP; vectors of unordered levels dilated convolutions; images,
    series, volumes and ordered vectors a U-Net.

    Args:
        shape: of one sample, (D,), (C, L), (C, H, W) or (C, D, H, W).
        outputs: number of outputs per element of the data.
        levels: number of states, where they have no order; None for counts.
        width: of the MLP (None for 256) and the convolutions (None for 96).
        depth: of the MLP (None for 4) and the convolutions (None for 6).
        channels: of the U-Net's finest level; None for 32 on up to 64 positions, 16 on up to 512,
            and 8 beyond.
        dropout: probability, of all bodies.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        ordered: whether neighbouring elements of a vector belong together, as in a series.
        covariate_levels: number of levels of each covariate.

    Example:
        >>> type(body_for((7,))).__name__
        'ResidualMLP'
        >>> type(body_for((1, 8, 8))).__name__
        'UNet'
    """
    settings = {
        "width": width,
        "depth": depth,
        "channels": channels,
        "dropout": dropout,
        "ordered": ordered,
    }
    description = describe_body(shape, levels, **settings)
    body = BODIES[description.pop("_target_").rsplit(".", 1)[-1]]
    return body(
        shape=shape,
        outputs=outputs,
        num_classes=num_classes,
        covariate_levels=covariate_levels,
        **description,
    )


def body_and_inputs(arguments: Mapping[str, Any], stats: Stats) -> dict[str, Any]:
    """Choose body and inputs of a `CountNetwork` where they depend on the data.

    The description of `body_for` is replaced by that of the body it chooses. Vectors of unordered
    levels are embedded by that body or by a `Transformer`, with the mask as a further state. Their
    inputs are then the levels themselves.

    Args:
        arguments: of the network, as the user set them.
        stats: of the data: shape, max_count, whether a vector is `ordered`, and whether counts are
            `narrow`.

    Returns:
        Descriptions that replace `body` and `inputs`; empty if nothing follows from the data.
    """
    body = arguments.get("body")
    inputs = arguments.get("inputs")
    if not isinstance(body, Mapping):
        return {}

    # 1. Vectors of unordered levels are embedded.
    has_levels = (
        isinstance(inputs, Mapping) and inputs.get("_target_") == "blackout.networks.LevelInputs"
    )
    embeds_states = has_levels and len(stats["shape"]) == 1
    replaced: dict[str, Any] = {}
    if embeds_states:
        replaced["inputs"] = {"_target_": "blackout.networks.StateInputs"}
        num_states = stats["max_count"] + 2  # levels 0..max_count and a mask

    # 2. A transformer gets the number of states.
    target = body.get("_target_")
    if target == "blackout.networks.Transformer" and embeds_states and body.get("levels") is None:
        return {"body": {**body, "levels": num_states}} | replaced
    if target != "blackout.networks.body_for":
        return {}

    # 3. A body is chosen by the data, and by what the user set.
    settings = {
        "levels": num_states if embeds_states else None,
        "ordered": stats.get("ordered"),
        "narrow": stats.get("narrow"),
    }
    for name in USER_SETTINGS:
        if body.get(name) is not None:
            settings[name] = body[name]
    with error_context("network.body"):
        return {"body": describe_body(stats["shape"], **settings)} | replaced
