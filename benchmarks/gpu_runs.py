"""Whole runs of `train.py` and `sample.py` on a GPU: speed, devices, kills, scores."""

from __future__ import annotations

import io
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from hydra.core.global_hydra import GlobalHydra
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from benchmarks.gpu_report import ROOT, SIDE, Report, Setup, image_batch
from benchmarks.measure import matmul_rate, peak_memory, synchronise
from benchmarks.reference import paper_network
from benchmarks.training import flops_per_image
from blackout.evaluation import ImageScores, ModuleExtractor, Reference
from blackout.networks import CountNetwork

PARTS = "benchmarks.gpu_runs"  # where the callbacks that commands name are
NEVER = 10**8  # steps, of what is not to be done
SMALL_NETWORK = (
    "network.body.channels=8",
    "network.body.multipliers=[1,2]",
    "network.body.blocks_per_level=1",
    "network.body.attention_resolutions=[]",
)
TOY_SCORES = (
    "metrics=custom",
    f"metrics.extractor.module._target_={PARTS}.ToyFeatures",
    "metrics.extractor.num_features=16",
    "metrics.scores=[fd]",
)
evaluated_on: dict[str, set[str]] = {"network": set(), "features": set()}


# --- callbacks and components that the commands name


class Finished(Exception):
    """Ends a run of `train.py` that has been timed."""


