"""Networks and simple methods on four tasks of permutations: `python -m
benchmarks.permutation_winners`.

Every row has the CPU seconds of the whole method on one thread: of a network those of `train.py`
and `sample.py`, which of rankings also fit the classical models, of a simple method those of
fitting and solving. Networks have half a minute to a minute; simple methods stop when they have
finished.

- tours: 10 uniform cities; the mean gap to the shortest tour.
- sorting: five numbers of two 8x8 digits; the share of lists sorted right.
- jigsaws: 8x8 digits in 2x2 pieces; the share of puzzles solved.
- rankings: 500 votes on eight items, of two Mallows distributions or of voters in a plane; bits of
  a held-out vote.

The command writes benchmarks/results/permutations.json.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.svm import SVC
from torch import Tensor

from benchmarks.measure import arguments, report
from blackout.data import digits as digit_images
from blackout.permutations.datasets import sort_digits, tsp
from blackout.permutations.distributions import Mallows, Mixture, PlackettLuce, fit_plackett_luce
from blackout.permutations.metrics import rearrange, tour_length
from blackout.permutations.tours import two_opt

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "permutations.json"

NUM_PUZZLES = 1000  # test puzzles of each task
NUM_VOTES = 500  # for training; half as many for validation, eight times as many for the test
NUM_ITEMS = 8
NUM_STEPS = {"tours": 300, "sorting": 200, "jigsaws": 400, "rankings": 300}
SVC_GAMMA = 1e-3  # of scikit-learn's example on the same digits, whose counts go up to 16
MALLOWS_PHI = 0.6
NOISE_OF_DISTANCES = 0.15  # of voters in the unit square

# scores of tasks, and their best possible values
GAP = "gap to the shortest tour, %"
SORTED = "lists sorted, %"
SOLVED = "puzzles solved, %"
BITS = "bits of a vote"
IDEAL = {GAP: "0", SORTED: "100", SOLVED: "100", BITS: "not computed"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Network:
    """A model of this package.

    Args:
        method: name of its row.
        train: settings of `train.py`.
        sample: settings of `sample.py`.
    """

    method: str
    train: tuple[str, ...]
    sample: tuple[str, ...] = ()


def run_network(network: Network, num_steps: int, runs: Path) -> tuple[dict[str, Any], float]:
    """Train and evaluate a network; return the values in metrics.json, and CPU seconds."""
    run_id = "".join(c if c.isalnum() else "_" for c in network.method)
    train = (
        *network.train,
        f"trainer.max_steps={num_steps}",
        f"runs_dir={runs}",
        "experiment_name=tables",
        f"run_id={run_id}",
        "callbacks.progress=null",
        "callbacks.samples=null",
    )
    out = runs / f"{run_id}_samples"
    sample = (f"ckpt={runs / 'tables' / run_id}", *network.sample, "evaluate=true", f"out={out}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for program, settings in (("train.py", train), ("sample.py", sample)):
        command = [sys.executable, program, *settings]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report_of_run = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return report_of_run["values"], seconds


def timed(method: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a method and its CPU seconds."""
    start = time.process_time()
    result = method()
    return result, time.process_time() - start


def share_error(share: float, number: int) -> float:
    """Return the standard error of a share among so many puzzles."""
    return math.sqrt(share * (1 - share) / number)


def row_of(task: str, method: str, score: str, value: float, error: float, seconds: float) -> Row:
    """Return a row of the table, and print it."""
    row = {
        "task": task,
        "method": method,
        "score": score,
        "value": value,
        "error": error,
        "seconds": seconds,
    }
    print(row, flush=True)
    return row


# --- tours


def nearest_neighbour_tours(points: Tensor, start: int) -> Tensor:
    """Return tours that always go on to the nearest city left, int64 [b, n]."""
    distances = torch.cdist(points, points)
    num_tours, n = points.shape[:2]
    rows = torch.arange(num_tours)
    visited = torch.zeros(num_tours, n, dtype=torch.bool)
    tour = [torch.full((num_tours,), start)]
    visited[:, start] = True
    for _ in range(n - 1):
        row = distances[rows, tour[-1]].masked_fill(visited, math.inf)
        tour.append(row.argmin(1))
        visited[rows, tour[-1]] = True
    return torch.stack(tour, 1)


def best_two_opt(points: Tensor) -> Tensor:
    """Return the lengths of the best of tours from every city, each improved by 2-opt, [b]."""
    lengths = []
    for start in range(points.shape[1]):
        tours = two_opt(points, nearest_neighbour_tours(points, start))
        lengths.append(tour_length(rearrange(points, tours)))
    return torch.stack(lengths).amin(0)


