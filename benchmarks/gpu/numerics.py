"""Numbers on a GPU: its rates, draws against their distributions, a network against float64."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import math
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.gpu.report import IMAGE_SIZE, MEMORY_FORMATS, Report, Setup
from benchmarks.measure import first_call, matmul_rate, synchronise
from benchmarks.reference import paper_network
from benchmarks.training import FastTraining
from blackout import BlackoutDiffusion
from blackout.diffusion import CountLoss, PureDeath, Schedule, SoftplusHead
from blackout.random import SampleStreams, StepStreams, binomial, categorical, poisson

PACKAGES = (
    "filelock",
    "hydra",
    "jinja2",
    "numba",
    "omegaconf",
    "pytorch_lightning",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "torch_fidelity",
    "torchmetrics",
    "torchvision",
    "triton",
    "wandb",
)
MIN_P_VALUE = 1e-6  # of about ninety tests: exact draws fail once in ten thousand runs
MIN_EXPECTED = 20  # draws in a cell of a chi-square test
NUM_CELLS = 64
MAX_DIFFERENT_DRAWS = 1e-5  # share of draws that may differ between a GPU and a CPU
CATEGORY_WEIGHTS = (1.0, 2.0, 0.0, 5.0, 0.25)


@dataclass(frozen=True)
class Precision:
    """A precision and memory format of the network, and its largest relative errors.

    Args:
        name: float32, TF32 or bfloat16.
        memory_format: NCHW or NHWC.
        max_output_error: in the Euclidean norm.
        max_gradient_error: in the Euclidean norm.
    """

    name: str
    memory_format: str
    max_output_error: float
    max_gradient_error: float


PRECISIONS = (
    Precision("float32", "NCHW", 1e-4, 1e-3),
    Precision("float32", "NHWC", 1e-4, 1e-3),
    Precision("TF32", "NCHW", 1e-2, 5e-2),
    Precision("bfloat16", "NCHW", 0.05, 0.2),
    Precision("bfloat16", "NHWC", 0.05, 0.2),
)


# --- environment


def check_environment(setup: Setup, report: Report) -> None:
    """Report versions, the card, and the rates of products, copies and convolutions."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    report.add("versions", not missing, missing=missing, **_versions(setup))
    size = 256 if setup.quick else 8192
    for name, dtype in (
        ("bfloat16", torch.bfloat16),
        ("TF32", torch.float32),
        ("float32", torch.float32),
    ):
        case = f"matrix product, {name}"
        with report.case(case), allow_tf32(name == "TF32"):
            rate = matmul_rate(setup.device, dtype, size)
            report.add(case, None, TFLOP_per_s=rate / 1e12)
    with report.case("copy"):
        x = torch.empty(1 << (20 if setup.quick else 28), device=setup.device)
        seconds = setup.time_call(x.clone, 3)
        report.add("copy", None, GB_per_s=2 * x.nbytes / seconds / 1e9)
    for channels, side in ((128, 32), (256, 16)):  # half of the operations of the network
        for name in MEMORY_FORMATS:
            case = f"convolution {channels}x{side}, {name}"
            with report.case(case):
                report.add(case, None, **_convolution_rates(setup, channels, side, name))


