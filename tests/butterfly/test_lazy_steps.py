"""Steps that follow their batches against steps over all features."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.butterfly import _agent, _lazy_steps, _steps
from dask_ma.butterfly._changes import (
    Changes,
    Places,
    entries_sent,
    steps_to_agree,
)
from dask_ma.butterfly._decay import Decay, decay_range
from dask_ma.comm import LocalGroup, butterfly_partners, sibling
from dask_ma.data import _blocks

PARAMS = {
    "alpha": 0.01,
    "batch_size": 5,
    "learning_rate": "invscaling",
    "eta0": 0.3,
    "max_iter": 2,
    "tol": None,
    "refine": None,
    "random_state": 0,
}
MIXINGS = ["butterfly", "allreduce", "periodic", "none"]


@pytest.fixture(scope="module")
def rows():
    """120 rows of 60 features, three of which are not zero; 50 and on in no row."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 50, (120, 3))
    X = np.zeros((120, 60))
    np.put_along_axis(X, columns, rng.normal(size=(120, 3)), axis=1)
    y = (X @ rng.normal(size=60) + 0.3 * rng.normal(size=120) > 0).astype(int)
    return sparse.csr_matrix(X), y


@pytest.fixture
def lazily(monkeypatch):
    """``lazily(model, X, y)``: fits in lazy steps, and says how many passes did."""

    def fit(model, X, y, **start):
        made = []
        with monkeypatch.context() as patch:
            patch.setattr(_lazy_steps, "_COST_OF_ENTRY", 0)
            patch.setattr(_lazy_steps, "_COST_SENT", 0)
            init = _lazy_steps.LazySteps.__init__

            def noted(*args):
                made.append(args)
                init(*args)

            patch.setattr(_lazy_steps.LazySteps, "__init__", noted)
            model.fit(X, y, **start)
        assert len(made) == model.n_iter_ * model.n_ranks
        return model

    return fit


def check(lazily, X, y, rtol=1e-9, start=None, **params):
    params.setdefault("n_ranks", 4)
    kind = ButterflySGDRegressor if y.dtype.kind == "f" else ButterflySGDClassifier
    model = kind(**{**PARAMS, **params})
    start = start or {}
    eager = kind(**model.get_params()).fit(X, y, **start)
    lazily(model, X, y, **start)
    scale = np.abs(eager.coef_).max()
    np.testing.assert_allclose(model.coef_, eager.coef_, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(model.intercept_, eager.intercept_, rtol=10 * rtol)
    values = [[r["objective"] for r in fit.history_] for fit in (model, eager)]
    np.testing.assert_allclose(*values, rtol=rtol)
    return eager


@pytest.mark.each(2)
@pytest.mark.parametrize("average", [False, 60])
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("mixing_period", ["auto", 3])
def test_ranks_and_mixings(lazily, rows, n_ranks, mixing, average, mixing_period):
    if mixing == "none":
        mixing_period = "auto"
    params = {"mixing": mixing, "mixing_period": mixing_period}
    check(lazily, *rows, n_ranks=n_ranks, average=average, **params)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0},
        {"preconditioner": None},
        {"preconditioner": "frequency"},
        {"preconditioner": "jacobi", "alpha": 2.0},
        {"preconditioner": "jacobi", "alpha": 2.0, "average": True},
        {"fit_intercept": False},
        {"loss": "hinge"},
        {"loss": "hinge", "alpha": 3.0},  # the ball is small
        {"loss": "hinge", "alpha": 3.0, "average": True, "mixing": "periodic"},
        {"batch_size": 1, "n_ranks": 8, "eta0": 3.0},
        {"learning_rate": "adaptive", "eta0": 300.0, "max_iter": 10},
        {"learning_rate": "adaptive", "average": True, "max_iter": 6},
        {"class_weight": {0: 0.3, 1: 5.0}},
        {"mixing_period": 4, "loss": "hinge", "alpha": 3.0, "average": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_other_parameters(lazily, rows, n_ranks, params):
    rtol = 1e-8 if params.get("learning_rate") == "adaptive" else 1e-9
    check(lazily, *rows, rtol, **{"n_ranks": n_ranks, **params})


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_long_means_of_float32(lazily, rows, monkeypatch, n_ranks, loss):
    # As after some 100,000 steps: what a step adds, against the first, is beyond 1e38.
    for module in (_lazy_steps, _steps):
        monkeypatch.setattr(module, "DEGREE", 300)
    X, y = rows
    params = {"batch_size": 1, "average": True, "loss": loss, "n_ranks": n_ranks}
    check(lazily, X.astype(np.float32), y, 1e-4, **params)


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_regression(lazily, rows, loss):
    X, _ = rows
    check(lazily, X, X @ np.sin(np.arange(60.0)) + 2, loss=loss)


@pytest.mark.each
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("n_ranks", [1, 3, 4])
def test_several_classes_and_a_start(lazily, rows, n_ranks, loss):
    """Features that no row has are shrunk, too."""
    X, _ = rows
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 120)
    start = {"coef_init": rng.normal(size=(3, 60)), "intercept_init": np.ones(3)}
    eager = check(lazily, X, y, start=start, loss=loss, n_ranks=n_ranks, average=30)
    assert (eager.coef_[:, 50:] != start["coef_init"][:, 50:]).all()


