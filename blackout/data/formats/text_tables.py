"""A reader of tables of text: .csv and .tsv, plain or gzipped.

It uses Python's csv and not pandas: a table needs no optional library, and pandas turns fields into
other values without a word (1_000, mixed columns, bad lines), which here are refused.
"""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise
from pathlib import Path

from blackout.data.formats.compressed import inner_suffix, read_bytes
from blackout.data.formats.contents import (
    MISSING_NUMBER,
    NUMBER,
    FileContents,
    decode_text,
    is_number,
    refuse_layer,
)
from blackout.data.formats.tables import make_table
from blackout.errors import UserError, ensure, refuse

MEMORY_PER_BYTE = 20  # bytes of memory for every byte of a table of text
SEPARATORS = "\t;,"  # the one that separates most numbers, or the first
DECIMAL = re.compile(r"[+-]?\d+([.,]\d+)?", re.ASCII)  # a number with a point or a comma
NUM_SNIFFED_ROWS = 20
MIN_NUMBERED_COLUMNS = 4  # from which a row of evenly spaced numbers is not chance
MIN_COUNTED_COLUMNS = 3  # likewise for 0, 1, 2, ...
GROUPED_BY_POINTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+")  # 1.000, which may be 1 or 1000


def read_csv(path: Path, layer: str | None = None) -> FileContents:
    """Read a .csv or .tsv file.

    A first row with names, or with the numbers 0, 1, 2, ... that pandas writes, has the names of
    the columns. Lines above it that begin with # are comments. Where rows have one field more than
    the names, as R writes them, the first field names the row.

    Raises:
        UserError: rows of unequal length, or a first row that may be names or a sample.
        ValueError: damaged text, or numbers that may be written with points between thousands.
    """
    refuse_layer(path, layer)
    notes = []
    text = read_bytes(path, MEMORY_PER_BYTE).decode("utf-8-sig")
    lines = text.splitlines(keepends=True) if text.startswith("#") else []
    num_comments = 0
    while num_comments + 1 < len(lines) and _is_comment(lines, num_comments):
        num_comments += 1
    if num_comments:
        text = "".join(lines[num_comments:])
        notes.append(f"{num_comments} lines that begin with # are comments")
    rows, separator = _parse_rows(path, text)
    num_rows = len(rows)
    rows = [row for row in rows if any(row)]
    if len(rows) < num_rows:
        notes.append(f"{num_rows - len(rows)} rows without any value are left out")

    # 1. Rows of one length, and a header.
    header: list[str] | None = None
    lengths = sorted({len(row) for row in rows})
    row_lengths = {len(row) for row in rows[1:]}
    if rows and row_lengths == {len(rows[0]) + 1}:
        header = ["", *rows[0]]  # as R's write.table leaves out the name of the row names
    else:
        refuse(not lengths, f"{path}: the table is empty: give it at least one row")
        number_range = f"{lengths[0]} to {lengths[-1]}"
        message = f"every row needs as many fields as the first, not {number_range}"
        refuse(len(lengths) > 1, f"{path}: {message}: fill in empty fields")
        if _has_header(path, rows, notes):
            header = rows[0]
    message = "there is a header and no row below it: add samples"
    refuse(len(rows) == (header is not None), f"{path}: {message}")

    # 2. Columns by name.
    if header is None:
        names = [f"column {number}" for number in range(lengths[0])]
    else:
        names = [decode_text(name) for name in header]
        names[0] = names[0].removeprefix("#").strip()  # as numpy.savetxt writes headers
        rows = rows[1:]
    columns = list(zip(*rows, strict=True))
    if separator == ";":
        _refuse_grouped_numbers(names, columns)
    return make_table(path, names, columns, notes=tuple(notes))


def _is_comment(lines: list[str], number: int) -> bool:
    """Return whether a line is a comment, and not a header of as many fields as the next line."""
    line = lines[number]
    next_line = lines[number + 1]
    if not line.startswith("#") or line.startswith("#N"):  # #N/A is a missing value
        return False
    is_header = any(0 < line.count(mark) == next_line.count(mark) for mark in SEPARATORS)
    return next_line.startswith("#") or not is_header


