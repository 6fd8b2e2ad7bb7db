"""Distributions on permutations, with the conventions of `torch.distributions`.

Four kinds, by how a network's scores are read:

- `PlackettLuce` and `GeneralizedPlackettLuce` choose the item of one position after another,
  `PointerDistribution` with scores that depend on the choices before. A beam search finds their
  most probable permutations.
- `Matching` assigns items to positions.
- `InverseRiffle`, `InverseTransposition` and `InverseInsertion` undo one step of a card shuffle.
- The `Reverse...` components, the choices of `reverse=`, turn the scores of a network into one of
  these.

Example:
    >>> import torch
    >>> distribution = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
    >>> distribution.mode.tolist()
    [1, 2, 0]
    >>> round(distribution.log_prob(distribution.mode).item(), 3)
    -0.721

References: Zhang et al. 2025 (SymmetricDiffusers), sections 3.2.1 and 3.2.2; Plackett 1975;
Luce 1959.
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
from blackout.representation import format_arguments

BEAM_WIDTH = 64  # prefixes that a beam search keeps, unless the caller says otherwise
MIN_UNIFORM = 2.0**-54  # half the spacing of uniforms, so that their logarithm is finite


class PermutationDistribution(Distribution):
    """A batch of distributions on the permutations of n items, with values int64 [..., n].

    A permutation takes a list x to x[permutation]: its i-th entry is the item that comes i-th. A
    subclass implements `log_prob`, `_sample` and `_candidates`.

    Args:
        scores: [..., n], or [..., n, n] if `score_dims` is 2; the dimensions before are the batch.
        score_dims: dimensions of the scores of one list, 1 or 2.
        min_items: smallest n that is allowed.
        width: smallest width of the beam search for `mode` and `top`, in classes that need one.

    Raises:
        ValueError: scores of another shape.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    __repr__ = format_arguments

    def __init__(
        self, scores: Tensor, score_dims: int = 1, min_items: int = 1, width: int = BEAM_WIDTH
    ) -> None:
        n = scores.shape[-1] if scores.ndim >= score_dims else 0
        if n < min_items or (score_dims == 2 and scores.shape[-2] != n):
            shape = ", ".join(["n"] * score_dims)
            raise ValueError(
                f"scores must be [..., {shape}] with n at least {min_items}, "
                f"not {list(scores.shape)}"
            )
        self.scores = scores
        self.width = width
        super().__init__(scores.shape[:-score_dims], Size((n,)), validate_args=False)

    def sample(  # type: ignore[override]
        self, sample_shape: Size = Size(), generator: RandomSource = None
    ) -> Tensor:
        """Draw permutations, int64 [*sample_shape, *batch, n].

        Args:
            sample_shape: as in `torch.distributions`.
            generator: source of random numbers. With streams, the first dimension of the batch is
                the index of the sample.
        """
        with torch.no_grad():
            return self._sample(tuple(sample_shape), generator)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k most probable permutations, or the best that a beam search finds.

        Args:
            k: how many.

        Returns:
            Permutations int64 [*batch, K, n] and log-probabilities [*batch, K], in falling order. K
            is at most k, and at most the largest number of possible permutations in the batch.
            Lists with fewer are padded with -1 and -inf, so that no permutation is invalid or
            occurs twice.

        Raises:
            ValueError: k < 1.
        """
        ensure(k >= 1, f"k must be at least 1, not {k}")
        with torch.no_grad():
            orders, log_probs = most_probable(*self._candidates(k), k)
        possible = log_probs > -torch.inf
        num_orders = int(possible.sum(-1).max()) if possible.numel() else 0
        orders = orders[..., :num_orders, :]
        possible = possible[..., :num_orders]
        return orders.masked_fill(~possible.unsqueeze(-1), -1), log_probs[..., :num_orders]

    @property
    def mode(self) -> Tensor:
        """The most probable permutation, int64 [*batch, n]."""
        return self.top(1)[0].squeeze(-2)

    @property
    def _n(self) -> int:
        return self.event_shape[0]

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations, int64 [*sample_shape, *batch, n], see `sample`."""
        raise NotImplementedError

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return permutations among which are the k most probable, int64 [*batch, M, n].

        With them come their log-probabilities [*batch, M]; -inf marks an entry that is no possible
        permutation.
        """
        raise NotImplementedError

    def _uniform(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource
    ) -> Tensor:
        """Draw positive float64 uniforms [*sample_shape, *batch, *event].

        With streams, the first dimension of the batch is the index of the sample; without a batch,
        the first dimension of `sample_shape` is.
        """
        device = self.scores.device
        if not isinstance(source, StepStreams):
            shape = (*sample_shape, *self.batch_shape, *event)
            return uniform(shape, source, device).clamp_(min=MIN_UNIFORM)
        if not self.batch_shape:
            u = uniform((*(sample_shape or (1,)), *event), source, device)
            return u.view(*sample_shape, *event)
        num_lists, *rest = self.batch_shape
        u = uniform((num_lists, *sample_shape, *rest, *event), source, device)
        return u.movedim(0, len(sample_shape))

    def _gumbel(
        self, sample_shape: tuple[int, ...], event: tuple[int, ...], source: RandomSource
    ) -> Tensor:
        """Draw standard Gumbel noise, float64 [*sample_shape, *batch, *event].

        The index of the largest score plus noise has the distribution softmax(scores).

        References: Mena et al. 2018, section 3.2.
        """
        return self._uniform(sample_shape, event, source).log_().neg_().log_().neg_()


def most_probable(orders: Tensor, log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most probable permutations and their log-probabilities, in falling order.

    Equal log-probabilities keep their order.

    Args:
        orders: int64 [..., M, n].
        log_probs: [..., M].
        k: how many; fewer are returned if M < k.

    References: this project; checked in tests/permutations/test_distributions.py.
    """
    log_probs, rank = log_probs.sort(dim=-1, descending=True, stable=True)
    return orders.take_along_dim(rank[..., :k, None], -2), log_probs[..., :k]


