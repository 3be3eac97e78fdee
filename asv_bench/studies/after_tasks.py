"""A callback of scikit-learn's kind that calls a function as a fit goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AfterTasks:
    """Calls a function at the end of each task of a fit: a round, and the fit itself.

    Parameters
    ----------
    function : callable
        ``function(fitted)`` gets the estimator as it is then, None where there is none.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing is to be done."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing is to be done."""

    def on_fit_task_begin(self, estimator: Any, context: Any, **others: Any) -> None:
        """Nothing is to be done."""

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, fitted_estimator: Any = None, **_: Any
    ) -> bool:
        """Call the function."""
        self._function(fitted_estimator)
        return False
