"""Where kernels draw other counts than the general path does, in every regime of the draws."""

from types import ModuleType

import torch

from blackout.random import counts
from blackout.random.counts import binomial_by_table
from blackout.random.streams import Draw, SampleStreams


def differences(kernels: ModuleType, samples: int, elements: int) -> list[str]:
    """The cases in which they do."""

    def draw() -> Draw:
        return SampleStreams(3, torch.arange(samples)).at(1).next_draw()

    def values(largest: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.rand(samples, elements, generator=generator, dtype=torch.float64) * largest

    found = []
    for largest in (0.0, 1.0, 12.0, 300.0, 1e8):
        rate = values(largest)
        if not torch.equal(kernels.poisson(draw().keys, rate), counts._poisson_from(draw(), rate)):
            found.append(f"Poisson {largest}")
    for largest, share in ((1, 0.5), (15, 0.5), (255, 0.1), (65535, 1e-4), (65535, 0.5), (2**31 - 1, 1e-8)):
        n, p = torch.floor(values(largest + 1)).clamp(max=largest), values(share).flip(1).contiguous()
        if not torch.equal(kernels.binomial(draw().keys, n, p), counts._binomial_from(draw(), n, p)):
            found.append(f"binomial {largest} {share}")
    n, flipped = values(256).byte(), torch.arange(samples) % 2 == 0
    shares = (0.0, 0.01, 0.5) if hasattr(kernels, "bisect") else ()  # nothing to look up, whole tables, divided ones
    for share in shares:
        by_table = [binomial_by_table(draw(), n, values(share)[:, 0], flipped, one) for one in (kernels, None)]
        if not torch.equal(*by_table):
            found.append(f"tables {share}")
    return found
