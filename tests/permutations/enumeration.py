"""Chi-square of draws on S_n."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.permutations import all_permutations
from blackout.permutations.coded.model import Blocks, Denoiser, fill_codes
from blackout.permutations.group import lexicographic_rank
from blackout.random import RandomSource
from blackout.verification.draws import p_value


def assert_draws(orders: Tensor, law: Tensor) -> None:
    """Draws [N, n] are permutations, and by chi-square of the law [n!] in lexicographic order."""
    which = lexicographic_rank(orders)
    assert torch.equal(all_permutations(orders.shape[-1])[which.clamp(max=len(law) - 1)], orders)
    assert p_value(np.bincount(which.numpy(), minlength=len(law)), law.double().numpy()) > 1e-4


@torch.no_grad()
def draw_codes(
    denoiser: Denoiser,
    n: int,
    size: int,
    blocks: Blocks,
    support: Tensor,
    given: Tensor | None = None,
    generator: RandomSource = None,
    *,
    greedy: bool = False,
) -> Tensor:
    """Codes drawn block after block, int64 [size, n] on the support's device.

    Args:
        blocks: see `partition`.
        support: bool [n, n].
        given: int64 [n] or [size, n] of digits that stay, n where one is to be drawn.
        greedy: take the most probable value instead of drawing.
    """
    codes = torch.full((size, n), n, dtype=torch.int64, device=support.device)
    if given is not None:
        codes = codes + (given.to(support.device) - n)
    filling = fill_codes(denoiser, codes, blocks, len(blocks), support, generator, greedy=greedy)
    for filled, _ in filling:
        codes = filled
    return codes