def independent_log_prob(log_probs: Tensor, digits: Tensor) -> Tensor:
    """Return the log-probability of digits that are independent, [...] of the common batch shape.

    Args:
        log_probs: of the V values of each digit, [..., n, V].
        digits: int64 [..., n].

    References: Severo et al. 2025, eq. 2 with a single block.
    """
    return gather_last(log_probs, digits.unsqueeze(-1)).squeeze(-1).sum(-1)


def gather_last(values: Tensor, index: Tensor) -> Tensor:
    """Gather along the last dimension, with broadcasting of the others.

    Args:
        values: [..., V].
        index: int64 [..., m].

    Returns:
        [..., m] of the common batch shape.
    """
    shape = np.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    return values.expand(*shape, -1).gather(-1, index.expand(*shape, -1))


def most_probable_bits(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k most probable values of n independent bits, exactly.

    The mode sets every bit to its more probable value. All others change some bits, and each change
    costs |logit| whatever the other bits are. A search bit by bit that keeps the k best is
    therefore exact. Only the k - 1 bits with the smallest |logit| can be changed in the k best:
    changing one of these alone gives k - 1 values that are at least as probable as any value with
    another bit changed.

    Args:
        logits: a bit is true with probability sigmoid(logit), [..., n].
        k: how many values.

    Returns:
        Values bool [..., K, n] and log-probabilities [..., K] in falling order; K is at most k, and
        the same for the whole batch.

    References: this project; checked in tests/permutations/test_distributions.py.
    """
    num_changeable = min(logits.shape[-1], max(k - 1, 1))
    costs, changeable = logits.abs().topk(num_changeable, largest=False)
    log_probs = F.logsigmoid(logits.abs()).sum(-1, keepdim=True)
    changed = torch.empty(*log_probs.shape, 0, dtype=torch.bool, device=log_probs.device)
    for cost in costs.split(1, -1):
        size = log_probs.shape[-1]
        # the first `size` candidates keep this bit, the others change it
        log_probs, candidate = torch.cat([log_probs, log_probs - cost], -1).topk(min(k, 2 * size))
        candidate = candidate.unsqueeze(-1)
        changed = torch.cat([changed.take_along_dim(candidate % size, -2), candidate >= size], -1)
    mode = (logits >= 0).unsqueeze(-2).expand(*log_probs.shape, -1)
    positions = changeable.unsqueeze(-2).expand_as(changed)
    return mode ^ torch.zeros_like(mode).scatter(-1, positions, changed), log_probs


PlaceScores: TypeAlias = Callable[[Tensor | None, Tensor | None], Tensor]
# (parent of each prefix int64 [N, K], its last item int64 [N, K]; None at the first position)
# -> scores of the items for the next position, [N, K, n]; [N, 1, n] if they do not depend on
# prefixes

Selection: TypeAlias = Callable[[int, Tensor], tuple[Tensor, Tensor]]
# (position, scores [N, K, n] with -inf for used items)
# -> (parent of each new prefix int64 [N, K'], its last item int64 [N, K'])


def build_orders(place_scores: PlaceScores, n: int, select: Selection) -> Tensor:
    """Build permutations position by position, by sampling or by beam search.

    A prefix is a pointer to its parent and the item that it adds, so that nothing is copied on the
    way. The permutations are traced back at the end.

    Args:
        place_scores: scores of the items for the next position.
        n: items.
        select: chooses the prefixes that continue, and the next item of each.

    Returns:
        Permutations int64 [N, K, n].

    References: this project; checked in tests/permutations/test_distributions.py.
    """
    # 1. choose the items
    parent: Tensor | None = None
    item: Tensor | None = None
    steps: list[tuple[Tensor, Tensor]] = []
    used = torch.zeros(())
    for position in range(n):
        scores = place_scores(parent, item)
        if position == 0:
            used = torch.zeros_like(scores, dtype=torch.bool)
        parent, item = select(position, scores.masked_fill(used, -torch.inf))
        used = used.gather(1, parent[..., None].expand(-1, -1, n))
        used.scatter_(2, item[..., None], True)
        steps.append((parent, item))
    # 2. trace them back from the last position
    prefix = torch.arange(used.shape[1], device=used.device).expand(used.shape[:2])
    orders = torch.empty(used.shape, dtype=torch.int64, device=used.device)
    for position, (parent, item) in reversed(list(enumerate(steps))):
        orders[..., position] = item.gather(1, prefix)
        prefix = parent.gather(1, prefix)
    return orders


class SequentialDistribution(PermutationDistribution):
    """A distribution that chooses one item after another, by a softmax over the items left.

    Its mode is intractable: `mode` and `top` are the results of a beam search, exact only if n! <=
        `width`.

    References: Zhang et al. 2025, eqs. 8 and 9.
    """

    def place_scores(self) -> PlaceScores:
        """Return the scores of the flattened batch, position by position.

        These are the rows of the scores [*batch, n, n].
        """
        rows = iter(self.scores.reshape(-1, 1, self._n, self._n).unbind(2))
        return lambda parent, item: next(rows)

    def _log_normaliser(self, scores: Tensor) -> Tensor:
        """Return the logsumexp over the items left, [N, K, 1].

        It is 0 for a prefix that no item can follow: its log-probability stays -inf, where -inf -
            -inf would be nan.
        """
        log_sum = scores.logsumexp(-1, keepdim=True)
        return log_sum.masked_fill_(log_sum == -torch.inf, 0.0)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations exactly, position by position with Gumbel noise.

        Raises:
            ValueError: earlier choices left no item for a position.
        """
        n = self._n
        noise = self._gumbel(sample_shape, (n, n), generator)
        noise = noise.reshape(-1, self.batch_shape.numel(), n, n).transpose(0, 1)
        no_item_left = torch.zeros(noise.shape[:2], dtype=torch.bool, device=noise.device)
        same_prefix = torch.arange(noise.shape[1], device=noise.device).expand(noise.shape[:2])

        def select(position: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """Choose the item with the largest score plus noise for every prefix."""
            value, item = (scores + noise[:, :, position]).max(-1)
            no_item_left.logical_or_(value == -torch.inf)
            parent = same_prefix if position > 0 else torch.zeros_like(same_prefix)
            return parent, item

        orders = build_orders(self.place_scores(), n, select)
        ensure(
            not bool(no_item_left.any()),
            "scores of -inf leave no item for a place: at least one must be finite",
        )
        return orders.transpose(0, 1).reshape(*sample_shape, *self.batch_shape, n)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the permutations that a beam search of width max(k, `width`) finds.

        The search is exact while it can keep all prefixes. Where fewer permutations are possible,
        the others have -inf and no meaning.

        References: Zhang et al. 2025, section 3.5 and appendix D.
        """
        n = self._n
        total = self.scores.new_zeros(self.batch_shape.numel(), 1)

        def select(position: int, scores: Tensor) -> tuple[Tensor, Tensor]:
            """Choose the most probable prefixes with one more item."""
            nonlocal total
            scores += total[..., None] - self._log_normaliser(scores)
            num_prefixes = min(max(k, self.width), scores.shape[1] * (n - position))
            total, flat = scores.flatten(1).topk(num_prefixes)
            return flat // n, flat % n

        orders = build_orders(self.place_scores(), n, select)
        return orders.view(*self.batch_shape, -1, n), total.view(*self.batch_shape, -1)


class PlackettLuce(SequentialDistribution):
    """The Plackett-Luce distribution: the next item has a probability proportional to exp(score).

    log p(order) = sum over i of z_i - log sum_{j >= i} exp(z_j), where z = scores[order]. Its mode
    is exact.

    Args:
        scores: finite log-worths, [..., n].
        width: width of the beam search of `top`; the first permutation, the mode, is always exact.

    Raises:
        ValueError: scores without items.

    References: Zhang et al. 2025, eq. 8; Plackett 1975; Luce 1959.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders, [...], in the dtype of the scores.

        Args:
            value: int64 [..., n], or [..., m] for orders of some of the items.

        References: Zhang et al. 2025, eq. 8.
        """
        z = gather_last(self.scores, value)
        return (z - z.flip(-1).logcumsumexp(-1).flip(-1)).sum(-1)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw permutations by sorting scores plus Gumbel noise."""
        noisy = self.scores + self._gumbel(sample_shape, (self._n,), generator)
        return noisy.argsort(dim=-1, descending=True, stable=True)

    @property
    def mode(self) -> Tensor:
        """The items by falling score, int64 [*batch, n]; equal scores by rising index."""
        return self.scores.argsort(dim=-1, descending=True, stable=True)

    def place_scores(self) -> PlaceScores:
        """Return the same scores for every position, see `SequentialDistribution.place_scores`."""
        return lambda parent, item: self.scores.reshape(-1, 1, self._n)


class GeneralizedPlackettLuce(SequentialDistribution):
    """The generalised Plackett-Luce (GPL) distribution: every position has its own scores.

    log p(order) = sum over i of S[i, order_i] - log sum_{j >= i} exp(S[i, order_j]). Adding a
    constant to a row changes nothing, and the last row has no effect; with equal rows it is
    Plackett-Luce. The scores of a row do not depend on earlier choices, so that one GPL
    distribution cannot represent every distribution; a chain of them can.

    Args:
        scores: S, [..., n, n]; rows are positions, columns are items, and -inf forbids an item at a
            position. Every sequence of earlier choices should leave an allowed item. Otherwise
            probability mass is lost, and `sample` raises an error if it gets there.
        width: smallest width of the beam search of `mode` and `top`; 1 is the greedy choice.

    Raises:
        ValueError: scores that are not square.

    References: Zhang et al. 2025, eq. 9.
    """

    def __init__(self, scores: Tensor, width: int = BEAM_WIDTH) -> None:
        super().__init__(scores, 2, width=width)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...]; -inf for a forbidden item.

        References: Zhang et al. 2025, eq. 9.
        """
        permuted = gather_last(self.scores, value.unsqueeze(-2))
        used = torch.ones(self._n, self._n, dtype=torch.bool, device=permuted.device).tril_(-1)
        # The lowest finite number in place of -inf, and one more column of it: a row whose allowed
        # items are all used keeps a finite normaliser, and its log-probability is not nan.
        lowest = torch.finfo(permuted.dtype).min
        padded = F.pad(permuted.masked_fill(used, lowest), (0, 1), value=lowest)
        return padded.log_softmax(-1).diagonal(dim1=-2, dim2=-1).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The most probable permutation that the search finds, int64 [*batch, n].

        For width 1 it is the greedy choice.
        """
        if self.width > 1:
            return super().mode
        rows = self.scores.reshape(-1, self._n, self._n)
        used = torch.zeros_like(rows[:, 0])  # -inf where an item is used
        items: list[Tensor] = []
        for position in range(self._n):
            item = (rows[:, position] + used).argmax(-1, keepdim=True)
            items.append(item)
            used.scatter_(-1, item, -torch.inf)
        if used.numel() and bool(used.amax() > -torch.inf):
            # a position had no allowed item left and took a used one
            return super().mode
        return torch.cat(items, -1).view(self.scores.shape[:-1])


class PointerDistribution(SequentialDistribution):
    """A distribution whose scores depend on all earlier choices, as those of a pointer network.

    It can represent every distribution on permutations.

    Args:
        pointers: scores for the lists of a batch, see `blackout.networks.set_transformer.Pointers`.
        scores: [*batch, n]; only their shape, device and dtype are used.
        width: smallest width of the beam search.

    References: Vinyals et al. 2015.
    """

    def __init__(self, pointers: Any, scores: Tensor, width: int = BEAM_WIDTH) -> None:
        super().__init__(scores, width=width)
        self.pointers = pointers

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...].

        One network evaluation has the scores of all positions.
        """
        shape = np.broadcast_shapes(value.shape[:-1], self.batch_shape)
        orders = value.expand(*shape, self._n).reshape(-1, self.batch_shape.numel(), self._n)
        conditional = GeneralizedPlackettLuce(self.pointers.score_orders(orders))
        return conditional.log_prob(orders).view(shape)

    def place_scores(self) -> PlaceScores:
        """Return the scores position by position, see `SequentialDistribution.place_scores`."""
        return self.pointers.next_scores()


class Matching(SequentialDistribution):
    """Independent choices of an item for every position, restricted to permutations.

    log p(order) = sum over i of log M[i, order_i], where M is exp(scores) after Sinkhorn
    normalisation, with a softmax of each row at the end. The exact distribution on permutations
    would divide by the permanent of M, which is intractable; here the probabilities of all
    permutations sum to less than 1, and -log p is an upper bound.

    `mode`, and the first result of `top`, are exact by linear assignment; the others come from a
    beam search. `sample` draws from the Gumbel-Matching distribution, the best assignment of scores
    plus Gumbel noise, which is not the distribution of `log_prob`.

    Args:
        scores: finite, [..., n, n]; rows are positions and columns are items.
        iterations: Sinkhorn iterations; 0 for one softmax per position.

    Raises:
        ValueError: scores that are not square, or iterations < 0.

    References: Mena et al. 2018, sections 2 and 3.2.
    """

    def __init__(self, scores: Tensor, iterations: int = 0) -> None:
        super().__init__(scores, 2)
        self._unnormalised = scores
        self.scores = sinkhorn(scores, iterations)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of all positions, [...], for orders [..., n]."""
        return independent_log_prob(self.scores, value)

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw from the Gumbel-Matching distribution (Mena et al. 2018, section 3.2)."""
        return best_assignment(self.perturbed_scores(sample_shape, generator))

    def perturbed_scores(
        self, sample_shape: tuple[int, ...], generator: RandomSource = None
    ) -> Tensor:
        """Return the unnormalised scores plus Gumbel noise, [*sample_shape, *batch, n, n]."""
        noise = self._gumbel(sample_shape, (self._n, self._n), generator)
        return self._unnormalised + noise.to(self.scores.dtype)

    @property
    def mode(self) -> Tensor:
        """The best assignment, int64 [*batch, n]."""
        return best_assignment(self.scores)

    def _log_normaliser(self, scores: Tensor) -> Tensor:
        """Return 0: the choice at a position does not depend on the items left."""
        return scores.new_zeros(())

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the best assignment, and the other permutations that the beam search finds."""
        orders, log_probs = super()._candidates(k)
        mode = self.mode.unsqueeze(-2)
        mode_log_prob = self.log_prob(mode.squeeze(-2)).unsqueeze(-1)
        log_probs = log_probs.masked_fill((orders == mode).all(-1), -torch.inf)
        return torch.cat([mode, orders], -2), torch.cat([mode_log_prob, log_probs], -1)


