"""What process 0 makes of samples as they are drawn: their file, the family's own outputs, the first few to show."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from blackout.family import Draw, Samples, Source
from blackout.files import save_picture, write_json
from blackout.programs.passport import passport
from blackout.programs.sample_file import SampleFile
from blackout.training.model import Model


class Results:
    """Takes samples in order; a context manager, which writes their file when it is left without an error.

    Args:
        draw: where the samples come from.
        indices: of the samples, int64 [n].
        seed: of the samples.
        out: directory for all files.
        number_shown: how many samples, the first ones, are in the picture.
    """

    def __init__(self, draw: Draw, indices: Tensor, seed: int, out: Path, number_shown: int = 64) -> None:
        self._draw, self._out, self._number_shown = draw, out, number_shown
        self._to_come = indices
        self._file = SampleFile(out / f"{draw.names.file}.npz", len(indices), draw.names, draw.about(seed))
        self._outputs = draw.outputs(seed)
        self._shown: list[Samples] = []

    def __enter__(self) -> Results:
        self._file.__enter__()
        return self

    def take(self, samples: Samples) -> None:
        """Take the next samples, on the CPU."""
        size = len(samples["samples"])
        if self._outputs is not None:
            self._outputs.update(samples, self._to_come[:size])
        self._file.write(samples)
        if sum(len(part["samples"]) for part in self._shown) < self._number_shown:
            self._shown.append(samples)
        self._to_come = self._to_come[size:]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # the old samples' scores are not those of the new ones
            (self._out / "metrics.json").unlink(missing_ok=True)
        self._file.__exit__(kind, error, trace)

    def finish(self, scored: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        """Write the picture of the first samples, what else the family makes, and metrics.json where there are scores.

        Args:
            scored: what `evaluate=true` says, with its `values`; empty without it.
            how: the samples were made.
        """
        save_picture(self._draw.picture(self._first()), self._out / f"{self._draw.names.picture}.png")
        print(f"{self._file.num_samples} samples of {self._draw.nfe} network evaluations in {self._out}")
        made = {} if self._outputs is None else self._outputs.write(self._out)
        values = {**made.get("values", {}), **scored.get("values", {})}
        if made or scored:
            write_json({**made, **scored, "values": values, **how}, self._out / "metrics.json")
            print(f"scores in {self._out / 'metrics.json'}")

    def _first(self) -> Samples:
        names = self._shown[0] if self._shown else ()
        return {name: torch.cat([part[name] for part in self._shown])[: self._number_shown] for name in names}


def provenance(
    config: Mapping[str, Any], model: Model, draw: Draw, began: float, source: Source | None
) -> dict[str, Any]:
    """How samples were made, as plain values for metrics.json."""
    return {
        **passport(model.device, began, source),
        "num_samples": config["num_samples"],
        "seeds": [config["seed"] + i for i in range(config["seeds"] if config["evaluate"] else 1)],
        "network_evaluations": draw.nfe,
        "sampler": dict(draw.description),
        **({} if config.get("law") else {"weights": "averaged (EMA)"}),
        "model": {"path": config["ckpt"] and str(config["ckpt"]), **model.config},
        "date": now(),
    }


def now() -> str:
    """Date and time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
