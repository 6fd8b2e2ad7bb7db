"""Animation and strip of the states from noise to samples; a run's loss and samples as text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.cli.curves import read_curves
from blackout.files import replacing, save_picture
from blackout.protocols import Draw

_FRAMES = 60
_SECONDS, _REST = 4.0, 1500
"""Length of an animation, and the milliseconds it rests on the last frame."""
_ROWS, _COLUMNS = 4, 12
"""Of the strip: samples, and states of each at most."""
_LONGEST = 16_383
"""Pixels of a side of a WebP at most."""


class Trajectory:
    """States of the first batch that it is shown, for an animation, about evenly spaced, the start first.

    Args:
        samples: how many of the batch are shown.
    """

    def __init__(self, samples: int) -> None:
        self.states: list[Tensor] = []
        self._samples, self._whole = samples, False

    def add(self, step: int, steps: int, state: Tensor) -> None:
        """Keep the state [B, ...] after `step` of `steps` steps if it is one of the frames."""
        k = steps - step
        if not self._whole and (k in (0, steps) or (k * _FRAMES) // steps != ((k + 1) * _FRAMES) // steps):
            self.states.append(state[: self._samples].cpu().clone())
        self._whole |= k == 0

    def save(self, draw: Draw, directory: Path) -> None:
        """Write trajectory.webp, an animation, and trajectory.png, a few samples as rows from start to end."""
        shown = [one for state in self.states if (one := draw.picture({"samples": state})) is not None]
        if not shown:
            return
        each = max(20, int(1000 * _SECONDS / len(shown)))
        if max(shown[0].size) > _LONGEST:
            print(f"left out: trajectory.webp: a side of {max(shown[0].size):,} pixels, where it ends at {_LONGEST:,}")
        else:
            with replacing(directory / "trajectory.webp") as part:
                shown[0].save(
                    part, format="webp", save_all=True, append_images=shown[1:],
                    duration=[each] * (len(shown) - 1) + [_REST], loop=0, lossless=True,
                )  # fmt: skip
        columns = min(_COLUMNS, len(self.states))
        chosen = [self.states[round(i * (len(self.states) - 1) / max(1, columns - 1))] for i in range(columns)]
        rows = torch.stack([state[:_ROWS] for state in chosen], dim=1).flatten(0, 1)
        save_picture(draw.picture({"samples": rows}, columns=columns), directory / "trajectory.png")


_BARS, _SHADES, _WIDE = "▁▂▃▄▅▆▇█", " .:-=+*#%@", 48
_SMALL, _ACROSS = 16, 90
"""Pixels of an image that is shown as characters, and characters in a line."""


def show_in_words(run: Path, shape: Sequence[int]) -> None:
    """Print a run's loss as a line of bars, and its first samples where they are images of a small shape [C, H, W]."""
    loss = read_curves(run / "metrics.csv").get("train/loss", ([], []))[1]
    with suppress(UnicodeEncodeError):  # a terminal of ASCII alone
        if len(loss) > 1:
            print(f"loss:    {sparkline(loss)}")
    if len(shape) == 3 and shape[0] in (1, 3) and max(shape[1:]) <= _SMALL:
        samples = np.load(run / "samples" / "final.npz")["samples"][: _ACROSS // (2 * shape[2] + 2)]
        print(in_characters(samples.reshape(len(samples), *shape[1:], shape[0])))


def sparkline(values: list[float]) -> str:
    """A curve, values [n], as a line of text, each bar the mean of a stretch.

    Ours (tests/cli/test_curves.py).
    """
    means = np.array([part.mean() for part in np.array_split(np.array(values), min(_WIDE, len(values)))])
    heights = np.rint((means - means.min()) / (np.ptp(means) or 1) * (len(_BARS) - 1)).astype(int)
    return f"{''.join(_BARS[height] for height in heights)} {values[0]:.4g} to {values[-1]:.4g}"


def in_characters(images: NDArray[Any]) -> str:
    """Images [B, H, W, C] side by side as text, two characters for a pixel, the largest one the darkest."""
    shades = np.rint(images.mean(3) / max(images.max(), 1) * (len(_SHADES) - 1)).astype(int).swapaxes(0, 1)
    return "\n".join("  ".join("".join(2 * _SHADES[x] for x in line) for line in row).rstrip() for row in shades)
