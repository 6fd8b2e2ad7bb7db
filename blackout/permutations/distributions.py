"""Distributions over orders, with the conventions of `torch.distributions`: Plackett-Luce and its generalisation with
their beams, matchings, inverse shuffles, the reverse laws of shuffle diffusions.

Orders by choosing one item after another are Plackett-Luce [Plackett 1975; Luce 1959], and with a row of scores for
every place [Zhang 2025, eq. 9]; by matching items with places, choices that are independent, normalised by Sinkhorn or
assigned; and by one step back of a shuffle [Zhang 2025, section 3.2.1]. At the end the reverse laws of shuffle
diffusions (`reverse=`), which turn a network's scores into one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.group import identity_like
from blackout.permutations.relaxations import sinkhorn
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle
from blackout.random import RandomSource, StepStreams, uniform


class OrderDistribution(Distribution):
    """A batch of distributions over orders of n items: values are int64 permutations [..., n].

    An order is the permutation that takes the present list to the next one, x -> x[order]: order[i] is the item that
    comes i-th. A subclass implements `log_prob`, `_draw` and `_candidates`.

    Args:
        scores: [..., n], or [..., n, n] if there are two `dims`; what stands before is the batch.
        dims: of one list's scores, 1 or 2.
        least: items at least.
        width: of the beam that looks for `mode` and `top` where they cannot be sorted out, at least.

    Raises:
        ValueError: scores of another shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, scores: Tensor, dims: int = 1, least: int = 1, width: int = 64) -> None:
        n = scores.shape[-1] if scores.ndim >= dims else 0
        if n < least or (dims == 2 and scores.shape[-2] != n):
            shape = ", ".join(["n"] * dims)
            raise ValueError(f"scores must be [..., {shape}] with n at least {least}, not {list(scores.shape)}")
        self.scores, self.width = scores, width
        super().__init__(scores.shape[:-dims], Size((n,)), validate_args=False)

    def sample(self, sample_shape: Size = Size(), generator: RandomSource = None) -> Tensor:  # type: ignore[override]
        """Orders int64 [*sample_shape, *batch, n]. From streams, the first axis of the batch is the samples."""
        with torch.no_grad():
            return self._draw(tuple(sample_shape), generator)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable orders, or the best a beam finds, falling.

        Returns:
            Orders int64 [*batch, K, n] and log-probabilities [*batch, K], K at most k and no more than the orders any
            list of the batch has. Where a list has fewer, -1 and -inf take their place: no order is ever invalid or
            there twice.

        Raises:
            ValueError: k < 1.

        By `_candidates` and `foremost`.
        """
        ensure(k >= 1, f"k must be at least 1, not {k}")
        with torch.no_grad():
            orders, log_probs = foremost(*self._candidates(k), k)
        possible = log_probs > -torch.inf
        most = int(possible.sum(-1).max()) if possible.numel() else 0
        orders, possible = orders[..., :most, :], possible[..., :most]
        return orders.masked_fill(~possible.unsqueeze(-1), -1), log_probs[..., :most]

    @property
    def mode(self) -> Tensor:
        """The most probable order, int64 [*batch, n]."""
        return self.top(1)[0].squeeze(-2)

    @property
    def _n(self) -> int:
        return self.event_shape[0]

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """As `sample`: orders int64 [*sample_shape, *batch, n]."""
        raise NotImplementedError

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Orders int64 [*batch, M, n], the k best among them, and log-probabilities [*batch, M]; -inf for none."""
        raise NotImplementedError

    def _uniform(self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource) -> Tensor:
        """Float64 uniforms [*sample_shape, *batch, *event], above 0.

        From streams the first axis of the batch (of the draw, if there is no batch) is the samples.
        """
        device = self.scores.device
        if not isinstance(source, StepStreams):
            return uniform((*sample_shape, *self.batch_shape, *event), source, device).clamp_(min=2.0**-54)
        if not self.batch_shape:
            return uniform((*(sample_shape or (1,)), *event), source, device).view(*sample_shape, *event)
        first, *rest = self.batch_shape
        return uniform((first, *sample_shape, *rest, *event), source, device).movedim(0, len(sample_shape))

    def _gumbel(self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource) -> Tensor:
        """Standard Gumbel numbers -log(-log u) of the shape of `_uniform`, [*sample_shape, *batch, *event].

        Whose largest after adding scores is drawn by their softmax [Mena 2018, section 3.2].
        """
        return self._uniform(sample_shape, event, source).log_().neg_().log_().neg_()


