"""Who sends to whom: what is drawn against what is really sent."""

import numpy as np
import pytest

from dask_ma.comm import (
    ButterflyAverage,
    allreduce,
    broadcast,
    broadcast_direct,
    butterfly_depth,
    reduce,
)
from dask_ma.plotting import TopologyDisplay

SIZES = [1, 2, 3, 4, 5, 8, 13]
PATTERNS = ["butterfly", "allreduce", "driver", "tree"]


def run_pattern(group, pattern):
    """Carry out the exchange."""
    own = np.ones(5000)
    if pattern == "butterfly":
        for step in range(butterfly_depth(group.size)):
            ButterflyAverage(group, own, step).finish()
    elif pattern == "allreduce":
        allreduce(group, own)
    elif pattern == "driver":
        broadcast_direct(group, reduce(group, own, algorithm="direct"))
    else:
        broadcast(group, reduce(group, own, algorithm="tree"))
    spans = group.trace.spans()
    large = (spans["kind"] == "send") & (spans["nbytes"] > 0)
    return spans["peer"][large].tolist()


@pytest.mark.each(2)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES)
def test_messages_are_those_that_are_sent(run_ranks, configured, pattern, size):
    """Of arrays so large that an allreduce is made in parts."""
    with configured({"dask-ma.comm.message-overhead": 0}):
        sent = run_ranks(lambda group: run_pattern(group, pattern), size, 1)
    steps = TopologyDisplay.from_group_size(size, pattern).steps
    drawn = [message for step in steps for message in step.messages]
    real = [(source, dest) for source, peers in enumerate(sent) for dest in peers]
    assert sorted(drawn) == sorted(real)


@pytest.mark.each(2)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_hears_of_all(pattern, size):
    known = [{rank} for rank in range(size)]
    for step in TopologyDisplay.from_group_size(size, pattern).steps:
        before = [set(ranks) for ranks in known]
        for source, dest in step.messages:
            known[dest] |= before[source]
    assert all(ranks == set(range(size)) for ranks in known)


def test_picture():
    display = TopologyDisplay.from_group_size(8)
    assert len(display.steps) == 3
    segments = display.lines_.get_segments()
    assert len(segments) == 24
    drawn = {(tuple(start), tuple(stop)) for start, stop in segments}
    assert {((1.0, 0.0), (2.0, 2.0)), ((1.0, 2.0), (2.0, 0.0))} <= drawn
    ticks = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert ticks == ["step 0\n8 (1)", "step 1\n8 (1)", "step 2\n8 (1)"]
    assert display.ax_.get_xlabel() == "messages of each step (of its busiest rank)"
    rows = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert rows == [f"rank {rank}" for rank in range(8)]
    assert len(display.ax_.lines) == 16  # a row and its points for each rank


def test_driver_is_named():
    display = TopologyDisplay.from_group_size(5, "driver")
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels[0] == "driver\n(rank 0)"
    ticks = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert ticks == ["to driver\n4 (4)", "back\n4 (4)"]


def test_on_given_axes(pyplot):
    figure, ax = pyplot.subplots()
    display = TopologyDisplay.from_group_size(4, "tree", ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert display.plot(ax) is display


def test_bad_input():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        TopologyDisplay.from_group_size(0)
    with pytest.raises(ValueError, match="one of butterfly, .*, got 'star'"):
        TopologyDisplay.from_group_size(4, "star")
