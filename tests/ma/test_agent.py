"""Model averaging against scikit-learn's SGD, run by hand on each rank."""

import sys
import warnings

import dask.array as da
import numpy as np
import pytest
from dask import delayed
from scipy import sparse
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dask_ma import MASGDClassifier, MASGDRegressor

MARGIN_LOSSES = ["hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron"]
REGRESSION_LOSSES = [
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
]
PENALTIES = ["l2", "l1", "elasticnet", None]
CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}
TWINS = {MASGDClassifier: SGDClassifier, MASGDRegressor: SGDRegressor}
# Fits without a penalty are given the same `alpha` as the others.
pytestmark = pytest.mark.filterwarnings("ignore:alpha=.* has no effect")
ROUNDS = {"max_iter": 3, "tol": None, "learning_rate": "optimal"}
# Small steps, so that no loss overflows.
STEADY = {"learning_rate": "constant", "eta0": 0.01, "alpha": 0.01}


def random_state_of(rank, number):
    """The random numbers of a rank's SGD in a round, from `random_state=5`."""
    fit_seed = np.random.RandomState(5).randint(np.iinfo(np.int32).max)
    sgd_seed = np.random.SeedSequence(fit_seed, spawn_key=(rank, 1, number))
    return np.random.RandomState(np.random.MT19937(sgd_seed))


def fit(cls, X, y, n_ranks, **params):
    if n_ranks == 3:
        X, y = in_thirds(X, y)
    return cls(
        n_ranks=n_ranks, random_state=5, local_epochs=1, **{**ROUNDS, **params}
    ).fit(X, y)


def twin_of(cls, **params):
    def twin(rank, number):
        return TWINS[cls](random_state=random_state_of(rank, number), **params)

    return twin


def split_penalty(penalty):
    """What SGD itself is to see of a penalty, and the soft threshold of a row."""
    alpha, eta = STEADY["alpha"], STEADY["eta0"]
    if penalty == "l1":
        return {"penalty": None}, eta * alpha
    if penalty == "elasticnet":
        return {"penalty": "l2", "alpha": alpha * (1 - 0.15)}, eta * alpha * 0.15
    return {"penalty": penalty}, 0.0


def in_thirds(X, y):
    """The rows as a dask.array with one block for each rank."""
    parts = [part for part, _, _ in thirds(X, y)]
    meta = parts[0][:0] if sparse.issparse(X) else None
    blocks = [
        da.from_delayed(delayed(part), part.shape, dtype=X.dtype, meta=meta)
        for part in parts
    ]
    return da.concatenate(blocks), da.from_array(
        y, chunks=(tuple(part.shape[0] for part in parts),)
    )


def thirds(X, y):
    """Consecutive shards, of unequal lengths if need be."""
    bounds = [rank * len(y) // 3 for rank in range(4)]
    return [
        (X[a:b], y[a:b], None) for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]


def assert_same(ours, coef, intercept, dtype):
    """All but bit for bit in double precision; the sum of steps may round."""
    assert ours.coef_.dtype == ours.intercept_.dtype == dtype
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12}
    np.testing.assert_allclose(ours.coef_, coef, **close)
    np.testing.assert_allclose(ours.intercept_, intercept, **close)


@pytest.mark.pairs
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", MARGIN_LOSSES + REGRESSION_LOSSES)
def test_one_rank_is_sgd_classifier(
    binary, average_by_hand, loss, penalty, dtype, container
):
    X, y = CONTAINERS[container](binary[0].astype(dtype)), binary[1]
    params = {"loss": loss, "penalty": penalty, **STEADY}
    ours = fit(MASGDClassifier, X, y, 1, **params)
    smooth, shrink = split_penalty(penalty)
    twin = twin_of(MASGDClassifier, **{**params, **smooth})
    coef, intercept = average_by_hand(twin, [(X, y, None)], 3, shrink=shrink)
    assert_same(ours, coef, intercept, dtype)


