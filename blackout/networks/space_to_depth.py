"""Neighbouring elements as channels of one position, for U-Nets with `fold` and for patches.

In two dimensions `space_to_depth` is `torch.nn.functional.pixel_unshuffle`; here there may be one,
two or three spatial axes.

References: this project; checked in tests/networks/test_small_networks.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def space_to_depth_shape(
    shape: Sequence[int], factor: int, setting: str = "fold"
) -> tuple[int, ...]:
    """Return the shape of one sample after `space_to_depth`.

    Args:
        shape: of one sample, (C, *sides), or (L,) for one channel.
        factor: neighbours along every side that become channels.
        setting: name of the setting of `factor`, for the message.

    Raises:
        ValueError: sides that are no multiples of `factor`.

    Example:
        >>> space_to_depth_shape((3, 8, 6), 2)
        (12, 4, 3)
    """
    channels, *sides = shape if len(shape) > 1 else (1, *shape)
    if any(side % factor for side in sides):
        size = "x".join(map(str, sides))
        raise ValueError(f"sides must be multiples of {setting}={factor}, not {size}")
    return (channels * factor ** len(sides), *(side // factor for side in sides))


def space_to_depth(x: Tensor, factor: int) -> Tensor:
    """Rearrange [B, C, n * factor, ...] to [B, C * factor^axes, n, ...]."""
    num_axes = x.ndim - 2
    split_sides = [size for side in x.shape[2:] for size in (side // factor, factor)]
    split = x.reshape(*x.shape[:2], *split_sides)
    offset_axes = range(3, 3 + 2 * num_axes, 2)
    position_axes = range(2, 2 + 2 * num_axes, 2)
    return split.permute(0, 1, *offset_axes, *position_axes).flatten(1, 1 + num_axes)


def depth_to_space(x: Tensor, factor: int) -> Tensor:
    """Rearrange [B, C * factor^axes, n, ...] to [B, C, n * factor, ...]."""
    num_axes = x.ndim - 2
    sides = [side * factor for side in x.shape[2:]]
    split = x.unflatten(1, (-1, *[factor] * num_axes))
    axes = [axis for k in range(num_axes) for axis in (2 + num_axes + k, 2 + k)]
    return split.permute(0, 1, *axes).reshape(len(x), -1, *sides)
