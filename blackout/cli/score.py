"""`sample.py evaluate=true`: scores of a model's samples, for one or more seeds, or of a file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import Tensor

from blackout.cli.metrics_file import merge_reports, write_baselines, write_scores
from blackout.cli.output_folders import output_folders, shared_folder
from blackout.cli.provenance import data_hashes, provenance
from blackout.cli.sweeps import is_sweep_job
from blackout.comparisons import compare_with_baselines, num_compared_samples
from blackout.config.allowed_components import component_from_file
from blackout.config.choices import list_choices, load_choice
from blackout.config.compose import compose
from blackout.config.descriptions import fill_statistics
from blackout.config.instantiate import instantiate
from blackout.config.settings import optional_path
from blackout.distributed import rank
from blackout.errors import UserError, escaped, refuse
from blackout.evaluation.seed_summary import summarise_seeds
from blackout.files import hash_tensors
from blackout.pictures import save_picture
from blackout.protocols import Conditional, Draw, Drawn, Scorer, Scores, Source
from blackout.results_folders import request_key
from blackout.training.callbacks import reference_scores, score_samples
from blackout.training.family import ComponentFamily
from blackout.training.model import Model

INCEPTION = {
    "_target_": "blackout.evaluation.ImageScorer",
    "extractor": {"_target_": "blackout.evaluation.Inception", "_partial_": True},
    "scores": ["fid", "is", "kid", "prdc"],
}
MIN_INCEPTION_SIDE = 32  # pixels, of CIFAR-10, for which FID and IS are published
# files that a folder with scores of a file must not have yet; the last marks a run directory
SCORE_FILES = ("metrics.json", "scores.png", "config.yaml")
BATCH_SIZE = 512  # samples of a file that are scored together


class Scoring:
    """The scores of one model's samples.

    Everything that can fail is loaded and checked when it is created, before sampling starts.

    Args:
        config: the settings of `sample.py`.
        model: to be scored.
        family: of the model.
        draw: of the samples, which are compared with the data under their condition.

    Raises:
        UserError: data or scores do not fit the model, or there are no data to compare with.
    """

    def __init__(
        self, config: Mapping[str, Any], model: Model, family: ComponentFamily, draw: Draw
    ) -> None:
        self.config = config
        self.model = model
        self.family = family
        family.check_report(model, config)
        self.source = draw.compared_with(model.require_source())
        self.scorer = find_scorer(config, model.config, self.source)
        self.scores: Scores | None = None
        if self.scorer is not None:
            num_samples = config["num_samples"]
            self.scores = self.scorer.begin(self.source, num_samples, model.device)
        elif not _chooses_no_metrics() and isinstance(self.source, Conditional) and rank() == 0:
            print(
                "left out: scores of samples, because the model has no metrics, and data are not "
                f"images of at least {MIN_INCEPTION_SIDE} pixels; metrics=counts chooses some"
            )

    def report(self, draw: Draw, out: Path) -> dict[str, Any]:
        """Return the content of metrics.json, once `scores` has the samples of the first seed.

        Further seeds are drawn here. Every process must call it, and receives the same.

        Args:
            draw: of the samples.
            out: directory of the figure of the first seed, if the scores have one, and of the
                baselines' parameters.
        """
        config = self.config
        report: dict[str, Any] = {"values": {}}
        if draw.condition:
            report["condition"] = dict(draw.condition)

        # 1. Scores of the samples, seed by seed.
        if self.scores is not None and self.scorer is not None:
            values_by_seed = [self.scores.compute()]
            save_figure(self.scores, out)
            for k in range(1, config["seeds"]):
                self.scores.reset()
                values_by_seed.append(score_samples(self.scores, draw.batches, config["seed"] + k))
            report["values"] |= values_by_seed[0]
            if len(values_by_seed) > 1:
                report["over_seeds"] = summarise_seeds(values_by_seed)
            report |= self.scores.provenance()
            device = self.model.device
            report |= reference_scores(self.scorer, self.source, config["num_samples"], device)

        # 2. What the family adds, such as likelihoods, and the comparison with baselines.
        family_report = self.family.report(self.model, self.source, config)
        samples = family_report.pop("sample_values", {})
        baselines = self.family.baselines(self.source, num_compared_samples(samples), config)
        comparison_report = compare_with_baselines(samples, baselines)
        if rank() == 0:
            write_baselines(baselines, comparison_report["comparisons"], out)
        return merge_reports(report, family_report, comparison_report)


def score_file(config: Mapping[str, Any], device: torch.device) -> Path:
    """Score samples in a file or folder against a data set.

    `metrics.json` is written to `out`, or next to a file of samples, or to a folder `scores` if
    other scores are there. Those of a folder go to `<folder>_scores` next to it. Jobs of a sweep
    write it to their own folders.

    Returns:
        The folder of `metrics.json`.

    Raises:
        UserError: no data set, unreadable samples, or samples that do not fit the data.
    """
    start = time.perf_counter()
    samples_path = Path(str(optional_path(config, "samples")))

    # 1. Data, scores and samples.
    refuse(not config["dataset"], "samples=<file> is compared with a data set: add dataset=<name>")
    dataset = fill_statistics(config["dataset"], {"data_dir": config["data_dir"]}, "dataset")
    source: Source = instantiate(dataset, "dataset")
    scorer = find_scorer(config, {}, source)
    if scorer is None:
        raise UserError(
            "metrics=none computes no scores: choose counts, digits, mnist or inception"
        )
    samples = scorer.read(samples_path, source)
    condition = {}
    if "classes" in samples and isinstance(source, Conditional):
        source = source.select_condition(samples["classes"])
        condition = {"condition": dict(source.condition)}
    num_samples = len(samples["samples"])
    scores = scorer.begin(source, num_samples, device)

    def read(indices: Tensor, seed: int) -> Drawn:
        for part in indices.split(BATCH_SIZE):
            yield part, {name: values[part].to(device) for name, values in samples.items()}

    # 2. The folder of the results.
    first_choice = [samples_path.parent]
    name = "scores"
    if samples_path.is_dir():  # which has the samples, and nothing else
        first_choice = []
        name = f"{samples_path.resolve().name}_scores"
    if config["out"] or is_sweep_job():
        first_choice = []
    other_choices = output_folders(optional_path(config, "out"), samples_path.parent, name)
    folders = itertools.chain(first_choice, other_choices)
    samples_hash = hash_tensors("", {"samples": samples["samples"]})
    key = request_key(
        [samples_hash, condition, config["dataset"], config["metrics"], data_hashes(source)]
    )

    # 3. Score, and write the report.
    with shared_folder(folders, key, names=SCORE_FILES, mark=".scored") as out:
        report = {
            "values": score_samples(scores, read, 0),
            **scores.provenance(),
            "samples": str(samples_path),
            **condition,
            **provenance(device, start, source),
            **reference_scores(scorer, source, num_samples, device),
        }
        save_figure(scores, out)
        if rank() == 0:
            write_scores(report, out / "metrics.json")
            print(f"scores of {num_samples} samples in {escaped(out / 'metrics.json')}")
    return out


def save_figure(scores: Scores | None, out: Path) -> None:
    """Write scores.png if the scores have a matplotlib figure."""
    figure = getattr(scores, "figure", None)
    if figure is not None and rank() == 0:
        save_picture(figure(), out / "scores.png")


def find_scorer(
    config: Mapping[str, Any], description: Mapping[str, Any], source: Source
) -> Scorer | None:
    """Return the scores to compute; None for none.

    The first of these that exists: those on the command line, those of the training run, those of
    the data set's recipe, and Inception's for images of at least 32 pixels.

    Args:
        config: the settings of `sample.py`.
        description: of the model; empty without a model.
        source: the data.

    Raises:
        UserError: the model's description names components that are not trusted, or arguments are
            wrong.
    """
    if _chooses_no_metrics():
        return None
    metrics = config["metrics"]
    if not metrics and description.get("metrics"):
        trusted = tuple(config["trusted"])
        data_dir = config["data_dir"]
        metrics = component_from_file(description["metrics"], "metrics", data_dir, trusted)
    if not metrics:
        dataset = HydraConfig.get().runtime.choices.get("dataset")
        metrics = recipe_scores(dataset or find_dataset_choice(description.get("dataset")))
    if not metrics and _fits_inception(source.facts.get("shape", ())):
        metrics = INCEPTION
    return instantiate(metrics, "metrics") if metrics else None


def find_dataset_choice(dataset: Any) -> str | None:
    """Return the choice of `dataset` that has the component of a model's data; None for none.

    Args:
        dataset: description of the data; None without one.
    """
    if not isinstance(dataset, Mapping):
        return None
    for choice in list_choices("dataset"):
        if load_choice("dataset", choice).get("_target_") == dataset.get("_target_"):
            return choice
    return None


def recipe_scores(dataset: str | None) -> Any:
    """Return the scores that conf/recipe/blackout/<dataset>.yaml chooses; None for none."""
    if f"blackout/{dataset}" not in list_choices("recipe"):
        return None
    metrics = compose("train", [f"dataset={dataset}"]).metrics
    return None if metrics is None else OmegaConf.to_container(metrics)


def _fits_inception(shape: Any) -> bool:
    is_image = len(shape) == 3 and shape[0] in (1, 3)
    return is_image and min(shape[1:]) >= MIN_INCEPTION_SIDE


def _chooses_no_metrics() -> bool:
    return bool(HydraConfig.get().runtime.choices.get("metrics") == "none")
