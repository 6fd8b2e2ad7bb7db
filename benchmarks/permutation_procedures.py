"""Baselines: shuffles, losses, beams and codes by the procedures of the papers.

They are written from the descriptions. [Zhang 2025]: riffles one by one from sorted uniforms,
targets recovered by comparing lists, the Plackett-Luce loss by a one-hot matrix product, and a beam
that copies its prefixes. [Severo 2025]: codes by loops over columns, and Fisher-Yates samples by
searching the deck.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


def walk_with_targets(n: int, batch: int, schedule: list[int]) -> tuple[Tensor, Tensor]:
    """Return the scheduled states and their targets, int64 [k, batch, n] each.

    Every riffle is done in turn; targets are found by pairwise distances.
    """
    order = torch.arange(n).expand(batch, n)
    states = [order]
    for t in range(1, schedule[-1] + 1):
        x = torch.rand(batch, n).sort(-1).values
        order = order.gather(1, torch.argsort(2 * x % 1, dim=-1))
        if t in schedule:
            states.append(order)
    targets = [
        (later[:, None, :] - earlier[:, :, None]).abs().argmin(-1)
        for earlier, later in pairwise(states)
    ]
    return torch.stack(states[1:]), torch.stack(targets)


def plackett_luce_log_prob(scores: Tensor, order: Tensor) -> Tensor:
    """Use a one-hot matrix [B, n, n] and a masked one."""
    n = scores.shape[-1]
    z = (torch.nn.functional.one_hot(order, n).to(scores) @ scores.unsqueeze(-1)).squeeze(-1)
    rows = z.unsqueeze(-2).repeat(1, n, 1)
    rows[:, torch.ones(n, n, dtype=torch.bool).tril(-1)] = -torch.inf
    return (z - rows.logsumexp(-1)).sum(-1)


def generalized_log_prob(scores: Tensor, order: Tensor) -> Tensor:
    """Gather columns and assign -inf with a boolean index."""
    n = scores.shape[-1]
    columns = scores.gather(-1, order.unsqueeze(-2).expand(-1, n, -1)).clone()
    diagonal = columns.diagonal(dim1=-2, dim2=-1)
    masked = columns.clone()
    masked[:, torch.ones(n, n, dtype=torch.bool).tril(-1)] = -torch.inf
    return (diagonal - masked.logsumexp(-1)).sum(-1)


def copying_beam(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Write prefixes out for every candidate, and search them for the added item."""
    batch, n, _ = scores.shape
    prefixes = torch.zeros(batch, 1, 0, dtype=torch.int64)
    total = torch.zeros(batch, 1)
    items = torch.arange(n)
    for i in range(n):
        used = (prefixes.unsqueeze(-1) == items).any(-2)
        row = scores[:, i, None].masked_fill(used, -torch.inf)
        candidate_scores = (total.unsqueeze(-1) + row.log_softmax(-1)).flatten(1)
        beams = prefixes.shape[1]
        candidates = torch.cat(
            [
                prefixes.unsqueeze(2).expand(batch, beams, n, i),
                items.view(1, 1, n, 1).expand(batch, beams, n, 1),
            ],
            -1,
        ).flatten(1, 2)
        total, which = candidate_scores.topk(min(width, candidate_scores.shape[1]))
        prefixes = candidates.gather(1, which.unsqueeze(-1).expand(-1, -1, i + 1))
    return prefixes, total


def lehmer_encode(x: Tensor, left: bool = False) -> Tensor:
    """Lower later values past earlier ones, column by column."""
    code = x.clone()
    n = x.shape[1]
    for i in reversed(range(1, n)) if left else range(n - 1):
        compared = slice(0, i) if left else slice(i + 1, n)
        code[:, compared] -= (code[:, compared] > code[:, i : i + 1]).long()
    return code


def lehmer_decode(code: Tensor, left: bool = False) -> Tensor:
    """Raise values past each other, column by column."""
    x = code.clone()
    n = code.shape[1]
    for i in range(1, n) if left else reversed(range(n - 1)):
        compared = slice(0, i) if left else slice(i + 1, n)
        x[:, compared] += (x[:, compared] >= x[:, i : i + 1]).long()
    return x


def fisher_yates_encode(x: Tensor) -> Tensor:
    """Search for every value in the deck."""
    batch, n = x.shape
    deck = torch.arange(n).repeat(batch, 1)
    rows = torch.arange(batch)
    code = torch.zeros_like(x)
    for i in range(n):
        j = (deck == x[:, i : i + 1]).nonzero()[:, 1]
        code[:, i] = j - i
        swapped = deck[:, i].clone()
        deck[:, i] = deck[rows, j]
        deck[rows, j] = swapped
    return code


def fisher_yates_decode(code: Tensor) -> Tensor:
    """Swap one column after another."""
    batch, n = code.shape
    deck = torch.arange(n).repeat(batch, 1)
    rows = torch.arange(batch)
    for i in range(n):
        j = i + code[:, i]
        left_item = deck[:, i].clone()
        right_item = deck[rows, j]
        deck[rows, j] = left_item
        deck[:, i] = right_item
    return deck


