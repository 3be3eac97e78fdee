"""What the ranks of a fit need to know besides their rows."""

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
    """

    is_classifier: bool
    class_weight: Any
    classes: np.ndarray | None = None
    n_targets: int | None = None

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


@dataclass(frozen=True, kw_only=True)
class LinearParams(ValidationParams):
    """Parameters that all fits of linear models by SGD share.

    The names are those of the estimators; the rest is listed here.

    Parameters
    ----------
    coef, intercept : ndarray or None
        Model to start from, of shapes (n_problems, n_features) and (n_problems,).
        None starts from zeros.
    t : float
        Number of the first step of each rank, for the learning rate.
    """

    loss: str
    penalty: str | None
    alpha: float
    l1_ratio: float
    fit_intercept: bool
    max_iter: int
    tol: float | None
    shuffle: bool | str
    epsilon: float
    n_iter_no_change: int
    coef: np.ndarray | None = field(default=None, repr=False)
    intercept: np.ndarray | None = field(default=None, repr=False)
    t: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RefineParams(LinearParams):
    """Parameters of fits that can be refined to the optimum.

    The names are those of the estimators.
    """

    refine: str | None
    refine_max_iter: int
    refine_tol: float


class LinearModel(NamedTuple):
    """Weights of one or several linear functions.

    Attributes
    ----------
    coef : ndarray of shape (n_problems, n_features)
    intercept : ndarray of shape (n_problems,)
    """

    coef: np.ndarray
    intercept: np.ndarray


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
