"""Speed on a GPU: sampling steps, scores, and the kernels of a training step."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu.numerics import make_diffusion
from benchmarks.gpu.report import MEMORY_FORMATS, Report, Setup
from benchmarks.measure import first_call, peak_memory, synchronise
from benchmarks.reference import paper_network
from benchmarks.scores import random_inception
from benchmarks.training import FastTraining
from blackout import BlackoutDiffusion
from blackout.diffusion import (
    BinomialBridge,
    Kernel,
    PoissonLeap,
    Sampler,
    Schedule,
    Trapezoidal,
    nearest_rounding,
)
from blackout.evaluation import FeatureStatistics, ImageScores, Reference, frechet_distance

NUM_FID_SAMPLES = 50_000
INCEPTION_FLOPS = 11.4e9  # of one image at 299x299
NUM_KERNELS = 12  # of a profile that are reported by name
KERNEL_KINDS = {  # parts of the names of CUDA kernels; the first kind that fits counts
    "layout": ("nchwToNhwc", "nhwcToNchw", "transpose", "cudnn::ops", "convertTensor"),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "depthwise": ("depthwise",),
    "norm": (
        "group_norm",
        "GroupNorm",
        "Moments",
        "FusedParams",
        "InternalGradients",
        "GammaBeta",
        "rowwise",
    ),
    "draws": ("_bisect", "_counts", "scan", "cumsum"),
    "optimiser": ("multi_tensor", "FusedAdam", "lerp", "fused_adam"),
    "convolution": (
        "conv",
        "xmma",
        "cutlass",
        "sm90",
        "sm80",
        "implicit",
        "wgrad",
        "dgrad",
        "gemm",
        "nvjet",
        "cudnn",
    ),
    "compiled": ("triton",),
    "reduction": ("reduce",),
    "copy": ("copy", "Memcpy", "Memset", "CatArray", "cat"),
    "dropout": ("dropout", "bernoulli"),
    "pointwise": ("elementwise", "vectorized", "silu"),
}


# --- sampling


def measure_sampling(setup: Setup, report: Report) -> None:
    """Measure a step by batch size and kernel, and the network in a CUDA graph and compiled."""
    network = paper_network(setup.quick, channels_last=True)
    model = make_diffusion(network, setup.device).eval()
    bridge = BinomialBridge(nearest_rounding)
    batch_sizes = (4,) if setup.quick else (64, 128, 256, 512)
    for batch_size in batch_sizes:
        case = f"binomial bridge, batch {batch_size}"
        with report.case(case):
            seconds = _time_step(setup, model, bridge, batch_size, bfloat16=True)
            report.add(
                case,
                None,
                ms_per_step=1e3 * seconds,
                images_per_s_at_1000_steps=batch_size / seconds / 1000,
                GiB=peak_memory(setup.device),
            )
    kernels: dict[str, tuple[Kernel, bool]] = {
        "binomial bridge, float32": (bridge, False),
        "Poisson": (PoissonLeap(), True),
        "trapezoidal, two evaluations": (Trapezoidal(), True),
    }
    batch_size = 4 if setup.quick else 256
    for case, (kernel, bfloat16) in kernels.items():
        with report.case(case):
            seconds = _time_step(setup, model, kernel, batch_size, bfloat16)
            report.add(case, None, ms_per_step=1e3 * seconds, batch=batch_size)
    if not setup.is_cuda:
        return
    with report.case("no synchronisation in a step"):
        counts = [_count_synchronisations(model, bridge, num_steps) for num_steps in (4, 12)]
        passed = counts[0] == counts[1]
        report.add("no synchronisation in a step", passed, of_4_steps=counts[0], of_12=counts[1])
    for batch_size in batch_sizes[:3]:
        case = f"network in a CUDA graph, batch {batch_size}"
        with report.case(case):
            eager, replayed = _time_cuda_graph(setup, model, batch_size)
            report.add(case, None, eager_ms=1e3 * eager, graph_ms=1e3 * replayed)
    with report.case("compiled network"):
        x, t = _network_inputs(setup, 256)
        compiled = torch.compile(model.network)
        with torch.no_grad(), Sampler(bfloat16=True).evaluating(model.network):
            compilation = first_call(lambda: compiled(x, t), setup.device)
            seconds = setup.time_call(lambda: compiled(x, t))
        report.add("compiled network", None, first_call_s=compilation, ms=1e3 * seconds)


def _time_step(
    setup: Setup, model: BlackoutDiffusion, kernel: Kernel, batch_size: int, bfloat16: bool
) -> float:
    """Return the seconds of one step.

    The difference between a long and a short run, so that their starts and ends cancel.
    """
    short, long = (1, 3) if setup.quick else (2, 22)
    seconds = []
    for num_steps in (short, short, long):  # the first run is a warm-up
        sampler = Sampler(kernel, num_steps=num_steps, batch_size=batch_size, bfloat16=bfloat16)
        synchronise(setup.device)
        start = time.perf_counter()
        for _ in model.batches(torch.arange(batch_size), 0, batch_size, sampler=sampler):
            synchronise(setup.device)
        seconds.append(time.perf_counter() - start)
    return (seconds[2] - seconds[1]) / (long - short)


def _count_synchronisations(model: BlackoutDiffusion, kernel: Kernel, num_steps: int) -> int:
    """Return how often the host waits for the GPU while a batch is sampled."""
    sampler = Sampler(kernel, num_steps=num_steps, batch_size=8, bfloat16=True)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in model.batches(torch.arange(8), 0, 8, sampler=sampler):
                pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in caught)


def _network_inputs(setup: Setup, batch_size: int) -> tuple[Tensor, Tensor]:
    t = torch.ones(batch_size, dtype=torch.float64, device=setup.device)
    return setup.random_images(batch_size), t


def _time_cuda_graph(
    setup: Setup, model: BlackoutDiffusion, batch_size: int
) -> tuple[float, float]:
    """Return the seconds of an evaluation of the network, eager and replayed from a CUDA graph."""
    x, t = _network_inputs(setup, batch_size)
    with torch.no_grad(), Sampler(bfloat16=True).evaluating(model.network):
        eager = setup.time_call(lambda: model.network(x, t))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model.network(x, t)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.network(x, t)
        return eager, setup.time_call(graph.replay)


# --- scores


def measure_scores(setup: Setup, report: Report) -> None:
    """Measure Inception's features, FID and IS together, and the Fréchet distance."""
    batch_size = 4 if setup.quick else 256  # the Inception Score needs ten images
    images = setup.random_images(batch_size)
    extractor = random_inception().to(setup.device)
    with report.case("Inception"):
        seconds = setup.time_call(lambda: extractor(images), 1 if setup.quick else 5)
        rate = batch_size / seconds
        report.add(
            "Inception",
            None,
            images_per_s=rate,
            TFLOP_per_s=INCEPTION_FLOPS * rate / 1e12,
            GiB=peak_memory(setup.device),
        )
    with report.case("FID and IS of a batch"):
        reference = Reference(*_standard_normal(extractor.num_features), NUM_FID_SAMPLES)
        repetitions = 2
        num_images = (repetitions + 1) * batch_size  # the first batch is a warm-up
        scores = ImageScores(extractor, num_images, ["fid", "is"], reference)
        batches: Iterator[Tensor] = iter(torch.arange(num_images).split(batch_size))
        seconds = setup.time_call(
            lambda: scores.update({"samples": images}, next(batches)), repetitions
        )
        rate = batch_size / seconds
        report.add(
            "FID and IS of a batch",
            None,
            images_per_s=rate,
            seconds_for_50000=NUM_FID_SAMPLES / rate,
        )
    with report.case("Fréchet distance"):
        num_features = 64 if setup.quick else 2048
        statistics = FeatureStatistics(num_features).to(setup.device)
        features = torch.randn(4 * num_features, num_features, device=setup.device)
        statistics.update(features)
        mean, covariance, _ = statistics.compute()
        start = time.perf_counter()
        value = frechet_distance(mean, covariance, *_standard_normal(num_features))
        seconds = time.perf_counter() - start
        report.add("Fréchet distance", value >= 0, features=num_features, seconds=seconds)


