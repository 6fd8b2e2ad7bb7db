"""Training losses of codes: masked diffusion over all orders of digits, and autoregression.

References: Uria et al. 2014; Severo et al. 2025, section 4.
"""

from __future__ import annotations

from torch import Tensor

from blackout.permutations.coded.denoiser import Denoiser, digit_log_probs
from blackout.random import RandomSource, uniform


def any_order_loss(
    denoiser: Denoiser, codes: Tensor, support: Tensor, generator: RandomSource = None
) -> Tensor:
    """Return an unbiased estimate of -log p in nats, averaged over all orders of digits, [B].

    m is uniform on 1..n, and m digits chosen uniformly are masked: the estimate is n / m times the
    sum of their cross-entropies. It is the bound of masked diffusion with a linear schedule, and at
    least the entropy of the data.

    Args:
        denoiser: codes [B, n] -> logits [B, n, n], see `Denoiser`.
        codes: int64 [B, n].
        support: bool [n, n].
        generator: source of random numbers.

    References: Uria et al. 2014.
    """
    size, n = codes.shape
    u = uniform((size, n + 1), generator, codes.device)
    num_masked = 1 + (u[:, :1] * n).long()
    is_masked = u[:, 1:].argsort(dim=1).argsort(dim=1) < num_masked
    nll = -digit_log_probs(denoiser, codes.masked_fill(is_masked, n), codes, support)
    return (nll.masked_fill(~is_masked, 0.0).sum(1) * n) / num_masked.squeeze(1)


def autoregressive_loss(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """Return -log p in nats, digit by digit from the left, in one pass, [B].

    It equals -`code_log_prob` with n passes from left to right, if the denoiser is causal: its
    logits of digit i may depend on earlier digits only.

    Args:
        denoiser: causal; codes [B, n] -> logits [B, n, n].
        codes: int64 [B, n].
        support: bool [n, n].

    References: Severo et al. 2025, eq. 2 with blocks of one digit.
    """
    return -digit_log_probs(denoiser, codes, codes, support).sum(1)
