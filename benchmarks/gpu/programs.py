"""Whole runs of `train.py` and `sample.py`: speed, devices, scores, and continuing a killed run."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import runpy
import shutil
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

from benchmarks.gpu.report import IMAGE_SIZE, ROOT, Report, Setup
from benchmarks.measure import matmul_rate, peak_memory, synchronise
from benchmarks.reference import paper_network
from benchmarks.training import flops_per_image
from blackout.evaluation import ImageScores, ModuleExtractor, Reference
from blackout.networks import CountNetwork

MODULE = "benchmarks.gpu.programs"  # of the callbacks and components that commands name
NEVER = 10**8  # interval in steps of what a run should not do
SMALL_NETWORK = (
    "network.body.channels=8",
    "network.body.multipliers=[1,2]",
    "network.body.blocks_per_level=1",
    "network.body.attention_resolutions=[]",
)
SINGLE_DEVICE = (
    "trainer.devices=1",
    f"trainer.val_check_interval={NEVER}",
    "trainer.limit_val_batches=1",
)
NUM_FEATURES = 16  # of `ToyFeatures`
TOY_SCORES = (
    "metrics=custom",
    f"metrics.extractor.module._target_={MODULE}.ToyFeatures",
    f"metrics.extractor.num_features={NUM_FEATURES}",
    "metrics.scores=[fd]",
)
devices_used: dict[str, set[str]] = {"network": set(), "features": set()}


# --- callbacks and components that commands name


class TimingFinished(Exception):
    """Ends a run of `train.py` once it has been timed."""


class StepTimer(Callback):
    """Times the steps of a run, writes the times to a file, and ends the run.

    Args:
        file: for JSON with seconds per step, in all and on the host, of the first step and of
            saving a checkpoint; peak memory in GiB; the loss; and the device.
        warmup_steps: steps before the clock starts.
        timed_steps: steps that are timed.
    """

    def __init__(self, file: str, warmup_steps: int, timed_steps: int) -> None:
        self._file = Path(file)
        self._warmup_steps = warmup_steps
        self._timed_steps = timed_steps
        self._num_steps = 0
        self._start = 0.0
        self._first_seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the first step."""
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Read the clock."""
        self._num_steps += 1
        device = pl_module.device
        if self._num_steps == 1:
            synchronise(device)
            self._first_seconds = time.perf_counter() - self._start
        if self._num_steps == self._warmup_steps:
            synchronise(device)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            self._start = time.perf_counter()
        if self._num_steps == self._warmup_steps + self._timed_steps:
            self._write(trainer, device, outputs)
            raise TimingFinished

    def _write(self, trainer: pl.Trainer, device: torch.device, outputs: Any) -> None:
        host_seconds = time.perf_counter() - self._start
        synchronise(device)
        seconds = time.perf_counter() - self._start
        memory = peak_memory(device)
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        save_start = time.perf_counter()
        trainer.save_checkpoint(self._file.with_suffix(".ckpt"))
        values = {
            "seconds": seconds / self._timed_steps,
            "host_seconds": host_seconds / self._timed_steps,
            "first_seconds": self._first_seconds,
            "save_seconds": time.perf_counter() - save_start,
            "GiB": memory,
            "loss": float(loss),
            "device": device.type,
        }
        self._file.write_text(json.dumps(values), encoding="utf-8")


class KillOnce(Callback):
    """Ends the process by SIGKILL after a step, unless an earlier process did so.

    Args:
        step: of the run.
        marker: file that is written before the process ends.
    """

    def __init__(self, step: int, marker: str) -> None:
        self._step = step
        self._marker = Path(marker)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Compare the step."""
        if trainer.global_step == self._step and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DeviceRecorder(Callback):
    """Records in `devices_used` where networks are evaluated, also after training."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add a hook to every network."""
        for module in pl_module.modules():
            if isinstance(module, CountNetwork):
                module.register_forward_pre_hook(_record_device)


