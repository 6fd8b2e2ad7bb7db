"""Finished runs: the record in metrics.json that a run has ended, and what a new start does then.

`"finished": true` is written last of all, when training, scores, samples, model and pages are
complete. A run that was killed before is not finished, and a new start repeats what follows the
last step. The record is removed when a longer length is started; the results of the shorter one
stay in metrics.json under `earlier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blackout.cli.run_directory import UNRELATED_SETTINGS
from blackout.component import leaves
from blackout.config.descriptions import add_defaults
from blackout.distributed import is_first
from blackout.errors import UserError, escaped, refuse
from blackout.files import write_json
from blackout.protocols import Source
from blackout.safe_reading import read_mapping

RESULTS = "metrics.json"
# arguments of the Trainer that decide when training ends
LENGTH_ARGUMENTS = ("max_steps", "max_time", "min_steps", "min_time")


def read_results(run: Path) -> dict[str, Any]:
    """Return the content of a run's metrics.json; empty if there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = run / RESULTS
    return read_mapping(path, advice="; remove it to go on") if path.exists() else {}


def finished_steps(results: Mapping[str, Any]) -> int | None:
    """Return the number of optimiser steps after which a run finished; None if it has not."""
    steps = results.get("training_steps")
    return steps if results.get("finished") is True and isinstance(steps, int) else None


def mark_finished(run: Path, source: Source) -> None:
    """Record in one atomic write that a run is complete, and which data it was trained on."""
    record = {"finished": True, "training_data": source.fingerprint("train")}
    write_json({**read_results(run), **record}, run / RESULTS)


def mark_unfinished(run: Path) -> None:
    """Remove the record that a run is complete, before anything of it changes."""
    results = read_results(run)
    if results.get("finished"):
        write_json({**results, "finished": False}, run / RESULTS)


def add_earlier_results(report: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """Return the report of a run with the results in its directory that it does not repeat.

    They are listed under `earlier`: results of a shorter length, or scores of the same length that
    another start had chosen.

    Args:
        report: what is to be written to metrics.json.
        run: the run's directory.

    Raises:
        UserError: the metrics.json there is damaged.
    """
    results = read_results(run)
    candidates = results.pop("earlier", None)
    if not isinstance(candidates, list):
        candidates = []
    results.pop("finished", None)
    if results:
        candidates = [*candidates, results]
    earlier = [candidate for candidate in candidates if not _repeats(report, candidate)]
    return {**report, "earlier": earlier} if earlier else dict(report)


def _repeats(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether a report has all values of an earlier one of the same step."""
    if report.get("training_steps") != earlier.get("training_steps"):
        return False
    return set(earlier.get("values", {})) <= set(report.get("values", {}))


def has_ended(run: Path, config: Mapping[str, Any], source: Source) -> bool:
    """Return whether a run has finished with as many steps as it is started with now.

    If so, a few lines say where its results are, and nothing is changed. The caller has compared
    the settings with those of the run.

    Args:
        run: the run's directory.
        config: the settings of this start.
        source: the data of this start.

    Raises:
        UserError: the run has finished with more steps, on other data, or without a checkpoint from
            which it could continue.
    """
    if not (run / "config.yaml").exists():
        return False
    # Settings first: a process that starts a longer length removes the record before writing them.
    settings = read_mapping(run / "config.yaml")
    results = read_results(run)
    steps = finished_steps(results)
    if steps is None:
        return False
    trainer = config["trainer"]
    earlier_trainer = settings.get("trainer")
    if not isinstance(earlier_trainer, Mapping):
        earlier_trainer = {}
    check_not_shorter(trainer["max_steps"], steps, run)
    if results.get("training_data") != source.fingerprint("train"):
        raise UserError(f"{run} has ended and was trained on other data: choose another run_id")
    has_new_length = any(
        trainer.get(name) != earlier_trainer.get(name) for name in LENGTH_ARGUMENTS
    )
    if trainer["max_steps"] > steps and has_new_length:
        has_checkpoint = any((run / "checkpoints").glob("*.ckpt"))
        refuse(
            not has_checkpoint,
            f"{run} has ended after {steps:,} steps and has no checkpoint to continue from: "
            "choose another run_id",
        )
        return False
    if is_first():
        _print_end(run, steps, _changed_groups(settings, config))
    return True


def check_not_shorter(max_steps: int, steps: int, run: Path) -> None:
    """Refuse a length below the number of steps that a run has been trained for.

    Raises:
        UserError: which lengths are possible.
    """
    if max_steps < steps:
        raise UserError(
            f"trainer.max_steps={max_steps}: {run} has been trained for {steps:,} steps; "
            "choose at least as many, or another run_id"
        )


def _print_end(run_directory: Path, steps: int, ignored_groups: list[str]) -> None:
    """Print that a run has ended, where its results are, and what can be done.

    Args:
        run_directory: of the run.
        steps: after which it ended.
        ignored_groups: groups of settings in which this start differs.
    """
    run = escaped(run_directory)
    print(f"run:     {run} has ended after {steps:,} steps; nothing is changed")
    print(f"results: {run}/{RESULTS}, {run}/report.html, {run}/model, {run}/samples")
    print("next:    a longer trainer.max_steps continues this run, another run_id starts a new one")
    if ignored_groups:
        groups = ", ".join(ignored_groups)
        print(
            f"ignored: new settings of {groups}, with which the run was not trained; "
            f"sample.py ckpt={run} draws samples, and with evaluate=true scores, with other ones"
        )


def _changed_groups(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the top-level names of settings that decide results and differ, sorted."""
    old_values = dict(leaves(add_defaults(old, "")))
    new_values = dict(leaves(add_defaults(new, "")))
    ignored_names = {*UNRELATED_SETTINGS, "experiment_name"}
    changed: set[str] = set()
    for name in old_values.keys() | new_values.keys():
        group = name.split(".")[0]
        if not {name, group} & ignored_names and old_values.get(name) != new_values.get(name):
            changed.add(group)
    return sorted(changed)
