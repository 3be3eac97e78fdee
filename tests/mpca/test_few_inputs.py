"""Networks on rows of words, of which a batch has few: steps for those alone."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.kernels import FewInputSteps
from dask_ma.kernels import _mlp_few as few
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._mlp import MLPNetwork, MLPSpec
from dask_ma.mpca.networks._network import Scaling

N_WORDS = 60


@pytest.fixture(autouse=True)
def for_small_networks(monkeypatch):
    monkeypatch.setattr(few, "_BESIDES", 0)


@pytest.fixture
def for_all(monkeypatch):
    """Called, steps are for all inputs."""

    def turn_off():
        monkeypatch.setattr(FewInputSteps, "inputs_of", lambda self, X: None)

    return turn_off


@pytest.fixture
def counted(monkeypatch):
    """Numbers of inputs of the steps that are for few of them."""
    counts = []
    for name, at in (("step", 1), ("descend", 0)):
        make = getattr(FewInputSteps, name)

        def step(self, *args, make=make, at=at, **kwargs):
            counts.append(len(args[at]))
            return make(self, *args, **kwargs)

        monkeypatch.setattr(FewInputSteps, name, step)
    return counts


def words(n_rows=120, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = sparse.random(n_rows, N_WORDS, 0.03, "csr", dtype, rng)
    weights = np.random.default_rng(1).normal(size=N_WORDS)
    return X, X @ weights + rng.normal(scale=0.01, size=n_rows)


def as_blocks(X, rows):
    """A Dask array with a block for each rank."""
    blocks = [
        da.from_delayed(
            dask.delayed(X[part]),
            (len(part), N_WORDS),
            X.dtype,
            sparse.csr_array([[0]]),
        )
        for part in rows
        if len(part)
    ]
    return da.concatenate(blocks)


def as_arrays(rows, *arrays):
    chunks = (tuple(len(part) for part in rows if len(part)),)
    return [da.from_array(array, chunks) for array in arrays]


def build(**params):
    params = {"hidden_layer_sizes": (5,), "alpha": 0.0, "epsilon": 1e-12} | params
    spec = MLPSpec(**params)
    return spec.build(N_WORDS, 2, np.dtype(np.float64), np.random.RandomState(0))


def batches(n_batches=25):
    X, y = words(5 * n_batches)
    for start in range(0, 5 * n_batches, 5):
        yield X[start : start + 5], (y[start : start + 5] > 0).astype(float)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def values_of(network):
    return network.read(0, network.n_values)


def test_a_network_makes_the_steps_for_all_inputs(for_all, counted):
    networks = build(), build()
    scaling = Scaling(np.zeros(N_WORDS), np.linspace(0.5, 2, N_WORDS))
    for number, network in enumerate(networks):
        if number:
            for_all()
        network.set_scaling(scaling)
        for X, y in batches():
            network.step(X, y, None, learning_rate=0.01)
    assert len(counted) == 25 and max(counted) < N_WORDS / 3
    few_inputs, every = networks
    close(values_of(few_inputs), values_of(every))
    X, _ = words(seed=3)
    close(few_inputs.outputs(X), every.outputs(X))
    state, expected = few_inputs.optimizer_state(), every.optimizer_state()
    assert state["n_steps"] == expected["n_steps"] == 25
    for name in ("first_moment", "second_moment"):
        close(state[name], expected[name])


@pytest.mark.parametrize("params", [{"solver": "sgd"}, {"beta_1": 0.99}])
def test_optimizers_whose_steps_cannot_wait_make_them_for_all(params, counted):
    network = build(**params)
    for X, y in batches(3):
        network.step(X, y, None, learning_rate=0.01)
    assert not counted


def test_a_centre_is_for_all_inputs(counted):
    network = build()
    network.set_scaling(Scaling(np.full(N_WORDS, 0.1), np.ones(N_WORDS)))
    for X, y in batches(3):
        network.step(X, y, None, learning_rate=0.01)
    assert not counted


@pytest.mark.parametrize("form", ["shift", "loss"])
@pytest.mark.parametrize("every", [1, 5])
def test_pulls_are_for_all_inputs(form, every, for_all, counted):
    """The steps that wait may come after a pull that comes now and then."""
    networks = build(), build()
    anchor = np.random.default_rng(2).normal(size=networks[0].n_values)
    term = ProximalTerm(7, networks[0].n_values - 2, 1e-3)
    for number, network in enumerate(networks):
        if number:
            for_all()
        network.set_anchor(0, anchor)
        for at, (X, y) in enumerate(batches()):
            terms = [] if at % every else [term]
            network.step(
                X, y, None, learning_rate=0.01, proximal_terms=terms, form=form
            )
    few_inputs, everything = (values_of(network) for network in networks)
    n_pulled = -(-25 // every)
    assert len(counted) == 25 - n_pulled * (form == "loss" or every == 1) + (
        form == "shift" and every == 1
    )
    np.testing.assert_allclose(few_inputs, everything, rtol=1e-3, atol=1e-4)


def test_losses_have_the_penalty_of_weights_that_were_drawn(for_all, counted):
    networks = [build(alpha=1.0, epsilon=1.0) for _ in range(2)]
    anchor = np.full(networks[0].n_values, 0.3)
    term = ProximalTerm(0, len(anchor), 0.5)
    losses = []
    for number, network in enumerate(networks):
        if number:
            for_all()
        network.set_anchor(0, anchor)
        losses.append(
            [
                network.step(
                    X, y, None, learning_rate=1e-9, proximal_terms=[term][at != 3 :]
                )
                for at, (X, y) in enumerate(batches(6))
            ]
        )
    assert len(counted) == 6
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_values_that_are_written_stay(counted):
    network, X_y = build(), list(batches(6))
    for X, y in X_y[:5]:
        network.step(X, y, None, learning_rate=0.01)
    new = np.random.default_rng(0).normal(size=20)
    network.write(3, new)
    np.testing.assert_array_equal(network.read(3, 23), new)
    state = network.optimizer_state()
    network.set_optimizer_state(state)
    np.testing.assert_array_equal(network.read(3, 23), new)
    other = build()
    other.write(0, values_of(network))
    other.set_optimizer_state(state)
    for each in (network, other):
        each.step(*X_y[5], None, learning_rate=0.01)
    np.testing.assert_array_equal(values_of(network), values_of(other))
    assert len(counted) == 7


def test_gradients_are_those_of_weights_that_do_not_wait():
    network, other, X_y = build(), build(), list(batches(6))
    for X, y in X_y[:5]:
        network.step(X, y, None, learning_rate=0.01)
    other.write(0, values_of(network))
    X, y = X_y[5]
    found, expected = (each.gradient(X, y, None)[1] for each in (network, other))
    np.testing.assert_array_equal(found, expected)
    found, expected = (
        each.gradient_part(X, y, None, 1.0).gradient for each in (network, other)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
def test_fits_end_where_steps_for_all_inputs_end(cls, for_all, counted):
    X, y = words(200)
    y = (y > 0).astype(int) if cls is MPCAClassifier else y
    found = []
    for _ in range(2):
        model = cls((6,), batch_size=8, max_iter=5, tol=None, random_state=0, alpha=0)
        model.set_params(learning_rate_init=0.01, early_stopping=True)
        found.append(model.fit(X, y))
        for_all()
    assert counted
    for ours, theirs in zip(found[0].coefs_, found[1].coefs_, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[0].loss_curve_, found[1].loss_curve_, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["mpca", "synchronous", "easgd", "gradients"])
def test_ranks_learn_words(strategy, counted):
    X, y = words(600)
    labels = (y > 0).astype(int)
    model = MPCAClassifier((6,), batch_size=8, max_iter=40, tol=None, random_state=0)
    model.set_params(strategy=strategy, n_ranks=3, learning_rate_init=0.01)
    assert model.fit(X, labels).score(X, labels) > 0.85
    assert counted


@pytest.mark.parametrize("alpha", [0, 1e-3])
@pytest.mark.parametrize("cut", [(100, 100), (150, 37, 13), (200, 0)])
def test_sums_of_gradients_are_those_of_all_inputs(cut, alpha, for_all, counted):
    """Of ranks of as many rows, or of more or less, or none."""
    X, y = words(200)
    weight = np.random.default_rng(5).uniform(0, 2, 200)
    weight[-60:] = 0
    blocks = np.cumsum(cut)[:-1]
    rows = [np.arange(200)[part] for part in np.split(np.arange(200), blocks)]
    found = []
    for _ in range(2):
        model = MPCARegressor((6,), batch_size=4, max_iter=3, tol=None, random_state=0)
        model.set_params(strategy="gradients", n_ranks=len(cut), shuffle=False)
        model.set_params(learning_rate_init=0.003, alpha=alpha)
        found.append(model.fit(as_blocks(X, rows), *as_arrays(rows, y, weight)))
        for_all()
    assert bool(counted)
    most = 0.1 if alpha else 1e-5
    for ours, theirs in zip(found[0].coefs_, found[1].coefs_, strict=True):
        assert np.linalg.norm(ours - theirs) < most * np.linalg.norm(theirs)
    np.testing.assert_allclose(found[0].loss_curve_, found[1].loss_curve_, rtol=most)


def test_losses_of_sums_have_the_penalty_once(for_all, counted):
    X, y = words(200)
    found = []
    for _ in range(2):
        model = MPCARegressor((6,), batch_size=4, max_iter=2, tol=None, random_state=0)
        model.set_params(strategy="gradients", n_ranks=2, shuffle=False, alpha=1.0)
        found.append(model.set_params(learning_rate_init=1e-9).fit(X, y).loss_curve_)
        for_all()
    assert counted
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_all_ranks_have_the_same_weights(monkeypatch, counted):
    """Also where one looks at outputs, for which its weights no longer wait."""
    X, y = words(200)
    make, networks = MLPSpec.build, []

    def build(*args):
        networks.append(make(*args))
        return networks[-1]

    def end_epoch(self, loss):
        if self is networks[0]:
            self.outputs(X[:1])

    monkeypatch.setattr(MLPSpec, "build", build)
    monkeypatch.setattr(MLPNetwork, "end_epoch", end_epoch)
    model = MPCARegressor((6,), batch_size=4, max_iter=4, tol=None, random_state=0)
    model.set_params(strategy="gradients", n_ranks=2, shuffle=False).fit(X, y)
    assert counted and len(networks) == 2
    one, other = map(values_of, networks)
    np.testing.assert_array_equal(one, other)


def test_a_rank_of_many_inputs_makes_the_step_one_for_all(counted, for_all):
    X, y = words(120)
    X = sparse.vstack([X[:60], sparse.csr_array(np.ones((60, N_WORDS)))]).tocsr()
    found = []
    for _ in range(2):
        model = MPCARegressor((6,), batch_size=4, max_iter=2, tol=None, random_state=0)
        model.set_params(strategy="gradients", n_ranks=2, shuffle=False, alpha=0)
        rows = [np.arange(60), np.arange(60, 120)]
        found.append(model.fit(as_blocks(X, rows), *as_arrays(rows, y)))
        for_all()
    assert not counted
    for ours, theirs in zip(found[0].coefs_, found[1].coefs_, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_partial_fits_go_on(for_all, counted):
    X, y = words(200)
    labels, found = (y > 0).astype(int), []
    for _ in range(2):
        model = MPCAClassifier((6,), batch_size=8, random_state=0, alpha=0)
        for start in range(0, 200, 40):
            part = slice(start, start + 40)
            model.partial_fit(X[part], labels[part], classes=[0, 1])
        found.append(model)
        for_all()
    assert counted
    np.testing.assert_allclose(
        found[0].coefs_[0], found[1].coefs_[0], rtol=1e-3, atol=1e-5
    )


def test_checkpoints_hold_weights_that_do_not_wait(tmp_path, counted):
    X, y = words(200)
    labels = (y > 0).astype(int)
    params = {"batch_size": 8, "tol": None, "random_state": 0}
    whole = MPCAClassifier((6,), max_iter=6, **params).fit(X, labels)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        MPCAClassifier((6,), max_iter=3, **params).fit(X, labels)
        n_before = len(counted)
        rest = MPCAClassifier((6,), max_iter=6, **params).fit(X, labels)
    assert len(counted) == n_before * 4 // 3
    for ours, theirs in zip(rest.coefs_, whole.coefs_, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
