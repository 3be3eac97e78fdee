"""Questions to a fitted factorization."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from dask_ma.base import DistributedEstimator
from dask_ma.data import (
    describe,
    is_dask_collection,
    refuse_unfinished,
    row_blocks,
)
from dask_ma.schmp.factorization._folding import Explanation, contributions, fold_in
from dask_ma.schmp.factorization._ids import find_ids
from dask_ma.schmp.factorization._inputs import (
    as_scipy,
    pairs_and_ratings,
    pairs_of,
    parts_in_memory,
    triples_of,
)
from dask_ma.schmp.factorization._model import (
    FactorModel,
    Recommendations,
    ids_or_none,
    type_of_answers,
)
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._ranking import ranking_scores
from dask_ma.schmp.factorization._ratings import to_csr


class FittedFactorization(DistributedEstimator):
    """Base of the estimator: predictions, recommendations, neighbours, new users."""

    seen_: sparse.csr_array
    feature_names_in_: np.ndarray

    def predict(self, X: Any) -> Any:
        """Predict ratings of pairs.

        Parameters
        ----------
        X : array-like, DataFrame or Dask collection of shape (n, 2)
            Pairs of user and item.

        Returns
        -------
        ratings : ndarray, dask.array or dask.dataframe Series of float64, (n,)
            With implicit feedback scores, of about 0 to 1. Lazy for Dask input, for a
            DataFrame a Series with its index.
        """
        check_is_fitted(self)
        refuse_unfinished(X, "X")
        self._check_names(X)
        if not is_dask_collection(X):
            return self._predict_pairs(X)
        from dask import delayed

        if not hasattr(X, "chunks"):
            return predicted_frame(delayed(self, pure=False), X)
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})
        return X.map_blocks(
            self._predict_pairs,
            drop_axis=1,
            dtype=np.float64,
            meta=np.empty(0),
            chunks=(X.chunks[0],),
        )

    def recommend(
        self,
        users: Any = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        items: Any = None,
    ) -> Recommendations:
        """The best items of users.

        Parameters
        ----------
        users : array-like or Dask column of shape (n_users,), default=None
            Ids; None stands for all users of the fit.
        n : int, default=10
            How many, at least 1.
        exclude_seen : bool, default=True
            Whether items are left out that a user has rated in the fit.
        items : array-like, default=None
            Ids of the items to choose from; None stands for all.

        Returns
        -------
        recommendations : Recommendations
            Always with `n` columns. Users that the fit has not seen get what
            `cold_start` says: the items of the largest biases, no items, or an error.
            Those of Dask input are lazy, with its chunks.
        """
        check_is_fitted(self)
        _check_number(n)
        if is_dask_collection(users):
            asked = {"n": int(n), "exclude_seen": exclude_seen, "items": items}
            return self._recommend_lazily(users, asked)
        numbers = np.arange(len(self.user_ids_))
        if users is not None:
            numbers = self._numbers(users, "users")
        candidates = np.arange(len(self.item_ids_))
        if items is not None:
            candidates = np.unique(find_ids(self.item_ids_, items, "items"))
            candidates = candidates[candidates >= 0]
        seen = self.seen_ if exclude_seen else None
        best, scores = self._model().recommend(numbers, n, seen, candidates)
        if self.cold_start == "nan":
            best[numbers < 0], scores[numbers < 0] = -1, -np.inf
        return Recommendations(ids_or_none(self.item_ids_, best), scores)

    def explain(self, user: Any, item: Any, n: int = 10) -> Explanation:
        """Which of a user's ratings make up the score of an item.

        The vector of a user follows from the ratings by least squares, the items being
        fixed, so a score is a sum over the rated items. That vector is what
        :meth:`transform` gives; the one of the fit, with which :meth:`predict` works,
        was found before the items changed for the last time. Ratings have the weight 1
        here.

        Parameters
        ----------
        user : object
            Id of a user of the fit.
        item : object
            Id of an item of the fit, rated or not.
        n : int, default=10
            How many rated items to name, those with the largest contributions, up or
            down; at least 1.

        Returns
        -------
        explanation : Explanation
        """
        check_is_fitted(self)
        _check_number(n)
        row = self._known([user], "users")[0]
        column = self._known([item], "items")[0]
        own = slice(*self.seen_.indptr[row : row + 2])
        rated, values = self.seen_.indices[own], self.seen_.data[own]
        baseline, parts = contributions(self._model(), rated, values, column)
        order = np.argsort(-np.abs(parts), kind="stable")[:n]
        score = baseline + float(parts.sum())
        return Explanation(score, baseline, self.item_ids_[rated[order]], parts[order])

    def similar_items(self, items: Any, n: int = 10) -> Recommendations:
        """Items whose vectors point in the most similar directions.

        Parameters
        ----------
        items : array-like of shape (m,)
            Ids of items of the fit.
        n : int, default=10
            How many, at least 1.

        Returns
        -------
        similar : Recommendations
            Ids of items, and cosines; the item itself is left out.
        """
        return self._similar(items, n, 1)

    def similar_users(self, users: Any, n: int = 10) -> Recommendations:
        """Users whose vectors point in the most similar directions.

        Parameters
        ----------
        users : array-like of shape (m,)
            Ids of users of the fit.
        n : int, default=10
            How many, at least 1.

        Returns
        -------
        similar : Recommendations
            Ids of users, and cosines; the user itself is left out.
        """
        return self._similar(users, n, 0)

    def transform(self, X: Any) -> np.ndarray:
        """Vectors of new users, from their ratings of the items of the fit.

        Parameters
        ----------
        X : sparse matrix of shape (n_users, n_items)
            Ratings; columns in the order of ``item_ids_``.

        Returns
        -------
        factors : ndarray of shape (n_users, n_components)
            Zeros for users without ratings.
        """
        check_is_fitted(self)
        X = as_scipy(X)
        if not sparse.issparse(X) or X.shape[1] != len(self.item_ids_):
            raise ValueError(
                f"X must be a sparse matrix with a column for each of the "
                f"{len(self.item_ids_)} items of the fit, got {type(X).__name__} of "
                f"shape {np.shape(X)}"
            )
        users, items, values = triples_of(X, None)
        ratings = sparse.csr_array((values, (users, items)), shape=X.shape)
        factors = fold_in(self._model(), ratings, np.ones(len(ratings.data)), 0)
        return factors[:, -self.n_components :]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """How good predictions are: higher is better.

        Parameters
        ----------
        X : array-like, DataFrame or Dask collection of shape (n, 2), or sparse matrix
            Pairs of user and item, or ratings as a matrix.
        y : array-like of shape (n,), default=None
            Ratings of the pairs.
        sample_weight : array-like of shape (n,), default=None
            Weights of the ratings, for explicit feedback.

        Returns
        -------
        score : float
            Coefficient of determination; with implicit feedback, the NDCG of 10
            recommendations, see :meth:`ranking_metrics`. Items of the fit are left out
            of these, so the ratings that it was made to score 0.
        """
        check_is_fitted(self)
        X, y = pairs_and_ratings(X, y)
        self._check_names(X)
        if self.feedback == "implicit":
            return self.ranking_metrics(X, y)["ndcg"]
        if is_dask_collection(X):
            truth, weight = _in_memory(y), _in_memory(sample_weight)
            predicted = self.predict(X).compute()
            return float(r2_score(truth, predicted, sample_weight=weight))
        users, items, values = self._numbered(X, y)
        predicted = self._model().predict(users, items)
        return float(r2_score(values, predicted, sample_weight=sample_weight))

    def ranking_metrics(
        self, X: Any, y: Any = None, *, k: int = 10, exclude_seen: bool = True
    ) -> dict[str, float]:
        """How many items that users have taken are among their recommendations.

        Parameters
        ----------
        X : array-like, DataFrame or Dask collection of shape (n, 2), or sparse matrix
            What users have taken since, or what was held out of the fit.
        y : array-like of shape (n,), default=None
            Values; pairs with values that are not above 0 have not been taken.
        k : int, default=10
            Recommendations of each user, at least 1.
        exclude_seen : bool, default=True
            Whether items of the fit are left out of the recommendations.

        Returns
        -------
        metrics : dict
            "precision", "recall" and "ndcg", averaged over the users in X that the fit
            knows and that have taken an item that the fit knows.
        """
        check_is_fitted(self)
        _check_number(k)
        X, y = pairs_and_ratings(X, y)
        self._check_names(X)
        users, items, values = self._numbered(X, y)
        taken = (users >= 0) & (items >= 0) & (values > 0)
        own, rows = np.unique(users[taken], return_inverse=True)
        relevant = sparse.csr_array(
            (np.ones(len(rows)), (rows, items[taken])),
            shape=(len(own), len(self.item_ids_)),
        )
        relevant.sum_duplicates()
        seen = self.seen_ if exclude_seen else None
        everything = np.arange(len(self.item_ids_))
        best, _ = self._model().recommend(own, k, seen, everything)
        return ranking_scores(best, relevant)

    def _model(self) -> FactorModel:
        """The fitted model by numbers."""
        params = self._params_of(
            FactorizationParams,
            n_users=len(self.user_ids_),
            n_items=len(self.item_ids_),
            n_ratings=self.seen_.nnz,
            dtype=self.user_factors_.dtype.type,
            seed=0,
        )
        users, items = self.user_factors_, self.item_factors_
        if params.has_bias:
            ones = np.ones(len(users), users.dtype), np.ones(len(items), items.dtype)
            users = np.column_stack([self.user_bias_, ones[0], users])
            items = np.column_stack([ones[1], self.item_bias_, items])
        low, high = self.rating_range_ if self.clip else (-np.inf, np.inf)
        return FactorModel(users, items, self.mean_, low, high, self.scale_, params)

    def _check_names(self, X: Any, *, reset: bool = False) -> None:
        """Keep the names of two columns, or refuse those of other ones."""
        columns = getattr(X, "columns", None)
        if reset and hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if columns is None:
            return
        names = [str(name) for name in columns]
        if reset:
            self.feature_names_in_ = np.array(names, dtype=object)
            return
        known = getattr(self, "feature_names_in_", np.array(names)).tolist()
        if names != known:
            raise ValueError(
                f"X has the columns {names}, but those of the fit were {known}: users "
                "first, then items"
            )

    def _predict_pairs(self, X: Any) -> np.ndarray:
        """Predictions for pairs in memory."""
        users, items = pairs_of(X)
        users, items = self._numbers(users, "users"), self._numbers(items, "items")
        values = self._model().predict(users, items)
        if self.cold_start == "nan":
            values[(users < 0) | (items < 0)] = np.nan
        return values

    def _numbers(self, ids: Any, name: str) -> np.ndarray:
        """Numbers of ids; -1 for strangers, unless they are an error."""
        known = self.user_ids_ if name == "users" else self.item_ids_
        numbers = find_ids(known, ids, name)
        if self.cold_start == "raise" and (numbers < 0).any():
            first = np.asarray(ids).tolist()[np.argmax(numbers < 0)]
            raise ValueError(
                f"{name} has {first!r}, which the fit has not seen; add it with "
                "partial_fit, or set cold_start to 'mean' or 'nan'"
            )
        return numbers

    def _known(self, ids: Any, name: str) -> np.ndarray:
        """Numbers of ids, none of which may be a stranger."""
        known = self.user_ids_ if name == "users" else self.item_ids_
        numbers = find_ids(known, ids, name)
        if (numbers < 0).any():
            first = np.asarray(ids).tolist()[np.argmax(numbers < 0)]
            raise ValueError(f"{name} has {first!r}, which the fit has not seen")
        return numbers

    def _recommend_lazily(self, users: Any, asked: dict[str, Any]) -> Recommendations:
        """Recommendations of each block of users, when they are asked for."""
        import dask.array as da
        from dask import delayed

        model = delayed(self, pure=False)  # once for all blocks
        blocks, _ = row_blocks(users)
        sizes = users.chunks[0] if hasattr(users, "chunks") else [np.nan] * len(blocks)
        shapes = [(size, asked["n"]) for size in sizes]
        found = [delayed(_recommend)(model, block, asked) for block in blocks]
        dtypes = type_of_answers(self.item_ids_), np.dtype(np.float64)
        lazy = [
            da.concatenate(
                [
                    da.from_delayed(part[place], shape, dtype=dtype)
                    for part, shape in zip(found, shapes, strict=True)
                ]
            )
            for place, dtype in enumerate(dtypes)
        ]
        return Recommendations(*lazy)

    def _numbered(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of users and items of ratings, and the ratings."""
        parts = [
            (
                find_ids(self.user_ids_, part.users, "users"),
                find_ids(self.item_ids_, part.items, "items"),
                part.values,
            )
            for part in parts_in_memory(X, y)
        ]
        users, items, values = map(np.concatenate, zip(*parts, strict=True))
        return users, items, values

    def _similar(self, ids: Any, n: int, side: int) -> Recommendations:
        """The nearest others of users or items."""
        check_is_fitted(self)
        _check_number(n)
        name, known = (("users", self.user_ids_), ("items", self.item_ids_))[side]
        numbers = self._known(ids, name)
        nearest, cosines = self._model().similar(numbers, n, side)
        return Recommendations(ids_or_none(known, nearest), cosines)

    def _add_new(self, side: int, triples: Any, weights: np.ndarray) -> None:
        """Add new users, or new items, and sort all by their ids."""
        names = ("user", "item")
        own, other = names[side], names[1 - side]
        known = getattr(self, f"{own}_ids_")
        numbers = find_ids(known, triples[side], f"{own}s")
        columns = find_ids(
            getattr(self, f"{other}_ids_"), triples[1 - side], f"{other}s"
        )
        new, rows = np.unique(triples[side][numbers < 0], return_inverse=True)
        if not len(new):
            return
        usable = columns[numbers < 0] >= 0
        ratings, own_weights = to_csr(
            rows[usable],
            columns[numbers < 0][usable],
            triples.values[numbers < 0][usable],
            weights[numbers < 0][usable],
            (len(new), len(getattr(self, f"{other}_ids_"))),
        )
        found = fold_in(self._model(), ratings, own_weights, side)
        bias = np.zeros(len(new), found.dtype)
        if self.fit_bias and self.feedback == "explicit":
            bias = found[:, side]
        ids = np.concatenate([known, new])
        order = np.argsort(ids, kind="stable")
        vectors = [getattr(self, f"{own}_factors_"), found[:, -self.n_components :]]
        biases = [getattr(self, f"{own}_bias_"), bias]
        setattr(self, f"{own}_ids_", ids[order])
        setattr(self, f"{own}_factors_", np.concatenate(vectors)[order])
        setattr(self, f"{own}_bias_", np.concatenate(biases)[order])
        self.seen_ = _grown(self.seen_, order, side, len(ids))


