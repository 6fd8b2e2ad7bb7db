"""Pictures put together by the borders of their pieces, without learning: for any grid and any size of pieces. Ours.

A border is compared with what its neighbour's would be if colours went on as they do at its edge. How much better two
pieces fit than each fits the others says how likely they are neighbours; a beam looks for the arrangement whose
neighbours are likeliest together. Checked by enumeration in `tests.permutations.test_seams`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import refuse
from blackout.permutations.distributions import foremost

SHARPNESS = 5.0
"""Of `seams`: 5, 10, 15, 25 solve 94.8, 93.4, 92.6, 91.0 % of 3x3 CIFAR-10 jigsaws."""
WIDTH = 400
"""Of the beam: at 4x4 pieces of CIFAR-10 100, 400, 1500 miss the best arrangement of 19, 9, 6 % of puzzles."""
_TRIED = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4)
_NEVER, _JOINED = -1e4, 16


def seams(pieces: Tensor, sharpness: float = SHARPNESS) -> Tensor:
    """How likely piece j is the right, and the lower, neighbour of piece i, float32 [b, 2, n, n]. Ours
    (tests/permutations/test_seams.py).

    log softmax over j plus log softmax over i of minus the difference at the border, in units of the mean difference.

    Args:
        pieces: [b, n, C, h, w].
        sharpness: how many of these units make a difference of e.
    """
    found = []
    for x in (pieces.float(), pieces.float().transpose(-1, -2)):
        right, left = (edge + 0.5 * (edge - next_) for edge, next_ in (_edges(x, -1, -2), _edges(x, 0, 1)))
        difference = torch.cdist(right.flatten(2), left.flatten(2), p=1.0)
        n = difference.shape[-1]
        itself = torch.eye(n, dtype=torch.bool, device=x.device)
        mean = difference.masked_fill(itself, 0.0).sum((-1, -2), keepdim=True) / (n * (n - 1))
        found.append(_both_ways(-sharpness * difference / mean.clamp(min=1e-9)))
    return torch.stack(found, 1)


def _both_ways(scores: Tensor) -> Tensor:
    """log softmax over columns plus log softmax over rows of [b, n, n], without the diagonal: of `seams`."""
    itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    scores = scores.masked_fill(itself, -torch.inf)
    return (scores.log_softmax(-1) + scores.log_softmax(-2)).masked_fill(itself, _NEVER)


@component("network")
class SeamNetwork(nn.Module):
    """How likely pieces are neighbours, as `seams` says, but learned; and by itself, where each piece belongs.

    A perceptron on two pieces and on how they differ at their border, as they are and as colours would go on: one for
    right neighbours and, of transposed pieces, for lower ones. The grid does not matter to that. Ours
    (tests/permutations/test_seams.py).

    Args:
        item_shape: (C, h, h).
        num_items: n.
        features: hidden ones.

    Raises:
        ValueError: what is no square piece of at least 2x2 pixels.
    """

    def __init__(self, item_shape: Sequence[int], num_items: int, features: int = 48) -> None:
        super().__init__()
        if len(item_shape) != 3 or item_shape[1] != item_shape[2] or item_shape[1] < 2:
            raise ValueError(f"borders are of square pieces (C, h, h) of at least 2x2 pixels, not {list(item_shape)}")
        self.num_items, size = num_items, math.prod(item_shape)
        self.before, self.after = nn.Linear(size, features), nn.Linear(size, features, bias=False)
        self.across = nn.Linear(2 * item_shape[0] * item_shape[1], features, bias=False)
        self.out = nn.Linear(features, 1)
        self.where = nn.Sequential(nn.Linear(size, 2 * features), nn.ReLU(), nn.Linear(2 * features, num_items))

    def encode(self, items: Tensor) -> Tensor:
        """The pieces [b, n, C, h, w] in units of their picture's deviation.

        See the class.
        """
        x = items.float()
        mean, std = x.mean((1, 2, 3, 4), keepdim=True), x.std((1, 2, 3, 4), keepdim=True)
        return (x - mean) / std.clamp(min=1e-3)

    def scores(self, features: Tensor, t: Tensor) -> Tensor:
        """Every piece's scores by itself for every place, [b, n places, n pieces]."""
        return self.where(features.flatten(2)).transpose(1, 2)

    forward = scores

    def seams(self, features: Tensor) -> Tensor:
        """As `blackout.permutations.seams.seams`, of pieces from `encode`: [b, 2, n, n]."""
        return torch.stack([_both_ways(self._beside(x)) for x in (features, features.transpose(-1, -2))], 1)

    def _beside(self, x: Tensor) -> Tensor:
        """Scores that j comes right of i, [b, n, n], of pieces [b, n, C, h, w]: the perceptron of the class."""
        edges = _edges(x, -1, -2), _edges(x, 0, 1)
        ends = [torch.cat([edge + 0.5 * (edge - next_), edge], 2).flatten(2) for edge, next_ in edges]
        differ = self.across((ends[0].unsqueeze(2) - ends[1].unsqueeze(1)).abs())
        near = self.before(x.flatten(2)).unsqueeze(2) + self.after(x.flatten(2)).unsqueeze(1)
        return self.out(F.relu(near + differ)).squeeze(-1)


