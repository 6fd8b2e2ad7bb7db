"""The distribution that undoes one riffle shuffle.

References: Zhang et al. 2025, section 3.2.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.permutations.distributions.base import PermutationDistribution, gather_last
from blackout.random import RandomSource


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

    References: this project; checked in tests/permutations/distributions/test_distributions.py.
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