def insertion_encode(x: Tensor) -> Tensor:
    """Return the left code of the inverse."""
    return lehmer_encode(x.argsort(dim=-1), left=True)


def insertion_decode(code: Tensor) -> Tensor:
    """Invert the permutation of the left code."""
    return lehmer_decode(code, left=True).argsort(dim=-1)


def plain_walk(n: int, batch: int, schedule: list[int]) -> tuple[Tensor, Tensor]:
    """Return states and steps back, int64 [k, batch, n], with one a-shuffle per step.

    It is vectorised: float32 labels are sorted stably.
    """
    powers = torch.tensor([2.0 ** (b - a) for a, b in pairwise(schedule)]).view(-1, 1, 1)
    back = (torch.rand(len(powers), batch, n) * powers).floor().argsort(dim=-1, stable=True)
    states = [torch.empty_like(back[0]).scatter_(-1, back[0], torch.arange(n).expand(batch, n))]
    for step in back[1:]:
        states.append(
            states[-1].gather(
                -1, torch.empty_like(step).scatter_(-1, step, torch.arange(n).expand(batch, n))
            )
        )
    return torch.stack(states), back


def plain_greedy(scores: Tensor) -> Tensor:
    """Return the best remaining item place by place, int64 [batch, n], vectorised."""
    used = torch.zeros_like(scores[:, 0])
    order = list[Tensor]()
    for i in range(scores.shape[-1]):
        order.append((scores[:, i] + used).argmax(-1))
        used.scatter_(1, order[-1].unsqueeze(1), -torch.inf)
    return torch.stack(order, -1)


def plain_fisher_yates(digits: Tensor) -> Tensor:
    """Swap entries i and i + digit in all rows at once, in numpy."""
    n = digits.shape[1]
    code = digits.numpy()
    deck = np.tile(np.arange(n), (len(code), 1))
    rows = np.arange(len(code))
    for i in range(n - 1):
        partner = i + code[:, i]
        deck[:, i], deck[rows, partner] = deck[rows, partner], deck[:, i].copy()
    return torch.from_numpy(deck)


def plain_riffle_top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return orders [batch, k, n] of the k best choices of packets and their log-probabilities.

    The k best are kept digit by digit. Choices that lead to the same order are not merged.
    """
    total = scores.new_zeros(len(scores), 1)
    chosen = torch.empty(len(scores), 1, 0, dtype=torch.bool)
    for log_top, log_bottom in zip(
        *(torch.nn.functional.logsigmoid(sign * scores).unbind(1) for sign in (1, -1)), strict=True
    ):
        candidates = torch.cat([total + log_top.unsqueeze(1), total + log_bottom.unsqueeze(1)], 1)
        prefixes = total.shape[1]
        total, which = candidates.topk(min(k, candidates.shape[1]))
        prefix_digits = chosen.gather(
            1, (which % prefixes).unsqueeze(-1).expand(-1, -1, chosen.shape[-1])
        )
        chosen = torch.cat([prefix_digits, (which >= prefixes).unsqueeze(-1)], -1)
    return chosen.byte().argsort(dim=-1, stable=True), total


def plain_sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Subtract the log-sums of rows and columns in turn."""
    for _ in range(iterations):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores - scores.logsumexp(-1, keepdim=True)


def plain_soft_sort(values: Tensor, temperature: float) -> Tensor:
    """The published one-line definition."""
    return torch.softmax(
        -(values.sort(-1).values[..., :, None] - values[..., None, :]).abs() / temperature, -1
    )


def plain_neural_sort(values: Tensor, temperature: float) -> Tensor:
    """The published definition with matrices of ones, for numbers in rising order."""
    n = values.shape[-1]
    s = -values.unsqueeze(-1)
    ones = torch.ones(n, 1)
    scaling = n + 1 - 2 * torch.arange(1.0, n + 1)
    distances = (s - s.transpose(-1, -2)).abs() @ (ones @ ones.T)
    return torch.softmax((s * scaling - distances).transpose(-1, -2) / temperature, -1)


def plain_sorting_network(values: Tensor, steepness: float) -> Tensor:
    """Multiply the complete matrices of the layers of an odd-even network."""
    n = values.shape[-1]
    total = torch.eye(n).expand(*values.shape, n)
    for layer in range(n):
        lower = torch.arange(layer % 2, n - 1, 2)
        stays = (
            0.5 + torch.atan(steepness * (values[..., lower + 1] - values[..., lower])) / torch.pi
        )
        matrix = torch.eye(n).repeat(*values.shape[:-1], 1, 1)
        matrix[..., lower, lower] = matrix[..., lower + 1, lower + 1] = stays
        matrix[..., lower, lower + 1] = matrix[..., lower + 1, lower] = 1 - stays
        values = (matrix @ values.unsqueeze(-1)).squeeze(-1)
        total = matrix @ total
    return total