def _in_memory(column: Any) -> Any:
    """A column of this process."""
    return column.compute() if is_dask_collection(column) else column


def predicted_frame(model: Any, X: Any) -> Any:
    """Series of the predictions for a Dask DataFrame, by a delayed model."""
    import pandas as pd  # a Dask DataFrame cannot be without it

    if not hasattr(X, "columns"):
        describe(X)  # says what is wrong
    return X.map_partitions(
        _predict,
        model,
        meta=pd.Series([], dtype=np.float64, index=X._meta.index[:0]),
        enforce_metadata=False,
        transform_divisions=False,
        token="dask_ma-predict",
    )


def _predict(X: Any, model: FittedFactorization) -> Any:
    """Predictions of a partition, with its index."""
    import pandas as pd

    return pd.Series(model._predict_pairs(X), index=X.index, dtype=np.float64)


def _recommend(
    model: FittedFactorization, users: Any, asked: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Recommendations of a block."""
    found = model.recommend(np.asarray(users), **asked)
    return found.items, found.scores


def merged_ratings(
    seen: sparse.csr_array, users: np.ndarray, items: np.ndarray, values: np.ndarray
) -> sparse.csr_array:
    """Ratings with some new ones, which take the place of those of the same pairs."""
    before = seen.tocoo()
    keys = np.concatenate([before.row, users]) * np.int64(seen.shape[1])
    keys += np.concatenate([before.col, items])
    data = np.concatenate([before.data, values.astype(seen.dtype)])
    _, last = np.unique(keys[::-1], return_index=True)
    kept = len(keys) - 1 - last
    places = np.divmod(keys[kept], seen.shape[1])
    return sparse.csr_array((data[kept], places), shape=seen.shape)


def _grown(seen: sparse.csr_array, order: np.ndarray, side: int, n: int) -> Any:
    """Room for new users or items, in the order of their ids."""
    stored = seen.tocoo()  # with zeros, which are ratings
    users, items = stored.row, stored.col
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    shape = [*seen.shape]
    shape[side] = n
    places = (place[users], items) if side == 0 else (users, place[items])
    return sparse.csr_array((stored.data, places), shape=tuple(shape))


def _check_number(n: Any) -> None:
    """Refuse what is no number of items."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"the number of items must be an int of at least 1, got {n!r}")
