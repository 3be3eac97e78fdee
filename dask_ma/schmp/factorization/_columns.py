"""Columns of a frame of ratings: how many there are, and what their names say."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

_PARTS = ("users", "items", "ratings")
# What columns are called whose meaning is beyond doubt, in the singular, without "id".
_NAMES = (
    {"user", "customer"},
    {"item", "movie", "film", "product", "book", "song", "track", "artist", "article"},
    {"rating", "star", "score"},
)
_SHOWN = 6  # names of columns in a message


def columns_of(X: Any) -> list[Any] | None:
    """Names of the columns of a frame; None for other inputs."""
    columns = getattr(X, "columns", None)
    if columns is None:
        return None
    return columns.tolist() if hasattr(columns, "tolist") else list(columns)


def wrong_number(columns: Sequence[Any]) -> ValueError:
    """Error of a frame that has not two or three columns."""
    shown = ", ".join(map(repr, columns[:_SHOWN]))
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    found = f"X must have two columns, user and item, got {len(columns)}: {shown}{more}"
    matrix = (
        "a matrix of users x items must be sparse, so that its zeros can be told from "
        "missing ratings"
    )
    few = list(columns[:3]) if 3 <= len(columns) <= _SHOWN else None
    chosen = _by_names(columns, 3) or few
    if chosen is None:
        return ValueError(f"{found}; {matrix}")
    return ValueError(
        f"{found}. Take the three of user, item and rating without y, for example "
        f"X[{chosen!r}], or the two of user and item, X[{chosen[:2]!r}]; {matrix}"
    )


def warn_of_order(columns: Sequence[Any]) -> None:
    """Warn where the names of columns say that they stand in another order.

    Columns are taken by their places. A name that says something else counts only if
    the column in its place is not of that name as well: a user may follow users.
    """
    parts = [_part(name) for name in columns]
    if all(
        part is None or part == place or parts[part : part + 1] == [part]
        for place, part in enumerate(parts)
    ):
        return
    taken = ", ".join(
        f"{name!r} for {part}" for name, part in zip(columns, _PARTS, strict=False)
    )
    chosen = _by_names(columns, len(columns))
    cure = f", here X[{chosen!r}]" if chosen else ""
    warnings.warn(
        f"The columns of X are taken by their places, {taken}, but their names say "
        "otherwise. The order is user, item, and with y=None rating" + cure + "; or "
        "rename them.",
        UserWarning,
        stacklevel=2,
    )


def _by_names(columns: Sequence[Any], n: int) -> list[Any] | None:
    """Columns of the first `n` parts, if the names tell all of them."""
    parts = [_part(name) for name in columns]
    if any(part not in parts for part in range(n)):
        return None
    return [columns[parts.index(part)] for part in range(n)]


def _part(name: Any) -> int | None:
    """Number of what a column has in it, if its name tells."""
    plain = "".join(filter(str.isalnum, str(name).lower()))
    plain = plain.removesuffix("s").removesuffix("id").removesuffix("s")
    return next((p for p, names in enumerate(_NAMES) if plain in names), None)
