"""The length of the steps as the objectives of the passes have it."""

import numpy as np
import pytest

from dask_ma.butterfly._control import StepControl


def run(objectives, start=10.0, *, is_adaptive=True, takes_back=True):
    control = StepControl(is_adaptive=is_adaptive, takes_back=takes_back)
    kept = [control.update(value, start, value / 100) for value in objectives]
    return control, kept


def test_progress_lengthens_and_a_failure_halves():
    control, kept = run([9, 8, 8.5, 7])
    assert kept == [True, True, False, True]
    assert control.factor == pytest.approx(1.2**3 / 2)
    assert control.kept == (7, 0.07)


def test_the_best_pass_is_the_one_that_counts():
    control, kept = run([9, 7, 8, 7.5, 7])
    assert kept == [True, True, False, False, False]
    assert control.kept == (7, 0.07)


def test_steps_that_are_far_too_long_are_cut_until_something_is_gained():
    control, kept = run([np.inf, 1e300, 12, 9, 9.5])
    assert kept == [False, False, False, True, False]
    assert control.factor == pytest.approx(1.2 / 8**3 / 2)
    assert control.may_stop


def test_nothing_stops_while_the_steps_are_too_long():
    control, _ = run([11] * 5)
    assert not control.may_stop
    control, _ = run([11] * 10)
    assert control.may_stop


def test_fixed_steps_take_nothing_back():
    control, kept = run([9, 12, np.inf], is_adaptive=False)
    assert kept == [True] * 3
    assert control.factor == 1
    assert control.may_stop
    assert not control.takes_back


def test_ranks_without_a_common_model_take_nothing_back():
    control, kept = run([9, 12, 8], takes_back=False)
    assert kept == [True] * 3
    assert control.factor == pytest.approx(1.2 * 0.5 * 1.2)
    assert not control.takes_back


def test_other_rows_have_another_objective():
    control, _ = run([9, 3])
    control.forget()
    assert control.update(5, 10.0, np.nan)
    assert not control.update(6, 10.0, np.nan)


def test_another_control_goes_on():
    control, _ = run([11, 9, 9.5])
    other = StepControl(is_adaptive=True, takes_back=True)
    other.load_state_dict(np.array(control.state_dict()))
    for value in (8, 8.2, 7):
        assert other.update(value, 10.0, 1.0) == control.update(value, 10.0, 1.0)
        assert other.state_dict() == control.state_dict()
