"""Scores of a model's samples, or of samples in a file: `sample.py evaluate=true`.

metrics.json says how every number was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from torch import Tensor

from blackout.data import CountData
from blackout.diffusion.bits import Estimate, continuous_bits, finite_time_bits, histogram_bits, uniform_bits
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.samplers import Sampler
from blackout.distributed import rank
from blackout.errors import UserError
from blackout.evaluation import ImageScores, Scorer, over_seeds, score_all
from blackout.files import write_json
from blackout.training.build import build_model, check_targets, fill, instantiate
from blackout.training.scoring import score_samples

INCEPTION = {
    "_target_": "blackout.evaluation.Scorer",
    "extractor": {"_target_": "blackout.evaluation.extractors.Inception", "_partial_": True},
    "scores": ["fid", "is", "kid", "prc"],
}


class Evaluation:
    """Everything that can fail is loaded and checked here, before sampling starts.

    Args:
        config: the settings of `sample.py`.
        module: the model.

    Raises:
        UserError: dataset, scores or likelihood settings that do not fit.
    """

    def __init__(self, config: Mapping[str, Any], module: BlackoutDiffusion) -> None:
        self.config, self.module = config, module
        self.data = find_dataset(config, module.config)
        if self.data.shape != module.shape or self.data.max_count != module.process.max_count:
            raise UserError(
                f"the model makes {module.shape}-shaped counts up to {module.process.max_count}, but "
                f"{self.data.name} has shape {self.data.shape} and counts up to {self.data.max_count}"
            )
        self.scorer = find_scorer(config, module.config, self.data)
        self.scores: ImageScores | None = None
        if self.scorer is not None:
            self.scores = self.scorer.begin(self.data, config["num_samples"], module.device)

    def report(
        self,
        sampler: Sampler,
        sampler_config: Mapping[str, Any],
        classes: Tensor | None = None,
        known: KnownElements | None = None,
    ) -> dict[str, Any]:
        """metrics.json, once `scores` has seen the samples of the first seed; further seeds are drawn here.

        Every process must call it, and gets the same.
        """
        report: dict[str, Any] = {"values": {}}
        if self.scores is not None:
            runs = [self.scores.compute()]
            for seed in range(self.config["seed"] + 1, self.config["seed"] + self.config["seeds"]):
                self.scores.reset()
                runs.append(score_samples(self.scores, self.module, sampler, seed, classes, known))
            report["values"] |= runs[0]
            if len(runs) > 1:
                report["over_seeds"] = over_seeds(runs)
            report |= self.scores.provenance()
            assert self.scorer is not None
            report["held_out_data"] = self.scorer.held_out(self.data, self.config["num_samples"], self.module.device)
        report["likelihood"] = self.likelihood()
        report["values"] |= {
            f"bits_per_dim_{split}": estimates["continuous"]["value"]
            for split, estimates in report["likelihood"].items()
            if split in ("train", "test")
        }
        report["num_samples"] = self.config["num_samples"]
        report["seeds"] = [self.config["seed"] + i for i in range(self.config["seeds"])]
        report["network_evaluations"] = self.module.evaluations(sampler, classes is not None)
        report["sampler"] = dict(sampler_config)
        report["weights"] = "averaged (EMA)"
        report["model"] = {"path": str(self.config["ckpt"]), **self.module.config}
        report["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        return report

    def likelihood(self) -> dict[str, Any]:
        """Bits per dimension on both splits, by the bounds asked for, and the baselines if wanted."""
        settings = self.config["likelihood"]
        n, result = settings["images"], {}
        if not n:
            return {}
        for split, counts in (("train", self.data.train[:n]), ("test", self.data.test[:n])):
            result[split] = {"continuous": asdict(continuous_bits(self.module, counts, settings["repeats"]))}
            if settings["finite_steps"]:
                bound = finite_time_bits(self.module, counts, settings["finite_steps"])
                result[split]["finite_time"] = {"num_steps": settings["finite_steps"], **asdict(bound)}
        if settings["baselines"]:
            result["baselines"] = self.baselines(self.data.test[:n], settings["repeats"])
        return result

    def baselines(self, test: Tensor, repeats: int) -> dict[str, Any]:
        """Held-out bits per dimension of models that know little or nothing."""
        torch.manual_seed(0)
        untrained = build_model(self.module.config, self.module.mean.cpu()).eval().to(self.module.device)
        uniform = Estimate(uniform_bits(self.data.max_count), 0.0, len(test))
        return {
            "uniform": asdict(uniform),
            "independent_histograms": asdict(histogram_bits(self.data.train, test, self.data.max_count)),
            "untrained_network": asdict(continuous_bits(untrained, test, repeats)),
        }


def evaluate_file(config: Mapping[str, Any], device: torch.device) -> Path:
    """Score samples in a file or folder against a dataset, and write `metrics.json` beside them or to `out`.

    Raises:
        UserError: no dataset, unreadable samples, or samples that do not fit the dataset.
    """
    from blackout.training.generate import open_output

    path = Path(str(config["samples"]))
    if not config["dataset"]:
        raise UserError("samples= needs the dataset to compare with: dataset=...")
    data = find_dataset(config, {})
    scorer = find_scorer(config, {}, data)
    if scorer is None:
        raise UserError("metrics=none scores nothing: choose another")
    samples = scorer.read(path, data)
    count = len(samples["samples"])
    out = open_output(Path(config["out"]) if config["out"] else (path if path.is_dir() else path.parent))
    scores = scorer.begin(data, count, device)
    report = {"values": score_all(scores, samples), **scores.provenance(), "samples": str(path)}
    report["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    if rank() == 0:
        write_json(report, out / "metrics.json")
        print(f"scores of {count} samples in {out / 'metrics.json'}")
    return out


def find_dataset(config: Mapping[str, Any], description: Mapping[str, Any]) -> CountData:
    """The dataset chosen on the command line, or the one the model was trained on."""
    dataset = config["dataset"]
    if not dataset:
        dataset = description.get("dataset")
        if not dataset:
            raise UserError("the model does not say which dataset it is of: dataset=...")
        check_targets(dataset, tuple(config["trusted"]), ("blackout.data",))
    dataset = fill(dataset, {"data_dir": config["data_dir"]}, "dataset")
    return instantiate(dataset, "dataset")


def find_scorer(config: Mapping[str, Any], description: Mapping[str, Any], data: CountData) -> Scorer | None:
    """The scores chosen on the command line, else the model's, else Inception's for images."""
    if HydraConfig.get().runtime.choices.get("metrics") == "none":
        return None
    if config["metrics"]:
        return instantiate(config["metrics"], "metrics")
    stored = description.get("metrics")
    if stored:
        check_targets(stored, tuple(config["trusted"]), ("blackout.evaluation", "blackout.data"))
        return instantiate(stored, "metrics")
    return instantiate(INCEPTION, "metrics") if len(data.shape) == 3 and data.shape[0] in (1, 3) else None
