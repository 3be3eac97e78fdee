"""MPCAClassifier against scikit-learn's, on threads and clusters, rank by rank."""

import time
from operator import attrgetter

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.neural_network import MLPClassifier

from dask_ma import MPCAClassifier
from dask_ma.mpca import strategies
from dask_ma.mpca.networks._mlp import MLPNetwork
from dask_ma.mpca.training import _agent

QUICK = {"hidden_layer_sizes": (8,), "batch_size": 16, "tol": None, "random_state": 0}
QUICK |= {"max_iter": 3, "learning_rate_init": 0.01}


def fit(data, weight=None, **params):
    model = MPCAClassifier(**{**QUICK, **params})
    return model.fit(*data, sample_weight=weight)


def fit_theirs(data, weight=None, **params):
    params = {**QUICK, "tol": 0.0, "n_iter_no_change": 1000, **params}
    with pytest.warns(UserWarning, match="Maximum iterations"):
        return MLPClassifier(**params).fit(*data, sample_weight=weight)


# One rank -----------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("data", ["binary", "multi"])
def test_one_rank_is_scikit_learn(request, check_same, solver, dtype, container, data):
    X, y = request.getfixturevalue(data)
    names = np.array(["d", "a", "c", "b"])[y]
    params = {"solver": solver, "hidden_layer_sizes": (7, 5), "max_iter": 5}
    ours, theirs = (
        f((container(X.astype(dtype)), names), **params) for f in (fit, fit_theirs)
    )
    rtol = 1e-10 if dtype is np.float64 else 1e-4
    check_same(ours, theirs, rtol)
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=rtol)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert ours.n_iter_ == theirs.n_iter_ == 5
    assert ours.out_activation_ == theirs.out_activation_
    np.testing.assert_allclose(
        ours.predict_proba(X), theirs.predict_proba(X), rtol=1e-4, atol=rtol
    )


@pytest.mark.parametrize("strategy", ["mpca", "synchronous", "easgd"])
def test_one_rank_is_alike_with_all_strategies(multi, check_same, strategy):
    check_same(fit(multi, strategy=strategy), fit(multi, strategy="local"))


@pytest.mark.parametrize("data", ["binary", "multi"])
def test_weights_are_those_of_scikit_learn(request, check_same, weights, data):
    data = request.getfixturevalue(data)
    weights = weights / weights.mean()
    theirs = fit_theirs(data, weights)
    check_same(fit(data, weights), theirs, 1e-10)
    assert abs(fit(data).coefs_[0] - theirs.coefs_[0]).max() > 1e-3


def test_class_weights_are_weights(multi, check_same):
    X, y = multi
    factors = np.array([1.0, 2.0, 0.5, 3.0])
    balanced = len(y) / 4 / np.bincount(y)
    for given, expected in [
        (dict(enumerate(factors)), factors),
        ("balanced", balanced),
    ]:
        model = fit(multi, class_weight=given)
        weights = expected[y] / expected[y].mean()
        check_same(model, fit(multi, weights), 1e-10)
    check_same(model, fit_theirs(multi, weights), 1e-10)


def test_weight_zero_is_no_row(multi, check_same):
    X, y = multi
    weight = (np.arange(120) % 4 > 0).astype(float)
    kept = weight > 0
    check_same(fit(multi, weight), fit((X[kept], y[kept])), 1e-12)
    ranks = fit(multi, weight, n_ranks=3, strategy="local")
    assert sum(record["n_samples"] for record in ranks.history_) == 3 * 90


def test_no_layers_and_strategies_act(multi):
    """All other parameters do, too, as the table of all estimators has it."""
    assert [w.shape for w in fit(multi, hidden_layer_sizes=()).coefs_] == [(6, 4)]
    chosen = ["local", "synchronous", strategies.Synchronous(period=2)]
    models = [fit(multi, strategy=one, n_ranks=3) for one in chosen]
    for i, model in enumerate(models):
        for other in models[:i]:
            assert not np.array_equal(model.coefs_[-1], other.coefs_[-1])


@pytest.mark.parametrize(
    ("name", "value", "strategy", "attribute", "expected"),
    [
        ("n_phases", 3, "mpca", "_cut.n_shards", 3),
        ("weighting", "uniform", "mpca", "_by_steps", False),
        ("extrapolation", 0.2, "mpca", "_schedule.extrapolation", 0.2),
        ("extrapolation", "auto", "mpca", "_schedule.extrapolation", 3.5),
        ("penalty", 0.05, "mpca", "_schedule.extrapolation", 2.5),
        ("penalty_form", "loss", "mpca", "_schedule.extrapolation", 2.5),
        ("smoothing", 0.3, "mpca", "_schedule.smoothing", 0.3),
        ("penalty", 0.2, "mpca", "_schedule.penalty", 0.2),
        ("penalty", "auto", "mpca", "_schedule.penalty", None),
        ("penalty_form", "loss", "mpca", "_schedule.penalty", 0.05),
        ("blending", 0.5, "mpca", "_schedule.blending", 0.5),
        ("elasticity", 0.4, "easgd", "_elasticity", 0.4),
        ("elasticity", None, "easgd", "_elasticity", 0.45),
        ("period", 3, "easgd", "_period", 3),
        ("period", None, "easgd", "_period", 4),
        ("period", 3, "synchronous", "_period", 3),
        ("period", None, "synchronous", "_period", 4),
    ],
)
def test_parameters_of_exchanges_reach_the_strategies(
    monkeypatch, multi, name, value, strategy, attribute, expected
):
    """What they do there, tests of the strategies tell; 120 rows make 4 steps."""
    seen = []
    make = _agent.Trainer._make_strategy

    def made(self, *args):
        strategy = make(self, *args)
        seen.append(attrgetter(attribute)(strategy))
        return strategy

    monkeypatch.setattr(_agent.Trainer, "_make_strategy", made)
    model = MPCAClassifier(**QUICK, n_ranks=2, strategy=strategy)
    model.set_params(**{f"strategy__{name}": value}).fit(*multi)
    assert seen == [expected, expected]


