"""Readers of tables: .csv, .tsv and .parquet."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.contents import (
    LIBRARY_BYTES,
    Array,
    FileContents,
    decode_text,
    decode_texts,
    is_number,
    load_library,
)
from blackout.errors import UserError, refuse
from blackout.safe_reading import check_size, limit_memory, open_regular, stored_bytes

MEMORY_PER_BYTE = 20  # bytes of memory for every byte of a table of text
TEXT_TYPES = ("string", "large_string", "string_view")  # of Arrow
NUMBER_TYPES = ("int", "uint", "float", "half", "double", "bool", "decimal", "null")
DICTIONARY_TYPE = "dictionary<values=string"


def read_csv(path: Path, layer: str | None = None) -> FileContents:
    """Read a .csv or .tsv; a first row that is not all numbers has the names of the columns."""
    check_size(path, MEMORY_PER_BYTE * path.stat().st_size)
    with open_regular(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        separators = "\t" if path.suffix.lower() == ".tsv" else ",;\t"
        separator = max(separators, key=text.readline().count)
        text.seek(0)
        rows = [row for row in csv.reader(text, delimiter=separator) if row]

    lengths = sorted({len(row) for row in rows})
    found = f"{lengths[0]} to {lengths[-1]}" if lengths else "no row"
    refuse(len(lengths) != 1, f"{path}: every row needs as many fields as the first, found {found}")
    has_header = not all(map(is_number, rows[0]))
    refuse(len(rows) == has_header, f"{path}: there is a header and no row below it")
    if has_header:
        names = [decode_text(name) for name in rows[0]]
        rows = rows[1:]
    else:
        names = [f"column {number}" for number in range(lengths[0])]
    return _make_table(path, names, list(zip(*rows, strict=True)))


def read_parquet(path: Path, layer: str | None = None) -> FileContents:
    """Read the columns of numbers and text of a .parquet file."""
    library = load_library("pyarrow.parquet", path)
    with open_regular(path) as file:
        schema = library.read_schema(file)
        text_names = [field.name for field in schema if str(field.type) in TEXT_TYPES]
        prefixes = (*NUMBER_TYPES, DICTIONARY_TYPE)
        names = [
            field.name
            for field in schema
            if field.name in text_names or str(field.type).startswith(prefixes)
        ]
        # text is read as numbers of words, because a file may repeat a long word any number of
        # times
        parquet = library.ParquetFile(file, read_dictionary=text_names)
        size = parquet.metadata.num_rows * len(names) * 8
        check_size(path, size, stored_bytes(path))
        # Arrow's allocator reserves addresses for 1 GiB
        with limit_memory(2 * LIBRARY_BYTES + 4 * size):
            table = parquet.read(names, use_threads=False)
    columns = [_arrow_column(path, column) for column in table.columns]
    return _make_table(path, table.column_names, columns)


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


def _make_table(path: Path, names: list[str], columns: list[Any]) -> FileContents:
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: two columns have the name {repeated!r}")
    arrays = {name: _to_array(column) for name, column in zip(names, columns, strict=True)}
    return FileContents(arrays, is_table=True)


def _to_array(column: Any) -> Array:
    """Convert a column to numbers, NaN where a field is empty, or to text."""
    if isinstance(column, np.ndarray) and column.dtype.kind not in "OUS":
        return column
    try:
        return np.array([float(field) if field not in ("", None) else np.nan for field in column])
    except (TypeError, ValueError):  # a field is not a number: the column is text
        return decode_texts(column)
