"""Reads what an offline W&B run has on disk, without W&B's own reader (there is none in Python)."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FILE_HEADER = 7
_HEADER = 7
_FULL = 1
_LAST = 4


@dataclass
class OfflineRun:
    """The contents of `offline-run-*/run-*.wandb`."""

    id: str = ""
    name: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)
    exit_code: int | None = None


def read_run(folder: Path, patience: float = 30.0) -> OfflineRun:
    """Return the run of an `offline-run-*` folder, waiting for W&B's process to finish the file."""
    (file,) = folder.glob("run-*.wandb")
    end = time.monotonic() + patience
    while (run := _read(file)).exit_code is None:
        assert time.monotonic() < end, f"{file} was never finished"
        time.sleep(0.05)
    return run


def _read(file: Path) -> OfflineRun:
    # the module takes its names from a version of protobuf at run time
    record_class = import_module("wandb.proto.wandb_internal_pb2").Record

    run = OfflineRun()
    for content in _records(file.read_bytes()):
        record = record_class.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id = record.run.run_id
            run.name = record.run.display_name
            run.group = record.run.run_group
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "artifact":
            run.artifacts.append(record.artifact)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _records(content: bytes) -> Iterator[bytes]:
    """Yield payloads of LevelDB's log: blocks of [checksum 4][length 2][kind 1][payload]."""
    assert content[:_FILE_HEADER].startswith(b":W&B") or not content
    position = _FILE_HEADER
    parts = b""
    while position + _HEADER <= len(content):
        remaining = _BLOCK - position % _BLOCK
        if remaining < _HEADER:
            position += remaining
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + _HEADER])
        position += _HEADER
        if position + length > len(content):
            return
        parts += content[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
