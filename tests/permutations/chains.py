"""Plackett-Luce digit by digit of a code: a causal denoiser whose law is known, for n passes."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.permutations.codes import Code, FisherYates, Insertion, Lehmer
from blackout.permutations.distributions import PlackettLuce


class PlackettLuceCodes(PlackettLuce):
    """Plackett-Luce as an autoregressive model of a code.

    `conditionals` is a causal denoiser (`coded/model.py`): right with one digit a pass from the left,
    in one pass for `autoregressive_loss`.

    Args:
        log_weights: finite, [n].
        code: Lehmer, FisherYates or Insertion.

    Raises:
        ValueError: weights that are no vector, or another code.
    """

    def __init__(self, log_weights: Tensor, code: type[Code]) -> None:
        if log_weights.ndim != 1 or not len(log_weights):
            raise ValueError(f"log_weights must be a vector [n], not {list(log_weights.shape)}")
        if code not in (Lehmer, FisherYates, Insertion):
            raise ValueError(f"the conditionals of {code.__name__} digits have no closed form")
        super().__init__(log_weights.double())
        self.code = code

    def conditionals(self, codes: Tensor) -> Tensor:
        """log P(c_i = v | c_<i), float64 [B, n, n]; -inf outside the support.

        Args:
            codes: int64 [B, n]; digits that are masked (n) count as 0 for those after them.
        """
        n = self._n
        codes = codes.masked_fill(codes == n, 0)
        found = torch.full((*codes.shape, n), -torch.inf, dtype=torch.float64, device=codes.device)
        fill = self._insertion if self.code is Insertion else self._without_replacement
        fill(codes, found)
        return found

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], float64: the sum of the conditionals of the code's digits.

        Raises:
            ValueError: a value is no permutation.
        """
        digits = self.code.encode(value).reshape(-1, self._n)
        found = self.conditionals(digits).gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        return found.view(value.shape[:-1])

    def _without_replacement(self, codes: Tensor, found: Tensor) -> None:
        """A digit is the place of the next item among those left: in their order, or in a deck that swaps made."""
        left = torch.arange(self._n, device=codes.device).expand(codes.shape)
        for i, at in enumerate(codes.split(1, 1)):
            found[:, i, : left.shape[1]] = self.scores[left].log_softmax(-1)
            if self.code is FisherYates:
                left = left.scatter(1, at, left[:, :1])[:, 1:]
            else:
                place = torch.arange(left.shape[1] - 1, device=codes.device)
                left = left.gather(1, place + (place >= at))

    def _insertion(self, codes: Tensor, found: Tensor) -> None:
        """The order of the first k + 1 items is Plackett-Luce too: the ratio after and before item k goes in.

        In front of place v stand items whose sums of what is left now include w_k; behind it nothing changes.
        """
        order = torch.zeros(len(codes), 0, dtype=torch.int64, device=codes.device)
        for k, at in enumerate(codes.split(1, 1)):
            own = self.scores[k].expand(len(codes), 1)
            left = torch.cat([self.scores[order].flip(1).logcumsumexp(1).flip(1), torch.full_like(own, -torch.inf)], 1)
            grown = torch.logaddexp(left, own)
            ratio = (left - grown)[:, :k].cumsum(1)
            found[:, k, : k + 1] = own - grown + torch.cat([torch.zeros_like(own), ratio], 1)
            place = torch.arange(k + 1, device=codes.device)
            shifted = torch.cat([order, torch.zeros_like(at)], 1).gather(1, place - (place > at).long())
            order = torch.where(place == at, k, shifted)
