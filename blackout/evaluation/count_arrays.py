"""Arrays of counts: flattened, and evenly selected."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from blackout.data.count_statistics import load_samples
from blackout.data.on_disk import DiskCounts

Array = npt.NDArray[Any]


def flatten_counts(counts: Tensor | DiskCounts) -> Array:
    """Return counts [n, *shape] as int64 [n, D]."""
    return load_samples(counts).flatten(1).cpu().numpy().astype(np.int64)


def select_evenly(rows: Any, number: int) -> Any:
    """Return at most `number` evenly spaced rows of an array or tensor."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), number)).astype(int)]