def _standard_normal(num_features: int) -> tuple[Tensor, Tensor]:
    """Return a mean of zero and a covariance of one."""
    mean = torch.zeros(num_features, dtype=torch.float64)
    return mean, torch.eye(num_features, dtype=torch.float64)


# --- profile


def profile_training(setup: Setup, report: Report) -> None:
    """Measure the time of each kind of kernel in a training step, in both memory formats."""
    batch_size = 2 if setup.quick else 256
    images = setup.random_images(batch_size)
    for name, memory_format in MEMORY_FORMATS.items():
        if report.is_finished(name):
            continue
        with report.case(name):
            network = paper_network(setup.quick, channels_last=False).to(setup.device)
            network.body.to(memory_format=memory_format)
            training = FastTraining(network, images, Schedule(), bfloat16=True, compiled=False)
            for _ in range(3):
                training.step()
            milliseconds = _profile_step(setup, training)
            total = sum(milliseconds.values())
            by_kind: dict[str, float] = defaultdict(float)
            for kernel, value in milliseconds.items():
                by_kind[_kernel_kind(kernel)] += value
            slowest = sorted(milliseconds, key=lambda kernel: -milliseconds[kernel])
            report.add(
                name,
                None,
                batch=batch_size,
                ms=total,
                ms_by_kind=dict(sorted(by_kind.items(), key=lambda item: -item[1])),
                slowest={kernel[:90]: milliseconds[kernel] for kernel in slowest[:NUM_KERNELS]},
            )


def _profile_step(setup: Setup, training: FastTraining) -> dict[str, float]:
    """Return the milliseconds of each kernel, or operator on a CPU, in one training step."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, activity.CUDA] if setup.is_cuda else [activity.CPU]
    synchronise(setup.device)
    with torch.profiler.profile(activities=activities) as profiler:
        training.step()
        synchronise(setup.device)
    milliseconds = {}
    for event in profiler.key_averages():
        if not setup.is_cuda:
            milliseconds[event.key] = event.self_cpu_time_total / 1e3
        elif event.device_type is torch.autograd.DeviceType.CUDA:  # kernels, not operators
            milliseconds[event.key] = event.self_device_time_total / 1e3
    return milliseconds


def _kernel_kind(kernel: str) -> str:
    for kind, fragments in KERNEL_KINDS.items():
        if any(fragment.lower() in kernel.lower() for fragment in fragments):
            return kind
    return "other"
