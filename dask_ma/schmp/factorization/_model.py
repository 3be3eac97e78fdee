"""A fitted factorization: predictions, recommendations, neighbours, new users."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels import best_columns
from dask_ma.schmp.factorization._params import FactorizationParams

_SCORES = 2**22  # that are worked out at a time


class Recommendations(NamedTuple):
    """The best items of some users.

    Attributes
    ----------
    items : ndarray, or dask.array for Dask input, of shape (n_users, n)
        Ids, the best first. Where a user has no more items: -1, or "", NaN, NaT or
        None where ids are texts, floats, dates or objects. Unsigned ids come as int64,
        or as objects of Python if some are beyond it.
    scores : ndarray, or dask.array, of float64 of shape (n_users, n)
        Predictions; minus infinity where there is no item.
    """

    items: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class FactorModel:
    """Factors of all users and items, by their numbers.

    Attributes
    ----------
    users, items : ndarray of shape (n, n_columns)
        As :class:`FactorizationParams` lays them out.
    mean, low, high : float
        Of the ratings; 0 and infinite with implicit feedback.
    scale : float
        What the ratings were divided by in the fit.
    params : FactorizationParams
        Of the fit.
    """

    users: np.ndarray
    items: np.ndarray
    mean: float
    low: float
    high: float
    scale: float
    params: FactorizationParams

    def strangers(self) -> tuple[np.ndarray, np.ndarray]:
        """A user and an item of which nothing is known, as rows."""
        user, item = np.zeros((2, 1, self.params.n_columns), self.users.dtype)
        if self.params.has_bias:
            user[0, 1] = item[0, 0] = 1
        return user, item

    def standardized(self) -> FactorModel:
        """The model of ratings as they were fitted; its factors are the only change."""
        users, items = self.params.units(self.scale)
        kind = self.users.dtype.type
        return replace(
            self,
            users=self.users / users.astype(kind),
            items=self.items / items.astype(kind),
        )

    def rows_of(self, numbers: np.ndarray, side: int) -> np.ndarray:
        """Factors of users or items; -1 is a stranger."""
        factors = (self.users, self.items)[side]
        known = numbers >= 0
        if len(factors):
            found = factors[np.where(known, numbers, 0)]
        else:
            found = np.zeros((len(numbers), self.params.n_columns), factors.dtype)
        found[~known] = self.strangers()[side]
        return found

    def predict(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Predictions for pairs of numbers, ndarray of float64."""
        values = np.einsum(
            "nf,nf->n",
            self.rows_of(users, 0),
            self.rows_of(items, 1),
            dtype=np.float64,
        )
        return np.clip(values + self.mean, self.low, self.high)

    def recommend(
        self,
        users: np.ndarray,
        n: int,
        seen: sparse.csr_array | None,
        candidates: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and scores of the best candidates of some users, -1 for none."""
        numbers = np.full((len(users), n), -1, dtype=np.int64)
        scores = np.full((len(users), n), -np.inf)
        items = np.ascontiguousarray(self.items[candidates].T)
        step = max(1, _SCORES // max(1, len(candidates)))
        for start in range(0, len(users), step):
            own = users[start : start + step]
            found = self.rows_of(own, 0) @ items
            if seen is not None:
                found[_places_of(seen, own, candidates)] = -np.inf
            best = best_columns(found, n)
            values = np.take_along_axis(found, best, axis=1).astype(np.float64)
            chosen = np.where(np.isfinite(values), candidates[best], -1)
            numbers[start : start + step, : best.shape[1]] = chosen
            values = np.clip(values + self.mean, self.low, self.high)
            values[chosen < 0] = -np.inf
            scores[start : start + step, : best.shape[1]] = values
        return numbers, scores

    def similar(
        self, numbers: np.ndarray, n: int, side: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and cosines of the nearest others, -1 for none."""
        factors = (self.users, self.items)[side][:, -self.params.n_components :]
        norms = np.linalg.norm(factors, axis=1, keepdims=True)
        unit = np.divide(factors, norms, out=np.zeros_like(factors), where=norms > 0)
        nearest = np.full((len(numbers), n), -1, dtype=np.int64)
        cosines = np.full((len(numbers), n), -np.inf)
        step = max(1, _SCORES // max(1, len(unit)))
        for start in range(0, len(numbers), step):
            own = numbers[start : start + step]
            found = unit[own] @ unit.T
            found[np.arange(len(own)), own] = -np.inf
            best = best_columns(found, n)
            values = np.take_along_axis(found, best, axis=1)
            is_other = np.isfinite(values)
            nearest[start : start + step, : best.shape[1]] = np.where(
                is_other, best, -1
            )
            cosines[start : start + step, : best.shape[1]] = values
        return nearest, cosines


def _places_of(
    seen: sparse.csr_array, users: np.ndarray, candidates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of what users have seen among the candidates."""
    known = np.flatnonzero(users >= 0)
    part = seen[users[known]]
    rows = np.repeat(known, np.diff(part.indptr))
    place = np.full(seen.shape[1], -1, dtype=np.int64)
    place[candidates] = np.arange(len(candidates))
    columns = place[part.indices]
    inside = columns >= 0
    return rows[inside], columns[inside]


def ids_or_none(ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Ids of numbers; what stands for none where the number is -1."""
    kind = type_of_answers(ids)
    none = -1 if ids.dtype.kind == "u" else _none_of(ids.dtype)
    if not len(ids):
        return np.full(numbers.shape, none, dtype=kind)
    ids = ids.astype(kind, copy=False)
    found = ids[np.where(numbers >= 0, numbers, 0)]
    found[numbers < 0] = none
    return found


def type_of_answers(ids: np.ndarray) -> np.dtype:
    """Type in which ids are told: one that has -1 in the place of unsigned integers."""
    if ids.dtype.kind != "u":
        return ids.dtype
    is_small = not len(ids) or int(ids.max()) <= np.iinfo(np.int64).max
    return np.dtype(np.int64 if is_small else object)


def _none_of(dtype: np.dtype) -> Any:
    """What stands for no id."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)
    none: dict[str, Any] = {"f": np.nan, "O": None, "U": "", "S": b""}
    return none.get(dtype.kind, np.array(-1).astype(dtype))
