"""Draw the picture of the start page: who talks to whom in a fit.

To be run in the folder docs: python figures/exchange.py writes _static/exchange.svg.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

BLUE, GREY, ORANGE = "#1f5f99", "#8a8a8a", "#d1711c"
WORKERS = {"x": (0.5, 2.9, 5.3, 7.7), "width": 1.7, "height": 1.25}


def box(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str, text: str
) -> None:
    """A rounded box with a text."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colour,
            edgecolor="none",
        )
    )
    axes.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        color="white",
        fontsize=9.5,
        linespacing=1.4,
    )


def arrow(
    axes: Axes, start: tuple, stop: tuple, colour: str, style: str, bend: float
) -> None:
    """An arrow between two points."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            stop,
            arrowstyle=style,
            connectionstyle=f"arc3,rad={bend}",
            mutation_scale=11,
            linewidth=1.6,
            color=colour,
            shrinkA=2,
            shrinkB=2,
        )
    )


def draw(path: Path) -> None:
    """Client above, workers below; models go from worker to worker."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.3))
    axes.set(xlim=(0, 9.9), ylim=(0, 4.55), aspect="equal")
    axes.axis("off")
    box(axes, 3.45, 3.65, 3.0, 0.75, GREY, "your process: fit(X, y)")
    width, height = WORKERS["width"], WORKERS["height"]
    tops = [(x + width / 2, 0.95 + height) for x in WORKERS["x"]]
    for number, (x, top) in enumerate(zip(WORKERS["x"], tops, strict=True)):
        box(axes, x, 0.95, width, height, BLUE, f"rank {number}\nits rows\nits model")
        arrow(axes, (4.95, 3.6), top, GREY, "-|>", 0.0)
    for left, right in zip(tops, tops[1:], strict=False):
        middle = 0.95 + height / 2
        arrow(
            axes,
            (left[0] + width / 2, middle),
            (right[0] - width / 2, middle),
            ORANGE,
            "<|-|>",
            0.0,
        )
    for first, second, bend in ((0, 2, 0.2), (1, 3, 0.2), (0, 3, 0.23)):
        arrow(
            axes,
            (tops[first][0], 0.95),
            (tops[second][0], 0.95),
            ORANGE,
            "<|-|>",
            bend,
        )
    axes.text(
        1.45,
        3.1,
        "once: one task per rank,\nand back the fitted model",
        color=GREY,
        fontsize=9,
        ha="center",
        va="center",
    )
    axes.text(
        8.35,
        3.1,
        "every round: models, gradients\nor factors, worker to worker",
        color=ORANGE,
        fontsize=9,
        ha="center",
        va="center",
    )
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    matplotlib.rcParams["svg.fonttype"] = "path"
    matplotlib.rcParams["svg.hashsalt"] = "dask_ma"
    draw(Path(__file__).parent.parent / "_static" / "exchange.svg")
