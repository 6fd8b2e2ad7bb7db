"""Counts of samples at both ends of their range, and what they depend on.

    python -m benchmarks.range_ends exact --data data
    python -m benchmarks.range_ends bits --models NAME=RUN ...
    python -m benchmarks.range_ends predictions --data data --models NAME=RUN ...
    python -m benchmarks.range_ends samplers --data data --models NAME=RUN ...
    python -m benchmarks.range_ends few_steps --data data --models NAME=RUN ...
    python -m benchmarks.range_ends test --data data --models NAME=RUN ...
    python -m benchmarks.range_ends recognised --data data --models NAME=RUN ...

exact        samplers with the exact denoiser of a known distribution, so that all errors are
             theirs; exact draws in the first row
bits         bounds of trained models on test images, from the metrics of their runs
predictions  mean predicted and mean true missing count of validation images, late in reverse time,
             of elements with X_t = 0, between, and close to max_count
samplers     samplers of trained models, judged on validation images by a random forest
few_steps    the same for four evaluations, on a grid whose both ends are moved in
test         the same on test images and fresh seeds, judged by gradient boosting
recognised   share of samples that a classifier of MNIST recognises, with at least 0.9

Each command replaces its table in benchmarks/results/range_ends.json. The data are MNIST, with
`--quick` the digits of 8x8 pixels. `low` is the share of counts of 1 to 10 (1 of digits), `high`
that of the five below max_count (one of digits).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.classifier_scores import network_classifier
from benchmarks.measure import machine
from benchmarks.peers.comparison import independent_pixels
from benchmarks.peers.judges import CONFIDENCE, FOLDS, auc_with_error, two_sample_auc
from benchmarks.peers.results import Row, markdown
from blackout import BlackoutDiffusion, load_model
from blackout.data import CountData, digits, mnist
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    MultistepLeap,
    PoissonLeap,
    Trapezoidal,
)
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler, choose_sampler
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.survival import time_of_logit
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams

RESULTS = Path(__file__).parent / "results" / "range_ends.json"
OUTLIERS = 0.03  # share of pixels of `ImageMixture` that come from the histogram of all pixels
BIN_WIDTH = 16  # of its bins between the ends of the range
LARGEST_LOW = 10  # counts 1..10 are the low end, as in `blackout.evaluation.count_comparison`
HIGH_WIDTH = 5  # counts below max_count that are the high end, likewise
CROP = slice(7, 21)  # rows and columns of MNIST in the table `exact`
NUM_IMAGES = 50  # of the known distribution
VALIDATION_SEED = 1
EVALUATIONS = (4, 10, 25, 100)
AVERAGED = 4  # pixels per side that are averaged before the second forest
FEW_STEPS_ENDS = (0.0, -9.4)  # the last is close to the earliest that is accepted for MNIST
BOOSTING_ROUNDS = 50
LATE_LOGITS = (0.0, 2.0, 4.0, 5.0)  # of the table `predictions`
EXACT_KERNELS: dict[str, Kernel] = {
    "poisson": PoissonLeap(),
    "binomial_bridge": BinomialBridge(),
    "trapezoidal": Trapezoidal(),
    "multistep": MultistepLeap(),
}


@dataclass(frozen=True)
class Ends:
    """Bands of counts at the ends of the range 0..max_count."""

    max_count: int

    @property
    def low(self) -> int:
        """The largest count of the low end."""
        return LARGEST_LOW if self.max_count > 2 * LARGEST_LOW else 1

    @property
    def high(self) -> int:
        """The smallest count of the high end."""
        return self.max_count - (HIGH_WIDTH if self.max_count > 2 * LARGEST_LOW else 1)

    def shares(self, histogram: Tensor) -> dict[str, float]:
        """Return the share of every band, of a distribution over counts [max_count + 1]."""
        return {
            "zero": float(histogram[0]),
            "low": float(histogram[1 : self.low + 1].sum()),
            "high": float(histogram[self.high : self.max_count].sum()),
            "max": float(histogram[self.max_count]),
        }


def histogram_of(counts: Tensor, max_count: int) -> Tensor:
    """Return the distribution of counts of any shape, float64 [max_count + 1]."""
    number = torch.bincount(counts.flatten().long(), minlength=max_count + 1).double()
    return number / number.sum()


# --- a known distribution


class ImageMixture:
    """A distribution of images whose denoiser is exact.

    An image k of a list is drawn, and then every pixel independently: with probability 0.97 from
    the histogram of all pixels restricted to the bin of pixel k, else from the whole histogram.
    Bins are 0, the two ends of the range, and intervals of 16 counts between them.

    Args:
        images: [K, *shape].
        histogram: of all pixels, float64 [max_count + 1].
    """

    def __init__(self, images: Tensor, histogram: Tensor) -> None:
        self.images = images.flatten(1).long()
        self.shape = tuple(images.shape[1:])
        self.max_count = len(histogram) - 1
        levels = torch.arange(len(histogram))
        bins = self._bins(levels)
        same_bin = (bins[:, None] == bins[None]).double()
        local = same_bin * (histogram + 1e-9)
        local = local / local.sum(1, keepdim=True)
        self.conditional = (1 - OUTLIERS) * local + OUTLIERS * histogram  # [pixel of k, X_0]

    def _bins(self, levels: Tensor) -> Tensor:
        """Return the number of the bin of every count."""
        ends = Ends(self.max_count)
        if self.max_count <= 2 * LARGEST_LOW:
            return levels
        middle = 2 + (levels - ends.low - 1) // BIN_WIDTH
        bins = torch.where(levels <= ends.low, 1, middle)
        bins = torch.where(levels >= ends.high, len(levels), bins)
        return torch.where(levels == 0, 0, bins)

    def histogram(self) -> Tensor:
        """Return the distribution of a pixel, over all pixels, float64 [max_count + 1]."""
        return self.conditional[self.images.flatten()].mean(0)

    def mean(self) -> Tensor:
        """Return E[X_0], float64 of the images' shape."""
        levels = torch.arange(self.max_count + 1, dtype=torch.float64)
        return (self.conditional @ levels)[self.images].mean(0).reshape(self.shape)

    def ends(self) -> GridEnds:
        """Return first and final time of a grid, by the exact covariance of the pixels."""
        levels = torch.arange(self.max_count + 1, dtype=torch.float64)
        pixel_means = (self.conditional @ levels)[self.images]
        mean = pixel_means.mean(0)
        second_moment = (self.conditional @ levels.square())[self.images].mean(0)
        covariance = torch.cov(pixel_means.T, correction=0)
        covariance.diagonal().copy_(second_moment - mean.square())
        excess = (covariance - torch.diag(mean)) / torch.sqrt(mean[:, None] * mean)
        dispersion = float(covariance.sum() / mean.sum())
        return GridEnds(dispersion, float(torch.linalg.norm(excess)), self.max_count)

    def draw(self, number: int, seed: int) -> Tensor:
        """Draw exact samples [number, *shape]."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(self.images), (number,), generator=generator)
        weights = self.conditional[self.images[rows]].flatten(0, 1)
        counts = torch.multinomial(weights, 1, generator=generator)
        return counts.reshape(number, *self.shape)

    def negative_log_likelihood(self, samples: Tensor) -> float:
        """Return the mean of -log p(X_0) per pixel, in nats."""
        table = self.conditional.log()
        nats = -self._log_mean(self._sum_over_pixels(table, samples.flatten(1).long()))
        return float(nats.mean()) / self.images.shape[1]

    def _log_mean(self, log_likelihood: Tensor) -> Tensor:
        """Return the logarithm of the mean over images, [B], of likelihoods [B, K]."""
        return torch.logsumexp(log_likelihood, 1) - math.log(len(self.images))

    def _sum_over_pixels(self, table: Tensor, x: Tensor) -> Tensor:
        """Return sum_i table[pixel i of k, x_bi], float64 [B, K]."""
        total = torch.zeros(len(x), len(self.images), dtype=torch.float64)
        for pixel in range(x.shape[1]):
            total += table[:, x[:, pixel]][self.images[:, pixel]].T
        return total

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return E[X_0 - X_t | X_t], by Bayes' rule."""
        # 1. log P(x | n) of every state x and count n, up to a function of x, which cancels.
        n = torch.arange(self.max_count + 1, dtype=torch.float64)
        missing = (n - n[:, None]).clamp(min=0)
        log_ways = torch.lgamma(n + 1) - torch.lgamma(n[:, None] + 1) - torch.lgamma(missing + 1)
        log_pmf = log_ways - n[:, None] * t + missing * torch.log(-torch.expm1(-t))
        likelihood = torch.where(n >= n[:, None], log_pmf, -math.inf).exp()

        # 2. P(x | pixel v) and E[N | x, pixel v].
        evidence = self.conditional @ likelihood.T
        missing_mean = self.conditional @ (likelihood * missing).T / evidence

        # 3. Mean over images, by their posterior.
        x = xt.flatten(1).long()
        posterior = torch.softmax(self._sum_over_pixels(evidence.log(), x), 1)
        means = []
        for pixel in range(x.shape[1]):
            values = missing_mean[:, x[:, pixel]][self.images[:, pixel]]
            means.append((posterior * values.T).sum(1))
        mean = torch.stack(means, 1).reshape(xt.shape).clamp(min=1e-30)
        return CountPrediction(mean.float(), mean.log())


