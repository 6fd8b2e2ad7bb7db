"""`sample.py`: draws samples from a model, with a picture and, on request, an animation and scores.

A command that was killed continues where it stopped: its batches are kept until all are drawn.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from blackout.cli.output_folders import output_folders, shared_folder
from blackout.cli.pictures import Trajectory
from blackout.cli.provenance import data_hashes, provenance
from blackout.cli.sample_batches import SampleWriter, resume_or_draw_batches, show_progress
from blackout.cli.sample_request import load_requested, parse_request, remove_nulls
from blackout.component import Plain
from blackout.config.settings import (
    configure_libraries,
    is_overridden,
    optional_path,
    resolve_settings,
)
from blackout.distributed import (
    find_device,
    gather_values,
    my_batches,
    process_group,
    rank,
    world_size,
)
from blackout.errors import UserError, error_context, refuse
from blackout.files import PART, hash_tensors
from blackout.preemption import signals
from blackout.protocols import Draw, Source
from blackout.random import compiler_version
from blackout.results_folders import request_key
from blackout.training.model import Model

MODEL_GROUPS = ("sampler", "simulation", "target")  # their null settings are the model's own
SCORE_SETTINGS = ("metrics", "dataset", "seeds", "likelihood")
MAX_VALUES = {
    "num_samples": 10**8,  # the indices of more would need over 0.8 GB
    "seeds": 10**4,  # more samples of one seed say more
    "shown": 2500,  # 50 rows of 50
}


@signals.caught()
def sample(cfg: DictConfig) -> Path:
    """Draw samples, or score those of a file.

    Writes `samples.npz` and `grid.png`, and on request `trajectory.webp`, `trajectory.png` and
    `metrics.json`.

    Returns:
        The folder of the results.

    Raises:
        UserError: a setting, the model, the samples or the output folder is not usable.
    """
    config = resolve_settings(cfg, allow_additions=True)
    for name in MODEL_GROUPS:
        config[name] = remove_nulls(config.get(name))
    configure_libraries(config["tf32"])
    is_choice = isinstance(config["compile"], bool)
    refuse(not is_choice, f"compile must be true or false, not {config['compile']!r}")
    for name, maximum in MAX_VALUES.items():
        is_allowed = 1 <= config[name] <= maximum
        refuse(not is_allowed, f"{name} must be from 1 to {maximum:,}, not {config[name]}")
    sources = [name for name in ("ckpt", "prior", "samples") if config[name]]
    refuse(
        not sources,
        "ckpt=<path> must be given: a run directory, a .ckpt file or an exported model directory",
    )
    refuse(
        "prior" in sources and len(sources) > 1,
        "prior is used in place of a model: omit ckpt and samples",
    )
    device = find_device(config["device"])
    with process_group(device):
        if config["samples"]:
            from blackout.cli.score import score_file

            return score_file(config, device)
        return draw_samples(config, device)


def draw_samples(config: Mapping[str, Any], device: torch.device) -> Path:
    """Draw the requested samples, write them and score them; return the folder of the results."""
    start = time.perf_counter()
    selected = parse_indices(config)

    # 1. The model, the request, and the number of samples.
    model, family, path = load_requested(config)
    with error_context("sample"):
        request = parse_request(config, model)
        draw = family.draw(model, request)
        if not is_overridden("num_samples"):
            config = {**config, "num_samples": max(config["num_samples"], draw.fewest)}
        num_rows = draw.rows(config["num_samples"])
    model.to(device)
    model.compile_networks(config["compile"])
    indices = torch.arange(num_rows) if selected is None else selected

    # 2. Scores; everything about them that can fail does so here.
    scoring = None
    if config["evaluate"]:
        from blackout.cli.score import Scoring

        scoring = Scoring(config, model, family, draw)

    # 3. The folder of the results, equal for equal requests: a killed command finds its own.
    weights = hash_tensors("", {"": indices, **model.state_dict()})
    samples_key = request_key([weights, request, model.config, config["seed"]])
    names = ["shown", "trajectory", "evaluate"]
    if config["evaluate"]:
        names += SCORE_SETTINGS
    compared_data = {} if scoring is None else data_hashes(scoring.source)
    results_key = request_key([samples_key, [config[name] for name in names], compared_data])
    folders = output_folders(optional_path(config, "out"), path, draw.names.folder)

    batch_size = min(draw.batch_size, num_rows)  # the network's rounding depends on it
    trajectory = None
    if config["trajectory"] and rank() == 0:
        trajectory = Trajectory(config["shown"])
    with shared_folder(folders, results_key) as out:
        # 4. Draw in batches, each of which is kept on disk until all are drawn.
        machine_key = reproducibility_key(
            samples_key, model, batch_size, config["compile"], config["tf32"]
        )
        batch_folder = out / f".drawn-{machine_key}{PART}.batches"
        parts = my_batches(indices, batch_size)
        batches = partial(
            resume_or_draw_batches, draw, parts, config["seed"], batch_size, batch_folder
        )
        # Other processes may have no batch in the last round.
        num_rounds = -(-len(indices) // (batch_size * world_size()))
        writer = None
        if rank() == 0:
            writer = SampleWriter(draw, indices, config["seed"], out, config["shown"])
        progress = closing(show_progress(batches, draw.steps, num_rounds, trajectory))
        with writer or nullcontext(), progress as numbered_samples:
            for numbers, samples in numbered_samples:
                if scoring is not None and scoring.scores is not None and samples:
                    scoring.scores.update(samples, numbers.to(samples["samples"].device))
                on_cpu = {name: values.cpu() for name, values in samples.items()}
                for part in gather_values(on_cpu):
                    if part and writer is not None:
                        writer.add(part)

        # 5. Scores and pictures.
        report = {} if scoring is None else scoring.report(draw, out)
        if trajectory is not None:
            trajectory.save(draw, out)
        if writer is not None:
            source = None if scoring is None else scoring.source
            writer.finish(report, sample_provenance(config, model, draw, start, source))
            shutil.rmtree(
                batch_folder, ignore_errors=True
            )  # last: a signal may come at any time before
    return out


def parse_indices(config: Mapping[str, Any]) -> Tensor | None:
    """Return the numbers of the samples to draw again, int64 [n]; None for all samples.

    Raises:
        UserError: `indices` is not a list of whole numbers from 0 on, or is to be scored.
    """
    indices = config["indices"]
    if indices is None:
        return None
    is_list = isinstance(indices, list) and bool(indices)
    if not is_list or not all(type(k) is int and 0 <= k < 2**63 for k in indices):
        example = "such as [17,4242]"
        raise UserError(
            f"indices must be a list of whole numbers from 0 on, {example}, not {indices!r}"
        )
    if config["evaluate"]:
        raise UserError(
            "indices=... draws single samples again, but evaluate=true scores all samples: "
            "omit one of the two"
        )
    return torch.tensor(indices, dtype=torch.int64)


def reproducibility_key(
    samples_key: str, model: Model, batch_size: int, compiled: bool, tf32: bool
) -> str:
    """Return a key that is equal for commands that draw equal bits.

    These run on one kind of machine, in batches of one size, with equal `compile` and `tf32`.
    """
    machine = [
        torch.__version__,
        model.device.type,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        compiler_version(),
        batch_size,
        compiled,
        tf32,
    ]
    return request_key([samples_key, *machine])


def sample_provenance(
    config: Plain, model: Model, draw: Draw, start: float, source: Source | None
) -> dict[str, Any]:
    """Return how samples were made, as plain values for metrics.json.

    Args:
        config: the settings.
        model: that was sampled.
        draw: of the samples.
        start: `time.perf_counter()` at the start of the command.
        source: the data that samples were compared with, if they were.
    """
    num_seeds = config["seeds"] if config["evaluate"] else 1
    report = {
        **provenance(model.device, start, source),
        "num_samples": config["num_samples"],
        "seeds": [config["seed"] + i for i in range(num_seeds)],
        "network_evaluations": draw.nfe,
        "sampler": dict(draw.description),
    }
    if not config.get("prior"):
        report["weights"] = "averaged (EMA)"
    path = str(config["ckpt"]) if config["ckpt"] else config["ckpt"]
    return report | {"model": {"path": path, **model.config}}
