"""Places of numbers in lists of them."""

from __future__ import annotations

import numpy as np


def wide(rows: np.ndarray) -> np.ndarray:
    """Numbers of rows in the type that elements are set by in half of the time.

    Parameters
    ----------
    rows : ndarray of int, shape (n,)

    Returns
    -------
    rows : ndarray of intp, shape (n,)
    """
    return rows.astype(np.intp, copy=False)


class RowPlaces:
    """Finds numbers of rows in lists of them, in time that follows the lists.

    Parameters
    ----------
    n_rows : int
        Rows that there are.
    """

    def __init__(self, n_rows: int) -> None:
        self._places = np.zeros(n_rows, dtype=np.int32)

    def distinct(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a list, each once, in an order that the list decides.

        Parameters
        ----------
        rows : ndarray of int, shape (n,)
            Numbers of rows.

        Returns
        -------
        rows : ndarray of int, shape (n_distinct,)
        """
        places = np.arange(len(rows), dtype=np.int32)
        self._places[wide(rows)] = places
        return rows[self._places.take(rows) == places]

    def named(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a list, each once as in :meth:`distinct`, and places of all there.

        Parameters
        ----------
        rows : ndarray of int, shape (n,)
            Numbers of rows.

        Returns
        -------
        distinct : ndarray of int, shape (n_distinct,)
        places : ndarray of int32, shape (n,)
            ``distinct[places]`` is the list.
        """
        # What is far away is looked at twice here, and four times by two calls.
        places = np.arange(len(rows), dtype=np.int32)
        self._places[wide(rows)] = places
        last = self._places.take(rows)
        is_last = last == places
        numbers = np.cumsum(is_last, dtype=np.int32)
        numbers -= 1
        return rows[is_last], numbers.take(last)
