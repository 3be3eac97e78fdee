"""Losses and gradients of perceptrons against finite differences and slow formulas."""

import numpy as np
import pytest
from scipy import sparse, special

from dask_ma.kernels import (
    MLPLayout,
    MLPWorkspace,
    mlp_initial_values,
    mlp_loss_and_gradient,
    mlp_outputs,
    mlp_uncentred,
    mlp_unpack,
)
from dask_ma.kernels._mlp_inputs import standardized_rows

ACTIVATIONS = {
    "identity": lambda z: z,
    "logistic": special.expit,
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
}
N_OUTPUTS = {"log_loss": 4, "binary_log_loss": 1, "squared_error": 1}
every_activation = pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
every_loss = pytest.mark.parametrize("loss", sorted(N_OUTPUTS))
every_container = pytest.mark.parametrize(
    "container", [np.asarray, np.asfortranarray, sparse.csr_matrix, sparse.csr_array]
)


def problem(activation="tanh", loss="log_loss", hidden=(6, 5), n_rows=11):
    """Network, its values, rows with many zeros, targets, weights of the rows."""
    rng = np.random.default_rng([len(activation), len(loss), n_rows])
    layout = MLPLayout((7, *hidden, N_OUTPUTS[loss]), activation, loss)
    vector = rng.normal(scale=0.7, size=layout.n_values)
    X = rng.normal(size=(n_rows, 7)) * (rng.random((n_rows, 7)) < 0.5)
    y = rng.normal(size=n_rows)
    if loss != "squared_error":
        y = rng.integers(0, max(2, N_OUTPUTS[loss]), n_rows)
    return layout, vector, X, y, rng.uniform(0.1, 2, n_rows)


def evaluate(layout, vector, X, y, weight=None, alpha=0.0, **changes):
    """Loss and gradient in arrays of their own."""
    gradient = np.full_like(vector, np.nan)
    workspace = MLPWorkspace(layout, vector.dtype)
    loss = mlp_loss_and_gradient(
        layout, vector, X, y, weight, gradient, workspace, alpha=alpha, **changes
    )
    return loss, gradient


def slow_outputs(layout, vector, X):
    coefs, intercepts = mlp_unpack(layout, vector)
    for coef, intercept in zip(coefs[:-1], intercepts[:-1], strict=True):
        X = ACTIVATIONS[layout.activation](X @ coef + intercept)
    return X @ coefs[-1] + intercepts[-1]


def slow_loss(layout, vector, X, y, weight, alpha):
    z = slow_outputs(layout, vector, X)
    if layout.loss == "squared_error":
        losses = (z[:, 0] - y) ** 2 / 2
    elif layout.loss == "binary_log_loss":
        p = special.expit(z[:, 0])
        losses = -np.log(np.where(y == 1, p, 1 - p))
    else:
        losses = -np.log(special.softmax(z, axis=1)[np.arange(len(y)), y])
    squares = sum((coef**2).sum() for coef in mlp_unpack(layout, vector)[0])
    return (weight @ losses + alpha / 2 * squares) / weight.sum()


@pytest.mark.pairs
@every_activation
@every_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_is_that_of_the_loss(activation, loss, weighted):
    layout, vector, X, y, weight = problem(activation, loss)
    given = weight if weighted else None
    weight = weight if weighted else np.ones(len(y))
    value, gradient = evaluate(layout, vector, X, y, given, alpha=0.3)
    assert value == pytest.approx(slow_loss(layout, vector, X, y, weight, 0.3))
    step = 1e-6
    for i, slope in enumerate(gradient):
        ends = []
        for sign in (1, -1):
            moved = vector.copy()
            moved[i] += sign * step
            ends.append(slow_loss(layout, moved, X, y, weight, 0.3))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2 / step, 1e-5, 1e-7)


@every_container
@every_loss
def test_a_center_is_taken_from_each_row(container, loss):
    layout, vector, X, y, weight = problem("tanh", loss)
    center = np.array([0.0, 3, -2, 0, 1, 0, 0.5])
    expected = evaluate(layout, vector, X - center, y, weight, 0.3)
    found = evaluate(layout, vector, container(X), y, weight, 0.3, center=center)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)
    outputs = mlp_outputs(layout, vector, X - center)
    for same in (
        mlp_outputs(layout, vector, container(X), center),
        mlp_outputs(layout, mlp_uncentred(layout, vector, center), container(X)),
    ):
        np.testing.assert_allclose(same, outputs, rtol=1e-9, atol=1e-12)
    back = mlp_uncentred(layout, mlp_uncentred(layout, vector, center), -center)
    np.testing.assert_allclose(back, vector, rtol=1e-12)


