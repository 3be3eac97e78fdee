"""Objects that hold parameters of an estimator which belong together."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from sklearn.base import BaseEstimator

_Kind = TypeVar("_Kind", bound="Settings")


class Settings(BaseEstimator):
    """Base of objects that are given for one parameter of an estimator.

    As an estimator of scikit-learn has it, the constructor only stores, `get_params`,
    `set_params` and `clone` work, and a search reaches what is inside by names such as
    ``communication__staleness``. A fit checks the object along with its estimator.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    def check(self) -> None:
        """Refuse parameters that are out of their ranges.

        Raises
        ------
        ValueError
            With the name of the parameter, and of the class.
        """
        self._validate_params()


def named(value: Any, kinds: Mapping[str, type[_Kind]]) -> _Kind:
    """The object that a name stands for; an object stands for itself.

    Parameters
    ----------
    value : str or Settings
    kinds : mapping of str to type
        What each name stands for, with the defaults of its class.

    Returns
    -------
    settings : Settings
    """
    return kinds[value]() if isinstance(value, str) else value


def find_parameter(owner: Any, name: str) -> tuple[Any, inspect.Parameter] | None:
    """Value and declaration of a parameter, or of one of an object that it holds.

    Parameters
    ----------
    owner : estimator, or an object like one
    name : str
        As `set_params` knows it: "communication", or "communication__staleness".

    Returns
    -------
    found : tuple of (object, inspect.Parameter) or None
        None for what is not there, as where the object is given by its name.
    """
    outer, _, inner = name.partition("__")
    declared = inspect.signature(type(owner)).parameters
    if outer not in declared:
        return None
    value = getattr(owner, outer)
    if not inner:
        return value, declared[outer]
    return find_parameter(value, inner) if isinstance(value, BaseEstimator) else None
