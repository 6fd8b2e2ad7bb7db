"""Denoisers of codes, and their log-probabilities on the support of the code.

A denoiser is any function of codes int64 [B, n], with n where a digit is masked, to logits
[B, n, n] of the values of every digit. Logits outside the support of the code are never used.

References: Severo et al. 2025, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Denoiser: TypeAlias = Callable[[Tensor], Tensor]  # codes [B, n] -> logits [B, n, n]
Context: TypeAlias = Mapping[str, Tensor]  # `items` [B, n] or [B, n, ...], `condition` [B, d]


def digit_log_probs(denoiser: Denoiser, partial: Tensor, codes: Tensor, support: Tensor) -> Tensor:
    """Return the log-probability of every digit given partly masked codes, [B, n].

    Args:
        denoiser: codes [B, n] -> logits [B, n, n], see `Denoiser`.
        partial: codes that the denoiser sees, int64 [B, n], n where masked.
        codes: int64 [B, n].
        support: bool [n, n].

    References: Severo et al. 2025, the factors of eq. 2.
    """
    log_probs = log_softmax_on_support(denoiser(partial), support)
    return log_probs.gather(2, codes.unsqueeze(-1)).squeeze(-1)


def log_softmax_on_support(logits: Tensor, support: Tensor) -> Tensor:
    """Return the log-softmax over the support of each digit, [B, n, n], in float32 at least.

    Args:
        logits: [B, n, n].
        support: bool [n, n].

    References: Severo et al. 2025, section 4.2.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise.masked_fill(~support.to(logits.device), -torch.inf).log_softmax(-1)
