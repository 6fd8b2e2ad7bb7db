"""`sample.py`: from a model to counts, a grid and, if wanted, an animation and scores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import Progress
from torch import Tensor

from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError
from blackout.evaluation import ImageScores
from blackout.evaluation.distributed import gathered, process_group, rank, world_size
from blackout.training.build import check_sampler, fill, instantiate, refusals
from blackout.training.export import load_model
from blackout.training.images import save_animation, save_grid, save_strip
from blackout.training.known import read_known
from blackout.training.run import SETTINGS as TRAINING_SETTINGS
from blackout.training.run import quieten, resolve, write_json
from blackout.training.sample_file import SampleFile

SETTINGS = frozenset(
    ("ckpt", "num_samples", "seed", "out", "trajectory", "device", "trusted", "sampler", "metrics", "dataset")
    + ("data_dir", "evaluate", "samples", "seeds", "likelihood", "classes", "inpaint", "indices")
)
_SHOWN = 64
_FRAMES = 60


def generate(cfg: DictConfig) -> Path:
    """Draw samples and write `samples.npz` and `grid.png`.

    On request also `trajectory.webp`, `trajectory.png` and `metrics.json`.

    Raises:
        UserError: a setting, the model, the samples or the output directory is not usable.
    """
    # a dataset's recipe brings settings of training with it
    cfg = DictConfig({key: cfg._get_node(key) for key in cfg if key in SETTINGS or key not in TRAINING_SETTINGS})
    config = resolve(cfg, SETTINGS)
    quieten()
    for name in ("num_samples", "seeds"):
        if config[name] < 1:
            raise UserError(f"{name} must be at least 1, not {config[name]}")
    if not config["ckpt"] and not config["samples"]:
        raise UserError("ckpt must be given: a run directory, a .ckpt file or an exported model directory")
    device = find_device(config["device"])
    with process_group(device):
        if not config["samples"]:
            return _generate(config, device)
        from blackout.training.evaluate import evaluate_file

        return evaluate_file(config, device)


def _generate(config: Mapping[str, Any], device: torch.device) -> Path:
    indices = wanted(config)
    module = load_model(str(config["ckpt"]), tuple(config["trusted"]))
    sampler_config = choose_sampler(config["sampler"], module.config)
    sampler = instantiate(sampler_config, "sampler")
    check_sampler(sampler, module.schedule, module.process, module.head, module.shape)
    module.to(device)
    out = open_output(Path(str(config["out"])) if config["out"] else default_output(Path(str(config["ckpt"]))))
    scoring = None
    if config["evaluate"]:
        from blackout.training.evaluate import Evaluation

        scoring = Evaluation(config, module)

    trajectory = Trajectory() if config["trajectory"] and rank() == 0 else None
    known = None if config["inpaint"] is None else read_known(Path(config["inpaint"]), module, config["num_samples"])
    if known is not None and config["indices"] is not None:
        known = known.select(indices)
    size = min(sampler.evaluation.batch_size, config["num_samples"])  # the network rounds as in the whole run
    samples = Samples(indices, config["seed"], size, choose_classes(config["classes"], indices), known)
    with refusals("sample"), SampleFile(out / "samples.npz", len(indices)) if rank() == 0 else nullcontext() as file:
        counts = draw(module, sampler, samples, file, None if scoring is None else scoring.scores, trajectory)
    report = None if scoring is None else scoring.report(sampler, sampler_config, samples.classes, known)
    if rank() > 0:
        return out
    max_count = module.process.max_count
    save_grid(counts, max_count, out / "grid.png")
    if trajectory is not None:
        save_animation(trajectory.levels, max_count, out / "trajectory.webp")
        save_strip(trajectory.levels, max_count, out / "trajectory.png")
    evaluations = module.evaluations(sampler, samples.classes is not None)
    print(f"{config['num_samples']} samples of {evaluations} network evaluations in {out}")
    if report is not None:
        write_json(report, out / "metrics.json")
        print(f"scores in {out / 'metrics.json'}")
    return out


def wanted(config: Mapping[str, Any]) -> Tensor:
    """The indices of the samples to draw: those listed, or all from 0 to num_samples - 1.

    Raises:
        UserError: `indices` is not a list of whole numbers from 0 on, or is to be scored.
    """
    if config["indices"] is None:
        return torch.arange(config["num_samples"])
    listed = config["indices"]
    if not isinstance(listed, list) or not listed or not all(type(k) is int and 0 <= k < 2**63 for k in listed):
        raise UserError(f"indices must be a list of whole numbers from 0 on, such as [17,4242], not {listed!r}")
    if config["evaluate"]:
        raise UserError("indices are samples to be made again; scores need whole runs: leave out indices or evaluate")
    return torch.tensor(listed, dtype=torch.int64)


def choose_sampler(chosen: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Description of the sampler asked for, or of the model's own with the given fields replaced."""
    asked = any(override.lstrip("+~").startswith("sampler") for override in HydraConfig.get().overrides.task)
    given = {name: value for name, value in chosen.items() if value is not None} if asked else {}
    return describe_sampler(given, model)


