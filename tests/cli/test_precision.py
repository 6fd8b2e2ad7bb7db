"""`trainer.precision=auto`: measured once, printed, kept by the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from blackout.cli import train as program
from blackout.cli import training_settings
from blackout.cli.cost import bfloat16_ratio
from blackout.cli.sample import reproducibility_key
from blackout.cli.training_settings import apply_precision
from blackout.config.compose import compose
from blackout.config.settings import thread_warning
from blackout.distributed import has_bfloat16
from tests.cli.conftest import TINY


def settings(bfloat16: bool = True, **trainer: Any) -> dict[str, Any]:
    return {
        "trainer": {"precision": "auto", "accelerator": "cpu", **trainer},
        "sampler": {"bfloat16": bfloat16},
    }


@pytest.mark.parametrize(
    ("ratio", "chosen"), [(0.5, "bf16-mixed"), (0.9, "32-true"), (1.4, "32-true")]
)
def test_auto_precision_is_the_faster_one_and_the_sampler_uses_it(
    ratio: float, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training_settings, "bfloat16_ratio", lambda: ratio)
    config = apply_precision(settings(), tmp_path)
    assert config["trainer"]["precision"] == chosen and config["sampler"]["bfloat16"] is (
        chosen == "bf16-mixed"
    )
    assert apply_precision(settings(False), tmp_path)["sampler"]["bfloat16"] is False
    assert apply_precision(settings(devices=2), tmp_path)["trainer"]["precision"] == "32-true"
    config = settings(precision="64-true")
    assert apply_precision(config, tmp_path) == config


@pytest.mark.parametrize(
    ("load", "threads", "is_warned"),
    [(0.4, 2, False), (2.1, 1, False), (1.9, 2, True), (9, 8, True)],
)
def test_threads_on_a_machine_that_is_busy_are_named(
    load: float, threads: int, is_warned: bool
) -> None:
    assert ("OMP_NUM_THREADS=1" in thread_warning(load, threads, processors=2)) is is_warned


def test_the_bfloat16_ratio_is_a_plausible_ratio_of_times() -> None:
    assert 0.05 < bfloat16_ratio() < 100


def test_a_continued_run_keeps_its_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for ratio, steps in ((0.5, 2), (2.0, 4)):
        monkeypatch.setattr(training_settings, "bfloat16_ratio", lambda ratio=ratio: ratio)
        words = [*TINY, "trainer.precision=auto", "metrics=none", "callbacks.samples=null"]
        words += [
            "run_id=a",
            "trainer.accelerator=cpu",
            f"trainer.max_steps={steps}",
            f"runs_dir={tmp_path}",
        ]
        runs.append(program.train(compose("train", words)))
        assert (
            yaml.safe_load((runs[-1] / "config.yaml").read_text())["trainer"]["precision"]
            == "bf16-mixed"
        )
    assert (
        runs[0] == runs[1]
        and "precision: bf16-mixed, as in the run so far" in capsys.readouterr().out
    )


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_is_bfloat16_only_on_accelerators_that_have_it(
    native: bool, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    on_gpu = apply_precision(settings(accelerator="gpu"), tmp_path)
    assert on_gpu["trainer"]["precision"] == chosen
    assert on_gpu["sampler"]["bfloat16"] is native
    assert not has_bfloat16(torch.device("mps"))


def test_batches_of_another_arithmetic_are_not_reused() -> None:
    model: Any = SimpleNamespace(device=torch.device("cpu"))
    choices = [(False, False), (False, True), (True, False), (True, True)]
    keys = {reproducibility_key("samples", model, 8, compiled, tf32) for compiled, tf32 in choices}
    assert len(keys) == len(choices)