def tours(runs: Path, num_steps: int, num_puzzles: int) -> Iterator[Row]:
    """Yield the gaps of a network and of 2-opt, in per cent."""
    network = Network("shuffle", ("family=shuffle", "dataset=tsp", "dataset.cities=10"))
    metrics, seconds = run_network(network, num_steps, runs)
    yield row_of("tours", "network, beam", GAP, 100 * metrics["gap"], math.nan, seconds)
    source = tsp(cities=10, num_test=num_puzzles)
    points = source.batch("test", torch.arange(num_puzzles))["items"]
    best, seconds = timed(lambda: best_two_opt(points))
    gaps = 100 * (best / tour_length(points) - 1).double()
    error = float(gaps.std()) / math.sqrt(num_puzzles)
    method = "nearest neighbour from each city, 2-opt"
    yield row_of("tours", method, GAP, float(gaps.mean()), error, seconds)


# --- sorting


def sort_by_classifier(num_puzzles: int) -> float:
    """Return the share of lists that are sorted right by the digits that a classifier reads."""
    images = digit_images(0.2, validation=0.1)
    train = images.batch("train", torch.arange(images.size("train")))
    classifier = SVC(gamma=SVC_GAMMA)
    classifier.fit(train["x0"].flatten(1).numpy(), train["label"].numpy())
    batch = sort_digits(num_test=num_puzzles).batch("test", torch.arange(num_puzzles))
    strips = batch["items"] * float(train["x0"].max())
    digits = torch.stack(strips.split(strips.shape[-2], dim=-1), 2)  # [b, n, digits, 1, H, W]
    read = classifier.predict(digits.flatten(0, 2).flatten(1).numpy()).reshape(digits.shape[:3])
    numbers = (read * 10 ** np.arange(digits.shape[2] - 1, -1, -1)).sum(-1)
    shown = np.random.default_rng(0).permuted(np.tile(np.arange(5), (num_puzzles, 1)), axis=1)
    order = np.take_along_axis(numbers, shown, 1).argsort(1, kind="stable")
    values = np.take_along_axis(batch["values"].numpy(), np.take_along_axis(shown, order, 1), 1)
    return float((np.diff(values, axis=1) >= 0).all(1).mean())


def sorting(runs: Path, num_steps: int, num_puzzles: int) -> Iterator[Row]:
    """Yield the shares of lists that networks and a classifier sort right, in per cent."""
    sort = ("family=shuffle", "dataset=sort_digits")
    network = Network("network", sort, (f"num_samples={num_puzzles}",))
    metrics, seconds = run_network(network, num_steps, runs)
    share = metrics["accuracy"]
    error = 100 * share_error(share, num_puzzles)
    yield row_of("sorting", network.method, SORTED, 100 * share, error, seconds)
    share, seconds = timed(lambda: sort_by_classifier(num_puzzles))
    error = 100 * share_error(share, num_puzzles)
    yield row_of("sorting", "digit classifier (labels)", SORTED, 100 * share, error, seconds)


# --- jigsaws


def jigsaws(runs: Path, num_steps: int, num_puzzles: int) -> Iterator[Row]:
    """Yield the shares of puzzles that networks and borders solve, in per cent."""
    jigsaw = ("family=shuffle", "dataset=jigsaw_digits")
    asked = (f"num_samples={num_puzzles}",)
    networks = (
        Network("network, default", jigsaw, asked),
        Network("Gumbel-Sinkhorn", (*jigsaw, "baseline=sinkhorn"), asked),
    )
    for network in networks:
        metrics, seconds = run_network(network, num_steps, runs)
        error = 100 * share_error(metrics["accuracy"], num_puzzles)
        yield row_of("jigsaws", network.method, SOLVED, 100 * metrics["accuracy"], error, seconds)
    borders = Network("borders", (*jigsaw, "baseline=borders"), asked)
    metrics, seconds = run_network(borders, 1, runs)
    error = 100 * share_error(metrics["accuracy"], num_puzzles)
    yield row_of("jigsaws", "borders alone", SOLVED, 100 * metrics["accuracy"], error, seconds)


# --- rankings


