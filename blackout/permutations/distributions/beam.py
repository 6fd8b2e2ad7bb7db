"""Searches for the most probable orders: a beam where orders are chosen item by item, exact for independent digits."""

from __future__ import annotations

import torch
from torch import Tensor


def beam_search(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best orders that a beam over rows finds: after each row the `width` most probable prefixes go on.

    [Zhang 2025, section 3.5, appendix D]. All are kept, and the search is exact, while there are no more than `width`.
    A prefix is a pointer to its parent and the item it adds, so that nothing is copied from row to row; orders are
    traced back at the end.

    Args:
        scores: [B, n, n], row i over the items for place i; -inf where an item may not be.
        width: of the beam.

    Returns:
        int64 [B, K, n] and log-probabilities [B, K], falling, K at most min(width, n!); -inf where fewer orders are
        possible, and then the order means nothing.
    """
    batch, n, _ = scores.shape
    total = scores.new_zeros(batch, 1)
    used = torch.zeros(batch, 1, n, dtype=torch.bool, device=scores.device)
    steps = list[tuple[Tensor, Tensor]]()
    prefixes = 1
    for i in range(n):
        row = scores[:, i, None].masked_fill(used, -torch.inf)
        mass = row.logsumexp(-1, keepdim=True)
        # a prefix that no item may follow stays at -inf, where -inf - -inf would be no number
        row += total[..., None] - mass.masked_fill_(mass == -torch.inf, 0.0)
        prefixes = min(prefixes * (n - i), 1 + width * n)
        total, flat = row.flatten(1).topk(min(width, prefixes))
        parent, item = flat // n, flat % n
        used = used.gather(1, parent[..., None].expand(-1, -1, n)).scatter_(2, item[..., None], True)
        steps.append((parent, item))
    at = torch.arange(total.shape[1], device=scores.device).expand(total.shape)
    orders = torch.empty(*total.shape, n, dtype=torch.int64, device=scores.device)
    for i, (parent, item) in reversed(list(enumerate(steps))):
        orders[..., i] = item.gather(1, at)
        at = parent.gather(1, at)
    return orders, total


def best_digits(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable choices of independent digits, exactly.

    Digit by digit, keeping the k best: what a digit adds does not depend on the others, so none that is dropped could
    come back. Ours; checked by `tests.permutations.test_distributions`.

    Args:
        log_probs: [..., n, V], digit i over its values; -inf where it may not be.

    Returns:
        int64 [..., K, n] and log-probabilities [..., K], falling, K = min(k, V^n).
    """
    *batch, n, values = log_probs.shape
    total = log_probs.new_zeros(*batch, 1)
    digits = torch.empty(*batch, 1, 0, dtype=torch.int64, device=total.device)
    for i in range(n):
        candidates = (total.unsqueeze(-1) + log_probs[..., i, None, :]).flatten(-2)
        total, flat = candidates.topk(min(k, candidates.shape[-1]))
        kept = digits.gather(-2, (flat // values).unsqueeze(-1).expand(*flat.shape, i))
        digits = torch.cat([kept, (flat % values).unsqueeze(-1)], -1)
    return digits, total
