"""Draws of solutions of graphs: several chains per graph, compared with an exact solver.

Also the table of solutions, and pictures of graphs.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blackout.errors import refuse
from blackout.files import write_table
from blackout.flows.draw import ChainDraw, build_simulation
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import make_graph_target
from blackout.flows.graphs.reductions import Problem, reduce_problem
from blackout.flows.graphs.solvers import (
    Solution,
    check_solver,
    greedy,
    simulated_annealing,
    solve_exactly,
)
from blackout.flows.graphs.target import GraphTarget
from blackout.flows.model import GraphFlow, solution_arrays
from blackout.flows.plots import CollectedSamples, append_array
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Simulation
from blackout.flows.targets import TargetSource
from blackout.protocols import (
    Drawn,
    MetricDescription,
    OutputNames,
    Outputs,
    Samples,
    Source,
    Watch,
    refuse_unknown,
)
from blackout.representation import format_fields

BATCH_SIZE = 512  # chains simulated together
SAMPLES_PER_GRAPH = 16  # unless num_samples is given
NUM_PREVIEW_GRAPHS = 4  # at the end of a run
ORACLE_SECONDS = 20.0  # limit of the exact solver for each graph
UNLIMITED = 1 << 40  # tries and sweeps of baselines, which processor time limits
MIN_SECONDS = 1e-3  # of a baseline

# pictures of graphs
MAX_PICTURED_GRAPHS = 8
MAX_PICTURED_NODES = 300
MAX_COLUMNS = 4


@dataclass
class GraphDraw(ChainDraw):
    """Solutions of graphs; sample k of graph g is row g * samples_per_graph + k.

    Args:
        model: in eval mode.
        target: the problem on the graphs to be solved.
        graphs: indices of these graphs in `target`, int64 [G].
        samples_per_graph: number of solutions of each graph.
        simulation: of the chain.
        refine: moves after every step; None for none.
        oracle: exact solver of every graph, for comparison; None for none.
        description: of these settings, as plain values.
        seconds: processor time used so far.
    """

    model: GraphFlow
    target: GraphTarget
    graphs: Tensor
    samples_per_graph: int
    simulation: Simulation
    refine: Refinement | None = None
    oracle: str | None = None
    description: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    batch_size: int = BATCH_SIZE
    references = replace(
        ChainDraw.references,
        ideal={**ChainDraw.references.ideal, "drop_mean": 0.0, "drop_best": 0.0},
    )
    names = OutputNames(folder="solutions", file="solutions", picture="graphs")

    __repr__ = format_fields

    def rows(self, num_samples: int) -> int:
        """Return the number of rows of `num_samples` solutions of every graph."""
        return num_samples * len(self.graphs)

    def compared_with(self, source: Source) -> Source:
        """Return the source with the graphs of the model, which its description does not have."""
        assert isinstance(source, TargetSource)
        return replace(source, target=self.model.target)

    def batches(
        self,
        indices: Tensor,
        seed: int,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> Drawn:
        """Yield indices [b] and the arrays of `solution_arrays`."""
        if len(indices) == 0:
            return
        device = self.model.device
        self.target.to(device)
        for rows in indices.split(batch_size or self.batch_size):
            start = time.process_time()
            graph = self.graphs[(rows // self.samples_per_graph) % len(self.graphs)]
            paths = self.simulation.run(
                self.target.instances(graph.to(device)),
                self.model.rates(),
                rows.to(device),
                seed,
                refine=self.refine,
                watch=watch,
            )
            arrays = solution_arrays(paths, graph)
            self.seconds += time.process_time() - start
            yield rows, arrays

    def outputs(self, seed: int) -> Outputs | None:
        """Return the collector of the solutions, which writes the table."""
        return GraphOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """Draw the first graphs with their best solutions; None for intermediate states."""
        if "graph" not in samples:
            return None
        return plot_graphs(self.target.graph, self.target.problem, samples, self.target.sign)


class GraphOutputs(CollectedSamples):
    """The best solutions of a `GraphDraw`, table.csv, and comparisons."""

    draw: GraphDraw

    def write(self, directory: Path) -> dict[str, Any]:
        """Add `best` and `best_value` to solutions.npz, write table.csv, and compare.

        Greedy and simulated annealing get the processor time of the draw; drops are relative to
        the exact solver's values.
        """
        draw = self.draw
        target = draw.target
        sign = target.sign
        arrays = self.arrays()

        # 1. Rows of each graph, and the best of them.
        graph_indices = arrays["graph"].unique().tolist()
        rows_of_graph = [torch.nonzero(arrays["graph"] == k).flatten() for k in graph_indices]
        values = [arrays["value"][rows].tolist() for rows in rows_of_graph]
        problems = [reduce_problem(target.problem, target.graph(k)) for k in graph_indices]
        base = problems[0].base
        base_graphs = [problem.base_graph for problem in problems]
        file = directory / "solutions.npz"
        if file.exists():
            best_rows = [rows[(sign * arrays["value"][rows]).argmax()] for rows in rows_of_graph]
            best = torch.stack(best_rows)
            append_array(file, "best", arrays["solutions"][best])
            append_array(file, "best_value", arrays["value"][best])

        # 2. Solutions of the exact solver and of baselines.
        optima: list[Solution | None] = [None] * len(problems)
        if draw.oracle is not None:
            oracle = solve_exactly(draw.oracle, base, base_graphs, ORACLE_SECONDS)
            pairs = zip(problems, oracle, strict=True)
            optima = [problem.from_base_solution(solution) for problem, solution in pairs]
        seconds_per_graph = draw.seconds / max(1, len(problems))
        greedy_solutions = []
        for graph in base_graphs:
            greedy_solutions.append(greedy(base, graph, UNLIMITED, seconds_per_graph, seed=0))
        annealed_solutions = simulated_annealing(
            base,
            base_graphs,
            draw.samples_per_graph,
            UNLIMITED,
            seconds=max(draw.seconds, MIN_SECONDS),
            seed=0,
        )
        baselines = {
            "greedy": _best_values(problems, greedy_solutions),
            "anneal": _best_values(problems, annealed_solutions),
        }

        # 3. The table and the report.
        means = write_solution_table(
            directory / "table.csv",
            problems,
            values,
            [seconds_per_graph] * len(problems),
            optima,
            baselines,
        )
        report: dict[str, Any] = {
            "values": means,
            "references": collect_references(means, list(baselines)),
            "metric_descriptions": describe_values(means, sign),
            "samples_per_graph": draw.samples_per_graph,
        }
        if draw.oracle is not None:
            num_proved = sum(optimum is not None and optimum.proved for optimum in optima)
            report["oracle"] = {"method": draw.oracle, "proved": num_proved, "of": len(optima)}
        return report


def describe_values(means: Mapping[str, float], sign: int) -> dict[str, dict[str, str]]:
    """Return unit and better direction of the means of `write_solution_table`, for metrics.json.

    Args:
        means: of the table, by name.
        sign: 1 if objectives are maximised, -1 if they are minimised.
    """
    descriptions = {
        "value": MetricDescription("objective", "higher" if sign > 0 else "lower"),
        "optimum": MetricDescription("objective", "higher" if sign > 0 else "lower"),
        "drop": MetricDescription("relative to the optimum", "lower"),
        "seconds_per_graph": MetricDescription("s", "lower"),
    }
    selected = {}
    for name in means:
        kind = "drop" if name.startswith("drop_") else name
        kind = "value" if name.endswith("_value") else kind
        if kind in descriptions:
            selected[name] = asdict(descriptions[kind])
    return selected


def _best_values(problems: Sequence[Problem], solutions: Sequence[Any]) -> list[float]:
    """Return the best value of each problem's solutions, uint8 [k, n'] each."""
    return [problem.best_value(x) for problem, x in zip(problems, solutions, strict=True)]


def collect_references(
    means: Mapping[str, float],
    baselines: Sequence[str],
) -> dict[str, dict[str, float]]:
    """Return the references of values and drops: the optimum and the baselines."""
    references: dict[str, dict[str, float]] = {}
    for statistic in ("mean", "best"):
        baseline_values = {name: means[f"{name}_value"] for name in baselines}
        if "optimum" in means:
            references[f"{statistic}_value"] = {"optimum": means["optimum"]} | baseline_values
            references[f"drop_{statistic}"] = {name: means[f"drop_{name}"] for name in baselines}
        else:
            references[f"{statistic}_value"] = baseline_values
    return references


def build_graph_draw(model: GraphFlow, request: Mapping[str, Any]) -> GraphDraw:
    """Build the draw that settings of `sample.py` request.

    Args:
        model: in eval mode.
        request: `simulation` and `refine` (see `build_simulation`), `target.path` of other graphs,
            `oracle`, and `num_samples` of every graph.

    Raises:
        UserError: another option, or an invalid value.
    """
    refuse_unknown(request, "simulation", "refine", "target", "oracle")
    simulation, refine, description = build_simulation(model, request)
    refuse(
        simulation.resample_below is not None,
        "simulation.resample_below must be null for graphs",
    )
    oracle = request.get("oracle")
    if oracle is not None:
        check_solver(oracle)
    requested_target = request.get("target") or {}
    settings = {name: value for name, value in requested_target.items() if value is not None}
    refuse(
        set(settings) - {"path"},
        "target: a trained model keeps its problem; only target.path=..., other graphs, can change",
    )
    target = model.target
    if settings:
        graphs = read_graphs(settings["path"])
        target = make_graph_target(target.problem, graphs, 0, target.inverse_temperature)
    graph_indices = target.test_instances
    samples_per_graph = int(request.get("num_samples", SAMPLES_PER_GRAPH))
    description |= {"graphs": len(graph_indices), "problem": target.problem}
    return GraphDraw(
        model,
        target,
        graph_indices,
        samples_per_graph,
        simulation,
        refine,
        oracle,
        description,
    )


def preview_graph_draw(model: GraphFlow) -> GraphDraw:
    """Build the draw of pictures during and after training, of the first test graphs."""
    return GraphDraw(
        model,
        model.target,
        model.target.test_instances[:NUM_PREVIEW_GRAPHS],
        SAMPLES_PER_GRAPH,
        model.simulation,
        oracle="milp",
        description={"graphs": "held out"},
    )


def _relative_drop(value: float, optimum: float, sign: int) -> float:
    """Return how far a value is below the optimum, as a fraction of it.

    References: Ou et al. 2025, table 1.
    """
    return sign * (optimum - value) / (abs(optimum) or 1.0)


def write_solution_table(
    file: Path,
    problems: Sequence[Problem],
    values: Sequence[Any],
    seconds: Sequence[float],
    optima: Sequence[Solution | None],
    baselines: Mapping[str, Sequence[float]] = {},
) -> dict[str, float]:
    """Write a table with one line per graph; return means over graphs, and their drops.

    References: Ou et al. 2025, table 1.

    Args:
        file: of the table.
        problems: on the graphs, G of them.
        values: of the solutions of each graph.
        seconds: of processor time for all solutions of each graph.
        optima: of an exact solver, with the problems' values; None where there is none.
        baselines: best values of other methods, by name.

    Returns:
        `<column>_value`, `seconds_per_graph` and, with optima, `optimum` and `drop_<column>`.
    """
    # 1. Columns.
    sign = problems[0].sign
    columns: dict[str, Sequence[float]] = {
        "mean": [float(np.mean(graph_values)) for graph_values in values],
        "best": [sign * float(np.max(sign * np.asarray(part))) for part in values],
        **baselines,
    }

    # 2. Means; drops are of graphs with an optimum.
    means = {f"{name}_value": float(np.mean(column)) for name, column in columns.items()}
    means["seconds_per_graph"] = float(np.mean(seconds))
    solved = [k for k, optimum in enumerate(optima) if optimum is not None]
    if solved:
        optimal_values = [optimum.value for optimum in optima if optimum is not None]
        means["optimum"] = float(np.mean(optimal_values))
        for name, column in columns.items():
            mean_of_solved = float(np.mean([column[k] for k in solved]))
            means[f"drop_{name}"] = _relative_drop(mean_of_solved, means["optimum"], sign)

    # 3. Lines.
    lines = list[dict[str, Any]]()
    for k, (problem, optimum) in enumerate(zip(problems, optima, strict=True)):
        graph = problem.graph
        line: dict[str, Any] = {
            "graph": graph.name,
            "nodes": graph.num_nodes,
            "edges": len(graph.edges),
            "proved": False,
            "seconds": f"{seconds[k]:.4g}",
            "oracle_seconds": f"{0.0 if optimum is None else optimum.seconds:.4g}",
        }
        for name, column in columns.items():
            line[name] = f"{column[k]:.15g}"
        if optimum is not None:
            line["optimum"] = f"{optimum.value:.15g}"
            line["proved"] = optimum.proved
            for name in ("mean", "best"):
                line[f"drop_{name}"] = (
                    f"{_relative_drop(columns[name][k], optimum.value, sign):.6g}"
                )
        lines.append(line)
    names = [
        "graph",
        "nodes",
        "edges",
        "mean",
        "best",
        "optimum",
        "proved",
        "drop_mean",
        "drop_best",
        "seconds",
        "oracle_seconds",
        *baselines,
    ]
    write_table(names, lines, file)
    return means


def graph_layout(graph: Graph) -> NDArray[np.float64]:
    """Return positions of the nodes by springs along the edges, float64 [n, 2], always the same.

    References: Fruchterman and Reingold 1991.
    """
    import networkx as nx  # slow to import

    network = nx.empty_graph(graph.num_nodes)
    network.add_edges_from(graph.edges.tolist())
    return np.array([*nx.spring_layout(network, seed=0).values()])


def plot_graphs(
    get_graph: Callable[[int], Graph],
    problem: str,
    samples: Samples,
    sign: int = 1,
) -> Any:
    """Draw the first graphs among the samples with their best solutions.

    Selected nodes are dark, those of a colouring coloured, and cut edges thick.

    Args:
        get_graph: index -> graph.
        problem: its name.
        samples: with `graph`, `value` and `solutions`.
        sign: -1 if the problem is a minimisation.

    Returns:
        A PIL image; None if all graphs are too large.
    """
    from matplotlib.figure import Figure  # slow to import

    graphs = samples["graph"].cpu()
    values = samples["value"].cpu()
    distinct = dict.fromkeys(graphs.tolist())
    small = [k for k in distinct if get_graph(k).num_nodes <= MAX_PICTURED_NODES]
    indices = small[:MAX_PICTURED_GRAPHS]
    if not indices:
        return None
    num_columns = min(MAX_COLUMNS, len(indices))
    num_rows = -(-len(indices) // num_columns)
    figure = Figure(figsize=(3 * num_columns, 3.2 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    for axes, index in zip(panels, indices, strict=False):
        rows = torch.nonzero(graphs == index).flatten()
        best = rows[(sign * values[rows]).argmax()]
        graph = get_graph(index)
        solution = samples["solutions"][best].cpu().numpy()[: graph.num_nodes]
        _plot_graph(axes, graph, solution, is_cut=problem == "maxcut")
        axes.set_title(f"graph {graph.name}: {float(values[best]):.12g}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("RGB")


def _plot_graph(axes: Any, graph: Graph, solution: Any, *, is_cut: bool) -> None:
    """Draw a graph with a solution, uint8 [n]."""
    positions = graph_layout(graph)
    for i, j in graph.edges:
        crosses_cut = is_cut and solution[i] != solution[j]
        colour = "C3" if crosses_cut else "0.75"
        width = 1.4 if crosses_cut else 0.8
        axes.plot(*positions[[i, j]].T, color=colour, linewidth=width, zorder=1)
    node_colours = [f"C{value - 1}" if value else "white" for value in solution]
    axes.scatter(*positions.T, c=node_colours, edgecolors="black", s=55, zorder=2)
    axes.set_aspect("equal")