def best_assignment(scores: Tensor) -> Tensor:
    """Return the permutations with the largest sum of scores[i, order_i], int64 [..., n].

    Scores are [..., n, n].
    """
    from scipy.optimize import linear_sum_assignment

    matrices = scores.detach().reshape(-1, *scores.shape[-2:]).cpu().double().numpy()
    columns = np.stack([linear_sum_assignment(matrix, maximize=True)[1] for matrix in matrices])
    return torch.from_numpy(columns).view(scores.shape[:-1]).to(scores.device)


class InverseRiffle(PermutationDistribution):
    """The inverse of a riffle shuffle.

    Every item goes to the left packet with probability sigmoid(score). The result is the left
    packet followed by the right one, each in its present order. A permutation with one descent
    comes from exactly one choice of packets, and one with more descents from none. The identity
    comes from n + 1 choices: the first k items left, the others right. With scores 0 it is the
    inverse of the riffle itself.

    Args:
        scores: [..., n].

    Raises:
        ValueError: scores without items.

    References: Zhang et al. 2025, section 3.2.1.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...]; -inf for more than one descent."""
        cut_log_probs = self._cut_log_probs(gather_last(self.scores, value))
        is_descent = value[..., 1:] < value[..., :-1]
        num_descents = is_descent.sum(-1)
        # the padding gives a list of one item something to look at
        cut = 1 + F.pad(is_descent.int(), (0, 1)).argmax(-1)
        identity = cut_log_probs.logsumexp(-1)
        one_descent = gather_last(cut_log_probs, cut.unsqueeze(-1)).squeeze(-1)
        log_prob = torch.where(num_descents == 0, identity, one_descent)
        return log_prob.masked_fill(num_descents > 1, -torch.inf)

    def _cut_log_probs(self, z: Tensor) -> Tensor:
        """Return the log-probability that exactly the first k items go left, [..., n + 1].

        The last axis is k = 0..n.

        Args:
            z: scores of a list, [..., n].
        """
        log_left = F.logsigmoid(z)
        log_right = F.logsigmoid(-z)
        return F.pad(log_left.cumsum(-1), (1, 0)) + F.pad(
            log_right.flip(-1).cumsum(-1).flip(-1), (0, 1)
        )

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw the packet of every item."""
        u = self._uniform(sample_shape, (self._n,), generator)
        return _stack_packets(u < torch.sigmoid(self.scores.double()))

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the identity, and the permutations of the most probable choices of packets.

        At least k of them have a descent; the n + 1 choices that give the identity are counted
        once.
        """
        for num_choices in (k + 2, 2 * k + 4, k + self._n + 1):  # few are often enough
            is_left, log_probs = most_probable_bits(self.scores, num_choices)
            is_identity = (is_left[..., 1:] <= is_left[..., :-1]).all(-1)
            if bool(((~is_identity).sum(-1) >= k).all()):
                break
        orders = _stack_packets(is_left)
        identity = torch.arange(self._n, device=orders.device).expand(*self.batch_shape, 1, self._n)
        identity_log_prob = self._cut_log_probs(self.scores).logsumexp(-1, keepdim=True)
        log_probs = log_probs.masked_fill(is_identity, -torch.inf)
        return torch.cat([identity, orders], -2), torch.cat([identity_log_prob, log_probs], -1)


