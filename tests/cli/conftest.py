"""Run the two programs as a user does, but in this process: a fresh interpreter costs seconds."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from PIL import Image
from torch import Tensor

from blackout.files import CONF

ROOT = Path(__file__).parents[2]


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def folder(self) -> Path:
        """Where `sample.py` says that its results are."""
        return Path(re.findall(r"network evaluations in (.+)", self.out)[-1])

    def assert_refused(self, *words: str) -> None:
        """Exit code 2 and one line on stderr that says why, apart from warnings before it."""
        assert self.code == 2, (self.code, self.out, self.err)
        lines = [
            line
            for line in self.err.splitlines()
            if line.strip() and not line.startswith("warning: ")
        ]
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        for word in words:
            assert word in lines[0], lines[0]


def save_blank(
    figure: Figure, file: Any, dpi: float | None = None, format: str = "png", **_: Any
) -> None:
    """Write a white picture in place of `Figure.savefig`, which takes a third of a second."""
    width, height = (round(inches * (dpi or figure.dpi)) for inches in figure.get_size_inches())
    Image.new("L", (width, height), 255).save(file, format)


_cached_bits: dict[Any, dict[str, float]] = {}


def cache_baseline_bits(
    baseline_bits: Callable[[Tensor, Tensor], dict[str, float]],
) -> Callable[..., dict[str, float]]:
    """Return `baseline_bits` with a cache: nearly every run ends with those of the same counts."""

    def cached_bits(train: Tensor, test: Tensor) -> dict[str, float]:
        splits = [split.cpu().contiguous().numpy() for split in (train, test)]
        key = tuple((split.shape, hashlib.sha256(split).digest()) for split in splits)
        if key not in _cached_bits:
            _cached_bits[key] = baseline_bits(train, test)
        return dict(_cached_bits[key])

    return cached_bits


@cache
def cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a cache, the same one for all tests."""
    return cache(function)


_loadtxt = np.loadtxt


@cache
def load_digits(file: str, *arguments: Any, **options: Any) -> np.ndarray:
    """Read the embedded digits, with which most runs begin."""
    return _loadtxt(file, *arguments, **options)


def cached_loadtxt(file: Any, *arguments: Any, **options: Any) -> np.ndarray:
    """Read a file as `numpy.loadtxt` does, and the embedded digits only once."""
    if str(file).endswith("digits.csv.gz"):
        return load_digits(file, *arguments, **options).copy()
    return _loadtxt(file, *arguments, **options)


def call_main(main: Callable[..., Any], program: str, words: list[str]) -> None:
    """Call a Hydra program with the settings of one job.

    `hydra.main` composes the settings twice: first for the mode, which only flags and settings of
    Hydra change. Without those this composes them once by Hydra's compose API.
    """
    if any(
        word.startswith(("-", "hydra.")) and not word.startswith("hydra.searchpath=")
        for word in words
    ):
        main()
        return
    with initialize_config_dir(str(CONF), job_name=program, version_base="1.3"):
        settings = compose(program, words, return_hydra_config=True)
        HydraConfig.instance().set_config(settings)
        try:
            main(OmegaConf.masked_copy(settings, [name for name in settings if name != "hydra"]))
        finally:
            HydraConfig.instance().cfg = None


def train(*arguments: object) -> None:
    """Run `train.py` in this process, for fixtures of a module, which cannot use `run`."""
    words = [str(argument) for argument in arguments]
    programs = importlib.import_module("blackout.cli.programs")
    GlobalHydra.instance().clear()
    with mock.patch.object(sys, "argv", [str(ROOT / "train.py"), *words]):
        call_main(programs.train, "train", words)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Callable[..., Outcome]:
    """Return a function that runs a program and returns its `Outcome`.

    Scores use few trees and times. Figures are blank, except in tests that are marked `figures`.
    """
    if str(ROOT) not in sys.path:
        monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(np, "loadtxt", cached_loadtxt)
    monkeypatch.setattr(
        importlib.import_module("blackout.diffusion.likelihood_estimates"), "MIN_PAIRS", 20
    )
    monkeypatch.setattr(importlib.import_module("blackout.evaluation.classifier_tests"), "TREES", 5)
    baselines = importlib.import_module("blackout.evaluation.baselines")
    monkeypatch.setattr(baselines, "baseline_bits", cache_baseline_bits(baselines.baseline_bits))
    monkeypatch.setattr(baselines, "MAX_FITTED_ELEMENTS", 64)
    provenance = importlib.import_module("blackout.cli.provenance")
    for name in ("version", "git_commit"):
        monkeypatch.setattr(provenance, name, cached(getattr(provenance, name)))
    if not request.node.get_closest_marker("figures"):
        monkeypatch.setattr(Figure, "savefig", save_blank)

    def run(program: str, *arguments: object) -> Outcome:
        GlobalHydra.instance().clear()
        words = [str(argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", [str(ROOT / f"{program}.py"), *words])
        programs = importlib.import_module("blackout.cli.programs")
        code = 0
        try:
            programs.run(partial(call_main, getattr(programs, program), program, words), program)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Return a function that calls the `main` of a command and returns its `Outcome`."""
    monkeypatch.setattr(Figure, "savefig", save_blank)

    def command(main: Callable[[], object], *words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


# A perceptron of a few thousand weights on the embedded digits
TINY = (
    "network=mlp",
    "network.body.width=16",
    "network.body.depth=1",
    "batch_size=64",
    "trainer.precision=32-true",
    "trainer.val_check_interval=2",
    "sampler.num_steps=8",
    "callbacks.progress=null",
    "callbacks.samples.num_samples=4",
    "callbacks.samples.every_n_steps=4",
    "optimizer.decay_steps=100",
    "callbacks.checkpoints.every_n_steps=2",
    "trainer.log_every_n_steps=1",
    "validation_draws=1",
)


@pytest.fixture
def trained_model(run: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run directory of a small MLP, which the first test that uses it trains."""
    folder = tmp_path_factory.getbasetemp() / "trained_model"
    if not (folder / "digits/a").exists():
        settings = ("trainer.max_steps=4", "run_id=a", f"runs_dir={folder}", "metrics=none")
        outcome = run("train", *TINY, *settings)
        assert outcome.code == 0, outcome.err
    return folder / "digits/a"


def forget_modules(package):
    """Make Python import a package anew, as another folder may have one of the same name."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