class StepTimer(Callback):
    """Times the steps of a run of `train.py`, writes that, and ends it without its closing.

    Args:
        file: JSON: seconds a step, on the host and in all; of the first step; of a save.
        warm: steps before the clock starts.
        steps: that are timed.
    """

    def __init__(self, file: str, warm: int, steps: int) -> None:
        self._file = Path(file)
        self._warm = warm
        self._steps = steps
        self._done = 0
        self._began = 0.0
        self._first = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the first step."""
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Read the clock."""
        self._done += 1
        device = pl_module.device
        if self._done == 1:
            synchronise(device)
            self._first = time.perf_counter() - self._began
        if self._done == self._warm:
            synchronise(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            self._began = time.perf_counter()
        if self._done == self._warm + self._steps:
            self._write(trainer, device)
            raise Finished

    def _write(self, trainer: pl.Trainer, device: torch.device) -> None:
        host = time.perf_counter() - self._began
        synchronise(device)
        seconds = time.perf_counter() - self._began
        memory = peak_memory(device)
        began = time.perf_counter()
        trainer.save_checkpoint(self._file.with_suffix(".ckpt"))
        values = {
            "seconds": seconds / self._steps,
            "host_seconds": host / self._steps,
            "first_seconds": self._first,
            "save_seconds": time.perf_counter() - began,
            "GiB": memory,
            "device": device.type,
        }
        self._file.write_text(json.dumps(values))


class KillOnce(Callback):
    """Ends the process by SIGKILL after so many steps of a run, the first time that it is there.

    Args:
        step: of the run.
        mark: a file that says that it has been there.
    """

    def __init__(self, step: int, mark: str) -> None:
        self._step = step
        self._mark = Path(mark)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Look whether it is time."""
        if trainer.global_step == self._step and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DeviceWatch(Callback):
    """Notes on which devices the networks of a run are evaluated, also after the training."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Watch every network of counts."""
        for module in pl_module.modules():
            if isinstance(module, CountNetwork):
                module.register_forward_pre_hook(_note_device)


def _note_device(module: nn.Module, given: tuple[Tensor, ...]) -> None:
    evaluated_on["network"].add(given[0].device.type)


class ToyFeatures(nn.Module):
    """Features for scores, uint8 images [B, 3, H, W] to [B, 16]; notes on which device it is."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3, stride=2)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Means of a convolution."""
        evaluated_on["features"].add(x.device.type)
        return self.convolution(x.float() / 64 - 2).relu().mean((2, 3))


# --- commands


def run_program(name: str, words: Sequence[str]) -> None:
    """Run `python <name>.py <words>` in this process, whose imports are done.

    Raises:
        RuntimeError: it ended with another code than 0.
    """
    errors = io.StringIO()
    command = [str(ROOT / f"{name}.py"), *words]
    GlobalHydra.instance().clear()
    with (
        mock.patch.object(sys, "argv", command),
        redirect_stdout(io.StringIO()),
        redirect_stderr(errors),
    ):
        try:
            runpy.run_path(command[0], run_name="__main__")
        except Finished:  # the timer has seen enough
            return
        except SystemExit as end:
            if end.code:
                message = f"{name}.py ended with {end.code}: {errors.getvalue().strip()[-300:]}"
                raise RuntimeError(message) from end


def recipe(setup: Setup) -> list[str]:
    """The words of `python train.py dataset=cifar10` on random images, without a download."""
    file = setup.folder / "images.npy"
    if not file.exists():
        generator = np.random.default_rng(0)
        number = 128 if setup.quick else 4096
        coarse = generator.integers(0, 256, (number, 3, SIDE // 4, SIDE // 4))
        noise = generator.integers(-20, 21, (number, 3, SIDE, SIDE))
        images = np.clip(coarse.repeat(4, 2).repeat(4, 3) + noise, 0, 255)
        np.save(file, images.astype(np.uint8))
    words = [
        "dataset=counts",
        f"dataset.path={file}",
        "++dataset.max_count=255",
        "recipe=blackout/cifar10",
        f"runs_dir={setup.folder}/runs",
        "experiment_name=gpu",
        "callbacks.progress=null",
        f"callbacks.samples.every_n_steps={NEVER}",
        f"trainer.accelerator={'gpu' if setup.is_cuda else 'cpu'}",
    ]
    return [*words, *(SMALL_NETWORK if setup.quick else ())]


def short_run(setup: Setup) -> list[str]:
    """The words of a run with a small network on one device, with neither scores nor saves."""
    return [
        *recipe(setup),
        *SMALL_NETWORK,
        *ALONE,
        f"batch_size={8 if setup.quick else 32}",
        "metrics=none",
    ]


ALONE = ("trainer.devices=1", f"trainer.val_check_interval={NEVER}", "trainer.limit_val_batches=1")


def timed_training(setup: Setup, words: Sequence[str], warm: int, steps: int) -> dict[str, Any]:
    """What `StepTimer` measures of a run of the recipe."""
    file = setup.folder / "timing.json"
    timer = [
        f"+callbacks.timer._target_={PARTS}.StepTimer",
        f"+callbacks.timer.file={file}",
        f"+callbacks.timer.warm={warm}",
        f"+callbacks.timer.steps={steps}",
        f"callbacks.checkpoints.every_n_steps={NEVER}",
        f"trainer.max_steps={warm + steps + 1}",
        "metrics=none",
    ]
    run_program("train", [*recipe(setup), *ALONE, *words, *timer])
    return dict(json.loads(file.read_text()))


# --- parts


def training(setup: Setup, report: Report) -> None:
    """Images a second, memory and waits of the recipe of CIFAR-10, by what a user can set."""
    warm, steps = (1, 2) if setup.quick else (8, 30)
    batch = 8 if setup.quick else 256
    bfloat16 = "trainer.precision=bf16-mixed"
    single = "trainer.precision=32-true"
    cases: dict[str, tuple[list[str], int]] = {
        "as shipped": ([], batch),
        "bfloat16": ([bfloat16], batch),
        "bfloat16, NCHW": ([bfloat16, "network.channels_last=false"], batch),
        "bfloat16, cuDNN benchmark": ([bfloat16, "+trainer.benchmark=true"], batch),
        "bfloat16, an eighth of the batch": ([bfloat16], batch // 8),
        "bfloat16, compiled": ([bfloat16, "compile=true"], batch),
        "float32": ([single], batch),
        "float32, compiled": ([single, "compile=true"], batch),
    }
    if setup.quick:  # a compiler of C++ takes minutes
        cases = {name: case for name, case in cases.items() if "compiled" not in name}
    x0 = image_batch(torch.device("cpu"), 1)["x0"]
    flops = flops_per_image(paper_network(setup.quick, channels_last=False), x0)
    size = 256 if setup.quick else 8192
    rates = {
        dtype: matmul_rate(setup.device, dtype, size) for dtype in (torch.bfloat16, torch.float32)
    }
    for number, (name, (words, images)) in enumerate(cases.items()):
        if report.is_done(name):
            continue
        with report.case(name):
            more = [f"batch_size={images}", f"run_id=training{number}"]
            found = timed_training(setup, [*words, *more], warm, steps)
            rate = images / found["seconds"]
            dtype = torch.float32 if "float32" in name else torch.bfloat16
            share = flops * rate / rates[dtype]
            report.add(name, None, images_per_s=rate, of_matrix_product=share, **found)
        torch.compiler.reset()
        if setup.is_cuda:
            torch.cuda.empty_cache()


def closing(setup: Setup, report: Report) -> None:
    """A small run to its end: on which device are closing samples and scores made?"""
    case = "networks after the training"
    with report.case(case):
        steps = 4 if setup.quick else 40
        for devices in evaluated_on.values():
            devices.clear()
        words = [
            *(word for word in short_run(setup) if not word.startswith("metrics")),
            *TOY_SCORES,
            "callbacks.scores.num_samples=24",
            "callbacks.scores.num_samples_between=24",
            f"callbacks.scores.every_n_steps={steps}",
            f"trainer.val_check_interval={steps}",
            f"trainer.max_steps={steps}",
            "sampler.num_steps=3",
            "run_id=closing",
            f"+callbacks.watch._target_={PARTS}.DeviceWatch",
        ]
        run_program("train", words)
        passed = all(devices == {setup.device.type} for devices in evaluated_on.values())
        report.add(case, passed, **evaluated_on)


def scores_in_a_group(setup: Setup, report: Report) -> None:
    """Scores where the processes talk by the backend of the device alone."""
    backend = "nccl" if setup.is_cuda else "gloo"
    with report.case(backend):
        if setup.is_cuda:
            torch.cuda.set_device(0)
        meeting = f"file://{setup.folder}/meeting"
        dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        reference = Reference(torch.zeros(16).double(), torch.eye(16).double(), 100)
        extractor = ModuleExtractor(ToyFeatures(), "toy", 16)
        scores = ImageScores(extractor, 40, ["fd"], reference, device=setup.device)
        images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, device=setup.device)
        scores.update({"samples": images}, torch.arange(40))
        value = scores.compute()["fd_toy"]
        dist.destroy_process_group()
        report.add(backend, math.isfinite(value), fd=value)


def resuming(setup: Setup, report: Report) -> None:
    """Which weights differ of a run that is repeated, and of one that is killed and goes on."""
    middle = 4 if setup.quick else 12
    base = [
        *short_run(setup),
        f"callbacks.checkpoints.every_n_steps={middle - 2}",
        f"trainer.precision={'32-true' if setup.quick else 'bf16-mixed'}",
        f"trainer.max_steps={2 * middle}",
    ]
    for name, words in (("by default", []), ("deterministic", ["trainer.deterministic=true"])):
        if report.is_done(name):
            continue
        with report.case(name):
            mark = name.split()[-1]
            for run_id in ("one", "two"):
                run_program("train", [*base, *words, f"run_id={mark}-{run_id}"])
            cut = [
                *base,
                *words,
                f"run_id={mark}-cut",
                f"+callbacks.kill._target_={PARTS}.KillOnce",
                f"+callbacks.kill.step={middle + 1}",
                f"+callbacks.kill.mark={setup.folder / mark}",
            ]
            variables = os.environ | {"PYTHONPATH": str(ROOT)}
            command = [sys.executable, str(ROOT / "train.py"), *cut]
            child = subprocess.run(command, env=variables, capture_output=True, text=True)
            run_program("train", cut)
            again = _compare_weights(setup, f"{mark}-one", f"{mark}-two")
            continued = _compare_weights(setup, f"{mark}-one", f"{mark}-cut")
            same = not again["differ"] and not continued["differ"]
            killed = child.returncode == -signal.SIGKILL
            exact = setup.quick or name == "deterministic"
            passed = (same and killed) if exact else None
            report.add(
                name, passed, repeated=again, continued=continued, exit_code=child.returncode
            )
    torch.use_deterministic_algorithms(False)


def _compare_weights(setup: Setup, one: str, two: str) -> dict[str, float]:
    states = []
    for run_id in (one, two):
        file = setup.folder / f"runs/gpu/{run_id}/checkpoints/last.ckpt"
        states.append(torch.load(file, weights_only=True, map_location="cpu")["state_dict"])
    largest = {}
    for name, value in states[0].items():
        other = states[1][name]
        if not torch.equal(value, other):
            largest[name] = float((value.double() - other.double()).abs().max())
    most = max(largest.values(), default=0.0)
    return {"differ": len(largest), "of": len(states[0]), "largest": most}


def evaluation(setup: Setup, report: Report) -> None:
    """`sample.py evaluate=true` of a small run."""
    case = "sample.py evaluate=true"
    with report.case(case):
        run_program("train", [*short_run(setup), "run_id=evaluation", "trainer.max_steps=4"])
        began = time.perf_counter()
        number, steps, images = (24, 2, 8) if setup.quick else (256, 20, 512)
        out = setup.folder / "evaluated"
        words = [
            f"ckpt={setup.folder}/runs/gpu/evaluation",
            f"out={out}",
            f"num_samples={number}",
            f"sampler.num_steps={steps}",
            "evaluate=true",
            *TOY_SCORES,
            f"likelihood.images={images}",
            "likelihood.repeats=1",
            f"device={setup.device.type}",
            "trusted=[benchmarks]",
        ]
        run_program("sample", words)
        values = json.loads((out / "metrics.json").read_text())["values"]
        numbers = [value for value in values.values() if isinstance(value, int | float)]
        finite = all(map(math.isfinite, numbers))
        report.add(case, finite, seconds=time.perf_counter() - began, **values)


def two_devices(setup: Setup, report: Report) -> None:
    """Training and closing on two devices by `torchrun`."""
    number = torch.cuda.device_count() if setup.is_cuda else 0
    if number < 2:
        report.add("torchrun", None, note=f"left out: {number} GPUs")
        return
    with report.case("torchrun"):
        words = [
            *recipe(setup),
            *SMALL_NETWORK,
            *TOY_SCORES,
            "callbacks.scores.num_samples=64",
            "sampler.num_steps=10",
            "trainer.max_steps=40",
            "run_id=two",
        ]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", str(ROOT / "train.py"), *words]
        began = time.perf_counter()
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        note = {} if done.returncode == 0 else {"note": done.stderr[-400:]}
        seconds = time.perf_counter() - began
        report.add("torchrun", done.returncode == 0, seconds=seconds, **note)
