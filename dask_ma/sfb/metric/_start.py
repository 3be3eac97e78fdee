"""Components to start from, the same on any number of ranks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import linalg, sparse

from dask_ma.comm import Group, allreduce
from dask_ma.kernels import column_sums
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.metric._plan import LabelSource, PlannedPairs, chunks, shifted

_MOST_SAMPLED = 2048
_N_EXTRA, _N_SWEEPS = 10, 2
# Mean squared distance to start with. Neighbours of "nca" are told by exp(-distance).
_SPREAD = 8.0
# Steps, in parts of the root mean square of the components, and of what is stable.
_SHARE, _SHARE_OF_SGD = 0.1, 0.5
_SHARE_OF_GROUPS = 0.17  # times the root of their number
# Principal components beside those wanted, among which classes are told apart, and what
# is added to variances within them.
_N_DISCRIMINATED, _RIDGE = 100, 1e-3
# What rounding leaves of weights of features that are constant.
_NOTHING = 1e-12
_START = 2**33  # tells this draw from others of the seed


class Sample:
    """Some rows of all ranks, as evenly spaced as may be; making one is collective.

    Where rank 0 has all rows, it makes one by itself, and what is called collective
    here is not.

    Parameters
    ----------
    group : Group
        This rank.
    source : LabelSource or PlannedPairs
        Rows of this rank, with their classes if they have such.
    n_components : int
        Components that are to be found in them.

    Attributes
    ----------
    centre : ndarray of float32 of shape (n_features,), or None
        Their mean, the same on all ranks; 0 for features that are mostly 0, and for
        those that some sparse row has no element of.
    """

    def __init__(
        self, group: Group, source: LabelSource | PlannedPairs, n_components: int
    ) -> None:
        # Where one rank has all rows, no other is asked.
        self._group, table = None if source.has_all_rows else group, source.table
        self.n_features = table.n_features
        n_rows = int(self._added(np.array(table.numbers.max(initial=-1)), "max")) + 1
        n_sampled = min(n_rows, max(_MOST_SAMPLED, 4 * (n_components + _N_EXTRA)))
        wanted = np.linspace(0, n_rows - 1, n_sampled).astype(np.int64)
        places = table.find(wanted)
        places = places[places >= 0]
        if self._group is not None:  # others' rows, which some need, would count twice
            places = places[places < table.n_own]
        self._X = X = table.take(places)
        self._codes = np.zeros(len(places), dtype=np.int64)
        if isinstance(source, LabelSource):
            self._codes = source.codes_at(places)
        # SciPy adds up float32 in float32, whatever it is asked for.
        total = column_sums(X)
        is_sparse = sparse.issparse(X)
        zeros = X.shape[0] - self._stored(X) if is_sparse else (X == 0).sum(axis=0)
        sums = [np.array(float(X.shape[0])), total, zeros.astype(np.float64)]
        # A rank without rows does not know of what kind those of others are.
        count, total, zeros, n_sparse = self._added([*sums, np.array(float(is_sparse))])
        self.n_rows = float(count)
        self._mean = total / self.n_rows
        self.centre: np.ndarray | None = None
        if not n_sparse:
            # Zeros of features that are hardly ever anything else stay what they are.
            means = self._mean.astype(np.float32)
            self.centre = np.where(zeros > self.n_rows / 2, np.float32(0), means)
        elif (is_full := zeros == 0).any():
            is_full &= self._is_full(source)
            self.centre = np.where(is_full, self._mean, 0.0).astype(np.float32)
        if self.centre is not None:
            self._X = shifted(X, self.centre)
            self._mean -= self.centre

    def _stored(self, X: Any) -> np.ndarray:
        """How many rows have an element of each feature."""
        return np.bincount(X.indices, minlength=self.n_features)

    def _is_full(self, source: LabelSource | PlannedPairs) -> np.ndarray:
        """Which features all rows have an element of; a collective call."""
        n_own = source.table.n_own if self._group else len(source.table.numbers)
        missing = np.zeros(self.n_features)
        for places in chunks(np.arange(n_own)):
            missing += len(places) - self._stored(source.table.take(places))
        return np.asarray(self._added(missing) == 0)

    def _added(self, arrays: Any, op: Literal["sum", "max"] = "sum") -> Any:
        """Arrays added up over the ranks that have rows."""
        return arrays if self._group is None else allreduce(self._group, arrays, op)

    def centred_product(self, Q: np.ndarray) -> np.ndarray:
        """Products of this rank's centred rows and the columns of a matrix."""
        Q = Q.astype(self._X.dtype, copy=False)
        return np.asarray(self._X @ Q - self._mean.astype(Q.dtype) @ Q)

    def moments(self, Q: np.ndarray) -> np.ndarray:
        """Sum over all ranks of the rows times their products; collective."""
        product = np.asarray(self._X.T @ self.centred_product(Q))
        return np.asarray(self._added(product.astype(np.float64)))

    def largest_variance(self) -> float:
        """Variance along the first principal component, about; collective."""
        Q = np.ones((len(self._mean), 1)) / np.sqrt(len(self._mean))
        value = 0.0
        for _ in range(_N_SWEEPS):
            product = self.moments(Q)
            value = float(np.linalg.norm(product))
            if not value > 0:
                return 0.0
            Q = product / value
        return value / self.n_rows

    def variances(self) -> np.ndarray:
        """Variance of each feature; a collective call."""
        X, mean = self._X, self._mean
        if sparse.issparse(X):
            squares = np.asarray(X.astype(np.float64).power(2).sum(axis=0)).ravel()
            squares -= X.shape[0] * mean**2
            # Own rows may have another mean: what that adds, those of others take off.
            total = np.asarray(self._added(squares))
        else:
            total = np.asarray(self._added(((X - mean) ** 2).sum(axis=0)))
        return np.maximum(total, 0) / self.n_rows

    def gram(self, Q: np.ndarray) -> np.ndarray:
        """Second moments of the products; collective."""
        R = self.centred_product(Q).astype(np.float64)
        return np.asarray(self._added(R.T @ R))

    def between(self, Q: np.ndarray, n_classes: int) -> np.ndarray:
        """The part of :meth:`gram` that is of means of classes; collective."""
        R = self.centred_product(Q).astype(np.float64)
        sums = np.zeros((n_classes, R.shape[1]))
        np.add.at(sums, self._codes, R)
        counts = np.bincount(self._codes, minlength=n_classes).astype(np.float64)
        sums, counts = self._added([sums, counts])
        return np.asarray((sums / np.maximum(counts, 1)[:, np.newaxis]).T @ sums)


