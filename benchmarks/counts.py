"""Nanoseconds per exact draw: `python -m benchmarks.counts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import arguments, interleaved, report, summary
from blackout.diffusion.time_grids import fisher_times
from blackout.random import SampleStreams, binomial, poisson


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__).parse_args(argv)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    batch, repetitions = (4, 1) if options.quick else (256, options.repetitions)
    x = torch.randint(0, 256, (batch, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(
        device, torch.uint8
    )
    streams = SampleStreams(0, torch.arange(batch, device=device)).step(0)
    rows: list[dict[str, Any]] = []

    def compare(description: str, cases: Mapping[str, Callable[[], Tensor]]) -> None:
        timings = {
            name: summary(s)["median"]
            for name, s in interleaved(cases, repetitions, device).items()
        }
        nanoseconds = {name: seconds / x.numel() * 1e9 for name, seconds in timings.items()}
        rows.append(
            {
                "draw": description,
                **nanoseconds,
                "times faster": nanoseconds["torch"] / nanoseconds["streams"],
            }
        )

    def compare_binomial(description: str, n: Tensor, p: Tensor) -> None:
        rare = torch.minimum(p, 1 - p).expand(n.shape).contiguous()
        compare(
            description,
            {
                "torch": lambda: torch.binomial(n.double(), rare),
                "streams": lambda: binomial(n, p, streams),
                "generator": lambda: binomial(n, p, None),
            },
        )

    times = fisher_times().to(device)
    k = 1 + torch.arange(batch, device=device) * 1000 // batch
    k = k[torch.randperm(batch, generator=torch.Generator().manual_seed(1)).to(device)]
    compare_binomial("training: n 0..255, q_k per image", x, torch.exp(-times[k]).view(-1, 1, 1, 1))
    for p in (1e-8, 1e-4, 0.005, 0.015, 0.03, 0.15, 0.5):
        compare_binomial(
            f"sampling: n 0..255, r = {p:g}", x, torch.tensor(p, dtype=torch.float64, device=device)
        )
    for p in (0.001, 0.1):
        compare_binomial(
            f"n 0..65535, p = {p:g}",
            x.to(torch.int32) * 257,
            torch.tensor(p, dtype=torch.float64, device=device),
        )
    for mean in (0.01, 0.5, 2.0, 20.0):
        rate = x.double() * (mean / 127.5)
        cases = {
            "torch": partial(torch.poisson, rate),
            "streams": partial(poisson, rate, streams),
            "generator": partial(poisson, rate),
        }
        compare(f"Poisson, mean {mean:g}", cases)
    report(f"nanoseconds per draw, {tuple(x.shape)}", rows, options)


if __name__ == "__main__":
    main()
