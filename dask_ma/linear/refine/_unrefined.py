"""Whether a refinement follows SGD."""

from __future__ import annotations

from typing import Any


def unrefined_by(params: Any, **leaves_alone: bool) -> tuple[str, ...]:
    """Parameters because of which no refinement follows; none if one does.

    "auto" leaves alone what does not aim at the optimum of the training objective: a
    number of rounds that is asked for, and early stopping.

    Parameters
    ----------
    params : RefineParams or estimator
        They have the same names.
    **leaves_alone : bool
        Whether it leaves alone what other parameters are set to, by their names.

    Returns
    -------
    names : tuple of str
    """
    if params.refine != "auto":
        return ("refine",) if params.refine is None else ()
    leaves_alone = {
        "tol": params.tol is None,
        "early_stopping": params.early_stopping,
        **leaves_alone,
    }
    reasons = [name for name, holds in leaves_alone.items() if holds]
    return ("refine", *reasons) if reasons else ()
