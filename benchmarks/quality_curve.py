"""Score against network evaluations, for several samplers of one trained model: a table and a plot.

    python benchmarks/quality_curve.py runs/digits/<run_id>
    python benchmarks/quality_curve.py model --samplers poisson panjer@optimal trapezoidal --evaluations 10 25 50

A sampler is the name of a file in conf/sampler, with @ and the name of a file in conf/sampler/grid for another grid
than the training schedule's. It takes as many steps as the evaluations allow. The score is a Frechet distance to the
held-out images: between pixels, or in the features of the classifier of `--metrics digits` or `mnist`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra.utils
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor

from blackout import BlackoutDiffusion, load_model
from blackout.cli import one_line_errors
from blackout.data import CountData
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError
from blackout.evaluation import FeatureStatistics, Scorer, frechet_distance
from blackout.training.build import instantiate
from blackout.training.generate import describe_sampler

CONF = Path(__file__).resolve().parents[1] / "conf"
SAMPLERS = (
    "binomial_bridge_nearest@fisher", "binomial_bridge_nearest@logit", "binomial_bridge@logit", "poisson@fisher",
    "poisson@logit", "poisson@optimal", "panjer@logit", "panjer@optimal", "posterior_bridge@logit",
    "posterior_bridge@optimal", "trapezoidal@logit", "trapezoidal@optimal",
)  # fmt: skip
Score = Callable[[Tensor], float]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run directory, .ckpt file or exported model")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--evaluations", nargs="+", type=int, default=[10, 25, 50, 100])
    parser.add_argument("--baseline", type=int, default=1000, help="evaluations of the paper's sampler, 0 for none")
    parser.add_argument("--num_samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--metrics", choices=["pixels", "digits", "mnist"], default="pixels")
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--out", type=Path, default=Path("quality_curve"), help="writes <out>.csv and <out>.png")
    options = parser.parse_args(arguments)
    with one_line_errors():
        run(options)


def run(options: argparse.Namespace) -> None:
    """Measure every sampler at every number of evaluations, print as results come, write table and plot."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = load_model(options.model).to(device)
    data = load_data(module.config["data"]["name"], options.data_dir)
    score = scorer(options.metrics, data, options.num_samples)
    jobs = [(name, n) for name in options.samplers for n in options.evaluations]
    if options.baseline:
        jobs.append(("binomial_bridge_nearest@fisher", options.baseline))
    print(f"real training images: {score(data.train[: options.num_samples]):.2f}", flush=True)
    rows = []
    for name, evaluations in jobs:
        try:
            sampler = make_sampler(name, module, evaluations)
            began = time.perf_counter()
            scores = [score(module.sample(options.num_samples, seed, sampler)) for seed in range(options.seeds)]
        except ValueError as error:
            print(f"{name:<34}{error}", flush=True)
            continue
        seconds = (time.perf_counter() - began) / options.seeds
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        rows.append(
            {"sampler": name, "evaluations": module.evaluations(sampler), "score": statistics.fmean(scores),
             "std": spread, "seconds": seconds}
        )  # fmt: skip
        line = "{sampler:<34}{evaluations:>6}{score:>10.2f} +- {std:<8.2f}{seconds:>8.1f} s"
        print(line.format(**rows[-1]), flush=True)
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plot(rows, options.metrics, options.out.with_suffix(".png"))


def make_sampler(name: str, module: BlackoutDiffusion, evaluations: int) -> Sampler:
    """The named sampler with as many steps as the evaluations allow."""
    kernel, _, grid = name.partition("@")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [f"sampler={kernel}", "ckpt=x"] + ([f"sampler/grid={grid}"] if grid else [])
        config = OmegaConf.to_container(compose("sample", overrides), resolve=True)
    assert isinstance(config, dict)
    for num_steps in range(evaluations, 0, -1):
        described = describe_sampler({**config["sampler"], "num_steps": num_steps}, module.config)
        sampler: Sampler = instantiate(described, "sampler")
        if module.evaluations(sampler) <= evaluations:
            return sampler
    raise UserError(f"{name} cannot do with {evaluations} evaluations")


def load_data(name: str, data_dir: str) -> CountData:
    """The data a model was trained on, by name."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = compose("train", [f"dataset={name}", f"data_dir={data_dir}"])
    data: CountData = hydra.utils.instantiate(config.dataset, _convert_="all")
    return data


def scorer(metrics: str, data: CountData, num_samples: int) -> Score:
    """Counts -> Frechet distance to the held-out images."""
    if metrics == "pixels":
        reference = statistics_of(data.test)
        return lambda counts: frechet_distance(*statistics_of(counts), *reference)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = compose("train", [f"metrics={metrics}"]).metrics
    plain: Any = OmegaConf.to_container(config, resolve=True)
    scores: Scorer = instantiate({**plain, "scores": ["fd"], "reference": "test"}, "metrics")
    run = scores.begin(data, num_samples)

    def score(counts: Tensor) -> float:
        run.reset()
        run.update(counts, torch.arange(len(counts)))
        return next(iter(run.compute().values()))

    return score


def statistics_of(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of pixels."""
    features = FeatureStatistics(counts[0].numel())
    features.update(counts.flatten(1).double())
    mean, covariance = features.compute()[:2]
    return mean, covariance


def plot(rows: list[dict[str, Any]], metrics: str, path: Path) -> None:
    """One line per sampler, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    for name in dict.fromkeys(row["sampler"] for row in rows):
        own = sorted((row for row in rows if row["sampler"] == name), key=lambda row: row["evaluations"])
        axes.errorbar(
            [row["evaluations"] for row in own], [row["score"] for row in own], [row["std"] for row in own],
            marker="o", markersize=3, label=name,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="network evaluations per sample")
    axes.set_ylabel(f"Frechet distance ({metrics})")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
