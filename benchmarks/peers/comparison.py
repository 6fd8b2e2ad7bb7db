"""Trainings of several generators of digits, and judgement of their samples.

Entry            a method of a table
Judgement        what samples are judged by
choose           the candidate with the best samples after a short training
image_options    options of a command; with `--add`, those of the file of results
earlier_results  what that file has
train_in_turns   trains all methods in turn, judges their samples and writes the results
summarise        means over trainings, with errors
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.measure import machine
from benchmarks.peers.budget import Budget, Generator, train
from benchmarks.peers.generators import Blackout
from benchmarks.peers.judges import Judge, mean_and_error, two_sample_auc
from benchmarks.peers.results import Row, make_parser, parse, write_results
from blackout.data import CountData

EVALUATIONS: tuple[int, ...] = (10, 25, 100)
TUNING_EVALUATIONS = 25
SCORES = ("Fréchet distance", "recognised", "forest AUC", "pixels at 0", "pixels at 16")


@dataclass(frozen=True)
class Entry:
    """A method of a table.

    Args:
        name: of the method.
        make: seed -> untrained generator.
        budget: of a training.
        settings: what was chosen, in words.
        samplers: names of the samplers that draw from the model; None for its own.
    """

    name: str
    make: Callable[[int], Generator]
    budget: Budget
    settings: str = ""
    samplers: tuple[str | None, ...] = (None,)


@dataclass(frozen=True)
class Judgement:
    """What samples are judged by.

    Args:
        data: with the held-out images.
        judge: the classifier.
        num_samples: of every generator.
        evaluations: numbers of network evaluations per sample.
    """

    data: CountData
    judge: Judge
    num_samples: int
    evaluations: tuple[int, ...] = EVALUATIONS

    def scores(self, samples: Tensor) -> dict[str, float]:
        """Return all scores of samples against test images."""
        reference = images_of(self.data, "test")
        area, error = two_sample_auc(samples, reference)
        return {
            "Fréchet distance": self.judge.frechet(samples, reference),
            "recognised": self.judge.recognised(samples),
            "forest AUC": area,
            "forest AUC block error": error,
            "pixels at 0": float((samples == 0).double().mean()),
            "pixels at 16": float((samples == self.data.max_count).double().mean()),
        }


def images_of(data: CountData, split: str) -> Tensor:
    """Return the images of a split, counts [N, 1, 8, 8]."""
    images = getattr(data, split)
    assert isinstance(images, Tensor)
    return images


def independent_pixels(images: Tensor, num_samples: int, seed: int) -> Tensor:
    """Draw every pixel from its distribution in training images."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(images), (num_samples, *images.shape[1:]), generator=generator)
    return images.gather(0, rows)


def resampled_images(images: Tensor, num_samples: int, seed: int) -> Tensor:
    """Draw training images without replacement.

    Copies of one image in several folds of a cross-validation would tell the forest which images
    are samples.
    """
    generator = torch.Generator().manual_seed(seed)
    return images[torch.randperm(len(images), generator=generator)[:num_samples]]


def choose(
    candidates: Sequence[Entry], judgement: Judgement, earlier: Row | None = None
) -> tuple[Entry, list[Row]]:
    """Return the candidate with the smallest Fréchet distance to validation images, and all trials.

    Args:
        candidates: whose budgets are those of short trainings.
        judgement: judge and number of samples.
        earlier: results whose trials are not repeated; None for none.
    """
    trials: list[Row] = []
    for entry in candidates:
        trial = {"method": entry.name, "settings": entry.settings, "lr": entry.budget.lr}
        if earlier is not None:
            (distance,) = [
                other["distance"]
                for other in earlier["tuning"]
                if all(other[name] == value for name, value in trial.items())
            ]
            trials.append({**trial, "distance": distance})
            continue
        generator = entry.make(0)
        train(generator, judgement.data, entry.budget, seed=0)
        samples = generator.sample(judgement.num_samples, TUNING_EVALUATIONS, 0, entry.samplers[0])
        distance = judgement.judge.frechet(samples, images_of(judgement.data, "val"))
        trials.append({**trial, "distance": distance})
        print(trials[-1], flush=True)
    distances = [trial["distance"] for trial in trials]
    return candidates[distances.index(min(distances))], trials


def run_entry(entry: Entry, seed: int, judgement: Judgement) -> Iterator[Row]:
    """Train a method once, and yield its scores for every sampler and number of evaluations."""
    generator = entry.make(seed)
    steps = train(generator, judgement.data, entry.budget, seed)
    bits = None
    if isinstance(generator, Blackout):
        bits = generator.bits_per_dim(judgement.data)
    for sampler in entry.samplers:
        for evaluations in judgement.evaluations:
            start = time.process_time()
            samples = generator.sample(judgement.num_samples, evaluations, seed, sampler)
            seconds = time.process_time() - start
            name = entry.name if sampler is None else f"{entry.name}, {sampler}"
            run = {"method": name, "evaluations": evaluations, "training": seed, "steps": steps}
            run |= {"bits/dim": bits, **judgement.scores(samples), "sampling CPU s": seconds}
            print(run, flush=True)
            yield run


def baseline_runs(judgement: Judgement, seeds: Sequence[int]) -> Iterator[Row]:
    """Judge training images and independent pixels."""
    images = images_of(judgement.data, "train")
    baselines = {"training images": resampled_images, "independent pixels": independent_pixels}
    for name, draw in baselines.items():
        for seed in seeds:
            scores = judgement.scores(draw(images, judgement.num_samples, seed))
            run = {"method": name, "evaluations": None, "training": seed, "steps": None}
            yield run | {"bits/dim": None, **scores, "sampling CPU s": None}


