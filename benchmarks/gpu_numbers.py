"""Numbers on a GPU: its rates, exact draws, and a network against float64 on a CPU."""

from __future__ import annotations

import copy
import importlib.util
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.gpu_report import FORMATS, SIDE, Report, Setup, image_batch
from benchmarks.measure import first_call, matmul_rate, synchronise
from benchmarks.reference import paper_network
from benchmarks.training import FastTraining
from blackout import BlackoutDiffusion
from blackout.diffusion import CountLoss, PureDeath, Schedule, SoftplusHead
from blackout.random import SampleStreams, binomial, categorical, poisson

PACKAGES = ("hydra", "numba", "torch_fidelity", "torchmetrics", "torchvision", "triton", "wandb")
LEAST_P_VALUE = 1e-6  # of about fifty tests: exact draws fail once in ten thousand runs
EXPECTED = 20  # draws in a cell of a chi-square test
CELLS = 64
Test: TypeAlias = tuple[Callable[[], Tensor], Any]
"""What draws, and the distribution of SciPy's that it should have."""


def environment(setup: Setup, report: Report) -> None:
    """Versions, the card, and rates of products and convolutions."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if setup.is_cuda:
        card = torch.cuda.get_device_properties(0)
        facts |= {"card": card.name, "GiB": card.total_memory / 2**30}
        facts |= {"cards": torch.cuda.device_count(), "cuda": torch.version.cuda}
    report.add("versions", not missing, missing=missing, **facts)
    size = 256 if setup.quick else 8192
    for name, dtype, tf32 in (
        ("bfloat16", torch.bfloat16, False),
        ("TF32", torch.float32, True),
        ("float32", torch.float32, False),
    ):
        case = f"matrix product, {name}"
        with report.case(case), _tf32(tf32):
            rate = matmul_rate(setup.device, dtype, size)
            report.add(case, None, TFLOP_per_s=rate / 1e12)
    batch = 2 if setup.quick else 256
    for channels, side in ((128, 32), (256, 16)):  # half of the network's operations
        for layout, memory_format in FORMATS.items():
            case = f"convolution {channels}x{side}, {layout}"
            with report.case(case):
                x = _random((batch, channels, side, side), setup.device, memory_format)
                weight = _random((channels, channels, 3, 3), setup.device, memory_format)
                flops = 3 * 2 * x.numel() * channels * 9
                seconds = setup.seconds(lambda x=x, weight=weight: _convolve(x, weight), 3)
                report.add(case, None, TFLOP_per_s=flops / seconds / 1e12)


def _random(
    shape: Sequence[int], device: torch.device, memory_format: torch.memory_format
) -> Tensor:
    x = torch.randn(*shape, device=device, dtype=torch.bfloat16)
    return x.to(memory_format=memory_format).requires_grad_()


def _convolve(x: Tensor, weight: Tensor) -> None:
    y = torch.conv2d(x, weight, padding=1)
    torch.autograd.grad(y, (x, weight), y)


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    torch.backends.cudnn.allow_tf32 = enabled
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")


# --- draws


def p_value(x: Any, distribution: Any) -> float:
    """Of whole numbers against a distribution of SciPy's, by a chi-square test.

    Neighbouring cells are joined until each has enough expected draws.
    """
    x = np.asarray(x, dtype=np.float64).ravel()
    edges = np.unique(distribution.ppf(np.linspace(0, 1, CELLS + 1)[1:-1]))
    probabilities = np.diff(np.concatenate([[0.0], distribution.cdf(edges), [1.0]]))
    observed = np.bincount(np.searchsorted(edges, x), minlength=len(probabilities)).astype(float)
    cells: list[list[float]] = []
    for cell in zip(probabilities * x.size, observed, strict=True):
        if cells and cells[-1][0] < EXPECTED:
            cells[-1] = [cells[-1][0] + cell[0], cells[-1][1] + cell[1]]
        else:
            cells.append(list(cell))
    if len(cells) > 1 and cells[-1][0] < EXPECTED:
        expected_last, observed_last = cells.pop()
        cells[-1] = [cells[-1][0] + expected_last, cells[-1][1] + observed_last]
    if len(cells) == 1:  # one value is nearly certain, and others are rare
        rare = 1 - probabilities.max()
        others = x.size - observed[probabilities.argmax()]
        return float(stats.poisson.sf(others - 1, x.size * rare)) if others else 1.0
    expected, found = np.array(cells).T
    statistic = ((found - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(cells) - 1))


def draws(setup: Setup, report: Report) -> None:
    """Draws on the device against exact distributions, and against the bits of a CPU."""
    rows = 16 if setup.quick else 64
    shape = (rows, 512 if setup.quick else 4096)
    streams = SampleStreams(11, torch.arange(rows, device=setup.device))
    numbers = iter(range(10**6))

    def source() -> Any:
        return streams.at(next(numbers))

    with report.case("compiled draws"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rate = torch.full(shape, 3.0, dtype=torch.float64, device=setup.device)
        seconds = first_call(lambda: poisson(rate, source()), setup.device)
        messages = [str(warning.message)[:200] for warning in warned]
        report.add("compiled draws", not messages, first_call_s=seconds, warnings=messages)
    for kind, tests in _tests(setup.device, shape, source).items():
        case = f"exact draws: {kind}"
        with report.case(case):
            values = {
                name: p_value(draw().cpu().numpy(), law) for name, (draw, law) in tests.items()
            }
            worst = min(values, key=lambda name: values[name])
            passed = values[worst] > LEAST_P_VALUE
            report.add(case, passed, least_p_value=values[worst], at=worst, tests=len(values))
    with report.case("exact draws: categories"):
        weights = torch.tensor([1.0, 2.0, 0.0, 5.0, 0.25], device=setup.device)
        x = categorical(weights.expand(*shape, 5), source()).flatten().cpu()
        observed = torch.bincount(x, minlength=5).double().numpy()
        probabilities = weights.double().cpu().numpy() / 8.25
        possible = probabilities > 0
        expected = probabilities[possible] * observed.sum()
        value = float(stats.chisquare(observed[possible], expected).pvalue)
        passed = value > LEAST_P_VALUE and observed[2] == 0
        report.add("exact draws: categories", passed, least_p_value=value)
    with report.case("the bits of a CPU"):
        shares = _different_bits(setup.device, min(rows, 16), shape[1])
        report.add("the bits of a CPU", max(shares.values()) <= 1e-5, share_that_differs=shares)
    with report.case("nanoseconds a draw"):
        x = torch.randint(0, 256, shape, device=setup.device, dtype=torch.uint8)
        probability = torch.rand(rows, 1, device=setup.device).double()
        rate = torch.rand(shape, device=setup.device).double() * 40
        cases = {
            "binomial of bytes": lambda: binomial(x, probability, source()),
            "binomial": lambda: binomial(x.int() * 257, probability, source()),
            "Poisson": lambda: poisson(rate, source()),
            "torch.poisson": lambda: torch.poisson(rate),
        }
        times = {name: 1e9 * setup.seconds(run, 3) / x.numel() for name, run in cases.items()}
        report.add("nanoseconds a draw", None, **times)


def _tests(
    device: torch.device, shape: tuple[int, int], source: Callable[[], Any]
) -> dict[str, dict[str, Test]]:
    def binomial_test(n: int, p: float, dtype: torch.dtype) -> Test:
        x = torch.full(shape, n, dtype=dtype, device=device)
        probability = torch.full((shape[0], 1), p, dtype=torch.float64, device=device)
        return lambda: binomial(x, probability, source()), stats.binom(n, p)

    def poisson_test(rate: float) -> Test:
        rates = torch.full(shape, rate, dtype=torch.float64, device=device)
        return lambda: poisson(rates, source()), stats.poisson(rate)

    bytes_ = {}
    for n in (1, 7, 200, 255):
        for p in (1e-6, 0.01, 0.039, 0.041, 0.3, 0.5, 0.7, 0.999):
            bytes_[f"n={n} p={p}"] = binomial_test(n, p, torch.uint8)
    counts = {}
    for n, p in ((1000, 0.0005), (1000, 0.011), (65535, 0.5), (2**31 - 1, 5e-9), (2**31 - 1, 0.5)):
        counts[f"n={n} p={p}"] = binomial_test(n, p, torch.int32)
    rates = (1e-4, 0.5, 9.99, 10.01, 20.0, 1e3, 1e6, 2e9)
    poissons = {f"rate={rate}": poisson_test(rate) for rate in rates}
    return {"binomial of bytes": bytes_, "binomial": counts, "Poisson": poissons}


def _different_bits(device: torch.device, rows: int, columns: int) -> dict[str, float]:
    """Share of draws that differ between the device and a CPU."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    shares = torch.rand(rows, 1, generator=generator).double()
    rates = torch.rand(rows, columns, generator=generator).double() * 300

    def draw(place: torch.device) -> dict[str, Tensor]:
        streams = SampleStreams(5, torch.arange(rows, device=place))
        n, p = counts.to(place), shares.to(place)
        return {
            "binomial of bytes": binomial(n, p, streams.at(1)).cpu(),
            "binomial": binomial(n.int() * 257, p, streams.at(2)).cpu(),
            "Poisson": poisson(rates.to(place), streams.at(3)).cpu(),
        }

    there, here = draw(device), draw(torch.device("cpu"))
    return {name: float((there[name] != here[name]).double().mean()) for name in there}