def test_numbers_of_32_bits(lazily, rows):
    X, y = rows
    eager = check(lazily, X.astype(np.float32), y, rtol=2e-4, n_ranks=3)
    assert eager.coef_.dtype == np.float32


@pytest.mark.each
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_scales_of_many_orders(lazily, rows, n_ranks, average):
    """Some rows are shrunk to nothing in a step, others not at all."""
    X, y = rows
    X = X @ sparse.diags(10.0 ** np.linspace(-4, 4, 60))
    params = {"preconditioner": "jacobi", "n_ranks": n_ranks, "average": average}
    check(lazily, X.tocsr(), y, **params, max_iter=6)


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
def test_the_sibling_of_a_rank_has_its_state(monkeypatch, lazily, rows, n_ranks):
    weights = {}
    make_steps = _agent.make_steps

    def watched(context, *args):
        state = make_steps(context, *args)
        weights[context.group.rank, state.n_passes] = state.t, state.weights.copy()
        return state

    monkeypatch.setattr(_agent, "make_steps", watched)
    lazily(ButterflySGDClassifier(**PARAMS, n_ranks=n_ranks), *rows)
    assert len(weights) == 2 * n_ranks
    for (rank, n_passes), (t, own) in weights.items():
        other = weights[sibling(rank, t - 2, n_ranks), n_passes][1]
        np.testing.assert_array_equal(own, other)


def wide_rows(n_features=20_000):
    """400 rows whose batches are small beside the model."""
    rng = np.random.default_rng(3)
    places = rng.integers(0, n_features, (400, 4))
    ends = np.arange(0, 1601, 4)
    values = rng.normal(size=1600)
    X = sparse.csr_matrix((values, places.ravel(), ends), shape=(400, n_features))
    X.sum_duplicates()
    return X, rng.integers(0, 2, 400)


WIDE = {"max_iter": 2, "tol": None, "random_state": 0, "batch_size": 20, "refine": None}


@pytest.mark.parametrize(
    "params",
    [
        {"n_ranks": 4},
        {"n_ranks": 4, "average": True},
        {"n_ranks": 2, "mixing": "allreduce", "loss": "hinge"},
    ],
    ids=str,
)
def test_threads_and_processes_agree(process_client, rows, params):
    X, y = wide_rows()

    def fit():
        model = ButterflySGDClassifier(**WIDE, **params).fit(X, y)
        return model.coef_.tobytes(), model.intercept_.tobytes()

    there = fit()
    with process_client.as_current():
        assert fit() == there


