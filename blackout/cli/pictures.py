"""Pictures of sampling from noise to data, and of a run in text characters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blackout.cli.curves import read_curves
from blackout.files import replacing
from blackout.pictures import save_picture
from blackout.protocols import Draw

MAX_FRAMES = 60  # of an animation, about
ANIMATION_SECONDS = 4.0
MIN_FRAME_MS = 20
LAST_FRAME_MS = 1500
MAX_WEBP_PIXELS = 16_383  # of a side, by the format
MAX_STRIP_ROWS = 4  # samples
MAX_STRIP_COLUMNS = 12  # states of each

BARS = "▁▂▃▄▅▆▇█"  # of a curve, from low to high
SHADES = " .:-=+*#%@"  # of an image, from light to dark
MAX_CURVE_WIDTH = 48  # characters
MAX_IMAGE_SIDE = 16  # pixels of an image that is shown as text
MAX_LINE_WIDTH = 90  # characters of images side by side


class Trajectory:
    """States of the first batch, about evenly spaced, the start first.

    Args:
        num_samples: number of samples of the batch that are kept.
    """

    def __init__(self, num_samples: int) -> None:
        self.states: list[Tensor] = []
        self._num_samples = num_samples
        self._is_complete = False

    def add(self, step: int, steps: int, state: Tensor) -> None:
        """Keep the state [B, ...] after `step` of `steps` steps if it is one of the frames."""
        remaining = steps - step
        is_end = remaining in (0, steps)
        is_frame = is_end or _frame(remaining, steps) != _frame(remaining + 1, steps)
        if is_frame and not self._is_complete:
            self.states.append(state[: self._num_samples].cpu().clone())
        if remaining == 0:
            self._is_complete = True

    def save(self, draw: Draw, directory: Path) -> None:
        """Write trajectory.webp, an animation, and trajectory.png, with a row for each sample."""
        pictures = [draw.picture({"samples": state}) for state in self.states]
        frames = [picture for picture in pictures if picture is not None]
        if not frames:
            return
        longest_side = max(frames[0].size)
        if longest_side > MAX_WEBP_PIXELS:
            print(
                f"left out: trajectory.webp would be {longest_side:,} pixels wide or high, and the "
                f"format allows {MAX_WEBP_PIXELS:,}"
            )
        else:
            _save_animation(frames, directory / "trajectory.webp")

        num_columns = min(MAX_STRIP_COLUMNS, len(self.states))
        last = len(self.states) - 1
        spacing = last / max(1, num_columns - 1)
        states = [self.states[round(column * spacing)] for column in range(num_columns)]
        cells = torch.stack([state[:MAX_STRIP_ROWS] for state in states], dim=1).flatten(0, 1)
        strip = draw.picture({"samples": cells}, columns=num_columns)
        save_picture(strip, directory / "trajectory.png")


def print_run(run: Path, shape: Sequence[int]) -> None:
    """Print a run's loss as a line of bars, and its first samples if they are small images.

    Args:
        run: the run directory.
        shape: of a sample; [C, H, W] for images.
    """
    _, loss = read_curves(run / "metrics.csv").get("train/loss", ([], []))
    if len(loss) > 1:
        with suppress(UnicodeEncodeError):  # the terminal can show ASCII only
            print(f"loss:    {sparkline(loss)}")
    is_image = len(shape) == 3 and shape[0] in (1, 3)
    if is_image and max(shape[1:]) <= MAX_IMAGE_SIDE:
        characters_per_image = 2 * shape[2] + 2
        samples = np.load(run / "samples" / "final.npz")["samples"]
        samples = samples[: MAX_LINE_WIDTH // characters_per_image]
        print(images_as_text(samples.reshape(len(samples), *shape[1:], shape[0])))


def sparkline(values: list[float]) -> str:
    """Return a curve, values [n], as a line of text; each bar is the mean of a stretch."""
    stretches = np.array_split(np.array(values), min(MAX_CURVE_WIDTH, len(values)))
    means = np.array([stretch.mean() for stretch in stretches])
    relative = (means - means.min()) / (np.ptp(means) or 1)
    heights = np.rint(relative * (len(BARS) - 1)).astype(int)
    bars = "".join(BARS[height] for height in heights)
    return f"{bars} {values[0]:.4g} to {values[-1]:.4g}"


def images_as_text(images: NDArray[Any]) -> str:
    """Return images [B, H, W, C] side by side as text.

    A pixel is two characters, the darkest for the largest value.
    """
    relative = images.mean(3) / max(images.max(), 1)
    shades = np.rint(relative * (len(SHADES) - 1)).astype(int)
    lines = []
    for row in shades.swapaxes(0, 1):  # row of every image, [B, W]
        images_in_row = ["".join(2 * SHADES[shade] for shade in pixels) for pixels in row]
        lines.append("  ".join(images_in_row).rstrip())
    return "\n".join(lines)


def _frame(remaining: int, steps: int) -> int:
    """Return the number of the frame, counted from the end, to which a state belongs."""
    return (remaining * MAX_FRAMES) // steps


def _save_animation(frames: Sequence[Image.Image], path: Path) -> None:
    """Write frames as a WebP that lasts `ANIMATION_SECONDS` and rests on the last frame.

    The last frame comes first in the file, because previews and prints show the first frame of an
    animation. As the animation loops, the order of frames is the same.
    """
    frame_ms = max(MIN_FRAME_MS, int(1000 * ANIMATION_SECONDS / len(frames)))
    durations = [LAST_FRAME_MS] + [frame_ms] * (len(frames) - 1)
    with replacing(path) as part:
        frames[-1].save(
            part,
            format="webp",
            save_all=True,
            append_images=frames[:-1],
            duration=durations,
            loop=0,
            lossless=True,
        )
