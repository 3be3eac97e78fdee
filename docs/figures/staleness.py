"""Draw how stale counts of words slow Gibbs sampling down, by sweeps and by seconds.

To be run in the folder docs: python figures/staleness.py reads
measured/topic_staleness.csv and writes _static/staleness.svg.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

DOCS = Path(__file__).parents[1]
COLOURS = {1: "#111111", 4: "#7fb3dd", 8: "#3f7fb5", 16: "#1f4f7f"}
OTHERS = {4: "#f2b37d", 8: "#e0883c", 16: "#b55410"}
STYLES = {"rotation": "-", "copies, 1": "-", "copies, 4": ":"}


def read() -> dict[str, dict[tuple[str, int], list[tuple[float, float, float]]]]:
    """Sweeps, seconds and likelihoods, by corpus, way and ranks."""
    found: dict = {}
    with (DOCS / "measured" / "topic_staleness.csv").open() as file:
        for row in csv.DictReader(file):
            courses = found.setdefault(row["corpus"], {})
            course = courses.setdefault((row["way"], int(row["ranks"])), [])
            names = ("sweep", "seconds", "log_likelihood")
            course.append(tuple(float(row[name]) for name in names))
    return found


def main() -> None:
    """Two rows of panels, a column for each corpus."""
    matplotlib.rcParams["svg.fonttype"] = "path"
    matplotlib.rcParams["svg.hashsalt"] = "dask_ma"
    found = read()
    figure, axes = pyplot.subplots(
        2, len(found), figsize=(3.3 * len(found), 5.6), squeeze=False, sharey="col"
    )
    for column, (corpus, courses) in enumerate(found.items()):
        for (way, n_ranks), course in courses.items():
            colours = COLOURS if way == "rotation" else OTHERS
            name = {"rotation": "rotation", "copies, 1": "copies, each sweep"}.get(
                way, "copies, every 4 sweeps"
            )
            label = "one rank" if n_ranks == 1 else f"{name}, {n_ranks} ranks"
            sweeps, seconds, values = zip(*course, strict=True)
            for row, x in enumerate((sweeps, seconds)):
                axes[row, column].plot(
                    x, values, STYLES[way], color=colours[n_ranks], label=label
                )
        axes[0, column].set_title(corpus, fontsize=10)
        axes[0, column].set_xlabel("sweeps", fontsize=8)
        axes[1, column].set_xlabel("seconds of the slowest rank", fontsize=8)
        axes[1, column].set_xscale("log")
    for axis in axes.ravel():
        axis.tick_params(labelsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("log likelihood per token", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=7)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    path = DOCS / "_static" / "staleness.svg"
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