def _versions(setup: Setup) -> dict[str, Any]:
    versions: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    if setup.is_cuda:
        card = torch.cuda.get_device_properties(setup.device)
        versions["card"] = card.name
        versions["cards"] = torch.cuda.device_count()
        versions["capability"] = f"{card.major}.{card.minor}"
        versions["GiB"] = card.total_memory / 2**30
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = torch.backends.cudnn.version()
        versions["bfloat16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    return versions


def _convolution_rates(
    setup: Setup, channels: int, side: int, memory_format: str
) -> dict[str, float]:
    """Return TFLOP/s forwards, and forwards and backwards, with and without cuDNN's benchmark."""
    batch_size = 2 if setup.quick else 256

    def random(*shape: int) -> Tensor:
        x = torch.randn(*shape, device=setup.device, dtype=torch.bfloat16)
        return x.to(memory_format=MEMORY_FORMATS[memory_format])

    x = random(batch_size, channels, side, side).requires_grad_()
    weight = random(channels, channels, 3, 3).requires_grad_()
    gradient = random(batch_size, channels, side, side)
    flops = 2 * x.numel() * channels * 9

    @torch.no_grad()
    def forward() -> None:
        torch.conv2d(x, weight, padding=1)

    def forward_and_backward() -> None:
        torch.autograd.grad(torch.conv2d(x, weight, padding=1), (x, weight), gradient)

    rates = {}
    for benchmark in (False, True):
        suffix = "_cudnn_benchmark" if benchmark else ""
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False):
            rates[f"forward{suffix}"] = flops / setup.time_call(forward, 3) / 1e12
            seconds = setup.time_call(forward_and_backward, 3)
            rates[f"forward_and_backward{suffix}"] = 3 * flops / seconds / 1e12
    return rates


@contextmanager
def allow_tf32(enabled: bool) -> Iterator[None]:
    """Round the inputs of products and convolutions to TF32, or not; afterwards not."""
    torch.backends.cudnn.allow_tf32 = enabled
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")


# --- draws


class DrawTests:
    """Draws on the device, each to be compared with the distribution that it should have.

    Args:
        setup: device and size.
    """

    def __init__(self, setup: Setup) -> None:
        self.device = setup.device
        self.rows = 16 if setup.quick else 64
        self.shape = (self.rows, 512 if setup.quick else 4096)
        self._streams = SampleStreams(11, torch.arange(self.rows, device=self.device))
        self._steps = itertools.count()

    def next_source(self) -> StepStreams:
        """Return random numbers that no other draw has used."""
        return self._streams.step(next(self._steps))

    def binomial(
        self, count: int, probability: float, dtype: torch.dtype, shared: bool = False
    ) -> float:
        """Return the p-value of binomial draws; `shared` has one probability for all rows.

        Raises:
            AssertionError: another type, or a draw outside 0, ..., count.
        """
        counts = torch.full(self.shape, count, dtype=dtype, device=self.device)
        shape = () if shared else (self.rows, 1)
        probabilities = torch.full(shape, probability, dtype=torch.float64, device=self.device)
        x = binomial(counts, probabilities, self.next_source()).cpu()
        assert x.dtype == dtype, f"draws of {dtype} are {x.dtype}"
        assert 0 <= int(x.min()) <= int(x.max()) <= count, f"draws outside [0, {count}]"
        return chi_square_p_value(x.numpy(), stats.binom(count, probability))

    def poisson(self, rate: float) -> float:
        """Return the p-value of Poisson draws."""
        rates = torch.full(self.shape, rate, dtype=torch.float64, device=self.device)
        x = poisson(rates, self.next_source()).cpu()
        return chi_square_p_value(x.numpy(), stats.poisson(rate))

    def categorical(self) -> float:
        """Return the p-value of categorical draws.

        Raises:
            AssertionError: an impossible category was drawn.
        """
        weights = torch.tensor(CATEGORY_WEIGHTS, device=self.device)
        x = categorical(weights.expand(*self.shape, len(weights)), self.next_source())
        observed = torch.bincount(x.flatten().cpu(), minlength=len(weights)).numpy()
        probabilities = np.array(CATEGORY_WEIGHTS) / sum(CATEGORY_WEIGHTS)
        possible = probabilities > 0
        assert not observed[~possible].any(), "a category of weight 0 was drawn"
        expected = probabilities[possible] * observed.sum()
        return float(stats.chisquare(observed[possible], expected).pvalue)


