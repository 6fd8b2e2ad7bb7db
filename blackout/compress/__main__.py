"""`python -m blackout.compress`: counts in a file, losslessly, by a trained model; exit code 2 for what cannot be read.

    python -m blackout.compress encode runs/digits/<run_id> counts.npy --out counts.bits
    python -m blackout.compress decode runs/digits/<run_id> counts.bits --out counts.npy

It needs the same model, and the same machine and versions: probabilities come from a network, whose last digits other
hardware computes otherwise. What is decoded is compared with a hash of what was encoded.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import math
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.compress.chain import LARGEST, Coder, decoded, encoded
from blackout.counts import count_dtype
from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.report import finite_time_bits
from blackout.errors import UserError, run_command
from blackout.files import load_array, new_file, opened, replacing
from blackout.training.export import load_model

_HEADER = struct.Struct("<4sIHHH16s")
"""Magic, number of arrays, steps, batch size, lanes, and the first half of the SHA-256 of the counts."""
_MAGIC = b"BLK1"
_PER_LANE = 6000
"""Elements for every lane of the coder, which costs 8 bytes."""
_SPARSEST, _MOST_WORK = 10_000, 1 << 40
"""Elements for every byte of a file, and elements times steps: what says more is refused, not tried."""


def encode(given: argparse.Namespace) -> None:
    """Write the compressed file, decode it again, and say how large it is beside the bound, xz and PNG."""
    model, began = _model(given.model), time.perf_counter()
    counts = _counts(given.file, model)
    lanes = _lanes(counts.numel())
    if counts.numel() * given.steps > _MOST_WORK:
        raise UserError(
            f"{given.file}: {counts.numel():,} elements in {given.steps} steps: at most {_MOST_WORK:,} altogether"
        )
    given.out = new_file(given.out, given=True)
    coder = Coder(lanes)
    encoded(model, counts, given.steps, coder, given.batch_size)
    header = _HEADER.pack(_MAGIC, len(counts), given.steps, given.batch_size, lanes, _hash(counts))
    content = _checked(header + coder.content)
    if not torch.equal(_decoded(model, content, str(given.file)), counts):
        raise RuntimeError("what was encoded does not decode to itself")
    with replacing(given.out) as part:
        part.write_bytes(content)
    rate = 8 / counts.numel()
    bound = finite_time_bits(model, counts, given.steps)["total"]
    xz = lzma.compress(counts.numpy().tobytes(), preset=9 | lzma.PRESET_EXTREME)
    sizes = {"this": len(content), "xz": len(xz), **_png(counts)}
    said = ", ".join(f"{name} {size:,} bytes ({size * rate:.3f} bits per dimension)" for name, size in sizes.items())
    print(f"{len(counts):,} arrays: {said}; the bound is {bound.value:.3f} +- {bound.standard_error:.3f}")
    print(f"wrote {given.out}, and decoded it again, in {time.perf_counter() - began:.0f} s")


def decode(given: argparse.Namespace) -> None:
    """Write the counts as .npy."""
    model = _model(given.model)
    try:
        with opened(given.file) as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"{given.file}: {error.strerror}") from None
    given.out = new_file(given.out, given=True)
    counts = _decoded(model, content, str(given.file))
    with replacing(given.out) as part, part.open("wb") as out:
        np.save(out, counts.numpy())
    print(f"wrote {len(counts):,} arrays to {given.out}")


def _decoded(model: BlackoutDiffusion, content: bytes, name: str) -> Tensor:
    if not content.startswith(_MAGIC):
        raise UserError(f"{name}: not a file that `python -m blackout.compress encode` wrote")
    if len(content) < _HEADER.size + 4 or _checked(content[:-4]) != content:
        raise UserError(f"{name}: damaged")
    _, n, steps, batch_size, lanes, expected = _HEADER.unpack(content[: _HEADER.size])
    body, elements = content[_HEADER.size : -4], n * math.prod(model.shape)
    whole = min(n, steps, batch_size, lanes) > 0 and len(body) >= 8 * lanes and len(body) % 4 == 0
    if not whole or lanes != _lanes(elements) or elements > _SPARSEST * len(body) or elements * steps > _MOST_WORK:
        raise UserError(f"{name}: damaged: {n:,} arrays in {steps} steps and {lanes} lanes cannot be in it")
    counts = decoded(model, n, steps, Coder(lanes, body), batch_size).to(count_dtype(model.process.max_count))
    if _hash(counts) != expected:
        raise UserError(f"{name}: does not decode to what was encoded: another model, machine or version made it")
    return counts


def _lanes(elements: int) -> int:
    return max(1, min(1024, elements // _PER_LANE))


def _checked(content: bytes) -> bytes:
    """With its CRC-32 behind it."""
    return content + zlib.crc32(content).to_bytes(4, "little")


def _model(path: Path) -> BlackoutDiffusion:
    model = load_model(path)
    if not isinstance(model, BlackoutDiffusion) or not isinstance(model.process, PureDeath):
        raise UserError(f"{path}: compression needs a model of pure death")
    if model.process.max_count > LARGEST or model.num_classes is not None:
        raise UserError(f"{path}: compression is for counts up to {LARGEST} and models without classes")
    return model


def _counts(path: Path, model: BlackoutDiffusion) -> Tensor:
    """The array of a .npy file, or `samples` of an .npz, channels first or last."""
    array = load_array(path, "samples")
    shape = tuple(model.shape)
    if array.ndim == len(shape) + 1 and array.shape[1:] == (*shape[1:], shape[0]):
        array = np.moveaxis(array, -1, 1)
    if array.shape[1:] != shape or len(array) == 0 or array.dtype.kind not in "iu":
        raise UserError(
            f"{path}: whole numbers [n, {', '.join(map(str, shape))}] are needed, not {array.dtype} {array.shape}"
        )
    if array.min() < 0 or array.max() > model.process.max_count:
        raise UserError(f"{path}: counts must be from 0 to {model.process.max_count}")
    return torch.from_numpy(array.astype(np.int64)).to(count_dtype(model.process.max_count))


def _hash(counts: Tensor) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(counts.numpy()).tobytes()).digest()[:16]


def _png(counts: Tensor) -> dict[str, int]:
    """All images as PNG files, of counts up to 255 in one or three channels."""
    from PIL import Image

    if counts.dtype != torch.uint8 or counts.ndim != 4 or counts.shape[1] not in (1, 3):
        return {}
    size = 0
    for image in counts.movedim(1, -1).squeeze(-1).numpy():
        Image.fromarray(image).save(file := io.BytesIO(), "png", optimize=True)
        size += file.tell()
    return {"PNG": size}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m blackout.compress", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["encode", "decode"])
    parser.add_argument("model", type=Path, help="run directory, .ckpt file or exported model")
    parser.add_argument("file", type=Path, help="counts (.npy, or .npz with `samples`), or what was encoded")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100, help="of the sampler: more are tighter and slower")
    parser.add_argument("--batch-size", type=int, default=64)
    run_command(_run, parser)


def _run(given: argparse.Namespace) -> None:
    if not (1 <= given.steps < 1 << 16 and 1 <= given.batch_size < 1 << 16):
        raise UserError("--steps and --batch-size must be from 1 to 65,535")
    (encode if given.what == "encode" else decode)(given)


if __name__ == "__main__":
    main()
