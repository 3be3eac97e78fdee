"""Ranges of parameters, for classes that ranks load.

scikit-learn has them as well, but takes a second of the processor and 140 MB to load,
which a worker whose rank has no estimator is spared: these become scikit-learn's where
they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Interval", "StrOptions", "check_ranges"]


@dataclass(frozen=True)
class Interval:
    """Numbers between two others.

    Parameters
    ----------
    type : type
        ``numbers.Integral`` or ``numbers.Real``.
    left, right : number or None
        The bounds; None where there is none.
    closed : {"left", "right", "both", "neither"}
        Which of them belong to it.
    """

    type: type
    left: float | None
    right: float | None
    closed: str

    def to_sklearn(self) -> Any:
        """The same as scikit-learn has it."""
        from dask_ma import _sklearn

        return _sklearn.Interval(self.type, self.left, self.right, closed=self.closed)


@dataclass(frozen=True)
class StrOptions:
    """Some words.

    Parameters
    ----------
    options : iterable of str
    """

    options: Iterable[str]

    def to_sklearn(self) -> Any:
        """The same as scikit-learn has it."""
        from dask_ma import _sklearn

        return _sklearn.StrOptions(set(self.options))


def check_ranges(
    constraints: Mapping[str, Any], params: Mapping[str, Any], owner: str
) -> None:
    """Refuse parameters that are out of their ranges.

    Parameters
    ----------
    constraints : mapping of str to list
        Ranges of each, those from here or as scikit-learn has them.
    params : mapping of str to object
        The values.
    owner : str
        Name of the class, for errors.

    Raises
    ------
    ValueError
        With the name of the parameter, and of the class.
    """
    from dask_ma import _sklearn

    known = {name: _as_sklearn(given) for name, given in constraints.items()}
    _sklearn.validate_parameter_constraints(known, params, caller_name=owner)


def _as_sklearn(constraints: Any) -> Any:
    """Ranges of one parameter as scikit-learn has them."""
    if isinstance(constraints, str):  # "no_validation"
        return constraints
    return [
        each.to_sklearn() if isinstance(each, Interval | StrOptions) else each
        for each in constraints
    ]
