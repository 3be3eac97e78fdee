"""Signs of a running fit: scikit-learn's callbacks, a bar, or lines.

All of them run in the client process. scikit-learn has callbacks from version 1.9 on;
the methods with an underscore that are used here are those it documents for the authors
of estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import isnan, nan
from typing import Any

from dask_ma._progress import progress_bar
from dask_ma.engine import Listener, Model, Record

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks

    N_WRAPPERS = 2  # frames of scikit-learn between the user's line and `fit`
except ImportError:  # scikit-learn before 1.9
    N_WRAPPERS = 1

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in where scikit-learn has no callbacks."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "N_WRAPPERS", "fit_listener", "with_callbacks"]


@contextmanager
def fit_listener(
    estimator: Any,
    max_rounds: Callable[[int], int | None],
    data: tuple[Any, Any, Any],
    to_attributes: Callable[[Model], dict[str, Any]],
    n_ranks: int,
) -> Iterator[Listener | None]:
    """Listener for a fit that tells the user and the user's callbacks of each round.

    Parameters
    ----------
    estimator : estimator
        The estimator that is being fitted. Its `verbose` asks for a progress bar if it
        is 1, and for a line per round if it is more, or where no bar can be drawn.
    max_rounds : callable
        Most rounds that there can be with that many ranks; None if nobody knows.
    data : tuple
        X, y and the sample weights, for callbacks that ask for them.
    to_attributes : callable
        Turns a model into the attributes of a fitted estimator.
    n_ranks : int
        Ranks of the fit when it begins.

    Yields
    ------
    listener : callable or None
        None if nobody wants to know.
    """
    most = max_rounds(n_ranks)
    callbacks = _RoundCallbacks(estimator, most, data, to_attributes)
    wanted: list[Listener] = []
    if callbacks.active:
        wanted.append(callbacks)
    with ExitStack() as stack:
        if estimator.verbose:
            wanted.append(_teller(estimator, most, stack))
        callbacks.begin()
        yield _all_of(wanted) if wanted else None
        callbacks.end()


def _teller(estimator: Any, max_rounds: int | None, stack: ExitStack) -> Listener:
    """What tells the user of each round; a bar is closed with `stack`."""
    if estimator.verbose > 1:
        return _print_record
    bar = progress_bar(
        type(estimator).__name__,
        max_rounds,
        may_end_early=estimator._may_end_early,
    )
    if bar is None:
        return _print_record
    stack.push(bar.stop)
    return bar


def _all_of(listeners: list[Listener]) -> Listener:
    """One listener that asks all; any of them can stop the fit."""

    def listen(record: Record, fetch: Callable[[], Model]) -> bool:
        return any([listener(record, fetch) for listener in listeners])

    return listen


_SHOWN = ("objective", "loss", "validation_score")


def _print_record(record: Record, fetch: Callable[[], Model]) -> bool:
    """Print a line per round, as scikit-learn's SGD does per epoch."""
    values = ", ".join(
        f"{name.replace('_', ' ')} {record[name]:.6f}"
        for name in _SHOWN
        if not isnan(record.get(name, nan))  # not evaluated in every round
    )
    values += ", " if values else ""
    # Networks have several records in an epoch, of which the last is told.
    name, number = "Round", record["round"]
    if "epoch" in record:
        name, number = "Epoch", int(record["epoch"])
    print(f"-- {name} {number}: {values}{record['time']:.2f} s")
    return False


class _RoundCallbacks:
    """scikit-learn's callbacks, told of a fit and of each of its rounds."""

    def __init__(
        self,
        estimator: Any,
        max_rounds: int | None,
        data: tuple[Any, Any, Any],
        to_attributes: Callable[[Model], dict[str, Any]],
    ) -> None:
        X, y, sample_weight = data
        self._estimator = estimator
        self._data = {"X": X, "y": y, "metadata": None}
        if sample_weight is not None:
            self._data["metadata"] = {"sample_weight": sample_weight}
        self._history: list[Record] = []
        self._rounds: list[Any] = []
        self._to_attributes = to_attributes
        self._root: Any = None
        self.active = False
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(max_subtasks=max_rounds)
            self.active = bool(getattr(estimator, "_skl_callbacks", None))

    def begin(self) -> None:
        """Tell the callbacks that the fit begins."""
        if self.active:
            self._root.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def end(self) -> None:
        """Tell the callbacks that the fit has ended."""
        if self.active:
            self._root.call_on_fit_task_end(estimator=self._estimator, **self._data)

    def _context_of(self, record: Record) -> Any:
        """That of the round; of one that is made again, after a loss, as before."""
        while self._history and self._history[-1]["round"] >= record["round"]:
            self._history.pop()
        number = len(self._history)
        if number == len(self._rounds):
            self._rounds.append(self._root.subcontext(task_name="round"))
        return self._rounds[number]

    def __call__(self, record: Record, fetch: Callable[[], Model]) -> bool:
        """Tell the callbacks of a round; whether one of them wants to stop."""
        context = self._context_of(record)
        self._history.append(record)
        # Together with its end: only then is it certain that there is such a round.
        context.call_on_fit_task_begin(estimator=self._estimator, **self._data)
        return bool(
            context.call_on_fit_task_end(
                estimator=self._estimator,
                reconstruction_attributes=lambda: {
                    **self._to_attributes(fetch()),
                    "history_": list(self._history),
                },
                **self._data,
            )
        )
