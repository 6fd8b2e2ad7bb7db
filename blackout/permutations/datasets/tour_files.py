"""Files of tours, one on a line: "x1 y1 x2 y2 ... output 1 5 ... 1", cities counted from 1, the first one twice."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blackout.data.file_errors import file_error
from blackout.errors import UserError
from blackout.permutations.group import is_permutation


def read_tours(path: Path) -> tuple[Tensor, Tensor]:
    """Points float32 [N, n, 2] and tours int64 [N, n] that begin at point 0.

    Raises:
        UserError: unreadable, or a line that is no tour; the message names the line.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise file_error(path, "not a readable text file of tours", error) from error
    if len(lines) < 2:
        raise UserError(f"{path}: at least two tours are needed, found {len(lines)}")
    points, tours = list[list[float]](), list[list[int]]()
    for number, line in enumerate(lines, 1):
        try:
            found = _parse(line)
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        if points and len(found[0]) != len(points[0]):
            raise UserError(
                f"{path}: line {number}: {len(found[0]) // 2} cities, but line 1 has {len(points[0]) // 2}: all tours "
                "of a file have equally many"
            )
        points.append(found[0])
        tours.append(found[1])
    return torch.tensor(points).view(len(points), -1, 2), torch.tensor(tours)


def _parse(line: str) -> tuple[list[float], list[int]]:
    """Coordinates and the tour from city 0 on.

    Raises:
        ValueError: this is no tour.
    """
    before, word, after = line.partition("output")
    if not word:
        raise ValueError("the word 'output' between points and tour is missing")
    points, tour = list(map(float, before.split())), [int(k) - 1 for k in after.split()]
    if len(points) < 6 or len(points) % 2 or not bool(torch.tensor(points).isfinite().all()):
        raise ValueError(f"two finite coordinates of at least three cities are needed, found {len(points)} numbers")
    n = len(points) // 2
    closed = tour[:-1] if len(tour) == n + 1 and tour[0] == tour[-1] else tour
    if len(closed) != n or not bool(is_permutation(torch.tensor(closed))):
        raise ValueError(f"the tour does not visit each of the {n} cities once")
    first = closed.index(0)
    return points, closed[first:] + closed[:first]


def write_tours(points: Tensor, tours: Tensor, path: Path) -> None:
    """Write points [N, n, 2] and their tours [N, n], a line each."""
    lines = []
    for cities, tour in zip(points.tolist(), tours.tolist(), strict=True):
        numbers = [*tour, tour[0]]
        lines.append(
            " ".join(f"{x!r} {y!r}" for x, y in cities) + " output " + " ".join(str(k + 1) for k in numbers) + "\n"
        )
    path.write_text("".join(lines))
