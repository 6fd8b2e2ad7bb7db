"""Files of compressed counts, written and read part by part to save memory.

A file is `BLK2` with a header and parts, each with a hash of its counts and a checksum; or, if xz
makes the counts smaller, `BLKX` with a header and an xz stream.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.formats import load_array
from blackout.diffusion.compression.bits_back import (
    coding_grids,
    decode_counts,
    encode_counts,
    expected_nats,
)
from blackout.diffusion.compression.coder import Coder
from blackout.diffusion.likelihood_estimates import Estimate
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.errors import UserError, refuse
from blackout.files import creating, new_file
from blackout.safe_reading import open_regular

Array: TypeAlias = NDArray[Any]

FILE_HEADER = struct.Struct("<4sQHHB")  # magic, samples, steps, batch size, index of the grid
XZ_HEADER = struct.Struct("<4sQ")  # magic, samples
PART_HEADER = struct.Struct("<IIH16s")  # samples, bytes, lanes, first half of the counts' SHA-256
MAGIC = b"BLK2"
XZ_MAGIC = b"BLKX"
HASH_BYTES = 16
CRC_BYTES = 4  # CRC-32 of the file's header and the part, after each part
ELEMENTS_PER_LANE = 6000  # a lane of the coder costs 8 bytes
MAX_LANES = 1024
PART_ELEMENTS = 1 << 22  # elements that are coded at once, unless a single sample has more
NUM_ESTIMATED = 256  # samples from which the grid is chosen and the bound is estimated
MAX_ELEMENTS_PER_BYTE = 10_000  # a part that claims more is damaged
MAX_WORK = 1 << 40  # elements times steps; larger requests are refused
MAX_16_BITS = (1 << 16) - 1  # largest number of steps and batch size of a header
XZ_PRESET = 9 | lzma.PRESET_EXTREME
XZ_MEMORY = 1 << 27  # bytes that decompression may use
XZ_READ_BYTES = 1 << 20  # read at once


@dataclass(frozen=True)
class EncodingReport:
    """The result of `Codec.encode`.

    Args:
        samples: number of samples in the file.
        elements: number of counts in the file.
        file_bytes: size of the file.
        model_bytes: size with the model, which is not used where xz needs fewer bytes.
        xz_bytes: size with xz.
        bound: expected bits per dimension with the model.
    """

    samples: int
    elements: int
    file_bytes: int
    model_bytes: int
    xz_bytes: int
    bound: Estimate


class _Header(NamedTuple):
    """Header of a file coded with the model."""

    samples: int
    steps: int
    batch_size: int
    grid: int

    def pack(self) -> bytes:
        return FILE_HEADER.pack(MAGIC, *self)


class Codec:
    """Lossless compression of counts with one model.

    Decoding needs the same model, machine and versions, as probabilities come from a network whose
    last digits depend on them. Models with classes code without them.

    Args:
        model: a model of pure death, in eval mode.

    Raises:
        UserError: a model of another process.
    """

    def __init__(self, model: BlackoutDiffusion) -> None:
        refuse(not isinstance(model.process, PureDeath), "compression needs a model of pure death")
        self.model = model
        self._max_count = model.process.max_count
        self._elements = math.prod(model.shape)  # of a sample
        # the smallest integers that hold every count, for xz
        self._xz_dtype = np.min_scalar_type(self._max_count).newbyteorder("<")

    def encode(
        self, source: Path, target: Path, steps: int = 100, batch_size: int = 64
    ) -> EncodingReport:
        """Write the compressed file; every part is decoded again and compared.

        Args:
            source: counts in a .npy file, or `samples` in an .npz; channels first or last.
            target: a new file.
            steps: of the sampler; more are tighter and slower.
            batch_size: samples per evaluation of the network.

        Raises:
            UserError: numbers out of range, an unreadable source, counts of another shape or range,
                or a target that exists.
        """
        if not (1 <= steps <= MAX_16_BITS and 1 <= batch_size <= MAX_16_BITS):
            raise UserError(f"steps and batch size must be from 1 to {MAX_16_BITS:,}")
        # 1. Read the counts, and choose the better grid by their first samples.
        counts = self._read_counts(source)
        refuse(
            counts.size * steps > MAX_WORK,
            f"{source}: {counts.size:,} elements in {steps} steps are too many; "
            f"their product must be at most {MAX_WORK:,}",
        )
        new_file(target, is_fixed=True)
        first = next(self._parts(source, counts))[:NUM_ESTIMATED]
        grids = coding_grids(self.model, steps)
        nats = [expected_nats(self.model, first, times) for times in grids]
        bounds = [Estimate.from_nats(values, self.model.shape) for values in nats]
        grid = min(range(len(grids)), key=lambda k: bounds[k].value)
        header = _Header(len(counts), steps, batch_size, grid)

        # 2. Code all parts with the model and with xz.
        compressor = lzma.LZMACompressor(preset=XZ_PRESET)
        with (
            creating(target) as unfinished,
            tempfile.TemporaryFile(dir=target.parent) as xz_file,
        ):
            xz_file.write(XZ_HEADER.pack(XZ_MAGIC, len(counts)))
            with unfinished.open("wb") as file:
                file.write(header.pack())
                for part in self._parts(source, counts):
                    file.write(self._encode_part(part, grids[grid], header))
                    plain = part.numpy().astype(self._xz_dtype)
                    xz_file.write(compressor.compress(plain.tobytes()))
            xz_file.write(compressor.flush())

            # 3. Keep the smaller file.
            model_bytes = unfinished.stat().st_size
            xz_file_bytes = xz_file.tell()
            if model_bytes > xz_file_bytes:
                _copy(xz_file, unfinished)
            file_bytes = unfinished.stat().st_size
        return EncodingReport(
            samples=len(counts),
            elements=counts.size,
            file_bytes=file_bytes,
            model_bytes=model_bytes,
            xz_bytes=xz_file_bytes - XZ_HEADER.size,
            bound=bounds[grid],
        )

    def decode(self, source: Path, target: Path) -> int:
        """Write the counts of a compressed file as .npy; returns the number of samples.

        Raises:
            UserError: not a compressed file, damaged, of another model, or a target that exists.
        """
        with open_regular(source) as file:
            number, parts = self.decode_parts(file, str(source))
            new_file(target, is_fixed=True)
            dtype = torch.empty(0, dtype=count_dtype(self._max_count)).numpy().dtype
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (number, *self.model.shape),
            }
            with creating(target) as unfinished, unfinished.open("wb") as out:
                np.lib.format.write_array_header_1_0(out, header)
                for counts in parts:
                    out.write(counts.astype(dtype).tobytes())
        return number

    def decode_parts(self, file: io.BufferedReader, name: str) -> tuple[int, Iterator[Array]]:
        """Return the number of samples in a file, and an iterator over their counts, part by part.

        Args:
            file: opened for reading.
            name: of the file, for errors.

        Raises:
            UserError: not a compressed file, damaged, or of another model; the iterator raises it,
                too.
        """
        start = file.read(FILE_HEADER.size)
        if start[:4] == XZ_MAGIC and len(start) >= XZ_HEADER.size:
            _, number = XZ_HEADER.unpack(start[: XZ_HEADER.size])
            return number, self._decode_xz(file, start[XZ_HEADER.size :], number, name)
        refuse(start[:4] != MAGIC, f"{name}: not a file written by `blackout compress encode`")
        refuse(len(start) < FILE_HEADER.size, f"{name}: damaged")
        header = _Header(*FILE_HEADER.unpack(start)[1:])
        work = header.samples * self._elements * header.steps
        if min(header[:3]) < 1 or header.grid > 1 or work > MAX_WORK:
            content = f"its header says {header.samples:,} samples in {header.steps} steps"
            raise UserError(f"{name}: damaged: {content}")
        return header.samples, self._decode_parts(file, header, name)

    def _encode_part(self, counts: Tensor, times: Tensor, header: _Header) -> bytes:
        """Return a part of the file, whose counts [n, *shape] have been decoded from it again.

        Raises:
            RuntimeError: they differ.
        """
        lanes = _num_lanes(counts.numel())
        coder = Coder(lanes)
        encode_counts(self.model, counts, times, coder, header.batch_size)
        body = coder.content
        decoded = decode_counts(
            self.model, len(counts), times, Coder(lanes, body), header.batch_size
        )
        if not torch.equal(decoded, counts.long()):
            raise RuntimeError("decoding does not return the counts that were encoded")
        content = PART_HEADER.pack(len(counts), len(body), lanes, _hash(counts)) + body
        return content + _checksum(content, header)

    def _decode_parts(self, file: io.BufferedReader, header: _Header, name: str) -> Iterator[Array]:
        times = coding_grids(self.model, header.steps)[header.grid]
        num_remaining = header.samples
        while num_remaining:
            start = file.read(PART_HEADER.size)
            if len(start) < PART_HEADER.size:
                raise UserError(f"{name}: damaged: it ends too early")
            samples, size, lanes, expected_hash = PART_HEADER.unpack(start)
            elements = samples * self._elements
            size_fits = size >= 8 * lanes and size % 4 == 0
            size_fits = size_fits and elements <= MAX_ELEMENTS_PER_BYTE * size
            number_fits = 0 < samples <= min(num_remaining, self._samples_per_part())
            if not (number_fits and size_fits and lanes == _num_lanes(elements)):
                raise UserError(
                    f"{name}: damaged: a part's header says {samples:,} samples in {size:,} bytes"
                )
            body = file.read(size)
            refuse(file.read(CRC_BYTES) != _checksum(start + body, header), f"{name}: damaged")
            counts = decode_counts(
                self.model, samples, times, Coder(lanes, body), header.batch_size
            )
            if _hash(counts) != expected_hash:
                raise UserError(
                    f"{name}: was encoded with another model, machine or version: "
                    "decoding does not return the original counts"
                )
            yield counts.numpy()
            num_remaining -= samples
        refuse(file.read(1), f"{name}: damaged: it does not end after its last part")

    def _decode_xz(
        self, file: io.BufferedReader, data: bytes, number: int, name: str
    ) -> Iterator[Array]:
        """Yield the counts of an xz stream; `data` are its first bytes, read before."""
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY)
        sample_bytes = self._elements * self._xz_dtype.itemsize
        num_remaining = number
        while num_remaining or not decompressor.eof:
            samples = min(num_remaining, self._samples_per_part())
            num_bytes = samples * sample_bytes or 1  # 1: find the end of the stream
            content = b""
            while len(content) < num_bytes and not decompressor.eof:
                if not data and decompressor.needs_input:
                    data = file.read(XZ_READ_BYTES)
                try:
                    content += decompressor.decompress(data, num_bytes - len(content))
                except lzma.LZMAError:
                    raise UserError(f"{name}: damaged") from None
                truncated = not data and decompressor.needs_input and not decompressor.eof
                refuse(truncated, f"{name}: damaged")
                data = b""
            refuse(len(content) != samples * sample_bytes, f"{name}: damaged")
            if samples:
                counts = np.frombuffer(content, self._xz_dtype).astype(np.int64)
                if counts.max() > self._max_count:
                    raise UserError(
                        f"{name}: written with another model, as counts are above {self._max_count}"
                    )
                yield counts.reshape(-1, *self.model.shape)
                num_remaining -= samples
        has_more = bool(decompressor.unused_data) or bool(file.read(1))
        refuse(has_more, f"{name}: damaged: it does not end after its last part")

    def _read_counts(self, path: Path) -> Array:
        """Return the counts in a file, [n, *shape], left on the disk where the format allows it."""
        array = load_array(path, "samples", mapped=True)
        shape = tuple(self.model.shape)
        if array.ndim == len(shape) + 1 and array.shape[1:] == (*shape[1:], shape[0]):
            array = np.moveaxis(array, -1, 1)
        if array.shape[1:] != shape or len(array) == 0 or array.dtype.kind not in "iu":
            sizes = ", ".join(map(str, shape))
            raise UserError(
                f"{path}: whole numbers [n, {sizes}] are needed, not {array.dtype} {array.shape}"
            )
        return array

    def _parts(self, path: Path, counts: Array) -> Iterator[Tensor]:
        """Yield the counts that are coded at once.

        Raises:
            UserError: counts out of range.
        """
        samples = self._samples_per_part()
        for first in range(0, len(counts), samples):
            part = np.asarray(counts[first : first + samples])
            if part.min() < 0 or part.max() > self._max_count:
                raise UserError(f"{path}: counts must be from 0 to {self._max_count}")
            yield torch.from_numpy(part.astype(np.int64)).to(count_dtype(self._max_count))

    def _samples_per_part(self) -> int:
        return max(1, PART_ELEMENTS // self._elements)


def _num_lanes(elements: int) -> int:
    return max(1, min(MAX_LANES, elements // ELEMENTS_PER_LANE))


def _checksum(content: bytes, header: _Header) -> bytes:
    """Return the CRC-32 of the file's header and a part."""
    return zlib.crc32(content, zlib.crc32(header.pack())).to_bytes(CRC_BYTES, "little")


def _hash(counts: Tensor) -> bytes:
    """Return the first half of the SHA-256 of counts as int64."""
    content = np.ascontiguousarray(counts.numpy(), dtype="<i8").tobytes()
    return hashlib.sha256(content).digest()[:HASH_BYTES]


def _copy(source: IO[bytes], target: Path) -> None:
    source.seek(0)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file)
