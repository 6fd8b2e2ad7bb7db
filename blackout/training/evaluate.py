"""Scores of a model's samples, or of samples in a file: `sample.py evaluate=true`.

metrics.json says how every number was made.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from torch import Tensor

from blackout.data import CountData
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError
from blackout.evaluation import ImageScores, Scorer, over_seeds
from blackout.evaluation.bits import Estimate, continuous_bits, finite_time_bits, histogram_bits, uniform_bits
from blackout.evaluation.distributed import rank, world_size
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
                runs.append(
                    score_samples(self.scores, self.module, sampler, seed, rank(), world_size(), classes, known)
                )
            report["values"] |= runs[0]
            if len(runs) > 1:
                report["over_seeds"] = over_seeds(runs)
            report |= self.scores.passport()
            report["held_out_data"] = self.yardstick()
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

    def yardstick(self) -> dict[str, Any] | None:
        """The same scores of the held-out data themselves, at most as many as there are samples; None if too few."""
        assert self.scorer is not None
        real = self.data.test[: self.config["num_samples"]]
        try:
            scores = self.scorer.begin(self.data, len(real), self.module.device)
        except UserError:
            return None
        return {"num_samples": len(real), "values": _score(scores, real)}

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
    from blackout.training.run import write_json

    path = Path(str(config["samples"]))
    if not config["dataset"]:
        raise UserError("samples= needs the dataset to compare with: dataset=...")
    data = find_dataset(config, {})
    scorer = find_scorer(config, {}, data)
    if scorer is None:
        raise UserError("metrics=none scores nothing: choose another")
    counts = read_samples(path, data)
    out = open_output(Path(config["out"]) if config["out"] else (path if path.is_dir() else path.parent))
    scores = scorer.begin(data, len(counts), device)
    report = {"values": _score(scores, counts), **scores.passport(), "samples": str(path)}
    report["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    if rank() == 0:
        write_json(report, out / "metrics.json")
        print(f"scores of {len(counts)} samples in {out / 'metrics.json'}")
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


def read_samples(path: Path, data: CountData) -> Tensor:
    """Samples [n, *shape of data]: `samples` (or the only array) of an .npz, an .npy, or a folder of images.

    Raises:
        UserError: unreadable, or not integers of the dataset's shape and range.
    """
    if path.is_dir():
        from blackout.data.folder import read_folder

        counts = read_folder(path, data.shape)
    else:
        counts = _to_counts(_read_array(path), path)
    if counts.ndim == 4 and tuple(counts.shape[1:]) != data.shape:
        counts = counts.permute(0, 3, 1, 2).contiguous()
    if tuple(counts.shape[1:]) != data.shape:
        raise UserError(f"{path}: samples of shape {tuple(counts.shape[1:])} cannot be compared with {data.shape}")
    low, high = int(counts.min()), int(counts.max())
    if low < 0 or high > data.max_count:
        raise UserError(f"{path}: counts {low}..{high} leave {data.name}'s range 0..{data.max_count}")
    return counts


def _read_array(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        names = loaded.files
        name = "samples" if "samples" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise UserError(f"{path} must hold an array named samples; it has {', '.join(names) or 'none'}")
        return loaded[name]
    except FileNotFoundError:
        raise UserError(f"no samples at {path}") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read as an array: {str(error).splitlines()[0]}") from None


def _to_counts(array: np.ndarray, path: Path) -> Tensor:
    if array.dtype.kind not in "iu":
        raise UserError(f"{path} holds {array.dtype}; samples are integer counts, for images uint8")
    if array.ndim < 2 or len(array) < 1:
        raise UserError(f"{path} has shape {array.shape}; samples are [n, ...]")
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64) if array.dtype.itemsize > 1 else array))


def _score(scores: ImageScores, counts: Tensor) -> dict[str, float]:
    for indices in torch.arange(len(counts)).split(512)[rank() :: world_size()]:
        scores.update(counts[indices].to(scores.device), indices.to(scores.device))
    return scores.compute()