def describe_sampler(given: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """A whole description of a sampler, completed with what the model and its data decide.

    Args:
        given: a description with `_target_`, or fields to replace in the model's own.
        model: description of the model.
    """
    config = given if "_target_" in given else {**model["model"]["sampler"], **given}
    filled: dict[str, Any] = fill(dict(config), {**model["data"], "pilot": model.get("pilot")}, "sampler")
    return filled


def choose_classes(classes: Any, indices: Tensor) -> Tensor | None:
    """The class of every sample, those given taken in turn: sample k has the class it has in a whole run.

    Raises:
        UserError: not a list of whole numbers.
    """
    if classes is None:
        return None
    if not isinstance(classes, list) or not classes or any(type(one) is not int for one in classes):
        raise UserError(f"classes must be a list of whole numbers such as [3], not {classes!r}")
    return torch.tensor(classes)[indices % len(classes)]


def default_output(ckpt: Path) -> Path:
    """samples/ in the run directory a checkpoint or model belongs to, or beside the model."""
    if ckpt.is_dir() and not (ckpt / "config.json").exists():
        return ckpt / "samples"
    parent = ckpt.parent
    return (parent.parent if parent.name == "checkpoints" else parent) / "samples"


def open_output(out: Path) -> Path:
    """Make the output directory and find out now, not after an hour of sampling, whether it can be written.

    Raises:
        UserError: it cannot.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from None
    return out


@dataclass(frozen=True)
class Samples:
    """Which samples to draw.

    Args:
        indices: int64 [N], their numbers.
        seed: theirs.
        size: of every batch.
        classes, known: as for `BlackoutDiffusion.sample_batches`.
    """

    indices: Tensor
    seed: int
    size: int
    classes: Tensor | None = None
    known: KnownElements | None = None

    @property
    def batches(self) -> int:
        """How many batches they make."""
        return -(-len(self.indices) // self.size)

    def mine(self) -> Samples:
        """Those of the batches that fall to this process: every W-th, so that no batch depends on W."""
        places = torch.arange(len(self.indices)).split(self.size)[rank() :: world_size()]
        here = torch.cat(places) if places else torch.empty(0, dtype=torch.int64)
        return replace(
            self,
            indices=self.indices[here],
            classes=None if self.classes is None else self.classes[here],
            known=None if self.known is None else self.known.select(here),
        )


def draw(
    module: BlackoutDiffusion,
    sampler: Sampler,
    samples: Samples,
    file: SampleFile | None,
    scores: ImageScores | None = None,
    trajectory: Trajectory | None = None,
) -> Tensor:
    """Draw samples on all processes, under a progress bar over the steps of this process's batches.

    Args:
        module, sampler, samples: what is drawn.
        file: where process 0 writes them, in order.
        scores: sees the samples of this process.
        trajectory: sees the levels of the first batch.

    Returns:
        The first few samples, on the CPU; on process 0 only.
    """
    mine, shown = samples.mine(), list[Tensor]()
    first = True
    with Progress(transient=True, disable=rank() > 0) as progress:
        bar = progress.add_task("sampling", total=mine.batches * sampler.num_steps)

        def after_level(k: int, xt: Tensor, prediction: object) -> None:
            if k < sampler.num_steps:
                progress.advance(bar)
            if trajectory is not None and first:
                trajectory.add(k, sampler.num_steps, xt)

        batches = module.sample_batches(
            mine.indices, mine.seed, sampler, after_level, mine.classes, mine.known, mine.size
        )
        for _ in range(0, samples.batches, world_size()):
            numbers, counts = next(batches, (mine.indices[:0], None))
            if scores is not None and counts is not None:
                scores.update(counts, numbers.to(counts.device))
            for part in gathered(None if counts is None else counts.cpu()):
                if file is not None and part is not None:
                    file.write(part)
                    shown += [part[: max(0, _SHOWN - sum(map(len, shown)))]]
            first = False
    return torch.cat(shown) if shown else mine.indices


@dataclass
class Trajectory:
    """The levels of the first batch that an animation shows, about evenly spaced, black first."""

    levels: list[Tensor] = field(default_factory=list)

    def add(self, k: int, steps: int, xt: Tensor) -> None:
        """Keep level k of a grid of `steps` if it is one of the frames."""
        if k in (0, steps) or (k * _FRAMES) // steps != ((k + 1) * _FRAMES) // steps:
            self.levels.append(xt[:_SHOWN].cpu().clone())


def find_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA where there is one, each process of torchrun its own.

    Raises:
        UserError: there is no such device.
    """
    if name == "auto":
        return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from None
    return device
