"""Curves of the objective."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dask_ma import MASGDClassifier
from dask_ma.plotting import ConvergenceDisplay


def estimator(*objectives, seconds=1.0):
    """One with a history."""
    history = [
        {
            "round": number,
            "time": seconds * number,
            "objective": objective,
            "bytes_sent": 100,
            "n_samples": 10 * number,
        }
        for number, objective in enumerate(objectives, start=1)
    ]
    model = MASGDClassifier()
    model.history_ = history
    return model


@pytest.mark.parametrize(
    ("x", "expected", "label"),
    [
        ("round", [1, 3], "round"),
        ("time", [0.5, 1.5], "time (s)"),
        ("bytes", [100, 300], "bytes sent between processes"),
        ("samples", [10, 60], "rows gone over by all ranks"),
    ],
)
def test_rounds_that_were_not_evaluated_count_but_have_no_point(x, expected, label):
    model = estimator(0.9, np.nan, 0.4, seconds=0.5)
    display = ConvergenceDisplay.from_estimators({"a": model}, x)
    values, objective = display.curves["a"]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(objective, [0.9, 0.4])
    np.testing.assert_array_equal(display.lines_["a"].get_xdata(), expected)
    np.testing.assert_array_equal(display.lines_["a"].get_ydata(), [0.9, 0.4])
    assert display.ax_.get_xlabel() == label
    assert display.ax_.get_ylabel() == "objective"
    assert display.ax_.get_yscale() == "linear"


def test_units_of_large_numbers(pyplot):
    model = estimator(1.0, 0.5)
    for record in model.history_:
        record["bytes_sent"] = 2_000_000
    display = ConvergenceDisplay.from_estimators(model, "bytes")
    display.figure_.canvas.draw()
    labels = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert all(label.endswith(" MB") for label in labels)


def test_distance_from_the_best():
    model = estimator(1.5, 0.75, 0.5)
    display = ConvergenceDisplay.from_estimators(model, best=0.5)
    (line,) = display.lines_.values()
    np.testing.assert_array_equal(line.get_ydata(), [1.0, 0.25, np.nan])
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_ylabel() == "objective above the best"
    np.testing.assert_array_equal(
        display.curves["MASGDClassifier"][1], [1.5, 0.75, 0.5]
    )


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_labels():
    a, b = estimator(1.0), estimator(2.0)
    show = ConvergenceDisplay.from_estimators
    assert legend(show({"one": a, 2: b})) == ["one", "2"]
    assert legend(show([a, b], labels=["p", "q"])) == ["p", "q"]
    assert legend(show([a, b])) == ["MASGDClassifier 0", "MASGDClassifier 1"]
    assert legend(show(a)) == ["MASGDClassifier"]


def test_curves_differ_in_colour_and_marker():
    display = ConvergenceDisplay.from_estimators([estimator(1.0) for _ in range(6)])
    lines = display.lines_.values()
    assert len({line.get_color() for line in lines}) == 6
    assert len({line.get_marker() for line in lines}) == 6


def test_of_real_fits(fitted):
    display = ConvergenceDisplay.from_estimators(fitted, "samples")
    assert list(display.lines_) == ["allreduce", "driver"]
    for label, model in fitted.items():
        values, objective = display.curves[label]
        assert objective[-1] == model.history_[-1]["objective"]
        assert values[-1] == sum(record["n_samples"] for record in model.history_)


def test_on_given_axes(pyplot):
    figure, ax = pyplot.subplots()
    display = ConvergenceDisplay.from_estimators(estimator(1.0, 0.5), ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert len(ax.lines) == 1


def test_bad_input():
    a, b = estimator(1.0), estimator(2.0)
    show = ConvergenceDisplay.from_estimators
    with pytest.raises(ValueError, match="one of round, time, bytes, samples, got 'y'"):
        show(a, "y")
    with pytest.raises(ValueError, match=r"2 different ones, .* got \['p'\]"):
        show([a, b], labels=["p"])
    with pytest.raises(ValueError, match=r"2 different ones, .* got \['p', 'p'\]"):
        show([a, b], labels=["p", "p"])
    with pytest.raises(ValueError, match="None with a dict"):
        show({"a": a}, labels=["p"])
    with pytest.raises(NotFittedError):
        show([MASGDClassifier()])
