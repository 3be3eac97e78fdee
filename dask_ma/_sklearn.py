"""Parts of scikit-learn that have no public door.

`_parameter_constraints`, with `HasMethods`, `Interval` and `StrOptions`, is how
scikit-learn's own estimators declare the ranges of their parameters and how its common
tests check them; `_fit_context` applies them. Third-party estimators use them from
these modules, since no public module has them.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

__all__ = ["HasMethods", "Interval", "StrOptions", "fit_context"]
