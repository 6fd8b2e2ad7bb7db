"""Safe reading of files that others may have made or changed.

Only regular files are read. The sizes that a file declares are compared with its size on the disk
and with the available memory before anything is built from it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os.path import realpath
from pathlib import Path
from typing import Any, cast

import yaml

from blackout.errors import UserError, ensure, refuse

# Any file may hold so many bytes of numbers. Beyond that the limit is a multiple of the bytes that
# are stored, which compression exceeds only if nearly all numbers are the same.
MAX_UNCHECKED_BYTES = 1 << 26
MAX_COMPRESSION = 500

MAX_TEXT_BYTES = 1 << 28  # of a text file
MAX_YAML_BYTES = 4_000_000  # of a file of settings; those of a run have a few thousand
MAX_YAML_NODES = 100_000  # libyaml builds about 100,000 of them per second, of 1 kB each
MAX_VALUES = 10_000_000  # of a JSON description (a matrix of 3,000 states) or of a metrics.csv
MAX_COLUMNS = 10_000  # of a metrics.csv
MAX_DEPTH = 32  # of nested mappings and lists
MAX_BITS = 1_000  # of a whole number, so that it can be converted to a float
MAX_STEP_BITS = 63  # of the number of a step
MAX_REASON_LENGTH = 500  # characters of a library's message
BLOCK_BYTES = 512  # unit of `st_blocks`

# JSON can contain escaped surrogates, with which no file can be written
SURROGATE = re.compile("[\ud800-\udfff]")
YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml, ten times as fast


def open_regular(path: Path, root: Path | None = None) -> io.BufferedReader:
    """Open a regular file for reading; pipes and devices, which might never end, are refused.

    Args:
        path: of the file.
        root: a folder that must contain the file after all links are resolved.

    Raises:
        UserError: it is something else, or elsewhere.
        OSError: it does not exist, or cannot be read.
    """
    # realpath, because the resolve() of pathlib raises a RuntimeError for links in a circle
    if root is not None and not Path(realpath(path)).is_relative_to(realpath(root)):
        raise UserError(f"{path} is a link out of {root}: it is not followed")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, root: Path | None = None, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a file of UTF-8 text, with or without a byte order mark; see `open_regular`.

    Args:
        path: of the file.
        root: a folder that must contain the file.
        max_bytes: size limit.

    Raises:
        UserError: it is not such a file, too large, or not UTF-8.
        OSError: it does not exist, or cannot be read.
    """
    with open_regular(path, root) as file:
        content = file.read(max_bytes + 1)
    refuse(
        len(content) > max_bytes,
        f"{path} is too large: at most {max_bytes:,} bytes of text are read",
    )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is damaged, or not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None


def read_mapping(
    path: Path, root: Path | None = None, max_bytes: int = MAX_TEXT_BYTES, advice: str = ""
) -> dict[str, Any]:
    """Read a mapping from an untrusted .json or .yaml file, with limits on size and depth.

    Depth and number of the values are limited, so that code that walks over the result needs no
    limits of its own.

    Args:
        path: of the file.
        root: a folder that must contain the file.
        max_bytes: size limit of JSON; of YAML it is at most `MAX_YAML_BYTES`.
        advice: end of the message about a damaged file.

    Returns:
        Mappings with text keys, lists, text, numbers, booleans, None and the other plain values of
        YAML (dates, bytes).

    Raises:
        UserError: it is damaged, too deep, too large, has aliases, or is not a mapping.
        OSError: it does not exist, or cannot be read.
    """
    is_json = path.suffix == ".json"
    text = read_text(path, root, max_bytes if is_json else min(max_bytes, MAX_YAML_BYTES))
    try:
        content = _parse_json(text) if is_json else parse_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path} is damaged: {reason}{advice}") from None
    refuse(
        not isinstance(content, dict),
        f"{path} is damaged: it is not a mapping of names to values{advice}",
    )
    return cast(dict[str, Any], content)


def _parse_json(text: str) -> Any:
    """Parse JSON with limited depth and number of values.

    Raises:
        ValueError: it is not JSON, or exceeds a limit.
        RecursionError: it is far too deep.
    """
    # every value but the first follows one of these; commas within text are counted, too
    ensure(sum(map(text.count, ",[{")) <= MAX_VALUES, f"more than {MAX_VALUES:,} values")
    content = json.loads(text)
    _check_nested(content)
    return content


def parse_yaml(text: str) -> Any:
    """Parse YAML with limited depth and number of values, and without aliases.

    An alias (`*name`) repeats a part of the text: nine levels of them expand a few hundred bytes
    to gigabytes. The events of the parser are checked first, before any value is built.

    Raises:
        ValueError: it exceeds a limit, or has aliases.
        yaml.YAMLError: it is not YAML of plain values.
    """
    num_nodes = 0
    depth = 0
    for event in yaml.parse(text, Loader=YamlLoader):
        ensure(
            not isinstance(event, yaml.AliasEvent),
            "aliases (*name) are not read: write out what they stand for",
        )
        num_nodes += isinstance(event, yaml.NodeEvent)
        ensure(num_nodes <= MAX_YAML_NODES, f"more than {MAX_YAML_NODES:,} values")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        ensure(depth <= MAX_DEPTH, f"more than {MAX_DEPTH} levels")
    content = yaml.load(text, Loader=YamlLoader)
    _check_nested(content)
    return content


