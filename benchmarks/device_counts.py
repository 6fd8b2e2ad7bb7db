"""Kernels, memory traffic and synchronisations of a step on a GPU: `python -m
benchmarks.device_counts`.

No GPU is needed: they are counted on fake tensors. Kernels are calls of operators that
compute (one for a whole list of tensors), bytes are what they read and write, and synchronisations
are copies between host and device. Reading a value would raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.devices import COPIES, fake_cuda
from benchmarks.measure import arguments, report
from benchmarks.reference import paper_network
from benchmarks.sampling import FastSampling
from benchmarks.training import FastTraining
from blackout.diffusion.kernels import BinomialBridge, Kernel, PoissonLeap, Trapezoidal
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.schedule import Schedule

_FREE = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "_unsafe_view",
)


class Counter(TorchDispatchMode):
    """Counts operations on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.bytes = self.waits = self.norms = self.norms_in_bfloat16 = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if name in COPIES:
            self.waits += len({x.device.type for x in tensors}) > 1 and not (kwargs or {}).get(
                "non_blocking"
            )
            if len({(x.device, x.dtype) for x in tensors}) == 1 and name == "_to_copy":
                return out  # a fake GPU copies where a real one would find nothing to do
        on_device = [x for x in tensors if x.device.type == "cuda"]
        if on_device and func.namespace != "prim" and not func.is_view and name not in _FREE:
            self.kernels += 1
            self.bytes += sum(x.numel() * x.element_size() for x in on_device)
        if name == "native_group_norm":
            self.norms += 1
            self.norms_in_bfloat16 += out[0].dtype == torch.bfloat16
        return out


def count_second_step(step: Callable[[], Any], batch: int) -> dict[str, Any]:
    """Return the counts of the second step, since the first fills caches."""
    step()
    with Counter() as counter:
        step()
    return {
        "kernels": counter.kernels,
        "MB per image": counter.bytes / batch / 1e6,
        "waits": counter.waits,
        "norms in bfloat16": f"{counter.norms_in_bfloat16} of {counter.norms}",
    }


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args(argv)
    cases: list[tuple[str, Kernel, bool]] = [
        ("binomial, float32", BinomialBridge(), False),
        ("binomial, bfloat16", BinomialBridge(), True),
        ("Poisson, bfloat16", PoissonLeap(), True),
        ("trapezoidal, bfloat16", Trapezoidal(), True),
    ]
    schedule = Schedule(num_steps=1000)
    host = schedule.times[499:501].tolist()
    rows: list[dict[str, Any]] = []
    shape = (options.batch, 3, 32, 32)
    batch = options.batch
    with fake_cuda(gradients=True):
        counts = torch.zeros(shape, dtype=torch.uint8)
        training = FastTraining(paper_network(options.quick, False), counts, schedule, False, False)
        rows.append({"step": "training, float32"} | count_second_step(training.step, batch))
    # torch.autocast looks for a GPU
    available = mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False)
    with available, mock.patch("torch.cuda.is_bf16_supported", return_value=True), fake_cuda():
        counts = torch.zeros(shape, dtype=torch.uint8)
        times = [torch.tensor(time, dtype=torch.float64, device="cpu") for time in host]
        for name, kernel, bfloat16 in cases[:1] if options.quick else cases:
            sampling = FastSampling(
                paper_network(options.quick, False), counts, times, kernel, bfloat16, False
            )
            with Sampler(bfloat16=bfloat16).evaluating(sampling.network):
                rows.append(
                    {"step": f"sampling, {name}"}
                    | count_second_step(partial(sampling.step, 1), batch)
                )
    report(f"counts of a step, batch {batch}, NCHW", rows, options)


if __name__ == "__main__":
    main()
