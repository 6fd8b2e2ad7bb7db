"""A reader of HDF5 files, AnnData's .h5ad among them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from blackout.data.formats.contents import LIBRARY_BYTES, FileContents, load_library
from blackout.data.formats.hierarchy import read_hierarchy
from blackout.errors import UserError, ensure, refuse
from blackout.safe_reading import limit_memory, open_regular, stored_bytes

MAX_NODES = 10_000  # arrays and groups of a file
MAX_DEPTH = 32  # levels of groups
HEAP_SIGNATURE = b"GCOL\1\0\0\0"  # of a global heap, which holds text, with its version
HEAP_HEADER = 16  # bytes: signature, version and size of the heap
OBJECT_HEADER = 16  # bytes: number, references and size of an object in a heap


def read_hdf5(path: Path, layer: str | None = None) -> FileContents:
    """Read the arrays of numbers and text of an HDF5 file; arrays of other types are left out.

    Raises:
        UserError: damaged text, too many arrays or groups, or data that lie in another file.
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
            raise UserError(f"{path} holds more than {content}")

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
            continue
        is_elsewhere = node.is_virtual or node.external
        refuse(is_elsewhere, f"{path}: {place} lies in another file: copy it into this one")
        sizes[place] = min(file_bytes, node.id.get_storage_size())
    return read_hierarchy(path, nodes, sizes, layer)


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
                ensure(fits, "its text is damaged")
                position = end
            heap = content.find(HEAP_SIGNATURE, heap + 8)
