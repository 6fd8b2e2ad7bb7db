r"""Scores by network evaluations, for several samplers of one trained model: a table and a plot.

    python -m benchmarks.quality_curve runs/digits/<run_id>
    python -m benchmarks.quality_curve model --evaluations 10 25 50 \
        --samplers poisson poisson@logit trapezoidal
    python -m benchmarks.quality_curve runs/binarized_mnist/<run_id> --num_samples 256 \
        --metrics pixels mnist

A sampler is a choice of sampler=, optionally with @ and a choice of sampler/grid= instead of the
training schedule's grid, and with its settings after commas:
trapezoidal@logit,grid.last=-7,bfloat16=true. It takes as many steps as the evaluations allow. A
score is a Fréchet distance to the held-out images: between pixels, between means of 4x4 pixels
(`coarse`), or in the features of the classifier of `--metrics digits` or `mnist`. `brightness` is
the mean, in per cent above that of training images. The plot shows the first score. Every sampler
is also compared with the first one at equal evaluations, seed by seed: the mean difference and its
standard error.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.functional import avg_pool2d

from blackout import BlackoutDiffusion, load_model
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.diffusion.checks import try_sampler
from blackout.diffusion.draw import describe_sampler
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, errors_in_one_line
from blackout.evaluation import FeatureStatistics, ImageScorer, frechet_distance

CONF = Path(__file__).resolve().parents[1] / "conf"
SAMPLERS = (
    "binomial_bridge_nearest@fisher",
    "binomial_bridge_nearest@logit",
    "binomial_bridge@logit",
    "poisson@fisher",
    "poisson@logit",
    "posterior_bridge@logit",
    "trapezoidal@logit",
)
OWN = ("pixels", "coarse", "brightness")
Score = Callable[[Tensor], float]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="run directory, .ckpt file or exported model")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--evaluations", nargs="+", type=int, default=[10, 25, 50, 100])
    parser.add_argument(
        "--baseline", type=int, default=1000, help="evaluations of the paper's sampler, 0 for none"
    )
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--num_samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--metrics", nargs="+", choices=[*OWN, "digits", "mnist"], default=["pixels"]
    )
    parser.add_argument("--data_dir", default="data")
    parser.add_argument(
        "--out", type=Path, default=Path("quality_curve"), help="writes <out>.csv and <out>.png"
    )
    options = parser.parse_args(arguments)
    with errors_in_one_line():
        run(options)


def run(options: argparse.Namespace) -> None:
    """Measure every sampler at every number of evaluations, print results, write table and plot."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = load_model(options.model).to(device)
    data = load_data(module.config["data"]["name"], options.data_dir)
    measures = {
        name: scorer(name, data, options.num_samples, options.data_dir) for name in options.metrics
    }
    jobs = [(name, n) for name in options.samplers for n in options.evaluations]
    if options.baseline:
        jobs.append(("binomial_bridge_nearest@fisher", options.baseline))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print_real(data, measures, options.num_samples, seeds)
    rows = []
    first_scores: dict[tuple[int, str], list[float]] = {}
    for name, evaluations in jobs:
        try:
            sampler = make_sampler(name, module, evaluations)
            began = time.perf_counter()
            samples = [module.sample(options.num_samples, seed, sampler=sampler) for seed in seeds]
        except ValueError as error:
            print(f"{name:<40}{error}", flush=True)
            continue
        row: dict[str, Any] = {
            "sampler": name,
            "evaluations": evaluations_per_sample(module, sampler),
        }
        row["seconds"] = (time.perf_counter() - began) / options.seeds
        line = f"{name:<40}{row['evaluations']:>6}"
        for metric, measure in measures.items():
            scores = [measure(counts) for counts in samples]
            row[metric] = statistics.fmean(scores)
            row[f"{metric}_std"] = statistics.stdev(scores) if len(scores) > 1 else 0.0
            line += f"{row[metric]:>10.2f} ± {row[f'{metric}_std']:<8.2f}"
            pairs = zip(scores, first_scores.setdefault((evaluations, metric), scores), strict=True)
            row[f"{metric}_paired"], row[f"{metric}_paired_se"] = paired(
                [score - first_score for score, first_score in pairs]
            )
            line += f"({row[f'{metric}_paired']:+.2f} ± {row[f'{metric}_paired_se']:.2f})"
        rows.append(row)
        print(f"{line}{row['seconds']:>8.1f} s", flush=True)
    with options.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, options.metrics[0], options.out.with_suffix(".png"))


