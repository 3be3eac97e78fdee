"""The Gantt chart of a fit."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dask_ma import MASGDClassifier
from dask_ma.comm import TIMELINE_DTYPE
from dask_ma.plotting import GanttDisplay


def fitted_with(timeline, ends):
    """An estimator with a timeline and a history."""
    model = MASGDClassifier()
    model.timeline_ = timeline
    model.history_ = [{"time": end} for end in ends]
    return model


@pytest.fixture
def timeline():
    """Three ranks, of which the last one waits."""
    spans = [
        (0, "compute", 0.0, 2.0),
        (1, "compute", 0.5, 1.0),
        (2, "wait", 0.5, 3.0),
        (1, "send", 1.0, 1.5),
        (0, "wait", 2.0, 2.5),
    ]
    result = np.zeros(len(spans), dtype=TIMELINE_DTYPE)
    for name, values in zip(
        ("rank", "kind", "start", "stop"), zip(*spans, strict=True), strict=True
    ):
        result[name] = values
    return result


def corners(display, kind):
    """Left, right and row of the bars of a kind."""
    found = []
    for path in display.bars_[kind].get_paths():
        low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
        assert high[1] - low[1] == pytest.approx(0.8)
        found.append((low[0], high[0], (low[1] + high[1]) / 2))
    return found


def tick_labels(display):
    return [label.get_text() for label in display.ax_.get_yticklabels()]


def legend_labels(display):
    return [text.get_text() for text in display.legend_.get_texts()]


def test_one_bar_for_each_span(timeline):
    display = GanttDisplay.from_timeline(timeline)
    assert corners(display, "compute") == [(0.0, 2.0, 0), (0.5, 1.0, 1)]
    assert corners(display, "wait") == [(0.5, 3.0, 2), (2.0, 2.5, 0)]
    assert corners(display, "send") == [(1.0, 1.5, 1)]
    assert len(display.ax_.collections) == 3
    assert display.ax_.get_xlim() == (0.0, 3.0)
    assert display.ax_.get_xlabel() == "time since the start of the fit (s)"
    assert tick_labels(display) == ["rank 0", "rank 1", "rank 2"]
    low, high = display.ax_.get_ylim()
    assert low > high  # rank 0 is on top
    assert legend_labels(display) == ["compute", "send", "wait"]
    assert display.figure_ is display.ax_.figure


def test_kinds_have_colours_of_their_own(timeline):
    display = GanttDisplay.from_timeline(timeline)
    colours = {tuple(bars.get_facecolor()[0]) for bars in display.bars_.values()}
    assert len(colours) == 3


def test_exchanges_lie_as_thin_bars_over_the_others(timeline):
    beside = np.zeros(2, dtype=TIMELINE_DTYPE)
    beside["rank"], beside["kind"] = [0, 1], "exchange"
    beside["start"], beside["stop"] = [0.5, 0.6], [1.5, 2.6]
    both = np.concatenate([timeline, beside])
    display = GanttDisplay.from_timeline(both[np.argsort(both["start"])])
    assert corners(display, "compute") == [(0.0, 2.0, 0), (0.5, 1.0, 1)]
    bars = display.bars_["exchange"]
    boxes = [path.vertices for path in bars.get_paths()]
    assert [box[:, 0].min() for box in boxes] == [0.5, 0.6]
    assert [box[:, 0].max() for box in boxes] == [1.5, 2.6]
    for row, box in enumerate(boxes):  # the lower quarter; rows go downwards
        np.testing.assert_allclose(box[:, 1].min(), row + 0.2)
        np.testing.assert_allclose(box[:, 1].max(), row + 0.4)
    assert legend_labels(display) == ["compute", "send", "wait", "exchange"]
    drawn = list(display.ax_.collections)
    assert drawn.index(bars) > max(
        drawn.index(other)
        for kind, other in display.bars_.items()
        if kind != "exchange"
    )
    orders = [other.get_zorder() for other in display.bars_.values()]
    assert bars.get_zorder() == max(orders)
    colours = {tuple(other.get_facecolor()[0]) for other in display.bars_.values()}
    assert len(colours) == 4


def test_some_ranks_in_an_order_of_one_s_own(timeline):
    display = GanttDisplay.from_timeline(timeline, ranks=[2, 0])
    assert display.ranks == [2, 0]
    assert tick_labels(display) == ["rank 2", "rank 0"]
    assert corners(display, "wait") == [(0.5, 3.0, 0), (2.0, 2.5, 1)]
    assert "send" not in display.bars_
    assert set(display.timeline["rank"]) == {0, 2}


def test_part_of_the_time(timeline):
    display = GanttDisplay.from_timeline(timeline, time_range=(1.2, 1.9))
    assert display.ax_.get_xlim() == (1.2, 1.9)
    assert display.timeline["kind"].tolist() == ["compute", "wait", "send"]


def test_of_an_estimator(fitted):
    model = fitted["allreduce"]
    display = GanttDisplay.from_estimator(model)
    np.testing.assert_array_equal(display.timeline, model.timeline_)
    assert set(display.bars_) == set(model.timeline_["kind"])
    n_bars = sum(len(bars.get_paths()) for bars in display.bars_.values())
    assert n_bars == len(model.timeline_)
    assert tick_labels(display) == ["rank 0", "rank 1", "rank 2"]
    with_driver = GanttDisplay.from_estimator(fitted["driver"])
    assert tick_labels(with_driver) == ["driver\n(rank 0)", "rank 1", "rank 2"]


def test_ends_of_rounds(timeline):
    model = fitted_with(timeline, [1.0, 2.75])
    display = GanttDisplay.from_estimator(model)
    assert [line.get_xdata()[0] for line in display.ax_.lines] == [1.0, 2.75]
    assert legend_labels(display)[-1] == "end of round"
    assert not GanttDisplay.from_estimator(model, rounds=False).ax_.lines
    part = GanttDisplay.from_estimator(model, time_range=(0.5, 2.0))
    assert len(part.ax_.lines) == 1


def test_rounds_that_lie_too_close_together(timeline):
    model = fitted_with(timeline, np.arange(1000) / 500)
    display = GanttDisplay.from_estimator(model)
    assert not display.ax_.lines
    assert "end of round" not in legend_labels(display)


def test_on_given_axes_without_a_legend(timeline, pyplot):
    figure, ax = pyplot.subplots()
    display = GanttDisplay.from_timeline(timeline, ax=ax, legend=False)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert display.legend_ is None
    assert ax.get_legend() is None


def test_again_on_other_axes(timeline, pyplot):
    display = GanttDisplay.from_timeline(timeline)
    _, ax = pyplot.subplots()
    assert display.plot(ax) is display
    assert len(ax.collections) == 3


def test_many_ranks_have_few_labels(timeline):
    many = np.repeat(timeline[:1], 100)
    many["rank"] = np.arange(100)
    display = GanttDisplay.from_timeline(many)
    assert len(tick_labels(display)) <= 16
    assert len(display.ax_.collections) == 1


def test_nothing_to_show(binary, configured):
    with configured({"dask-ma.trace.max-spans": 0}):
        model = MASGDClassifier(max_iter=1, tol=None).fit(*binary)
    with pytest.raises(ValueError, match=r"dask-ma\.trace\.max-spans must be above 0"):
        GanttDisplay.from_estimator(model)


def test_bad_input(timeline):
    with pytest.raises(ValueError, match=r"which has 3, got \[7\]"):
        GanttDisplay(timeline, ranks=[0, 7])
    with pytest.raises(ValueError, match=r"increasing times, got \(2, 1\)"):
        GanttDisplay(timeline, time_range=(2, 1))
    with pytest.raises(NotFittedError):
        GanttDisplay.from_estimator(MASGDClassifier())
