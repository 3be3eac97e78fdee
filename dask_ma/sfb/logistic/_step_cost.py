"""The cost of products with all rows, and of second derivatives of all pairs.

By counts: nothing is timed, so that a seed gives one result.
"""

from __future__ import annotations

# Rows that second derivatives are found from, at least, and for each variable.
_FEWEST_ROWS, _ROWS_PER_VARIABLE = 10**4, 50
# Of a product with all rows and back: seconds for an element, and each of its outputs.
_SPARSE_PRODUCT, _DENSE_PRODUCT = (5e-9, 4.5e-9), (2e-9, 4e-10)
# Of second derivatives: for a row and a variable of theirs, and for a pair of elements
# of a sparse row; operations a second, of products of matrices.
_PICKED, _PAIR, _FLOPS = 1e-8, 1.5e-8, 2e10


def rows_of_hessian(n_variables: int, n_rows: int) -> int:
    """From how many rows, about, second derivatives of all pairs are found.

    Parameters
    ----------
    n_variables : int
    n_rows : int
        Of all ranks.

    Returns
    -------
    n_rows : int
    """
    return min(n_rows, max(_FEWEST_ROWS, _ROWS_PER_VARIABLE * n_variables))


def product_seconds(
    n_rows: float, n_entries: float, n_outputs: int, *, is_sparse: bool
) -> float:
    """Seconds of a product with all rows of a rank, and back.

    Parameters
    ----------
    n_rows : float
        Of the rank.
    n_entries : float
        Elements of a row that are not zero.
    n_outputs : int
    is_sparse : bool
        Whether rows are.

    Returns
    -------
    seconds : float
    """
    of_entry, of_output = _SPARSE_PRODUCT if is_sparse else _DENSE_PRODUCT
    return n_rows * n_entries * (of_entry + of_output * n_outputs)


def hessian_seconds(
    n_rows: float, n_entries: float, shape: tuple[int, int], *, is_sparse: bool
) -> float:
    """Seconds of second derivatives of all pairs, and of a step by them.

    Parameters
    ----------
    n_rows, n_entries, is_sparse
        As in :func:`product_seconds`; of as many rows as they are found from.
    shape : tuple of int
        Outputs and features.

    Returns
    -------
    seconds : float
    """
    n_outputs, n_features = shape
    n_variables = n_outputs * n_features
    # Of several outputs there are products within each besides.
    n_products = 1 + (n_outputs > 1) / n_outputs
    # Products of columns with each other are symmetric: one half is enough.
    each = n_products * n_variables**2 / _FLOPS + _PICKED * n_variables
    if is_sparse:
        each = min(each, n_products * _PAIR * (n_outputs * n_entries) ** 2)
    return n_rows * each + n_variables**3 / _FLOPS