def foremost(orders: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest of orders int64 [..., M, n] with log-probabilities [..., M], falling, equals as they stand.

    Ours (tests/permutations/test_distributions.py).
    """
    log_probs, which = log_probs.sort(dim=-1, descending=True, stable=True)
    return orders.take_along_dim(which[..., :k, None], -2), log_probs[..., :k]


def digits_log_prob(log_probs: Tensor, digits: Tensor) -> Tensor:
    """The sum of what independent digits int64 [..., n] have, of log_probs [..., n, V]: [...] of their common shape.

    [Severo 2025, eq. 2], with one block.
    """
    return taken(log_probs, digits.unsqueeze(-1)).squeeze(-1).sum(-1)


def taken(values: Tensor, index: Tensor) -> Tensor:
    """Of values [..., V] those at int64 [..., m], [..., m] of their common shape."""
    shape = np.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    return values.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


def best_choices(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable of n independent choices, each yes with probability sigmoid(logits), exactly.

    Choice by choice, keeping the k best: what one adds does not depend on the others, so none that is dropped could
    come back. Only the k - 1 that are least sure need be looked at: k - 1 choices, one of these changed each, are no
    worse than any with another one changed. Ours; checked by `tests.permutations.test_distributions`.

    Args:
        logits: [..., n].

    Returns:
        bool [..., K, n] and log-probabilities [..., K], falling, K at most k, the same for all.
    """
    gaps, least_sure = logits.abs().topk(min(logits.shape[-1], max(k - 1, 1)), largest=False)
    total = F.logsigmoid(logits.abs()).sum(-1, keepdim=True)
    changed = torch.empty(*total.shape, 0, dtype=torch.bool, device=total.device)
    for gap in gaps.split(1, -1):
        size = total.shape[-1]
        total, which = torch.cat([total, total - gap], -1).topk(min(k, 2 * size))
        which = which.unsqueeze(-1)
        changed = torch.cat([changed.take_along_dim(which % size, -2), which >= size], -1)
    best = (logits >= 0).unsqueeze(-2).expand(*total.shape, -1)
    return best ^ torch.zeros_like(best).scatter(-1, least_sure.unsqueeze(-2).expand_as(changed), changed), total


Rows: TypeAlias = Callable[[Tensor | None, Tensor | None], Tensor]
"""(which of the prefixes before, int64 [N, K], and the item that goes on from each; None at first) -> scores of the
items for the next place, [N, K, n], or [N, 1, n] where prefixes do not matter."""
Pick: TypeAlias = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(place, scores [N, K, n], -inf for items used) -> (which prefixes go on, int64 [N, K'], and the item of each)."""


def walk(rows: Rows, n: int, pick: Pick) -> Tensor:
    """Orders int64 [N, K, n], place by place. Ours (tests/permutations/test_distributions.py).

    A prefix is a pointer to its parent and the item it adds, so that nothing is copied from place to place; orders are
    traced back at the end.
    """
    parent: Tensor | None = None
    item: Tensor | None = None
    steps, used = list[tuple[Tensor, Tensor]](), torch.zeros(())
    for i in range(n):
        scores = rows(parent, item)
        used = used if i else torch.zeros_like(scores, dtype=torch.bool)
        parent, item = pick(i, scores.masked_fill(used, -torch.inf))
        used = used.gather(1, parent[..., None].expand(-1, -1, n)).scatter_(2, item[..., None], True)
        steps.append((parent, item))
    at = torch.arange(used.shape[1], device=used.device).expand(used.shape[:2])
    orders = torch.empty(used.shape, dtype=torch.int64, device=used.device)
    for i, (parent, item) in reversed(list(enumerate(steps))):
        orders[..., i] = item.gather(1, at)
        at = parent.gather(1, at)
    return orders


class SequentialLaw(OrderDistribution):
    """Every place chooses among the items left: p(order) = prod over i of softmax over these of `rows`.

    [Zhang 2025, eqs. 8 and 9].

    Its mode is intractable: `mode` and `top` are what a beam search finds, exact only where n! is at most `width`.
    """

    def rows(self) -> Rows:
        """The scores place by place, of the batch as one, N lists: the rows of [*batch, n, n]."""
        places = iter(self.scores.reshape(-1, 1, self._n, self._n).unbind(2))
        return lambda parent, item: next(places)

    def _mass(self, scores: Tensor) -> Tensor:
        """log of what the items left have together, [N, K, 1]; 0 of a prefix that no item may follow, which stays at
        -inf, where -inf - -inf would be no number.
        """
        mass = scores.logsumexp(-1, keepdim=True)
        return mass.masked_fill_(mass == -torch.inf, 0.0)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Orders int64 [..., n], one place after another by Gumbel noise: exact draws of the class.

        Raises:
            ValueError: the choices left no item for a place.
        """
        n = self._n
        noise = self._gumbel(sample_shape, (n, n), generator)
        noise = noise.reshape(-1, self.batch_shape.numel(), n, n).transpose(0, 1)
        stuck = torch.zeros(noise.shape[:2], dtype=torch.bool, device=noise.device)
        same = torch.arange(noise.shape[1], device=noise.device).expand(noise.shape[:2])

        def pick(i: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """The item of largest noisy score, of [N, K, n], for every prefix: int64 [N, K], see `Pick`."""
            value, item = (scores + noise[:, :, i]).max(-1)
            stuck.logical_or_(value == -torch.inf)
            return same if i else torch.zeros_like(same), item

        orders = walk(self.rows(), n, pick)
        ensure(not bool(stuck.any()), "scores of -inf left no item for a place")
        return orders.transpose(0, 1).reshape(*sample_shape, *self.batch_shape, n)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """What a beam of max(k, width) finds [Zhang 2025, section 3.5, appendix D]: after each place the most
        probable prefixes go on. All are kept, and the search is exact, while there are no more. -inf where fewer
        orders are possible, and then the order means nothing. Orders are [..., M, n], see
        `OrderDistribution._candidates`.
        """
        n, total = self._n, self.scores.new_zeros(self.batch_shape.numel(), 1)

        def pick(i: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """The likeliest prefixes with one item more, of scores [N, K, n]: int64 [N, K'], see `Pick`."""
            nonlocal total
            scores += total[..., None] - self._mass(scores)
            total, flat = scores.flatten(1).topk(min(max(k, self.width), scores.shape[1] * (n - i)))
            return flat // n, flat % n

        orders = walk(self.rows(), n, pick)
        return orders.view(*self.batch_shape, -1, n), total.view(*self.batch_shape, -1)


class PlackettLuce(SequentialLaw):
    """The next item is chosen among those left with probability proportional to e^score.

    log p(order) = sum over i of z_i - log sum_{j >= i} e^z_j, z = scores[order] [Zhang 2025, eq. 8]. Its mode is exact.

    Args:
        scores: finite, [..., n].
        width: of the beam of `top`; the first it finds, the mode, is exact with any.

    Raises:
        ValueError: scores without items.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...]; O(m) by one running logsumexp.

        [Zhang 2025, eq. 8], also of orders [..., m] among some of the items, in the scores' dtype.
        """
        z = taken(self.scores, value)
        return (z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Scores plus Gumbel noise, sorted: orders [..., n], of the law of [Zhang 2025, eq. 8]."""
        noisy = self.scores + self._gumbel(sample_shape, (self._n,), generator)
        return noisy.argsort(dim=-1, descending=True, stable=True)

    @property
    def mode(self) -> Tensor:
        """Items by falling score, int64 [*batch, n]; among equals the earlier first."""
        return self.scores.argsort(dim=-1, descending=True, stable=True)

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`, of scores [*batch, n]: the same for every place."""
        return lambda parent, item: self.scores.reshape(-1, 1, self._n)


class GeneralizedPlackettLuce(SequentialLaw):
    """Every place chooses among the items left with scores of its own [Zhang 2025, eq. 9].

    log p(order) = sum over i of S[i, order_i] - log sum_{j >= i} e^S[i, order_j]. Adding a number to a row changes
    nothing, nor does the last row; with equal rows it is Plackett-Luce. A row's scores do not depend on what earlier
    places chose, so one such distribution cannot be any law, but a chain of them can (tests/verification).

    Args:
        scores: [..., n, n], rows are places and columns items; -inf where an item may not be. Whatever earlier
            places choose, an item should be left: else mass is lost, and a draw that comes there is refused.
        width: of the beam of `mode` and, at least, of `top`.

    Raises:
        ValueError: scores that are not square.
    """

    def __init__(self, scores: Tensor, width: int = 64) -> None:
        super().__init__(scores, 2, width=width)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...], in the scores' dtype; -inf where one is forbidden [Zhang 2025, eq. 9]."""
        chosen = taken(self.scores, value.unsqueeze(-2))
        gone = torch.ones(self._n, self._n, dtype=torch.bool, device=chosen.device).tril_(-1)
        # one more, and not -inf: where no item that is left may be, there is still a largest score
        least = torch.finfo(chosen.dtype).min
        left = F.pad(chosen.masked_fill(gone, least), (0, 1), value=least)
        return left.log_softmax(-1).diagonal(dim1=-2, dim2=-1).sum(-1)

    @property
    def mode(self) -> Tensor:
        """As `OrderDistribution.mode`, int64 [*batch, n]; with a beam of one, each place takes the best item left."""
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
        pointers: of the lists of a batch, see `blackout.networks.set_transformer.Pointers`.
        scores: [*batch, n], which tell batch, items, device and type alone.
        width: of the beam.
    """

    def __init__(self, pointers: Any, scores: Tensor, width: int = 64) -> None:
        super().__init__(scores, width=width)
        self.pointers = pointers

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...], all places at once: scores of every place by those before [Vinyals 2015]."""
        shape = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        orders = value.expand(*shape, self._n).reshape(-1, self.batch_shape.numel(), self._n)
        return GeneralizedPlackettLuce(self.pointers.score_orders(orders)).log_prob(orders).view(shape)

    def rows(self) -> Rows:
        """As `SequentialLaw.rows`."""
        return self.pointers.next_scores()


class Matching(SequentialLaw):
    """Every place chooses an item by itself, and what counts are the choices that are orders.

    log p(order) = sum over i of log M[i, order_i], where M is e^scores after `iterations` of Sinkhorn's normalisation
    of rows and columns, and a softmax of each row in the end. The law of orders among these choices is intractable (its
    normaliser is a permanent), so that probabilities of orders sum to less than 1 and -log p bounds it from above.

    `mode` is exact, by assignment, and the first of `top`; the others are those of a beam. `sample` is the best
    assignment of scores with Gumbel noise, the Gumbel-Matching law of [Mena 2018, section 3.2]: not the law of
    `log_prob`.

    Args:
        scores: finite, [..., n, n], rows are places and columns items.
        iterations: of Sinkhorn's normalisation; 0 for n softmaxes.

    Raises:
        ValueError: scores that are not square, or iterations below 0.
    """

    def __init__(self, scores: Tensor, iterations: int = 0) -> None:
        super().__init__(scores, 2)
        self._given, self.scores = scores, sinkhorn(scores, iterations)

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum of the log-probabilities of orders' [..., n] places, [...], in the scores' dtype: see the class."""
        return digits_log_prob(self.scores, value)

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """The best assignments of `noisy`, orders [..., n] [Mena 2018, section 3.2]."""
        return _assigned(self.noisy(sample_shape, generator))

    def noisy(self, sample_shape: tuple[int, ...], generator: RandomSource = None) -> Tensor:
        """Scores as they were given plus Gumbel noise, [*sample_shape, *batch, n, n]."""
        return self._given + self._gumbel(sample_shape, (self._n, self._n), generator).to(self.scores.dtype)

    @property
    def mode(self) -> Tensor:
        """The best assignment, int64 [*batch, n]."""
        return _assigned(self.scores)

    def _mass(self, scores: Tensor) -> Tensor:
        """0: a place's choice does not depend on which items are left."""
        return scores.new_zeros(())

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """The best assignment, and what else the beam finds; shapes as in `OrderDistribution._candidates`."""
        orders, log_probs = super()._candidates(k)
        best = self.mode.unsqueeze(-2)
        log_probs = log_probs.masked_fill((orders == best).all(-1), -torch.inf)
        return torch.cat([best, orders], -2), torch.cat([self.log_prob(best.squeeze(-2)).unsqueeze(-1), log_probs], -1)


def _assigned(matrix: Tensor) -> Tensor:
    """The orders of largest sum, int64 [..., n], of [..., n, n]: the matching of [Mena 2018, section 2]."""
    from scipy.optimize import linear_sum_assignment

    flat = matrix.detach().reshape(-1, *matrix.shape[-2:]).cpu().double().numpy()
    columns = np.stack([linear_sum_assignment(one, maximize=True)[1] for one in flat])
    return torch.from_numpy(columns).view(matrix.shape[:-1]).to(matrix.device)


class InverseRiffle(OrderDistribution):
    """Every item goes to the left packet with probability sigmoid(score); left, then right packet, orders kept.

    [Zhang 2025, section 3.2.1]. An order with one descent comes from exactly one choice of
    packets, the identity from n + 1 of them (the first k left, the others right), an order with more descents from
    none. Scores 0 give the inverse of the riffle itself.

    Args:
        scores: [..., n].

    Raises:
        ValueError: scores without items.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...], in the scores' dtype; -inf for more than one descent: see the class."""
        cuts = self._cuts(taken(self.scores, value))
        falls = value[..., 1:] < value[..., :-1]
        number = falls.sum(-1)
        cut = 1 + (falls.int().argmax(-1) if self._n > 1 else torch.zeros_like(number))
        found = torch.where(number == 0, cuts.logsumexp(-1), taken(cuts, cut.unsqueeze(-1)).squeeze(-1))
        return found.masked_fill(number > 1, -torch.inf)

    def _cuts(self, z: Tensor) -> Tensor:
        """The log-probability that exactly the first k of a list with scores z [..., n] are left, [..., n + 1].

        As in the class [Zhang 2025, section 3.2.1].
        """
        left, right = F.logsigmoid(z), F.logsigmoid(-z)
        return F.pad(left.cumsum(-1), (1, 0)) + F.pad(right.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Packets drawn item by item and put together: orders [..., n], as in the class."""
        left = self._uniform(sample_shape, (self._n,), generator) < torch.sigmoid(self.scores.double())
        return _sorted_by_packet(left)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Those of the best choices of packets, the identity's n + 1 put together: as many as leave k others.

        Orders are [..., M, n], see `OrderDistribution._candidates`.
        """
        for wanted in (k + 2, 2 * k + 4, k + self._n + 1):  # the first are often enough
            left, log_probs = best_choices(self.scores, wanted)
            sorted_already = (left[..., 1:] <= left[..., :-1]).all(-1)
            if bool(((~sorted_already).sum(-1) >= k).all()):
                break
        orders = _sorted_by_packet(left)
        identity = torch.arange(self._n, device=orders.device).expand(*self.batch_shape, 1, self._n)
        mass = self._cuts(self.scores).logsumexp(-1, keepdim=True)
        log_probs = torch.cat([mass, log_probs.masked_fill(sorted_already, -torch.inf)], -1)
        return torch.cat([identity, orders], -2), log_probs


def _sorted_by_packet(left: Tensor) -> Tensor:
    """The order, int64 [..., n], that choices of packets bool [..., n] lead to [Zhang 2025, section 3.2.1]."""
    return (~left).to(torch.uint8).argsort(dim=-1, stable=True)


class InverseTransposition(OrderDistribution):
    """Nothing with probability 1 - sigmoid(swap), else two items change places, chosen without replacement.

    p((i j)) = sigmoid(swap) (w_i w_j / (1 - w_i) + w_j w_i / (1 - w_j)), w = softmax(scores) [Zhang 2025, eq. 6].

    Args:
        scores: finite, [..., n], n at least 2.
        swap: the logit of a transposition, [...].

    Raises:
        ValueError: fewer than two items, or shapes that do not fit.
    """

    def __init__(self, scores: Tensor, swap: Tensor) -> None:
        """log w_i and log(1 - w_i) of the class, [..., n] each."""
        super().__init__(scores, least=2)
        if swap.shape != self.batch_shape:
            raise ValueError(f"swap must have the shape {list(self.batch_shape)} of the batch, not {list(swap.shape)}")
        self.swap, self._log_w = swap, scores.log_softmax(-1)
        # log(1 - w_i): of the greatest weight by the sum of the others, because 1 - w would cancel
        first = scores.argmax(-1, keepdim=True)
        others = scores.scatter(-1, first, -torch.inf).logsumexp(-1, keepdim=True) - scores.logsumexp(-1, keepdim=True)
        rest = torch.log1p(-self._log_w.scatter(-1, first, -torch.inf).exp())
        self._log_rest = rest.scatter(-1, first, others)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...], in the scores' dtype; -inf unless the identity or one transposition.

        [Zhang 2025, eq. 6].
        """
        moved = value != identity_like(value)
        number = moved.sum(-1)
        i = moved.int().argmax(-1, keepdim=True)
        j = torch.where(number.unsqueeze(-1) == 2, value.gather(-1, i), 1 - i.clamp(max=1))  # any pair where it is not
        swap = F.logsigmoid(self.swap) + self._pair(i, j).squeeze(-1)
        return torch.where(number == 0, F.logsigmoid(-self.swap), swap.masked_fill(number != 2, -torch.inf))

    def _pair(self, i: Tensor, j: Tensor) -> Tensor:
        """log of w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j), for items i, j int64 [..., k]: [..., k].

        [Zhang 2025, eq. 6].
        """
        either = torch.logaddexp(-taken(self._log_rest, i), -taken(self._log_rest, j))
        return taken(self._log_w, i) + taken(self._log_w, j) + either

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """A pair without replacement, by the two largest noisy scores, or none: orders [..., n], as in the class."""
        swaps = self._uniform(sample_shape, (1,), generator) < self.swap.double().sigmoid().unsqueeze(-1)
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        first, second = noisy.topk(2).indices.split(1, -1)
        second = torch.where(swaps, second, first)
        identity = torch.arange(self._n, device=first.device).expand(noisy.shape)
        return identity.scatter(-1, first, second).scatter(-1, second, first)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """All M = 1 + n (n - 1) / 2 orders, int64 [*batch, M, n], and their log-probabilities [*batch, M].

        [Zhang 2025, eq. 6].
        """
        i, j = torch.triu_indices(self._n, self._n, 1, device=self.scores.device)
        swap = F.logsigmoid(self.swap).unsqueeze(-1) + self._pair(i, j)
        orders = torch.arange(self._n, device=i.device).repeat(len(i) + 1, 1)
        rows = torch.arange(1, len(i) + 1, device=i.device)
        orders[rows, i], orders[rows, j] = j, i
        log_probs = torch.cat([F.logsigmoid(-self.swap).unsqueeze(-1), swap], -1)
        return orders.expand(*self.batch_shape, *orders.shape), log_probs


class InverseInsertion(OrderDistribution):
    """Item i moves to the end with probability softmax(scores)_i [Zhang 2025, eq. 7].

    Args:
        scores: finite, [..., n].

    Raises:
        ValueError: scores without items.
    """

    @property
    def _log_w(self) -> Tensor:
        """log softmax(scores), [*batch, n] [Zhang 2025, eq. 7]."""
        return self.scores.log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of orders [..., n], [...], in the scores' dtype; -inf unless one item moved to the end
        [Zhang 2025, eq. 7].
        """
        moved = value[..., -1:]
        possible = (self._order(moved) == value).all(-1)
        return taken(self._log_w, moved).squeeze(-1).masked_fill(~possible, -torch.inf)

    def _order(self, item: Tensor) -> Tensor:
        """The order in which `item` [..., 1] comes last and those after it move up."""
        place = torch.arange(self._n, device=item.device)
        return torch.where(place == self._n - 1, item, place + (place >= item))

    def _draw(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """The item of largest noisy score to the end: orders [..., n], as in the class."""
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        return self._order(noisy.argmax(-1, keepdim=True))

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """All n orders, int64 [*batch, n, n], and their log-probabilities [*batch, n]."""
        items = torch.arange(self._n, device=self.scores.device).expand(*self.batch_shape, self._n)
        return self._order(items.unsqueeze(-1)), self._log_w


class Reverse:
    """From scores to a distribution over the permutations that take a list one scheduled step back."""

    law: ClassVar[type[OrderDistribution]]
    """Of scores [..., n, n] with `places`, [..., n] without, one more with `swap`."""
    places: ClassVar[bool] = False
    """Whether the network gives a row of scores for every place, [..., n, n], or [..., n]."""
    swap: ClassVar[bool] = False
    """Whether it gives one more score for the list, [..., n + 1]."""
    prefix: ClassVar[bool] = False
    """Whether a place's scores depend on what is at the places before it."""
    undoes: ClassVar[type[Shuffle] | None] = None
    """The only shuffle a single step of which it can undo; None if it reaches every order."""

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The distribution; `width` of a beam that looks for its mode, where it needs one."""
        return self.law(scores, width=width)


@component("reverse")
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce [Zhang 2025, eq. 9]: any order, a row of scores for every place."""

    law, places = GeneralizedPlackettLuce, True


@component("reverse")
class ReversePointer(Reverse):
    """Place by place by what is at the places before [Vinyals 2015]: any law in a single step."""

    law, places, prefix = PointerLaw, True, True


@component("reverse")
class ReversePL(Reverse):
    """Plackett-Luce [Zhang 2025, eq. 8]: any order, a score for every item."""

    law = PlackettLuce


@component("reverse")
@dataclass(frozen=True)
class ReverseAssignment(Reverse):
    """Items are matched with places: a softmax for every place and the best assignment. No diffusion, a baseline.

    Args:
        iterations: of Sinkhorn's normalisation of the scores.

    Raises:
        ValueError: iterations below 0.
    """

    iterations: int = 0
    places = True

    def __post_init__(self) -> None:
        ensure(self.iterations >= 0, f"iterations must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """As `Reverse`."""
        return Matching(scores, self.iterations)


@component("reverse")
class ReverseRiffle(Reverse):
    """Items go to the left or the right packet: undoes one riffle [Zhang 2025, section 3.2.1]."""

    law, undoes = InverseRiffle, Riffle


@component("reverse")
class ReverseTransposition(Reverse):
    """Two items change places, or none: undoes one transposition [Zhang 2025, eq. 6]."""

    swap, undoes = True, RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """As `Reverse`."""
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@component("reverse")
class ReverseInsertion(Reverse):
    """One item goes to the end: undoes one insertion [Zhang 2025, eq. 7]."""

    law, undoes = InverseInsertion, RandomInsertion
