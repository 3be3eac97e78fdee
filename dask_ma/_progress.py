"""A bar that shows how far a fit has come, where somebody can see it move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from math import isnan
from types import TracebackType
from typing import Any

_BAR_REFRESHES = 4  # per second


def progress_bar(
    name: str, max_rounds: int | None, *, may_end_early: bool
) -> ProgressBar | None:
    """A progress bar, if it can be drawn here.

    It can in a terminal and in a notebook, if rich is installed (the extra `progress`),
    and in the main thread: fits in other threads, and in tasks, would draw over each
    other.

    Parameters
    ----------
    name : str
        What is fitted.
    max_rounds : int or None
        Most rounds that there can be; None if that is not known.
    may_end_early : bool
        Whether there may be fewer.

    Returns
    -------
    bar : ProgressBar or None
        It has started; :meth:`ProgressBar.stop` must be called.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    if find_spec("rich") is None:
        return None
    import rich
    from rich.errors import LiveError

    console = rich.get_console()
    if not _can_draw(console):
        return None
    bar = ProgressBar(name, max_rounds, may_end_early=may_end_early, console=console)
    try:
        bar.start()
    except LiveError:  # another bar is being drawn; old versions of rich have but one
        return None
    return bar


def _can_draw(console: Any) -> bool:
    """Whether what a console draws can move."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    # The environment can have rich take a file for a terminal, for the sake of colours.
    return bool(console.file.isatty()) and not console.is_dumb_terminal


class ProgressBar:
    """Shows round, objective and time left; a listener of a fit.

    Parameters
    ----------
    name : str
        What is fitted.
    max_rounds : int or None
        Most rounds that there can be; None if that is not known.
    may_end_early : bool
        Whether there may be fewer, so that the time left is an upper bound.
    console : rich.console.Console
        Where to draw.
    """

    def __init__(
        self, name: str, max_rounds: int | None, *, may_end_early: bool, console: Any
    ) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn(
                "round {task.completed:.0f}"
                if max_rounds is None
                else "round {task.completed:.0f}/{task.total:.0f}"
            ),
            TextColumn("{task.fields[shown]}", markup=False),
            TextColumn("{task.fields[clock]}", markup=False),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            expand=True,
            refresh_per_second=_BAR_REFRESHES,
        )
        clock = "left <" if may_end_early else "left"
        self._task = self._progress.add_task(
            name, total=max_rounds, shown="", clock=clock
        )

    def start(self) -> None:
        """Begin to draw."""
        self._progress.start()

    def stop(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Draw for the last time; without an error, as a fit that is complete."""
        if kind is None:
            completed = self._progress.tasks[0].completed
            self._progress.update(self._task, total=completed, clock="took")
        self._progress.stop()

    def __call__(self, record: dict[str, Any], fetch: Callable[[], Any]) -> bool:
        """Show a record; never a reason to stop."""
        self._progress.update(self._task, completed=record["round"])
        if isnan(record["objective"]):  # not evaluated in every round
            return False
        shown = f"objective {record['objective']:.5g}"
        if "validation_score" in record:
            shown += f", score {record['validation_score']:.4f}"
        self._progress.update(self._task, shown=shown)
        return False