@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic"])
def test_messages_follow_the_batches(monkeypatch, mixing):
    """A step sends the weights that have changed, not all of them."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    X, y = wide_rows()

    def bytes_of_steps():
        sent = []
        for batch_size in (20, 100):
            params = {**WIDE, "batch_size": batch_size, "mixing": mixing, "n_ranks": 2}
            model = ButterflySGDClassifier(**params, mixing_period=1).fit(X, y)
            sent.append(sum(record["bytes_sent"] for record in model.history_))
        return sent[0] - sent[1]

    few = bytes_of_steps()
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: False)
    assert few < 0.01 * bytes_of_steps()


@pytest.mark.parametrize("average", [False, True])
def test_messages_do_not_have_the_indices_of_the_input(monkeypatch, average):
    """Blocks of very many elements have some of 64 bits; those of rows are of 32."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: True)
    X, y = wide_rows()
    X = sparse.csr_array(X)  # picked rows of a csr_matrix have indices of 32 bits
    wide = X.copy()
    wide.indices, wide.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    model = ButterflySGDClassifier(**WIDE, n_ranks=2, average=average)
    models = [clone(model).fit(X, y)]
    monkeypatch.setattr(_blocks, "_LARGEST_INT32", 1)
    models.append(clone(model).fit(wide, y))
    sent = [[record["bytes_sent"] for record in fit.history_] for fit in models]
    assert sent[0] == sent[1]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic"])
