"""Sparse rows that are not what most are, and some that are broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import sparse as pydata_sparse
from scipy import sparse

from bad_input._cases import Call, Case, refused, trained
from bad_input._world import ROWS, TOPICS, Box, N, P, good_rows


def csr() -> Any:
    """The good rows."""
    return sparse.csr_matrix(good_rows())


def parts(X: Any) -> tuple[Any, Any, Any]:
    """Data, indices and row pointers of the good rows."""
    return X.data.copy(), X.indices.copy(), X.indptr.copy()


def in_halves(X: Any) -> Any:
    """Each entry stored as two halves."""
    data, indices, indptr = parts(X)
    halves = np.repeat(data / 2, 2), np.repeat(indices, 2), indptr * 2
    return type(X)(halves, X.shape)


def lying_in_halves(X: Any) -> Any:
    """Entries in halves, with a flag that says that there are none."""
    X = in_halves(X)
    X.has_canonical_format = True
    return X


def backwards(X: Any) -> Any:
    """Entries of each row from the last column to the first."""
    data, indices, indptr = parts(X)
    order = np.concatenate(
        [np.arange(a, b)[::-1] for a, b in zip(indptr, indptr[1:], strict=False)]
    )
    return type(X)((data[order], indices[order], indptr), X.shape)


def lying_backwards(X: Any) -> Any:
    """Entries out of order, with a flag that says that they are in order."""
    X = backwards(X)
    X.has_sorted_indices = True
    return X


def with_index(value: int) -> Callable[[Any], Any]:
    """An entry in a column that is not there."""

    def change(X: Any) -> Any:
        X = X.copy()
        X.indices[0] = value
        return X

    return change


def long_indices(X: Any) -> Any:
    """Indices of 64 bits."""
    X = X.copy()
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def broken_pointers(X: Any) -> Any:
    """Row pointers that fall."""
    X = X.copy()
    X.indptr[3] = X.indptr[5] + 1
    return X


def short_data(X: Any) -> Any:
    """Fewer values than the row pointers say."""
    X = X.copy()
    X.data, X.indices = X.data[:-3], X.indices[:-3]
    return X


def stored_zeros(X: Any) -> Any:
    """Zeros that are stored."""
    data, indices, indptr = [], [], [0]
    for row in X.toarray():
        data += row.tolist()
        indices += range(P)
        indptr.append(len(data))
    return type(X)((data, indices, indptr), X.shape)


def as_blocks(X: Any, change: Callable[[Any], Any]) -> Any:
    """A dask.array of changed blocks."""
    blocks = [
        da.from_delayed(
            dask.delayed(change)(X[start : start + ROWS]),
            (ROWS, P),
            meta=np.empty((0, P)),
        )
        for start in range(0, N, ROWS)
    ]
    return da.concatenate(blocks)


def rows_as(change: Callable[[Any], Any]) -> Callable[[Box], Call]:
    """The good rows in another sparse form."""

    def make(box: Box) -> Call:
        X = csr()
        return Call(X=change(X) if box.kind == "csr" else as_blocks(X, change))

    return make


def value(number: float) -> Callable[[Any], Any]:
    """An entry replaced."""

    def change(X: Any) -> Any:
        X = X.copy()
        X.data[X.indptr[min(4, X.shape[0] - 1)]] = number
        return X

    return change


as_csr = rows_as(lambda X: X)
SPARSE = ("csr", "array")


def same(name: str, change: Callable[[Any], Any]) -> Case:
    """A form that is trained like CSR."""
    return Case(f"sparse: {name}", rows_as(change), trained(as_csr), containers=SPARSE)


_BROKEN = "X is not a valid sparse matrix: .*{}.*Correct it where it is built"

CASES = [
    same("duplicate entries", in_halves),
    same("duplicates behind a lying flag", lying_in_halves),
    same("unsorted indices", backwards),
    same("unsorted indices behind a lying flag", lying_backwards),
    same("stored zeros", stored_zeros),
    same("int64 indices", long_indices),
    same("csc_matrix", lambda X: X.tocsc()),
    same("coo_matrix", lambda X: X.tocoo()),
    same("coo_matrix with duplicates", lambda X: in_halves(X).tocoo()),
    same("csr_array", sparse.csr_array),
    same("coo_array", sparse.coo_array),
    same("lil_matrix", lambda X: X.tolil()),
    same("dok_matrix", lambda X: X.todok()),
    same("bsr_matrix", lambda X: X.tobsr()),
    same("dia_matrix", lambda X: X.todia()),
    same("integers", lambda X: X.astype(np.int64)),
    same("COO of sparse", pydata_sparse.COO.from_scipy_sparse),
    same("GCXS of sparse", pydata_sparse.GCXS.from_scipy_sparse),
]
REFUSED = [
    Case(
        "column beyond the last",
        rows_as(with_index(7)),
        refused(_BROKEN.format("indices must be < 3")),
    ),
    Case(
        "negative column",
        rows_as(with_index(-1)),
        refused(_BROKEN.format("indices must be >= 0")),
    ),
    Case(
        "row pointers that fall",
        rows_as(broken_pointers),
        refused(_BROKEN.format("non-decreasing|row pointers fall")),
    ),
    Case(
        "fewer values than entries",
        rows_as(short_data),
        refused(_BROKEN.format("size of index and data|beyond the stored")),
    ),
    Case(
        "NaN",
        rows_as(value(np.nan)),
        refused(
            csr="Input X contains NaN",
            array="Input X contains NaN in block 0, row 4 of the whole input",
        ),
    ),
    Case(
        "infinity",
        rows_as(value(np.inf)),
        refused(
            csr="Input X contains infinity",
            array="Input X contains infinity in block 0, row 4 of the whole input",
        ),
    ),
    Case(
        "complex",
        rows_as(lambda X: X.astype(complex)),
        refused(
            csr="Complex data not supported: X has dtype complex128, expected real",
            array="Block 0 of X has dtype complex128, expected real numbers; convert",
        ),
    ),
    Case(
        "filled with ones",
        rows_as(lambda X: pydata_sparse.COO.from_numpy(X.toarray(), fill_value=1)),
        refused("sparse block of X has fill_value 1.0, expected 0"),
    ),
]
CASES += [
    Case(f"sparse: {c.name}", c.make, c.expect, containers=SPARSE) for c in REFUSED
]
CASES.append(
    Case(
        "sparse: negative counts",
        rows_as(value(-1.0)),
        refused(
            csr="Negative values in data passed to X in (MALDA|SchMPLDA)",
            array="counts must be 0 or more, but row 4 of block 0 has -1 in column 0",
        ),
        TOPICS,
        SPARSE,
    )
)
