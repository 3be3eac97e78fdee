"""Parameters of a dictionary's fit, as sent to every rank, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma._settings import Inactive, unless
from dask_ma.sfb.dictionary._codes import ALGORITHMS, SYNONYMS

MOST_OF_BATCH = 256  # rows
_LEAST_OF_BATCH, _BATCHES = 32, 20  # rows of the smallest one, batches of a pass


@dataclass(frozen=True, kw_only=True)
class DictionaryParams:
    """Parameters of the fit of a dictionary.

    The names are those of the estimator; the rest is listed here.

    Parameters
    ----------
    atoms : ndarray of shape (n_components, n_features) or None
        Atoms to begin with, of any length; None takes rows.
    statistics : tuple of ndarray or None
        What a fit before has known of batches, to go on with.
    n_seen, n_steps : int
        Rows that it has seen, and updates that it has made.
    decays : bool
        Whether steps of "sgd" shorten towards the last pass.
    """

    n_components: int
    alpha: float
    max_iter: int
    batch_size: int | str
    solver: str
    eta0: float
    fit_algorithm: str
    positive_code: bool
    positive_dict: bool
    resample_unused: bool
    shuffle: bool
    tol: float
    max_no_improvement: int | None
    communication: str
    merge_every: int | str
    staleness: int
    atoms: np.ndarray | None = field(default=None, repr=False)
    statistics: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    n_seen: int = 0
    n_steps: int = 0
    decays: bool = True

    def batch_of(self, n_rows: int) -> int:
        """Rows of a batch, where there are so many in all.

        Of few rows, large batches would be few, and atoms need some tens of updates.
        """
        if not isinstance(self.batch_size, str):
            return self.batch_size
        return min(MOST_OF_BATCH, max(_LEAST_OF_BATCH, n_rows // _BATCHES))


class DictionaryResult(NamedTuple):
    """What rank 0 returns to the client.

    Attributes
    ----------
    fitted : dict
        `components`; `statistics`, two arrays; `n_seen`, rows; `n_iter`, passes;
        `n_steps`, updates; `n_unused`, atoms without a use.
    history : list of dict
        One record per round.
    timeline : ndarray or None
        What all ranks have done when, on rank 0.
    notes : list of str
        What the user is to be told.
    """

    fitted: dict[str, Any]
    history: list[dict[str, Any]]
    timeline: np.ndarray | None
    notes: list[str]


#: What cannot act beside which others.
INACTIVE: tuple[Inactive, ...] = (
    Inactive(("eta0",), unless("solver", "sgd"), "set solver='sgd'"),
    Inactive(
        ("merge_every",),
        unless("communication", "statistics"),
        "set communication='statistics'",
    ),
    Inactive(
        ("transform_n_nonzero_coefs",),
        unless("transform_algorithm", "omp"),
        "set transform_algorithm='omp'",
    ),
    Inactive(
        ("transform_alpha",),
        unless("transform_algorithm", None, *ALGORITHMS, *SYNONYMS, "threshold"),
        "name another transform_algorithm",
    ),
    Inactive(
        ("transform_max_iter",),
        unless("transform_algorithm", None, *ALGORITHMS, *SYNONYMS),
        "name another transform_algorithm",
    ),
    Inactive(
        ("staleness",),
        unless("communication", "factors"),
        "set communication='factors'",
    ),
)


def check_atoms(atoms: np.ndarray, expected: tuple[int, int]) -> None:
    """Refuse atoms that no fit can start from."""
    if atoms.shape != expected:
        raise ValueError(
            f"dict_init has the shape {atoms.shape}, expected {expected}: "
            "(n_components, n_features)"
        )
    if not atoms.any():
        raise ValueError("dict_init has zeros alone, which make up no row; give others")
