"""Parameters that do not go together or cannot act, and the solver they mean."""

from __future__ import annotations

from typing import Any

from dask_ma._settings import Inactive, is_set
from dask_ma.linear import HELD_OUT, L1_RATIO
from dask_ma.sfb.exchange._settings import COMMUNICATION, check_exact

# What only steps along gradients have.
_STEPS = ("eta0", "learning_rate", "power_t")
# What only passes have, of either kind.
_PASSES = ("solver", "batch_size", "shuffle")
# Share of the L1 part from which on so little is left of L2 that passes of dual ascent
# do worse than those of gradient descent.
_ABOUT_L1 = 0.99


def check_combinations(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    Parameters
    ----------
    estimator : SFBLogisticRegression
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    if chosen_solver(estimator) == "sdca":
        _check_dual(estimator)
    if estimator.refine is True:
        _check_refine(estimator)


def chosen_solver(estimator: Any) -> str:
    """The solver that "auto" stands for.

    Parameters
    ----------
    estimator : SFBLogisticRegression

    Returns
    -------
    solver : {"sgd", "sdca"}
    """
    if estimator.solver != "auto":
        return str(estimator.solver)
    exchange = COMMUNICATION.as_object(estimator.communication)
    asks_for_steps = (
        exchange.staleness > 0
        or exchange.content == "outputs"
        or not exchange.relay
        or exchange.compression is not None
        or exchange.wire_dtype is not None
        or is_set(estimator, "eta0")
        or is_set(estimator, "learning_rate")
        or (is_set(estimator, "n_iter_no_change") and not estimator.early_stopping)
    )
    is_slow = _is_about_l1(estimator)
    is_dual = _has_dual(estimator) and not is_slow and not asks_for_steps
    return "sdca" if is_dual else "sgd"


def may_open_with_steps(estimator: Any) -> bool:
    """Whether nothing asks for passes, where steps on the whole objective take less.

    Parameters
    ----------
    estimator : SFBLogisticRegression

    Returns
    -------
    may_open : bool
    """
    exchange = COMMUNICATION.as_object(estimator.communication)
    asks = any(is_set(estimator, name) for name in _PASSES)
    asks = asks or any(is_set(exchange, name) for name in exchange.get_params())
    if chosen_solver(estimator) == "sdca":
        return not asks
    # Others would have passes of gradient descent, unless the penalty is about an L1.
    names = (*_STEPS, "n_iter_no_change")
    asks = asks or any(is_set(estimator, name) for name in names)
    return not asks and estimator.alpha > 0 and _is_about_l1(estimator)


def _is_about_l1(estimator: Any) -> bool:
    """Whether next to nothing of the penalty is an L2 part."""
    is_mixed = estimator.penalty == "elasticnet" and estimator.l1_ratio >= _ABOUT_L1
    return estimator.penalty == "l1" or is_mixed


def _has_dual(estimator: Any) -> bool:
    """Whether the penalty has a part that is strongly convex, as dual ascent needs."""
    is_mixed = estimator.penalty == "elasticnet" and estimator.l1_ratio < 1
    return bool((estimator.penalty == "l2" or is_mixed) and estimator.alpha > 0)


def _check_dual(estimator: Any) -> None:
    """Refuse what dual ascent cannot do."""
    if not _has_dual(estimator):
        ratio = ""
        if estimator.penalty == "elasticnet":
            ratio = f", l1_ratio={estimator.l1_ratio}"
        raise ValueError(
            "solver='sdca' needs penalty='l2', or 'elasticnet' with l1_ratio below 1, "
            f"and alpha above 0, got penalty={estimator.penalty!r}{ratio} and "
            f"alpha={estimator.alpha}; use solver='sgd'"
        )
    # The matrix must be that of the dual variables.
    exchange = COMMUNICATION.as_object(estimator.communication)
    check_exact(exchange, "solver='sdca'", "solver='sgd'")


def _check_refine(estimator: Any) -> None:
    """Refuse what steps on the whole objective cannot do."""
    exchange = COMMUNICATION.as_object(estimator.communication)
    if exchange._goes_apart:  # there is no point at which all ranks are
        raise ValueError(
            "refine=True needs ranks with the same matrix, but communication is "
            f"{exchange!r}, with which they go apart; leave refine at 'auto', or set "
            "averaging=True"
        )
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


# Parameters that cannot act ---------------------------------------------------------


def _without_steps(estimator: Any) -> tuple[str, ...]:
    """Dual ascent has no step size; "auto" is not that where one is asked for."""
    return ("solver",) if estimator.solver == "sdca" else ()


def _without_exponent(estimator: Any) -> tuple[str, ...]:
    """Steps of other forms."""
    rate = estimator.learning_rate
    if rate in ("adaptive", "constant"):
        return ("learning_rate",)
    decays = rate == "optimal" and estimator.penalty == "l2" and estimator.alpha > 0
    return ("learning_rate", "penalty") if decays else ()


def _without_penalty(estimator: Any) -> tuple[str, ...]:
    """A weight of nothing; 0 says the same twice."""
    return ("penalty",) if estimator.penalty is None and estimator.alpha else ()


def _without_patience(estimator: Any) -> tuple[str, ...]:
    """Fits that end by their duality gap, or by `max_iter`."""
    if estimator.early_stopping:
        return ("tol",) if estimator.tol is None else ()
    if chosen_solver(estimator) == "sdca":
        return ("solver", "early_stopping")
    if estimator.learning_rate == "adaptive":  # shortens its steps by it
        return ()
    if estimator.tol is None:
        return ("learning_rate", "tol")
    is_penalised = estimator.penalty is not None and estimator.alpha > 0
    if is_penalised and (estimator.refine or estimator.penalty == "trace"):
        return ("learning_rate", "penalty", "refine")
    return ()


def _without_peers(estimator: Any) -> tuple[str, ...]:
    """Each rank sends to all others, and nothing is passed on."""
    is_whole = COMMUNICATION.as_object(estimator.communication).broadcast is None
    return ("communication__broadcast",) if is_whole else ()


def _in_step(estimator: Any) -> tuple[str, ...]:
    """Ranks have the same matrix all the time."""
    names = ("communication__staleness", "communication__broadcast")
    is_in_step = COMMUNICATION.as_object(estimator.communication)._is_in_step
    return names if is_in_step else ()


INACTIVE = (
    Inactive(_STEPS, _without_steps, "set solver='sgd'"),
    Inactive(("power_t",), _without_exponent, "set learning_rate='invscaling'"),
    L1_RATIO,
    Inactive(("alpha",), _without_penalty, "set penalty"),
    HELD_OUT,
    Inactive(
        ("n_iter_no_change",), _without_patience, "set early_stopping=True and tol"
    ),
    Inactive(
        ("communication__relay",),
        _without_peers,
        "say in broadcast to whom ranks send",
    ),
    Inactive(
        ("communication__averaging",),
        _in_step,
        "set staleness or broadcast, with which matrices of ranks differ",
    ),
)