def mallows_votes(number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw votes of two Mallows distributions with even shares, int64 [number, n]."""
    centres = [rng.permutation(NUM_ITEMS) for _ in range(2)]
    votes = np.empty((number, NUM_ITEMS), dtype=np.int64)
    for vote in votes:
        order: list[int] = []
        for k, item in enumerate(centres[rng.integers(2)]):
            p = MALLOWS_PHI ** np.arange(k, -1, -1)
            order.insert(rng.choice(k + 1, p=p / p.sum()), int(item))
        vote[:] = order
    return votes


def spatial_votes(number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw votes by noisy distances from random voters in the unit square, int64 [number, n]."""
    items = rng.random((NUM_ITEMS, 2))
    voters = rng.random((number, 1, 2))
    distances = np.linalg.norm(voters - items, axis=2)
    return (distances + NOISE_OF_DISTANCES * rng.normal(size=distances.shape)).argsort(1)


def rankings(runs: Path, num_steps: int, num_puzzles: int) -> Iterator[Row]:
    """Yield bits of held-out votes by codes and classical models."""
    for task, make in (("Mallows", mallows_votes), ("voters in a plane", spatial_votes)):
        rng = np.random.default_rng(0)
        votes = make(NUM_VOTES + NUM_VOTES // 2 + 8 * NUM_VOTES, rng)
        train, val, test = np.split(votes, [NUM_VOTES, NUM_VOTES + NUM_VOTES // 2])
        path = runs / f"{make.__name__}.npz"
        np.savez(path, train=train, val=val, test=test)
        name = f"rankings, {task}"
        network = Network(
            f"codes {make.__name__}",
            ("family=codes", "dataset=permutations", f"dataset.path={path}"),
            ("dataset=permutations", f"dataset.path={path}", "num_samples=16"),
        )
        metrics, seconds = run_network(network, num_steps, runs)
        bits = metrics["nll_bits_test"]
        error = metrics.get("nll_bits_test_error", math.nan)
        yield row_of(name, "codes (network)", BITS, bits, error, seconds)
        parts = [torch.from_numpy(part) for part in (train, val, test)]
        fits: dict[str, Callable[[], Any]] = {
            "Plackett-Luce": partial(_fit_one_plackett_luce, parts[0]),
            "Mallows mixture": partial(Mixture.choose, parts[0], parts[1], Mallows),
            "Plackett-Luce mixture": partial(Mixture.choose, parts[0], parts[1], PlackettLuce),
        }
        for method, fit in fits.items():
            model, seconds = timed(fit)
            values = -model.log_prob(parts[2]).double() / math.log(2)
            error = float(values.std()) / math.sqrt(len(values))
            yield row_of(name, method, BITS, float(values.mean()), error, seconds)
        uniform = math.lgamma(NUM_ITEMS + 1) / math.log(2)
        yield row_of(name, "uniform", BITS, uniform, 0.0, 0.0)


def _fit_one_plackett_luce(permutations: Tensor) -> PlackettLuce:
    return PlackettLuce(fit_plackett_luce(permutations))


TASKS: dict[str, Callable[[Path, int, int], Iterator[Row]]] = {
    "tours": tours,
    "sorting": sorting,
    "jigsaws": jigsaws,
    "rankings": rankings,
}


def table(results: Row) -> str:
    """Return the values of all methods; the best of each task is bold."""
    rows = results["rows"]
    lines = ["| task, score | method | value | CPU seconds |", "|---|---|---|---|"]
    for row in rows:
        alternatives = [other["value"] for other in rows if other["task"] == row["task"]]
        lower_is_better = "%" not in row["score"] or "gap" in row["score"]
        best = min(alternatives) if lower_is_better else max(alternatives)
        value = f"{row['value']:.3g}" if row["value"] < 1 else f"{row['value']:.2f}"
        if row["value"] == best:
            value = f"**{value}**"
        if row["error"] > 0:
            value += f" ± {row['error']:.1g}"
        lines.append(
            f"| {row['task']}: {row['score']} | {row['method']} | {value} | {row['seconds']:.2g} |"
        )
    return "\n".join(lines)


def is_network(method: str) -> bool:
    """Return whether the method of a row is a trained network."""
    return "network" in method or method == "Gumbel-Sinkhorn"


def format_cells(row: Row) -> str:
    """Return the cells of a method: its name, its value ± error, and its CPU seconds."""
    value = f"{row['value']:.2g}" if row["value"] < 1 else f"{row['value']:.2f}"
    if row["error"] > 0:
        value += f" ± {row['error']:.1g}"
    return f"{row['method']} | {value} | {row['seconds']:.2g}"


def summary(results: Mapping[str, Any]) -> str:
    """Return the best network and the best simple method of every task, with a title."""
    lines = [
        "| task: score | network | value | CPU s | simple method | value | CPU s | ideal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(row["task"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["task"] == task]
        score = rows[0]["score"]
        choose_best = max if score in (SORTED, SOLVED) else min
        networks = [row for row in rows if is_network(row["method"])]
        others = [row for row in rows if not is_network(row["method"])]
        cells = [
            format_cells(choose_best(group, key=lambda row: float(row["value"])))
            for group in (networks, others)
        ]
        lines.append(f"| {task}: {score} | {' | '.join(cells)} | {IDEAL[score]} |")
    text = "\n".join(lines)
    return f"The best network and the best simple method of each task, one training.\n\n{text}"


def stored_rows(path: Path | None, task: str) -> list[Row]:
    """Return the rows of a task in a file of results, if it exists."""
    if path is None or not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["task"].split(",")[0] == task]


def main(argv: list[str] | None = None) -> None:
    """Run all tasks, and write the results unless `--quick` is given."""
    parser = arguments(__doc__)
    parser.set_defaults(json=RESULTS, threads=1, device="cpu")
    parser.add_argument("--only", choices=TASKS, action="append", help="tasks to run again")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.quick and options.json == RESULTS:
        options.json = None
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        for name, task in TASKS.items():
            if options.only and name not in options.only:
                rows += stored_rows(options.json, name)
                continue
            steps = 2 if options.quick else NUM_STEPS[name]
            rows += task(Path(folder), steps, 50 if options.quick else NUM_PUZZLES)
    command = "python -m benchmarks.permutation_winners"  # rows of --only are the same
    report("networks and simple methods", rows, options, command=command)


if __name__ == "__main__":
    main()
