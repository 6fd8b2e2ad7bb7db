"""Orders by choosing one item after another: Plackett-Luce, and with a row of scores for every place.

Plackett (1975), Luce (1959); the generalisation is Zhang et al. (ICLR 2025), section 3.2.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.autograd.function import once_differentiable

from blackout.permutations.distributions.base import OrderDistribution, best, check_k
from blackout.permutations.distributions.beam import beam_search
from blackout.permutations.group import identity_like
from blackout.random import RandomSource

_NEVER = -1e30
"""The score of a place without an item: finite, so that its gradient is 0 and no -inf - -inf arises."""


class PlackettLuce(OrderDistribution):
    """The next item is chosen among those left with probability proportional to e^score.

    log p(order) = sum over i of z_i - log sum_{j >= i} e^z_j, z = scores[order].

    Args:
        scores: finite, [..., n].
        mask: bool [..., n], see `OrderDistribution`.
        width: of the beam of `top`; the first it finds, the mode, is exact with any.
        validate_args: whether `log_prob` checks that values are permutations.

    Raises:
        ValueError: scores without items, or a bad mask.
    """

    def __init__(
        self, scores: Tensor, mask: Tensor | None = None, width: int = 64, validate_args: bool | None = None
    ) -> None:
        if scores.ndim < 1 or scores.shape[-1] < 1:
            raise ValueError(f"scores must be [..., n] with n at least 1, not {list(scores.shape)}")
        super().__init__(scores.shape[:-1], scores.shape[-1], mask, validate_args)
        self.scores, self.width = scores, width
        self._filled = scores if self.mask is None else scores.masked_fill(~self.mask, _NEVER)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; O(n) by one running logsumexp."""
        scores, value = torch.broadcast_tensors(self._filled, self._checked(value))
        z = scores.gather(-1, value)
        if self.mask is None:
            return (z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)
        terms = (z - z.flip(-1).logcumsumexp(-1).flip(-1)).masked_fill(~self.mask, 0.0)
        stays = ((value == identity_like(value)) | self.mask).all(-1)
        return terms.sum(-1).masked_fill(~stays, -torch.inf)

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]: scores plus Gumbel noise, sorted."""
        noisy = self._filled + self._gumbel(tuple(sample_shape), (self._n,), generator, self.scores)
        return noisy.argsort(dim=-1, descending=True, stable=True)

    @property
    def mode(self) -> Tensor:
        """Items by falling score; among equals the earlier first."""
        return self._filled.argsort(dim=-1, descending=True, stable=True)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best that a beam of max(k, width) finds: exact where n! is no more than that, and for k = 1."""
        rows = self.scores.unsqueeze(-2).expand(*self.scores.shape, self._n)
        return _beam(masked_rows(rows, self.mask), max(k, self.width), k)


