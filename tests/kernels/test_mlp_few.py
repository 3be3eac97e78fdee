"""Steps for the inputs that a batch has, against steps for all of them."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import (
    Adam,
    FewInputSteps,
    MLPLayout,
    MLPWorkspace,
    mlp_initial_values,
    mlp_loss_and_gradient,
)
from dask_ma.kernels import _mlp_few as few

N_INPUTS = 40
LAYOUTS = {
    "binary": MLPLayout((N_INPUTS, 6, 1), "relu", "binary_log_loss"),
    "classes": MLPLayout((N_INPUTS, 5, 4, 3), "tanh", "log_loss"),
    "squares": MLPLayout((N_INPUTS, 4, 2), "logistic", "squared_error"),
    "linear": MLPLayout((N_INPUTS, 3), "identity", "log_loss"),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Some inputs at a time, which are not all of them."""
    monkeypatch.setattr(few, "BLOCK", 20)


def batches_for(layout, n_batches, seed=0, dtype=np.float64):
    """Sparse rows and targets of some batches, of which none has all inputs."""
    rng = np.random.default_rng(seed)
    for _ in range(n_batches):
        X = sparse.random(7, N_INPUTS, 0.06, "csr", dtype, rng)
        n_outputs = layout.units[-1]
        if layout.loss == "squared_error":
            y = rng.normal(size=(7, n_outputs))
        else:
            y = rng.integers(0, max(2, n_outputs), 7).astype(float)
            y = y.astype(int) if layout.loss == "log_loss" else y
        yield X, y


class OfAll:
    """Steps of the dense kernel and the optimiser of whole vectors."""

    def __init__(self, layout, alpha=0.0, scale=None, dtype=np.float64):
        self.values, self.optimizer, self.workspace = parts_of(layout, dtype)
        self._layout, self._alpha, self._scale = layout, alpha, scale
        self._gradient = np.zeros_like(self.values)

    def step(self, X, y, weight=None, rate=0.01):
        loss = mlp_loss_and_gradient(
            self._layout,
            self.values,
            X,
            y,
            weight,
            self._gradient,
            self.workspace,
            alpha=self._alpha,
            scale=self._scale,
        )
        self.optimizer.step(self.values, self._gradient, rate)
        return loss


class OfFew:
    """Steps for the inputs of a batch."""

    def __init__(self, layout, alpha=0.0, scale=None, dtype=np.float64):
        self.values, self.optimizer, workspace = parts_of(layout, dtype)
        parts = layout, self.values, self.optimizer, workspace
        self.steps, self._alpha = FewInputSteps(*parts, scale), alpha

    def step(self, X, y, weight=None, rate=0.01):
        columns = np.unique(X.indices).astype(np.int64)
        kwargs = {"learning_rate": rate, "alpha": self._alpha}
        return self.steps.step(X, columns, y, weight, **kwargs)


def parts_of(layout, dtype):
    values = mlp_initial_values(layout, dtype, np.random.RandomState(0))
    return values, Adam(len(values), dtype, epsilon=1e-13), MLPWorkspace(layout, dtype)


@every_layout
def test_steps_are_those_for_all_inputs(layout):
    rng = np.random.default_rng(3)
    scale = rng.uniform(0.5, 2, N_INPUTS)
    whole, own = OfAll(layout, scale=scale), OfFew(layout, scale=scale)
    for X, y in batches_for(layout, 40):
        step = y, rng.uniform(0, 2, 7), rng.uniform(0.005, 0.02)
        assert own.step(X, *step) == pytest.approx(whole.step(X, *step), rel=1e-7)
    n_values = len(own.values)
    assert not np.allclose(own.values, whole.values, rtol=1e-4)
    found = own.steps.read(0, n_values)
    np.testing.assert_allclose(found, whole.values, rtol=1e-6, atol=1e-9)
    own.steps.settle()
    np.testing.assert_array_equal(own.values, found)
    moments = zip(own.optimizer.moments, whole.optimizer.moments, strict=True)
    for mine, theirs in moments:
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-12)


@every_layout
def test_float32_stays_float32(layout):
    whole, own = (kind(layout, dtype=np.float32) for kind in (OfAll, OfFew))
    for X, y in batches_for(layout, 20, dtype=np.float32):
        whole.step(X, y), own.step(X, y)
    found = own.steps.read(0, len(own.values))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, whole.values, rtol=1e-3, atol=1e-5)