def _parse_rows(path: Path, text: str) -> tuple[list[list[str]], str]:
    """Return the rows with stripped fields, without empty lines, and the separator."""
    separators = "\t" if inner_suffix(path) == ".tsv" else SEPARATORS
    separator = separators[-1]
    most_numbers = -1
    for candidate in separators:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=candidate, skipinitialspace=True)
        first_rows = [row for row, _ in zip(rows, range(NUM_SNIFFED_ROWS), strict=False) if row]
        number = DECIMAL if candidate != "," else NUMBER
        fields = [field.strip() for row in first_rows for field in row]
        num_numbers = sum(number.fullmatch(field) is not None for field in fields)
        is_table = first_rows and all(len(row) > 1 for row in first_rows)
        if is_table and num_numbers > most_numbers:
            separator = candidate
            most_numbers = num_numbers
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
    )
    return [[field.strip() for field in row] for row in reader if row], separator


def _has_header(path: Path, rows: list[list[str]], notes: list[str]) -> bool:
    """Return whether the first row has the names of the columns.

    Raises:
        UserError: it may as well be a sample.
    """
    first = rows[0]
    start_of_row = ",".join(first[:5]) + (",..." if len(first) > 5 else "")
    are_numbers = [is_number(field) for field in first]
    has_index = first[0] == "" and len(first) > 1
    names = first[1:] if has_index else first
    advice = "write names such as a,b,c above the samples, or save an .npy"

    # 1. Numbers alone: those that pandas writes where columns have no names, or a sample.
    if all(are_numbers):
        next_names = rows[1][has_index:] if len(rows) > 1 else []
        is_counted = names == [str(number) for number in range(len(names))]
        is_numbered = _is_evenly_spaced(names) and not _is_evenly_spaced(next_names)
        is_header = is_numbered and len(names) >= MIN_NUMBERED_COLUMNS
        is_header |= is_counted and (has_index or len(names) >= MIN_COUNTED_COLUMNS)
        is_unclear = is_counted and len(names) > 1 and not is_header
        refuse(
            is_unclear, f"{path}: its first row, {start_of_row}, may be names or a sample: {advice}"
        )
        if is_header and len(rows) > 1:
            notes.append(f"the first row, {start_of_row}, has the names of the columns")
        return is_header

    # 2. Text in columns of text next to numbers in columns of numbers: a sample, or odd names.
    text_columns = [k for k, is_num in enumerate(are_numbers) if not is_num]
    numbers = [field for field in first if is_number(field) and field not in MISSING_NUMBER]
    are_texts = all(not all(is_number(row[k]) for row in rows[1:]) for k in text_columns)
    is_counted = numbers == [str(number) for number in range(len(numbers))]
    occurs_again = any(row[k] == first[k] for row in rows[1:] for k in text_columns)
    is_mixed = len(rows) > 1 and bool(numbers) and are_texts
    is_unclear = is_mixed and (occurs_again or not is_counted)
    refuse(is_unclear, f"{path}: its first row, {start_of_row}, may be names or a sample: {advice}")
    return True


def _is_evenly_spaced(fields: list[str]) -> bool:
    """Return whether fields are whole numbers with one distance that is not 0."""
    if not all(re.fullmatch(r"-?[0-9]{1,15}(\.0)?", field) for field in fields):
        return False
    numbers = [int(float(field)) for field in fields]
    steps = {after - before for before, after in pairwise(numbers)}
    return len(steps) <= 1 and 0 not in steps


def _refuse_grouped_numbers(names: list[str], columns: list[tuple[str, ...]]) -> None:
    """Refuse 1.000 next to 999 in a table with semicolons, where points may part thousands.

    Raises:
        ValueError: names the column and the number.
    """
    for name, column in zip(names, columns, strict=True):
        fields = [field for field in column if field not in MISSING_NUMBER]
        with_point = [field for field in fields if "." in field]
        if not with_point or not all(GROUPED_BY_POINTS.fullmatch(field) for field in with_point):
            continue
        message = f"{with_point[0]} in column {name!r} may be a thousand or a fraction"
        ensure(len(with_point) == len(fields), f"{message}: write whole numbers without points")


def refuse_local_number(name: str, field: str) -> None:
    """Refuse numbers with marks between thousands, or with decimal commas.

    Raises:
        UserError: the field is such a number.
    """
    is_grouped = re.fullmatch(r"[+-]?\d{1,3}([, '’\u00a0\u202f.]\d{3})+([.,]\d+)?", field)
    is_grouped = is_grouped or re.fullmatch(r"[+-]?\d+(_\d+)+", field)
    message = f"column {name!r} has {field!r}"
    if is_grouped:
        raise UserError(f"{message}: write numbers without marks between thousands")
    if re.fullmatch(r"[+-]?\d+,\d+", field):
        raise UserError(f"{message}: write decimal points, not commas")