def test_the_form_of_the_penalty_reaches_the_steps(monkeypatch, multi):
    seen = set()
    step = MLPNetwork.step

    def stepped(self, *args, form="shift", **kwargs):
        seen.add(form)
        return step(self, *args, form=form, **kwargs)

    monkeypatch.setattr(MLPNetwork, "step", stepped)
    fit(multi, n_ranks=2, strategy=strategies.MPCA(penalty_form="loss"))
    assert seen == {"loss"}


def test_a_period_that_is_cut_is_told(multi):
    for kind in (strategies.Synchronous, strategies.ElasticAveraging):
        with pytest.warns(UserWarning, match="period=9 of the strategy is cut to 4"):
            fit(multi, n_ranks=2, strategy=kind(period=9))


@pytest.mark.parametrize(
    "changed",
    [{"hidden_layer_sizes": (5,)}, {"activation": "tanh"}, {"alpha": 0.1}]
    + [{"solver": "sgd"}, {"momentum": 0.5}, {"nesterovs_momentum": False}]
    + [{"beta_1": 0.5}, {"beta_2": 0.5}, {"epsilon": 1e-3}, {"power_t": 0.3}],
)
def test_parameters_of_the_built_in_network_are_refused_with_a_module(multi, changed):
    (name,) = changed
    model = MPCAClassifier(module=object, **changed)
    with pytest.raises(ValueError, match=f"{name}=.* no effect with module="):
        model.fit(*multi)
    given = {"hidden_layer_sizes": [100], "activation": "relu", "alpha": 1e-4}
    with pytest.raises(Exception, match="Module"):  # those are the defaults
        MPCAClassifier(module=object, **given).fit(*multi)


# Several ranks ------------------------------------------------------------------------


def learn(digits, **params):
    params = {"max_iter": 8, "learning_rate_init": 0.01, **params}
    return fit(digits.train, hidden_layer_sizes=(32,), **params)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [3, 4])
def test_every_strategy_learns(digits, strategy, n_ranks):
    model = learn(digits, strategy=strategy, n_ranks=n_ranks)
    assert model.score(*digits.test) > 0.75
    assert model.n_iter_ == 8
    assert model.loss_curve_[-1] < model.loss_curve_[0] / 2


@pytest.mark.parametrize("strategy", ["mpca", "easgd", "parameter_server"])
def test_processes_learn(digits, processes, strategy):
    """As well as ranks in threads, though messages take longer."""
    # A server answers each of their batches.
    max_iter = 8 if strategy == "parameter_server" else 12
    model = learn(digits, strategy=strategy, max_iter=max_iter)
    assert model.score(*digits.test) > 0.8
    sent = sum(record["bytes_sent"] for record in model.history_)
    n_values = sum(w.size + b.size for w, b in zip(model.coefs_, model.intercepts_))
    assert sent > 3 * n_values * 8  # some models came to other processes
    assert set(model.timeline_["rank"]) == {0, 1, 2, 3}


def digest(model):
    values = [part.tobytes() for part in (*model.coefs_, *model.intercepts_)]
    history = [
        [record[name] for name in ("epoch", "loss", "n_samples", "tau")]
        for record in model.history_
    ]
    return values, history, model.loss_curve_, model.validation_scores_


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
@pytest.mark.usefixtures("undealt")
def test_threads_and_clusters_agree(multi, inproc_client, process_client, strategy):
    X, y = multi
    params = {"strategy": strategy, "n_ranks": 4, "batch_size": 8, "max_iter": 2}

    def fit_all():
        return [
            digest(fit(multi, **params)),
            digest(fit((sparse.csr_array(X), y), early_stopping=True, **params)),
        ]

    here = fit_all()
    assert here[0] != here[1]
    for client in (inproc_client, process_client):
        with client.as_current():
            assert fit_all() == here
            rows = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
            assert digest(fit(rows, **params)) == here[0]


