"""Classes in files of generated samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackout.data.sample_files import read_labels
from blackout.errors import UserError

SAMPLES = np.zeros((3, 2), dtype=np.uint8)


def test_classes_are_read_with_their_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", samples=SAMPLES, classes=np.array([2, 0, 1], dtype=np.uint8))
    assert read_labels(tmp_path / "s.npz", 3)["classes"].tolist() == [2, 0, 1]
    np.savez(tmp_path / "s.npz", samples=SAMPLES)
    assert read_labels(tmp_path / "s.npz", 3) == {}


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ([0, 1], r"3 whole numbers, one per sample, not int64 \[2\]"),
        ([[0], [1], [2]], r"not int64 \[3, 1\]"),
        ([0.5, 1.0, 2.0], r"not float64 \[3\]"),
        ([0, -1, 2], "at least 0, not -1"),
    ],
)
def test_classes_that_do_not_fit_are_refused(tmp_path: Path, classes: Any, problem: str) -> None:
    np.savez(tmp_path / "s.npz", samples=SAMPLES, classes=np.array(classes))
    with pytest.raises(UserError, match=problem):
        read_labels(tmp_path / "s.npz", 3)
