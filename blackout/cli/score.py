"""Scores of a model's samples, over several seeds if asked, or of samples in a file, with their provenance:
`sample.py evaluate=true`.
"""

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

from blackout.cli.metrics_file import write_scores
from blackout.cli.provenance import data_hashes, provenance
from blackout.cli.run_directory import output_folders, shared_folder
from blackout.cli.sweeps import sweeping
from blackout.comparisons import compared_with_baselines, num_compared
from blackout.config.allowed_components import named_in_file
from blackout.config.choices import choices
from blackout.config.compose import compose
from blackout.config.instantiate import fill, make
from blackout.config.settings import path
from blackout.distributed import rank
from blackout.errors import UserError, refuse
from blackout.evaluation.image_scores import over_seeds
from blackout.files import request_key, save_picture, tensors_hash
from blackout.protocols import Conditional, Draw, Drawn, Scorer, Scores, Source
from blackout.training.callbacks import reference_scores, score_samples
from blackout.training.family import ComponentFamily
from blackout.training.model import Model

INCEPTION = {
    "_target_": "blackout.evaluation.Scorer",
    "extractor": {"_target_": "blackout.evaluation.Inception", "_partial_": True},
    "scores": ["fid", "is", "kid", "prc"],
}
_WRITTEN = ("metrics.json", "scores.png", "config.yaml")
"""Names that scores of a file need for themselves; the last is a run's, whose directory is its own."""
MIN_INCEPTION_SIDE = 32  # pixels, of CIFAR-10, for which FID and IS are published
_AT_ONCE = 512
"""Samples of a file that are scored together."""


class Scoring:
    """The scores of one model's samples: everything that can fail is loaded and checked before sampling starts.

    Args:
        config: the settings of `sample.py`.
        model: the model to be scored.
        family: of the model.
        draw: of the samples, which are compared with what the source holds under their condition.

    Raises:
        UserError: the source or the scores do not fit the model, or the source holds nothing to compare with.
    """

    def __init__(self, config: Mapping[str, Any], model: Model, family: ComponentFamily, draw: Draw) -> None:
        self.config, self.model, self.family = config, model, family
        family.check_report(model, config)
        self.source = draw.compared_with(model.require_source())
        self.scorer = find_scorer(config, model.config, self.source)
        self.scores: Scores | None = None
        if self.scorer is not None:
            self.scores = self.scorer.begin(self.source, config["num_samples"], model.device)
        elif not _none_wanted() and isinstance(self.source, Conditional) and rank() == 0:
            why = f"the model names none, and these are no images of {MIN_INCEPTION_SIDE} pixels"
            print(f"left out: scores of samples: {why}; metrics=counts gives some")

    def report(self, draw: Draw, out: Path) -> dict[str, Any]:
        """The content of metrics.json, once `scores` has the samples of the first seed; further seeds are drawn here.

        Into the directory `out` goes the figure of the first seed, where the scores have one. Every process must call
        it, and gets the same.
        """
        config, condition = self.config, {"condition": dict(draw.condition)} if draw.condition else {}
        report: dict[str, Any] = {"values": {}, **condition}
        seeds = [config["seed"] + i for i in range(config["seeds"])]
        if self.scores is not None and self.scorer is not None:
            runs = [self.scores.compute()]
            save_figure(self.scores, out)
            for seed in seeds[1:]:
                self.scores.reset()
                runs.append(score_samples(self.scores, draw.batches, seed))
            report["values"] |= runs[0]
            if len(runs) > 1:
                report["over_seeds"] = over_seeds(runs)
            report |= self.scores.provenance()
            report |= reference_scores(self.scorer, self.source, config["num_samples"], self.model.device)
        said = self.family.report(self.model, self.source, config)
        report["values"] |= said.pop("values", {})
        samples = said.pop("sample_values", {})
        baselines = self.family.baselines(self.source, num_compared(samples), config)
        return report | said | compared_with_baselines(samples, baselines)


def save_figure(scores: Scores | None, out: Path) -> None:
    """Write scores.png, a matplotlib figure, where the scores make one."""
    if (figure := getattr(scores, "figure", None)) is not None and rank() == 0:
        save_picture(figure(), out / "scores.png")


def score_file(config: Mapping[str, Any], device: torch.device) -> Path:
    """Score samples in a file or folder against a dataset; `metrics.json` is written to `out`, or beside them,
    or where other scores are there to a folder `scores`.

    Jobs of a sweep write it to their own folders.

    Raises:
        UserError: no dataset, unreadable samples, or samples that do not fit the dataset.
    """
    samples_path, began = Path(str(path(config, "samples"))), time.perf_counter()
    refuse(not config["dataset"], "samples= needs the dataset to compare with: dataset=...")
    source: Source = make(fill(config["dataset"], {"data_dir": config["data_dir"]}, "dataset"), "dataset")
    if (scorer := find_scorer(config, {}, source)) is None:
        raise UserError("metrics=none scores nothing: choose metrics=counts, digits, mnist or inception")
    samples, condition = scorer.read(samples_path, source), {}
    if "classes" in samples and isinstance(source, Conditional):
        source = source.under(samples["classes"])
        condition = {"condition": dict(source.condition)}
    number = len(samples["samples"])
    scores = scorer.begin(source, number, device)
    beside = samples_path if samples_path.is_dir() else samples_path.parent
    first = [] if config["out"] or sweeping() else [beside]
    folders = itertools.chain(first, output_folders(path(config, "out"), beside, "scores"))
    of = tensors_hash("", {"samples": samples["samples"]})

    def read(indices: Tensor, seed: int) -> Drawn:
        for part in indices.split(_AT_ONCE):
            yield part, {name: values[part].to(device) for name, values in samples.items()}

    key = request_key([of, condition, config["dataset"], config["metrics"], data_hashes(source)])
    with shared_folder(folders, key, names=_WRITTEN, mark=".scored") as out:
        report = {"values": score_samples(scores, read, 0), **scores.provenance(), "samples": str(samples_path)}
        report |= condition | provenance(device, began, source)
        report |= reference_scores(scorer, source, number, device)
        save_figure(scores, out)
        if rank() == 0:
            write_scores(report, out / "metrics.json")
            print(f"scores of {number} samples in {out / 'metrics.json'}")
    return out


def find_scorer(config: Mapping[str, Any], description: Mapping[str, Any], source: Source) -> Scorer | None:
    """The scores chosen on the command line, else those of the training run, else those of the dataset's recipe, else
    Inception's for images of 32 pixels.

    Raises:
        UserError: the model's description names components that are not trusted, or arguments are wrong.
    """
    if _none_wanted():
        return None
    chosen, of_model = config["metrics"], description.get("metrics")
    if not chosen and of_model:
        chosen = named_in_file(of_model, "metrics", config["data_dir"], tuple(config["trusted"]))
    if not chosen:
        chosen = recipe_scores(HydraConfig.get().runtime.choices.get("dataset"))
    shape = source.facts.get("shape", ())
    if not chosen and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= MIN_INCEPTION_SIDE:
        chosen = INCEPTION
    return make(chosen, "metrics") if chosen else None


def recipe_scores(dataset: str | None) -> Any:
    """The scores that the recipe of a dataset, conf/recipe/blackout/<dataset>.yaml, chooses; None for none."""
    if f"blackout/{dataset}" not in choices("recipe"):
        return None
    return OmegaConf.to_container(compose("train", [f"dataset={dataset}"]).metrics)


def _none_wanted() -> bool:
    return bool(HydraConfig.get().runtime.choices.get("metrics") == "none")
