"""Parameters that do not go together, and the solver that they mean."""

from __future__ import annotations

import inspect
from typing import Any

# What only steps along gradients have.
_STEPS = ("eta0", "learning_rate", "power_t")


def check_combinations(estimator: Any) -> str:
    """Refuse parameters that mean nothing with the others; choose the solver.

    Parameters
    ----------
    estimator : SFBLogisticRegression
        Each of its parameters is in its range.

    Returns
    -------
    solver : {"sgd", "sdca"}

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    solver = _solver(estimator)
    if solver == "sdca":
        _check_dual(estimator)
    else:
        _check_steps(estimator)
    if _is_set(estimator, "l1_ratio") and estimator.penalty != "elasticnet":
        raise ValueError(
            "l1_ratio needs penalty='elasticnet', got "
            f"penalty={estimator.penalty!r} and l1_ratio={estimator.l1_ratio!r}"
        )
    if not estimator.relay and estimator.broadcast is None:
        raise ValueError(
            "relay=False needs broadcast: without it each rank sends to all others, "
            "and nothing is passed on; got broadcast=None"
        )
    if estimator.refine is True:
        _check_refine(estimator)
    return solver


def _solver(estimator: Any) -> str:
    """The solver that "auto" stands for."""
    if estimator.solver != "auto":
        return str(estimator.solver)
    asks_for_steps = (
        estimator.staleness > 0
        or not estimator.relay
        or estimator.compression is not None
        or estimator.wire_dtype is not None
        or any(_is_set(estimator, name) for name in _STEPS)
        or (_is_set(estimator, "n_iter_no_change") and not estimator.early_stopping)
    )
    is_dual = estimator.penalty == "l2" and estimator.alpha > 0
    return "sdca" if is_dual and not asks_for_steps else "sgd"


def _check_dual(estimator: Any) -> None:
    """Refuse what dual ascent cannot do."""
    if estimator.penalty != "l2" or estimator.alpha == 0:
        raise ValueError(
            "solver='sdca' needs penalty='l2' and alpha above 0, got "
            f"penalty={estimator.penalty!r} and alpha={estimator.alpha}; use "
            "solver='sgd'"
        )
    # The matrix must be that of the dual variables.
    for name in ("relay", "compression", "wire_dtype"):
        if _is_set(estimator, name):
            raise ValueError(
                f"solver='sdca' needs exact factors on all ranks, but {name} is "
                f"{getattr(estimator, name)!r}; leave it at its default, or use "
                "solver='sgd'"
            )
    for name in _STEPS:
        if _is_set(estimator, name):
            raise ValueError(
                f"solver='sdca' has no step size, but {name} is "
                f"{getattr(estimator, name)!r}; leave it at its default, or use "
                "solver='sgd'"
            )
    if _is_set(estimator, "n_iter_no_change") and not estimator.early_stopping:
        raise ValueError(
            "solver='sdca' ends by its duality gap: n_iter_no_change needs "
            "early_stopping=True, got early_stopping=False and n_iter_no_change="
            f"{estimator.n_iter_no_change!r}"
        )


def _check_steps(estimator: Any) -> None:
    """Refuse an exponent that no step has."""
    rate = estimator.learning_rate
    is_constant = rate in ("adaptive", "constant")
    decays = rate == "optimal" and estimator.penalty == "l2" and estimator.alpha > 0
    if _is_set(estimator, "power_t") and (is_constant or decays):
        raise ValueError(
            f"power_t={estimator.power_t!r} has no effect with learning_rate={rate!r} "
            f"and penalty={estimator.penalty!r}; use learning_rate='invscaling'"
        )


def _check_refine(estimator: Any) -> None:
    """Refuse what steps on the whole objective cannot do."""
    for name, is_wrong in (
        ("penalty", estimator.penalty == "trace"),
        ("early_stopping", estimator.early_stopping),
        ("tol", estimator.tol is None),
    ):
        if is_wrong:
            raise ValueError(
                f"refine=True does not go with {name}={getattr(estimator, name)!r}; "
                "leave refine at 'auto'"
            )


def _is_set(estimator: Any, name: str) -> bool:
    """Whether a parameter differs from its default."""
    default = inspect.signature(type(estimator)).parameters[name].default
    return bool(getattr(estimator, name) != default)
