"""Parameters of butterfly mixing: those of a fit, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma._settings import Inactive
from dask_ma.linear import (
    EPSILON,
    HELD_OUT,
    RefineParams,
    check_loss,
    has_optimum,
    may_hand_over,
)
from dask_ma.linear.refine import unrefined_by as _unrefined_by


class Moments(NamedTuple):
    """What the preconditioner is made from.

    Attributes
    ----------
    sums : ndarray of shape (2, n_features) or (3, n_features)
        Weight of the rows in which a feature is not zero, weighted sum of its squares,
        and of itself where rows are dense, over all ranks.
    total : float
        Weight of all rows.
    """

    sums: np.ndarray
    total: float


@dataclass(frozen=True, kw_only=True)
class ButterflyParams(RefineParams):
    """Parameters of one fit by butterfly mixing.

    The names are those of :class:`~dask_ma.ButterflySGDClassifier`; the rest is listed
    here.

    Parameters
    ----------
    moments : Moments or None
        Those of the rows of calls before this one, which count, too.
    limits_steps : bool
        Whether steps begin no longer than the curvature of the loss on a batch allows.
    """

    batch_size: int | str
    shuffle: bool
    mixing: str
    mixing_period: int | str
    learning_rate: str
    eta0: float
    preconditioner: str | None
    average: bool | int
    moments: Moments | None = field(default=None, repr=False)
    limits_steps: bool = False

    @property
    def takes_back(self) -> bool:
        """Whether a pass that has made the model worse is taken back."""
        return self.learning_rate == "adaptive" and self.mixing != "none"

    @property
    def hands_over(self) -> bool:
        """Whether a quick refinement would begin after a pass that brings little.

        Rounds of Newton's method are few wherever it begins. L-BFGS, which "auto" takes
        for many features and for kinks, has been left with more than it could do by it,
        but where rows are sparse or there are many classes.
        """
        return may_hand_over(self) and is_refined(self) and self.takes_back


def check_combinations(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    Parameters
    ----------
    estimator : ButterflySGDClassifier or ButterflySGDRegressor
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    check_loss(estimator)
    if estimator.batch_size == "timed" and estimator.mixing == "none":
        raise ValueError(
            "batch_size='timed' weighs steps against exchanges, and mixing='none' "
            "has no exchanges; use batch_size='auto' or a number"
        )
    if estimator.early_stopping and estimator.refine not in ("auto", None):
        raise ValueError(
            f"early_stopping must be False with refine={estimator.refine!r}, which "
            "goes on to the optimum of the objective; got early_stopping=True"
        )


def unrefined_by(params: Any) -> tuple[str, ...]:
    """Parameters because of which no refinement follows the passes; none if one does.

    Ranks that do not mix are there to compare with.
    """
    return _unrefined_by(
        params, mixing=params.mixing == "none", loss=not has_optimum(params.loss)
    )


def is_refined(params: Any) -> bool:
    """Whether the passes are followed by a refinement."""
    return not unrefined_by(params)


def _without_patience(estimator: Any) -> tuple[str, ...]:
    """No pass is too many where all are made, unless they are in vain."""
    if estimator.tol is not None:
        return ()
    takes_back = estimator.learning_rate == "adaptive" and estimator.mixing != "none"
    return ("tol",) if unrefined_by(estimator) or takes_back else ()


def _unmixed(estimator: Any) -> tuple[str, ...]:
    """Where nothing is mixed, no step is followed by an exchange."""
    return ("mixing",) if estimator.mixing == "none" else ()


INACTIVE = (
    EPSILON,
    HELD_OUT,
    Inactive(("mixing_period",), _unmixed, "set mixing='butterfly'"),
    Inactive(("n_iter_no_change",), _without_patience, "set tol to a number"),
    Inactive(
        ("refine_max_iter", "refine_tol"),
        unrefined_by,
        "set refine='newton' or refine='lbfgs'",
    ),
)
