"""The integers in lines of text, read by NumPy once the form of the lines is known.

Lines end with a newline. Numbers have 18 digits at most and no sign. The form is what
NumPy does not check. The readers of pandas and pyarrow take as long, and make numbers
of decimals and quoted text, or a missing value of nothing.
"""

from __future__ import annotations

import re

import numpy as np

_DIGITS = b"0123456789"
_LIMIT = 10**18  # what overflows an int64 is read as a larger number
_BLANKS = bytes.maketrans(b"\t\r", b"  ")
_AROUND = re.compile(rb" *([ \n]) *")


def parse_table(data: bytes, n_columns: int) -> np.ndarray | None:
    """Lines of `n_columns` numbers as an int64 array; None if one has another form."""
    n_lines = data.count(b"\n")
    form = (b" " * (n_columns - 1) + b"\n") * n_lines
    marks = data.translate(None, _DIGITS)
    if marks != form:
        data, marks = _single_blanks(data)
    values = _integers(data, n_columns * n_lines) if marks == form else None
    return None if values is None else values.reshape(n_lines, n_columns)


def parse_documents(data: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """Lines ``n a:b ... a:b``: each n, and all pairs; None if one has another form."""
    form = b"\n" * data.count(b"\n")
    marks = data.translate(None, _DIGITS)
    if marks.replace(b" :", b"") != form:
        data, marks = _single_blanks(data)
        if marks.replace(b" :", b"") != form:
            return None
    lengths = np.array([len(line) // 2 for line in marks.split(b"\n")[:-1]], np.int64)
    size = len(lengths) + 2 * int(lengths.sum())
    values = _integers(data.replace(b":", b" "), size)
    heads = np.cumsum(2 * lengths + 1) - 2 * lengths - 1
    if values is None or not (values[heads] == lengths).all():
        return None
    return lengths, np.delete(values, heads).reshape(-1, 2)


def _single_blanks(data: bytes) -> tuple[bytes, bytes]:
    """Lines with one blank where there were some, none at their ends; their marks."""
    data = _AROUND.sub(rb"\1", data.translate(_BLANKS).lstrip(b" "))
    return data, data.translate(None, _DIGITS)


def _integers(data: bytes, size: int) -> np.ndarray | None:
    """Numbers between blanks; None if one is missing or too large."""
    # Of blanks alone NumPy makes a zero.
    values = np.fromstring(data.strip(), np.int64, sep=" ")
    right = len(values) == size and values.max() < _LIMIT
    return values if right else None
