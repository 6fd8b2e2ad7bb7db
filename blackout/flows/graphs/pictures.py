"""Graphs with their solutions: chosen nodes dark, cut edges thick."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from blackout.family import Samples
from blackout.flows.graphs.collection import Graph
from blackout.flows.graphs.problems import GraphTarget

_SHOWN, _ROUNDS = 8, 200


def layout(graph: Graph) -> NDArray[np.float64]:
    """Places of the nodes by springs (Fruchterman and Reingold 1991), float64 [nodes, 2]; the same every time."""
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    place = np.stack([np.cos(angle), np.sin(angle)], 1)
    adjacent = graph.adjacency().numpy().astype(float)
    ideal = 1 / np.sqrt(graph.nodes)
    for k in range(_ROUNDS):
        apart = place[:, None] - place[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = ideal**2 / distance - adjacent * distance**2 / ideal
        step = (apart / distance[..., None] * force[..., None]).sum(1) - 0.5 * place * ideal
        length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-9)
        place = place + step / length * np.minimum(length, 0.1 * (1 - k / _ROUNDS))
    return place


def graphs_picture(target: GraphTarget, samples: Samples) -> Image.Image:
    """The first graphs among the samples, each with the best of its solutions here."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    graphs, values = samples["graph"].cpu(), samples["value"].cpu()
    shown = list(dict.fromkeys(graphs.tolist()))[:_SHOWN]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3 * columns, 3.2 * rows), layout="constrained")
    for axes, number in zip(figure.subplots(rows, columns, squeeze=False).flatten(), shown, strict=False):
        mine = torch.nonzero(graphs == number).flatten()
        best = mine[values[mine].argmax()]
        graph = target.graph(number)
        _draw(axes, graph, samples["solutions"][best].cpu().numpy()[: graph.nodes], target.problem == "maxcut")
        axes.set_title(f"graph {graph.name}: {int(values[best])} {target.unit}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("RGB")


def _draw(axes: Any, graph: Graph, x: NDArray[Any], cut: bool) -> None:
    place = layout(graph)
    for i, j in graph.edges:
        crosses = bool(cut and x[i] != x[j])
        axes.plot(*place[[i, j]].T, color="C3" if crosses else "0.75", linewidth=1.4 if crosses else 0.8, zorder=1)
    axes.scatter(*place.T, c=np.where(x > 0, "C0", "white"), edgecolors="black", s=55, zorder=2)
    axes.set_aspect("equal")
