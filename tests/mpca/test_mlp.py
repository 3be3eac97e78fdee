"""The built-in network against scikit-learn's, and penalties against formulas."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils import gen_batches, shuffle

from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._mlp import MLPNetwork, MLPSpec
from dask_ma.mpca.networks._peer import fitted_sklearn

HIDDEN = (9, 6)
every_form = pytest.mark.parametrize("form", ["shift", "loss"])
every_task = pytest.mark.parametrize("n_classes", [None, 2, 4])


def problem(n_classes, n_rows=53, n_features=7, dtype=np.float64):
    """Rows, codes of the classes or targets, weights of the rows."""
    rng = np.random.default_rng(n_rows)
    X = rng.normal(size=(n_rows, n_features))
    scores = X @ rng.normal(size=(n_features, n_classes or 1))
    y = scores[:, 0] / 2 if n_classes is None else scores.argmax(axis=1)
    weight = rng.uniform(0.2, 2, n_rows)
    return X.astype(dtype), y if n_classes else y.astype(dtype), weight.astype(dtype)


def build(n_classes=4, dtype=np.float64, seed=0, **parameters):
    """A network for the rows of :func:`problem`, with values of the seed."""
    spec = MLPSpec(HIDDEN, **parameters)
    return spec.build(7, n_classes, np.dtype(dtype), np.random.RandomState(seed))


def vector_of(network):
    return network.read(0, network.n_values)


def sklearn_fit(X, y, weight, n_classes, n_epochs, seed, **parameters):
    """scikit-learn's own whole run."""
    kind = MLPRegressor if n_classes is None else MLPClassifier
    second = kind(
        hidden_layer_sizes=HIDDEN,
        batch_size=16,
        max_iter=n_epochs,
        random_state=seed,
        tol=0,
        n_iter_no_change=10**6,
        learning_rate_init=0.02,
        **parameters,
    )
    with pytest.warns(ConvergenceWarning):
        return second.fit(X, y, sample_weight=weight)


def own_fit(X, y, weight, n_classes, n_epochs, seed, **parameters):
    """The same run: network, spec and loss of each epoch."""
    random_state = np.random.RandomState(seed)
    spec = MLPSpec(HIDDEN, **parameters)
    network = spec.build(X.shape[1], n_classes, X.dtype, random_state)
    rows, curve = np.arange(len(y)), []
    for _ in range(n_epochs):
        rows = shuffle(rows, random_state=random_state)
        total = 0.0
        for part in gen_batches(len(y), 16):
            batch = rows[part]
            batch_weight = None if weight is None else weight[batch]
            loss = network.step(X[batch], y[batch], batch_weight, learning_rate=0.02)
            total += loss * len(batch)
        curve.append(total / len(y))
    return network, spec, curve


def coefs_and_intercepts(spec, vector, n_features, n_classes):
    attributes = spec.attributes(vector, n_features, n_classes)
    return attributes["coefs_"], attributes["intercepts_"]


def assert_same_model(network, spec, n_classes, second, rtol=1e-9):
    coefs, intercepts = coefs_and_intercepts(spec, vector_of(network), 7, n_classes)
    ours, theirs = coefs + intercepts, second.coefs_ + second.intercepts_
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=rtol / 10)