def fit(found: Tensor, columns: int, orders: Tensor) -> Tensor:
    """The sums over neighbours of `seams` [b, 2, n, n] of arrangements [b, n], [b]. Ours
    (tests/permutations/test_seams.py).
    """
    place, row = torch.arange(found.shape[-1], device=found.device), torch.arange(len(found)).unsqueeze(-1)
    right, below = place[place % columns < columns - 1], place[:-columns]
    beside = found[row, 0, orders[:, right], orders[:, right + 1]].sum(-1)
    return beside + found[row, 1, orders[:, below], orders[:, below + columns]].sum(-1)


def _edges(x: Tensor, first: int, second: int) -> tuple[Tensor, Tensor]:
    """A column at a border and the one beside it, [b, n, C, h]; itself where there is only one. Of `seams`."""
    return x[..., first], x[..., second if x.shape[-1] > 1 else first]


def arrangements(
    found: Tensor, columns: int, width: int = WIDTH, places: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The best arrangements row by row that a beam finds, int64 [b, K, n], and their sums [b, K], falling.

    Ours (tests/permutations/test_seams.py).

    Args:
        found: `seams`, [b, 2, n, n].
        columns: of the grid.
        width: of the beam: partial arrangements that go on from place to place.
        places: what else speaks for item j at place i, [b, n, n].
    """
    b, _, n, _ = found.shape
    rows, device = torch.arange(b, device=found.device).unsqueeze(-1), found.device
    total, orders = torch.zeros(b, 1, device=device), torch.zeros(b, 1, 0, dtype=torch.int64, device=device)
    used = torch.zeros(b, 1, n, dtype=torch.bool, device=device)
    for i in range(n):
        scores = total.unsqueeze(-1).expand(-1, -1, n)
        if places is not None:
            scores = scores + places[:, i].unsqueeze(1)
        if i % columns:
            scores = scores + found[rows, 0, orders[..., -1]]
        if i >= columns:
            scores = scores + found[rows, 1, orders[..., -columns]]
        scores = scores.masked_fill(used, -torch.inf).flatten(1)
        total, flat = scores.topk(min(width, total.shape[1] * (n - i)))
        parent, item = flat // n, flat % n
        orders = torch.cat([orders[rows, parent], item.unsqueeze(-1)], -1)
        used = used[rows, parent].scatter(-1, item.unsqueeze(-1), True)
    return orders, total


def assembled(found: Tensor, columns: int, width: int = WIDTH, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `arrangements`, int64 [b, K, n] and sums [b, K]; from 16 pieces on with that of `joined` among them.

    It is put first where its sum is largest. Ours (tests/permutations/test_seams.py).
    """
    orders, sums = arrangements(found, columns, width, places)
    b, n = len(found), found.shape[-1]
    if n < _JOINED:
        return orders, sums
    own = torch.from_numpy(np.stack([joined(one, columns) for one in found.detach().cpu().double().numpy()]))
    own = own.to(found.device)
    place, row = torch.arange(n, device=found.device), torch.arange(b, device=found.device).unsqueeze(-1)
    total = fit(found, columns, own)
    if places is not None:
        total = total + places[row, place, own].sum(-1)
    again = (orders == own.unsqueeze(1)).all(-1)
    sums = torch.cat([total.unsqueeze(-1), sums.masked_fill(again, -torch.inf)], 1)
    return foremost(torch.cat([own.unsqueeze(1), orders], 1), sums, width)


def joined(found: np.ndarray, columns: int) -> np.ndarray:
    """One arrangement, int64 [n]: the likeliest neighbours are joined first, wherever on the grid they will come.

    Parts that would overlap, or not fit the grid, stay apart; what is left over at the end goes where it fits best
    [Gallagher 2012].

    Args:
        found: `seams` of one picture, [2, n, n].
        columns: of the grid.
    """
    n = found.shape[-1]
    limits = (n // columns, columns)
    part, cell = np.arange(n), np.zeros((n, 2), dtype=np.int64)
    for edge in (-found).argsort(axis=None, kind="stable").tolist():
        down, i, j = edge // n**2, edge // n % n, edge % n
        if part[i] == part[j]:
            continue
        theirs = part == part[j]
        moved = cell[theirs] + cell[i] - cell[j] + (down, 1 - down)
        both = np.concatenate([cell[part == part[i]], moved])
        both -= both.min(0)
        if (both.max(0) < limits).all() and np.bincount(both @ (columns, 1)).max() == 1:
            part[theirs], cell[theirs] = part[i], moved
    largest = part == np.bincount(part).argmax()
    order = np.full(limits, -1)
    order[tuple((cell[largest] - cell[largest].min(0)).T)] = largest.nonzero()[0]
    rest = set((~largest).nonzero()[0].tolist())
    while rest:
        left_over, around = np.array(sorted(rest)), np.pad(order, 1, constant_values=-1)
        best = (-np.inf, 0, 0, 0)
        for r, c in zip(*np.nonzero(order < 0), strict=True):
            before, after = (around[r + 1, c], around[r, c + 1]), (around[r + 1, c + 2], around[r + 2, c + 1])
            terms = [found[d, p, left_over] for d, p in enumerate(before) if p >= 0]
            terms += [found[d, left_over, p] for d, p in enumerate(after) if p >= 0]
            if terms:
                fit = np.mean(terms, axis=0)
                best = max(best, (float(fit.max()), int(r), int(c), int(left_over[fit.argmax()])))
        order[best[1], best[2]] = best[3]
        rest.remove(best[3])
    return order.ravel()


def fitted_weight(pieces: Tensor, columns: int) -> float:
    """What sums of `arrangements` are to be multiplied by so that the right one is likeliest among those found.

    Near 1 for photographs, less where borders say less than they seem to. Ours (tests/permutations/test_seams.py).

    Args:
        pieces: [b, n, C, h, w] in their right order.
        columns: of the grid.
    """
    n = pieces.shape[1]
    found, truth = seams(pieces), torch.arange(n)
    orders, sums = arrangements(found, columns)
    own = fit(found, columns, truth.expand(len(found), n))
    others = sums.masked_fill((orders == truth).all(-1), -torch.inf)
    both = torch.cat([own.unsqueeze(-1), others], 1)
    return max(_TRIED, key=lambda weight: float((weight * both).log_softmax(-1)[:, 0].sum()))


def square(number: int) -> int:
    """Pieces per side.

    Raises:
        UserError: so many do not make a square.
    """
    side = math.isqrt(number)
    refuse(side**2 != number, f"sampler: {number} pieces make no square, whose borders could be compared")
    return side
