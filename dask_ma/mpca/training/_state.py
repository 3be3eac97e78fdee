"""States of a fit: what they are of, and several dictionaries in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_ma.engine import State
    from dask_ma.mpca.training._params import MPCAParams


def knows_end(state: State, params: MPCAParams, n_rows: int) -> bool:
    """Whether losses or scores that decide on the end are of the rows there are.

    Parameters
    ----------
    state : State
        What the fit goes on from.
    params : MPCAParams
        Parameters of the fit.
    n_rows : int
        Rows of all ranks now, of which some may have been lost.

    Returns
    -------
    knows_end : bool
    """
    # Rows for validation that the user has given are sent anew to all ranks.
    if params.early_stopping and params.validation is not None:
        return True
    return bool(state.shared["n_rows"] == n_rows)


def prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values under longer names."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def part_of(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values that :func:`prefixed` has given these names."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): value
        for name, value in values.items()
        if name.startswith(start)
    }