@pytest.mark.pairs
@every_task
@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
@pytest.mark.parametrize(
    "optimizer",
    [
        {"solver": "adam", "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-6},
        {"solver": "sgd", "momentum": 0.6, "nesterovs_momentum": False},
        {"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": True},
    ],
    ids=["adam", "momentum", "nesterov"],
)
def test_a_run_equals_that_of_scikit_learn(n_classes, activation, optimizer):
    X, y, _ = problem(n_classes)
    parameters = {"activation": activation, "alpha": 0.1, **optimizer}
    second = sklearn_fit(X, y, None, n_classes, 5, 3, **parameters)
    network, spec, curve = own_fit(X, y, None, n_classes, 5, 3, **parameters)
    assert_same_model(network, spec, n_classes, second)
    np.testing.assert_allclose(curve, second.loss_curve_, rtol=1e-9)


@every_task
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_a_weighted_run_equals_that_of_scikit_learn(n_classes, container):
    X, y, weight = problem(n_classes)
    X[np.abs(X) < 1] = 0
    second = sklearn_fit(X, y, weight, n_classes, 4, 5)
    network, spec, curve = own_fit(container(X), y, weight, n_classes, 4, 5)
    assert_same_model(network, spec, n_classes, second)
    np.testing.assert_allclose(curve, second.loss_curve_, rtol=1e-9)


@every_task
def test_a_run_in_float32_equals_that_of_scikit_learn(n_classes):
    X, y, _ = problem(n_classes, dtype=np.float32)
    second = sklearn_fit(X, y, None, n_classes, 3, 3)
    network, spec, _ = own_fit(X, y, None, n_classes, 3, 3)
    assert network.dtype == np.float32
    assert_same_model(network, spec, n_classes, second, rtol=2e-3)


@every_task
def test_forward_gives_the_predictions_of_a_twin(n_classes):
    X, y, _ = problem(n_classes)
    network, spec, _ = own_fit(X, y, None, n_classes, 3, 0)
    classes = None if n_classes is None else np.array(["d", "e", "f", "g"])[:n_classes]
    vector = vector_of(network)
    second = fitted_sklearn({"hidden_layer_sizes": HIDDEN}, vector, classes, 7)
    predictions = spec.forward(vector, X, n_classes)
    expected = second.predict(X) if n_classes is None else second.predict_proba(X)
    np.testing.assert_allclose(predictions, expected, rtol=1e-12, atol=1e-15)
    sparse_rows = sparse.csr_array(X)
    np.testing.assert_allclose(spec.forward(vector, sparse_rows, n_classes), expected)
    assert spec.forward(vector, X[:0], n_classes).shape == (0, *expected.shape[1:])


@every_task
def test_outputs_tell_the_predictions(n_classes):
    X, y, _ = problem(n_classes)
    network, spec, _ = own_fit(X, y, None, n_classes, 3, 0)
    outputs = network.outputs(X)
    predictions = spec.forward(vector_of(network), X, n_classes)
    if n_classes is None:
        np.testing.assert_array_equal(outputs, predictions)
    elif n_classes == 2:
        assert outputs.shape == (len(X),)
        np.testing.assert_array_equal(outputs > 0, predictions.argmax(axis=1))
        assert 0 < (outputs > 0).sum() < len(X)
    else:
        assert outputs.shape == (len(X), 4)
        np.testing.assert_array_equal(outputs.argmax(1), predictions.argmax(1))


@pytest.mark.parametrize("form", ["shift", "loss"])
@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_pulls_follow_the_formulas(form, solver):
    X, y, weight = problem(4)
    network, other = build(alpha=0.1, solver=solver), build(alpha=0.1, solver=solver)
    start, n_values = vector_of(network), network.n_values
    anchor = np.random.default_rng(0).normal(size=n_values)
    proximal_terms = [ProximalTerm(0, 30, 0.3), ProximalTerm(30, n_values - 10, 0.05)]
    strength = np.zeros(n_values)
    strength[:30], strength[30 : n_values - 10] = 0.3, 0.05
    network.set_anchor(0, anchor)
    loss = network.step(
        X, y, weight, learning_rate=0.01, proximal_terms=proximal_terms, form=form
    )
    if form == "shift":
        other.write(0, start - strength * (start - anchor))
    expected_loss, gradient = other.gradient(X, y, weight)
    if form == "loss":
        gradient = gradient + strength * (start - anchor)
    values = vector_of(other)
    other.slice_optimizer(n_values).step(values, gradient, 0.01)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(vector_of(network), values, rtol=1e-9, atol=1e-12)


@every_form
def test_a_pull_without_strength_or_aim_changes_nothing(form):
    X, y, _ = problem(4)
    network, other = build(), build()
    network.set_anchor(20, np.full(30, 5.0))
    proximal_terms = [
        ProximalTerm(0, 20, 0.5),
        ProximalTerm(20, 50, 0.0),
        ProximalTerm(50, network.n_values, 0.5),
    ]
    for _ in range(3):
        network.step(
            X, y, None, learning_rate=0.01, proximal_terms=proximal_terms, form=form
        )
        other.step(X, y, None, learning_rate=0.01)
    np.testing.assert_array_equal(vector_of(network), vector_of(other))


def test_later_aims_replace_parts_of_earlier_ones():
    X, y, _ = problem(4)
    rng, n_values = np.random.default_rng(3), build().n_values
    network = build(solver="sgd")
    anchors = np.full(n_values, np.nan)
    cuts = [(10, 60), (0, 20), (30, 40), (55, 80), (10, 15), (35, n_values - 3), (3, 5)]
    for start, stop in cuts:
        values = rng.normal(size=stop - start)
        anchors[start:stop] = values
        network.set_anchor(start, values)
    before = vector_of(network)
    proximal_terms = [ProximalTerm(2, 50, 1.0), ProximalTerm(50, n_values, 0.5)]
    network.step(X, y, None, learning_rate=1e-300, proximal_terms=proximal_terms)
    strength = np.where(np.arange(n_values) < 50, 1.0, 0.5)
    strength[:2] = 0
    strength[np.isnan(anchors)] = 0
    expected = before - strength * (before - np.nan_to_num(anchors))
    np.testing.assert_allclose(vector_of(network), expected, rtol=1e-12, atol=1e-15)


def test_an_unknown_form_is_refused():
    X, y, _ = problem(4)
    with pytest.raises(ValueError, match='form must be "shift" or "loss", got'):
        build().step(X, y, None, learning_rate=0.01, form="sum")


def test_read_copies_and_write_replaces():
    network = build()
    before = vector_of(network)
    part = network.read(5, 12)
    part[:] = 7
    np.testing.assert_array_equal(vector_of(network), before)
    network.write(5, part)
    after = before.copy()
    after[5:12] = 7
    np.testing.assert_array_equal(vector_of(network), after)
    with pytest.raises(ValueError, match="broadcast"):
        network.write(network.n_values - 2, np.zeros(3))


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_a_network_goes_on_from_values_and_state(solver):
    X, y, _ = problem(4)
    network, other = build(solver=solver), build(solver=solver, seed=1)
    for _ in range(3):
        network.step(X, y, None, learning_rate=0.01)
    state = pickle.loads(pickle.dumps(network.optimizer_state()))
    other.write(0, vector_of(network))
    other.set_optimizer_state(state)
    for _ in range(3):
        network.step(X, y, None, learning_rate=0.01)
        other.step(X, y, None, learning_rate=0.01)
    np.testing.assert_array_equal(vector_of(other), vector_of(network))


@every_form
def test_divergence_shows_in_the_loss_only(form):
    X, y, _ = problem(None, dtype=np.float32)
    network = build(None, np.float32, activation="identity", solver="sgd")
    network.set_anchor(0, np.ones(network.n_values, np.float32))
    proximal_terms = [ProximalTerm(0, network.n_values, 0.1)]
    losses = [
        network.step(
            X, y, None, learning_rate=1e9, proximal_terms=proximal_terms, form=form
        )
        for _ in range(8)
    ]
    assert np.isfinite(losses[0]) and not np.isfinite(losses[-1])
    assert not np.isfinite(network.outputs(X)).all()


def test_a_spec_can_be_sent_and_builds_the_same_network():
    spec = MLPSpec(HIDDEN, "tanh", alpha=0.2, solver="sgd")
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    first, second = (
        s.build(7, 4, np.dtype(np.float32), np.random.RandomState(4))
        for s in (spec, copy)
    )
    assert isinstance(first, MLPNetwork)
    assert first.n_values == first.n_parameters == len(vector_of(first))
    np.testing.assert_array_equal(vector_of(first), vector_of(second))


@every_task
@pytest.mark.parametrize("hidden", [(), 8, (5, 4)])
def test_a_twin_trains_on(n_classes, hidden):
    X, y, _ = problem(n_classes, n_rows=200)
    sizes = (hidden,) if isinstance(hidden, int) else hidden
    spec = MLPSpec(sizes)
    network = spec.build(7, n_classes, X.dtype, np.random.RandomState(0))
    for _ in range(100):
        network.step(X, y, None, learning_rate=0.01)
    classes = None if n_classes is None else np.arange(n_classes) + 10
    labels = y if n_classes is None else y + 10
    parameters = {"hidden_layer_sizes": hidden, "max_iter": 2, "warm_start": True}
    vector = vector_of(network)
    second = fitted_sklearn(parameters, vector, classes, 7)
    parts = second.coefs_ + second.intercepts_
    assert not any(np.shares_memory(part, vector) for part in parts)
    score = second.score(X, labels)
    assert score > 0.7
    second = pickle.loads(pickle.dumps(second)).partial_fit(X, labels)
    with pytest.warns(ConvergenceWarning):
        second.fit(X, labels)
    assert second.score(X, labels) > score - 0.1
    coefs, _ = coefs_and_intercepts(spec, vector, 7, n_classes)
    assert not np.array_equal(second.coefs_[0], coefs[0])
    np.testing.assert_array_equal(vector, vector_of(network))


def test_coefs_and_intercepts_are_copies():
    network, spec = build(), MLPSpec(HIDDEN)
    vector = vector_of(network)
    coefs, intercepts = coefs_and_intercepts(spec, vector, 7, 4)
    assert [coef.shape for coef in coefs] == [(7, 9), (9, 6), (6, 4)]
    assert [intercept.shape for intercept in intercepts] == [(9,), (6,), (4,)]
    assert not any(np.shares_memory(part, vector) for part in coefs + intercepts)