# --- parity


class RecordingDiffusion(BlackoutDiffusion):
    """A model that keeps what validation records."""

    recorded = math.nan

    def record(self, name: str, values: Tensor) -> None:
        """Keep the mean of the last values."""
        self.recorded = float(values.double().mean())


def small_diffusion(network: nn.Module, device: torch.device) -> RecordingDiffusion:
    """The paper's model around a copy of a network."""
    mean = torch.full((3, SIDE, SIDE), 120.0)
    parts = SoftplusHead(), PureDeath(255), mean, Schedule(), CountLoss(scale=1000)
    model = RecordingDiffusion(copy.deepcopy(network), *parts, ema_decay=0.9999)
    return model.to(device)


@torch.no_grad()
def _randomise(network: nn.Module) -> None:
    """Weights of order one: some are zero at first, and much would not be compared."""
    generator = torch.Generator().manual_seed(7)
    for parameter in network.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(values / math.sqrt(parameter[0].numel()))
        else:
            parameter.add_(0.1 * values)


def parity(setup: Setup, report: Report) -> None:
    """The network, its gradient and the loss against float64 on a CPU."""
    cpu = torch.device("cpu")
    network = paper_network(setup.quick, channels_last=False).eval()
    _randomise(network)
    exact = _evaluate(copy.deepcopy(network).double(), cpu, bfloat16=False)
    for precision, layout, allowed in (
        ("float32", "NCHW", (1e-4, 1e-3)),
        ("float32", "NHWC", (1e-4, 1e-3)),
        ("TF32", "NCHW", (1e-2, 5e-2)),
        ("bfloat16", "NCHW", (0.05, 0.2)),
        ("bfloat16", "NHWC", (0.05, 0.2)),
    ):
        case = f"network, {precision} {layout}"
        with report.case(case), _tf32(precision == "TF32"):
            there = copy.deepcopy(network).to(setup.device)
            there.body.to(memory_format=FORMATS[layout])
            found = _evaluate(there, setup.device, precision == "bfloat16")
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
            passed = all(error < most for error, most in zip(errors, allowed, strict=True))
            report.add(
                case, passed, output_error=errors[0], gradient_error=errors[1], allowed=allowed
            )
    with report.case("loss of a training step"):
        losses = []
        for place in (cpu, setup.device):
            model = small_diffusion(network, place).eval()
            losses.append(float(model.training_step(image_batch(place, 4))))
        report.add("loss of a training step", _agree(losses), cpu=losses[0], device=losses[1])
    with report.case("bits per dimension"):
        bits = []
        for place in (cpu, setup.device):
            model = small_diffusion(network, place).eval()
            x0 = image_batch(place, 4)["x0"]
            model.validation_step({"x0": x0, "index": torch.arange(4, device=place)})
            bits.append(model.recorded)
        report.add("bits per dimension", _agree(bits), cpu=bits[0], device=bits[1])
    if setup.is_cuda:
        with report.case("no waits in a training step"):
            _step_without_waits(setup)
            report.add("no waits in a training step", True)
    with report.case("deterministic operations"):
        torch.use_deterministic_algorithms(True)
        try:
            model = small_diffusion(network, setup.device).train()
            with torch.autocast(setup.device.type, torch.bfloat16):
                model.training_step(image_batch(setup.device, 4)).backward()
            synchronise(setup.device)
        finally:
            torch.use_deterministic_algorithms(False)
        report.add("deterministic operations", True)


def _evaluate(network: nn.Module, device: torch.device, bfloat16: bool) -> tuple[Tensor, Tensor]:
    """Output and gradient of a network, float64 on the CPU."""
    generator = torch.Generator().manual_seed(1)
    shape = (4, 3, SIDE, SIDE)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
    direction = torch.randn(4, 1, *shape[1:], generator=generator).to(device)
    t = torch.tensor([1e-3, 0.1, 1.0, 6.0], dtype=torch.float64, device=device)
    network.zero_grad()
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        output = network(x, t)
    (output * direction).mean().backward()
    gradients = [parameter.grad.flatten().cpu().double() for parameter in network.parameters()]
    return output.detach().cpu().double(), torch.cat(gradients)


def _agree(values: Sequence[float]) -> bool:
    return math.isclose(values[0], values[1], rel_tol=1e-4)


def _step_without_waits(setup: Setup) -> None:
    """Raises RuntimeError where a step waits for the device."""
    network = paper_network(setup.quick, channels_last=True).to(setup.device)
    x0 = image_batch(setup.device, 8)["x0"]
    training = FastTraining(network, x0, Schedule(), bfloat16=True, compiled=False)
    training.step()
    synchronise(setup.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