def chi_square_p_value(x: Any, distribution: Any) -> float:
    """Return the p-value of whole numbers under a distribution of SciPy, by a chi-square test.

    Neighbouring cells are merged until each has enough expected draws.
    """
    x = np.asarray(x, dtype=np.float64).ravel()
    edges = np.unique(distribution.ppf(np.linspace(0, 1, NUM_CELLS + 1)[1:-1]))
    probabilities = np.diff(np.concatenate([[0.0], distribution.cdf(edges), [1.0]]))
    observed = np.bincount(np.searchsorted(edges, x), minlength=len(probabilities)).astype(float)

    # 1. Merge each cell into the one before it while that one has too few expected draws.
    cells: list[list[float]] = []
    for expected_count, observed_count in zip(probabilities * x.size, observed, strict=True):
        if cells and cells[-1][0] < MIN_EXPECTED:
            cells[-1][0] += expected_count
            cells[-1][1] += observed_count
        else:
            cells.append([expected_count, observed_count])
    if len(cells) > 1 and cells[-1][0] < MIN_EXPECTED:
        expected_count, observed_count = cells.pop()
        cells[-1][0] += expected_count
        cells[-1][1] += observed_count

    # 2. One cell is left where one value is nearly certain: the number of others is Poisson.
    if len(cells) == 1:
        num_others = x.size - observed[probabilities.argmax()]
        expected_others = x.size * (1 - probabilities.max())
        return float(stats.poisson.sf(num_others - 1, expected_others)) if num_others else 1.0

    # 3. Chi-square test.
    expected_counts, observed_counts = np.array(cells).T
    statistic = ((observed_counts - expected_counts) ** 2 / expected_counts).sum()
    return float(stats.chi2.sf(statistic, len(cells) - 1))


