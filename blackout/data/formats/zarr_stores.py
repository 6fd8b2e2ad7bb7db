"""A reader of .zarr stores, whose metadata are checked before the library sees them.

A codec of a store may be Python's pickle, so that a library may execute code of whoever wrote the
store. Only the words below are allowed in metadata; none of them makes objects.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from blackout.data.formats.contents import COUNTS, FileContents, load_library
from blackout.data.formats.hierarchy import read_hierarchy
from blackout.data.formats.lazy import LazyArray
from blackout.errors import UserError, ensure
from blackout.safe_reading import read_text, reading, stored_bytes

METADATA_FILES = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
NODE_FILES = (".zarray", ".zgroup", "zarr.json")  # each makes its folder an array or a group
GROUP_KEYS = {"zarr_format", "node_type", "attributes", "consolidated_metadata"}
MAX_METADATA_BYTES = 1 << 26
TEXT_CODEC = [{"id": "vlen-utf8"}]  # the only filter that is allowed, for text
ALLOWED_WORDS = re.compile(
    r"[<>|](b1|[iu][1248]|f[248]|[SU][1-9]\d{0,3})|bool|string|u?int(8|16|32|64)|float(16|32|64)"
    r"|fixed_length_utf32|null_terminated_bytes|vlen-utf8|bytes|transpose|crc32c|sharding_indexed"
    r"|blosc|lz4(hc)?|blosclz|zstd|gzip|zlib|snappy|(no|bit)?shuffle|little|big|start|end|array"
    r"|group|inline|regular|default|v2|C|F|[./]"
)


def read_zarr(path: Path, layer: str | None = None) -> FileContents:
    """Read the arrays of a .zarr store; errors as of `_check_store`."""
    sizes = _check_store(path)
    library = load_library("zarr", path)
    # opened as a folder, because the library takes a name such as zip::x for an address
    if hasattr(library, "DirectoryStore"):  # zarr 2
        root = library.open(library.DirectoryStore(str(path)), mode="r")
    else:
        root = library.open(library.storage.LocalStore(str(path)), mode="r")
    if not hasattr(root, "keys"):
        return FileContents({COUNTS: LazyArray(root, path, sum(sizes.values()))})
    nodes = {"": root, **{place: root[place] for place in sizes if place}}
    return read_hierarchy(path, nodes, sizes, layer)


def _check_store(path: Path) -> dict[str, int]:
    """Return the stored bytes of every node by place; "" is the store itself.

    Raises:
        UserError: the store has a link, a pipe or a device, or metadata with other than the allowed
            words.
    """
    sizes: dict[str, int] = {}
    for folder_name, subfolders, names in os.walk(path):
        folder = Path(folder_name)
        place = folder.relative_to(path)
        for name in [*subfolders, *names]:
            file = folder / name
            mode = file.lstat().st_mode
            is_folder = name in subfolders
            if not stat.S_ISREG(mode) and not (is_folder and stat.S_ISDIR(mode)):
                message = (
                    "is a link, a pipe or a device; a .zarr store may have only ordinary files"
                )
                raise UserError(f"{file} {message}")
            if name.lower() not in METADATA_FILES:
                continue
            if name not in METADATA_FILES or is_folder:
                raise UserError(f"{file}: metadata of a .zarr store have other names")
            _check_metadata(file)
            if name in NODE_FILES:
                sizes["" if place == Path(".") else str(place)] = 0
        # chunks belong to the nearest node above them
        owner = next((str(p) for p in (place, *place.parents) if str(p) in sizes), "")
        folder_bytes = sum(stored_bytes(folder / name) for name in names)
        sizes[owner] = sizes.get(owner, 0) + folder_bytes
    return sizes


def _check_metadata(file: Path) -> None:
    """Refuse a file of metadata that is not JSON, or has other than the allowed words."""
    with reading(file, "these metadata of a .zarr store are refused"):
        text = read_text(file, max_bytes=MAX_METADATA_BYTES)
        content = json.loads(text, object_pairs_hook=_unique_names)
        if file.name == ".zattrs":  # no library acts on attributes
            return
        if file.name == ".zmetadata":
            nodes = content["metadata"].items()
            content = [node for place, node in nodes if place.rpartition("/")[2] != ".zattrs"]
        _check_words(content)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary; programs differ in which of two equal names they use."""
    content = dict(pairs)
    ensure(len(content) >= len(pairs), "a name occurs twice")
    return content


def _check_words(node: Any) -> None:
    """Refuse words of metadata, at any depth, that are not allowed.

    Raises:
        ValueError: another word, or an array of another form.
    """
    if isinstance(node, dict):
        # these keys have their meaning only in a node; elsewhere they are places, which have any
        # name
        is_node = "zarr_format" in node and not isinstance(node["zarr_format"], dict)
        if is_node and node.keys() - GROUP_KEYS:
            _check_array(node)
        free_keys = {"attributes", "fill_value", "dimension_names"}
        if node.get("dtype") == "|O":
            free_keys.add("dtype")
        node = [node[key] for key in node if not (is_node and key in free_keys)]
    if isinstance(node, list):
        for part in node:
            _check_words(part)
    elif isinstance(node, str) and not ALLOWED_WORDS.fullmatch(node):
        message = "is not allowed in the metadata of a store of numbers and text"
        raise ValueError(f"{node!r:.100} {message}: save the arrays again with standard codecs")


def _check_array(node: dict[str, Any]) -> None:
    """Refuse arrays whose words are allowed but whose form is not.

    Raises:
        ValueError: objects without the codec of text, codecs or shapes of another form.
    """
    shape: Any = node.get("shape")
    dtype = node.get("dtype")
    filters = node.get("filters")
    codecs = node.get("codecs")
    version = node["zarr_format"]
    grid = node if version == 2 else node["chunk_grid"]["configuration"]
    chunks = grid["chunks" if version == 2 else "chunk_shape"]

    if (filters or dtype == "|O") and (dtype, filters) != ("|O", TEXT_CODEC):
        content = f"arrays of {dtype!r:.60} with the filters {filters!r:.100}"
        raise ValueError(f"{content} are not supported: save numbers or text without filters")
    is_version_2 = version == 2 and isinstance(dtype, str)
    is_version_3 = version == 3 and codecs and not node.get("storage_transformers")
    if not is_version_2 and not is_version_3:
        raise ValueError("an array has another format")
    ensure(all(isinstance(codec, dict) for codec in codecs or ()), "a codec has another format")

    are_lists = isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks)
    if not are_lists or any(type(side) is not int or side < 0 for side in shape + chunks):
        content = f"an array has the shape {shape!r:.60} and chunks {chunks!r:.60}"
        raise ValueError(f"{content}, which are not lists of whole numbers")
    has_plain_fill = not isinstance(node.get("fill_value"), dict | list)
    ensure(0 not in chunks and has_plain_fill, "an array has empty chunks or another fill value")