@pytest.mark.pairs
@every_container
@every_loss
@pytest.mark.parametrize("block", [12, 2**15])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("is_centred", [False, True])
def test_rows_are_divided_by_a_scale(
    monkeypatch, container, loss, block, alpha, is_centred
):
    """The network is that of undivided rows with weights that are divided."""
    for module in ("_mlp", "_optimizers"):
        monkeypatch.setattr(f"dask_ma.kernels.{module}.BLOCK", block)
    layout, vector, X, y, weight = problem("tanh", loss)
    center = np.array([0.0, 3, -2, 0, 1, 0, 0.5]) if is_centred else None
    scale = np.array([1.0, 0.1, 30, 2, 1e-3, 1, 7])
    undivided = vector.copy()
    mlp_unpack(layout, undivided)[0][0][...] /= scale[:, np.newaxis]
    rows = X if center is None else X - center
    value, gradient = evaluate(layout, undivided, rows, y, weight, alpha)
    mlp_unpack(layout, gradient)[0][0][...] /= scale[:, np.newaxis]
    standard = {"center": center, "scale": scale}
    X = container(X)
    found = evaluate(layout, vector, X, y, weight, alpha, **standard)
    assert found[0] == pytest.approx(value, rel=1e-11)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(
        mlp_outputs(layout, vector, X, **standard),
        mlp_outputs(layout, undivided, rows),
        rtol=1e-9,
        atol=1e-12,
    )


def test_wide_rows_are_standardised_some_at_a_time(monkeypatch):
    layout, vector, X, *_ = problem()
    standard = np.ones(7), np.full(7, 2.0)
    expected = mlp_outputs(layout, vector, X, *standard)
    monkeypatch.setattr("dask_ma.kernels._mlp._COPIED_VALUES", 15)  # two rows
    n_rows = []

    def noted(X, center, scale):
        n_rows.append(len(X))
        return standardized_rows(X, center, scale)

    monkeypatch.setattr("dask_ma.kernels._mlp.standardized_rows", noted)
    found = mlp_outputs(layout, vector, X, *standard)
    assert n_rows == [2, 2, 2, 2, 2, 1]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.each(2)
@every_container
@every_activation
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_containers_agree(container, activation, dtype):
    layout, vector, X, y, weight = problem(activation)
    expected = evaluate(layout, vector, X, y, weight, alpha=0.3)
    loss, gradient = evaluate(
        layout, vector.astype(dtype), container(X.astype(dtype)), y, weight, alpha=0.3
    )
    rtol = 1e-4 if dtype == np.float32 else 1e-12
    assert gradient.dtype == dtype
    assert loss == pytest.approx(expected[0], rel=rtol)
    np.testing.assert_allclose(gradient, expected[1], rtol=rtol, atol=rtol / 10)


def test_sparse_rows_with_few_columns_in_several_chunks(monkeypatch):
    monkeypatch.setattr("dask_ma.kernels._mlp_inputs._CHUNK_BYTES", 100)
    rng = np.random.default_rng(0)
    X = sparse.random(9, 500, 0.01, format="csr", random_state=0, dtype=np.float64)
    X.data[:3] = 0  # stored zeros
    layout = MLPLayout((500, 4, 1), "relu", "squared_error")
    vector, y = rng.normal(size=layout.n_values), rng.normal(size=9)
    expected = evaluate(layout, vector, X.toarray(), y)
    loss, gradient = evaluate(layout, vector, X, y)
    assert loss == pytest.approx(expected[0])
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-12, atol=1e-15)


def test_sparse_rows_with_duplicate_entries():
    layout, vector, _, y, _ = problem(n_rows=2)
    X = sparse.csr_array(
        (np.array([1.0, 2, 3]), np.array([4, 4, 0]), np.array([0, 2, 3])), shape=(2, 7)
    )
    expected = evaluate(layout, vector, X.toarray(), y)
    np.testing.assert_allclose(evaluate(layout, vector, X, y)[1], expected[1])


@pytest.mark.parametrize("hidden", [(), (3,), (5, 4, 3)])
@every_loss
def test_any_number_of_layers(hidden, loss):
    layout, vector, X, y, weight = problem("tanh", loss, hidden)
    expected = slow_loss(layout, vector, X, y, weight, 0.1)
    assert evaluate(layout, vector, X, y, weight, 0.1)[0] == pytest.approx(expected)


def test_a_workspace_serves_batches_of_any_size():
    layout, vector, X, y, _ = problem("relu", n_rows=11)
    workspace, gradient = MLPWorkspace(layout, vector.dtype), np.empty_like(vector)
    for n_rows in (3, 11, 1, 11, 7):
        rows = slice(11 - n_rows, 11)
        loss = mlp_loss_and_gradient(
            layout, vector, X[rows], y[rows], None, gradient, workspace, alpha=0.1
        )
        expected = evaluate(layout, vector, X[rows], y[rows], alpha=0.1)
        assert loss == pytest.approx(expected[0], rel=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-10, atol=1e-14)


