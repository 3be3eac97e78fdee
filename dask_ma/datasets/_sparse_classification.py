"""Sparse classification problems that look like tf-idf text, with a known model.

Words follow the law of Zipf and Mandelbrot; rows are weighted by inverse word
frequency and have unit length. The data are made in chunks of rows. A chunk depends on
the seed, its number and its size alone, so the in-memory and the Dask version hold the
same rows, and any worker can make any chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
import numpy as np
from dask.base import tokenize
from scipy import sparse

# Mandelbrot's shift: keeps the few top words from filling every row
_ZIPF_SHIFT = 20.0


class _Spec(NamedTuple):
    """What every chunk needs to know; small, so that it travels inside each task."""

    n_features: int
    n_nonzero: int
    noise: float
    n_classes: int
    entropy: int
    dtype: np.dtype


class _Model(NamedTuple):
    """What the chunks share."""

    coef: np.ndarray  # (n_problems, n_features), the true model
    column_of_rank: np.ndarray  # the column of the k-th most frequent word
    cumulative: np.ndarray  # distribution of words by rank
    idf: np.ndarray  # weight of a word by rank


def make_sparse_classification(
    n_samples: int,
    n_features: int,
    *,
    n_nonzero: int = 50,
    noise: float = 0.05,
    n_classes: int = 2,
    random_state: int | None = None,
    dtype: Any = np.float64,
    chunk_rows: int = 50_000,
) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """A text-like sparse classification problem in memory.

    Parameters
    ----------
    n_samples, n_features : int
        Shape of `X`.
    n_nonzero : int, default=50
        Mean number of words drawn per row; a row draws between half and one and a half
        times as many. Repeated words are one non-zero, so rows hold somewhat fewer.
    noise : float, default=0.05
        Probability, in [0, 1), that a label is replaced by one of the other classes.
    n_classes : int, default=2
        Number of classes.
    random_state : int or None, default=None
        Seed; None draws a new one.
    dtype : {float32, float64}, default=float64
        Type of `X` and `coef`.
    chunk_rows : int, default=50000
        Rows that are made at a time. It is a part of the seed: another value gives
        other rows of the same distribution.

    Returns
    -------
    X : csr_matrix of shape (n_samples, n_features)
        Rows of unit Euclidean length with sorted int32 indices.
    y : ndarray of int64, shape (n_samples,)
        Labels 0 to ``n_classes - 1``.
    coef : ndarray of shape (n_problems, n_features)
        The model that gave the labels before the noise: ``X @ coef[0] > 0`` for two
        classes (``n_problems`` is 1), else the largest of the ``n_classes`` scores.

    Raises
    ------
    ValueError
        If a size, `noise` or `dtype` is out of range.

    See Also
    --------
    make_dask_sparse_classification : The same rows, made on the workers.
    """
    spec = _make_spec(n_features, n_nonzero, noise, n_classes, random_state, dtype)
    model = _make_model(spec)
    sizes = _chunk_sizes(n_samples, chunk_rows)
    chunks = [_make_chunk(spec, model, i, size) for i, size in enumerate(sizes)]
    X = sparse.vstack([X for X, _ in chunks], format="csr")
    return X, np.concatenate([y for _, y in chunks]), model.coef


def make_dask_sparse_classification(
    n_samples: int,
    n_features: int,
    *,
    n_nonzero: int = 50,
    noise: float = 0.05,
    n_classes: int = 2,
    random_state: int | None = None,
    dtype: Any = np.float64,
    chunk_rows: int = 50_000,
) -> tuple[Any, Any, Any]:
    """A text-like sparse classification problem as lazy Dask arrays.

    Every block is made by the worker that needs it; nothing is made on the client.

    Parameters
    ----------
    n_samples, n_features, n_nonzero, noise, n_classes, random_state, dtype
        As in `make_sparse_classification`.
    chunk_rows : int, default=50000
        Rows per block; the last block may be smaller.

    Returns
    -------
    X : dask.array.Array of shape (n_samples, n_features)
        Blocks are ``csr_matrix`` of all the columns.
    y : dask.array.Array of int64, shape (n_samples,)
        Labels, chunked as `X`.
    coef : dask.array.Array of shape (n_problems, n_features)
        The true model, in one block.

    Raises
    ------
    ValueError
        If a size, `noise` or `dtype` is out of range.

    See Also
    --------
    make_sparse_classification : The same rows in memory, and all the parameters.
    """
    import dask.array as da  # loads numba, which not every session needs

    spec = _make_spec(n_features, n_nonzero, noise, n_classes, random_state, dtype)
    sizes = _chunk_sizes(n_samples, chunk_rows)
    token = tokenize(spec, sizes)
    model = dask.delayed(_make_model)(spec, dask_key_name=f"sparse-model-{token}")
    make_chunk = dask.delayed(_make_chunk, nout=2, pure=True)
    X_blocks, y_blocks = [], []
    for index, size in enumerate(sizes):
        X, y = make_chunk(
            spec, model, index, size, dask_key_name=f"sparse-chunk-{token}-{index}"
        )
        meta = sparse.csr_matrix((0, 0), dtype=spec.dtype)
        X_blocks.append(da.from_delayed(X, (size, n_features), meta=meta))
        y_blocks.append(da.from_delayed(y, (size,), dtype=np.int64))
    shape = (_n_problems(n_classes), n_features)
    coef = da.from_delayed(model.coef, shape, dtype=spec.dtype)
    return da.concatenate(X_blocks), da.concatenate(y_blocks), coef


def _make_spec(
    n_features: int,
    n_nonzero: int,
    noise: float,
    n_classes: int,
    random_state: int | None,
    dtype: Any,
) -> _Spec:
    """Checked parameters, with the entropy of the seed made definite."""
    _check_at_least("n_features", n_features, 1)
    _check_at_least("n_nonzero", n_nonzero, 1)
    _check_at_least("n_classes", n_classes, 2)
    if not 0 <= noise < 1:
        raise ValueError(f"noise must lie in [0, 1), got {noise}")
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
    entropy: Any = np.random.SeedSequence(random_state).entropy
    return _Spec(n_features, n_nonzero, noise, n_classes, entropy, np.dtype(dtype))


def _chunk_sizes(n_samples: int, chunk_rows: int) -> list[int]:
    """Rows of every chunk."""
    _check_at_least("n_samples", n_samples, 1)
    _check_at_least("chunk_rows", chunk_rows, 1)
    starts = range(0, n_samples, chunk_rows)
    return [min(chunk_rows, n_samples - start) for start in starts]


def _check_at_least(name: str, value: int, low: int) -> None:
    """Refuse a count that is too small."""
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def _n_problems(n_classes: int) -> int:
    """Rows of the true model."""
    return 1 if n_classes == 2 else n_classes


def _generator(spec: _Spec, stream: int) -> np.random.Generator:
    """Stream 0 is the model's, stream ``i + 1`` that of chunk i (as `spawn` counts)."""
    seeds = np.random.SeedSequence(spec.entropy, spawn_key=(stream,))
    return np.random.default_rng(seeds)