def exact(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of samplers with an exact denoiser."""
    data = load_data(options)
    train = torch.as_tensor(data.train)
    if not options.quick:
        train = train[:, :, CROP, CROP]
    prior = ImageMixture(train[:NUM_IMAGES], histogram_of(train, data.max_count))
    truth = prior.histogram()
    ends = prior.ends()

    def row(name: str, evaluations: int | None, last: float | None, samples: Tensor) -> Row:
        histogram = histogram_of(samples, data.max_count)
        return {
            "sampler": name,
            "last logit": last,
            "evaluations": evaluations,
            **Ends(data.max_count).shares(histogram),
            "histogram distance": float((histogram - truth).abs().sum()) / 2,
            "nats per pixel": prior.negative_log_likelihood(samples),
        }

    yield row("exact draws", None, None, prior.draw(options.num_samples, VALIDATION_SEED))
    for last in (ends.last, ends.last / 2):
        for evaluations in options.evaluations:
            for name, kernel in EXACT_KERNELS.items():
                if last != ends.last and name != "multistep":
                    continue
                per_step = 2 if isinstance(kernel, Trapezoidal) else 1
                grid = logit_times((evaluations + per_step - 1) // per_step, ends.first, last)
                plan = SamplingPlan(
                    prior, PureDeath(data.max_count), grid, kernel, data_mean=prior.mean()
                )
                streams = SampleStreams(VALIDATION_SEED, torch.arange(options.num_samples))
                samples = run_sampler(plan, (options.num_samples, *prior.shape), streams)
                yield row(name, evaluations, last, samples)


# --- trained models


def classes_of(model: BlackoutDiffusion, number: int) -> list[int] | None:
    """Return the classes in turn, for a conditional model; else None."""
    if model.num_classes is None:
        return None
    return [index % model.num_classes for index in range(number)]


def held_out(options: argparse.Namespace, data: CountData) -> Tensor:
    """Return the images of the chosen split."""
    return torch.as_tensor(getattr(data, options.split))


def samplers(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of samplers of trained models, references first."""

    def scores(images: Tensor, reference: Tensor) -> dict[str, float]:
        area, error = two_sample_auc(images, reference)
        averages, reference_averages = (
            F.avg_pool2d(x.float(), AVERAGED) for x in (images, reference)
        )
        coarse_area, coarse_error = two_sample_auc(averages, reference_averages)
        return {
            "forest AUC": area,
            "forest AUC error": error,
            "AUC of averages": coarse_area,
            "AUC of averages error": coarse_error,
        }

    yield from judge_models(options, scores)


def few_steps(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of `samplers` for four evaluations, on a grid with both ends moved in."""
    options.grid = partial(logit_times, first=FEW_STEPS_ENDS[0], last=FEW_STEPS_ENDS[1])
    options.evaluations = [4]
    yield from samplers(options)


def test(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of samplers on test images, judged by boosted trees, which chose nothing."""
    options.split = "test"

    def scores(images: Tensor, reference: Tensor) -> dict[str, float]:
        area, error = boosting_auc(images, reference)
        return {"boosting AUC": area, "boosting AUC error": error}

    yield from judge_models(options, scores)


def recognised(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of samplers, with the share of samples that a classifier recognises."""
    options.split = "test"
    max_count = load_data(options).max_count
    classifier = network_classifier(partial(load_data, options), max_count)

    def scores(images: Tensor, reference: Tensor) -> dict[str, float]:
        is_recognised = classifier(images).amax(1) >= CONFIDENCE
        number, total = int(is_recognised.sum()), len(images)
        smoothed = (number + 2) / (total + 4)  # Agresti and Coull 1998: no error is 0
        error = math.sqrt(smoothed * (1 - smoothed) / (total + 4))
        return {"recognised": number / total, "recognised error": error}

    yield from judge_models(options, scores)


def judge_models(
    options: argparse.Namespace, scores: Callable[[Tensor, Tensor], dict[str, float]]
) -> Iterator[Row]:
    """Yield a row for each model, sampler and number of evaluations, after two references.

    Training images are what perfect samples are like; independent pixels are the simplest model.

    Args:
        options: of the command.
        scores: (images, held-out images) -> scores by name.
    """
    data = load_data(options)
    generator = torch.Generator().manual_seed(options.seed)
    real = held_out(options, data)
    reference = real[torch.randperm(len(real), generator=generator)[: options.num_samples]]
    train = torch.as_tensor(data.train)

    def row(model: str, name: str, evaluations: int | None, images: Tensor) -> Row:
        variances = [float(x.double().flatten(1).var(0).sum()) for x in (images, reference)]
        return {
            "model": model,
            "sampler": name,
            "evaluations": evaluations,
            **Ends(data.max_count).shares(histogram_of(images, data.max_count)),
            "variance ratio": variances[0] / variances[1],
            **scores(images, reference),
        }

    rows = torch.randperm(len(train), generator=generator)[: options.num_samples]
    yield row("training images", "-", None, train[rows])
    pixels = independent_pixels(train, options.num_samples, options.seed)
    yield row("independent pixels", "-", None, pixels)
    for label, model in open_models(options):
        classes = classes_of(model, options.num_samples)
        for evaluations in options.evaluations:
            for name in options.samplers:
                settings = with_evaluations(model, name, evaluations)
                if options.grid is not None:
                    settings = replace(settings, grid=options.grid)
                images = model.sample(
                    options.num_samples, options.seed, sampler=settings, classes=classes
                )
                yield row(label, name, evaluations, images)


def bits(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the bounds on test images that the runs measured at their end."""
    for label, path in named_runs(options):
        metrics = json.loads((path / "metrics.json").read_text(encoding="utf-8"))["values"]
        yield {
            "model": label,
            "bits per dimension": metrics["test/bits_per_dim"],
            "bits per dimension error": metrics["test/bits_per_dim_error"],
        }


def boosting_auc(samples: Tensor, reference: Tensor) -> tuple[float, float]:
    """Return the AUC of boosted trees that separate samples from real images, and its error."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    number = min(len(samples), len(reference))
    x = torch.cat([samples[:number], reference[:number]]).flatten(1).numpy()
    y = [1] * number + [0] * number
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    trees = HistGradientBoostingClassifier(max_iter=BOOSTING_ROUNDS, random_state=0)
    score = cross_val_predict(trees, x, y, cv=folds, method="predict_proba")[:, 1]
    return auc_with_error(score[:number], score[number:])


def with_evaluations(model: BlackoutDiffusion, name: str, evaluations: int) -> Sampler:
    """Return a sampler of at most so many network evaluations per sample."""
    for num_steps in range(evaluations, 0, -1):
        settings = choose_sampler(model.sampler, name, num_steps)
        if evaluations_per_sample(model, settings) <= evaluations:
            return settings
    raise ValueError(f"{name} needs more than {evaluations} evaluations: raise --evaluations")


@torch.no_grad()
def predictions(options: argparse.Namespace) -> Iterator[Row]:
    """Yield mean predicted and true missing counts of validation images by X_t."""
    data = load_data(options)
    band = Ends(data.max_count)
    groups = {
        "0": (0, 0),
        f"1 to {band.low}": (1, band.low),
        "between": (band.low + 1, band.high - 1),
        f"{band.high} to {band.max_count - 2}": (band.high, band.max_count - 2),
        f"{band.max_count - 1}": (band.max_count - 1, band.max_count - 1),
    }
    real = held_out(options, data)[: options.num_samples]
    labels = getattr(data, f"{options.split}_labels")
    models = open_models(options)
    streams = SampleStreams(options.seed, torch.arange(len(real)))
    for step, late_logit in enumerate(LATE_LOGITS):
        t = time_of_logit(torch.tensor(late_logit, dtype=torch.float64))
        xt, missing = PureDeath(data.max_count).observe(real, t, streams.step(step))
        predicted = {}
        for label, model in models:
            classes = None
            if model.num_classes is not None:
                classes = labels[: options.num_samples].long()
            with model.sampler.evaluating(model.averaged):
                predicted[label] = model.denoiser(classes)(xt, t).mean
        for name, (first, last) in groups.items():
            is_member = (xt >= first) & (xt <= last)
            if not is_member.any():
                continue
            yield {
                "logit": late_logit,
                "X_t": name,
                "elements": int(is_member.sum()),
                "missing": float(missing[is_member].double().mean()),
                **{label: float(y[is_member].double().mean()) for label, y in predicted.items()},
            }


# --- command and results

TABLES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "exact": exact,
    "bits": bits,
    "predictions": predictions,
    "samplers": samplers,
    "few_steps": few_steps,
    "test": test,
    "recognised": recognised,
}


def load_data(options: argparse.Namespace) -> CountData:
    """Return MNIST, or with `--quick` the digits."""
    return digits() if options.quick else mnist(options.data)


def named_runs(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Return the names and the paths of `--models`."""
    runs = []
    for argument in options.models:
        label, separator, path = argument.partition("=")
        if not separator:
            raise SystemExit(f"--models {argument} must be NAME=RUN, such as binned={argument}")
        runs.append((label, Path(path)))
    return runs


def open_models(options: argparse.Namespace) -> list[tuple[str, BlackoutDiffusion]]:
    """Return the trained models with their names."""
    models = []
    for label, path in named_runs(options):
        model = load_model(path)
        assert isinstance(model, BlackoutDiffusion)
        models.append((label, model))
    return models


def describe_command(arguments: Sequence[str]) -> str:
    """Return the command without paths of one machine."""
    words = []
    for option, argument in pairwise(["", *arguments]):
        name, separator, _ = argument.partition("=")
        if option in ("--data", "--json"):
            words.append({"--data": "data", "--json": "FILE"}[option])
        elif separator:
            words.append(f"{name}=<run>")
        else:
            words.append(argument)
    return " ".join(["python -m benchmarks.range_ends", *words])


def table(results: Mapping[str, Any], name: str) -> str:
    """Return a table of the result file in Markdown, with its command, machine and date.

    Args:
        results: content of the result file.
        name: of the table.
    """
    command, device, date = (
        results[name]["command"],
        results[name]["machine"]["device"],
        results[name]["machine"]["date"],
    )
    return f"{markdown(results[name]['rows'])}\n\n`{command}`, {device}, 1 thread, {date}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one table, print it, and write it into the result file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.range_ends",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", default="data", help="folder with MNIST")
    parser.add_argument(
        "--models",
        nargs="+",
        default=[],
        metavar="NAME=RUN",
        help="trained models: a name, and a run directory, .ckpt file or exported model",
    )
    parser.add_argument("--samplers", nargs="+", default=["multistep"])
    parser.add_argument("--evaluations", type=int, nargs="+", default=list(EVALUATIONS))
    parser.add_argument("--num_samples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=VALIDATION_SEED)
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--quick", action="store_true", help="digits, a check that it runs")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.set_defaults(grid=None)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.quick:
        options.num_samples = 40
        options.evaluations = [4]

    rows = []
    for row in TABLES[options.table](options):
        rows.append(row)
        print(row, flush=True)
    results = {}
    if options.json.exists():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    results[options.table] = {
        "command": describe_command(list(sys.argv[1:] if argv is None else argv)),
        "machine": machine(torch.device("cpu")) | {"quick": options.quick},
        "rows": rows,
    }
    options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table(results, options.table))


if __name__ == "__main__":
    main()
