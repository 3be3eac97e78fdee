"""Partial fits of a metric learner: what they go on from."""

from __future__ import annotations

from typing import Any


def partial_changes(estimator: Any) -> dict[str, Any]:
    """Parameters of the one pass of a partial fit, where they differ.

    Parameters
    ----------
    estimator : SFBMetricLearner

    Returns
    -------
    changes : dict

    Raises
    ------
    ValueError
        For early stopping, which compares passes.
    """
    if estimator.early_stopping:
        raise ValueError(
            "early_stopping cannot be used with partial_fit, which makes one pass; "
            "set early_stopping=False"
        )
    changes: dict[str, Any] = {"is_partial": True, "max_iter": 1, "tol": None}
    if not hasattr(estimator, "components_"):
        return changes
    return changes | {
        "start": estimator.components_,
        "eta0": estimator.eta0_,
        "iteration": estimator.n_steps_,
        "n_passes": estimator.n_iter_,
        "steps": getattr(estimator, "_steps", None),
    }
