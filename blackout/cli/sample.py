"""`sample.py`: draws samples from a model, goes on if it was killed, with a grid and, on request, animation and scores.

Batches are kept by `drawn_once` until all are drawn, so that a command that was killed goes on where it stopped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from blackout.cli.pictures import Trajectory
from blackout.cli.run_directory import fetched, output_folders, shared_folder
from blackout.component import Plain
from blackout.config.allowed_components import copy_plain_values, find_allowed
from blackout.config.descriptions import add_defaults
from blackout.config.instantiate import instantiate
from blackout.config.settings import configure_libraries, is_overridden, optional_path, resolve_settings
from blackout.distributed import find_device, gathered, my_batches, process_group, rank, world_size
from blackout.errors import UserError, error_context, refuse, shown
from blackout.files import PART, replacing, request_key, sample_file, save_picture, save_tensors, tensors_hash
from blackout.preemption import signals
from blackout.protocols import Draw, Drawn, Samples, Source, Watch
from blackout.random import compiled_by
from blackout.report import data_hashes, provenance, settings_of, write_scores
from blackout.training.export import load_trained
from blackout.training.family import ComponentFamily
from blackout.training.model import Model

_OF_MODEL = ("sampler", "simulation", "target")  # settings of these that are null are the model's own
_NESTED = {"correction", "guidance"}  # and so are these settings of a sampler
_SHARED = frozenset(
    ("ckpt", "law", "num_samples", "seed", "out", "trajectory", "device", "trusted", "metrics", "dataset", "data_dir")
    + ("evaluate", "samples", "seeds", "likelihood", "indices", "shown")
)
"""Settings of this program; the others are the model's family's."""
_OF_SCORES = ("metrics", "dataset", "seeds", "likelihood")
_SECONDS = 30.0
"""Between the lines that say how far sampling is."""
_MOST_SAMPLES, _MOST_SEEDS, _MOST_SHOWN = 10**8, 10**4, 2500
"""In one call: the indices alone of so many samples need 0.8 GB; further seeds give further samples."""


@signals.caught()
def sample(cfg: DictConfig) -> Path:
    """Draw samples: `samples.npz`, `grid.png`, and on request `trajectory.webp`, `trajectory.png`, `metrics.json`.

    Raises:
        UserError: a setting, the model, the samples or the output directory is not usable.
    """
    config = resolve_settings(cfg, allow_additions=True)
    config |= {name: _without_null(config.get(name)) for name in _OF_MODEL}
    configure_libraries()
    for name, most in (("num_samples", _MOST_SAMPLES), ("seeds", _MOST_SEEDS), ("shown", _MOST_SHOWN)):
        refuse(not 1 <= config[name] <= most, f"{name} must be in 1..{most:,}, not {config[name]}")
    given = [name for name in ("ckpt", "law", "samples") if config[name]]
    refuse(not given, "ckpt must be given: a run directory, a .ckpt file or an exported model directory")
    refuse("law" in given and len(given) > 1, "law stands in place of a model: leave out ckpt and samples")
    device = find_device(config["device"])
    with process_group(device):
        if not config["samples"]:
            return _sample(config, device)
        from blackout.cli.score import score_file

        return score_file(config, device)


def _sample(config: Mapping[str, Any], device: torch.device) -> Path:
    began, chosen, (model, family, place) = time.perf_counter(), listed(config), _model(config)
    with error_context("sample"):
        request = _request(config, model)
        draw = family.draw(model, request)
        if not is_overridden("num_samples"):
            config = {**config, "num_samples": max(config["num_samples"], draw.fewest)}
        rows = draw.rows(config["num_samples"])
    model.to(device)
    scoring = None
    if config["evaluate"]:  # everything that can fail does so here
        from blackout.cli.score import Scoring

        scoring = Scoring(config, model, family, draw)
    indices = torch.arange(rows) if chosen is None else chosen
    # the same for requests for the same samples: settings with the files that they name, weights, indices, seed
    drawn = request_key([tensors_hash("", {"": indices, **model.state_dict()}), request, model.config, config["seed"]])
    size = min(draw.batch_size, rows)  # the network rounds as in the whole run
    trajectory = Trajectory(config["shown"]) if config["trajectory"] and rank() == 0 else None
    folders = output_folders(optional_path(config, "out"), place, draw.names.folder)
    asked = ("shown", "trajectory", "evaluate", *(_OF_SCORES if config["evaluate"] else ()))
    compared = {} if scoring is None else data_hashes(scoring.source)
    with shared_folder(folders, request_key([drawn, [config[name] for name in asked], compared])) as out:
        # the same for commands that draw the same bits: on one kind of machine, in batches of one size
        instructions = torch.backends.cpu.get_cpu_capability()
        machine = torch.__version__, model.device.type, instructions, torch.get_num_threads(), compiled_by(), size
        kept = out / f".drawn-{request_key([drawn, *machine])}{PART}.batches"
        taken = Results(draw, indices, config["seed"], out, config["shown"]) if rank() == 0 else nullcontext()
        batches = partial(drawn_once, draw, my_batches(indices, size), config["seed"], size, kept)
        rounds = -(-len(indices) // (size * world_size()))  # of which other processes may miss the last
        drawn_now = closing(watched(batches, draw.steps, rounds, trajectory))
        with taken as results, drawn_now as parts:
            for numbers, samples in parts:
                if scoring is not None and scoring.scores is not None and samples:
                    scoring.scores.update(samples, numbers.to(samples["samples"].device))
                for part in gathered({name: values.cpu() for name, values in samples.items()}):
                    if part and results is not None:
                        results.take(part)
        scored = {} if scoring is None else scoring.report(draw, out)
        if trajectory is not None:
            trajectory.save(draw, out)
        if results is not None:
            source = None if scoring is None else scoring.source
            results.finish(scored, sample_provenance(config, model, draw, began, source))
            shutil.rmtree(kept, ignore_errors=True)  # the last: what comes after the draws may be killed too
    return out


def _model(config: Mapping[str, Any]) -> tuple[Model, ComponentFamily, Path]:
    """The trained model with its family, or the law that stands in its place, and where its results go."""
    if config["law"]:
        refuse(config["evaluate"], "evaluate=true compares with data; a law has none")
        if not isinstance(law := instantiate(config["law"], "law"), Model):
            raise UserError(f"law: {type(law).__name__} is no law: task=dna_toy and others choose one")
        return law.eval(), cast(ComponentFamily, law.family), Path("runs") / str(law.config.get("law", "law")) / "law"
    ckpt = str(fetched(str(optional_path(config, "ckpt"))))
    simulated = str(config.get("measurement")).startswith(("test:", "val:", "train:"))
    needed = config["dataset"] or config["evaluate"] or simulated
    given = {**config, "dataset": _own_dataset(Path(ckpt), config["dataset"])} if needed else config
    model, of_model = load_trained(ckpt, given, tuple(config["trusted"]))
    return model, of_model, Path(ckpt)


def _own_dataset(run: Path, chosen: Any) -> Any:
    """The dataset that was chosen, with the run's settings if it is the run's file; that file where none was chosen.

    The settings decide the split: other ones would hold out samples that the model was trained on.
    """
    if not (run / "config.yaml").exists():
        return chosen
    own: Any = settings_of(run).get("dataset")
    address = own.get("_target_") if isinstance(own, Mapping) else None
    if not isinstance(address, str) or find_allowed(address, "dataset") is None or "path" not in own:
        return chosen
    own = copy_plain_values(own, "dataset")
    if chosen and _file(chosen) != _file(own):
        return chosen
    if any("_target_" in str(value) for name, value in own.items() if name != "_target_"):
        raise UserError(f"{run / 'config.yaml'}: a dataset of files is made of plain values alone")
    typed = {name: value for name, value in (chosen or {}).items() if is_overridden(f"dataset.{name}")}
    if (own := {**own, **typed}) != chosen:
        print(f"data: {own.get('path')}, with the settings of {run / 'config.yaml'}")
    return own


def _file(dataset: Any) -> tuple[str, Path]:
    return str(dataset.get("_target_")), Path(str(dataset.get("path"))).expanduser().resolve()


def _request(config: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The settings of the model's family; `sampler` only if the command line gives part of it."""
    request = {name: value for name, value in config.items() if name not in _SHARED and _is_given(value)}
    if not is_overridden("sampler"):
        request.pop("sampler", None)
    elif "sampler" in request and not is_overridden("sampler.num_steps") and _has_kernel(model, request["sampler"]):
        request["sampler"] = {**request["sampler"], "num_steps": None}
    if not isinstance(config["likelihood"], Mapping | None):  # which no family takes: refused there
        request["likelihood"] = config["likelihood"]
    return request | {"num_samples": config["num_samples"]}