def _make_model(spec: _Spec) -> _Model:
    """Word frequencies and the true coefficients."""
    rng = _generator(spec, 0)
    frequency = 1 / (np.arange(spec.n_features) + _ZIPF_SHIFT)
    frequency /= frequency.sum()
    # the probability that a row of mean length holds the word
    present = -np.expm1(-spec.n_nonzero * frequency)
    shape = (_n_problems(spec.n_classes), spec.n_features)
    return _Model(
        coef=rng.standard_normal(shape).astype(spec.dtype),
        column_of_rank=rng.permutation(spec.n_features).astype(np.int32),
        cumulative=np.cumsum(frequency),
        idf=1 - np.log(present),
    )


def _make_chunk(
    spec: _Spec, model: _Model, index: int, size: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Rows and noisy labels of one chunk."""
    rng = _generator(spec, index + 1)
    X = _make_rows(spec, model, size, rng)
    y = _true_labels(X, model.coef)
    flipped = rng.random(size) < spec.noise
    # a step of 1 to n_classes - 1 around the circle never leads back
    y[flipped] += rng.integers(1, spec.n_classes, flipped.sum())
    y %= spec.n_classes
    return X, y


def _make_rows(
    spec: _Spec, model: _Model, size: int, rng: np.random.Generator
) -> sparse.csr_matrix:
    """Bags of words with tf-idf weights and unit length."""
    mean = spec.n_nonzero
    lengths = rng.integers(max(1, mean // 2), mean + mean // 2, size, endpoint=True)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    draws = rng.random(indptr[-1]) * model.cumulative[-1]
    ranks = np.searchsorted(model.cumulative, draws, side="right")
    X = sparse.csr_matrix(
        (model.idf[ranks].astype(spec.dtype), model.column_of_rank[ranks], indptr),
        shape=(size, spec.n_features),
    )
    X.sum_duplicates()
    norms = np.sqrt(np.add.reduceat(X.data * X.data, X.indptr[:-1]))
    X.data /= np.repeat(norms, np.diff(X.indptr))
    return X


def _true_labels(X: sparse.csr_matrix, coef: np.ndarray) -> np.ndarray:
    """Labels by the true model."""
    scores = X @ coef.T
    if len(coef) == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return scores.argmax(axis=1)
