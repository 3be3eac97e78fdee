"""Curves of the objective."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dask_ma import MASGDClassifier, SchMPLasso
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
            "n_touched": 50,
            "dual_gap": objective / 10,
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
        ("n_touched", [50, 150], "elements of the data read by all ranks"),
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


@pytest.mark.parametrize(
    ("y", "expected", "label"),
    [
        ("n_touched", [50, 100, 150], "elements of the data read by all ranks"),
        ("samples", [10, 30, 60], "rows gone over by all ranks"),
        ("bytes", [100, 200, 300], "bytes sent between processes"),
    ],
)
def test_data_against_time_needs_no_objective(y, expected, label):
    model = estimator(0.9, np.nan, 0.4, seconds=0.5)
    display = ConvergenceDisplay.from_estimators({"a": model}, "time", y)
    np.testing.assert_array_equal(display.lines_["a"].get_xdata(), [0.5, 1.0, 1.5])
    np.testing.assert_array_equal(display.lines_["a"].get_ydata(), expected)
    assert display.ax_.get_xlabel() == "time (s)"
    assert display.ax_.get_ylabel() == label
    assert display.ax_.get_yscale() == "linear"


def test_duality_gap():
    display = ConvergenceDisplay.from_estimators(
        estimator(2.0, np.nan, 0.0), y="dual_gap"
    )
    (line,) = display.lines_.values()
    np.testing.assert_array_equal(line.get_xdata(), [1, 3])
    np.testing.assert_array_equal(line.get_ydata(), [0.2, np.nan])
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_ylabel() == "duality gap"


@pytest.mark.parametrize("side", ["x", "y"])
def test_units_of_large_numbers(side, pyplot):
    model = estimator(1.0, 0.5)
    for record in model.history_:
        record["bytes_sent"] = 2_000_000
    other = "y" if side == "x" else "x"
    values = {side: "bytes", other: "objective" if other == "y" else "time"}
    display = ConvergenceDisplay.from_estimators(model, **values)
    display.figure_.canvas.draw()
    axis = getattr(display.ax_, f"{side}axis")
    labels = [label.get_text() for label in axis.get_ticklabels()]
    assert all(label.endswith(" MB") for label in labels)


def test_scales(pyplot):
    model = estimator(1.5, 0.75, 0.5)
    model.history_[0]["time"] = 0.0
    show = ConvergenceDisplay.from_estimators
    display = show(model, "time", xscale="log", yscale="log")
    assert display.ax_.get_xscale() == display.ax_.get_yscale() == "log"
    (line,) = display.lines_.values()
    np.testing.assert_array_equal(line.get_xdata(), [np.nan, 2.0, 3.0])
    np.testing.assert_array_equal(display.curves["MASGDClassifier"][0], [0, 2, 3])
    display = show(model, best=0.6, yscale="linear")
    assert display.ax_.get_yscale() == "linear"
    (line,) = display.lines_.values()
    np.testing.assert_allclose(line.get_ydata(), [0.9, 0.15, -0.1])


def test_units_on_a_logarithmic_axis(pyplot):
    model = estimator(1.0, 0.5)
    for record in model.history_:
        record["n_touched"] *= 1_000_000
    display = ConvergenceDisplay.from_estimators(model, "n_touched", xscale="log")
    display.ax_.set_xlim(1e6, 1e9)
    display.figure_.canvas.draw()
    labels = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert "100 M" in labels


def test_scale_of_given_axes_stays(pyplot):
    _, ax = pyplot.subplots()
    ax.set_yscale("log")
    ConvergenceDisplay.from_estimators(estimator(1.0, 0.5), ax=ax)
    assert ax.get_yscale() == "log"


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


def test_data_read_by_a_real_fit(regression):
    X, y = regression
    lasso = SchMPLasso(alpha=0.01, n_ranks=2).fit(X, y)
    display = ConvergenceDisplay.from_estimators(lasso, "n_touched", "dual_gap")
    values, gap = display.curves["SchMPLasso"]
    assert (np.diff(values) > 0).all()
    assert values[-1] == sum(record["n_touched"] for record in lasso.history_)
    assert gap[-1] == lasso.dual_gap_


def test_on_given_axes(pyplot):
    figure, ax = pyplot.subplots()
    display = ConvergenceDisplay.from_estimators(estimator(1.0, 0.5), ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert len(ax.lines) == 1


def test_bad_input():
    a, b = estimator(1.0), estimator(2.0)
    show = ConvergenceDisplay.from_estimators
    known = "time, bytes, samples, n_touched"
    with pytest.raises(ValueError, match=f"x must be one of round, {known}, got 'y'"):
        show(a, "y")
    with pytest.raises(ValueError, match="y must be one of objective, .* got 'time'"):
        show(a, y="time")
    for scale in ("xscale", "yscale"):
        with pytest.raises(ValueError, match=f"{scale} must be .* got 'symlog'"):
            show(a, **{scale: "symlog"})
    with pytest.raises(ValueError, match="with y='dual_gap' it must be None, got 0.1"):
        show(a, y="dual_gap", best=0.1)
    del b.history_[0]["n_touched"]
    with pytest.raises(
        ValueError, match="of MASGDClassifier does not tell 'n_touched'"
    ):
        show([a, b], "n_touched")
    with pytest.raises(ValueError, match=r"2 different ones, .* got \['p'\]"):
        show([a, b], labels=["p"])
    with pytest.raises(ValueError, match=r"2 different ones, .* got \['p', 'p'\]"):
        show([a, b], labels=["p", "p"])
    with pytest.raises(ValueError, match="None with a dict"):
        show({"a": a}, labels=["p"])
    with pytest.raises(NotFittedError):
        show([MASGDClassifier()])
