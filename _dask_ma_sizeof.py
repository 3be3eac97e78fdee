"""Sizes of SciPy sparse arrays for Dask, which sees 56 bytes in a ``csr_array``.

Named by an entry point of the group ``dask.sizeof``, so every process that imports Dask
loads this module, in the middle of Dask's own start. For that reason it stands outside
the package: importing ``dask_ma`` then would fail, and ``import dask`` with it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["register"]


def register(sizeof: Any) -> None:
    """Teach Dask's ``sizeof`` all formats of SciPy's sparse arrays and matrices.

    Parameters
    ----------
    sizeof : dask.utils.Dispatch
        The dispatcher; SciPy is imported when it first meets an object of SciPy's.
    """

    @sizeof.register_lazy("scipy")
    def register_scipy() -> None:
        from scipy import sparse

        def size_of_sparse(array: Any) -> int:
            """Bytes of a sparse array or matrix."""
            parts = sum(sizeof(part) for part in vars(array).values())
            return sys.getsizeof(array) + int(parts) + _listed(array)

        sizeof.register(sparse.sparray)(size_of_sparse)
        sizeof.register(sparse.spmatrix)(size_of_sparse)


def _listed(array: Any) -> int:
    """Bytes behind the lists of the LIL format, which an object array hides."""
    if array.format != "lil":
        return 0
    lists = [*array.rows, *array.data]
    # 8 bytes of the reference and 32 of the number that it points to.
    return sum(map(sys.getsizeof, lists)) + 32 * sum(map(len, lists))
