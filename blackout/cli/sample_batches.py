"""Drawing samples in batches that a killed command leaves on disk, and writing them in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blackout.cli.metrics_file import merge_reports, write_scores
from blackout.cli.pictures import Trajectory
from blackout.component import Plain
from blackout.distributed import rank
from blackout.errors import UserError, escaped
from blackout.files import hash_tensors, replacing, save_tensors
from blackout.pictures import save_picture
from blackout.protocols import Draw, Drawn, Samples, Watch
from blackout.safe_reading import open_regular
from blackout.sample_writer import sample_file

HASH_NAME = "sha256"  # metadata of a kept batch: the hash of its tensors
SECONDS_BETWEEN_LINES = 30.0  # about progress, where there is no terminal


def resume_or_draw_batches(
    draw: Draw,
    parts: Sequence[Tensor],
    seed: int,
    batch_size: int,
    folder: Path,
    watch: Watch,
    *,
    redraw_first: bool,
) -> Drawn:
    """Yield batches of samples, from disk where a killed command has drawn them already.

    Every W-th batch is drawn by one process, so that no batch depends on the number W of processes.

    Args:
        draw: what draws. Batches are kept only if it is `resumable`.
        parts: indices of this process's batches, int64 [b] each.
        seed: of the samples.
        batch_size: of all batches but the last.
        folder: of the batches on disk, of this command alone.
        watch: as for `Draw.batches`; for a batch from disk it is called for every step at once.
        redraw_first: draw the first batch in any case, so that `watch` sees its states.

    Yields:
        (indices [b], samples), new or from disk.
    """
    for number, part in enumerate(parts):
        file = folder / f"{int(part[0])}-{int(part[-1])}.safetensors"
        batch = None
        if draw.resumable and not (redraw_first and number == 0):
            batch = _load_batch(file)
        if batch is not None:
            for step in range(1, draw.steps + 1):
                watch(step, draw.steps, batch["samples"])
            yield part, batch
            continue
        for indices, samples in draw.batches(part, seed, batch_size, watch):
            if draw.resumable:
                with replacing(file) as hidden:
                    tensors = {name: values.cpu().contiguous() for name, values in samples.items()}
                    save_tensors(tensors, hidden, {HASH_NAME: hash_tensors("", tensors)})
            yield indices, samples


def _load_batch(file: Path) -> dict[str, Tensor] | None:
    """Return the samples of a kept batch; None if it was not drawn, or its file is damaged."""
    try:
        open_regular(file).close()
        with safe_open(file, "pt") as content:
            expected_hash = (content.metadata() or {}).get(HASH_NAME)
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, UserError, SafetensorError):
        return None
    return tensors if hash_tensors("", tensors) == expected_hash else None


def show_progress(
    batches: Callable[..., Drawn], num_steps: int, num_rounds: int, trajectory: Trajectory | None
) -> Generator[tuple[Tensor, Samples], None, None]:
    """Yield the batches of this process under a progress bar over their steps.

    Empty batches follow until the other processes are done. Without a terminal, process 0 prints a
    line from time to time.

    Args:
        batches: called with (watch, redraw_first), as `resume_or_draw_batches`.
        num_steps: of a batch.
        num_rounds: number of batches that a process draws at most.
        trajectory: receives the states of the first batch.
    """
    with Progress(transient=True, disable=rank() > 0) as progress:
        total = num_rounds * num_steps
        task = progress.add_task("sampling", total=total)
        start = time.monotonic()
        last_line = start
        console = progress.console
        prints_lines = rank() == 0 and not (console.is_terminal or console.is_jupyter)

        def watch(step: int, steps: int, state: Tensor) -> None:
            nonlocal last_line
            if step > 0:
                progress.advance(task)
            done = progress.tasks[task].completed
            now = time.monotonic()
            if prints_lines and done and now - last_line > SECONDS_BETWEEN_LINES:
                last_line = now
                time_left = timedelta(seconds=round((now - start) * (total - done) / done))
                print(
                    f"step {done:,.0f} of {total:,} of all batches, about {time_left} left",
                    flush=True,
                )
            if trajectory is not None:
                trajectory.add(step, steps, state)

        new_batches = batches(watch, redraw_first=trajectory is not None)
        for _ in range(num_rounds):
            yield next(new_batches, (torch.arange(0), {}))


class SampleWriter(ExitStack):
    """Takes samples in order and writes their file, their picture and the family's own files.

    A context manager: see `sample_file`.

    Args:
        draw: of the samples.
        indices: of the samples, int64 [n].
        seed: of the samples.
        out: folder of all files.
        num_shown: number of samples, the first ones, in the picture.
    """

    def __init__(
        self, draw: Draw, indices: Tensor, seed: int, out: Path, num_shown: int = 64
    ) -> None:
        super().__init__()
        self._draw = draw
        self._indices = indices
        self._out = out
        self._num_shown = num_shown
        self._num_added = 0
        self._shown: list[Samples] = []
        self._outputs = draw.outputs(seed)
        path = out / f"{draw.names.file}.npz"
        file = sample_file(path, len(indices), draw.names, draw.metadata(seed))
        self._write = self.enter_context(file)

    def add(self, samples: Samples) -> None:
        """Add the next samples, on the CPU."""
        start = self._num_added
        self._num_added += len(samples["samples"])
        if self._outputs is not None:
            self._outputs.update(samples, self._indices[start : self._num_added])
        self._write(samples)
        if start < self._num_shown:
            self._shown.append(samples)

    def finish(self, scores: Plain, sample_provenance: Plain) -> None:
        """Write the picture, the family's files, and metrics.json if there is anything to write.

        Args:
            scores: report of the scores, with its `values`; empty without scores.
            sample_provenance: how the samples were made.
        """
        names = self._shown[0] if self._shown else ()
        shown_samples = {
            name: torch.cat([part[name] for part in self._shown])[: self._num_shown]
            for name in names
        }
        picture = self._draw.picture(shown_samples)
        save_picture(picture, self._out / f"{self._draw.names.picture}.png")
        nfe = self._draw.nfe
        print(f"{self._num_added} samples of {nfe} network evaluations in {escaped(self._out)}")
        outputs = {} if self._outputs is None else self._outputs.write(self._out)
        if outputs or scores:
            report = merge_reports({"values": {}}, outputs, scores, sample_provenance)
            path = self._out / "metrics.json"
            write_scores(report, path, self._draw.references)
            print(f"scores in {escaped(path)}")
