"""A reader of .parquet, and how the columns of any table become arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.contents import (
    LIBRARY_BYTES,
    MISSING_NUMBER,
    MISSING_WORDS,
    Array,
    FileContents,
    decode_text,
    decode_texts,
    is_number,
    load_library,
    refuse_layer,
)
from blackout.errors import UserError
from blackout.safe_reading import check_size, limit_memory, open_regular, stored_bytes

TEXT_TYPES = ("string", "large_string", "string_view")  # Arrow's types of text
NUMBER_TYPES = ("int", "uint", "float", "half", "double", "bool", "decimal", "null")
DICTIONARY_TYPE = "dictionary<values=string"
PANDAS_METADATA = b"pandas"  # key of the schema's metadata


def read_parquet(path: Path, layer: str | None = None) -> FileContents:
    """Read the columns of numbers and text of a .parquet file.

    The index that pandas saves with a table is named in `FileContents.index`: it is no element.

    Raises:
        UserError: two columns have the same name, or the file is larger than its bytes allow.
    """
    library = load_library("pyarrow.parquet", path)
    refuse_layer(path, layer)
    with open_regular(path) as file:
        schema = library.read_schema(file)
        text_names = [field.name for field in schema if str(field.type) in TEXT_TYPES]
        prefixes = (*NUMBER_TYPES, DICTIONARY_TYPE)
        names = []
        unread = {}
        for field in schema:
            if field.name in text_names or str(field.type).startswith(prefixes):
                names.append(field.name)
            else:
                unread[field.name] = f"{field.type}"[:60]
        # text is read as numbers of words, because a file may repeat a long word any number of
        # times
        parquet = library.ParquetFile(file, read_dictionary=text_names)
        size = parquet.metadata.num_rows * len(names) * 8
        check_size(path, size, stored_bytes(path))
        # Arrow's allocator reserves addresses for 1 GiB
        with limit_memory(2 * LIBRARY_BYTES + 4 * size):
            table = parquet.read(names, use_threads=False)
    columns = [_arrow_column(path, column) for column in table.columns]
    index = [name for name in _pandas_index(schema.metadata or {}) if name in table.column_names]
    return make_table(path, table.column_names, columns, tuple(index), unread)


def _pandas_index(metadata: Mapping[bytes, bytes]) -> list[str]:
    """Return the columns in which pandas stored the index of a table."""
    if PANDAS_METADATA not in metadata:
        return []
    columns = json.loads(metadata[PANDAS_METADATA])["index_columns"]
    return [column for column in columns if isinstance(column, str)]  # a range has no column


def _arrow_column(path: Path, column: Any) -> Array:
    """Convert a column of Arrow to NumPy; missing text becomes ""."""
    if not str(column.type).startswith("dictionary"):
        return column.to_numpy()
    chunks = []
    for chunk in column.chunks:
        words = ["", *(decode_text(word or "") for word in chunk.dictionary.to_pylist())]
        vocabulary = np.array(words)
        check_size(path, len(column) * vocabulary.itemsize)
        codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        chunks.append(vocabulary[1 + codes])
    return np.concatenate(chunks) if chunks else np.zeros(0, dtype=str)


def make_table(
    path: Path,
    names: list[str],
    columns: list[Any],
    index: tuple[str, ...] = (),
    unread: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> FileContents:
    """Return the columns of a table as arrays by name.

    Args:
        path: of the file.
        names: of the columns.
        columns: fields of each, texts or numbers.
        index: names of the columns that number or name the rows.
        unread: columns that cannot be read, and their types.
        notes: on how the file was read.

    Raises:
        UserError: two columns have the same name.
    """
    unread = dict(unread or {})
    arrays = {}
    for name, column in zip(names, columns, strict=True):
        array = _to_array(column)
        is_missing = array.dtype.kind == "f" and len(array) and bool(np.isnan(array).all())
        if is_missing and (name in MISSING_WORDS or len(names) > 1):
            unread[name] = "an empty column"
            continue
        if name in arrays:
            raise UserError(f"{path}: two columns have the name {name!r}: rename one")
        arrays[name] = array
    return FileContents(arrays, is_table=True, index=index, unread=unread, notes=notes)


def _to_array(column: Any) -> Array:
    """Convert a column to numbers, NaN where a field is missing, or to text, "" where it is."""
    if isinstance(column, np.ndarray) and column.dtype.kind not in "OUS":
        return column
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":  # numbers with missing ones
        return np.array([np.nan if field is None else float(field) for field in column])
    if all(map(is_number, column)):
        return np.array([np.nan if field in MISSING_NUMBER else float(field) for field in column])
    return decode_texts("" if field in MISSING_WORDS else field for field in column)