def test_ends_of_passes_follow_the_batches(monkeypatch, mixing, n_ranks):
    """Nor does the end of a pass, or its start, send the weights of all features."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: True)
    X, y = wide_rows()
    params = {**WIDE, "mixing": mixing, "n_ranks": n_ranks}
    model = ButterflySGDClassifier(**params).fit(X, y)
    for record in model.history_[1:]:
        assert record["bytes_sent"] < n_ranks * model.coef_.nbytes


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(
    "mixing, n_ranks, agree",
    [
        ("butterfly", 1, True),
        ("butterfly", 2, True),
        ("butterfly", 4, False),
        ("allreduce", 4, True),
        ("periodic", 2, True),
        ("none", 2, False),
    ],
)
def test_what_the_next_pass_knows(monkeypatch, mixing, n_ranks, agree, is_lazy):
    """Where all ranks have the same weights after a pass, they are the model."""
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: is_lazy)
    states = []
    merge = _agent.merge

    def noted(*args):
        model, state = merge(*args)
        states.append((state, state.weights.copy()))
        return model, state

    monkeypatch.setattr(_agent, "merge", noted)
    params = {**WIDE, "mixing": mixing, "n_ranks": n_ranks, "eta0": 0.01}
    ButterflySGDClassifier(**params).fit(*wide_rows(200))
    assert len(states) == 2 * n_ranks
    base = states[-1][0].base
    for state, _ in states[-n_ranks:]:
        np.testing.assert_array_equal(state.base, base)
    for state, weights in states:
        assert state.is_base == (weights == state.base).all() == agree
        assert not np.shares_memory(state.base, state.weights)


def test_which_fits_are_lazy(monkeypatch):
    seen = []
    is_small = _lazy_steps.is_small

    def noted(*args):
        seen.append(is_small(*args))
        return seen[-1]

    monkeypatch.setattr(_lazy_steps, "is_small", noted)
    for width, batch_size, n_ranks in [
        (20_000, 20, 1),
        (20_000, 200, 1),
        (20_000, 20, 4),
        (20_000, 20, 3),
    ]:
        X, y = wide_rows(width)
        params = {**WIDE, "batch_size": batch_size, "n_ranks": n_ranks, "max_iter": 1}
        ButterflySGDClassifier(**params).fit(X, y)
    assert seen == [True, False] + [True] * 4 + [False] * 3
    ButterflySGDClassifier(**WIDE).fit(X[:, :500].toarray(), y)
    assert not seen[-1]


# Their parts ------------------------------------------------------------------------


def decay_of(preconditioner, amounts, most=1e9):
    bounds = decay_range(preconditioner)
    n_features = 7 if preconditioner is None else len(preconditioner)
    dtype = np.dtype(np.float64)
    return Decay(preconditioner, bounds, n_features, dtype, most, np.array(amounts))


@pytest.mark.parametrize(
    "amount", [0, 1e-14, 1e-10, 1e-8, 2.9e-7, 1e-6, 1e-3, 1.0, 1e3]
)
def test_factors_are_the_product(amount):
    preconditioner = 10 ** np.linspace(-3, 5, 400)
    amounts = amount / np.sqrt(np.arange(1, 31))
    decay = decay_of(preconditioner, amounts)
    for step in amounts:
        decay.advance(step)
    rows = np.arange(401)
    logs = np.log1p(np.outer(amounts, preconditioner)).sum(axis=0)
    found = decay.factors(rows)[:, 0]
    assert found[400] == 1
    np.testing.assert_allclose(-np.log(found[:400]), logs, rtol=1e-11, atol=1e-13)
    decay.restart(0)
    assert (decay.factors(rows) == 1).all()
    decay.advance(amounts[0])
    found, expected = (
        decay.factors(rows)[:400, 0],
        1 / (1 + amounts[0] * preconditioner),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("alpha", [1e-6, 1e-4, 1e-3])
def test_passes_that_shrink_little(lazily, rows, alpha):
    check(lazily, *rows, alpha=alpha, preconditioner=None, eta0=10.0, n_ranks=2)
    check(lazily, *rows, alpha=alpha, average=True, n_ranks=3)


@pytest.mark.each(2)
@pytest.mark.parametrize("power", range(-24, 25, 3))
@pytest.mark.parametrize("n_below", [-1, 0, 1, 2])
def test_elements_where_intervals_meet(power, n_below):
    """As where the largest one should be 1, but for rounding."""
    edge = np.exp2(power / 2) * (1 - n_below * 2.0**-53)
    preconditioner = np.array([1e-6 * edge, 0.1 * edge, edge])
    amounts = np.full(300, 0.01 / edge)
    decay, rows = decay_of(preconditioner, amounts, most=0.5), np.arange(3)
    found = np.ones(3)
    for amount in amounts:
        decay.advance(amount)
        if decay.due is not None:
            due, own = decay.due, decay.rows_from(decay.due)
            found[own] *= decay.factors(own)[:, 0]
            decay.restart(due)
    found *= decay.factors(rows)[:, 0]
    expected = (1 + amounts[0] * preconditioner) ** -len(amounts)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_sums_of_factors():
    preconditioner = 10 ** np.linspace(-3, 2, 100)
    amounts = np.full(20, 1e-3)
    decay = decay_of(preconditioner, amounts)
    expected, factors = np.zeros(100), np.ones(100)
    for number, amount in enumerate(amounts):
        decay.advance(amount)
        decay.count(number)
        factors /= 1 + amount * preconditioner
        expected += number * factors
    found = decay.sums(np.arange(101))[:, 0]
    np.testing.assert_allclose(found[:100], expected, rtol=1e-11)
    assert found[100] == decay.total == sum(range(20))


def test_rows_are_restarted_that_are_shrunk_most():
    preconditioner = np.array([1.0, 1000.0, 1.0, 200.0, 1.0])
    amounts = np.full(10, 1e-2)
    decay = decay_of(preconditioner, amounts, most=3.0)
    assert decay.due is None
    decay.advance(1e-2)
    assert decay.due is None
    decay.advance(1e-2)  # the first by 11 ** 2, the second by 9
    assert sorted(decay.rows_from(decay.due)) == [1, 3]
    rows = np.arange(6)
    before = decay.factors(rows)[:, 0]
    np.testing.assert_array_equal(
        decay.factors(rows, decay.due)[:, 0], [1, before[1], 1, before[3], 1, 1]
    )
    decay.restart(decay.due)
    np.testing.assert_array_equal(decay.factors(rows)[[1, 3], 0], 1)
    np.testing.assert_array_equal(decay.factors(rows)[[0, 2, 4], 0], before[[0, 2, 4]])


def test_ranges_that_cannot_be_followed():
    assert decay_range(None) == (1, 1)
    assert decay_range(np.array([2.0, 0.5])) == (0.5, 2)
    for values in ([0.0, 1.0], [1.0, np.inf], [1e-30, 1.0]):
        assert decay_range(np.array(values)) is None


def test_changes_are_added_up():
    rng = np.random.default_rng(0)
    places = Places(50)
    for size in (0, 1, 9, 30):
        parts = []
        for _ in range(2):
            rows = rng.permutation(50)[:size].astype(np.int32)
            parts.append(Changes(rows, rng.normal(size=(size, 2))))
        dense = np.zeros((2, 50, 2))
        for array, part in zip(dense, parts, strict=True):
            array[part.rows] = part.values
        sums = [places.add(*parts), places.add(*parts[::-1]), places.add_up(parts)]
        for total in sums:
            assert len(set(total.rows)) == len(total.rows)
            found = np.zeros((50, 2))
            found[total.rows] = total.values
            np.testing.assert_array_equal(found, dense.sum(axis=0))


def test_rows_that_a_change_has_twice_are_added_up():
    changes = Changes(np.array([7, 2, 7], dtype=np.int32), np.array([[1.0], [2], [4]]))
    rows, values = Places(9).add_up([changes])
    assert dict(zip(rows.tolist(), values[:, 0].tolist(), strict=True)) == {7: 5, 2: 2}


def test_rows_are_named_once():
    rows = np.array([3, 1, 3, 3, 0, 1], dtype=np.int32)
    assert sorted(Places(5).distinct(rows)) == [0, 1, 3]


@pytest.mark.parametrize("n", [0, 1, 40])
def test_rows_are_named_and_found_together(n):
    places = Places(30)
    rows = np.random.default_rng(n).integers(0, 30, n).astype(np.int32)
    expected = places.distinct(rows)
    for _ in range(2):  # what is left of the last time makes no difference
        names, found = places.named(rows)
        np.testing.assert_array_equal(names, expected)
        np.testing.assert_array_equal(names[found], rows)
        places.find(np.arange(30, dtype=np.int32), rows)


@pytest.mark.parametrize("size", range(2, 18))
def test_after_so_many_exchanges_all_ranks_agree(size):
    dtype = np.dtype(np.float64)
    n_exchanges, n_joined = steps_to_agree(size, dtype)
    mixed = np.eye(size)
    for step in range(n_exchanges):
        sources = [butterfly_partners(rank, step, size).source for rank in range(size)]
        mixed = (mixed + mixed[sources]) / 2
    assert (n_joined == 1) == (size & (size - 1) == 0)
    np.testing.assert_allclose(mixed, 1 / size, rtol=0, atol=1e-15)
    assert entries_sent(size, "none", dtype) == 0
    assert entries_sent(size, "allreduce", dtype) == size


@pytest.mark.parametrize(
    "params", [{}, {"average": True, "mixing": "periodic"}], ids=str
)
def test_a_resumed_fit_is_an_uninterrupted_one(tmp_path, params):
    X, y = wide_rows()
    params = {**WIDE, "max_iter": 3, "n_ranks": 4, **params}
    whole = ButterflySGDClassifier(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        ButterflySGDClassifier(**{**params, "max_iter": 2}).fit(X, y)
        resumed = ButterflySGDClassifier(**params).fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert [record["round"] for record in resumed.history_] == list(range(1, 4))