def _stack_packets(in_left: Tensor) -> Tensor:
    """Return the permutations that put the left packet first, int64 [..., n], for bool [..., n]."""
    return (~in_left).to(torch.uint8).argsort(dim=-1, stable=True)


class InverseTransposition(PermutationDistribution):
    """The inverse of a random transposition: no change, or a swap of two items.

    The two items are chosen without replacement.

    p(identity) = 1 - sigmoid(swap), and p((i j)) = sigmoid(swap) (w_i w_j / (1 - w_i) + w_j w_i /
    (1 - w_j)) with w = softmax(scores).

    Args:
        scores: finite, [..., n], n at least 2.
        swap: logit of a swap, [...].

    Raises:
        ValueError: fewer than two items, or shapes that do not fit.

    References: Zhang et al. 2025, eq. 6.
    """

    def __init__(self, scores: Tensor, swap: Tensor) -> None:
        super().__init__(scores, min_items=2)
        if swap.shape != self.batch_shape:
            raise ValueError(
                f"swap must have the shape {list(self.batch_shape)} of the batch, "
                f"not {list(swap.shape)}"
            )
        self.swap = swap
        self._log_w = scores.log_softmax(-1)
        # log(1 - w_i). For the largest weight it is computed from the other weights, because
        # 1 - w_i would cancel.
        largest = scores.argmax(-1, keepdim=True)
        without_largest = scores.scatter(-1, largest, -torch.inf)
        log_sum = scores.logsumexp(-1, keepdim=True)
        log_others = without_largest.logsumexp(-1, keepdim=True) - log_sum
        log_rest = torch.log1p(-self._log_w.scatter(-1, largest, -torch.inf).exp())
        self._log_rest = log_rest.scatter(-1, largest, log_others)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...]; -inf if more than two items move.

        References: Zhang et al. 2025, eq. 6.
        """
        moves = value != identity_like(value)
        num_moves = moves.sum(-1)
        i = moves.int().argmax(-1, keepdim=True)
        # any other item if this is no transposition; the value is not used then
        j = torch.where(num_moves.unsqueeze(-1) == 2, value.gather(-1, i), 1 - i.clamp(max=1))
        identity = F.logsigmoid(-self.swap)
        transposition = F.logsigmoid(self.swap) + self._pair_log_prob(i, j).squeeze(-1)
        transposition = transposition.masked_fill(num_moves != 2, -torch.inf)
        return torch.where(num_moves == 0, identity, transposition)

    def _pair_log_prob(self, i: Tensor, j: Tensor) -> Tensor:
        """Return log(w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j)) of pairs of items, [..., k].

        The items i and j are int64 [..., k].
        """
        log_factor = torch.logaddexp(
            -gather_last(self._log_rest, i), -gather_last(self._log_rest, j)
        )
        return gather_last(self._log_w, i) + gather_last(self._log_w, j) + log_factor

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw whether to swap, and the pair by the two largest scores plus Gumbel noise."""
        u = self._uniform(sample_shape, (1,), generator)
        swaps = u < self.swap.double().sigmoid().unsqueeze(-1)
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        i, j = noisy.topk(2).indices.split(1, -1)
        j = torch.where(swaps, j, i)
        identity = torch.arange(self._n, device=i.device).expand(noisy.shape)
        return identity.scatter(-1, i, j).scatter(-1, j, i)

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the identity and all n (n - 1) / 2 transpositions."""
        i, j = torch.triu_indices(self._n, self._n, 1, device=self.scores.device)
        orders = torch.arange(self._n, device=i.device).repeat(len(i) + 1, 1)
        row = torch.arange(1, len(i) + 1, device=i.device)
        orders[row, i] = j
        orders[row, j] = i
        identity = F.logsigmoid(-self.swap).unsqueeze(-1)
        transpositions = F.logsigmoid(self.swap).unsqueeze(-1) + self._pair_log_prob(i, j)
        log_probs = torch.cat([identity, transpositions], -1)
        return orders.expand(*self.batch_shape, *orders.shape), log_probs


class InverseInsertion(PermutationDistribution):
    """The inverse of a random insertion.

    Item i moves to the end with probability softmax(scores)_i.

    Args:
        scores: finite, [..., n].

    Raises:
        ValueError: scores without items.

    References: Zhang et al. 2025, eq. 7.
    """

    @property
    def _log_w(self) -> Tensor:
        """The log of softmax(scores), [*batch, n]."""
        return self.scores.log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of orders [..., n], [...].

        It is -inf unless a single item moved to the end.

        References: Zhang et al. 2025, eq. 7.
        """
        item = value[..., -1:]
        is_possible = (self._move_to_end(item) == value).all(-1)
        return gather_last(self._log_w, item).squeeze(-1).masked_fill(~is_possible, -torch.inf)

    def _move_to_end(self, item: Tensor) -> Tensor:
        """Return the permutation that moves an item [..., 1] to the end, int64 [..., n]."""
        position = torch.arange(self._n, device=item.device)
        return torch.where(position == self._n - 1, item, position + (position >= item))

    def _sample(self, sample_shape: tuple[int, ...], generator: RandomSource) -> Tensor:
        """Draw the item by the largest score plus Gumbel noise."""
        noisy = self._log_w + self._gumbel(sample_shape, (self._n,), generator)
        return self._move_to_end(noisy.argmax(-1, keepdim=True))

    def _candidates(self, k: int) -> tuple[Tensor, Tensor]:
        """Return all n possible permutations."""
        items = torch.arange(self._n, device=self.scores.device).expand(*self.batch_shape, self._n)
        return self._move_to_end(items.unsqueeze(-1)), self._log_w


