"""Unseen combinations: `python -m benchmarks.held_out_combinations treated.npz type=C
condition=treated`.

All samples of the combination are held out. A model is trained on the others by the default
command, with the first column as class and the others as covariates, and samples are requested
under the combination. They are compared with the held-out samples. The change is that of the
logarithm of every element's mean, relative to samples of the class with other values of the last
column. R^2 is one minus the squared errors over the squared deviations, and the variance ratio is
the median over elements.

    model     this package, with the default command
    shift     control samples of the class, times the ratio of means in the other classes, averaged
              in logarithms: the simple baseline
    control   control samples of the class: no change
    truth     one half of the held-out samples against the other: the best possible
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.count_baselines import boosting

Array = npt.NDArray[Any]
_LEAST = 0.05
_OFTEN = 0.1
# Added to means before logarithms; the mean from which on elements have a variance to compare;
# samples train_and_sample.
_DRAWN = 500


def split_samples(columns: dict[str, Array], asked: dict[str, str]) -> tuple[Array, Array]:
    """Return which samples have the combination, and which are its controls."""
    *first, last = asked
    same = np.all([columns[name] == asked[name] for name in first], axis=0)
    return same & (columns[last] == asked[last]), same & (columns[last] != asked[last])


def log_mean(of: Array) -> Array:
    """Return the log mean of every element, [D]."""
    return np.asarray(np.log(of.mean(0) + _LEAST))


def shift_controls(
    x: Array, columns: dict[str, Array], asked: dict[str, str], seed: int = 0
) -> Array:
    """Return control samples times the other classes' ratio of means, rounded at random without
    bias."""
    kind = next(iter(asked))
    last = list(asked)[-1]
    shifts = []
    for other in sorted(set(columns[kind]) - {asked[kind]}):
        under, control = split_samples(columns, {**asked, kind: other})
        if under.any() and control.any():
            shifts.append(log_mean(x[under]) - log_mean(x[control]))
    if not shifts:
        raise SystemExit(f"no other {kind} has {last}={asked[last]}")
    wanted = x[split_samples(columns, asked)[1]] * np.exp(np.mean(shifts, axis=0))
    return np.floor(wanted + np.random.default_rng(seed).random(wanted.shape)).astype(np.int64)


def train_and_sample(
    file: Path, columns: dict[str, Array], asked: dict[str, str], run: Path, settings: list[str]
) -> Array:
    """Train with the default command and sample under the combination."""
    kind, *others = columns
    told = [
        f"dataset.labels={kind}",
        f"dataset.covariates=[{','.join(others)}]",
        "conditional=true",
    ]
    train = ["train.py", "dataset=counts", f"dataset.path={file}", *told, *settings]
    given = ", ".join(f"{name}: {word}" for name, word in asked.items())
    out = run / "drawn"
    sample = [
        "sample.py",
        f"ckpt={run}",
        f"num_samples={_DRAWN}",
        f"given={{{given}}}",
        f"out={out}",
    ]
    for command in ([*train, f"runs_dir={run.parent.parent}", f"run_id={run.name}"], sample):
        subprocess.run([sys.executable, *command], check=True)
    return np.asarray(np.load(out / "samples.npz")["samples"])


def row(name: str, made: Array, real: Array, control: Array, seconds: float) -> str:
    """Return a line of the table."""
    change = log_mean(real) - log_mean(control)
    predicted = log_mean(made) - log_mean(control)
    explained = 1 - np.square(change - predicted).sum() / np.square(change - change.mean()).sum()
    often = real.mean(0) > _OFTEN
    ratio = np.median(made[:, often].var(0) / real[:, often].var(0).clip(1e-9))
    number = min(len(made), len(real))
    chosen = [np.random.default_rng(0).permutation(of)[:number] for of in (made, real)]
    cells = [
        f"{seconds:.0f}",
        f"{explained:.3f}",
        f"{np.corrcoef(change, predicted)[0, 1] ** 2:.3f}",
        f"{ratio:.2f}",
    ]
    return "| " + " | ".join([name, *cells, f"{boosting(chosen[0], chosen[1]):.3f}"]) + " |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help=".npz with `counts` and columns of words")
    parser.add_argument(
        "combination", nargs="+", help="column=word; the first is the class, the last what changes"
    )
    parser.add_argument("--beside", nargs="*", default=[], help="further covariates, such as donor")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--settings", nargs="*", default=[], help="of train.py")
    given = parser.parse_args(argv)
    asked = dict(part.split("=", 1) for part in given.combination)
    with np.load(given.file) as stored:
        x = stored["counts"]
        columns = {name: stored[name] for name in [*asked, *given.beside]}
    under, control = split_samples(columns, asked)
    given.runs.mkdir(parents=True, exist_ok=True)
    name = "-".join([given.file.stem, *asked.values()])
    file = given.runs / f"{name}.npz"
    np.savez_compressed(
        file, counts=x[~under], **{name: column[~under] for name, column in columns.items()}
    )

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = train_and_sample(file, columns, asked, given.runs / name / "model", given.settings)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    began = time.process_time()
    shift = shift_controls(x, columns, asked)
    real = np.random.default_rng(1).permutation(x[under])
    print(f"{name}: {under.sum()} samples left out, {control.sum()} controls")
    print("| method | CPU s | R^2 of the change | squared correlation | variance | boosting AUC |")
    print("|---|---|---|---|---|---|")
    print(row("model", made, real, x[control], seconds))
    print(row("shift", shift, real, x[control], time.process_time() - began))
    print(row("control", x[control], real, x[control], 0))
    print(row("truth", real[::2], real[1::2], x[control], 0))


if __name__ == "__main__":
    main()