@pytest.mark.parametrize("params", [{}, {"strategy": "synchronous", "n_ranks": 3}])
def test_seeds(multi, params):
    fits = [digest(fit(multi, **params, random_state=seed)) for seed in (0, 0, 1, None)]
    assert fits[0] == fits[1]
    assert fits[2] != fits[0] != fits[3] != fits[2]
    rng = np.random.RandomState(0)
    again = [digest(fit(multi, **params, random_state=rng)) for _ in range(2)]
    assert again[0] != again[1]


@pytest.mark.filterwarnings("ignore:the ranks have rows of different classes")
def test_labels_on_one_rank_only(multi, cluster, strategy):
    """Blocks sorted by class, one of a single row."""
    X, y = multi
    order = np.argsort(-y, kind="stable")
    names = np.array(["d", "a", "c", "b"])[y[order]]
    sizes = (1, 9, 40, 70)
    rows = da.from_array(X[order], (sizes, 6)), da.from_array(names, (sizes,))
    model = fit(rows, strategy=strategy, max_iter=5)
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    assert 0 < max(model.loss_curve_) < 4
    assert set(model.predict(X)) <= set("abcd")


def test_a_rank_without_rows(multi, cluster, strategy):
    X, y = multi
    rows = da.from_array(X, chunks=(120, 6)), da.from_array(y, chunks=120)
    model = fit(rows, strategy=strategy, n_ranks=3, max_iter=20)
    assert model.score(X, y) > 0.5
    assert np.isfinite(model.loss_curve_).all()


def test_a_row_on_each_rank_and_none_on_some(multi, strategy):
    """Less rows than ranks, and less rows than there are in a batch."""
    X, y = multi
    for n_rows, n_ranks in [(4, 4), (3, 2), (2, 3)]:
        model = fit(
            (X[:n_rows], np.arange(n_rows) % 2),
            strategy=strategy,
            n_ranks=n_ranks,
            batch_size=500,
            max_iter=5,
        )
        assert model.n_iter_ == 5
        assert sum(r["n_samples"] for r in model.history_) >= 5 * n_rows


def test_unequal_ranks(digits, cluster, configured, monkeypatch, strategy):
    """One rank of ten times the rows of each of the others."""
    X, y = digits.train
    X, y = X[:780], y[:780]
    sizes = (60, 600, 60, 60)
    held = {}
    make = _agent.Trainer._make_sampler

    def make_sampler(self, random_state):
        held[self._context.group.rank] = self._problem.shard.n_rows
        return make(self, random_state)

    monkeypatch.setattr(_agent.Trainer, "_make_sampler", make_sampler)
    rows = [da.from_array(X, (sizes, 64)), da.from_array(y, (sizes,))]
    workers = sorted(cluster.nthreads())
    for i, array in enumerate(rows):
        parts = [
            cluster.persist(array.blocks[number], workers=[worker])
            for number, worker in enumerate(workers)
        ]
        rows[i] = da.concatenate(parts)
    with configured({"dask-ma.data.imbalance": 10.0}, cluster):
        model = fit(rows, strategy=strategy, hidden_layer_sizes=(32,), max_iter=6)
    assert sorted(held.values()) == [60, 60, 60, 600]
    assert model.score(*digits.test) > 0.7


# Slow and lost ------------------------------------------------------------------------

_PAUSE = 0.02


@pytest.fixture
def slow_rank(monkeypatch):
    """The last of three ranks takes long for each step."""
    build = _agent.Trainer._build

    def slow_build(self, random_state):
        network = build(self, random_state)
        if self._context.group.rank == 2:
            for name in ("step", "gradient"):
                monkeypatch.setattr(network, name, slowed(getattr(network, name)))
        return network

    def slowed(method):
        def call(*args, **kwargs):
            time.sleep(_PAUSE)
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(_agent.Trainer, "_build", slow_build)


def waited(model, ranks):
    """Seconds that ranks have waited between their first step and the end."""
    end = model.history_[-1]["time"]
    seconds = 0.0
    for rank in ranks:
        spans = model.timeline_[model.timeline_["rank"] == rank]
        begin = spans["start"][spans["kind"] == "compute"].min()
        waits = spans[(spans["kind"] == "wait") & (spans["start"] > begin)]
        waits = waits[waits["start"] < end]
        seconds += (np.minimum(waits["stop"], end) - waits["start"]).sum()
    return seconds


def test_nobody_waits_for_a_slow_rank(digits, slow_rank):
    params = {"n_ranks": 3, "batch_size": 8, "max_iter": 3}
    model = fit(digits.train, strategy="mpca", **params)
    total = model.history_[-1]["time"]
    assert waited(model, [0, 1, 2]) < 0.02 * total
    steps = model.timeline_[model.timeline_["kind"] == "compute"]
    n_steps = [(steps["rank"] == rank).sum() for rank in range(3)]
    assert 0 < n_steps[2] < n_steps[0] / 2
    # The others make a few more until they know that the fit has ended.
    assert sum(n_steps) >= sum(record["n_steps"] for record in model.history_)
    together = fit(
        digits.train,
        strategy=strategies.Synchronous(period=5),
        **{**params, "max_iter": 1},
    )
    assert waited(together, [0, 1]) > together.history_[-1]["time"]  # half of two
