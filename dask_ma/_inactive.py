"""Parameters that cannot act beside others, and what is said of them."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from dask_ma._settings import find_parameter, parameters_of


class Inactive(NamedTuple):
    """Parameters that nothing looks at where others have certain values.

    Attributes
    ----------
    names : tuple of str
        The parameters; those of an object as ``communication__relay``.
    reason : callable
        ``reason(estimator)`` names the parameters whose values leave these without
        effect; nothing where they act.
    cure : str
        What to change for them to act.
    """

    names: tuple[str, ...]
    reason: Callable[[Any], tuple[str, ...]]
    cure: str


def unless(name: str, *values: Any) -> Callable[[Any], tuple[str, ...]]:
    """A reason: a parameter has none of the values with which the others act.

    Parameters
    ----------
    name : str
    *values : object

    Returns
    -------
    reason : callable
        As in :class:`Inactive`.
    """
    return lambda estimator: () if getattr(estimator, name) in values else (name,)


def check_inactive(
    estimator: Any, rules: Iterable[Inactive], peer: type, *, stacklevel: int
) -> None:
    """Refuse, or warn of, parameters that were set and cannot act.

    A parameter was set if it differs from its default. A search over parameters of
    scikit-learn has to go on as it does there, over ``penalty`` and ``l1_ratio`` for
    example: combinations that can be had there, too, are worth a warning.

    Parameters
    ----------
    estimator : estimator
        Each of its parameters is in its range.
    rules : iterable of Inactive
        Those that are not among the parameters of the estimator are passed over.
    peer : type
        scikit-learn's estimator of the same model.
    stacklevel : int
        Of the warnings, for the caller of this function.

    Raises
    ------
    ValueError
        It names the parameter, those that leave it without effect, and the cure.

    Warns
    -----
    UserWarning
        The same, where the peer has all of these parameters.
    """
    known = parameters_of(peer)
    for names, find_reason, cure in rules:
        if not any(is_set(estimator, name) for name in names):
            continue
        others = find_reason(estimator)
        for name in names:
            if not others or not is_set(estimator, name):
                continue
            reasons = " and ".join(_shown(estimator, other) for other in others)
            message = (
                f"{_shown(estimator, name)} has no effect with {reasons}; {cure}, or "
                f"leave {name} at its default, {_default(estimator, name)!r}"
            )
            if not {name, *others} <= set(known):
                raise ValueError(message)
            warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


def is_set(estimator: Any, name: str) -> bool:
    """Whether a parameter differs from its default.

    Parameters
    ----------
    estimator : estimator
    name : str
        One that is not among its parameters has not been set.

    Returns
    -------
    is_set : bool
    """
    found = find_parameter(estimator, name)
    if found is None:
        return False
    value, default = found[0], found[1].default
    # Sequences may be of several types.
    is_equal = np.shape(value) == np.shape(default) and bool(
        np.all(np.asarray(value, dtype=object) == np.asarray(default, dtype=object))
    )
    return not is_equal


def _default(estimator: Any, name: str) -> Any:
    """Default of a parameter that has been found."""
    found = find_parameter(estimator, name)
    assert found is not None
    return found[1].default


def _shown(estimator: Any, name: str) -> str:
    """A parameter and its value; that of a network has many lines."""
    if (found := find_parameter(estimator, name)) is not None:
        value = found[0]
    elif "__" in name:  # one that an object has besides those it declares
        value = estimator.get_params()[name]
    else:  # what a rule looks at, and not every estimator that has the rule declares
        value = getattr(estimator, name, None)
    return f"{name}={reprlib.repr(value)}"