def _has_kernel(model: Model, sampler: Mapping[str, Any]) -> bool:
    """Whether the kernel of a sampler that the command line names is the model's own."""
    own = model.config.get("model", {}).get("sampler") or {}
    kernel = sampler.get("kernel")
    return kernel is not None and add_defaults(kernel, "sampler.kernel") == own.get("kernel")


def _without_null(value: Any) -> Any:
    """A group of settings without those that are null, which are the model's own; other values as they are.

    Inside other components, such as a grid of times, null has a meaning of its own.
    """
    if not isinstance(value, Mapping) or not value:
        return value
    parts = {name: part for name, part in value.items() if part is not None}
    parts |= {name: _without_null(parts[name]) for name in _NESTED & parts.keys()}
    return {name: part for name, part in parts.items() if part is not None} or None


def _is_given(value: Any) -> bool:
    """Whether a setting is more than null, or a group of nothing but nulls."""
    return any(map(_is_given, value.values())) if isinstance(value, Mapping) and value else value is not None


def listed(config: Mapping[str, Any]) -> Tensor | None:
    """The samples that are to be made again alone, int64 [n]; None for all.

    Raises:
        UserError: `indices` is not a list of whole numbers from 0 on, or is to be scored.
    """
    indices = config["indices"]
    if indices is None:
        return None
    if not isinstance(indices, list) or not indices or not all(type(k) is int and 0 <= k < 2**63 for k in indices):
        raise UserError(f"indices must be a list of whole numbers from 0 on, such as [17,4242], not {indices!r}")
    if config["evaluate"]:
        raise UserError("indices are samples to be made again; scores need whole runs: leave out indices or evaluate")
    return torch.tensor(indices, dtype=torch.int64)


