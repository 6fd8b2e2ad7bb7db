"""What networks are told of graphs: a batch of them, padded to one size, one for every row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_EXACT = 3
"""Distances that have a class of their own."""
CLASSES = _EXACT + 3
"""Classes of pairs: a node itself, distance 1, 2, 3, farther, and not connected."""


@dataclass(frozen=True)
class GraphBatch:
    """Graphs of the rows of a batch.

    Args:
        adjacent: 0 or 1, float32 [B, d, d]; nodes that are none have no edges.
        classes: of pairs of nodes by their distance, uint8 [B, d, d]: see `CLASSES`.
        mask: which nodes there are, bool [B, d].
    """

    adjacent: Tensor
    classes: Tensor
    mask: Tensor

    @cached_property
    def shells(self) -> Tensor:
        """1 where node j is in class k + 1 of node i, float32 [B, CLASSES - 1, d, d]; 0 for nodes that are none."""
        numbers = torch.arange(1, CLASSES, device=self.classes.device, dtype=torch.uint8)
        pairs = (self.mask[:, :, None] & self.mask[:, None, :])[:, None]
        return ((self.classes[:, None] == numbers[:, None, None]) & pairs).float()

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row, one end and the other end of every edge, in both directions: int64 [E] each. A device is waited for."""
        row, one, other = self.adjacent.nonzero(as_tuple=True)
        return row, one, other

    @cached_property
    def sizes(self) -> Tensor:
        """Numbers of nodes in every class, float32 [B, d, CLASSES - 1]."""
        return self.shells.sum(-1).transpose(1, 2)

    def rows(self, which: Tensor) -> GraphBatch:
        """Some of them, by number or mask."""
        return GraphBatch(self.adjacent[which], self.classes[which], self.mask[which])


def known(graph: GraphBatch | None) -> GraphBatch:
    """The graphs that a network needs.

    Raises:
        TypeError: there are none.
    """
    if graph is None:
        raise TypeError("this network needs graphs: target=mis or target=maxcut")
    return graph


def distance_classes(adjacent: Tensor) -> Tensor:
    """Classes of pairs of nodes by shortest paths.

    Args:
        adjacent: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].
    """
    d = adjacent.shape[-1]
    step = adjacent.float()
    within = torch.eye(d, device=adjacent.device).expand_as(step)
    classes = torch.full(step.shape, CLASSES - 1, dtype=torch.uint8, device=adjacent.device)
    classes[within > 0] = 0
    reached = within
    for distance in range(1, d):
        further = (reached + reached @ step > 0).float()
        fresh = further > reached
        if not bool(fresh.any()):
            break
        classes[fresh] = min(distance, _EXACT + 1)
        reached = further
    return classes
