"""A reader of HDF5 files, AnnData's .h5ad among them."""

from __future__ import annotations

import importlib
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Any

from blackout.data.formats.contents import (
    LIBRARY_BYTES,
    FileContents,
    decode_text,
    load_library,
)
from blackout.data.formats.hierarchy import read_hierarchy
from blackout.errors import UserError, ensure, refuse
from blackout.safe_reading import limit_memory, open_regular, stored_bytes

MAX_NODES = 10_000  # arrays and groups of a file
FILTER_PACKAGE = "hdf5plugin"  # which registers zstd, blosc, lz4, ... when it is imported
MAX_DEPTH = 32  # levels of groups
HEAP_SIGNATURE = b"GCOL\1\0\0\0"  # of a global heap, which holds text, with its version
HEAP_HEADER = 16  # bytes: signature, version and size of the heap
OBJECT_HEADER = 16  # bytes: number, references and size of an object in a heap


def read_hdf5(path: Path, layer: str | None = None) -> FileContents:
    """Read the arrays of numbers and text of an HDF5 file, AnnData or not.

    It is read by h5py and not by anndata or scanpy, which would load everything, or follow what a
    file says to other files. Links, and arrays of other types, are named and left out.

    Raises:
        UserError: damaged text, too many arrays or groups, data that lie in another file, or a
            compression that is not installed.
    """
    library = load_library("h5py", path)
    _check_heaps(path)
    nodes: dict[str, Any] = {}

    def add_node(place: str, node: Any) -> bool | None:
        """Stop the visit by a value that is not None if there are too many nodes."""
        nodes[place] = node
        return len(nodes) > MAX_NODES or place.count("/") >= MAX_DEPTH or None

    with limit_memory(LIBRARY_BYTES):  # h5py may read damaged files without end
        file = nodes[""] = library.File(path, "r")  # the nodes keep it open
        if file.visititems(add_node):  # follows no links
            content = f"{MAX_NODES:,} arrays and groups, or groups {MAX_DEPTH} deep"
            raise UserError(f"{path} holds more than {content}: copy the counts to another file")
        unread = _find_links(library, file)

    supported = {
        library.h5t.INTEGER,
        library.h5t.FLOAT,
        library.h5t.ENUM,
        library.h5t.STRING,
    }
    file_bytes = stored_bytes(path)
    sizes = {"": 0}
    for place, node in list(nodes.items()):
        if not isinstance(node, library.Dataset):
            continue
        if node.id.get_type().get_class() not in supported:
            del nodes[place]  # objects, references and records
            unread[place] = f"an array of {node.dtype}"[:60]
            continue
        is_elsewhere = node.is_virtual or node.external
        refuse(is_elsewhere, f"{path}: {place} lies in another file: copy it into this one")
        _check_filters(library, path, place, node)
        sizes[place] = min(file_bytes, node.id.get_storage_size())
    return read_hierarchy(path, nodes, sizes, layer, unread)


def _find_links(library: Any, file: Any) -> dict[str, str]:
    """Return the links of a file, which are not followed, by place."""
    links: dict[str, str] = {}

    def add_link(place: str | bytes, link: Any) -> bool | None:
        """Stop the visit by a value that is not None if there are too many links."""
        if isinstance(link, library.SoftLink | library.ExternalLink):
            links[decode_text(place)] = f"a link to {link.path}"[:60]
        return len(links) > MAX_NODES or None

    file.visititems_links(add_link)
    return links


def _check_filters(library: Any, path: Path, place: str, node: Any) -> None:
    """Refuse an array whose compression is not installed; hdf5plugin brings the usual ones.

    Raises:
        UserError: names the compression and the package.
    """
    properties = node.id.get_create_plist()
    for k in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(k)
        if library.h5z.filter_avail(code):
            continue
        with suppress(ImportError):  # without the package the filter stays unknown
            importlib.import_module(FILTER_PACKAGE)
        if not library.h5z.filter_avail(code):
            kind = f"{name.decode(errors='replace')!r}, HDF5 filter {code}"
            advice = f"pip install {FILTER_PACKAGE}, or save it with gzip"
            raise UserError(f"{path}: {place} is compressed by {kind}: {advice}")


def _check_heaps(path: Path) -> None:
    """Refuse text whose objects do not fit into their heap: h5py would look for their end for ever.

    A heap has a signature, a version, its size, and objects: number, references, size and content.
    The object with number 0 is the free space.
    """
    with (
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        heap = content.find(HEAP_SIGNATURE)
        while heap >= 0:
            heap_size = int.from_bytes(content[heap + 8 : heap + 16], "little")
            heap_end = heap + heap_size
            position = heap + HEAP_HEADER
            while position + OBJECT_HEADER <= heap_end:
                number = content[position : position + 2]
                size = int.from_bytes(content[position + 8 : position + 16], "little")
                is_free_space = number == b"\0\0"
                step = size if is_free_space else OBJECT_HEADER + -(-size // 8) * 8
                end = position + step
                fits = step >= OBJECT_HEADER and end <= min(heap_end, len(content))
                ensure(fits, "its text is damaged: write the file again")
                position = end
            heap = content.find(HEAP_SIGNATURE, heap + 8)
