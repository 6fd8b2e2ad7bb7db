"""Compares the fused draws with the general ones; to be run with TRITON_INTERPRET=1, which Triton reads when imported.

Prints a line for each case in which they differ, and "compared" at the end.
"""

import torch

from blackout.random import counts, fused
from blackout.random.binomial_table import binomial_by_table
from blackout.random.streams import Draw, SampleStreams

SAMPLES, ELEMENTS = 3, 31


def draw() -> Draw:
    return SampleStreams(3, torch.arange(SAMPLES)).at(1).next_draw()


def values(largest: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(SAMPLES, ELEMENTS, generator=generator, dtype=torch.float64) * largest


def compare() -> None:
    for largest in (0.0, 1.0, 12.0, 300.0, 1e8):
        rate = values(largest)
        if not torch.equal(fused.poisson(draw().keys, rate), counts._poisson_from(draw(), rate)):
            print("Poisson", largest)
    for largest, share in ((1, 0.5), (15, 0.5), (255, 0.1), (65535, 1e-4), (65535, 0.5), (2**31 - 1, 1e-8)):
        n, p = torch.floor(values(largest + 1)).clamp(max=largest), values(share).flip(1).contiguous()
        if not torch.equal(fused.binomial(draw().keys, n, p), counts._binomial_from(draw(), n, p)):
            print("binomial", largest, share)
    n, p, flipped = values(256).byte(), values(0.5)[:, 0].clamp(min=0.04), torch.tensor([True, False, True])
    by_table = [binomial_by_table(draw(), n, p, flipped, kernels) for kernels in (fused, None)]
    if not torch.equal(*by_table):
        print("tables")
    rate = torch.tensor([[torch.nan, torch.inf, -1.0, 3.0, 30.0]], dtype=torch.float64)
    if fused.poisson(draw().keys[:1], rate).isnan().tolist() != [[True, True, True, False, False]]:
        print("not finite")


def check_before_use() -> None:
    device, poisson = torch.device("cpu"), fused.poisson
    if not counts.fused_draws_agree(fused, device, samples=2, elements=40):
        print("the check sees a difference where there is none")
    fused.poisson = lambda keys, rate: poisson(keys + 1, rate)
    if counts.fused_draws_agree(fused, device, samples=2, elements=40):
        print("the check sees no difference where there is one")


if __name__ == "__main__":
    compare()
    check_before_use()
    print("compared")