class Reverse:
    """How the scores of a network become the distribution of one reverse step."""

    distribution: ClassVar[type[PermutationDistribution]]  # of these scores
    # whether scores are [..., n, n], one row per position, or [..., n]
    places: ClassVar[bool] = False
    # whether the network returns one more score per list, [..., n + 1]
    swap: ClassVar[bool] = False
    # whether the scores of a position depend on earlier choices
    prefix: ClassVar[bool] = False
    # the only shuffle that it can undo, in single steps; None if it reaches every permutation
    inverts: ClassVar[type[Shuffle] | None] = None

    __repr__ = format_arguments

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the distribution.

        Args:
            scores: of a network; the class attributes say of which shape.
            width: smallest width of the beam search for the mode, if it needs one.
        """
        return self.distribution(scores, width=width)


@component("reverse")
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce: any permutation, one row of scores per position.

    References: Zhang et al. 2025, eq. 9.
    """

    distribution = GeneralizedPlackettLuce
    places = True


@component("reverse")
class ReversePointer(Reverse):
    """A pointer network: scores that depend on earlier choices; any distribution in a single step.

    References: Vinyals et al. 2015.
    """

    distribution = PointerDistribution
    places = True
    prefix = True


@component("reverse")
class ReversePL(Reverse):
    """Plackett-Luce: any permutation, one score per item.

    References: Zhang et al. 2025, eq. 8.
    """

    distribution = PlackettLuce