def check_draws(setup: Setup, report: Report) -> None:
    """Compare draws on the device with exact distributions, and with the draws of a CPU."""
    tests = DrawTests(setup)
    with report.case("compiled draws"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # the package warns where it cannot use its kernels
        rates = torch.full(tests.shape, 3.0, dtype=torch.float64, device=setup.device)
        seconds = first_call(lambda: poisson(rates, tests.next_source()), setup.device)
        messages = [str(warning.message)[:200] for warning in caught]
        has_triton = not setup.is_cuda or importlib.util.find_spec("triton") is not None
        passed = has_triton and not messages
        report.add("compiled draws", passed, first_call_s=seconds, warnings=messages)
    for kind, p_values in (
        ("binomial, uint8", lambda: _test_uint8_binomials(tests)),
        ("binomial, int32", lambda: _test_int32_binomials(tests)),
        ("Poisson", lambda: _test_poisson(tests)),
        ("categorical", lambda: {"categories": tests.categorical()}),
    ):
        case = f"distribution: {kind}"
        with report.case(case):
            values = p_values()
            worst = min(values, key=lambda name: values[name])
            passed = values[worst] > MIN_P_VALUE
            report.add(case, passed, min_p_value=values[worst], at=worst, tests=len(values))
    with report.case("same draws as on a CPU"):
        shares = _compare_draws(setup.device, min(tests.rows, 16), tests.shape[1])
        passed = max(shares.values()) <= MAX_DIFFERENT_DRAWS
        report.add("same draws as on a CPU", passed, share_different=shares)
    with report.case("nanoseconds per draw"):
        report.add("nanoseconds per draw", None, **_time_draws(setup))


def _test_uint8_binomials(tests: DrawTests) -> dict[str, float]:
    probabilities = (1e-6, 0.01, 0.039, 0.041, 0.3, 0.5, 0.7, 0.999)
    return {
        f"n={n} p={p} {'shared' if shared else 'per row'}": tests.binomial(
            n, p, torch.uint8, shared
        )
        for n in (1, 7, 200, 255)
        for p in probabilities
        for shared in (False, True)
    }


def _test_int32_binomials(tests: DrawTests) -> dict[str, float]:
    largest = 2**31 - 1
    cases = (
        (1000, 0.0005),
        (1000, 0.0099),
        (1000, 0.011),
        (1000, 0.5),
        (65535, 0.5),
        (65535, 0.9),
        (largest, 5e-9),
        (largest, 1e-6),
        (largest, 0.5),
    )
    return {f"n={n} p={p}": tests.binomial(n, p, torch.int32) for n, p in cases}


def _test_poisson(tests: DrawTests) -> dict[str, float]:
    rates = (1e-4, 0.5, 9.99, 10.01, 20.0, 1e3, 1e6, 2e9)
    return {f"rate={rate}": tests.poisson(rate) for rate in rates}


def _compare_draws(device: torch.device, rows: int, columns: int) -> dict[str, float]:
    """Return the share of draws that differ between the device and a CPU."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    large_counts = torch.randint(0, 70_000, counts.shape, generator=generator, dtype=torch.int32)
    probabilities = torch.rand(rows, 1, generator=generator).double()
    rates = torch.rand(rows, columns, generator=generator).double() * 300

    def draw(device: torch.device) -> dict[str, Tensor]:
        streams = SampleStreams(5, torch.arange(rows, device=device))
        p = probabilities.to(device)
        return {
            "binomial, uint8": binomial(counts.to(device), p, streams.step(1)).cpu(),
            "binomial, int32": binomial(large_counts.to(device), p, streams.step(2)).cpu(),
            "Poisson": poisson(rates.to(device), streams.step(3)).cpu(),
        }

    on_device = draw(device)
    on_cpu = draw(torch.device("cpu"))
    return {name: float((on_device[name] != x).double().mean()) for name, x in on_cpu.items()}


def _time_draws(setup: Setup) -> dict[str, float]:
    rows, columns = (8, 256) if setup.quick else (256, 3072)
    device = setup.device
    streams = SampleStreams(1, torch.arange(rows, device=device))
    counts = torch.randint(0, 256, (rows, columns), device=device, dtype=torch.uint8)
    large_counts = counts.int() * 257
    probabilities = torch.rand(rows, 1, device=device).double()
    rates = torch.rand(rows, columns, device=device).double() * 40
    draws: dict[str, Callable[[], Any]] = {
        "binomial, uint8": lambda: binomial(counts, probabilities, streams.step(1)),
        "binomial, uint8, shared": lambda: binomial(counts, probabilities[0, 0], streams.step(1)),
        "binomial, int32": lambda: binomial(large_counts, probabilities, streams.step(1)),
        "Poisson": lambda: poisson(rates, streams.step(1)),
        "torch.poisson": lambda: torch.poisson(rates),
        "torch.binomial": lambda: torch.binomial(
            large_counts.double(), probabilities.expand_as(rates)
        ),
    }
    return {
        name: 1e9 * setup.time_call(function, 3) / counts.numel()
        for name, function in draws.items()
    }


# --- parity


def make_diffusion(network: nn.Module, device: torch.device) -> BlackoutDiffusion:
    """Build the paper's model around a copy of a network."""
    model = BlackoutDiffusion(
        copy.deepcopy(network),
        SoftplusHead(),
        PureDeath(255),
        torch.full((3, IMAGE_SIZE, IMAGE_SIZE), 120.0),
        Schedule(),
        CountLoss(scale=1000),
        ema_decay=0.9999,
    )
    return model.to(device)


@torch.no_grad()
def randomise_weights(network: nn.Module) -> None:
    """Replace weights, some of which are zero at first, so that every layer matters."""
    generator = torch.Generator().manual_seed(7)
    for parameter in network.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(values / math.sqrt(parameter[0].numel()))
        else:
            parameter.add_(0.1 * values)


def check_parity(setup: Setup, report: Report) -> None:
    """Compare the network, its gradient and the loss with float64 on a CPU."""
    cpu = Setup(torch.device("cpu"), setup.quick, setup.folder)
    network = paper_network(setup.quick, channels_last=False).eval()
    randomise_weights(network)
    exact_network = copy.deepcopy(network).double()
    exact = _output_and_gradient(exact_network, cpu.device, bfloat16=False)
    for precision in PRECISIONS:
        case = f"network, {precision.name} {precision.memory_format}"
        with report.case(case), allow_tf32(precision.name == "TF32"):
            on_device = copy.deepcopy(network).to(setup.device)
            on_device.body.to(memory_format=MEMORY_FORMATS[precision.memory_format])
            bfloat16 = precision.name == "bfloat16"
            output, gradient = _output_and_gradient(on_device, setup.device, bfloat16)
            output_error = _relative_error(output, exact[0])
            gradient_error = _relative_error(gradient, exact[1])
            passed = (
                output_error < precision.max_output_error
                and gradient_error < precision.max_gradient_error
            )
            report.add(
                case,
                passed,
                output_error=output_error,
                gradient_error=gradient_error,
                allowed=(precision.max_output_error, precision.max_gradient_error),
                max_error_over_std=float((output - exact[0]).abs().max() / exact[0].std()),
            )
    for case, value in (
        ("loss of a training step", _training_loss),
        ("bits per dimension", _bits_per_dimension),
    ):
        with report.case(case):
            on_cpu = value(network, cpu)
            on_device_value = value(network, setup)
            passed = math.isclose(on_cpu, on_device_value, rel_tol=1e-4)
            report.add(case, passed, cpu=on_cpu, device=on_device_value)
    if setup.is_cuda:
        with report.case("no synchronisation in a training step"):
            _train_without_synchronisation(setup)
            report.add("no synchronisation in a training step", True)
    with report.case("deterministic operations"):
        torch.use_deterministic_algorithms(True)
        try:
            model = make_diffusion(network, setup.device).train()
            with torch.autocast(setup.device.type, torch.bfloat16):
                model.training_step(_training_batch(setup, 4)).backward()
            synchronise(setup.device)
        finally:
            torch.use_deterministic_algorithms(False)
        report.add("deterministic operations", True)


def _output_and_gradient(
    network: nn.Module, device: torch.device, bfloat16: bool
) -> Sequence[Tensor]:
    """Return output and gradient of a network for fixed inputs, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(1)
    shape = (4, 3, IMAGE_SIZE, IMAGE_SIZE)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
    direction = torch.randn(4, 1, *shape[1:], generator=generator).to(device)
    t = torch.tensor([1e-3, 0.1, 1.0, 6.0], dtype=torch.float64, device=device)
    network.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        output = network(x, t)
    (output * direction).mean().backward()
    gradients = []
    for parameter in network.parameters():
        assert parameter.grad is not None
        gradients.append(parameter.grad.flatten().cpu().double())
    return output.detach().cpu().double(), torch.cat(gradients)


def _relative_error(x: Tensor, exact: Tensor) -> float:
    return float((x - exact).norm() / exact.norm())


def _training_batch(setup: Setup, batch_size: int) -> dict[str, Any]:
    """Return a batch as a training step gets it."""
    return {
        "x0": setup.random_images(batch_size),
        "position": torch.arange(batch_size, device=setup.device),
        "batch_number": 3,
        "batch_size": batch_size,
    }


def _training_loss(network: nn.Module, setup: Setup) -> float:
    model = make_diffusion(network, setup.device).eval()
    return float(model.training_step(_training_batch(setup, 4)).detach())


def _bits_per_dimension(network: nn.Module, setup: Setup) -> float:
    model = make_diffusion(network, setup.device).eval()
    values: list[Tensor] = []
    model.record = lambda name, value: values.append(value)
    indices = torch.arange(4, device=setup.device)
    with torch.no_grad():
        model.validation_step({"x0": setup.random_images(4), "index": indices})
    return float(torch.cat(values).double().mean())


def _train_without_synchronisation(setup: Setup) -> None:
    """Take a training step in which waiting for the GPU is an error.

    Raises:
        RuntimeError: a step waits for the GPU.
    """
    network = paper_network(setup.quick, channels_last=True).to(setup.device)
    images = setup.random_images(8)
    training = FastTraining(network, images, Schedule(), bfloat16=True, compiled=False)
    training.step()
    synchronise(setup.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
