"""The integers in lines of text, parsed with NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_DIGITS = 18  # decimal digits that always fit into an int64
_DIGITS_INT32 = 9


class _Tokens(NamedTuple):
    """Runs of digits in a text."""

    text: np.ndarray  # uint8
    digits: np.ndarray  # uint8, 10 or more for what is no digit
    starts: np.ndarray
    ends: np.ndarray
    newlines: np.ndarray
    n_other: int  # bytes that are neither digits nor newlines


def parse_table(data: bytes, n_columns: int) -> np.ndarray | None:
    """Non-negative integers in columns with blanks in between.

    Parameters
    ----------
    data : bytes
        At least one line; each ends with a newline.
    n_columns : int
        Numbers in each line.

    Returns
    -------
    ndarray of int32 or int64, shape (n_columns, n_lines), or None
        None if there is anything else in the lines, or a number has too many digits.
    """
    tokens = _find_tokens(data)
    n_lines = len(tokens.newlines)
    if len(tokens.starts) != n_columns * n_lines or _n_not_blank(tokens):
        return None
    first, last = tokens.starts[0::n_columns], tokens.ends[n_columns - 1 :: n_columns]
    in_line = (last <= tokens.newlines).all() and (
        first[1:] > tokens.newlines[:-1]
    ).all()
    values = _values(tokens) if in_line else None
    return None if values is None else values.reshape(n_lines, n_columns).T


def parse_pairs(data: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """Lines of a number and then pairs of numbers with a colon in between.

    Parameters
    ----------
    data : bytes
        At least one line; each ends with a newline.

    Returns
    -------
    heads : ndarray of int, shape (n_lines,)
        The first number of each line, which is that of the pairs.
    pairs : ndarray of int, shape (n_pairs, 2)
        All the pairs.
    None
        Instead, if the lines are different from that.
    """
    tokens = _find_tokens(data)
    per_line = np.diff(np.searchsorted(tokens.starts, tokens.newlines), prepend=0)
    if not (per_line % 2 == 1).all():
        return None
    in_pair = np.ones(len(tokens.starts), bool)
    in_pair[np.cumsum(per_line) - per_line] = False
    left, right = tokens.ends[in_pair][0::2], tokens.starts[in_pair][1::2]
    joined = (right == left + 1) & (tokens.text[left] == ord(":"))
    values = None
    if joined.all() and _n_not_blank(tokens) == len(left):
        values = _values(tokens)
    if values is None or not (per_line == 1 + 2 * values[~in_pair]).all():
        return None
    return values[~in_pair], values[in_pair].reshape(-1, 2)


def _find_tokens(data: bytes) -> _Tokens:
    """Where the numbers are."""
    text = np.frombuffer(data, np.uint8)
    digits = text - np.uint8(ord("0"))  # wraps around below zero
    is_digit = digits < 10
    edges = np.flatnonzero(is_digit[1:] != is_digit[:-1]) + 1
    if is_digit[0]:
        edges = np.concatenate([[0], edges])
    newlines = np.flatnonzero(text == ord("\n"))
    n_other = len(text) - int(np.count_nonzero(is_digit)) - len(newlines)
    return _Tokens(text, digits, edges[0::2], edges[1::2], newlines, n_other)


def _n_not_blank(tokens: _Tokens) -> int:
    """Bytes that are neither digits nor blanks nor newlines."""
    left = tokens.n_other
    for blank in b" \r\t":
        if left > 0:
            left -= int(np.count_nonzero(tokens.text == blank))
    return left


def _values(tokens: _Tokens) -> np.ndarray | None:
    """Values of the numbers, from the last digit to the first."""
    lengths = tokens.ends - tokens.starts
    longest = int(lengths.max(initial=0))
    if longest > _DIGITS:
        return None
    dtype = np.int32 if longest <= _DIGITS_INT32 else np.int64
    values: np.ndarray = np.zeros(len(lengths), dtype)
    at = tokens.ends
    for place in range(longest):
        at = at - 1
        # Of a short number any byte is taken; multiplied by zero it does not matter.
        digit: np.ndarray = tokens.digits.take(at, mode="wrap").astype(dtype)
        if place:
            digit *= lengths > place
            digit *= 10**place
        values += digit
    return values