@component("reverse")
@dataclass(frozen=True)
class ReverseAssignment(Reverse):
    """Linear assignment: one softmax per position and the best matching of items.

    This is a baseline without diffusion.

    Args:
        iterations: Sinkhorn iterations that normalise the scores.

    Raises:
        ValueError: iterations < 0.

    References: Mena et al. 2018.
    """

    iterations: int = 0
    places = True

    def __post_init__(self) -> None:
        ensure(self.iterations >= 0, f"iterations must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the matching; `width` is ignored."""
        return Matching(scores, self.iterations)


@component("reverse")
class ReverseRiffle(Reverse):
    """Undo one riffle: every item goes to the left or the right packet.

    References: Zhang et al. 2025, section 3.2.1.
    """

    distribution = InverseRiffle
    inverts = Riffle


@component("reverse")
class ReverseTransposition(Reverse):
    """Undo one random transposition: swap two items, or none.

    References: Zhang et al. 2025, eq. 6.
    """

    swap = True
    inverts = RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the distribution of scores whose last entry is the logit of a swap.

        `width` is ignored.
        """
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@component("reverse")
class ReverseInsertion(Reverse):
    """Undo one random insertion: move one item to the end.

    References: Zhang et al. 2025, eq. 7.
    """

    distribution = InverseInsertion
    inverts = RandomInsertion
    prefix: ClassVar[bool] = False
