"""Files that appear whole or not at all, and the one way in which files are read that others may have made or changed.

What is read is an ordinary file, and what it says of its sizes is compared with the bytes it has and with the memory
before anything is made of it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import os
import re
import resource
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch import Tensor

from blackout.errors import UserError, ensure, refuse
from blackout.protocols import OutputNames, Samples

Array = npt.NDArray[Any]
_PLAIN, _DENSEST = 1 << 26, 500
"""Numbers of so many bytes may come from any file; beyond that, of so many for every byte of the file."""
_MOST_TEXT = 1 << 28
"""Bytes of a file of text."""
MAX_YAML_BYTES = 4_000_000  # of a file of settings; those of a run have a few thousand
MAX_YAML_NODES = 100_000  # libyaml makes about 100,000 of them in a second, of 1 kB each
MAX_VALUES = 10_000_000  # of a JSON description (a matrix of 3,000 states) or of a metrics.csv
MAX_COLUMNS = 10_000  # of a metrics.csv
MAX_DEPTH = 32  # of mappings and lists in each other
MAX_BITS = 1_000  # of a whole number: every such number is a float, too
_SURROGATE = re.compile("[\ud800-\udfff]")  # in JSON they can be escaped, and then no file can be written with them
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as quick where libyaml is there

PART = ".part"
"""Ends the hidden names of what is not yet whole."""

OF_TRAINING = ("step_", "final")
"""Begin the names of what training writes into a run's folder `samples`; nothing else there has such names."""
_FORGOTTEN = 7 * 86400.0
"""Seconds after which nobody goes on with samples that were not finished."""

CONF = next(found for folder in Path(__file__).parents[:2] if (found := folder / "conf").is_dir())
"""The configurations: in a wheel inside the package, in the repository beside it."""


@contextmanager
def replacing(path: Path, durably: bool = False) -> Iterator[Path]:
    """Yields a hidden path beside `path` to write to; it takes `path`'s place when the block ends without an error.

    Its name cannot be foreseen, so that nobody has put a link there. A process that is killed leaves the hidden file
    behind, for `remove_parts`.

    Args:
        path: the file to make or to replace, itself if it is a link; its folder is made where there is none.
        durably: the hidden file ends as `path` does, and is on the disk before it takes `path`'s place.

    Raises:
        OSError: the folder cannot be made or written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem[:40]}-{uuid4().hex}{PART}{path.suffix if durably else ''}")
    try:
        yield part
        if durably:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # also where both were links to one file, which a rename leaves as they are


def save_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file.

    Args:
        about: what it says of itself.

    Raises:
        OSError: with its number, where the disk refuses, which the library tells as text.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, None if about is None else dict(about))
        path.chmod(mode)  # as of any new file; the library lets nobody else read it
    except SafetensorError as error:
        refused = re.search(r"os error (\d+)", str(error))
        if refused is None:
            raise
        raise OSError(number := int(refused[1]), os.strerror(number), str(path)) from error


def tensors_hash(of: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) of what tensors are `of`, and of their names, types, shapes and values."""
    digest = hashlib.sha256(f"{of}\n".encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a new hidden folder beside `path`, which takes its place when the block ends without an error.

    Raises:
        OSError: it cannot be made or written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = (path.with_name(f".{path.stem[:40]}-{uuid4().hex}{PART}") for _ in range(2))
    part.mkdir()
    try:
        yield part
        if path.exists():
            os.replace(path, old)
        os.replace(part, path)
    finally:
        for leftover in (part, old):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_parts(directory: Path, names: str = "*", older_than: float = 0.0) -> None:
    """Remove what processes that were killed left of files and folders that they were replacing.

    Args:
        directory: where it is.
        names: pattern of the names, without suffix, of what was being replaced.
        older_than: least age in seconds, where the writers may be alive.
    """
    for part in directory.glob(f".{names}-{'[0-9a-f]' * 32}{PART}*"):
        if time.time() - part.lstat().st_mtime < older_than:
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def numbered(path: Path) -> Iterator[Path]:
    """x.png, x-2.png, x-3.png, ... without end."""
    yield path
    yield from (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))


