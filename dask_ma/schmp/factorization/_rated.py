"""Rows and columns of a matrix that have ratings, which alone are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_ma.schmp.factorization._ids import find_ids, unique_ids

_SIDES = "users", "items"


class Rated(NamedTuple):
    """Numbers of users and items that have ratings, sorted.

    Vectors of the others are zero, whatever is fitted.

    Attributes
    ----------
    users, items : ndarray of int
    """

    users: np.ndarray
    items: np.ndarray

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray) -> Rated:
        """Those that are there in rows of user and item."""
        sides = zip((users, items), _SIDES, strict=True)
        return cls(*(unique_ids(numbers, name) for numbers, name in sides))

    @classmethod
    def all_of(cls, sizes: Sequence[int]) -> Rated:
        """All of so many users and items."""
        return cls(*(np.arange(n) for n in sizes))

    def spread(self, factors: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Factors of all users and of all items, from those of the rated ones."""
        parts = np.split(factors, [len(self.users)])
        return [
            part if len(part) == n else _with_zeros(part, places, n)
            for part, places, n in zip(parts, self, sizes, strict=True)
        ]


class KnownVectors(NamedTuple):
    """Users or items of an earlier fit, which another begins with."""

    name: str
    ids: np.ndarray
    bias: np.ndarray
    factors: np.ndarray

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Biases and vectors of some ids; NaN of those that are new."""
        places = find_ids(self.ids, ids, self.name)
        own = np.column_stack([self.bias, self.factors])[places]
        own[places < 0] = np.nan
        return own


def known_vectors(model: Any) -> tuple[KnownVectors, ...]:
    """Users and items that an estimator has been fitted to ratings of."""
    seen = model.seen_
    has_ratings = (
        np.diff(seen.indptr) > 0,
        np.bincount(seen.indices, minlength=seen.shape[1]) > 0,
    )
    # Zero vectors of the others say nothing, and a fit would not get away from them.
    return tuple(
        KnownVectors(
            name,
            getattr(model, f"{name[:-1]}_ids_")[own],
            getattr(model, f"{name[:-1]}_bias_")[own],
            getattr(model, f"{name[:-1]}_factors_")[own],
        )
        for name, own in zip(_SIDES, has_ratings, strict=True)
    )


def _with_zeros(part: np.ndarray, places: np.ndarray, n: int) -> np.ndarray:
    """Rows in some places of a matrix of zeros."""
    whole = np.zeros((n, *part.shape[1:]), dtype=part.dtype)
    whole[places] = part
    return whole