def first_components(
    sample: Sample, params: MetricParams, seed: int, n_classes: int
) -> np.ndarray:
    """Components to start from; a collective call.

    Parameters
    ----------
    sample : Sample
        Some rows of all ranks.
    params : MetricParams
        Parameters of the fit.
    seed : int
        The same on all ranks.
    n_classes : int
        0 for pairs.

    Returns
    -------
    components : ndarray of float32 of shape (n_components, n_features)
        With one row for a diagonal.

    Raises
    ------
    ValueError
        If all rows are alike, or there are too few classes.
    """
    if params.start is not None:
        return params.start.astype(np.float32)
    if not isinstance(params.init, str):
        return np.asarray(params.init, dtype=np.float32)
    n_components, n_features = params.n_components, sample.n_features
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_START,)))
    init = params.init
    if params.is_diagonal:
        components = np.ones((1, n_features))
        if init == "random":
            components = np.abs(rng.normal(size=(1, n_features)))
        spread = 2 * float((components**2 @ sample.variances())[0])
        return _with_spread(components, spread, params)
    if init == "auto":
        init = "pca" if n_components < n_features else "identity"
    if init == "random":
        components = rng.normal(size=(n_components, n_features))
    elif init == "lda":
        components = discriminants(sample, n_components, n_classes, rng)
    elif init == "identity":
        components = np.eye(n_components, n_features)
    else:
        components = principal_components(sample, n_components, n_features, rng)
    spread = 2 * float(np.trace(sample.gram(components.T))) / sample.n_rows
    return _with_spread(components, spread, params)


def _with_spread(
    components: np.ndarray, spread: float, params: MetricParams
) -> np.ndarray:
    """Components with which the mean squared distance is what losses begin with."""
    if not spread > 0:
        raise ValueError(
            "all rows of X are alike, or differ in columns alone that init="
            f"{params.init!r} leaves out; there is no distance to learn"
        )
    wanted = _SPREAD if params.loss == "nca" else params.margin
    return (components * np.sqrt(wanted / spread)).astype(np.float32)


def principal_components(
    sample: Sample, n_components: int, n_features: int, rng: np.random.Generator
) -> np.ndarray:
    """First principal components, by subspace iteration; a collective call."""
    size = min(n_components + _N_EXTRA, n_features)
    Q = np.linalg.qr(rng.normal(size=(n_features, size)))[0]
    for _ in range(_N_SWEEPS):
        Q = np.linalg.qr(sample.moments(Q))[0]
    vectors = np.linalg.eigh(sample.gram(Q))[1][:, ::-1]
    found = (Q @ vectors[:, :n_components]).T
    found[np.abs(found) < _NOTHING] = 0
    return with_signs(found)


def discriminants(
    sample: Sample, n_components: int, n_classes: int, rng: np.random.Generator
) -> np.ndarray:
    """Directions that tell classes apart, among principal ones; a collective call."""
    if n_components >= n_classes:
        raise ValueError(
            f"init='lda' finds at most {n_classes - 1} components for {n_classes} "
            f"classes, but n_components={n_components}; set init='pca'"
        )
    n_features = sample.n_features
    size = min(n_features, n_components + _N_DISCRIMINATED, int(sample.n_rows) - 1)
    Q = principal_components(sample, max(size, n_components), n_features, rng).T
    between = sample.between(Q, n_classes)
    within = sample.gram(Q) - between
    ridge = _RIDGE * np.trace(within) / len(within)
    within[np.diag_indices_from(within)] += ridge if ridge > 0 else 1.0
    vectors = linalg.eigh(between, within)[1][:, ::-1]
    return with_signs((Q @ vectors[:, :n_components]).T)


def with_signs(components: np.ndarray) -> np.ndarray:
    """Of the two signs of each, that of the largest element: so on any machine."""
    largest = np.abs(components).argmax(axis=1)[:, np.newaxis]
    return components * np.sign(np.take_along_axis(components, largest, axis=1))


def first_step(
    params: MetricParams, components: np.ndarray, sample: Sample, n_groups: int
) -> float:
    """Length of the first step; a collective call.

    Steps of Adam are in units of the components, and longer where there are fewer, of
    more groups each. Those of plain descent are right for squared distances of rows
    with as large a variance.
    """
    if params.eta0 != "auto":
        return float(params.eta0)
    if params.optimizer == "adam":
        size = float(np.sqrt(np.mean(components.astype(np.float64) ** 2)))
        share = _SHARE_OF_GROUPS * float(np.sqrt(n_groups)) if n_groups > 1 else _SHARE
        return share * size
    is_diagonal = params.is_diagonal
    largest = sample.variances().max() if is_diagonal else sample.largest_variance()
    return _SHARE_OF_SGD / float(largest) if largest > 0 else 1.0
