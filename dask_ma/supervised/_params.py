"""Parameters that describe a supervised problem to the ranks, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, kw_only=True)
class ProblemParams:
    """What the ranks need to know to agree on a training problem.

    Parameters
    ----------
    is_classifier : bool
        Whether y holds labels.
    class_weight : dict, "balanced" or None
        Weights of the classes.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels; None has the ranks find them in y.
    n_targets : int or None
        Columns of y; None for a y of one dimension. Those of a classifier tell whether
        a row has each of so many labels, by 1 or 0.
    n_codes : int or None
        Columns of a classifier hold numbers of so many classes in place of 1 and 0;
        None if they do not.
    no_code : int
        What columns hold where no class counts, then.
    is_warm : bool
        Whether the model to start from is the fitted one, by `warm_start`.
    warm_classes : ndarray or None
        The labels which y must have then; None for any.
    """

    is_classifier: bool
    class_weight: Any = None
    classes: np.ndarray | None = None
    n_targets: int | None = None
    n_codes: int | None = None
    no_code: int = -100
    is_warm: bool = False
    warm_classes: np.ndarray | None = field(default=None, repr=False)

    @property
    def has_classes(self) -> bool:
        """Whether each row belongs to one of several classes."""
        return self.is_classifier and self.n_targets is None


@dataclass(frozen=True, kw_only=True)
class ValidationParams(ProblemParams):
    """What the ranks need to know to hold rows out.

    Parameters
    ----------
    early_stopping : bool
        Whether rows are held out.
    validation_fraction : float
        Part of the rows, above 0 and below 1.
    """

    early_stopping: bool
    validation_fraction: float


class FitResult(NamedTuple):
    """What rank 0 returns to the client.

    Attributes
    ----------
    fitted : dict
        `coef` of shape (n_problems, n_features) and `intercept` of shape (n_problems,),
        of the last round or averaged over rounds; `classes`, sorted labels or None;
        `n_iter`, rounds made; `t`, number of the next step, averaged over ranks.
    converged : bool
        Whether the fit ended by its own rules and not by `max_iter`.
    history : list of dict
        One record per round.
        `restarts` counts how often the ranks have had to start again until then.
    timeline : ndarray or None
        What all ranks have done when, on rank 0; None if it has not been asked for.
    notes : tuple of str
        What the user is to be warned of.
    """

    fitted: dict[str, Any]
    converged: bool
    history: list[dict[str, Any]]
    timeline: np.ndarray | None = None
    notes: tuple[str, ...] = ()
