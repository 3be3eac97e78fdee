"""Pairs of sufficient factors, and what is done with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels import gram_square, product_square

_MOST_ELEMENTS = 2**20  # of dense rows of several ranks that are put together at a time


class Factors(NamedTuple):
    """Pairs of factors; they stand for the update ``u.T @ v`` of the matrix.

    Attributes
    ----------
    u : ndarray of shape (n_pairs, n_outputs)
    v : ndarray or CSR of shape (n_pairs, n_features)
        CSC where nobody but the matrix gets it.
    """

    u: np.ndarray
    v: Any

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return len(self.u)

    @property
    def is_sparse(self) -> bool:
        """Whether `v` is sparse."""
        return bool(sparse.issparse(self.v))

    def astype(self, dtype: Any) -> Factors:
        """The same pairs in another type; not copied if they have it."""
        u = self.u.astype(dtype, copy=False)
        return Factors(u, self.v.astype(dtype, copy=False))

    def pieces(self) -> Iterator[tuple[slice, Any]]:
        """Features, and the `v` of these; here all at once."""
        yield slice(0, self.v.shape[1]), self.v

    def square(self) -> float:
        """Squared Frobenius norm of the update."""
        return product_square(*self)


class ManyFactors(Factors):
    """Pairs of several ranks whose dense rows are put together some features at a time.

    All of them may be as many numbers as the matrix. Here `v` is a list of those of
    each rank.
    """

    @property
    def is_sparse(self) -> bool:
        """Whether rows are sparse."""
        return False

    def pieces(self) -> Iterator[tuple[slice, Any]]:
        """Features, and the `v` of these, as many as are worked on at a time."""
        n_features = self.v[0].shape[1]
        size = max(1, _MOST_ELEMENTS // len(self.u))
        for start in range(0, n_features, size):
            features = slice(start, min(start + size, n_features))
            yield features, np.concatenate([v[:, features] for v in self.v])

    def square(self) -> float:
        """Squared Frobenius norm of the update."""
        if len(self.u) < self.v[0].shape[1]:
            return gram_square(self.u, (v for _, v in self.pieces()))
        return sum(product_square(self.u, v) for _, v in self.pieces())


def stack(
    parts: list[Factors], *, with_rows: bool = True, at_once: bool = True
) -> Factors:
    """All pairs of some factors, one after the other; sparse if all are.

    Parameters
    ----------
    parts : list of Factors
        At least one.
    with_rows : bool, default=True
        Whether the `v` are wanted, which may be as large as a matrix; else there is
        none of their columns.
    at_once : bool, default=True
        Whether many dense rows may not be left as they are, as :class:`ManyFactors`.

    Returns
    -------
    factors : Factors
    """
    # Ranks without rows cannot know whether the others have sparse ones.
    parts = [part for part in parts if part.n_pairs] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    u = np.concatenate([part.u for part in parts])
    if not with_rows:
        return Factors(u, np.empty((len(u), 0), u.dtype))
    if all(part.is_sparse for part in parts):
        return Factors(u, sparse.vstack([part.v for part in parts], format="csr"))
    n_elements = len(u) * parts[0].v.shape[1]
    if not at_once and n_elements > _MOST_ELEMENTS:
        if not any(part.is_sparse for part in parts):
            return ManyFactors(u, [part.v for part in parts])
    dense = [part.v.toarray() if part.is_sparse else part.v for part in parts]
    return Factors(u, np.concatenate(dense))


def checked(
    factors: Any,
    n_rows: int,
    shape: tuple[int, int],
    where: str,
    *,
    dtype: Any = None,
    cure: str = "",
) -> Factors:
    """What a function for factors has returned, or an error that says what is wrong.

    Parameters
    ----------
    factors : object
        What it has returned.
    n_rows : int
        Rows of the batch; it may return another number of pairs.
    shape : tuple of int
        Shape of the matrix.
    where : str
        Names the function, the rank and the iteration.
    dtype : dtype, default=None
        That of the matrix, to which wider factors are rounded; None leaves them.
    cure : str, default=""
        What else may help where elements are not finite.

    Returns
    -------
    factors : Factors

    Raises
    ------
    TypeError
        If it is no pair of matrices of real numbers.
    ValueError
        If the shapes do not fit, or elements are not finite once they are rounded.
    """
    n_outputs, n_features = shape
    try:
        u, v = factors
    except (TypeError, ValueError):
        raise TypeError(
            f"{where} must return a pair (u, v), got {type(factors).__name__}"
        ) from None
    if not sparse.issparse(v):
        v = np.asarray(v)
    elif v.format != "csr":
        v = v.tocsr()
    u = np.asarray(u)
    if u.ndim != 2 or u.shape[1] != n_outputs:
        raise ValueError(
            f"{where} returned u of shape {u.shape}, expected (n_pairs, {n_outputs}) "
            f"for a batch of {n_rows} rows and a matrix of shape {shape}"
        )
    if v.ndim != 2 or v.shape != (len(u), n_features):
        raise ValueError(
            f"{where} returned v of shape {v.shape}, expected ({len(u)}, {n_features}) "
            f"for u of shape {u.shape} and a matrix of shape {shape}"
        )
    u, v = (_as_floats(name, part, where) for name, part in (("u", u), ("v", v)))
    if dtype is not None:
        u, v = narrowed(u, dtype), narrowed(v, dtype)
    for name, values in (("u", u), ("v", v.data if sparse.issparse(v) else v)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{where} returned {name} with NaN or infinite elements; if the matrix "
                f"has grown without bound, lower the step size{cure}"
            )
    return Factors(u, v)


def checked_sums(sums: Any, n_pairs: int, where: str) -> np.ndarray:
    """What :meth:`~dask_ma.sfb.FactorModel.share_sums` has returned, if it may be."""
    sums = np.asarray(sums)
    if sums.ndim != 2 or len(sums) != n_pairs:
        raise ValueError(
            f"{where} returned sums of shape {sums.shape}, expected ({n_pairs}, n_sums)"
        )
    return sums


def narrowed(part: Any, dtype: Any) -> Any:
    """Rows, or factors, no wider than a matrix of a type; of 4 bytes at least."""
    widest = np.result_type(dtype, np.float32)
    is_wider = part.dtype.kind == "f" and part.dtype.itemsize > widest.itemsize
    return part.astype(widest) if is_wider else part


def as_rows(X: Any, dtype: Any) -> Any:
    """Rows to multiply a matrix of a type with, so that no wider copy of it is made."""
    X = X if sparse.issparse(X) else np.asarray(X)
    if X.dtype.kind in "iub":
        return X.astype(np.result_type(dtype, np.float32))
    return narrowed(X, dtype)


def _as_floats(name: str, part: Any, where: str) -> Any:
    """A factor as floating-point numbers: integers cannot be scaled."""
    if np.issubdtype(part.dtype, np.floating):
        return part
    if not (np.issubdtype(part.dtype, np.integer) or part.dtype == bool):
        raise TypeError(
            f"{where} returned {name} of {part.dtype}, expected real numbers"
        )
    return part.astype(np.float64)