@pytest.mark.pairs
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", REGRESSION_LOSSES)
def test_one_rank_is_sgd_regressor(
    regression, average_by_hand, loss, penalty, dtype, container
):
    X, y = CONTAINERS[container](regression[0].astype(dtype)), regression[1]
    params = {"loss": loss, "penalty": penalty, **STEADY}
    ours = fit(MASGDRegressor, X, y, 1, **params)
    smooth, shrink = split_penalty(penalty)
    twin = twin_of(MASGDRegressor, **{**params, **smooth})
    coef, intercept = average_by_hand(twin, [(X, y, None)], 3, shrink=shrink)
    assert_same(ours, coef, intercept, dtype)


@pytest.mark.parametrize(
    "params",
    [
        {"learning_rate": "optimal"},
        {"learning_rate": "invscaling", "eta0": 0.1, "power_t": 0.3},
        {"learning_rate": "pa1", "eta0": 0.5},
        {"learning_rate": "pa2", "eta0": 0.5},
        {"shuffle": False},
        {"fit_intercept": False},
    ],
    ids=lambda params: "-".join(map(str, params.values())),
)
def test_one_rank_with_other_steps(binary, average_by_hand, params):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 1, **params)
    coef, intercept = average_by_hand(
        twin_of(MASGDClassifier, **params), [(X, y, None)], 3
    )
    np.testing.assert_array_equal(ours.coef_, coef)
    np.testing.assert_array_equal(ours.intercept_, intercept)


def test_one_rank_is_one_against_the_rest(multi, average_by_hand):
    X, y = multi
    ours = fit(MASGDClassifier, X, y, 1)
    coef, intercept = average_by_hand(twin_of(MASGDClassifier), [(X, y, None)], 3)
    assert ours.coef_.shape == (4, 6)
    np.testing.assert_array_equal(ours.coef_, coef)
    np.testing.assert_array_equal(ours.intercept_, intercept)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_weights_of_classes_against_the_rest(multi, average_by_hand, n_ranks):
    """SGDClassifier gives those of a class to its own rows in its own problem."""
    X, y = multi
    params = {"class_weight": {0: 0.3, 2: 5.0}, **STEADY}
    ours = fit(MASGDClassifier, X, y, n_ranks, **params)
    shards = [(X, y, None)] if n_ranks == 1 else thirds(X, y)
    twin = twin_of(MASGDClassifier, **params)
    coef, intercept = average_by_hand(twin, shards, 3)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


@pytest.mark.each
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("n_rows", [120, 119])
def test_three_ranks_are_averaged_by_rows(binary, average_by_hand, container, n_rows):
    X, y = CONTAINERS[container](binary[0][:n_rows]), binary[1][:n_rows]
    ours = fit(MASGDClassifier, X, y, 3, **STEADY)
    twin = twin_of(MASGDClassifier, **STEADY)
    coef, intercept = average_by_hand(twin, thirds(X, y), 3)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


def test_three_ranks_of_many_classes(multi, average_by_hand):
    X, y = multi
    ours = fit(MASGDClassifier, X, y, 3, loss="log_loss", **STEADY)
    twin = twin_of(MASGDClassifier, loss="log_loss", **STEADY)
    coef, intercept = average_by_hand(twin, thirds(X, y), 3)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


def test_three_ranks_of_a_regression(regression, average_by_hand):
    X, y = regression
    ours = fit(MASGDRegressor, X, y, 3, **STEADY)
    twin = twin_of(MASGDRegressor, **STEADY)
    coef, intercept = average_by_hand(twin, thirds(X, y), 3)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


@pytest.mark.parametrize("learning_rate", ["optimal", "invscaling"])
def test_three_ranks_follow_the_schedule_that_t_tells(
    binary, average_by_hand, learning_rate
):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 3, learning_rate=learning_rate)
    assert ours.t_ == 1 + 1.5 * 3 * 40
    twin = twin_of(MASGDClassifier, learning_rate=learning_rate)
    coef, intercept = average_by_hand(twin, thirds(X, y), 3, pace=1.5)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