class GeneralizedPlackettLuce(OrderDistribution):
    """Every place chooses among the items left with scores of its own.

    log p(order) = sum over i of S[i, order_i] - log sum_{j >= i} e^S[i, order_j]. Adding a number to a row changes
    nothing, nor does the last row; with equal rows it is Plackett-Luce. A row's scores do not depend on what earlier
    places chose, so one such distribution cannot be any law, but a chain of them can (`blackout.laws`).

    Its mode is intractable: `mode` and `top` are what a beam search finds, exact only where n! is at most `width`.

    Args:
        scores: [..., n, n], rows are places and columns items; -inf where an item may not be. Whatever earlier
            places choose, an item should be left: else mass is lost, and a draw that comes there is refused.
        mask: bool [..., n], see `OrderDistribution`.
        width: of the beam of `mode` and, at least, of `top`.
        validate_args: whether `log_prob` checks that values are permutations.

    Raises:
        ValueError: scores that are not square, or a bad mask.
    """

    mode_is_exact: ClassVar[bool] = False

    def __init__(
        self, scores: Tensor, mask: Tensor | None = None, width: int = 64, validate_args: bool | None = None
    ) -> None:
        if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2] or scores.shape[-1] < 1:
            raise ValueError(f"scores must be [..., n, n] with n at least 1, not {list(scores.shape)}")
        super().__init__(scores.shape[:-2], scores.shape[-1], mask, validate_args)
        self.width, self.scores = width, masked_rows(scores, self.mask)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf where one is forbidden."""
        value, n = self._checked(value), self._n
        shape = torch.broadcast_shapes(value.shape[:-1], self.scores.shape[:-2])
        columns = value.expand(*shape, n).unsqueeze(-2).expand(*shape, n, n)
        return _ChoicesLogProb.apply(self.scores.expand(*shape, n, n).gather(-1, columns))

    @torch.no_grad()
    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n], one place after another by Gumbel noise.

        Raises:
            ValueError: the choices left no item for a place.
        """
        n = self._n
        noisy = self.scores + self._gumbel(tuple(sample_shape), (n, n), generator, self.scores)
        rows = noisy.reshape(-1, n, n).transpose(0, 1).contiguous()
        order = torch.empty(n, rows.shape[1], 1, dtype=torch.int64, device=rows.device)
        used = torch.zeros(rows.shape[1:], dtype=torch.bool, device=rows.device)
        stuck = torch.zeros(rows.shape[1], 1, dtype=torch.bool, device=rows.device)
        for row, chosen in zip(rows, order, strict=True):
            value, item = row.masked_fill_(used, -torch.inf).max(-1, keepdim=True)
            stuck |= value == -torch.inf
            used.scatter_(-1, item, True)
            chosen.copy_(item)
        if bool(stuck.any()):
            raise ValueError("scores of -inf left no item for a place")
        return order.squeeze(-1).T.reshape(noisy.shape[:-1]).contiguous()

    @property
    def mode(self) -> Tensor:
        """The best order that a beam of `width` finds: not always the most probable one."""
        return self.top(1)[0].squeeze(-2)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best that a beam of max(k, width) finds, without what is impossible."""
        return _beam(self.scores, max(k, self.width), k)


class _ChoicesLogProb(torch.autograd.Function):
    """sum over i of S[i, i] - log sum_{j >= i} e^S[i, j], [...] of scores [..., n, n] whose columns are in order.

    The exponentials are kept for the gradient, which torch would make again from the logarithm.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        n, limits = scores.shape[-1], torch.finfo(scores.dtype)
        gone = torch.ones(n, n, dtype=torch.bool, device=scores.device).tril_(-1)
        shares = scores.masked_fill(gone, -torch.inf)
        # limits: a row of -inf alone gives -inf and no gradient, not -inf - -inf
        largest = shares.amax(-1, keepdim=True).clamp_(min=limits.min)
        shares = shares.sub_(largest).exp_()
        mass = shares.sum(-1, keepdim=True).clamp_(min=limits.tiny)
        ctx.save_for_backward(shares, mass)
        own = scores.diagonal(dim1=-2, dim2=-1)
        return (own - largest.squeeze(-1) - mass.squeeze(-1).log()).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        shares, mass = ctx.saved_tensors
        found = shares * (-gradient[..., None, None] / mass)
        found.diagonal(dim1=-2, dim2=-1).add_(gradient.unsqueeze(-1))
        return found


def masked_rows(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores [..., n, n] in which places without an item are forced to keep theirs."""
    if mask is None:
        return scores
    both = mask.unsqueeze(-1) & mask.unsqueeze(-2)
    keep = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device) & ~both
    return scores.masked_fill(~both, -torch.inf).masked_fill(keep, 0.0)


def _beam(scores: Tensor, width: int, k: int) -> tuple[Tensor, Tensor]:
    """The k best of a beam over scores [*batch, n, n]."""
    check_k(k)
    batch, n = scores.shape[:-2], scores.shape[-1]
    orders, log_probs = beam_search(scores.reshape(-1, n, n), width)
    return best(orders.view(*batch, -1, n), log_probs.view(*batch, -1), k)
