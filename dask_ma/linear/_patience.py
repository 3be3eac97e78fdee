"""The patience of SGD that a refinement follows, and when it hands over to that."""

from __future__ import annotations

import math
from typing import Any

PATIENCE = 5  # what scikit-learn has for `n_iter_no_change`
_ENOUGH_REFINED = 64  # rounds: twice those of most fits with default parameters


def patience_of(estimator: Any) -> dict[str, Any]:
    """The number that `n_iter_no_change` stands for, and whether it is "auto"."""
    given = estimator.n_iter_no_change
    is_hasty = given == "auto"
    return {"n_iter_no_change": PATIENCE if is_hasty else given, "is_hasty": is_hasty}


def may_hand_over(params: Any) -> bool:
    """Whether a refinement has rounds enough to begin after one pass of little gain."""
    return bool(params.is_hasty and params.refine_max_iter >= _ENOUGH_REFINED)


def gain_to_go_on(tol: float | None) -> float | None:
    """Part of the objective by which a pass must improve it for SGD to go on.

    To come within `tol` of the optimum takes SGD passes in proportion to its inverse,
    and a refinement some tens, wherever it begins: a pass that brings a tenth saves it
    a round at most, which costs half as much.
    """
    return None if tol is None else max(tol, math.cbrt(tol))