def test_ranks_count_by_the_weights_of_their_rows(binary, weights, average_by_hand):
    X, y = binary
    heavy = np.where(np.arange(120) < 40, 5 * weights, weights)
    params = {"random_state": 5, "local_epochs": 1, **ROUNDS, **STEADY}
    ours = MASGDClassifier(n_ranks=3, **params)
    ours.fit(*in_thirds(X, y), sample_weight=heavy)
    scaled = heavy * 120 / heavy.sum()
    parts = [slice(a, a + 40) for a in (0, 40, 80)]
    shards = [(X[rows], y[rows], scaled[rows]) for rows in parts]
    twin = twin_of(MASGDClassifier, **STEADY)
    coef, intercept = average_by_hand(twin, shards, 3)
    np.testing.assert_allclose(ours.coef_, coef, rtol=1e-10)
    np.testing.assert_allclose(ours.intercept_, intercept, rtol=1e-10)


# -- The loop ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def after_each_round(binary):
    """Coefficients after 1, 2, ... rounds; each fit repeats those before."""
    fits = (fit(MASGDClassifier, *binary, 3, max_iter=n) for n in range(1, 5))
    return [model.coef_ for model in fits]


@pytest.mark.parametrize(
    ("average", "first"), [(True, 0), (120, 0), (121, 1), (360, 2), (481, 4)]
)
def test_average_is_a_mean_of_the_rounds(binary, after_each_round, average, first):
    """From the first round on that counts, round j has the weight j (j + 1) (j + 2)."""
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 3, max_iter=4, average=average)
    models = after_each_round
    j = np.arange(1, 5 - first)
    expected = (
        np.average(models[first:], axis=0, weights=j * (j + 1) * (j + 2))
        if first < 4
        else models[-1]
    )
    np.testing.assert_allclose(ours.coef_, expected, rtol=1e-10)


def test_average_is_what_the_history_tells_of(binary, objective):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 1, average=True)
    assert ours.history_[-1]["objective"] == pytest.approx(objective(ours, X, y))


def test_max_iter_counts_rounds(binary):
    X, y = binary
    ours = fit(MASGDClassifier, X, y, 3, max_iter=7)
    assert ours.n_iter_ == len(ours.history_) == 7
    assert [record["round"] for record in ours.history_] == list(range(1, 8))


def test_tol_and_patience_end_the_fit(binary):
    X, y = binary
    params = {"max_iter": 200, "tol": 1e-2, "refine": None, **STEADY}
    ours = fit(MASGDClassifier, X, y, 2, n_iter_no_change=3, **params)
    values = [record["objective"] for record in ours.history_]
    best = np.minimum.accumulate(values)
    # The last three rounds have not improved the best by tol, the ones before have.
    assert ours.n_iter_ < 200
    gains = 1 - np.array(values[1:]) / best[:-1]
    assert (gains[-3:] < 1e-2).all()
    runs = "".join("." if gain < 1e-2 else "x" for gain in gains)
    assert runs.find("...") == len(runs) - 3
    longer = fit(MASGDClassifier, X, y, 2, n_iter_no_change=10, **params)
    assert longer.n_iter_ > ours.n_iter_


def test_adaptive_step_shrinks_where_a_constant_one_stops(regression):
    X, y = regression
    params = {"eta0": 0.05, "max_iter": 300, "tol": 1e-4, "n_iter_no_change": 2}
    params["refine"] = None
    constant = fit(MASGDRegressor, X, y, 2, learning_rate="constant", **params)
    adaptive = fit(MASGDRegressor, X, y, 2, learning_rate="adaptive", **params)
    n_rounds = constant.n_iter_
    first = [
        [r["objective"] for r in m.history_[:n_rounds]] for m in (constant, adaptive)
    ]
    assert first[0] == first[1]
    assert adaptive.n_iter_ > n_rounds
    # 0.05 / 5^k stays above 1e-6 six times: seven steps, each with its own patience.
    assert adaptive.n_iter_ >= n_rounds + 6 * params["n_iter_no_change"]
    last = [m.history_[-1]["objective"] for m in (constant, adaptive)]
    assert last[1] < last[0]