def new_file(path: Path, given: bool) -> Path:
    """A file to be written where none is, so that nothing is replaced, inputs least of all.

    Args:
        path: its name.
        given: the user gave this name, and means no other; else it gets a number where it is taken.

    Raises:
        UserError: it is there already, or could not be written.
    """
    free = path if given else next(name for name in numbered(path) if not os.path.lexists(name))
    refuse(os.path.lexists(free), f"{free} is there already, and is not replaced: give another name, or remove it")
    _check_writable(free.parent, free)
    remove_parts(free.parent, free.stem[:40], _FORGOTTEN)
    return free


_ADDRESS = re.compile(r"([a-z][\w+.:-]*):/+(.*)", re.DOTALL)
"""Protocol and path; of `s3://bucket/runs`, a `Path` has kept one stroke."""


def refuse_address(path: Path) -> None:
    """Raises UserError for an address of a store elsewhere, such as s3://bucket/runs, which is no folder."""
    if match := _ADDRESS.fullmatch(str(path)):
        shown = f"{match[1]}://{match[2].rpartition('@')[2]}"  # before it a key may stand
        ways = "runs are kept there by runs_dir=<address>; else mount the store, or copy what is written here"
        raise UserError(f"{shown} is an address, and only folders are written: {ways}")


def working_folder(place: str) -> Path:
    """A folder as it is; of an address the local one in which that works which is kept there, `runs/s3/bucket/...`.

    Raises:
        UserError: an address from which a folder's name cannot be made, or that may hold a key.
    """
    if not (match := _ADDRESS.fullmatch(place)):
        return Path(place)
    if not re.fullmatch(r"([\w.+=/ -]|:\d+/)+", match[2]) or ".." in match[2].split("/") or ":" in match[1]:
        form = "s3://bucket/path or the like, of letters, digits and . _ + = -"
        raise UserError(f"an address is {form}; keys are in the environment, or where fsspec's library looks for them")
    return Path("runs", match[1], match[2])