def _check_nested(content: Any) -> None:
    """Check depth, keys, text and whole numbers of nested mappings and lists, without recursion.

    Raises:
        ValueError: too deep, a key that is not text, text that cannot be written to a file, or a
            number that is too large for a float.
    """
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        next_level: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                ensure(all(isinstance(name, str) for name in node), "a name that is not text")
                next_level += node.keys()
                next_level += node.values()
            elif isinstance(node, list | tuple | set):
                next_level += node
            elif isinstance(node, str):
                is_unicode = node.isascii() or not SURROGATE.search(node)
                ensure(is_unicode, "text that is not Unicode")
            elif isinstance(node, int):
                ensure(node.bit_length() <= MAX_BITS, f"a number of more than {MAX_BITS:,} bits")
        if not next_level:
            return
        level = next_level
    raise ValueError(f"more than {MAX_DEPTH} levels")


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """Read a metrics.csv: for every step, the fields that are not empty, as text.

    Raises:
        UserError: it is not the metrics.csv of a run, or has too many columns or values.
    """
    rows: dict[int, dict[str, Any]] = {}
    num_values = 0
    try:
        lines = csv.reader(io.StringIO(read_text(path, path.parent)), strict=True)
        columns = next(lines, [])
        ensure(len(columns) <= MAX_COLUMNS, f"more than {MAX_COLUMNS:,} columns")
        for fields in lines:
            if not fields:
                continue
            # not a DictReader, which fills every short row up to the length of the first
            ensure(len(fields) <= len(columns), "a row that is longer than the first")
            row = {name: text for name, text in zip(columns, fields, strict=False) if text}
            num_values += len(row)
            ensure(num_values <= MAX_VALUES, f"more than {MAX_VALUES:,} values")
            step = int(row["step"])
            ensure(step.bit_length() <= MAX_STEP_BITS, f"a step of more than {MAX_STEP_BITS} bits")
            rows[step] = row
    except UserError:
        raise
    except (csv.Error, ValueError, KeyError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); remove it to go on"
        ) from None
    return rows


def file_error(path: Path, problem: str, cause: Exception) -> UserError:
    """Return a one-line error with the file, the problem, and the reason given by a library."""
    if isinstance(cause, FileNotFoundError):
        return UserError(f"{path}: no such file")
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    reason = re.sub(r"<_io\.[^>]*>", path.name, reason)  # an open file, as libraries print it
    reason = " ".join(reason.split())[:MAX_REASON_LENGTH] or type(cause).__name__
    return UserError(f"{path}: {problem} ({reason})")


@contextmanager
def reading(path: Path, problem: str) -> Iterator[None]:
    """Turn exceptions of a library that reads a file into one-line errors; see `file_error`.

    Raises:
        UserError: raised inside, or in place of any other exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers raise nearly any type for a damaged file
        raise file_error(path, problem, error) from error


def available_memory() -> int:
    """Return the bytes of memory that this process may still allocate.

    It is the least of the free memory of the machine, the limit of its container, and what is left
    of the limit of this process.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):  # without /proc the total memory of the machine counts
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limits += [1024 * int(line) for line in re.findall(r"MemAvailable:\s+(\d+)", text)]
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no container, or "max"
            limits.append(int(Path("/sys/fs/cgroup", place).read_text(encoding="ascii")))
    process_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if process_limit != resource.RLIM_INFINITY:
        with suppress(OSError):  # without /proc the memory of this process is not known
            limits.append(max(0, process_limit - _address_space()))
    return min(limits)


def check_size(
    path: Path, num_bytes: int, num_stored_bytes: int | None = None, in_memory: bool = True
) -> None:
    """Refuse a file that declares more data than memory can hold, or than its size allows.

    Args:
        path: of the file.
        num_bytes: size of the data that the file declares.
        num_stored_bytes: bytes on the disk from which they are read; None if unknown.
        in_memory: whether all data must be in memory at once.

    Raises:
        UserError: there is not enough memory; or more than 64 MiB, and more than 500 times the
            stored bytes, are declared.
    """
    if in_memory:
        available = available_memory()
        if num_bytes > available:
            raise UserError(
                f"{path}: reading it takes {num_bytes:,} bytes of memory, "
                f"and {available:,} bytes are free"
            )
    if num_stored_bytes is None:
        return
    if num_bytes > MAX_UNCHECKED_BYTES + MAX_COMPRESSION * num_stored_bytes:
        raise UserError(
            f"{path} declares {num_bytes:,} bytes of numbers, too many for its "
            f"{num_stored_bytes:,} bytes; save counts that are nearly all 0 as a sparse matrix"
        )


@contextmanager
def limit_memory(extra: int) -> Iterator[None]:
    """Limit the memory of this process, within the block, to `extra` bytes more than it uses.

    A few compressed bytes can expand to any number, which no header needs to declare. A library
    that asks for more memory fails. There is no limit if the system does not tell how much memory
    the process has.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = False
    with suppress(OSError, ValueError):  # not known, or refused by the system: no limit
        limits = [_address_space() + extra]
        limits += [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
        is_limited = True
    try:
        yield
    finally:
        if is_limited:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Return the bytes of this process as `RLIMIT_AS` counts them."""
    num_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def stored_bytes(path: Path) -> int:
    """Return the bytes that a file, or all files below a folder, take on the disk.

    A file with holes takes fewer bytes than its length.
    """
    if path.is_dir():
        return sum(
            stored_bytes(Path(folder, name)) for folder, _, names in os.walk(path) for name in names
        )
    status = path.stat()
    if not status.st_blocks:
        return status.st_size
    return min(status.st_size, BLOCK_BYTES * status.st_blocks)