def test_initial_model_is_where_the_fit_starts(multi, average_by_hand):
    X, y = multi
    rng = np.random.default_rng(0)
    start = {"coef_init": rng.normal(size=(4, 6)), "intercept_init": rng.normal(size=4)}
    ours = MASGDClassifier(n_ranks=1, random_state=5, local_epochs=1, **ROUNDS)
    ours.fit(X, y, **start)
    theirs = SGDClassifier(random_state=random_state_of(0, 0), max_iter=1, tol=None)
    theirs.fit(X, y, **start)
    for number in (1, 2):
        theirs.set_params(random_state=random_state_of(0, number))
        theirs.partial_fit(X, y)
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    np.testing.assert_array_equal(ours.intercept_, theirs.intercept_)


@pytest.mark.parametrize(
    ("cls", "start", "message"),
    [
        (
            MASGDClassifier,
            {"coef_init": np.ones((2, 6))},
            r"coef_init.*\(1, 6\).*\(2, 6\)",
        ),
        (MASGDClassifier, {"coef_init": np.ones((6, 1))}, "coef_init must have shape"),
        (MASGDClassifier, {"intercept_init": np.ones(3)}, "intercept_init must have"),
        (MASGDRegressor, {"coef_init": np.ones(5)}, "coef_init must have shape"),
    ],
)
def test_initial_model_of_a_wrong_shape(binary, cls, start, message):
    with pytest.raises(ValueError, match=message):
        cls(n_ranks=2, tol=None, max_iter=1).fit(*binary, **start)


def test_diverged_model_is_refused(regression):
    X, y = regression
    with pytest.raises(ValueError, match="[Ss]cale the (features|data)"):
        fit(MASGDRegressor, 1e200 * X, y, 2)
    still = MASGDRegressor(learning_rate="constant", eta0=1e-300, max_iter=1, tol=None)
    with pytest.raises(ValueError, match="not finite after round 1.*lower eta0"):
        still.fit(X, y, coef_init=np.full(6, 1e200))
    assert not hasattr(still, "coef_")


@pytest.mark.parametrize(
    "params, n_features",
    [
        ({"paradigm": "gradient", "max_iter": 2, "tol": None}, 3),
        ({"max_iter": 0, "refine": "lbfgs", "loss": "log_loss"}, 3),
        ({}, 60),
    ],
    ids=["gradients", "no rounds", "few rows"],
)
def test_what_makes_no_steps_of_scikit_learn_loads_none(
    params, n_features, monkeypatch
):
    """It takes several times the memory of all else that a new worker loads."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, n_features)), np.arange(40) % 2
    model = MASGDClassifier(random_state=0, **params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.fit(X, y).coef_
        monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
        np.testing.assert_array_equal(model.fit(X, y).coef_, expected)
    with pytest.raises(ImportError):
        MASGDClassifier(random_state=0).fit(X[:, :3], y)


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    "cls, loss", [(MASGDClassifier, "hinge"), (MASGDRegressor, "huber")]
)
def test_few_rows_are_not_gone_over_in_vain(cls, loss, n_ranks):
    """One round finds the optimum wherever it begins; the rounds before took more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 60))
    y = np.arange(40) % 2 if cls is MASGDClassifier else X[:, 0]
    model = cls(loss=loss, n_ranks=n_ranks, random_state=0).fit(X, y)
    assert model.n_iter_ == 1
    [record] = model.history_
    assert record["refined"]
    assert record["excess"] <= model.refine_tol
    assert not hasattr(model, "eta_")
    # Whoever asks for passes gets them, and goes on from any model.
    few = cls(loss=loss, n_ranks=n_ranks, tol=None, max_iter=2, random_state=0)
    assert [r.get("refined") for r in few.fit(X, y).history_] == [None, None]
    before = model.coef_.copy()
    model.partial_fit(X, y)
    assert model.eta_ > 0
    assert not np.array_equal(model.coef_, before)
