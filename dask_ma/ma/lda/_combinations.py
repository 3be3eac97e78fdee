"""Parameters of a topic model that do not go together, and such as cannot act."""

from __future__ import annotations

from typing import Any

from dask_ma._inactive import Inactive, unless
from dask_ma.ma._paradigm import by_gradients, is_gradient


def check_combinations(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    Parameters
    ----------
    estimator : MALDA
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    if estimator.mixing != "butterfly":
        return
    if estimator.learning_method == "batch" or is_gradient(estimator.paradigm):
        raise ValueError(
            "mixing='butterfly' mixes topics that each rank updates for itself; it "
            "needs learning_method='online' or 'auto', and paradigm='model', got "
            f"learning_method={estimator.learning_method!r} and "
            f"paradigm={estimator.paradigm!r}"
        )


def _without_evaluation(estimator: Any) -> tuple[str, ...]:
    """The perplexity is known after the last pass alone."""
    return ("evaluate_every",) if estimator.evaluate_every <= 0 else ()


def _without_gradients(estimator: Any) -> tuple[str, ...]:
    """All documents make one update; who adds up what they show is open."""
    is_asked = is_gradient(estimator.paradigm)
    is_batch = estimator.learning_method == "batch"
    return ("learning_method",) if is_asked and is_batch else ()


#: Those of `partial_fit`, which is "online" whatever `learning_method` is.
INACTIVE_ONLINE = (
    Inactive(("local_batch_size",), by_gradients, "set batch_size"),
    Inactive(
        ("paradigm__batch_fraction",),
        lambda estimator: ("batch_size",),
        "which says how many documents a round looks at",
    ),
    Inactive(
        ("paradigm__evaluate_every",),
        lambda estimator: ("evaluate_every",),
        "which says after how many passes topics are evaluated",
    ),
    Inactive(("perp_tol",), _without_evaluation, "set evaluate_every above 0"),
)
INACTIVE = (
    Inactive(
        (
            "batch_size",
            "learning_decay",
            "learning_offset",
            "local_batch_size",
        ),
        unless("learning_method", "online", "auto"),
        "set learning_method='online' or 'auto'",
    ),
    Inactive(
        ("paradigm",),
        _without_gradients,
        "set learning_method='online' or 'auto'",
    ),
    *INACTIVE_ONLINE,
)
