"""Jigsaws put together by the borders of their pieces, without learning.

The grid and the pieces may have any size.

The colours on both sides of a border are extended linearly to its middle and compared there. A
softmax over the other pieces turns the differences into scores of neighbours. A beam search, and
for larger puzzles greedy merging, looks for the arrangement with the largest sum of scores.

References: this project; checked by enumeration in tests/permutations/test_borders.py.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.errors import refuse
from blackout.permutations.distributions import most_probable

# Logits per mean difference between two borders of the puzzle. On training puzzles of CIFAR-10,
# values of 2, 5, 10 and 20 solve 95.1, 94.6, 93.0 and 91.1 % (± 0.7 to 0.9) of 1,000 in 3x3
# pieces, and 77, 83, 83 and 81 % (± 3) of 200 in 4x4 pieces.
SHARPNESS = 5.0
# On CIFAR-10 in 4x4 pieces, widths of 100, 400 and 1500 miss the best arrangement of 19, 9 and 6 %.
BEAM_WIDTH = 400
# With 9 pieces the beam alone misses the best arrangement of 1 in 1,000 puzzles.
MIN_PIECES_TO_MERGE = 16
SELF_SCORE = -1e4  # score of a piece as its own neighbour


def neighbour_scores(pieces: Tensor, sharpness: float = SHARPNESS) -> Tensor:
    """Score every pair of pieces as right-hand neighbours and as lower neighbours.

    A score is the sum of two log-softmaxes of minus the difference at the border, in units of the
    mean difference. One is over all right neighbours of the left piece, the other over all left
    neighbours of the right piece.

    Args:
        pieces: pixels, [b, n, C, h, w].
        sharpness: logits per mean difference.

    Returns:
        float32 [b, 2, n, n]; entry [b, 0, i, j] is that of piece j to the right of piece i, [b, 1,
        i, j] that below it.
    """
    scores = []
    for x in (pieces.float(), pieces.float().transpose(-1, -2)):
        right = _extended_edge(x, -1, -2)
        left = _extended_edge(x, 0, 1)
        difference = torch.cdist(right.flatten(2), left.flatten(2), p=1.0)
        n = difference.shape[-1]
        diagonal = torch.eye(n, dtype=torch.bool, device=x.device)
        mean = difference.masked_fill(diagonal, 0.0).sum((-1, -2), keepdim=True) / (n * (n - 1))
        logits = (-sharpness * difference / mean.clamp(min=1e-9)).masked_fill(diagonal, -torch.inf)
        log_probs = logits.log_softmax(-1) + logits.log_softmax(-2)
        scores.append(log_probs.masked_fill(diagonal, SELF_SCORE))
    return torch.stack(scores, 1)


def _extended_edge(x: Tensor, edge: int, inner: int) -> Tensor:
    """Extrapolate the column `edge` outwards by half a pixel, [b, n, C, h].

    The extrapolation is linear, through `edge` and its neighbour `inner`.
    """
    column = x[..., edge]
    if x.shape[-1] == 1:
        return column
    return column + 0.5 * (column - x[..., inner])


def arrangement_scores(scores: Tensor, columns: int, orders: Tensor) -> Tensor:
    """Sum the scores of all neighbours in arrangements, [b].

    Args:
        scores: `neighbour_scores`, [b, 2, n, n].
        columns: of the grid.
        orders: the piece at every place, row by row, int64 [b, n].
    """
    place = torch.arange(scores.shape[-1], device=scores.device)
    row = torch.arange(len(scores), device=scores.device).unsqueeze(-1)
    has_right = place[place % columns < columns - 1]
    has_below = place[:-columns]
    right = scores[row, 0, orders[:, has_right], orders[:, has_right + 1]].sum(-1)
    below = scores[row, 1, orders[:, has_below], orders[:, has_below + columns]].sum(-1)
    return right + below


def search_arrangements(
    scores: Tensor, columns: int, width: int = BEAM_WIDTH
) -> tuple[Tensor, Tensor]:
    """Search arrangements place by place, row by row, with a beam.

    Args:
        scores: `neighbour_scores`, [b, 2, n, n].
        columns: of the grid.
        width: number of partial arrangements kept at every place.

    Returns:
        Arrangements, the best first, int64 [b, K, n], and their sums of scores [b, K].
    """
    b, _, n, _ = scores.shape
    device = scores.device
    rows = torch.arange(b, device=device).unsqueeze(-1)
    total = torch.zeros(b, 1, device=device)
    orders = torch.zeros(b, 1, 0, dtype=torch.int64, device=device)
    used = torch.zeros(b, 1, n, dtype=torch.bool, device=device)
    for i in range(n):
        extended = total.unsqueeze(-1).expand(-1, -1, n)
        if i % columns:
            extended = extended + scores[rows, 0, orders[..., -1]]
        if i >= columns:
            extended = extended + scores[rows, 1, orders[..., -columns]]
        extended = extended.masked_fill(used, -torch.inf).flatten(1)
        total, flat = extended.topk(min(width, total.shape[1] * (n - i)))
        parent = flat // n
        piece = flat % n
        orders = torch.cat([orders[rows, parent], piece.unsqueeze(-1)], -1)
        used = used[rows, parent].scatter(-1, piece.unsqueeze(-1), True)
    return orders, total


def solve_by_borders(
    scores: Tensor, columns: int, width: int = BEAM_WIDTH
) -> tuple[Tensor, Tensor]:
    """Find the best arrangements by the beam search and, of 16 pieces or more, by greedy merging.

    Args:
        scores: `neighbour_scores`, [b, 2, n, n].
        columns: of the grid.
        width: of the beam.

    Returns:
        Arrangements, the best first, int64 [b, K, n], and their sums of scores [b, K].
    """
    orders, sums = search_arrangements(scores, columns, width)
    if scores.shape[-1] < MIN_PIECES_TO_MERGE:
        return orders, sums
    matrices = scores.detach().cpu().double().numpy()
    merged_orders = [merge_greedily(matrix, columns) for matrix in matrices]
    order = torch.from_numpy(np.stack(merged_orders)).to(scores.device)
    total = arrangement_scores(scores, columns, order)
    duplicate = (orders == order.unsqueeze(1)).all(-1)
    sums = torch.cat([total.unsqueeze(-1), sums.masked_fill(duplicate, -torch.inf)], 1)
    return most_probable(torch.cat([order.unsqueeze(1), orders], 1), sums, width)


def merge_greedily(scores: np.ndarray, columns: int) -> np.ndarray:
    """Merge the most likely neighbours first, wherever on the grid they will come.

    Parts that would overlap or not fit the grid stay apart. In the end the pieces outside the
    largest part go where they fit best.

    Args:
        scores: `neighbour_scores` of one picture, [2, n, n].
        columns: of the grid.

    Returns:
        The piece at every place, row by row, int64 [n].

    References: Gallagher 2012.
    """
    n = scores.shape[-1]
    limits = (n // columns, columns)
    part = np.arange(n)
    cell = np.zeros((n, 2), dtype=np.int64)

    # 1. Merge parts along the most likely neighbours.
    for pair in (-scores).argsort(axis=None, kind="stable").tolist():
        direction, i, j = np.unravel_index(pair, scores.shape)
        if part[i] == part[j]:
            continue
        is_moved = part == part[j]
        moved_cells = cell[is_moved] + cell[i] - cell[j] + (direction, 1 - direction)
        union = np.concatenate([cell[part == part[i]], moved_cells])
        union -= union.min(0)
        if (union.max(0) < limits).all() and np.bincount(union @ (columns, 1)).max() == 1:
            part[is_moved] = part[i]
            cell[is_moved] = moved_cells

    # 2. Place the largest part.
    largest = part == np.bincount(part).argmax()
    order = np.full(limits, -1)
    order[tuple((cell[largest] - cell[largest].min(0)).T)] = largest.nonzero()[0]

    # 3. Place the other pieces one by one where they fit best.
    remaining = set((~largest).nonzero()[0].tolist())
    while remaining:
        candidates = np.array(sorted(remaining))
        padded = np.pad(order, 1, constant_values=-1)
        best = (-np.inf, 0, 0, 0)
        for r, c in zip(*np.nonzero(order < 0), strict=True):
            left_and_above = (padded[r + 1, c], padded[r, c + 1])
            right_and_below = (padded[r + 1, c + 2], padded[r + 2, c + 1])
            terms = [
                scores[direction, piece, candidates]
                for direction, piece in enumerate(left_and_above)
                if piece >= 0
            ]
            terms += [
                scores[direction, candidates, piece]
                for direction, piece in enumerate(right_and_below)
                if piece >= 0
            ]
            if terms:
                fit = np.mean(terms, axis=0)
                best = max(best, (float(fit.max()), int(r), int(c), int(candidates[fit.argmax()])))
        order[best[1], best[2]] = best[3]
        remaining.remove(best[3])
    return order.ravel()


def grid_side(num_pieces: int) -> int:
    """Return the number of pieces per side of a square puzzle.

    Raises:
        UserError: the number of pieces is not a square.
    """
    side = math.isqrt(num_pieces)
    refuse(
        side**2 != num_pieces,
        f"decoder: borders puts square grids together, and {num_pieces} pieces make no square; "
        "choose another one, such as decoder=best",
    )
    return side
