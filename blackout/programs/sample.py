"""`sample.py`: draws samples from a model, with a grid and, on request, an animation and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig
from rich.progress import Progress
from torch import Tensor

from blackout.distributed import gathered, my_batches, process_group, rank, world_size
from blackout.errors import UserError, naming
from blackout.family import Draw, Samples, Scores
from blackout.files import save_picture, write_json
from blackout.programs.output import default_output, find_device, open_output
from blackout.programs.pictures import Trajectory
from blackout.programs.sample_file import SampleFile
from blackout.programs.settings import asked_for, path, quieten, resolve
from blackout.training.export import load_model
from blackout.training.model import Model

if TYPE_CHECKING:
    from blackout.programs.score import Scoring

_SHARED = frozenset(
    ("ckpt", "num_samples", "seed", "out", "trajectory", "device", "trusted", "metrics", "dataset", "data_dir")
    + ("evaluate", "samples", "seeds", "likelihood", "indices")
)
"""Settings of this program; the others are the model's family's."""
_RECIPES = frozenset(("network", "schedule", "loss", "process", "head", "optimizer", "trainer", "callbacks"))
"""Groups that a dataset's recipe may choose for training."""
_SHOWN = 64


def sample(cfg: DictConfig) -> Path:
    """Draw samples and write `samples.npz` and `grid.png`.

    On request also `trajectory.webp`, `trajectory.png` and `metrics.json`.

    Raises:
        UserError: a setting, the model, the samples or the output directory is not usable.
    """
    config = resolve(_without_recipe(cfg), extra=True)
    quieten()
    for name in ("num_samples", "seeds"):
        if config[name] < 1:
            raise UserError(f"{name} must be at least 1, not {config[name]}")
    if not config["ckpt"] and not config["samples"]:
        raise UserError("ckpt must be given: a run directory, a .ckpt file or an exported model directory")
    device = find_device(config["device"])
    with process_group(device):
        if not config["samples"]:
            return _sample(config, device)
        from blackout.programs.score import score_file

        return score_file(config, device)


def _sample(config: Mapping[str, Any], device: torch.device) -> Path:
    indices, ckpt = wanted(config), str(path(config, "ckpt"))
    model = load_model(ckpt, tuple(config["trusted"]))
    with naming("sample"):
        draw: Draw = model.draw(_request(config))
    model.to(device)
    scoring = _scoring(config, model)
    out = open_output(Path(path(config, "out") or default_output(Path(ckpt))))
    scores = None if scoring is None else scoring.scores
    size = min(draw.batch_size, config["num_samples"])  # the network rounds as in the whole run
    trajectory = Trajectory(_SHOWN) if config["trajectory"] and rank() == 0 else None
    with naming("sample"), SampleFile(out / "samples.npz", len(indices)) if rank() == 0 else nullcontext() as file:
        shown = draw_all(draw, indices, config["seed"], size, file, scores, trajectory)
    report = scoring and scoring.report(draw)
    if rank() > 0:
        return out
    save_picture(draw.picture(shown), out / "grid.png")
    if trajectory is not None:
        trajectory.save(draw, out)
    print(f"{config['num_samples']} samples of {draw.nfe} network evaluations in {out}")
    if report is not None:
        write_json(report, out / "metrics.json")
        print(f"scores in {out / 'metrics.json'}")
    return out


def _scoring(config: Mapping[str, Any], model: Model) -> Scoring | None:
    if not config["evaluate"]:
        return None
    from blackout.programs.score import Scoring

    return Scoring(config, model)


def _without_recipe(cfg: DictConfig) -> DictConfig:
    return DictConfig({key: cfg._get_node(key) for key in cfg if key not in _RECIPES})


def _request(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the model's family; `sampler` only if the command line gives part of it."""
    request = {name: value for name, value in config.items() if name not in _SHARED and value is not None}
    if not asked_for("sampler"):
        request.pop("sampler", None)
    return request | {"num_samples": config["num_samples"]}


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


def draw_all(
    draw: Draw,
    indices: Tensor,
    seed: int,
    size: int,
    file: SampleFile | None,
    scores: Scores | None = None,
    trajectory: Trajectory | None = None,
) -> Samples:
    """Draw samples on all processes, under a progress bar over the steps of this process's batches.

    Every W-th batch is drawn by one process, so that no batch depends on the number W of processes.

    Args:
        draw, indices, seed: what to draw; `indices` is int64 [n].
        size: samples per batch.
        file: where process 0 writes the samples, in order.
        scores: updated with the samples of this process.
        trajectory: receives the states of the first batch.

    Returns:
        The first samples, named arrays [up to 64, ...] on the CPU; on process 0 only.
    """
    mine = my_batches(indices, size)
    shown: list[Samples] = []
    with Progress(transient=True, disable=rank() > 0) as progress:
        bar = progress.add_task("sampling", total=len(mine) * draw.steps)
        first = True

        def watch(step: int, steps: int, state: Tensor) -> None:
            if step > 0:
                progress.advance(bar)
            if trajectory is not None and first:
                trajectory.add(step, steps, state)

        batches = draw.batches(torch.cat([*mine, indices[:0]]), seed, size, watch)
        rounds = -(-len(indices) // (size * world_size()))
        for samples in _in_order(batches, rounds, scores):
            first = False
            if file is not None:
                file.write(samples)
                if sum(len(part["samples"]) for part in shown) < _SHOWN:
                    shown.append(samples)
    return {name: torch.cat([part[name] for part in shown])[:_SHOWN] for name in (shown[0] if shown else ())}


def _in_order(batches: Iterator[tuple[Tensor, Samples]], rounds: int, scores: Scores | None) -> Iterator[Samples]:
    """Score this process's batches and gather those of all processes, in the order of the samples."""
    for _ in range(rounds):
        numbers, samples = next(batches, (None, None))
        if scores is not None and samples is not None and numbers is not None:
            scores.update(samples, numbers.to(samples["samples"].device))
        here = None if samples is None else {name: values.cpu() for name, values in samples.items()}
        yield from (part for part in gathered(here) if part is not None)
