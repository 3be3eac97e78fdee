"""Matplotlib, which is loaded when the first picture is drawn."""

from __future__ import annotations

import importlib
from typing import Any

# Of M. Okabe and K. Ito: told apart with all common kinds of colour vision.
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PINK = "#E69F00", "#D55E00", "#CC79A7"
BLACK, GREY = "#000000", "#CFCFCF"

MARKERS = "os^Dvp"


def load(module: str) -> Any:
    """A module of matplotlib.

    Parameters
    ----------
    module : str
        Name below ``matplotlib``.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401

        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install matplotlib, "
            'or pip install ".[plot]" in the sources of dask_ma'
        ) from error


def new_axes(ax: Any, size: tuple[float, float]) -> Any:
    """The axes given, or those of a new figure.

    Parameters
    ----------
    ax : matplotlib.axes.Axes or None
        Axes to draw on.
    size : tuple of float
        Width and height of a new figure in inches.
    """
    pyplot = load("pyplot")
    if ax is not None:
        return ax
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def rank_ticks(ax: Any, ranks: list[int], *, driver: bool) -> None:
    """Label the rows of ranks, the first one on top; of many, only some.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Axes with one row per rank, of height 1.
    ranks : list of int
        Number of the rank in each row.
    driver : bool
        Whether rank 0 stands for a driver.
    """
    step = -(-len(ranks) // _MOST_TICKS)
    rows = range(0, len(ranks), step)
    names = [
        "driver\n(rank 0)" if driver and ranks[row] == 0 else f"rank {ranks[row]}"
        for row in rows
    ]
    ax.set_yticks(rows, names)
    ax.set_ylim(len(ranks) - 0.5, -0.5)


_MOST_TICKS = 16
