"""Table 2 of SGDD [Chu 2025] at its published size: `python -m benchmarks.paper_posteriors`.

Posterior samples of 2, 5 and 10 elements of 50 levels with an exact prior, 10,000 by each method:
nothing is trained. The scores are Hellinger distance and total variation to the exact posterior of
the first two elements, as in the paper; those of as many exact draws and of the prior stand next to
them. The command writes benchmarks/results/paper_posteriors.json after every row; `--figure FILE`
draws that file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib import pyplot

from benchmarks.measure import arguments, report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "paper_posteriors.json"
ELEMENTS = (2, 5, 10)
METHODS = {
    "sgdd": "SGDD, corrected",
    "sgdd_published": "SGDD as published",
    "sgdd_long": "SGDD, corrected, 50 sweeps",
    "sgdd_published_long": "SGDD as published, 50 sweeps",
    "dps": "DPS",
    "smc": "SMC",
    "svdd": "SVDD-PM, 20 particles",
}
# methods with five times the published number of sweeps: the choice of `posterior=`
LONG = {"sgdd_long": "sgdd", "sgdd_published_long": "sgdd_published"}
# Hellinger distance and total variation for 2, 5 and 10 elements [Chu 2025, Table 2]
PUBLISHED = {
    "svdd": ((0.297, 0.320), (0.413, 0.458), (0.455, 0.503)),
    "smc": ((0.238, 0.248), (0.353, 0.391), (0.412, 0.460)),
    "dps": ((0.182, 0.176), (0.345, 0.383), (0.410, 0.453)),
    "sgdd_published": ((0.149, 0.125), (0.214, 0.222), (0.334, 0.365)),
}

Row = dict[str, Any]


def sample(method: str, elements: int, seed: int, num_samples: int) -> Row:
    """Return the scores of one sampling by `sample.py`."""
    with TemporaryDirectory() as folder:
        settings = [
            "task=sgdd/table2",
            f"prior.elements={elements}",
            f"posterior={LONG.get(method, method)}",
            *(["sizes.sweeps=50"] if method in LONG else []),
            f"seed={seed}",
            f"num_samples={num_samples}",
            f"out={folder}/samples",
        ]
        command = [sys.executable, "sample.py", *settings]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        metrics = json.loads(
            (Path(folder) / "samples" / "metrics.json").read_text(encoding="utf-8")
        )
    names = [
        prefix + name
        for prefix in ("", "floor_", "prior_")
        for name in ("hellinger", "total_variation")
    ]
    return {
        "method": method,
        "elements": elements,
        "seed": seed,
        **{name: metrics["values"][name] for name in names},
        "seconds": metrics["values"]["seconds"],
    }


def seed_rows(methods: Iterable[str], seed: int, quick: bool) -> Iterator[Row]:
    """Return a row for each method and number of elements."""
    for method in methods:
        for elements in ELEMENTS[:1] if quick else ELEMENTS:
            row = sample(method, elements, seed, 20 if quick else 10_000)
            yield row


def table(results: Mapping[str, Any]) -> str:
    """Return total variations, here and as published, of all methods."""
    rows = results["rows"]
    columns = [f"{elements} elements | published" for elements in ELEMENTS]
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (1 + 2 * len(ELEMENTS)) + "|"]
    references = {"prior": "prior_total_variation", "exact draws": "floor_total_variation"}
    for method, name in METHODS.items():
        values = [
            [
                row["total_variation"]
                for row in rows
                if (row["method"], row["elements"]) == (method, elements)
            ]
            for elements in ELEMENTS
        ]
        published = [f"{score[1]:.3f}" for score in PUBLISHED.get(method, ())] or ["-"] * 3
        lines.append(_line(name, values, published))
    for name, column in references.items():
        values = [
            [row[column] for row in rows if row["elements"] == elements] for elements in ELEMENTS
        ]
        lines.append(_line(name, [[mean(group)] for group in values], ["-"] * 3))
    return "\n".join(lines)


def _line(name: str, values: list[list[float]], published: list[str]) -> str:
    cells = []
    for group, quoted in zip(values, published, strict=True):
        error = f" ± {stdev(group):.3f}" if len(group) > 1 else ""
        cells += [f"{mean(group):.3f}{error}" if group else "-", quoted]
    return f"| {name} | {' | '.join(cells)} |"


def draw(results: Mapping[str, Any], out: Path) -> None:
    """Draw the total variations, here and as published, against the number of elements."""
    rows = results["rows"]
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        means = [
            mean(
                row["total_variation"]
                for row in rows
                if (row["method"], row["elements"]) == (method, elements)
            )
            for elements in ELEMENTS
        ]
        axes.plot(ELEMENTS, means, marker="o", color=f"C{number}", label=METHODS[method])
        if method in PUBLISHED:
            published = [score[1] for score in PUBLISHED[method]]
            axes.plot(ELEMENTS, published, marker="x", linestyle="--", color=f"C{number}")
    exact = [
        mean(row["floor_total_variation"] for row in rows if row["elements"] == elements)
        for elements in ELEMENTS
    ]
    axes.plot(ELEMENTS, exact, color="black", label="exact draws")
    axes.plot([], [], color="gray", linestyle="--", marker="x", label="published")
    axes.set_xlabel("elements")
    axes.set_ylabel("total variation")
    axes.set_xticks(ELEMENTS)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(out, dpi=90)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Print the scores of all methods, and write them as JSON after every seed."""
    parser = arguments(__doc__ or "")
    parser.set_defaults(json=RESULTS, threads=1, device="cpu", repetitions=2)
    parser.add_argument("--only", choices=METHODS, action="append", help="methods; default: all")
    parser.add_argument("--figure", type=Path, default=None, help="draw the results of --json")
    options = parser.parse_args(argv)
    if options.figure is not None:
        draw(json.loads(options.json.read_text(encoding="utf-8")), options.figure)
        return
    torch.set_num_threads(options.threads)
    if options.quick and options.json == RESULTS:
        options.json = None
    methods = options.only or list(METHODS)
    command = f"python -m benchmarks.paper_posteriors --repetitions {options.repetitions}"
    command += "".join(f" --only {method}" for method in options.only or ())
    rows: list[Row] = []
    for seed in range(1 if options.quick else options.repetitions):
        for row in seed_rows(methods, seed, options.quick):
            rows.append(row)
            report("Table 2 of SGDD", rows, options, command=command)


if __name__ == "__main__":
    main()
