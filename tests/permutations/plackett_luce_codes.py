"""Plackett-Luce digit by digit of a code: a causal denoiser with a known distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.permutations.codes import Code, FisherYates, Insertion, Lehmer
from blackout.permutations.distributions import PlackettLuce


class PlackettLuceCodes(PlackettLuce):
    """Plackett-Luce as an autoregressive model of a code.

    `conditionals` is a causal denoiser (`coded/denoiser.py`). It is exact with one digit per pass
    from the left, and in a single pass for `autoregressive_loss`.

    Args:
        log_weights: finite, [n].
        code: Lehmer, FisherYates or Insertion.

    Raises:
        ValueError: if the weights are not a vector, or for another code.
    """

    def __init__(self, log_weights: Tensor, code: type[Code]) -> None:
        if log_weights.ndim != 1 or not len(log_weights):
            raise ValueError(f"log_weights must be a vector [n], not {list(log_weights.shape)}")
        if code not in (Lehmer, FisherYates, Insertion):
            raise ValueError(f"the conditionals of {code.__name__} digits have no closed form")
        super().__init__(log_weights.double())
        self.code = code

    def conditionals(self, codes: Tensor) -> Tensor:
        """Return log P(c_i = v | c_<i), float64 [B, n, n]; -inf outside the support.

        Args:
            codes: int64 [B, n]; masked digits (n) count as 0 for later ones.
        """
        n = self._n
        codes = codes.masked_fill(codes == n, 0)
        log_probs = torch.full(
            (*codes.shape, n), -torch.inf, dtype=torch.float64, device=codes.device
        )
        fill = self._insertion if self.code is Insertion else self._without_replacement
        fill(codes, log_probs)
        return log_probs

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p of orders [..., n], float64: the sum of the conditionals of the code's
        digits.

        Raises:
            ValueError: if a value is no permutation.
        """
        digits = self.code.encode(value).reshape(-1, self._n)
        log_probs = self.conditionals(digits).gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        return log_probs.view(value.shape[:-1])

    def _without_replacement(self, codes: Tensor, log_probs: Tensor) -> None:
        """Fill in log P of digits that index the remaining items.

        The items are in their original order, or in a deck rearranged by swaps (Fisher-Yates).
        """
        remaining = torch.arange(self._n, device=codes.device).expand(codes.shape)
        for i, digit in enumerate(codes.split(1, 1)):
            log_probs[:, i, : remaining.shape[1]] = self.scores[remaining].log_softmax(-1)
            if self.code is FisherYates:
                remaining = remaining.scatter(1, digit, remaining[:, :1])[:, 1:]
            else:
                position = torch.arange(remaining.shape[1] - 1, device=codes.device)
                remaining = remaining.gather(1, position + (position >= digit))

    def _insertion(self, codes: Tensor, log_probs: Tensor) -> None:
        """Fill in log P of insertion digits.

        The order of the first k + 1 items is Plackett-Luce too. The probability is its ratio after
        and before item k is inserted. For items in front of position v the remaining weight now
        includes w_k; behind it nothing changes.
        """
        order = torch.zeros(len(codes), 0, dtype=torch.int64, device=codes.device)
        for k, digit in enumerate(codes.split(1, 1)):
            score = self.scores[k].expand(len(codes), 1)
            remaining = torch.cat(
                [
                    self.scores[order].flip(1).logcumsumexp(1).flip(1),
                    torch.full_like(score, -torch.inf),
                ],
                1,
            )
            remaining_with_item = torch.logaddexp(remaining, score)
            ratio = (remaining - remaining_with_item)[:, :k].cumsum(1)
            log_probs[:, k, : k + 1] = (
                score - remaining_with_item + torch.cat([torch.zeros_like(score), ratio], 1)
            )
            position = torch.arange(k + 1, device=codes.device)
            shifted = torch.cat([order, torch.zeros_like(digit)], 1).gather(
                1, position - (position > digit).long()
            )
            order = torch.where(position == digit, k, shifted)
