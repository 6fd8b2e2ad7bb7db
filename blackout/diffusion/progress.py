"""A progress bar of sampling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress
from torch import Tensor

from blackout.diffusion.predictions import Prediction
from blackout.diffusion.sampling import Callback


@contextmanager
def progress_bar(
    num_batches: int, num_steps: int, callback: Callback | None, *, enabled: bool
) -> Iterator[Callback | None]:
    """Show a progress bar in a terminal or notebook, and yield the callback that advances it.

    Args:
        num_batches: that will be drawn.
        num_steps: of each.
        callback: is called too.
        enabled: without it nothing is shown, and the callback is yielded as it is.
    """
    if not enabled:
        yield callback
        return
    with Progress(transient=True) as bar:
        task = bar.add_task("sampling", total=num_batches * num_steps)

        def advance(k: int, xt: Tensor, prediction: Prediction | None) -> None:
            if k < num_steps:
                bar.advance(task)
            if callback is not None:
                callback(k, xt, prediction)

        yield advance
