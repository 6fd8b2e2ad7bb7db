"""A comparison of compiled draws with those of torch, for every method of drawing."""

from types import ModuleType

import torch

from blackout.random import torch_draws
from blackout.random.binomial_table import binomial_by_table
from blackout.random.streams import Draw, SampleStreams

MAX_RATES = (0.0, 1.0, 12.0, 300.0, 1e8)
MAX_N_AND_P = ((1, 0.5), (15, 0.5), (255, 0.1), (65535, 1e-4), (65535, 0.5), (2**31 - 1, 1e-8))
MAX_TABLE_P = (0.0, 0.01, 0.5)  # no table, tables of n undivided, tables of its digits


def differing_cases(kernels: ModuleType, num_samples: int, num_elements: int) -> list[str]:
    """Return the names of the cases in which `kernels` draw other counts than torch."""

    def draw() -> Draw:
        return SampleStreams(3, torch.arange(num_samples)).step(1).next_draw()

    def values(maximum: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        shape = (num_samples, num_elements)
        return torch.rand(shape, generator=generator, dtype=torch.float64) * maximum

    cases = []
    for max_rate in MAX_RATES:
        rate = values(max_rate)
        compiled_counts = kernels.poisson(draw().keys, rate)
        if not torch.equal(compiled_counts, torch_draws.poisson(draw(), rate)):
            cases.append(f"Poisson {max_rate}")

    for max_n, max_p in MAX_N_AND_P:
        n = torch.floor(values(max_n + 1)).clamp(max=max_n)
        p = values(max_p).flip(1).contiguous()
        compiled_counts = kernels.binomial(draw().keys, n, p)
        if not torch.equal(compiled_counts, torch_draws.binomial(draw(), n, p)):
            cases.append(f"binomial {max_n} {max_p}")

    if hasattr(kernels, "inverse_cdf"):
        n = values(256).byte()
        flipped = torch.arange(num_samples) % 2 == 0
        for max_p in MAX_TABLE_P:
            p = values(max_p)[:, 0]
            compiled_counts = binomial_by_table(draw(), n, p, flipped, kernels)
            if not torch.equal(compiled_counts, binomial_by_table(draw(), n, p, flipped)):
                cases.append(f"tables {max_p}")
    return cases
