"""Chi-square tests of sampled permutations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.permutations import all_permutations
from blackout.permutations.coded.decoding import Blocks, fill_codes
from blackout.permutations.coded.denoiser import Denoiser
from blackout.permutations.group import lexicographic_rank
from blackout.random import RandomSource
from blackout.verification.draws import p_value


def assert_samples_follow(orders: Tensor, probabilities: Tensor) -> None:
    """Assert that samples [N, n] are permutations distributed as `probabilities`.

    The probabilities [n!] are in lexicographic order.
    """
    ranks = lexicographic_rank(orders)
    assert torch.equal(
        all_permutations(orders.shape[-1])[ranks.clamp(max=len(probabilities) - 1)], orders
    )
    assert (
        p_value(
            np.bincount(ranks.numpy(), minlength=len(probabilities)), probabilities.double().numpy()
        )
        > 1e-4
    )


@torch.no_grad()
def draw_codes(
    denoiser: Denoiser,
    n: int,
    size: int,
    blocks: Blocks,
    support: Tensor,
    condition: Tensor | None = None,
    generator: RandomSource = None,
    *,
    greedy: bool = False,
) -> Tensor:
    """Sample codes block by block, int64 [size, n] on the support's device.

    Args:
        denoiser: predicts logits of all digits.
        n: number of digits.
        size: number of samples.
        blocks: see `partition`.
        support: allowed digits, bool [n, n].
        given: int64 [n] or [size, n] of fixed digits; n where a digit is to be sampled.
        generator: random numbers.
        greedy: take the most probable value instead of sampling.
    """
    codes = torch.full((size, n), n, dtype=torch.int64, device=support.device)
    if condition is not None:
        codes = codes + (condition.to(support.device) - n)
    filling = fill_codes(denoiser, codes, blocks, len(blocks), support, generator, greedy=greedy)
    for filled, _ in filling:
        codes = filled
    return codes