def summarise(runs: Sequence[Row], scores: Sequence[str] = SCORES) -> list[Row]:
    """Return a row of each method and number of evaluations: means over trainings and errors.

    The error of a score is the standard error of the mean over trainings, or the mean error that a
    judge states of one training, if that is larger.
    """
    groups: dict[tuple[str, int | None], list[Row]] = {}
    for run in runs:
        groups.setdefault((run["method"], run["evaluations"]), []).append(run)
    rows = []
    for (name, evaluations), members in groups.items():
        row: Row = {"method": name, "evaluations": evaluations}
        for score in scores:
            values = [run[score] for run in members]
            if None in values:
                row |= {score: None, f"{score} error": None}
                continue
            mean, error = mean_and_error(values)
            errors = [] if error is None else [error]
            if f"{score} block error" in members[0]:
                errors.append(mean_and_error([run[f"{score} block error"] for run in members])[0])
            row |= {score: mean, f"{score} error": max(errors, default=None)}
        rows.append(row)
    return rows


def judge_facts(judgement: Judgement) -> dict[str, float]:
    """Return how the classifier does on test images."""
    test = images_of(judgement.data, "test")
    labels = judgement.data.test_labels
    assert labels is not None
    return {
        "accuracy on test images": judgement.judge.accuracy(test, labels),
        "recognised test images": judgement.judge.recognised(test),
    }


def image_options(
    table: str, description: str, defaults: tuple[float, float], argv: Sequence[str] | None
) -> argparse.Namespace:
    """Return the options of a comparison of image generators.

    Args:
        table: name of the result file.
        description: of the command.
        defaults: CPU seconds of a training, and of a tuning trial.
        argv: words of the command line.
    """
    seconds, tuning_seconds = defaults
    parser = make_parser(table, description, seconds=seconds)
    parser.add_argument(
        "--tuning_seconds", type=float, default=tuning_seconds, help="of every tuning trial"
    )
    parser.add_argument("--num_samples", type=int, default=360, help="that are judged")
    parser.add_argument(
        "--add",
        type=int,
        default=0,
        metavar="N",
        help="add N trainings of every method to those of the file, with its settings and steps",
    )
    options = parse(parser, argv)
    if options.quick:
        options.seconds = 0.3
        options.tuning_seconds = 0.1
        options.num_samples = 40
        options.trainings = 1
    earlier = earlier_results(options)
    if earlier is not None:
        options.seconds = earlier["seconds"]
        options.tuning_seconds = earlier["tuning_seconds"]
        options.num_samples = earlier["num_samples"]
        options.trainings = earlier["trainings"] + options.add
    return options


def earlier_results(options: argparse.Namespace) -> Row | None:
    """Return the results to which trainings are added, or None without `--add`."""
    if not options.add:
        return None
    results: Row = json.loads(options.json.read_text(encoding="utf-8"))
    return results


def train_in_turns(
    options: argparse.Namespace,
    title: str,
    entries: Sequence[Entry],
    trials: Sequence[Row],
    judgement: Judgement,
    scores: Sequence[str] = SCORES,
) -> None:
    """Train and judge all methods for every seed, and write the results after each.

    Methods take turns, so that other work on the machine affects all alike. With `--add`, the runs
    of the file are kept, and seeds continue theirs. Every method then has as many steps as its
    first training, because the same CPU seconds are another amount of work on another machine.

    Args:
        options: of `image_options`.
        title: of the table; the budget and the number of trainings are added.
        entries: the methods.
        trials: tuning trials, which the file of results has too.
        judgement: of samples.
        scores: columns of the table.
    """
    earlier = earlier_results(options)
    runs: list[Row] = [] if earlier is None else list(earlier["runs"])
    first = options.trainings - options.add if options.add else 0

    # 1. Budgets. A single step of every method compiles what it needs, which no budget pays for.
    for entry in entries:
        train(entry.make(0), judgement.data, replace(entry.budget, steps=1), seed=0)
    if earlier is not None:
        entries = [with_steps_of(entry, earlier["runs"]) for entry in entries]

    # 2. Trainings.
    for seed in range(first, options.trainings):
        # results of a command that was stopped have baselines of later seeds
        if not any(run["evaluations"] is None and run["training"] == seed for run in runs):
            runs += baseline_runs(judgement, [seed])
        for entry in entries:
            runs += run_entry(entry, seed, judgement)
        write_results(
            options,
            f"{title}, {options.seconds:g} CPU s per training, trainings: {seed + 1}",
            summarise(runs, scores),
            seconds=options.seconds,
            trainings=seed + 1,
            num_samples=options.num_samples,
            judge=judge_facts(judgement),
            tuning_seconds=options.tuning_seconds,
            tuning=list(trials),
            runs=runs,
            **({} if earlier is None else first_facts(options, earlier, range(first, seed + 1))),
        )


def with_steps_of(entry: Entry, runs: Sequence[Row]) -> Entry:
    """Return a method whose trainings have as many steps as its first one among the runs."""
    names = [entry.name if name is None else f"{entry.name}, {name}" for name in entry.samplers]
    steps = next(run["steps"] for run in runs if run["method"] in names)
    return replace(entry, budget=replace(entry.budget, steps=steps))


def first_facts(options: argparse.Namespace, earlier: Row, seeds: Sequence[int]) -> Row:
    """Return command, machine and packages of the first trainings, and those of all added ones.

    Args:
        options: of the command that adds trainings.
        earlier: contents of the file before.
        seeds: of the added trainings.
    """
    addition = {
        "command": options.command,
        "machine": machine(torch.device("cpu")) | {"quick": options.quick},
        "trainings": list(seeds),
    }
    names = ("command", "machine", "packages", "remark")
    facts = {name: earlier[name] for name in names if name in earlier}
    return {**facts, "added": [*earlier.get("added", []), addition]}
