"""Batches of samples kept until all are drawn, so that a command that was killed goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from blackout.distributed import world_size
from blackout.family import Draw, Samples, Watch
from blackout.files import PART, replacing, save_tensors
from blackout.random import compiled_by
from blackout.training.model import Model


class SampleCache:
    """Draws each batch once, over any number of calls of the same command.

    Args:
        draw: what draws. Batches are kept only if it is `resumable`.
        indices: of all samples, int64 [n].
        seed, size: of the samples and of their batches.
        out: where the folder of the batches is, hidden.
        key: tells this command's batches from others'.
    """

    def __init__(self, draw: Draw, indices: Tensor, seed: int, size: int, out: Path, key: str) -> None:
        self._draw, self._seed, self._size = draw, seed, size
        self.rounds = -(-len(indices) // (size * world_size()))
        """How many batches a process draws at most."""
        self._folder = out / f".drawn-{key}{PART}.batches" if draw.resumable and len(indices) > size else None

    def batches(self, indices: Tensor, watch: Watch, again: bool) -> Iterator[tuple[Tensor, Samples]]:
        """(indices [b], samples) of a process's share, drawn or as they were drawn before.

        Args:
            indices: of the share, int64 [m], in whole batches.
            watch: as for `Draw.batches`; of a batch that was drawn before it hears every step at once.
            again: draw the first batch in any case, so that `watch` sees its states.
        """
        for number, part in enumerate(indices.split(self._size) if len(indices) else ()):
            file = self._folder / f"{int(part[0])}-{int(part[-1])}.safetensors" if self._folder is not None else None
            known = None if file is None or (again and number == 0) else _read(file)
            if known is not None:
                for step in range(1, self._draw.steps + 1):
                    watch(step, self._draw.steps, known["samples"])
                yield part, known
                continue
            for of_batch, samples in self._draw.batches(part, self._seed, self._size, watch):
                if file is not None:
                    with replacing(file) as hidden:
                        save_tensors({name: values.cpu().contiguous() for name, values in samples.items()}, hidden)
                yield of_batch, samples

    def forget(self) -> None:
        """Remove what was kept, once the samples are where they belong."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _read(file: Path) -> Samples | None:
    with suppress(OSError, SafetensorError):
        kept: Samples = load_file(file)
        return kept
    return None


def cache_key(request: Mapping[str, Any], model: Model, indices: Tensor, seed: int, size: int) -> str:
    """32 hexadecimal digits that are the same for commands that draw the same bits: settings, weights, machine."""
    sha256 = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha256.update(name.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    sha256.update(indices.numpy().tobytes())
    circumstances = [str(torch.__version__), model.device.type, torch.get_num_threads(), compiled_by(), seed, size]
    plain = [circumstances, dict(request), model.config]
    sha256.update(json.dumps(plain, sort_keys=True, default=str).encode())
    return sha256.hexdigest()[:32]