def test_any_part_may_be_read_and_nothing_changes():
    layout = LAYOUTS["classes"]
    own, other = OfFew(layout), OfFew(layout)
    for number, (X, y) in enumerate(batches_for(layout, 12)):
        own.step(X, y), other.step(X, y)
        whole = own.steps.read(0, len(own.values))
        start, stop = sorted(np.random.default_rng(number).integers(0, 240, 2))
        np.testing.assert_array_equal(own.steps.read(start, stop), whole[start:stop])
    np.testing.assert_array_equal(own.values, other.values)


@pytest.mark.parametrize("alpha", [1e-2, 0.3])
@pytest.mark.parametrize("has_scale", [False, True])
def test_steps_end_where_the_penalised_loss_is_least(alpha, has_scale):
    """Although the penalty has no part in the moments."""
    layout, scale = LAYOUTS["linear"], None
    if has_scale:
        scale = np.random.default_rng(1).uniform(0.5, 2, N_INPUTS)
    data = list(batches_for(layout, 4))
    whole, own = OfAll(layout, alpha, scale), OfFew(layout, alpha, scale)
    for number in range(1200):
        for fit in (whole, own):
            fit.step(*data[number % 4], rate=0.05 / (1 + number / 20))
    found = own.steps.read(0, len(own.values))
    own.values[...], losses = found, []
    for fit in (whole, own):
        parts = np.zeros_like(found), whole.workspace
        losses.append(
            np.mean(
                [
                    mlp_loss_and_gradient(
                        layout, fit.values, X, y, None, *parts, alpha=alpha, scale=scale
                    )
                    for X, y in data
                ]
            )
        )
    assert losses[1] < 1.01 * losses[0]
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(whole.values), rel=0.1)


def test_the_loss_has_the_penalty_of_all_inputs():
    layout = LAYOUTS["classes"]
    scale = np.random.default_rng(1).uniform(0.5, 2, N_INPUTS)
    own = OfFew(layout, 1e-3, scale)
    whole = OfAll(layout, 1e-3, scale)
    own.optimizer.epsilon = 1.0  # so that weights which wait are nearly there
    for number, (X, y) in enumerate(batches_for(layout, 20)):
        if number % 6 == 5:
            own.steps.settle()
            own.values *= 1.5
        if number % 6 == 3:
            own.values /= 1.2
            own.steps.note_change()
        whole.values[...] = own.values
        assert own.step(X, y, rate=1e-6) == pytest.approx(whole.step(X, y), rel=1e-6)


def test_rows_that_all_weigh_nothing_are_a_step_too():
    layout = LAYOUTS["squares"]
    whole, own = OfAll(layout), OfFew(layout)
    for number, (X, y) in enumerate(batches_for(layout, 6)):
        weight = np.full(7, float(number % 2))
        losses = own.step(X, y, weight), whole.step(X, y, weight)
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    found = own.steps.read(0, len(own.values))
    np.testing.assert_allclose(found, whole.values, rtol=1e-6, atol=1e-10)


def test_steps_for_all_inputs_come_between():
    layout = LAYOUTS["classes"]
    whole, own = OfAll(layout), OfFew(layout)
    gradient = np.zeros_like(own.values)
    for number, (X, y) in enumerate(batches_for(layout, 15)):
        whole.step(X, y)
        if number % 4 != 3:
            own.step(X, y)
            continue
        own.steps.settle()
        parts = layout, own.values, X, y, None, gradient, whole.workspace
        mlp_loss_and_gradient(*parts, alpha=0.0)
        own.optimizer.step(own.values, gradient, 0.01)
    found = own.steps.read(0, len(own.values))
    np.testing.assert_allclose(found, whole.values, rtol=1e-6, atol=1e-9)


def test_inputs_of_few_elements_alone():
    layout = MLPLayout((10_000, 50, 1), "relu", "binary_log_loss")
    values, optimizer, workspace = parts_of(layout, np.float32)
    steps = FewInputSteps(layout, values, optimizer, workspace)
    rng = np.random.default_rng(0)
    X = sparse.random(50, 10_000, 0.001, "csr", np.float32, rng)
    np.testing.assert_array_equal(steps.inputs_of(X), np.unique(X.indices))
    assert steps.inputs_of(X.toarray()) is None
    assert steps.inputs_of(sparse.random(50, 10_000, 0.02, "csr", rng=rng)) is None
    # Of networks that a step goes through in no time there are none.
    small = MLPLayout((500, 50, 1), "relu", "binary_log_loss")
    steps = FewInputSteps(small, *parts_of(small, np.float32))
    assert steps.inputs_of(X[:1, :500]) is None
