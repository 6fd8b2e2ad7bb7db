"""`sample.py`: from a model to counts, a grid and, if wanted, an animation and scores."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    if config["samples"]:
        from blackout.training.evaluate import evaluate_file

        return evaluate_file(config)
    if not config["ckpt"]:
        raise UserError("ckpt must be given: a run directory, a .ckpt file or an exported model directory")
    indices = wanted(config)
    device = find_device(config["device"])
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

    trajectory = Trajectory() if config["trajectory"] else None
    keep = config["num_samples"] if scoring is not None else _SHOWN
    classes = choose_classes(config["classes"], indices)
    known = None if config["inpaint"] is None else read_known(Path(config["inpaint"]), module, config["num_samples"])
    if known is not None and config["indices"] is not None:
        known = known.select(indices)
    size = min(sampler.batch_size, config["num_samples"])  # the network rounds as in the whole run
    with refusals("sample"), SampleFile(out / "samples.npz", len(indices)) as file:
        counts = draw(module, sampler, indices, size, config["seed"], file, keep, trajectory, classes, known)
    max_count = module.process.max_count
    save_grid(counts[:_SHOWN], max_count, out / "grid.png")
    if trajectory is not None:
        save_animation(trajectory.levels, max_count, out / "trajectory.webp")
        save_strip(trajectory.levels, max_count, out / "trajectory.png")
    evaluations = module.evaluations(sampler, classes is not None)
    print(f"{config['num_samples']} samples of {evaluations} network evaluations in {out}")
    if scoring is not None:
        write_json(scoring.report(counts, sampler, sampler_config, classes, known), out / "metrics.json")
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


def draw(
    module: BlackoutDiffusion,
    sampler: Sampler,
    indices: Tensor,
    size: int,
    seed: int,
    file: SampleFile,
    keep: int,
    trajectory: Trajectory | None = None,
    classes: Tensor | None = None,
    known: KnownElements | None = None,
) -> Tensor:
    """Write the samples named by `indices` to a file, under a progress bar over all steps of all batches.

    Returns:
        The first `keep` of them, on the CPU.
    """
    batches = -(-len(indices) // size)
    kept: list[Tensor] = []
    first, left = True, keep
    with Progress(transient=True) as progress:
        bar = progress.add_task("sampling", total=batches * sampler.num_steps)

        def after_level(k: int, xt: Tensor) -> None:
            if k < sampler.num_steps:
                progress.advance(bar)
            if trajectory is not None and first:
                trajectory.add(k, sampler.num_steps, xt)

        for _, counts in module.sample_batches(indices, seed, sampler, after_level, classes, known, size):
            file.write(counts)
            kept.append(counts[: max(0, left)].cpu())
            first, left = False, left - len(counts)
    return torch.cat(kept)


@dataclass
class Trajectory:
    """The levels of the first batch that an animation shows, about evenly spaced, black first."""

    levels: list[Tensor] = field(default_factory=list)

    def add(self, k: int, steps: int, xt: Tensor) -> None:
        """Keep level k of a grid of `steps` if it is one of the frames."""
        if k in (0, steps) or (k * _FRAMES) // steps != ((k + 1) * _FRAMES) // steps:
            self.levels.append(xt[:_SHOWN].cpu().clone())


def find_device(name: str) -> torch.device:
    """The device of that name; auto takes CUDA where there is one.

    Raises:
        UserError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device={name} is not available: {str(error).splitlines()[0]}") from None
    return device
