"""Orders by choosing one item after another: Plackett-Luce, and with a row of scores for every place.

[Plackett 1975], [Luce 1959]; the generalisation is [Zhang 2025, eq. 9].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blackout.permutations.distributions.base import Rows, SequentialLaw
from blackout.random import RandomSource


class PlackettLuce(SequentialLaw):
    """The next item is chosen among those left with probability proportional to e^score.

    log p(order) = sum over i of z_i - log sum_{j >= i} e^z_j, z = scores[order] [Zhang 2025, eq. 8]. Its mode is exact.

    Args:
        scores: finite, [..., n].
        width: of the beam of `top`; the first it finds, the mode, is exact with any.

    Raises:
        ValueError: scores without items.
    """

    mode_is_exact: ClassVar[bool] = True

    def __init__(self, scores: Tensor, width: int = 64) -> None:
        super().__init__(scores, width=width)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; O(n) by one running logsumexp."""
        scores, value = torch.broadcast_tensors(self.scores, value)
        z = scores.gather(-1, value)
        return (z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Scores plus Gumbel noise, sorted."""
        noisy = self.scores + self._gumbel(sample_shape, (self._n,), generator)
        return noisy.argsort(dim=-1, descending=True, stable=True)

    @property
    def mode(self) -> Tensor:
        """Items by falling score, int64 [*batch, n]; among equals the earlier first."""
        return self.scores.argsort(dim=-1, descending=True, stable=True)

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`."""
        return lambda parent, item: self.scores.reshape(-1, 1, self._n)


class GeneralizedPlackettLuce(SequentialLaw):
    """Every place chooses among the items left with scores of its own [Zhang 2025, eq. 9].

    log p(order) = sum over i of S[i, order_i] - log sum_{j >= i} e^S[i, order_j]. Adding a number to a row changes
    nothing, nor does the last row; with equal rows it is Plackett-Luce. A row's scores do not depend on what earlier
    places chose, so one such distribution cannot be any law, but a chain of them can (tests/laws).

    Args:
        scores: [..., n, n], rows are places and columns items; -inf where an item may not be. Whatever earlier
            places choose, an item should be left: else mass is lost, and a draw that comes there is refused.
        width: of the beam of `mode` and, at least, of `top`.

    Raises:
        ValueError: scores that are not square.
    """

    def __init__(self, scores: Tensor, width: int = 64) -> None:
        super().__init__(scores, 2, width)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], in the scores' dtype; -inf where one is forbidden."""
        n, shape = self._n, torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        columns = value.expand(*shape, n).unsqueeze(-2).expand(*shape, n, n)
        return _ChoicesLogProb.apply(self.scores.expand(*shape, n, n).gather(-1, columns))

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`."""
        places = iter(self.scores.reshape(-1, 1, self._n, self._n).unbind(2))
        return lambda parent, item: next(places)

    @property
    def mode(self) -> Tensor:
        """As `OrderDistribution.mode`; with a beam of one, each place takes the best item left."""
        if self.width > 1:
            return super().mode
        rows = self.scores.reshape(-1, self._n, self._n)
        gone, taken = torch.zeros_like(rows[:, 0]), list[Tensor]()
        for i in range(self._n):
            taken.append((rows[:, i] + gone).argmax(-1, keepdim=True))
            gone.scatter_(-1, taken[-1], -torch.inf)
        if gone.numel() and bool(gone.amax() > -torch.inf):  # a place had none, and took one twice
            return super().mode
        return torch.cat(taken, -1).view(self.scores.shape[:-1])


class PointerLaw(SequentialLaw):
    """Every place chooses by scores that depend on all choices before [Vinyals 2015]: any law is one of these.

    Args:
        pointers: of the lists of a batch, see `blackout.networks.sets.Pointers`.
        scores: [*batch, n], which tell batch, items, device and type alone.
        width: of the beam.
    """

    def __init__(self, pointers: Any, scores: Tensor, width: int = 64) -> None:
        super().__init__(scores, width=width)
        self.pointers = pointers

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], all places at once."""
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        orders = value.expand(*shape, self._n).reshape(-1, self.batch_shape.numel(), self._n)
        return GeneralizedPlackettLuce(self.pointers.all(orders)).log_prob(orders).view(shape)

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`."""
        found: Rows = self.pointers.rows()
        return found


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
