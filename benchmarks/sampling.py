"""A sampling step (network and kernel) compared with the reference.

python -m benchmarks.sampling
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.measure import arguments, first_call, interleaved, peak_memory, report, summary
from benchmarks.reference import ReferenceSampling, paper_network
from blackout.diffusion.heads import SoftplusHead
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    PoissonLeap,
    ReverseStep,
    nearest_rounding,
)
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.time_grids import fisher_times
from blackout.networks import CountNetwork
from blackout.random import SampleStreams


class FastSampling:
    """One step of `blackout.diffusion.sampling.run_sampler`."""

    def __init__(
        self,
        network: CountNetwork,
        xt: torch.Tensor,
        times: torch.Tensor | Sequence[torch.Tensor],
        kernel: Kernel,
        bfloat16: bool,
        compiled: bool,
    ) -> None:
        self.network = network.eval()
        self.xt = xt
        self.kernel = kernel
        self.bfloat16 = bfloat16
        if compiled:
            self.network.compile()
        self.head, self.process, self.times = SoftplusHead(), PureDeath(255), times
        self.streams = SampleStreams(0, torch.arange(len(xt), device=xt.device))

    def denoise(self, xt: torch.Tensor, t: torch.Tensor) -> CountPrediction:
        return self.head(self.network(xt, t), xt, t)

    @torch.no_grad()
    def step(self, k: int) -> torch.Tensor:
        s = self.times[k - 1]
        t = self.times[k]
        with torch.autocast(self.xt.device.type, torch.bfloat16, enabled=self.bfloat16):
            return self.kernel(
                ReverseStep(self.denoise, self.process, self.xt, s, t, self.streams.step(k))
            )


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--steps", type=int, default=1000, help="of the grid; the step in its middle is measured"
    )
    parser.add_argument("--compile", action="store_true", help="measure a compiled network too")
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    batch, num_steps, repetitions = (
        (2, 10, 1) if options.quick else (options.batch, options.steps, options.repetitions)
    )
    xt = torch.randint(0, 128, (batch, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(
        device, torch.uint8
    )
    k = num_steps // 2

    def network(channels_last: bool) -> CountNetwork:
        made = paper_network(options.quick, channels_last).to(device)
        torch.nn.init.constant_(
            made.get_parameter("body.head.bias"), 60.0
        )  # an untrained network would expect 0.7 missing units
        return made

    nearest = BinomialBridge(nearest_rounding)
    cases: dict[str, Any] = {}
    if not options.no_reference:
        for name, two_lines in (("reference's way", False), ("the usual two lines", True)):
            reference = ReferenceSampling(network(False), xt, num_steps, two_lines=two_lines)
            cases[name] = lambda reference=reference: reference.step(k)
    variants: dict[str, tuple[Kernel, bool, bool, bool]] = {
        "binomial fp32 NCHW": (nearest, False, False, False),
        "binomial fp32 channels_last": (nearest, False, True, False),
        "binomial bf16 channels_last": (nearest, True, True, False),
        "binomial, unbiased rounding, bf16 channels_last": (BinomialBridge(), True, True, False),
        "Poisson bf16 channels_last": (PoissonLeap(), True, True, False),
    }
    if options.compile:
        variants["binomial bf16 channels_last compiled"] = (nearest, True, True, True)
    for name, (kernel, bfloat16, channels_last, compiled) in variants.items():
        sampling = FastSampling(
            network(channels_last), xt, fisher_times(num_steps), kernel, bfloat16, compiled
        )
        cases[name] = lambda sampling=sampling: sampling.step(k)
    facts = {
        f"first_call_{name}_s": round(first_call(cases[name], device), 1)
        for name in cases
        if "compiled" in name
    }
    # as in a run of many steps, autocast keeps its cast weights
    with torch.autocast(device.type, enabled=False):
        timings = {
            name: summary(seconds)
            for name, seconds in interleaved(cases, repetitions, device).items()
        }
    base = next(iter(timings.values()))["median"]
    rows = [
        {
            "step": name,
            "s": timing["median"],
            "least s": timing["least"],
            "evaluations/s": batch / timing["median"],
            f"s per image of {num_steps} steps": num_steps * timing["median"] / batch,
            "times faster": base / timing["median"],
        }
        for name, timing in timings.items()
    ]
    report(
        f"sampling step, batch {batch}",
        rows,
        options,
        **facts,
        peak_GiB=round(peak_memory(device), 2),
    )


if __name__ == "__main__":
    main()
