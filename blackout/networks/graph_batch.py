"""Batches of graphs for networks: edges, weights, and distance classes of pairs of nodes.

References: Ying et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from blackout.representation import format_fields

MAX_EXACT_DISTANCE = 3  # distances up to this have a class of their own
# 0: the node itself; 1, 2, 3: that distance; 4: farther; 5: not connected
NUM_DISTANCE_CLASSES = MAX_EXACT_DISTANCE + 3


@dataclass(frozen=True)
class GraphBatch:
    """Graphs padded to one number of nodes d, one for every row of a batch.

    Args:
        adjacency: 0 or 1, float32 [B, d, d]; padding nodes have no edges.
        distance_classes: classes of pairs of nodes, uint8 [B, d, d], see
            `compute_distance_classes`.
        mask: True for nodes, False for padding, bool [B, d].
        weights: couplings of pairs of nodes, [B, d, d]; `adjacency` for unweighted graphs.
        fields: energy of each node alone, [B, d].
    """

    adjacency: Tensor
    distance_classes: Tensor
    mask: Tensor
    weights: Tensor
    fields: Tensor

    __repr__ = format_fields

    @cached_property
    def shells(self) -> Tensor:
        """Indicator that nodes i and j are in class k + 1, float32 [B, classes - 1, d, d].

        It is 0 for padding nodes.
        """
        device = self.distance_classes.device
        numbers = torch.arange(1, NUM_DISTANCE_CLASSES, device=device, dtype=torch.uint8)
        pair_mask = (self.mask[:, :, None] & self.mask[:, None, :])[:, None]
        is_in_class = self.distance_classes[:, None] == numbers[:, None, None]
        return (is_in_class & pair_mask).float()

    @cached_property
    def shell_sizes(self) -> Tensor:
        """Number of nodes in each distance class of a node, float32 [B, d, classes - 1]."""
        return self.shells.sum(-1).transpose(1, 2)

    @cached_property
    def edges(self) -> tuple[Tensor, ...]:
        """Row, first node and second node of every edge in both directions, int64 [E] each.

        The first access waits for the device.
        """
        return self.adjacency.nonzero(as_tuple=True)

    def select(self, rows: Tensor) -> GraphBatch:
        """Return the graphs of some rows, int64 [b] or bool [B]."""
        return GraphBatch(*(getattr(self, field.name)[rows] for field in dataclass_fields(self)))


def compute_distance_classes(adjacency: Tensor) -> Tensor:
    """Compute the distance class of every pair of nodes, by the length of their shortest path.

    Class 0 is the node itself; 1, 2 and 3 are these distances; 4 is farther; 5 is not connected.

    Args:
        adjacency: of undirected graphs, 0 or 1 of any type, [G, d, d].

    Returns:
        uint8 [G, d, d].

    Example:
        >>> path = torch.tensor([[[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]])
        >>> compute_distance_classes(path)[0, 0].tolist()
        [0, 1, 2, 5]

    References: Ying et al. 2021.
    """
    from scipy.sparse.csgraph import shortest_path  # importing it takes a second

    graphs = adjacency.cpu().numpy()
    distances = np.stack([shortest_path(graph, unweighted=True) for graph in graphs])
    classes = np.minimum(distances, MAX_EXACT_DISTANCE + 1)
    classes = np.where(np.isinf(distances), NUM_DISTANCE_CLASSES - 1, classes)
    return torch.from_numpy(classes.astype(np.uint8)).to(adjacency.device)