@every_loss
def test_weight_2_is_two_rows_and_weight_0_none(loss):
    layout, vector, X, y, _ = problem("logistic", loss, n_rows=4)
    weight = np.array([2, 1, 0, 1])
    rows = [0, 0, 1, 3]
    expected = evaluate(layout, vector, X[rows], y[rows], alpha=0.3)
    value, gradient = evaluate(layout, vector, X, y, weight, alpha=0.3)
    assert value == pytest.approx(expected[0])
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-11, atol=1e-15)


def test_rows_without_weight_give_no_gradient():
    layout, vector, X, y, _ = problem()
    loss, gradient = evaluate(layout, vector, X, y, np.zeros(len(y)), alpha=0.3)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["log_loss", "binary_log_loss"])
def test_large_logits_neither_overflow_nor_are_clipped(loss, dtype):
    layout = MLPLayout((1, N_OUTPUTS[loss]), "relu", loss)
    vector = np.zeros(layout.n_values, dtype)
    vector[0] = 3000
    X, y = np.array([[1], [-1], [1], [-1]], dtype), np.array([0, 0, 1, 1])
    if loss == "binary_log_loss":
        y = 1 - y
    value, gradient = evaluate(layout, vector, X, y)
    # Two rows are right without doubt, two are wrong by 3000 each.
    assert value == pytest.approx(1500, rel=1e-3)
    assert np.isfinite(gradient).all() and gradient[0] != 0


@pytest.mark.parametrize("codes", [np.uint8, np.int8, np.int64, bool])
def test_codes_of_two_classes_of_any_type(codes):
    layout, vector, X, y, _ = problem("relu", "binary_log_loss")
    expected = evaluate(layout, vector, X, y.astype(float))
    value, gradient = evaluate(layout, vector, X, y.astype(codes))
    assert value == pytest.approx(expected[0])
    np.testing.assert_allclose(gradient, expected[1])


@pytest.mark.each
@every_container
@every_activation
def test_outputs_in_chunks(container, activation, monkeypatch):
    layout, vector, X, _, _ = problem(activation, n_rows=150)
    monkeypatch.setattr("dask_ma.kernels._mlp._CHUNK_VALUES", 1)
    outputs = mlp_outputs(layout, vector, container(X))
    expected = slow_outputs(layout, vector, X)
    np.testing.assert_allclose(outputs, expected, rtol=1e-11, atol=1e-13)


def test_outputs_of_no_rows():
    layout, vector, X, _, _ = problem()
    assert mlp_outputs(layout, vector, X[:0]).shape == (0, 4)


def test_views_cover_the_vector_layer_by_layer():
    layout = MLPLayout((3, 2, 4), "relu", "log_loss")
    assert layout.n_values == 3 * 2 + 2 + 2 * 4 + 4
    vector = np.arange(layout.n_values)
    coefs, intercepts = mlp_unpack(layout, vector)
    assert [coef.shape for coef in coefs] == [(3, 2), (2, 4)]
    parts = [coefs[0], intercepts[0], coefs[1], intercepts[1]]
    assert all(np.shares_memory(part, vector) for part in parts)
    np.testing.assert_array_equal(np.concatenate([p.ravel() for p in parts]), vector)


@pytest.mark.parametrize(("activation", "factor"), [("relu", 6), ("logistic", 2)])
def test_initial_values_fill_their_range(activation, factor):
    layout = MLPLayout((50, 30, 10), activation, "log_loss")
    vector = mlp_initial_values(layout, np.float32, np.random.RandomState(0))
    assert vector.dtype == np.float32
    for coef in mlp_unpack(layout, vector)[0]:
        bound = np.sqrt(factor / sum(coef.shape))
        assert 0.95 * bound < np.abs(coef).max() <= bound * (1 + 1e-6)
    again = mlp_initial_values(layout, np.float32, np.random.RandomState(0))
    np.testing.assert_array_equal(vector, again)


def test_the_penalty_of_a_layer_larger_than_a_block(monkeypatch):
    layout, vector, X, y, weight = problem("tanh", hidden=(9, 5))
    expected = evaluate(layout, vector, X, y, weight, alpha=3.0)
    monkeypatch.setattr("dask_ma.kernels._optimizers.BLOCK", 8)
    loss, gradient = evaluate(layout, vector, X, y, weight, alpha=3.0)
    assert loss == pytest.approx(expected[0], rel=1e-13)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-13)


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_large_finite_values_do_not_overflow(activation):
    layout, vector, X, y, _ = problem(activation, "squared_error")
    with np.errstate(all="raise"):
        loss, gradient = evaluate(layout, 1e20 * vector, X, y)
    assert np.isfinite(loss) and np.isfinite(gradient).all()
