"""Speed on a GPU: sampling steps, scores, and which kernels a training step spends its time in."""

from __future__ import annotations

import time
import warnings

import torch
from torch import Tensor

from benchmarks.gpu_numbers import small_diffusion
from benchmarks.gpu_report import FORMATS, SIDE, Report, Setup, image_batch
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

LARGEST = 12  # kernels of a profile that are reported


def sampling(setup: Setup, report: Report) -> None:
    """Seconds of a step by batch and kernel, waits, and the network in a graph and compiled."""
    network = paper_network(setup.quick, channels_last=True)
    model = small_diffusion(network, setup.device).eval()
    bridge = BinomialBridge(nearest_rounding)
    sizes = (4,) if setup.quick else (64, 128, 256, 512)
    for size in sizes:
        case = f"binomial bridge, batch {size}"
        with report.case(case):
            seconds = _step_seconds(setup, model, bridge, size, bfloat16=True)
            report.add(case, None, ms_a_step=1e3 * seconds, GiB=peak_memory(setup.device))
    kernels: dict[str, tuple[Kernel, bool]] = {
        "binomial bridge, float32": (bridge, False),
        "Poisson": (PoissonLeap(), True),
        "trapezoidal, two evaluations": (Trapezoidal(), True),
    }
    size = sizes[-1] if setup.quick else 256
    for case, (kernel, bfloat16) in kernels.items():
        with report.case(case):
            seconds = _step_seconds(setup, model, kernel, size, bfloat16)
            report.add(case, None, ms_a_step=1e3 * seconds, batch=size)
    if not setup.is_cuda:
        return
    with report.case("no waits in a step"):
        few, more = (_waits(model, bridge, number) for number in (4, 12))
        report.add("no waits in a step", few == more, of_4_steps=few, of_12_steps=more)
    for size in sizes[:3]:
        case = f"network in a CUDA graph, batch {size}"
        with report.case(case):
            eager, replayed = _graph_seconds(setup, model, size)
            report.add(case, None, eager_ms=1e3 * eager, graph_ms=1e3 * replayed)
    with report.case("compiled network"):
        x, t = _states(setup, size)
        compiled = torch.compile(model.network)
        with torch.no_grad(), Sampler(bfloat16=True).evaluating(model.network):
            first = first_call(lambda: compiled(x, t), setup.device)
            seconds = setup.seconds(lambda: compiled(x, t))
        report.add("compiled network", None, batch=size, first_call_s=first, ms=1e3 * seconds)


def _step_seconds(
    setup: Setup, model: BlackoutDiffusion, kernel: Kernel, size: int, bfloat16: bool
) -> float:
    """Seconds of one step: the difference of two lengths, in which starts and ends cancel."""
    short, long = (1, 3) if setup.quick else (2, 22)
    took = []
    for number in (short, short, long):  # the first one warms up
        sampler = Sampler(kernel, num_steps=number, batch_size=size, bfloat16=bfloat16)
        synchronise(setup.device)
        began = time.perf_counter()
        for _ in model.batches(torch.arange(size), 0, size, sampler=sampler):
            synchronise(setup.device)
        took.append(time.perf_counter() - began)
    return (took[2] - took[1]) / (long - short)


def _waits(model: BlackoutDiffusion, kernel: Kernel, number: int) -> int:
    """How often the loop of so many steps waits for the device."""
    sampler = Sampler(kernel, num_steps=number, batch_size=8, bfloat16=True)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in model.batches(torch.arange(8), 0, 8, sampler=sampler):
                pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in warned)


def _states(setup: Setup, size: int) -> tuple[Tensor, Tensor]:
    shape = (size, 3, SIDE, SIDE)
    x = torch.randint(0, 256, shape, device=setup.device, dtype=torch.uint8)
    return x, torch.ones(size, dtype=torch.float64, device=setup.device)


def _graph_seconds(setup: Setup, model: BlackoutDiffusion, size: int) -> tuple[float, float]:
    """Seconds of an evaluation of the network, as it is and replayed from a CUDA graph."""
    x, t = _states(setup, size)
    with torch.no_grad(), Sampler(bfloat16=True).evaluating(model.network):
        eager = setup.seconds(lambda: model.network(x, t))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model.network(x, t)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.network(x, t)
        return eager, setup.seconds(graph.replay)


def scores(setup: Setup, report: Report) -> None:
    """Images a second of Inception's features, and of all that FID and IS add."""
    batch = 2 if setup.quick else 256
    images = image_batch(setup.device, batch)["x0"]
    extractor = random_inception().to(setup.device)
    with report.case("Inception"):
        seconds = setup.seconds(lambda: extractor(images), 1 if setup.quick else 5)
        report.add("Inception", None, images_per_s=batch / seconds, GiB=peak_memory(setup.device))
    with report.case("FID and IS of a batch"):
        width = extractor.num_features
        reference = Reference(torch.zeros(width).double(), torch.eye(width).double(), 50_000)
        number = 3 * batch
        scores = ImageScores(extractor, number, ["fid", "is"], reference, device=setup.device)
        indices = iter(torch.arange(number).split(batch))

        def update() -> None:
            scores.update({"samples": images}, next(indices))

        seconds = setup.seconds(update, 2)
        report.add("FID and IS of a batch", None, images_per_s=batch / seconds)
    with report.case("distance"):
        width = 64 if setup.quick else 2048
        statistics = FeatureStatistics(width).to(setup.device)
        statistics.update(torch.randn(4 * width, width, device=setup.device))
        mean, covariance, _ = statistics.compute()
        zero, identity = torch.zeros(width).double(), torch.eye(width).double()
        began = time.perf_counter()
        value = frechet_distance(mean, covariance, zero, identity)
        seconds = time.perf_counter() - began
        report.add("distance", value >= 0, features=width, seconds=seconds)


def profile(setup: Setup, report: Report) -> None:
    """Which kernels take the time of a training step, in both memory formats."""
    batch = 2 if setup.quick else 256
    x0 = image_batch(setup.device, batch)["x0"]
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if setup.is_cuda else []
    column = "self_device_time_total" if setup.is_cuda else "self_cpu_time_total"
    for layout, memory_format in FORMATS.items():
        if report.is_done(layout):
            continue
        with report.case(layout):
            network = paper_network(setup.quick, channels_last=False).to(setup.device)
            network.body.to(memory_format=memory_format)
            step = FastTraining(network, x0, Schedule(), bfloat16=True, compiled=False).step
            for _ in range(3):
                step()
            synchronise(setup.device)
            with torch.profiler.profile(activities=activities) as recorded:
                step()
                synchronise(setup.device)
            times = {event.key: getattr(event, column) for event in recorded.key_averages()}
            total = sum(times.values())
            names = sorted(times, key=lambda name: -times[name])[:LARGEST]
            shares = {name[:60]: times[name] / total for name in names}
            report.add(layout, None, batch=batch, ms=total / 1e3, shares=shares)
