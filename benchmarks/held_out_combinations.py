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


def split_samples(columns: dict[str, Array], combination: dict[str, str]) -> tuple[Array, Array]:
    """Return which samples have the combination, and which are its controls."""
    *fixed_names, varied_name = combination
    has_fixed_values = np.all([columns[name] == combination[name] for name in fixed_names], axis=0)
    return has_fixed_values & (
        columns[varied_name] == combination[varied_name]
    ), has_fixed_values & (columns[varied_name] != combination[varied_name])


def log_mean(counts: Array) -> Array:
    """Return the log mean of every element, [D]."""
    return np.asarray(np.log(counts.mean(0) + _LEAST))


def shift_controls(
    x: Array, columns: dict[str, Array], combination: dict[str, str], seed: int = 0
) -> Array:
    """Return control samples times the other classes' ratio of means, rounded at random without
    bias."""
    kind = next(iter(combination))
    varied_name = list(combination)[-1]
    shifts = []
    for other_kind in sorted(set(columns[kind]) - {combination[kind]}):
        has_combination, is_control = split_samples(columns, {**combination, kind: other_kind})
        if has_combination.any() and is_control.any():
            shifts.append(log_mean(x[has_combination]) - log_mean(x[is_control]))
    if not shifts:
        raise SystemExit(f"no other {kind} has {varied_name}={combination[varied_name]}")
    shifted = x[split_samples(columns, combination)[1]] * np.exp(np.mean(shifts, axis=0))
    return np.floor(shifted + np.random.default_rng(seed).random(shifted.shape)).astype(np.int64)


def train_and_sample(
    file: Path,
    columns: dict[str, Array],
    combination: dict[str, str],
    run: Path,
    settings: list[str],
) -> Array:
    """Train with the default command and sample under the combination."""
    kind, *covariates = columns
    data_settings = [
        f"dataset.labels={kind}",
        f"dataset.covariates=[{','.join(covariates)}]",
        "conditional=true",
    ]
    train = ["train.py", "dataset=counts", f"dataset.path={file}", *data_settings, *settings]
    condition = ", ".join(f"{name}: {word}" for name, word in combination.items())
    out = run / "drawn"
    sample = [
        "sample.py",
        f"ckpt={run}",
        f"num_samples={_DRAWN}",
        f"condition={{{condition}}}",
        f"out={out}",
    ]
    for command in ([*train, f"runs_dir={run.parent.parent}", f"run_id={run.name}"], sample):
        subprocess.run([sys.executable, *command], check=True)
    return np.asarray(np.load(out / "samples.npz")["samples"])


def row(name: str, predicted_samples: Array, real: Array, control: Array, seconds: float) -> str:
    """Return a line of the table."""
    change = log_mean(real) - log_mean(control)
    predicted = log_mean(predicted_samples) - log_mean(control)
    explained = 1 - np.square(change - predicted).sum() / np.square(change - change.mean()).sum()
    is_frequent = real.mean(0) > _OFTEN
    ratio = np.median(
        predicted_samples[:, is_frequent].var(0) / real[:, is_frequent].var(0).clip(1e-9)
    )
    number = min(len(predicted_samples), len(real))
    chosen = [
        np.random.default_rng(0).permutation(samples)[:number]
        for samples in (predicted_samples, real)
    ]
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
    parser.add_argument(
        "--covariates", nargs="*", default=[], help="further covariates, such as donor"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--settings", nargs="*", default=[], help="of train.py")
    options = parser.parse_args(argv)
    combination = dict(part.split("=", 1) for part in options.combination)
    with np.load(options.file) as stored:
        x = stored["counts"]
        columns = {name: stored[name] for name in [*combination, *options.covariates]}
    has_combination, is_control = split_samples(columns, combination)
    options.runs.mkdir(parents=True, exist_ok=True)
    name = "-".join([options.file.stem, *combination.values()])
    file = options.runs / f"{name}.npz"
    np.savez_compressed(
        file,
        counts=x[~has_combination],
        **{name: column[~has_combination] for name, column in columns.items()},
    )

    seconds_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    samples = train_and_sample(
        file, columns, combination, options.runs / name / "model", options.settings
    )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - seconds_before
    start = time.process_time()
    shift = shift_controls(x, columns, combination)
    real = np.random.default_rng(1).permutation(x[has_combination])
    print(f"{name}: {has_combination.sum()} samples left out, {is_control.sum()} controls")
    print("| method | CPU s | R^2 of the change | squared correlation | variance | boosting AUC |")
    print("|---|---|---|---|---|---|")
    print(row("model", samples, real, x[is_control], seconds))
    print(row("shift", shift, real, x[is_control], time.process_time() - start))
    print(row("control", x[is_control], real, x[is_control], 0))
    print(row("truth", real[::2], real[1::2], x[is_control], 0))


if __name__ == "__main__":
    main()