def watched(
    batches: Callable[..., Drawn], steps: int, rounds: int, trajectory: Trajectory | None
) -> Generator[tuple[Tensor, Samples], None, None]:
    """The batches of this process under a progress bar over their steps, and then empty ones until the others are done.

    Where there is no terminal to show it, process 0 prints a line now and then.

    Args:
        batches: (watch, again) -> them, see `drawn_once`.
        steps: of a batch.
        rounds: how many batches a process draws at most.
        trajectory: receives the states of the first batch.
    """
    with Progress(transient=True, disable=rank() > 0) as progress:
        total = rounds * steps
        bar, began = progress.add_task("sampling", total=total), time.monotonic()
        shown, said = progress.console.is_terminal or progress.console.is_jupyter or rank() > 0, began

        def watch(step: int, steps: int, state: Tensor) -> None:
            nonlocal said
            if step > 0:
                progress.advance(bar)
            if not shown and (now := time.monotonic()) - said > _SECONDS and (done := progress.tasks[bar].completed):
                left, said = timedelta(seconds=round((now - began) * (total - done) / done)), now
                print(f"step {done:,.0f} of {total:,} of all batches, about {left} left", flush=True)
            if trajectory is not None:
                trajectory.add(step, steps, state)

        drawn = batches(watch, again=trajectory is not None)
        for _ in range(rounds):
            yield next(drawn, (torch.arange(0), {}))