def _check_writable(folder: Path, what: Path) -> None:
    """Make a folder; find out now, not after an hour of work, whether it can be written."""
    refuse_address(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {what}: {error.strerror or error}") from None


def request_key(content: Any) -> str:
    """32 hexadecimal digits that are the same for the same request: plain values, and the state of files they name.

    Of folders, too, where a `Path` names them.
    """

    def stamps(node: Any) -> Iterator[tuple[int, int]]:
        if isinstance(node, Mapping | list | tuple):
            for part in node.values() if isinstance(node, Mapping) else node:
                yield from stamps(part)
        elif isinstance(node, str | Path):
            with suppress(OSError, ValueError):  # text that is no name of a file
                found = os.stat(node)
                if stat.S_ISREG(found.st_mode) or isinstance(node, Path):
                    yield found.st_size, found.st_mtime_ns

    text = json.dumps([content, list(stamps(content))], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextmanager
def results_folder(
    folders: Iterable[Path], key: str, names: Collection[str] | None = None, mark: str = ".request"
) -> Iterator[Path]:
    """Yields the first of some folders in which nothing would be replaced but results of the same request.

    It is made and marked as this request's, so that nobody else's results go there and the same request finds it again;
    the mark is taken away if nothing comes of the request.

    Args:
        folders: to be tried in turn.
        key: of the request, see `request_key`.
        names: of the files that may be written; None for any but `OF_TRAINING`.
        mark: name of the hidden file that holds the key.

    Raises:
        UserError: none of them will do, or it cannot be written.
    """
    other = ""
    for folder in folders:
        new = not folder.exists()
        _check_writable(folder, folder)
        remove_parts(folder, older_than=_FORGOTTEN)
        found, marked = _results(folder, names), folder / mark
        if not found:
            # another process may have been first; whose folder it is, is read below
            with suppress(FileExistsError), marked.open("x") as file:
                file.write(key)
        if marked.is_file() and marked.read_bytes() == key.encode():
            break
        why = f"holds other files ({found[0]})" if found else f"is kept for another request by its {mark}"
        other = other or f"{folder} {why}"
    else:
        raise UserError(f"{other}, and nothing there is replaced: name a new folder")
    if found:
        print(f"{folder} holds results of the same request, which are made again")
    elif other:
        print(f"{other}: the results of this request go to {folder}")
    try:
        yield folder
    finally:
        if not _results(folder, names) and not list(folder.glob(f".*{PART}.batches")):
            marked.unlink(missing_ok=True)
            if new:
                with suppress(OSError):  # something else is in it
                    folder.rmdir()


def _results(folder: Path, names: Collection[str] | None) -> list[str]:
    """The files of a folder, of those names."""
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
    return [name for name in found if (not name.startswith(OF_TRAINING) if names is None else name in names)]


def opened(path: Path, within: Path | None = None) -> io.BufferedReader:
    """An ordinary file, open for reading: no pipe or device, which might never end.

    Args:
        path: of the file.
        within: a folder that it must lie in, wherever links on the way lead.

    Raises:
        UserError: it is something else, or elsewhere.
        OSError: it is not there, or may not be read.
    """
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise UserError(f"{path} is a link out of {within}: it is not followed")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, within: Path | None = None, most: int = _MOST_TEXT) -> str:
    """A file of UTF-8 text, with or without a mark of its byte order, of at most `most` bytes; see `opened`.

    Raises:
        UserError: it is no such file, larger, or not such text.
        OSError: it is not there, or may not be read.
    """
    with opened(path, within) as file:
        content = file.read(most + 1)
    refuse(len(content) > most, f"{path} is too large: at most {most:,} bytes of text are read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged, or not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_mapping(path: Path, within: Path | None = None, most: int = _MOST_TEXT, advice: str = "") -> dict[str, Any]:
    """Read a mapping from a .json or .yaml file that a stranger may have written; see `read_text`.

    Depth and number of the values are bounded, so that whoever walks over the result needs no bounds of their own.

    Args:
        path: of the file.
        within: as for `read_text`.
        most: bytes of JSON; of YAML at most `MAX_YAML_BYTES`.
        advice: ends the message where the file is damaged.

    Returns:
        Mappings with names that are text, lists, text, finite or infinite numbers, booleans, None and what else YAML
        has as plain values (dates, bytes).

    Raises:
        UserError: it is damaged, too deep, too large, has aliases, or holds something else.
        OSError: it is not there, or may not be read.
    """
    is_json = path.suffix == ".json"
    text = read_text(path, within, most if is_json else min(most, MAX_YAML_BYTES))
    try:
        content = _parse_json(text) if is_json else parse_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path} is damaged: {reason}{advice}") from None
    refuse(not isinstance(content, dict), f"{path} is damaged: it holds no names{advice}")
    return cast(dict[str, Any], content)


def _parse_json(text: str) -> Any:
    """The content of JSON text with bounded depth and number of values.

    Raises:
        ValueError: it is no JSON, or beyond the bounds.
        RecursionError: it is far too deep.
    """
    # every value but the first follows one of these; commas in text are counted, too
    ensure(sum(map(text.count, ",[{")) <= MAX_VALUES, f"more than {MAX_VALUES:,} values")
    content = json.loads(text)
    _check_nested(content)
    return content


def parse_yaml(text: str) -> Any:
    """The content of YAML text with bounded depth and number of values, without aliases.

    An alias (`*name`) stands for a whole part of the text again: nine levels of them make gigabytes of a few hundred
    bytes. The events of the parser are looked at first, so that nothing is made of what is refused.

    Raises:
        ValueError: beyond the bounds, or with aliases.
        yaml.YAMLError: it is no YAML of plain values.
    """
    nodes = depth = 0
    for event in yaml.parse(text, Loader=_YamlLoader):
        ensure(not isinstance(event, yaml.AliasEvent), "aliases (*name) are not read: write out what they stand for")
        nodes += isinstance(event, yaml.NodeEvent)
        ensure(nodes <= MAX_YAML_NODES, f"more than {MAX_YAML_NODES:,} values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        ensure(depth <= MAX_DEPTH, f"more than {MAX_DEPTH} levels")
    content = yaml.load(text, Loader=_YamlLoader)
    _check_nested(content)
    return content


def _check_nested(content: Any) -> None:
    """Check the depth of mappings and lists without recursion, with their names, text and whole numbers.

    Raises:
        ValueError: too deep, a name that is no text, text that no file can hold, or a number that is no float.
    """
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                ensure(all(isinstance(name, str) for name in node), "a name that is no text")
                inner += node.keys()
                inner += node.values()
            elif isinstance(node, list | tuple | set):
                inner += node
            elif isinstance(node, str):
                ensure(node.isascii() or not _SURROGATE.search(node), "text that is not Unicode")
            elif isinstance(node, int):
                ensure(node.bit_length() <= MAX_BITS, f"a number of more than {MAX_BITS:,} bits")
        if not inner:
            return
        level = inner
    raise ValueError(f"more than {MAX_DEPTH} levels")


def file_error(path: Path, problem: str, cause: Exception) -> UserError:
    """An error that names a file, what is wrong with it and the library's reason, in one line."""
    if isinstance(cause, FileNotFoundError):
        return UserError(f"{path}: no such file")
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    reason = re.sub(r"<_io\.[^>]*>", path.name, reason)  # as which libraries know the file
    return UserError(f"{path}: {problem} ({' '.join(reason.split())[:500] or type(cause).__name__})")


@contextmanager
def reading(path: Path, problem: str) -> Iterator[None]:
    """Inside, whatever a library raises about a file, which parsers do in many types, is one `file_error`.

    Raises:
        UserError: as it was raised inside, or in place of any other exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers raise nearly any type at a damaged file
        raise file_error(path, problem, error) from error


def memory() -> int:
    """Bytes of memory that this process may still take: of the machine, of its container, by its own limit."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError):  # no /proc: the machine's memory counts
        lines = re.findall(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
        found += [1024 * int(line) for line in lines]
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no container, or "max"
            found.append(int(Path("/sys/fs/cgroup", place).read_text()))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError):  # no /proc: what the process has taken of its limit is unknown
            found.append(max(0, limit - _addresses()))
    return min(found)


def check_size(path: Path, declared: int, stored: int | None = None, fits: bool = True) -> None:
    """Refuse what a file says it holds where there is no memory for it, or where the file is too small to hold it.

    Args:
        path: of the file.
        declared: bytes that reading would take.
        stored: bytes on the disk that these come from; None where that is not known.
        fits: all of it must be in memory at once.

    Raises:
        UserError: there is no memory for it; or it is beyond 64 MiB, and 500 times what is stored, which a compression
            reaches only where nearly all numbers are the same.
    """
    if fits and declared > (there := memory()):
        raise UserError(f"{path}: to read it takes {declared:,} bytes, more than the {there:,} bytes of memory left")
    if stored is not None and declared > _PLAIN + _DENSEST * stored:
        advice = "counts that are nearly all 0 are given as a sparse matrix"
        raise UserError(f"{path}: {stored:,} bytes are said to hold {declared:,} bytes of numbers; {advice}")


@contextmanager
def taking_at_most(extra: int) -> Iterator[None]:
    """Inside, this process may take so many bytes of memory beyond what it has: a library that asks for more fails.

    A few compressed bytes may become any number, which no header needs to say. Where the system does not tell how much
    a process has, there is no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError):  # the system does not tell, or refuses: there is no limit
        limits = [_addresses() + extra, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _addresses() -> int:
    """Bytes that this process has, as its own limit counts them."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def stored_bytes(path: Path) -> int:
    """Bytes that a file has on the disk, fewer than its length where it has holes; of a folder, all files below it."""
    if path.is_dir():
        return sum(stored_bytes(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)
    status = path.stat()
    return min(status.st_size, status.st_blocks * 512) if status.st_blocks else status.st_size


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a metrics.csv by their step, as text without empty fields.

    Raises:
        UserError: no run has written this file so, or it has too many columns or values.
    """
    rows: dict[int, dict[str, Any]] = {}
    values = 0
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
            values += len(row)
            ensure(values <= MAX_VALUES, f"more than {MAX_VALUES:,} values")
            step = int(row["step"])
            ensure(step.bit_length() < 64, "a step of more than 63 bits")
            rows[step] = row
    except (csv.Error, ValueError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); remove it to go on") from None
    return rows


def refuse_links(directory: Path, *names: str) -> None:
    """Refuse folders of a directory that are links out of it: nobody expects files there.

    Raises:
        UserError: one of them is.
    """
    for name in names:
        path = directory / name
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            raise UserError(f"{path} is a link out of {directory}: nothing is written through it")


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz, whole or not at all."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


@contextmanager
def sample_file(
    path: Path, num_samples: int, names: OutputNames = OutputNames(), about: Mapping[str, Any] | None = None
) -> Iterator[Callable[[Samples], None]]:
    """Yields what appends samples to an .npz: `samples` at once, the other (small) arrays at the end.

    The file appears, whole, when the context is left without an error and no sample is missing. Samples [b, C, H, W]
    are images and are written channels last, unless `names` give a shape. What is yielded takes `samples` [b, ...] and
    further arrays [b, ...] by name, the same in every call.

    Args:
        path: of the .npz.
        num_samples: how many samples it will hold.
        names: what `samples` is called in the file, and of which shape each is.
        about: numbers and arrays that the file holds beside the samples.

    Raises:
        ValueError: more or fewer samples than were announced.
    """
    missing, member, others = num_samples, None, dict[str, list[Tensor]]()
    with replacing(path, durably=True) as part, zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive:
        with ExitStack() as members:

            def write(samples: Samples) -> None:
                nonlocal missing, member
                main = samples["samples"]
                ensure(len(main) <= missing, f"{len(main)} samples for a file that has capacity for {missing} more")
                if names.shape is not None:
                    main = main.reshape(len(main), *names.shape)
                elif main.ndim == 4:
                    main = main.permute(0, 2, 3, 1)
                if names.units != (0, 1):
                    main = main.int() * names.units[1] + names.units[0]
                rows = main.contiguous().cpu().numpy()
                if member is None:
                    member = members.enter_context(archive.open(f"{names.array}.npy", "w", force_zip64=True))
                    whole = {"shape": (num_samples, *rows.shape[1:])}
                    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(rows) | whole)
                member.write(rows.tobytes())
                for name, values in samples.items():
                    if name != "samples" and not name.startswith("_"):  # which is of one machine, such as seconds
                        others.setdefault(name, []).append(values.cpu())
                missing -= len(rows)

            yield write
        more = {name: torch.cat(parts).numpy() for name, parts in others.items()}
        for name, array in {**more, **{name: np.array(one) for name, one in (about or {}).items()}}.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        ensure(not missing, f"{missing} of {num_samples} samples were not written")


def write_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write a .csv, whole or not at all; what a row lacks is left empty."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_json(content: Any, path: Path) -> None:
    """Write plain containers as JSON, whole or not at all; numbers that JSON does not have become null."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    with replacing(path) as part:
        part.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def save_picture(picture: Any, path: Path, about: str | None = None, dpi: int = 100) -> None:
    """Write a PIL image or a matplotlib figure, if there is one, as PNG, whole or not at all.

    Args:
        about: what it shows, which an image may say itself as its `Description`; reports read it from the file.
        dpi: pixels of a figure for an inch of it.
    """
    if picture is None:
        return
    with replacing(path) as part:
        if hasattr(picture, "savefig"):
            picture.savefig(part, format="png", dpi=dpi, metadata={"Description": about})
            return
        from PIL.PngImagePlugin import PngInfo

        told = PngInfo()
        if about := about or picture.info.get("Description"):
            told.add_itxt("Description", about)
        picture.save(part, format="png", pnginfo=told)


def arrange_tiles(
    tiles: Sequence[Any],
    columns: int | None,
    gap: int,
    margin: int,
    colour: tuple[int, int, int],
) -> Any:
    """Lay PIL images of one size out in a grid.

    Args:
        tiles: the images, at least one.
        columns: of the grid; None for a nearly square one.
        gap: pixels between images.
        margin: pixels around the grid.
        colour: of gaps and margin, RGB.

    Returns:
        A PIL image.
    """
    from PIL import Image  # only here: not every program draws

    tile_width = tiles[0].width + gap
    tile_height = tiles[0].height + gap
    if not columns:
        columns = max(1, round(math.sqrt(len(tiles) * tile_height / tile_width)))
    columns = min(len(tiles), columns)
    rows = math.ceil(len(tiles) / columns)
    border = 2 * margin - gap
    size = (columns * tile_width + border, rows * tile_height + border)
    canvas = Image.new("RGB", size, colour)
    for k, tile in enumerate(tiles):
        row, column = divmod(k, columns)
        canvas.paste(tile, (margin + column * tile_width, margin + row * tile_height))
    return canvas