def _record_device(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    devices_used["network"].add(inputs[0].device.type)


class ToyFeatures(nn.Module):
    """Features for scores, uint8 images [B, 3, H, W] to [B, 16]; records its device."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, NUM_FEATURES, 3, stride=2)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Return means of a convolution."""
        devices_used["features"].add(x.device.type)
        return self.convolution(x.float() / 64 - 2).relu().mean((2, 3))


# --- commands


def run_program(name: str, arguments: Sequence[str]) -> None:
    """Run `python <name>.py <arguments>` in this process, whose imports are done.

    Raises:
        RuntimeError: the exit code is not 0.
    """
    errors = io.StringIO()
    script = str(ROOT / f"{name}.py")
    GlobalHydra.instance().clear()
    with (
        mock.patch.object(sys, "argv", [script, *arguments]),
        redirect_stdout(io.StringIO()),
        redirect_stderr(errors),
    ):
        try:
            runpy.run_path(script, run_name="__main__")
        except TimingFinished:
            return
        except SystemExit as error:
            if error.code:
                message = errors.getvalue().strip()[-300:]
                raise RuntimeError(f"{name}.py: exit code {error.code}: {message}") from error


def run_subprocess(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a new process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True
    )


def cifar10_recipe(setup: Setup) -> list[str]:
    """Return arguments like those of `python train.py dataset=cifar10`, with random images."""
    file = setup.folder / "images.npy"
    if not file.exists():
        np.save(file, _smooth_images(128 if setup.quick else 4096))
    arguments = [
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
    if setup.quick:
        arguments += SMALL_NETWORK
    return arguments


def _smooth_images(number: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (number, 3, IMAGE_SIZE // 4, IMAGE_SIZE // 4))
    noise = generator.integers(-20, 21, (number, 3, IMAGE_SIZE, IMAGE_SIZE))
    return np.clip(coarse.repeat(4, 2).repeat(4, 3) + noise, 0, 255).astype(np.uint8)


def small_run(setup: Setup) -> list[str]:
    """Return the arguments of a run with a small network on one device."""
    batch_size = f"batch_size={8 if setup.quick else 32}"
    return [*cifar10_recipe(setup), *SMALL_NETWORK, *SINGLE_DEVICE, batch_size]


def run_folder(setup: Setup, run_id: str) -> Path:
    """Return the folder of a run."""
    return setup.folder / "runs" / "gpu" / run_id


# --- parts


def measure_training(setup: Setup, report: Report) -> None:
    """Measure images per second and memory of the CIFAR-10 recipe with settings for speed."""
    batch_size = 8 if setup.quick else 256
    small_batch = batch_size // 8
    bfloat16 = "trainer.precision=bf16-mixed"
    float32 = "trainer.precision=32-true"
    cases: dict[str, tuple[list[str], int]] = {
        "default": ([], batch_size),
        "bfloat16": ([bfloat16], batch_size),
        "bfloat16, NCHW": ([bfloat16, "network.channels_last=false"], batch_size),
        "bfloat16, cuDNN benchmark": ([bfloat16, "trainer.benchmark=true"], batch_size),
        "bfloat16, an eighth of the batch": ([bfloat16], small_batch),
        "bfloat16, compiled": ([bfloat16, "compile=true"], batch_size),
        "float32": ([float32], batch_size),
        "bfloat16, compiled, an eighth of the batch": (
            [bfloat16, "compile=reduce-overhead"],
            small_batch,
        ),
        "float32, compiled": ([float32, "compile=true"], batch_size),
    }
    if setup.quick:  # compiling C++ would take minutes
        cases = {name: case for name, case in cases.items() if "compiled" not in name}
    flops = flops_per_image(
        paper_network(setup.quick, channels_last=False), setup.random_images(1).cpu()
    )
    report.add("operations", None, GFLOP_per_image=flops / 1e9)
    matrix_size = 256 if setup.quick else 8192
    rates = {
        "bfloat16": matmul_rate(setup.device, torch.bfloat16, matrix_size),
        "float32": matmul_rate(setup.device, torch.float32, matrix_size),
    }
    for number, (case, (arguments, images)) in enumerate(cases.items()):
        if report.is_finished(case):
            continue
        with report.case(case):
            run_id = f"training{number}"
            command = [*arguments, f"batch_size={images}", f"run_id={run_id}"]
            timing = _time_training(setup, command)
            images_per_second = images / timing["seconds"]
            rate = rates["float32" if "float32" in case else "bfloat16"]
            report.add(
                case,
                timing["device"] == setup.device.type and math.isfinite(timing["loss"]),
                images_per_s=images_per_second,
                share_of_matrix_product=flops * images_per_second / rate,
                **timing,
            )
            shutil.rmtree(run_folder(setup, run_id), ignore_errors=True)
        torch.compiler.reset()
        gc.collect()
        if setup.is_cuda:
            torch.cuda.empty_cache()


def _time_training(setup: Setup, arguments: Sequence[str]) -> dict[str, Any]:
    """Return what `StepTimer` writes about a run of the recipe."""
    warmup_steps, timed_steps = (1, 2) if setup.quick else (8, 30)
    file = setup.folder / "timing.json"
    timer = [
        f"+callbacks.timer._target_={MODULE}.StepTimer",
        f"+callbacks.timer.file={file}",
        f"+callbacks.timer.warmup_steps={warmup_steps}",
        f"+callbacks.timer.timed_steps={timed_steps}",
        f"callbacks.checkpoints.every_n_steps={NEVER}",
        f"trainer.max_steps={warmup_steps + timed_steps + 1}",
        "metrics=none",
    ]
    run_program("train", [*cifar10_recipe(setup), *SINGLE_DEVICE, *arguments, *timer])
    return dict(json.loads(file.read_text(encoding="utf-8")))


def check_closing(setup: Setup, report: Report) -> None:
    """Check on which device a run evaluates its networks after training."""
    case = "device of final samples and scores"
    with report.case(case):
        for devices in devices_used.values():
            devices.clear()
        steps = 24 if setup.quick else 40  # with as many network evaluations as the scores need
        arguments = [
            *small_run(setup),
            *TOY_SCORES,
            "callbacks.scores.num_samples=24",
            "callbacks.scores.num_samples_between=24",
            f"callbacks.scores.every_n_steps={steps}",
            f"trainer.val_check_interval={steps}",
            f"trainer.max_steps={steps}",
            "sampler.num_steps=3",
            "run_id=closing",
            f"+callbacks.recorder._target_={MODULE}.DeviceRecorder",
        ]
        start = time.perf_counter()
        run_program("train", arguments)
        seconds = time.perf_counter() - start
        passed = all(devices == {setup.device.type} for devices in devices_used.values())
        report.add(case, passed, seconds=seconds, **devices_used)


def check_process_group(setup: Setup, report: Report) -> None:
    """Check scores on the device and on the CPU in a group with the device's own backend."""
    backend = "nccl" if setup.is_cuda else "gloo"
    with report.case("process group"):
        if setup.is_cuda:
            torch.cuda.set_device(0)
        rendezvous = f"file://{setup.folder}/rendezvous"
        dist.init_process_group(backend, init_method=rendezvous, rank=0, world_size=1)
        try:
            for device in dict.fromkeys([setup.device.type, "cpu"]):
                case = f"scores on {device}, {backend}"
                with report.case(case):
                    value = _score_random_images(torch.device(device))
                    report.add(case, math.isfinite(value), fd=value)
        finally:
            dist.destroy_process_group()


def _score_random_images(device: torch.device) -> float:
    mean = torch.zeros(NUM_FEATURES, dtype=torch.float64)
    covariance = torch.eye(NUM_FEATURES, dtype=torch.float64)
    extractor = ModuleExtractor(ToyFeatures(), "toy", NUM_FEATURES).to(device)
    reference = Reference(mean, covariance, 100)
    scores = ImageScores(extractor, 40, ["fd"], reference)
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, device=device)
    scores.update({"samples": images}, torch.arange(40))
    return scores.compute()["frechet_distance_toy"]


def check_resuming(setup: Setup, report: Report) -> None:
    """Compare the weights of a run with those of a repeated run, and of one killed and resumed.

    On a GPU they must be equal with `trainer.deterministic=true`; without it the differences are
    measured.
    """
    for case, settings in (("default", []), ("deterministic", ["trainer.deterministic=true"])):
        if report.is_finished(case):
            continue
        with report.case(case):
            must_be_equal = setup.quick or case == "deterministic"
            exit_code = _train_three_times(setup, case, settings)
            repeated = _compare_weights(setup, f"{case}-first", f"{case}-repeated")
            resumed = _compare_weights(setup, f"{case}-first", f"{case}-resumed")
            passed = None
            if must_be_equal:
                killed = exit_code == -signal.SIGKILL
                passed = killed and repeated["different"] == 0 and resumed["different"] == 0
            report.add(case, passed, repeated=repeated, resumed=resumed, exit_code=exit_code)
    torch.use_deterministic_algorithms(False)


def _train_three_times(setup: Setup, prefix: str, settings: Sequence[str]) -> int:
    """Train, repeat, and kill and resume a run; return the exit code of the killed process."""
    middle = 4 if setup.quick else 12
    arguments = [
        *small_run(setup),
        *settings,
        f"callbacks.checkpoints.every_n_steps={middle - 2}",
        f"trainer.precision={'bf16-mixed' if setup.is_cuda else '32-true'}",
        f"trainer.max_steps={2 * middle}",
        "metrics=none",
    ]
    for name in ("first", "repeated"):
        run_program("train", [*arguments, f"run_id={prefix}-{name}"])
    arguments += [
        f"run_id={prefix}-resumed",
        f"+callbacks.kill._target_={MODULE}.KillOnce",
        f"+callbacks.kill.step={middle + 1}",
        f"+callbacks.kill.marker={setup.folder / prefix}",
    ]
    killed = run_subprocess([str(ROOT / "train.py"), *arguments])
    run_program("train", arguments)
    return killed.returncode


def _compare_weights(setup: Setup, run_id: str, other_run_id: str) -> dict[str, float]:
    """Return how many tensors differ between the checkpoints of two runs, and by how much."""
    weights, other_weights = (
        torch.load(
            run_folder(setup, name) / "checkpoints" / "last.ckpt",
            weights_only=True,
            map_location="cpu",
        )["state_dict"]
        for name in (run_id, other_run_id)
    )
    differences = []
    for name, value in weights.items():
        other_value = other_weights[name]
        if not torch.equal(value, other_value):
            differences.append(float((value.double() - other_value.double()).abs().max()))
    return {
        "different": len(differences),
        "tensors": len(weights),
        "max_difference": max(differences, default=0.0),
    }


def check_evaluation(setup: Setup, report: Report) -> None:
    """Check that `sample.py evaluate=true` reports finite values."""
    case = "sample.py evaluate=true"
    with report.case(case):
        train_arguments = ["metrics=none", "run_id=evaluation", "trainer.max_steps=4"]
        run_program("train", [*small_run(setup), *train_arguments])
        num_samples, num_steps, num_images = (24, 2, 8) if setup.quick else (256, 20, 512)
        out = setup.folder / "evaluated"
        arguments = [
            f"ckpt={run_folder(setup, 'evaluation')}",
            f"out={out}",
            f"num_samples={num_samples}",
            f"sampler.num_steps={num_steps}",
            "evaluate=true",
            *TOY_SCORES,
            f"likelihood.images={num_images}",
            "likelihood.repeats=1",
            f"device={setup.device.type}",
            "trusted=[benchmarks]",
        ]
        start = time.perf_counter()
        run_program("sample", arguments)
        seconds = time.perf_counter() - start
        values = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["values"]
        numbers = [value for value in values.values() if isinstance(value, int | float)]
        passed = bool(numbers) and all(map(math.isfinite, numbers))
        report.add(case, passed, seconds=seconds, **values)


def check_two_devices(setup: Setup, report: Report) -> None:
    """Train and score on two GPUs by `torchrun`."""
    num_gpus = torch.cuda.device_count() if setup.is_cuda else 0
    if num_gpus < 2:
        report.add("torchrun", None, note=f"skipped: {num_gpus} GPUs")
        return
    with report.case("torchrun"):
        steps = 40
        arguments = [
            *cifar10_recipe(setup),
            *SMALL_NETWORK,
            *TOY_SCORES,
            "callbacks.scores.num_samples=64",
            "sampler.num_steps=10",
            "trainer.devices=2",
            f"trainer.max_steps={steps}",
            "run_id=two_devices",
        ]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        start = time.perf_counter()
        result = run_subprocess([*launcher, str(ROOT / "train.py"), *arguments])
        seconds = time.perf_counter() - start
        note = result.stderr[-400:] if result.returncode else ""
        report.add("torchrun", result.returncode == 0, seconds=seconds, steps=steps, note=note)
