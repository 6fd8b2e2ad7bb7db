"""Compare Triton's draws with those of torch in Triton's interpreter.

To be run with TRITON_INTERPRET=1, which Triton reads when it is imported. Prints a line for each
case in which the draws differ, and "compared" at the end.
"""

import torch

from blackout.random import compiled_draws, triton_draws
from blackout.random.streams import SampleStreams
from blackout.random.words import bits_at
from tests.random.kernel_cases import differing_cases


def compare_draws() -> None:
    for case in differing_cases(triton_draws, num_samples=3, num_elements=31):
        print(case)
    rate = torch.tensor([[torch.nan, torch.inf, -1.0, 3.0, 30.0]], dtype=torch.float64)
    seed = torch.tensor(2**62 + 3)
    first = torch.tensor([7, 1_000_003, 2**40])
    for threshold in (-32_768, -9_830, 32_767):
        keep = torch.empty(3, 131, dtype=torch.bool)
        triton_draws.keep_mask(seed, first, threshold, keep)
        if not torch.equal(keep, bits_at(seed, first[:, None] + torch.arange(131)) >= threshold):
            print(f"masks of threshold {threshold}")
    keys = SampleStreams(3, torch.arange(1)).step(1).next_draw().keys
    if triton_draws.poisson(keys, rate).isnan().tolist() != [[True, True, True, False, False]]:
        print("rates that are not finite")


def check_comparison() -> None:
    """Check that the comparison before the first use accepts equal draws and rejects others."""
    device = torch.device("cpu")
    poisson = triton_draws.poisson
    if not compiled_draws.kernels_agree(triton_draws, device, num_samples=2, num_elements=40):
        print("equal draws were rejected")
    triton_draws.poisson = lambda keys, rate: poisson(keys + 1, rate)
    if compiled_draws.kernels_agree(triton_draws, device, num_samples=2, num_elements=40):
        print("different draws were accepted")


if __name__ == "__main__":
    compare_draws()
    check_comparison()
    print("compared")
