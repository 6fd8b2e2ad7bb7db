"""Whether a process on very many levels fits into memory, before any of its tables is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from blackout.diffusion.processes.finite import FiniteProcess
from blackout.errors import UserError
from blackout.training.components import find

_BYTES, _ARRAYS = 8, 3
"""Of a number, and how many arrays [B, *shape, S] any training step holds at once: logits, probabilities, gradients.
Losses of rates hold about four times as many; what might fit is not refused."""


def check_memory(process: Mapping[str, Any], shape: Sequence[int], max_count: int, batch_size: int) -> None:
    """Refuse a process on finitely many states whose training step does not fit into this machine's memory.

    Args:
        process: its description.
        shape: of the data.
        max_count: the largest count.
        batch_size: of a step.

    Raises:
        UserError: how much memory it would need.
    """
    kind = find(process, "process")
    if not (isinstance(kind, type) and issubclass(kind, FiniteProcess)):
        return
    states, elements = max_count + 2, math.prod(shape)
    numbers = _ARRAYS * batch_size * elements * states + (batch_size * states**2 if kind.tables else 0)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (need := _BYTES * numbers) > here:
        raise UserError(
            f"process: {kind.__name__} on {states:,} states of {elements:,} elements would need at least "
            f"{need / 1e9:,.0f} GB for batch_size={batch_size}, of {here / 1e9:,.0f} GB here; counts as large as "
            f"{max_count:,} are for process=blackout"
        )