def print_real(
    data: CountData, measures: Mapping[str, Score], number: int, seeds: Sequence[int]
) -> None:
    """Print the scores of independent training images, the reference for all rows."""
    samples = []
    for seed in seeds:
        chosen = torch.randint(
            len(data.train), (number,), generator=torch.Generator().manual_seed(seed)
        )
        samples.append(data.train[chosen])
    line = f"{'real training images':<46}"
    for measure in measures.values():
        scores = [measure(counts) for counts in samples]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        line += f"{statistics.fmean(scores):>10.2f} ± {spread:<8.2f}"
    print(line, flush=True)


def paired(differences: list[float]) -> tuple[float, float]:
    """Return the mean of paired differences and its standard error."""
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return statistics.fmean(differences), error


def make_sampler(name: str, module: BlackoutDiffusion, evaluations: int) -> Sampler:
    """Return the named sampler with as many steps as the evaluations allow."""
    choice, *settings = name.split(",")
    kernel, _, grid = choice.partition("@")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [f"sampler={kernel}", "ckpt=x"] + ([f"sampler/grid={grid}"] if grid else [])
        overrides += [f"sampler.{setting}" for setting in settings]
        config = OmegaConf.to_container(compose("sample", overrides), resolve=True)
    assert isinstance(config, dict)
    for num_steps in range(evaluations, 0, -1):
        described = describe_sampler({**config["sampler"], "num_steps": num_steps}, module.config)
        sampler: Sampler = instantiate(described, "sampler")
        if evaluations_per_sample(module, sampler) <= evaluations:
            try_sampler(module, sampler)
            return sampler
    raise UserError(f"{name} cannot do with {evaluations} evaluations")


def load_data(name: str, data_dir: str) -> CountData:
    """Load the data a model was trained on, by name."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = compose("train", [f"dataset={name}", f"data_dir={data_dir}"])
    data: CountData = instantiate(OmegaConf.to_container(config.dataset, resolve=True), "dataset")
    return data


def scorer(metrics: str, data: CountData, num_samples: int, data_dir: str) -> Score:
    """Return a score: a Fréchet distance to held-out images, or the relative brightness in per
    cent."""
    train = data.train
    test = data.test
    assert isinstance(train, Tensor) and isinstance(test, Tensor)
    if metrics == "brightness":
        return lambda counts: 100 * (float(counts.double().mean() / train.double().mean()) - 1)
    if metrics in ("pixels", "coarse"):
        side = 4 if metrics == "coarse" else 1
        reference = statistics_of(test, side)
        return lambda counts: frechet_distance(*statistics_of(counts, side), *reference)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = compose("train", [f"metrics={metrics}", f"data_dir={data_dir}"]).metrics
    plain: Any = OmegaConf.to_container(config, resolve=True)
    scores: ImageScorer = instantiate({**plain, "scores": ["fd"], "reference": "test"}, "metrics")
    run = scores.begin(data, num_samples)

    def score(counts: Tensor) -> float:
        run.reset()
        run.update({"samples": counts}, torch.arange(len(counts)))
        return next(iter(run.compute().values()))

    return score


def statistics_of(counts: Tensor, side: int = 1) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the means of square patches."""
    values = avg_pool2d(counts.double(), side).flatten(1)
    features = FeatureStatistics(values.shape[1])
    features.update(values)
    mean, covariance = features.compute()[:2]
    return mean, covariance


def plot(rows: list[dict[str, Any]], metric: str, path: Path) -> None:
    """Plot one line per sampler, with logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    for name in dict.fromkeys(row["sampler"] for row in rows):
        sampler_rows = sorted(
            (row for row in rows if row["sampler"] == name), key=lambda row: row["evaluations"]
        )
        axes.errorbar(
            [row["evaluations"] for row in sampler_rows],
            [row[metric] for row in sampler_rows],
            [row[f"{metric}_std"] for row in sampler_rows],
            marker="o",
            markersize=3,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel="network evaluations per sample")
    axes.set_ylabel(f"Frechet distance ({metric})")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
