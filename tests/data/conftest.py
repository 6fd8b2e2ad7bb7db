"""Where the tests find downloaded data sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST and CIFAR-10: $BLACKOUT_DATA, `data`, or archives of a neighbour."""
    for folder in (Path(os.environ.get("BLACKOUT_DATA", "data")), ROOT / "data"):
        if (folder / "MNIST/raw").is_dir() and (folder / "cifar-10-batches-py").is_dir():
            return folder.resolve()
    unpack = ROOT.parent / "shared/data/unpack.py"
    if not unpack.exists():
        pytest.skip("needs MNIST and CIFAR-10 in torchvision's layout in $BLACKOUT_DATA or data/")
    folder = tmp_path_factory.mktemp("real_data")
    subprocess.run([sys.executable, str(unpack), str(folder)], check=True)
    return folder
