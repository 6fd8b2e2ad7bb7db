"""Chi-square of draws on S_n."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.laws.kernels import p_value
from blackout.permutations import all_permutations
from blackout.permutations.group import number


def assert_draws(orders: Tensor, law: Tensor) -> None:
    """Draws [N, n] are permutations, and by chi-square of the law [n!] in lexicographic order."""
    which = number(orders)
    assert torch.equal(all_permutations(orders.shape[-1])[which.clamp(max=len(law) - 1)], orders)
    assert p_value(np.bincount(which.numpy(), minlength=len(law)), law.double().numpy()) > 1e-4
