"""`python -m benchmarks.graph_methods DIR DIR ...`: compare methods by their files table.csv.

The folders are those of `sample.py` and `blackout solve` for the same graphs. Values are
compared with the best known one of each graph, from an oracle or any of the methods.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blackout.errors import CommandParser, UserError, run_command, summary
from blackout.files import new_file
from blackout.flows.graphs.graphs import Graph
from blackout.pictures import save_picture
from blackout.safe_reading import read_text


class Table(NamedTuple):
    """The results of a method on every graph, float64 [G] each.

    Args:
        name: of the method, which is that of its folder.
        graphs: their names.
        mean: mean value of the samples.
        best: best value of the samples.
        optimum: the oracle's value; nan without one.
        proved: whether the oracle's value is proved optimal, bool.
        seconds: CPU time.
    """

    name: str
    graphs: list[str]
    mean: NDArray[np.float64]
    best: NDArray[np.float64]
    optimum: NDArray[np.float64]
    proved: NDArray[np.bool_]
    seconds: NDArray[np.float64]


class Line(NamedTuple):
    """A method: relative drops of mean and best from the best known values, and a p-value.

    The p-value is that of Wilcoxon's paired test of means.
    """

    name: str
    mean: float
    best: float
    seconds: float
    p: float


def read_table(folder: Path) -> Table:
    """Return the table.csv of a folder.

    Raises:
        UserError: if it is missing or invalid.
    """
    try:
        rows = list(
            csv.DictReader(io.StringIO(read_text(folder / "table.csv", folder)), strict=True)
        )
        mean, best, seconds = (
            np.array([float(row[name]) for row in rows]) for name in ("mean", "best", "seconds")
        )
        optimum = np.array([float(row["optimum"] or "nan") for row in rows])
        names = [row["graph"] for row in rows]
        proved = np.array([row["proved"] == "True" for row in rows])
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{folder} holds no table.csv of solutions: {summary(error)}") from None
    if not all(np.isfinite(values).all() for values in (mean, best, seconds)):
        raise UserError(f"{folder}/table.csv: mean, best and seconds must be finite numbers")
    return Table(folder.name, names, mean, best, optimum, proved, seconds)


def compare_tables(tables: list[Table]) -> tuple[list[Line], int]:
    """Return a line for each table, and the number of proved optima.

    Raises:
        UserError: if tables are of different graphs or there are none.

    References: Wilcoxon 1945.
    """
    from scipy.stats import wilcoxon  # only here: importing it takes a second

    first_table = tables[0]
    if not first_table.graphs or any(table.graphs != first_table.graphs for table in tables):
        raise UserError("the tables are not of the same graphs")
    # what is to be small has bests below its means
    sign = -1 if any((table.best < table.mean).any() for table in tables) else 1
    optimum: NDArray[np.float64] = sign * np.nanmax(
        [sign * part for t in tables for part in (t.best, t.optimum)], axis=0
    )
    proved = np.any([table.proved for table in tables], axis=0)
    lines = []
    for table in tables:
        differ = bool((table.mean != first_table.mean).any())
        p = float(wilcoxon(table.mean, first_table.mean).pvalue) if differ else 1.0
        mean, best = (
            sign * float((optimum - part).mean() / (np.abs(optimum).mean() or 1))
            for part in (table.mean, table.best)
        )
        lines.append(Line(table.name, mean, best, float(table.seconds.mean()), p))
    return lines, int(proved.sum())


def save_drops(lines: list[Line], title: str, path: Path) -> None:
    """Plot drops against seconds, with a point for the mean and one for the best sample."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, line in enumerate(lines):
        seconds = max(line.seconds, 1e-4)
        drops = (100 * line.mean, 100 * line.best)
        axes.plot([seconds] * 2, drops, color=f"C{number % 10}", linewidth=0.8)
        axes.plot(seconds, drops[0], "o", color=f"C{number % 10}", label=line.name)
        axes.plot(seconds, drops[1], "v", color=f"C{number % 10}", markersize=5)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(-0.02, max(0.1, *(150 * line.mean for line in lines)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(
        xlabel="processor seconds for all samples of a graph",
        ylabel="drop from the best known value, %",
    )
    axes.set_title(f"{title}\nmean of the samples (dot), best of them (triangle)", fontsize=10)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_picture(figure, path)


def save_graph(graph: Graph, file: Path) -> None:
    """Write an edge list with weights that `read_graphs` reads.

    Raises:
        ValueError: if nodes have weights, which edge lists cannot store.
    """
    if graph.node_weights is not None:
        raise ValueError(f"{graph.name}: an edge list has no weights of nodes")
    weights = (
        [""] * len(graph.edges)
        if graph.edge_weights is None
        else [f" {w!r}" for w in graph.edge_weights.tolist()]
    )
    edges = [f"{i} {j}{w}" for (i, j), w in zip(graph.edges.tolist(), weights, strict=True)]
    file.write_text(
        "\n".join([f"# nodes: {graph.num_nodes}, first: 0", *edges]) + "\n", encoding="utf-8"
    )


def run(options: argparse.Namespace) -> None:
    """Compare, and write the figure.

    Raises:
        UserError: if a folder has no table, tables are of different graphs, or the figure exists.
    """
    out = new_file(options.out or Path("drops.png"), options.out is not None)
    tables = [read_table(folder) for folder in options.folders]
    lines, proved = compare_tables(tables)
    save_drops(lines, options.title, out)
    print(f"{len(tables[0].graphs)} graphs, {proved} optima proved; picture in {out}")
    print(f"{'method':32} {'drop, mean':>10} {'best':>8} {'seconds':>9} {'p':>9}")
    for line in lines:
        print(
            f"{line.name:32} {line.mean:10.3%} {line.best:8.3%} {line.seconds:9.4f} {line.p:9.1e}"
        )


def main() -> None:
    parser = CommandParser(
        prog="python -m benchmarks.graph_methods",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, help="with a table.csv each; p is against the first"
    )
    parser.add_argument("--title", default="solutions of graphs")
    parser.add_argument("--out", type=Path, help="a .png; drops.png if it is left out")
    run_command(run, parser)


if __name__ == "__main__":
    main()
