"""Finished runs: the record in metrics.json that a run has ended, and what a new start does with it.

`"finished": true` is written last of all, when training, scores, samples, model and pages are complete. A run that was
killed before is not finished, and a new start repeats what follows the last step. The record is taken away when a
longer length is begun; the results of the shorter one stay in metrics.json under `earlier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blackout.cli.run_directory import WHERE_AND_HOW
from blackout.component import leaves
from blackout.config.descriptions import add_defaults
from blackout.distributed import is_first
from blackout.errors import UserError, refuse
from blackout.files import read_mapping, write_json
from blackout.protocols import Source

RESULTS = "metrics.json"
LENGTH = ("max_steps", "max_time", "min_steps", "min_time")  # arguments of the Trainer that say when training ends


def read_results(run: Path) -> dict[str, Any]:
    """The content of a run's metrics.json; empty where there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = run / RESULTS
    return read_mapping(path, advice="; remove it to go on") if path.exists() else {}


def finished_steps(results: Mapping[str, Any]) -> int | None:
    """The optimiser steps after which a run has finished; None if it has not."""
    steps = results.get("training_steps")
    return steps if results.get("finished") is True and isinstance(steps, int) else None


def mark_finished(run: Path, source: Source) -> None:
    """Record in one atomic write that a run is complete, and which data it was trained on."""
    record = {"finished": True, "training_data": source.fingerprint("train")}
    write_json({**read_results(run), **record}, run / RESULTS)


def mark_unfinished(run: Path) -> None:
    """Take back the record that a run is complete, before anything of it changes."""
    results = read_results(run)
    if results.get("finished"):
        write_json({**results, "finished": False}, run / RESULTS)


def with_earlier(report: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The report of a run at its end, with the results in its directory that it does not repeat, under `earlier`.

    These are of a shorter length, or scores of the same length that another start had chosen.

    Args:
        report: what is to be written to metrics.json.
        run: the run's directory.

    Raises:
        UserError: the metrics.json there is damaged.
    """
    results = read_results(run)
    before = results.pop("earlier", None)
    results.pop("finished", None)
    candidates = [*(before if isinstance(before, list) else ()), *([results] if results else ())]
    earlier = [one for one in candidates if not _repeats(report, one)]
    return {**report, **({"earlier": earlier} if earlier else {})}


def _repeats(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Whether a report has all values that an earlier one has, of the same step."""
    if report.get("training_steps") != earlier.get("training_steps"):
        return False
    return set(earlier.get("values", {})) <= set(report.get("values", {}))


def has_ended(run: Path, config: Mapping[str, Any], source: Source) -> bool:
    """Whether a run has finished with as many steps as it is started with now; says where its results are.

    Nothing is changed. The settings must have been compared with those of the run before.

    Args:
        run: the run's directory.
        config: the settings of this start.
        source: the data of this start.

    Raises:
        UserError: the run has finished with more steps, on other data, or without leaving a checkpoint to continue.
    """
    if not (run / "config.yaml").exists():
        return False
    # first the settings: a process that begins a longer length writes them after it has taken back the record
    settings = read_mapping(run / "config.yaml")
    results = read_results(run)
    steps = finished_steps(results)
    if steps is None:
        return False
    trainer = settings.get("trainer")
    before = trainer if isinstance(trainer, Mapping) else {}
    now = config["trainer"]
    most = now["max_steps"]
    check_not_shorter(most, steps, run)
    if results.get("training_data") != source.fingerprint("train"):
        raise UserError(f"{run} has ended, and its training data were not these: give another run_id")
    if most > steps and any(now.get(name) != before.get(name) for name in LENGTH):
        missing = not (run / "checkpoints").is_dir() or not any((run / "checkpoints").glob("*.ckpt"))
        refuse(missing, f"{run} has ended after {steps:,} steps and has no checkpoint to continue: give another run_id")
        return False
    if is_first():
        _print_end(run, steps, sorted(set(_changed_groups(settings, config))))
    return True


def _print_end(run: Path, steps: int, ignored: list[str]) -> None:
    """Say that a run has ended, where its results are, and what can be done.

    Args:
        run: the run's directory.
        steps: after which it has ended.
        ignored: groups of settings that this start has otherwise.
    """
    print(f"run:     {run} has ended after {steps:,} steps; nothing is changed")
    print(f"results: {run / RESULTS}, {run / 'report.html'}, {run / 'model'}, {run / 'samples'}")
    print("next:    a longer trainer.max_steps continues this run, another run_id starts a new one")
    if ignored:
        how = f"sample.py ckpt={run} draws and scores (evaluate=true) with other settings"
        print(f"ignored: {', '.join(ignored)}, which the run has otherwise; {how}")


def check_not_shorter(max_steps: int, steps: int, run: Path) -> None:
    """Refuse a length below the steps that a run has been trained for.

    Raises:
        UserError: which lengths are possible.
    """
    if max_steps < steps:
        told = f"trainer.max_steps={max_steps}: {run} has been trained for {steps:,} steps"
        raise UserError(f"{told}; give at least as many, or another run_id")


def _changed_groups(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The top-level names of settings that decide results and differ."""
    before = dict(leaves(add_defaults(old, "")))
    now = dict(leaves(add_defaults(new, "")))
    for name in before.keys() | now.keys():
        group = name.split(".")[0]
        if before.get(name) != now.get(name) and not {name, group} & {*WHERE_AND_HOW, "experiment_name"}:
            yield group
