"""Step sizes: one form for all schedules, and what they add up to."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from dask_ma.ma.sgd._steps import Steps, steps_of


def params(**changes):
    known = {
        "learning_rate": "optimal",
        "eta0": 0.3,
        "power_t": 0.4,
        "alpha": 1e-3,
        "loss": "log_loss",
        "epsilon": 0.1,
        "penalty": "l2",
    }
    return SimpleNamespace(**{**known, **changes})


@pytest.mark.pairs
@pytest.mark.parametrize(
    "steps",
    [
        Steps(0.2),
        Steps(0.2, power=0.25),
        Steps(0.2, power=1.7),
        Steps(3.0, shift=2.5, power=1.0),
        Steps(1e4, shift=1e3, power=1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("t", [1, 7.5, 1e4])
@pytest.mark.parametrize("n", [0, 1, 5, 64, 65, 3000])
def test_sum_is_that_of_the_steps(steps, t, n):
    slow = sum(steps.at(t + i) for i in range(n))
    assert steps.sum(t, n) == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize(
    ("rate", "size"),
    [
        ("constant", lambda t: 0.3),
        ("adaptive", lambda t: 0.3),
        ("invscaling", lambda t: 0.3 / t**0.4),
        # With the first step a weight goes as far as 1 / sqrt(sqrt(alpha)); the slope
        # of the log loss is at most 1.
        ("optimal", lambda t: 1 / (1e-3 * (1e3**0.75 + t - 1))),
    ],
)
def test_schedules_are_those_of_scikit_learn(rate, size):
    steps = steps_of(params(learning_rate=rate))
    for t in (1, 2, 1000.5):
        assert steps.at(t) == pytest.approx(size(t))


@pytest.mark.parametrize("penalty", ["l2", "l1", None])
@pytest.mark.parametrize("rate", ["constant", "adaptive", "invscaling", "optimal"])
def test_sgd_takes_these_steps(rate, penalty):
    """One row, a loss with slope -1, and no penalty: the coefficient is the sum."""
    given = params(learning_rate=rate, penalty=penalty, loss="perceptron")
    steps = steps_of(given)
    sgd = SGDClassifier(
        loss="perceptron", penalty=None, alpha=given.alpha, shuffle=False
    )
    sgd.coef_, sgd.intercept_ = np.full((1, 1), -1e9), np.zeros(1)
    steps.set_on(sgd, 5.0)
    sgd.partial_fit(np.ones((4, 1)), np.ones(4), classes=[0, 1])
    moved = sgd.coef_[0, 0] + 1e9
    assert moved == pytest.approx(sum(steps.at(5 + i) for i in range(4)), abs=1e-6)