def drawn_once(
    draw: Draw, parts: Sequence[Tensor], seed: int, size: int, kept: Path, watch: Watch, again: bool
) -> Drawn:
    """Draw each batch once, over any number of calls of the same command: (indices [b], samples), new or as before.

    Every W-th batch is drawn by one process, so that no batch depends on the number W of processes.

    Args:
        draw: what draws. Batches are kept only if it is `resumable`.
        parts: indices of this process's batches, int64 [b] each.
        seed, size: of the samples and of a whole batch.
        kept: the folder of the batches, of this command alone.
        watch: as for `Draw.batches`; of a batch that was drawn before it hears every step at once.
        again: draw the first batch in any case, so that `watch` sees its states.
    """
    for number, part in enumerate(parts):
        file, known = kept / f"{int(part[0])}-{int(part[-1])}.safetensors", None
        if draw.resumable and not (again and number == 0):
            with suppress(OSError, SafetensorError):  # not drawn yet, or cut short: it is drawn now
                known = load_file(file)
        if known is not None:
            for step in range(1, draw.steps + 1):
                watch(step, draw.steps, known["samples"])
            yield part, known
            continue
        for of_batch, samples in draw.batches(part, seed, size, watch):
            if draw.resumable:
                with replacing(file) as hidden:
                    save_tensors({name: values.cpu().contiguous() for name, values in samples.items()}, hidden)
            yield of_batch, samples


class Results(ExitStack):
    """Takes samples in order and writes their file, with a picture and what else is made of them.

    A context manager: see `sample_file`.

    Args:
        draw: where the samples come from.
        indices: of the samples, int64 [n].
        seed: of the samples.
        out: directory for all files.
        number_shown: how many samples, the first ones, are in the picture.
    """

    def __init__(self, draw: Draw, indices: Tensor, seed: int, out: Path, number_shown: int = 64) -> None:
        super().__init__()
        self._draw, self._indices, self._out, self._number_shown = draw, indices, out, number_shown
        file = sample_file(out / f"{draw.names.file}.npz", len(indices), draw.names, draw.about(seed))
        self._outputs, self._taken, self._write = draw.outputs(seed), 0, self.enter_context(file)
        self._shown: list[Samples] = []

    def take(self, samples: Samples) -> None:
        """Take the next samples, on the CPU."""
        begin, self._taken = self._taken, self._taken + len(samples["samples"])
        if self._outputs is not None:
            self._outputs.update(samples, self._indices[begin : self._taken])
        self._write(samples)
        if begin < self._number_shown:
            self._shown.append(samples)

    def finish(self, scored: Plain, how: Plain) -> None:
        """Write the picture of the first samples, what else the family makes, and metrics.json where there are scores.

        Args:
            scored: what `evaluate=true` says, with its `values`; empty without it.
            how: the samples were made.
        """
        names = self._shown[0] if self._shown else ()
        first = {name: torch.cat([part[name] for part in self._shown])[: self._number_shown] for name in names}
        save_picture(self._draw.picture(first), self._out / f"{self._draw.names.picture}.png")
        print(f"{self._taken} samples of {self._draw.nfe} network evaluations in {shown(str(self._out))}")
        made = {} if self._outputs is None else self._outputs.write(self._out)
        values = {**made.get("values", {}), **scored.get("values", {})}
        if made or scored:
            report = {**made, **scored, "values": values, **how}
            write_scores(report, self._out / "metrics.json", self._draw.references)
            print(f"scores in {self._out / 'metrics.json'}")


def sample_provenance(config: Plain, model: Model, draw: Draw, began: float, source: Source | None) -> dict[str, Any]:
    """How samples were made, as plain values for metrics.json."""
    return {
        **provenance(model.device, began, source),
        "num_samples": config["num_samples"],
        "seeds": [config["seed"] + i for i in range(config["seeds"] if config["evaluate"] else 1)],
        "network_evaluations": draw.nfe,
        "sampler": dict(draw.description),
        **({} if config.get("law") else {"weights": "averaged (EMA)"}),
        "model": {"path": config["ckpt"] and str(config["ckpt"]), **model.config},
    }
