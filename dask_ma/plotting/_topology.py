"""Drawing of an exchange between all ranks (Fig. 3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from dask_ma.comm import butterfly_depth, butterfly_partners, run_length
from dask_ma.plotting._axes import BLUE, GREY, ORANGE, load, new_axes, rank_ticks


class Step(NamedTuple):
    """Messages that can be under way at the same time.

    Attributes
    ----------
    name : str
        What the step is called.
    messages : tuple of tuple of int
        Sender and receiver of each message, sorted.
    """

    name: str
    messages: tuple[tuple[int, int], ...]


class TopologyDisplay:
    """Messages of an exchange: ranks from top to bottom, steps from left to right.

    It is recommended to use :meth:`from_group_size` to create one.

    Parameters
    ----------
    size : int
        Number of ranks.
    steps : sequence of Step
        The steps.
    driver : bool, default=False
        Whether rank 0 stands for a driver, and is to be called so.

    Attributes
    ----------
    steps : tuple of Step
        As given.
    ax_ : matplotlib.axes.Axes
        Where it is drawn.
    figure_ : matplotlib.figure.Figure
        Figure of the axes.
    lines_ : matplotlib.collections.LineCollection
        The messages.

    Examples
    --------
    >>> from dask_ma.plotting import TopologyDisplay
    >>> display = TopologyDisplay.from_group_size(8)  # doctest: +SKIP
    """

    def __init__(
        self, size: int, steps: tuple[Step, ...], *, driver: bool = False
    ) -> None:
        self.size = size
        self.steps = tuple(steps)
        self.driver = driver

    @classmethod
    def from_group_size(
        cls, size: int, pattern: str = "butterfly", *, ax: Any = None
    ) -> Self:
        """Draw who sends to whom among so many ranks, each in a process of its own.

        Parameters
        ----------
        size : int
            Number of ranks, at least 1.
        pattern : {"butterfly", "allreduce", "driver", "tree"}, default="butterfly"
            "butterfly": the steps of butterfly mixing, one of which is made between two
            updates. The others are the values of `aggregation`, ways to add up arrays.
            "allreduce": this package's allreduce of arrays that are not small. Each
            rank adds up a part, and sends it to all; a power of two of them exchanges
            halves of the array, then of halves, and back. "driver": rank 0 adds up all
            arrays and answers each rank. "tree": as "driver", but some ranks add up
            first, and the answer goes down a tree.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : TopologyDisplay

        Raises
        ------
        ValueError
            If `size` is below 1, or `pattern` is not known.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        if pattern not in _PATTERNS:
            raise ValueError(
                f"pattern must be one of {', '.join(_PATTERNS)}, got {pattern!r}"
            )
        steps = tuple(step for step in _PATTERNS[pattern](size) if step.messages)
        return cls(size, steps, driver=pattern in ("driver", "tree")).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the messages.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        self : TopologyDisplay
            Below each step stands the number of its messages, and in brackets how many
            the busiest rank sends or receives.
        """
        collections, n_steps = load("collections"), len(self.steps)
        height = 1.4 + 0.4 * min(self.size, 20)
        self.ax_ = new_axes(ax, (1.8 + 1.9 * max(n_steps, 1), height))
        self.figure_ = self.ax_.figure
        for rank in range(self.size):
            self.ax_.plot([0, n_steps], [rank, rank], color=GREY, lw=1, zorder=1)
        segments = [
            [(number, source), (number + 1, dest)]
            for number, step in enumerate(self.steps)
            for source, dest in step.messages
        ]
        self.lines_ = self.ax_.add_collection(
            collections.LineCollection(segments, colors=BLUE, lw=1.2, zorder=2)
        )
        for rank in range(self.size):
            special = self.driver and rank == 0
            self.ax_.plot(
                range(n_steps + 1),
                [rank] * (n_steps + 1),
                linestyle="",
                marker="s" if special else "o",
                color=ORANGE if special else "black",
                markersize=8 if special else 5,
                zorder=3,
            )
        self._label_axes()
        return self

    def _label_axes(self) -> None:
        """Names of the ranks and of the steps, without a frame."""
        rank_ticks(self.ax_, list(range(self.size)), driver=self.driver)
        self.ax_.set_xticks(
            [number + 0.5 for number in range(len(self.steps))],
            [_describe(step) for step in self.steps],
        )
        self.ax_.set_xlabel("messages of each step (of its busiest rank)")
        self.ax_.tick_params(length=0)
        self.ax_.spines[:].set_visible(False)
        self.ax_.set_xlim(-0.15, len(self.steps) + 0.15)


def _describe(step: Step) -> str:
    """Name of a step and its traffic."""
    busiest = max(
        sum(rank == message[end] for message in step.messages)
        for end in (0, 1)
        for rank in {message[end] for message in step.messages}
    )
    return f"{step.name}\n{len(step.messages)} ({busiest})"


def _butterfly(size: int) -> list[Step]:
    steps = []
    for number in range(butterfly_depth(size)):
        messages = [(r, butterfly_partners(r, number, size).dest) for r in range(size)]
        steps.append(Step(f"step {number}", tuple(messages)))
    return steps


def _allreduce(size: int) -> list[Step]:
    pairs = tuple((a, b) for a in range(size) for b in range(size) if a != b)
    if size == 2:  # two steps of halves would carry the same bytes
        return [Step("exchange", pairs)]
    if size & (size - 1) == 0:
        steps = [
            Step(f"1 / {2 * distance}", tuple((r, r ^ distance) for r in range(size)))
            for distance in (1 << i for i in range(size.bit_length() - 1))
        ]
        return [*steps, *reversed(steps)]
    return [Step("reduce-scatter", pairs), Step("all-gather", pairs)]


def _driver(size: int) -> list[Step]:
    return [
        Step("to driver", tuple((rank, 0) for rank in range(1, size))),
        Step("back", tuple((0, rank) for rank in range(1, size))),
    ]


def _tree(size: int) -> list[Step]:
    length = run_length(size)
    firsts = range(0, size, length)
    to_first = ((r, r - r % length) for r in range(size) if r % length)
    steps = [
        Step("up 1", tuple(to_first)),
        Step("up 2", tuple((first, 0) for first in firsts[1:])),
    ]
    reached, number = 1, 0
    while reached < size:
        messages = ((r, r + reached) for r in range(min(reached, size - reached)))
        number += 1
        steps.append(Step(f"down {number}", tuple(messages)))
        reached *= 2
    return steps


_PATTERNS: dict[str, Callable[[int], list[Step]]] = {
    "butterfly": _butterfly,
    "allreduce": _allreduce,
    "driver": _driver,
    "tree": _tree,
}
