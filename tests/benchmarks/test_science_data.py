"""Simulated and collected counts are files that `dataset=counts` can train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import real_counts, science_data
from tests.cli.conftest import run  # noqa: F401  (a fixture)

SHORT = (
    "trainer.max_steps=2",
    "batch_size=8",
    "trainer.precision=32-true",
    "trainer.val_check_interval=2",
    "metrics=none",
    "validation_draws=1",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "callbacks.checkpoints.every_n_steps=2",
    "sampler.num_steps=4",
)
# additional settings of a kind of data
MORE = {"names": ("process=absorbing",)}


@pytest.mark.deep
@pytest.mark.parametrize("kind", science_data.MAKERS)
def test_simulated_counts_can_be_trained_on(run, tmp_path: Path, kind: str) -> None:  # noqa: F811
    path = tmp_path / f"{kind}.npz"
    science_data.main([kind, str(path), "--number", "40"])
    settings = (
        "dataset=counts",
        f"dataset.path={path}",
        *MORE.get(kind, ()),
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    outcome = run("train", *settings, *SHORT)
    assert outcome.code == 0, outcome.err
    outcome = run("sample", f"ckpt={tmp_path / kind / 'a'}", "num_samples=3", "sampler.num_steps=4")
    assert outcome.code == 0, outcome.err


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["tokens", "opcodes"])
def test_counts_of_installed_packages_are_written(tmp_path: Path, kind: str) -> None:
    real_counts.main([kind, str(tmp_path / "x.npz"), "--number", "40"])
    assert (tmp_path / "x.npz").stat().st_size > 0
