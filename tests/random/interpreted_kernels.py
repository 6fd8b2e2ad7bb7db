"""Compares the fused draws with the general ones; to be run with TRITON_INTERPRET=1, which Triton reads when imported.

Prints a line for each case in which they differ, and "compared" at the end.
"""

import torch

from blackout.random import counts
from blackout.random import triton_draws as fused
from blackout.random.streams import SampleStreams
from tests.random.kernel_cases import differences


def compare() -> None:
    for case in differences(fused, samples=3, elements=31):
        print(case)
    rate = torch.tensor([[torch.nan, torch.inf, -1.0, 3.0, 30.0]], dtype=torch.float64)
    keys = SampleStreams(3, torch.arange(1)).at(1).next_draw().keys
    if fused.poisson(keys, rate).isnan().tolist() != [[True, True, True, False, False]]:
        print("not finite")


def check_before_use() -> None:
    device, poisson = torch.device("cpu"), fused.poisson
    if not counts.kernels_agree(fused, device, samples=2, elements=40):
        print("the check sees a difference where there is none")
    fused.poisson = lambda keys, rate: poisson(keys + 1, rate)
    if counts.kernels_agree(fused, device, samples=2, elements=40):
        print("the check sees no difference where there is one")


if __name__ == "__main__":
    compare()
    check_before_use()
    print("compared")
