"""Parts of scikit-learn that have no public door.

`_parameter_constraints`, with `HasMethods`, `Interval` and `StrOptions`, is how
scikit-learn's own estimators declare the ranges of their parameters and how its common
tests check them; `_fit_context` applies them, and `validate_parameter_constraints`
those of objects that are no estimators. Third-party estimators use them from these
modules, since no public module has them.
"""

from __future__ import annotations

from typing import Any

from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)

__all__ = [
    "HasMethods",
    "Interval",
    "NamedRange",
    "StrOptions",
    "fit_context",
    "validate_parameter_constraints",
]


class NamedRange(StrOptions):
    """Names, and objects that these stand for.

    Parameters
    ----------
    named : Named
        It says which.
    """

    def __init__(self, named: Any) -> None:
        super().__init__(named.options)
        self.named = named

    def is_satisfied_by(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return bool(self.named.is_satisfied_by(value))

    def __str__(self) -> str:
        return str(self.named)
