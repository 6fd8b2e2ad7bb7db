"""Animation and strip of the states from noise to samples."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blackout.family import Draw
from blackout.files import replacing, save_picture

_FRAMES = 60
_SECONDS, _REST = 4.0, 1500
"""Length of an animation, and the milliseconds it rests on the last frame."""
_ROWS, _COLUMNS = 4, 12
"""Of the strip: samples, and states of each."""


class Trajectory:
    """States of the first batch that it is shown, for an animation, about evenly spaced, the start first.

    Args:
        samples: how many of the batch are shown.
    """

    def __init__(self, samples: int) -> None:
        self.states: list[Tensor] = []
        self._samples = samples
        self._whole = False

    def add(self, step: int, steps: int, state: Tensor) -> None:
        """Keep the state [B, ...] after `step` of `steps` steps if it is one of the frames."""
        k = steps - step
        if self._whole:
            return
        self._whole = k == 0
        if k in (0, steps) or (k * _FRAMES) // steps != ((k + 1) * _FRAMES) // steps:
            self.states.append(state[: self._samples].cpu().clone())

    def save(self, draw: Draw, directory: Path) -> None:
        """Write trajectory.webp, an animation, and trajectory.png, a few samples as rows from start to end."""
        frames = [draw.picture({"samples": state}) for state in self.states]
        shown = [frame for frame in frames if frame is not None]
        if not shown:
            return
        each = max(20, int(1000 * _SECONDS / len(shown)))
        with replacing(directory / "trajectory.webp") as part:
            shown[0].save(
                part, format="webp", save_all=True, append_images=shown[1:],
                duration=[each] * (len(shown) - 1) + [_REST], loop=0, lossless=True,
            )  # fmt: skip
        chosen = [self.states[round(i * (len(self.states) - 1) / (_COLUMNS - 1))] for i in range(_COLUMNS)]
        rows = torch.stack([state[:_ROWS] for state in chosen], dim=1).flatten(0, 1)
        save_picture(draw.picture({"samples": rows}, columns=_COLUMNS), directory / "trajectory.png")
