"""A training step (noising, network, Adam, average) compared with the reference.

python -m benchmarks.training
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import (
    arguments,
    first_call,
    interleaved,
    matmul_rate,
    peak_memory,
    report,
    summary,
)
from benchmarks.reference import ReferenceTraining, paper_network
from blackout.diffusion.heads import SoftplusHead
from blackout.diffusion.losses import CountLoss
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.schedule import Schedule, stratified
from blackout.networks import CountNetwork
from blackout.random import SampleStreams
from blackout.training.optimization import EMA


class FastTraining:
    """A step of `train.py` without Lightning."""

    def __init__(
        self,
        network: CountNetwork,
        x0: torch.Tensor,
        schedule: Schedule,
        bfloat16: bool,
        compiled: bool,
    ) -> None:
        self.network = network.train()
        self.x0 = x0
        self.bfloat16 = bfloat16
        self.ema = EMA(network, 0.9999)
        if compiled:
            self.network.compile()
        self.head, self.process, self.schedule = SoftplusHead(), PureDeath(255), schedule
        self.loss = CountLoss(scale=schedule.num_steps)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=2e-4, fused=True)
        self.position = torch.arange(len(x0), device=x0.device)
        self.steps = itertools.count()

    def step(self) -> torch.Tensor:
        number = next(self.steps)
        offset = SampleStreams(1, self.position.new_zeros(1)).step(number).next_draw().uniform((1,))
        s, t = self.schedule.intervals(stratified(self.position, len(self.x0), offset))
        xt = self.process.sample(self.x0, t, SampleStreams(2, self.position).step(number))
        with torch.autocast(self.x0.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(
                self.head(self.network(xt, t), xt, t), self.x0.int() - xt.int(), s, t
            ).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.ema.update(self.network, number)
        return loss.detach()


def flops_per_image(network: CountNetwork, x0: torch.Tensor) -> float:
    """Return the operations of a forward and backward pass of one image."""
    network = copy.deepcopy(network).to("cpu")
    with FlopCounterMode(display=False) as counter:
        network(x0[:1].cpu(), torch.tensor(1.0)).square().mean().backward()
    return counter.get_total_flops()


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--compile", action="store_true", help="measure a compiled network too")
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    batch, num_steps, repetitions = (
        (2, 10, 1) if options.quick else (options.batch, 1000, options.repetitions)
    )
    x0 = torch.randint(0, 256, (batch, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(
        device, torch.uint8
    )

    variants = {
        "fp32 NCHW": (False, False, False),
        "fp32 channels_last": (False, True, False),
        "bf16 NCHW": (True, False, False),
        "bf16 channels_last": (True, True, False),
    }
    if options.compile:
        variants["bf16 channels_last compiled"] = (True, True, True)
    steps: dict[str, Any] = {}
    if not options.no_reference:
        for name, two_lines in (("reference's way", False), ("the usual two lines", True)):
            made = paper_network(options.quick, False).to(device)
            steps[name] = ReferenceTraining(made, x0, num_steps, two_lines=two_lines).step
    for name, (bfloat16, channels_last, compiled) in variants.items():
        network = paper_network(options.quick, channels_last).to(device)
        steps[name] = FastTraining(
            network, x0, Schedule(num_steps=num_steps), bfloat16, compiled
        ).step
    facts = {
        f"first_call_{name}_s": round(first_call(steps[name], device), 1)
        for name in steps
        if "compiled" in name
    }
    timings = {
        name: summary(seconds) for name, seconds in interleaved(steps, repetitions, device).items()
    }

    flops = flops_per_image(paper_network(options.quick, False), x0)
    size = 64 if options.quick else 2048
    rates = {dtype: matmul_rate(device, dtype, size) for dtype in (torch.float32, torch.bfloat16)}
    base = next(iter(timings.values()))["median"]
    rows = []
    for name, timing in timings.items():
        rate = rates[torch.bfloat16 if name.startswith(("bf16", "the usual")) else torch.float32]
        rows.append(
            {
                "step": name,
                "s": timing["median"],
                "least s": timing["least"],
                "images/s": batch / timing["median"],
                "times faster": base / timing["median"],
                "of matmul rate": flops * batch / timing["median"] / rate,
            }
        )
    facts |= {
        f"matmul_{str(dtype)[6:]}_GFLOP/s": round(rate / 1e9) for dtype, rate in rates.items()
    }
    memory = round(peak_memory(device), 2)
    report(
        f"training step, batch {batch}, {flops / 1e9:.1f} GFLOP per image",
        rows,
        options,
        **facts,
        peak_GiB=memory,
    )


if __name__ == "__main__":
    main()
