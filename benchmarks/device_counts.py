"""Kernels, bytes and waits of a step on a GPU, counted on fake tensors: `python -m benchmarks.device_counts`.

Kernels are calls of ATen operators that compute; bytes are what they read and write. Whatever asks a fake tensor for
its value fails, so a step that is counted waits for nothing but the copies in the last column.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.measure import arguments, report
from benchmarks.reference import paper_network
from benchmarks.sampling import FastSampling
from benchmarks.training import FastTraining
from blackout.diffusion.kernels import BinomialBridge, Kernel, PoissonLeap, Trapezoidal
from blackout.diffusion.schedules import fisher_times

CUDA = torch.device("cuda:0")


class Counter(TorchDispatchMode):
    """Counts what is computed on the fake device."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.bytes = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read, written = ([x for x in tree_leaves(each) if isinstance(x, Tensor)] for each in ((args, kwargs), out))
        places = {x.device.type for x in (*read, *written)}
        if "cuda" in places and not func.is_view:
            self.kernels += 1
            self.bytes += sum(x.numel() * x.element_size() for x in (*read, *written) if x.device.type == "cuda")
        if func.overloadpacket.__name__ in ("_to_copy", "copy_") and len(places) > 1:
            self.waits += not (kwargs or {}).get("non_blocking", False)
        return out


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args(argv)
    batch = 2 if options.quick else options.batch
    kernels: dict[str, Kernel] = {
        "sampling, binomial": BinomialBridge(), "sampling, Poisson": PoissonLeap(),
        "sampling, trapezoidal": Trapezoidal(),
    }  # fmt: skip
    times = fisher_times(1000)[499:501].tolist()
    rows: list[dict[str, Any]] = []
    available = mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False)
    supported = mock.patch("torch.cuda.is_bf16_supported", return_value=True)
    with available, supported, FakeTensorMode(allow_non_fake_inputs=True), CUDA:
        counts = torch.zeros(batch, 3, 32, 32, dtype=torch.uint8)
        training = FastTraining(paper_network(options.quick, False), counts, 1000, True, False)
        rows.append({"step": "training"} | counted(training.step, batch))
        for name, kernel in kernels.items():
            sampling = FastSampling(paper_network(options.quick, False), counts, 1000, kernel, True, False)
            sampling.times = [torch.tensor(time, dtype=torch.float64, device="cpu") for time in times]
            rows.append({"step": name} | counted(partial(sampling.step, 1), batch))
    report(f"counts of a step, batch {batch}, bfloat16, NCHW", rows, options)


def counted(step: Any, batch: int) -> dict[str, Any]:
    """Of the second step: the first may fill caches."""
    step()
    with Counter() as counter:
        step()
    return {"kernels": counter.kernels, "MB per image": counter.bytes / batch / 1e6, "waits": counter.waits}


if __name__ == "__main__":
    main()
