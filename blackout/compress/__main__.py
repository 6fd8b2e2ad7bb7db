"""`python -m blackout.compress`: counts in a file, losslessly, by a trained model; exit code 2 for what cannot be read.

    python -m blackout.compress encode runs/digits/<run_id> counts.npy --out counts.bits
    python -m blackout.compress decode runs/digits/<run_id> counts.bits --out counts.npy

It needs the same model, and the same machine and versions: probabilities come from a network, whose last digits other
hardware computes otherwise. What is decoded is compared with a hash of what was encoded. Counts are read and coded by
parts, so that they need not fit into memory, and what `xz` makes smaller is kept as `xz` makes it. Models with classes
code without them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import math
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.compress.bits_back import Coder, bounds, decoded, encoded, grids
from blackout.counts import count_dtype
from blackout.data.file_formats import load_array
from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.likelihood import Estimate
from blackout.diffusion.processes import PureDeath
from blackout.errors import UserError, refuse, run_command
from blackout.files import new_file, opened, replacing
from blackout.training.export import load_model

Array = npt.NDArray[Any]
_FILE, _PLAIN, _PART = struct.Struct("<4sQHHB"), struct.Struct("<4sQ"), struct.Struct("<IIH16s")
"""Of a file: magic, arrays, steps, batch size, which grid; of one by xz: magic, arrays. Of a part: arrays, bytes,
lanes, and the first half of the SHA-256 of its counts; behind its bytes stands the CRC-32 of file header and part."""
_MAGIC, _XZ = b"BLK2", b"BLKX"
_PER_LANE = 6000
"""Elements for every lane of the coder, which costs 8 bytes."""
_PER_PART = 1 << 22
"""Elements that are coded at once, at most, if a single array has no more."""
_TRIED = 256
"""Arrays by which the grid is chosen, and the bound is told."""
_SPARSEST, _MOST_WORK = 10_000, 1 << 40
"""Elements for every byte of a part, and elements times steps: what says more is refused, not tried."""
_LZMA, _LZMA_MEMORY = 9 | lzma.PRESET_EXTREME, 1 << 27


def encode(given: argparse.Namespace) -> None:
    """Write the compressed file, every part decoded again, and say how large it is beside the bound and xz."""
    model, began = _model(given.model), time.perf_counter()
    counts = _counts(given.file, model)
    work = f"{counts.size:,} elements in {given.steps} steps"
    refuse(counts.size * given.steps > _MOST_WORK, f"{given.file}: {work}: at most {_MOST_WORK:,} altogether")
    given.out = new_file(given.out, given=True)
    tried = next(_parts(given.file, counts, model))
    expected = [Estimate.of(bounds(model, tried[:_TRIED], grid), model.shape) for grid in grids(model, given.steps)]
    chosen = min(range(len(expected)), key=lambda k: expected[k].value)
    times, bound = grids(model, given.steps)[chosen], expected[chosen]
    header = _FILE.pack(_MAGIC, len(counts), given.steps, given.batch_size, chosen)
    squeezer = lzma.LZMACompressor(preset=_LZMA)
    with replacing(given.out) as part, tempfile.TemporaryFile(dir=given.out.parent) as plain:
        plain.write(_PLAIN.pack(_XZ, len(counts)))
        with part.open("wb") as file:
            file.write(header)
            for some in _parts(given.file, counts, model):
                file.write(_part(model, some, times, header, given.batch_size))
                plain.write(squeezer.compress(some.numpy().astype(_plain_type(model)).tobytes()))
        plain.write(squeezer.flush())
        own, xz = part.stat().st_size, plain.tell() - _PLAIN.size
        if own > plain.tell():
            plain.seek(0)
            with part.open("wb") as file:
                shutil.copyfileobj(plain, file)
        size = part.stat().st_size
    rate = 8 / counts.size
    sizes = {"this": size, **({} if own == size else {"the model": own}), "xz": xz}
    said = ", ".join(f"{name} {size:,} bytes ({size * rate:.3f} bits per dimension)" for name, size in sizes.items())
    print(f"{len(counts):,} arrays: {said}; the bound is {bound.value:.3f} +- {bound.standard_error:.3f}")
    print(f"wrote {given.out}, and decoded it again, in {time.perf_counter() - began:.0f} s")


def _part(model: BlackoutDiffusion, counts: Tensor, times: Tensor, header: bytes, batch_size: int) -> bytes:
    coder = Coder(_lanes(counts.numel()))
    encoded(model, counts, times, coder, batch_size)
    body = coder.content
    content = _PART.pack(len(counts), len(body), _lanes(counts.numel()), _hash(counts)) + body
    again = decoded(model, len(counts), times, Coder(_lanes(counts.numel()), body), batch_size)
    if not torch.equal(again, counts.long()):
        raise RuntimeError("what was encoded does not decode to itself")
    return content + zlib.crc32(content, zlib.crc32(header)).to_bytes(4, "little")


def decode(given: argparse.Namespace) -> None:
    """Write the counts as .npy."""
    model, name = _model(given.model), str(given.file)
    with opened(given.file) as file:
        n, parts = decoded_file(model, file, name)
        given.out = new_file(given.out, given=True)
        dtype = torch.empty(0, dtype=count_dtype(model.process.max_count)).numpy().dtype
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n, *model.shape)}
        with replacing(given.out) as part, part.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, about)
            for counts in parts:
                out.write(counts.astype(dtype).tobytes())
    print(f"wrote {n:,} arrays to {given.out}")


def decoded_file(model: BlackoutDiffusion, file: io.BufferedReader, name: str) -> tuple[int, Iterator[Array]]:
    """How many arrays there are, and all of them by parts.

    Raises:
        UserError: now or from a part: not such a file, damaged, or of another model.
    """
    start = file.read(_FILE.size)
    if start[:4] == _XZ and len(start) >= _PLAIN.size:
        _, n = _PLAIN.unpack(start[: _PLAIN.size])
        return n, _unsqueezed(model, file, start[_PLAIN.size :], n, name)
    refuse(start[:4] != _MAGIC, f"{name}: not a file that `python -m blackout.compress encode` wrote")
    refuse(len(start) < _FILE.size, f"{name}: damaged")
    _, n, steps, batch_size, chosen = _FILE.unpack(start)
    if min(n, steps, batch_size) < 1 or chosen > 1 or n * math.prod(model.shape) * steps > _MOST_WORK:
        raise UserError(f"{name}: damaged: {n:,} arrays in {steps} steps cannot be in it")
    return n, _decoded_parts(model, file, start, name)


def _decoded_parts(model: BlackoutDiffusion, file: io.BufferedReader, header: bytes, name: str) -> Iterator[Array]:
    _, n, steps, batch_size, chosen = _FILE.unpack(header)
    times = grids(model, steps)[chosen]
    while n:
        about = file.read(_PART.size)
        some, size, lanes, expected = _PART.unpack(about) if len(about) == _PART.size else (0, 0, 0, b"")
        elements, most = some * math.prod(model.shape), _per_part(model)
        fits = size >= 8 * lanes and size % 4 == 0 and elements <= _SPARSEST * size
        if not 0 < some <= min(n, most) or lanes != _lanes(elements) or not fits:
            raise UserError(f"{name}: damaged: {some:,} arrays in {size:,} bytes and {lanes} lanes cannot be in it")
        body, crc = file.read(size), file.read(4)
        refuse(zlib.crc32(about + body, zlib.crc32(header)).to_bytes(4, "little") != crc, f"{name}: damaged")
        counts = decoded(model, some, times, Coder(lanes, body), batch_size)
        if _hash(counts) != expected:
            raise UserError(f"{name}: does not decode to what was encoded: another model, machine or version made it")
        yield counts.numpy()
        n -= some
    refuse(file.read(1), f"{name}: damaged: more follows its last part")


def _unsqueezed(model: BlackoutDiffusion, file: io.BufferedReader, data: bytes, n: int, name: str) -> Iterator[Array]:
    squeezed, dtype = lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY), _plain_type(model)
    per, size = _per_part(model), math.prod(model.shape) * dtype.itemsize
    while n or not squeezed.eof:
        wanted, found = min(n, per) * size or 1, b""
        while len(found) < wanted and not squeezed.eof:
            data = data or (file.read(1 << 20) if squeezed.needs_input else b"")
            try:
                found += squeezed.decompress(data, wanted - len(found))
            except lzma.LZMAError:
                raise UserError(f"{name}: damaged") from None
            refuse(not data and squeezed.needs_input and not squeezed.eof, f"{name}: damaged")
            data = b""
        refuse(len(found) != min(n, per) * size, f"{name}: damaged")
        if n:
            counts = np.frombuffer(found, dtype).reshape(-1, *model.shape).astype(np.int64)
            if counts.max() > model.process.max_count:
                raise UserError(f"{name}: of another model: counts must be up to {model.process.max_count}")
            yield counts
            n -= len(counts)


def _plain_type(model: BlackoutDiffusion) -> np.dtype[Any]:
    """The smallest integers that hold every count."""
    return np.min_scalar_type(model.process.max_count).newbyteorder("<")


def _per_part(model: BlackoutDiffusion) -> int:
    return max(1, _PER_PART // math.prod(model.shape))


def _lanes(elements: int) -> int:
    return max(1, min(1024, elements // _PER_LANE))


def _model(path: Path) -> BlackoutDiffusion:
    model = load_model(path)
    if not isinstance(model, BlackoutDiffusion) or not isinstance(model.process, PureDeath):
        raise UserError(f"{path}: compression needs a model of pure death")
    return model


def _counts(path: Path, model: BlackoutDiffusion) -> Array:
    """The array of a .npy file, left on the disk, or `samples` of an .npz, channels first or last."""
    array, shape = load_array(path, "samples", mapped=True), tuple(model.shape)
    if array.ndim == len(shape) + 1 and array.shape[1:] == (*shape[1:], shape[0]):
        array = np.moveaxis(array, -1, 1)
    if array.shape[1:] != shape or len(array) == 0 or array.dtype.kind not in "iu":
        needed = f"whole numbers [n, {', '.join(map(str, shape))}] are needed"
        raise UserError(f"{path}: {needed}, not {array.dtype} {array.shape}")
    return array


def _parts(path: Path, counts: Array, model: BlackoutDiffusion) -> Iterator[Tensor]:
    """Counts that are coded at once."""
    for first in range(0, len(counts), per := _per_part(model)):
        some = np.asarray(counts[first : first + per])
        if some.min() < 0 or some.max() > model.process.max_count:
            raise UserError(f"{path}: counts must be from 0 to {model.process.max_count}")
        yield torch.from_numpy(some.astype(np.int64)).to(count_dtype(model.process.max_count))


def _hash(counts: Tensor) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(counts.numpy(), dtype="<i8").tobytes()).digest()[:16]


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
