"""Checkpoints of all estimators and programs: each fit goes on from its own alone."""

import functools
import json
import os
import shutil
import threading
from itertools import cycle

import cloudpickle
import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed.utils import get_mp_context
from scipy import sparse
from sklearn.model_selection import GridSearchCV, cross_val_score

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLogisticRegression,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
    ma,
    mpca,
    schmp,
    sfb,
)
from dask_ma.engine import RankContext
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.exceptions import CheckpointError
from dask_ma.mpca import strategies

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, D = 240, 6
STOP = 2  # rounds until a fit is interrupted
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
CODES = RNG.integers(0, 3, N)
X[np.arange(N), CODES] += 1.5
TARGET = X @ np.arange(D) + RNG.normal(size=N)
COUNTS = RNG.poisson(0.5, size=(60, 12)).astype(np.float64)
TWO = (CODES > 0).astype(int)
WIDE = RNG.normal(size=(N, 300))  # for penalised models, which need few rounds else
WIDE_TARGET = WIDE @ RNG.normal(size=300) + RNG.normal(size=N)
LINEAR = {"tol": None, "random_state": 0, "n_ranks": 2, "max_iter": 6}
NETWORK = {**LINEAR, "hidden_layer_sizes": (4,), "batch_size": 20}
NETWORK |= {"strategy": strategies.Synchronous(period=1)}
L1 = {"alpha": 1e-4, "tol": 1e-14, "random_state": 0, "n_ranks": 2}
LASSO = {**L1, "alpha": 0.3, "tol": 1e-12, "max_iter": 500}
TOPICS = {"max_iter": 3, "batch_size": 20, "random_state": 0, "n_ranks": 2}
FACTORS = {**LINEAR, "communication": "factors"}
ATOMS = {"n_components": 4, "alpha": 0.5, "max_iter": 3, "batch_size": 80, "tol": 0}
ATOMS |= {"max_no_improvement": None, "random_state": 0, "n_ranks": 2}
NOTHING = np.zeros(N)  # instead of targets

ESTIMATORS = {
    "MASGDClassifier": (MASGDClassifier, {**LINEAR, "refine": None}, CODES),
    "MASGDRegressor": (MASGDRegressor, LINEAR, TARGET),
    "ButterflySGDClassifier": (ButterflySGDClassifier, LINEAR, CODES),
    "ButterflySGDRegressor": (ButterflySGDRegressor, LINEAR, TARGET),
    "MALDA": (MALDA, {**TOPICS, "n_components": 3, "total_samples": 100}, None),
    "SchMPLasso": (SchMPLasso, LASSO, WIDE_TARGET),
    "SchMPLasso, dynamic": (
        SchMPLasso,
        {**LASSO, "schedule": "dynamic"},
        WIDE_TARGET,
    ),
    "SchMPLassoCV": (
        SchMPLassoCV,
        {"cv": 3, "alphas": 3, "l1_ratio": [0.5, 1], "n_ranks": 2},
        TARGET,
    ),
    "SchMPLogisticRegression": (
        SchMPLogisticRegression,
        {**L1, "max_iter": 5},
        CODES,
    ),
    "SFBLogisticRegression": (SFBLogisticRegression, FACTORS, CODES),
    "SFBLogisticRegression, sdca": (
        SFBLogisticRegression,
        {**FACTORS, "solver": "sdca", "alpha": 0.01},
        CODES,
    ),
    "SFBLogisticRegression, sdca, elastic net": (
        SFBLogisticRegression,
        {**FACTORS, "solver": "sdca", "alpha": 0.01, "penalty": "elasticnet"},
        CODES,
    ),
    "SFBMetricLearner": (SFBMetricLearner, FACTORS, CODES),
    "SFBMetricLearner, diagonal": (
        SFBMetricLearner,
        {**FACTORS, "metric_form": "diagonal"},
        CODES,
    ),
    "SFBDictionaryLearning": (SFBDictionaryLearning, ATOMS, NOTHING),
    "SFBDictionaryLearning, sgd": (
        SFBDictionaryLearning,
        {**ATOMS, "solver": "sgd", "communication": "factors"},
        NOTHING,
    ),
    "MPCAClassifier": (MPCAClassifier, NETWORK, CODES),
    "MPCARegressor": (MPCARegressor, NETWORK, TARGET),
}
PARTIAL = [n for n, (cls, *_) in ESTIMATORS.items() if hasattr(cls(), "partial_fit")]
PARTIAL = [name for name in PARTIAL if ", sdca" not in name]
WITH_CLASSES = ("MASGD", "Butterfly", "SFBLogistic", "MPCA")  # which are to be named


class LowRank(sfb.FactorModel):
    """Several targets at once, which are columns of X."""

    prox = sfb.prox.TraceNorm(0.01)
    fit_intercept = True

    def initial_matrix(self, n_features):
        return np.zeros((2, n_features))

    def factors(self, matrix, batch):
        return matrix.product(batch.X) - batch.X[:, :2], batch.X

    def loss(self, matrix, batch):
        return float(((matrix.product(batch.X) - batch.X[:, :2]) ** 2).sum())


class NonNegative(schmp.Program):
    """Least squares with coefficients that are not negative."""

    def __init__(self):
        self._schedule = schmp.schedules.Cyclic(n_candidates=1)

    def prepare(self, shard, group):
        return [(block.X, block.y) for block in shard.blocks]

    def initial_model(self, local, group):
        return np.zeros(D)

    def schedule(self, model, request):
        return self._schedule(model, request)

    def update(self, job, local, model):
        return sum(
            np.array([A[:, job].T @ (y - A @ model), (A[:, job] ** 2).sum(0)])
            for A, y in local
        )

    def aggregate(self, results, jobs, model):
        products, squares = sum(results)
        return np.maximum(products / squares, -model[jobs])


def run_estimator(name):
    """A fit as a function of data; returns what it has found."""
    cls, params, y = ESTIMATORS[name]

    rows = COUNTS if y is None else WIDE if y is WIDE_TARGET else X

    def fit(y=y, X=rows, **changes):
        model = cls(**{**params, **changes}).fit(X, y)
        return found(model), model.history_

    return fit


def run_model(y=None, X=X, **changes):
    options = {"n_passes": 6, "batch_size": 20, "random_state": 0, "n_ranks": 2}
    options |= {"communication": "factors", **changes}
    result = sfb.run(LowRank(), X, y, **options)
    return {"matrix": result.matrix, "intercept": result.intercept}, result.history


def run_program(y=TARGET, X=X, **changes):
    options = {"n_iterations": 40, "report_every": 7, "random_state": 0, "n_ranks": 2}
    result = schmp.run(NonNegative(), X, y, **options, **changes)
    return {"model": result.model}, result.history


FITS = {name: run_estimator(name) for name in ESTIMATORS}
FITS |= {"sfb.run": run_model, "schmp.run": run_program}


def found(model):
    """Learnt attributes that do not tell times."""
    skipped = {"history_", "timeline_"}
    values = {k: v for k, v in vars(model).items() if k.endswith("_")}
    return {k: v for k, v in values.items() if k[0] != "_" and k not in skipped}


def check_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_equal(value, theirs[name], err_msg=name)


def check_close(ours, theirs):
    """What threads add up, or a design, may be added up in another order."""
    for name, value in ours.items():
        if name.startswith(("coef", "intercept", "vector")):
            lists = (v if isinstance(v, list) else [v] for v in (value, theirs[name]))
            for one, two in zip(*lists, strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved"


def saving(path, **more):
    values = {"path": str(path), **{k.replace("_", "-"): v for k, v in more.items()}}
    return dask.config.set(
        {f"dask-ma.checkpoint.{key}": value for key, value in values.items()}
    )


def saved_rounds(path):
    """Rounds of each series."""
    return {
        folder.name: sorted(int(file.stem[6:]) for file in folder.glob("*.json"))
        for folder in path.iterdir()
    }


# Going on -----------------------------------------------------------------------------


# The same round is kept either way, and by the same loop: fits take turns.
@pytest.mark.parametrize(("name", "every"), [*zip(FITS, cycle([1, 2]))])
def test_a_resumed_fit_is_an_uninterrupted_one(path, interrupted, name, every):
    fit = FITS[name]
    whole, whole_history = fit()
    with saving(path, every=every):
        with interrupted(STOP):
            fit()
        [rounds] = saved_rounds(path).values()
        assert rounds[-1] == STOP
        resumed, history = fit()
        again, _ = fit()
    check = check_close if name.startswith(("SchMP", "MPCA")) else check_same
    check(resumed, whole)
    check(again, resumed)
    numbers = [record["round"] for record in history]
    assert numbers == [*range(1, len(numbers) + 1)]
    if not name.startswith("SchMPLasso"):  # which chooses its coordinates anew
        assert len(numbers) == len(whole_history)


@pytest.mark.parametrize("name", ["MASGDClassifier", "SFBLogisticRegression"])
def test_a_fit_without_a_seed_goes_on_with_the_one_it_had(path, interrupted, name):
    """With it, the rows that are held out stay the same."""
    fit = FITS[name]
    changes = {"random_state": None, "early_stopping": True, "tol": 1e-9}
    np.random.seed(5)
    whole, _ = fit(**changes)
    with saving(path):
        np.random.seed(5)
        with interrupted(3):
            fit(**changes)
        np.random.seed(6)
        resumed, _ = fit(**changes)
    check_same(resumed, whole)


@pytest.mark.parametrize("random_state", [None, "instance"])
def test_fits_that_are_meant_to_differ(path, random_state):
    def fits():
        state = np.random.RandomState(3) if random_state else None
        return [FITS["MASGDClassifier"](random_state=state)[0] for _ in range(3)]

    with saving(path):
        first = fits()
        assert len(saved_rounds(path)) == 3
        second = fits()
    coefs = {model["coef_"].tobytes() for model in first}
    assert len(coefs) == 3
    if random_state:
        for ours, theirs in zip(first, second, strict=True):
            check_same(ours, theirs)
    else:
        assert coefs.isdisjoint(model["coef_"].tobytes() for model in second)


CONTAINERS = {
    "csr": sparse.csr_matrix,
    "dask": lambda X: da.from_array(X, chunks=(50, -1)),
    "dask csr": lambda X: da.from_array(X, chunks=(70, -1)).map_blocks(
        sparse.csr_matrix
    ),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_the_same_data_in_another_container(path, interrupted, kind):
    """Rows that are dealt out to the ranks are dealt out alike."""
    fit = functools.partial(FITS["MASGDClassifier"], shuffle="ranks")
    with saving(path):
        with interrupted(3):
            fit()
        resumed, history = fit(X=CONTAINERS[kind](X))
        assert len(saved_rounds(path)) == 1
    # A container may have other arithmetic, as of sparse rows.
    assert resumed["n_iter_"] == len(history) == 6
    assert np.isfinite(resumed["coef_"]).all()


def test_blocks_that_stay_where_they_are(path, interrupted):
    """Rows in memory are dealt out, blocks only where that is asked for."""
    fit = FITS["MASGDClassifier"]
    with saving(path):
        with interrupted(3):
            fit()
        with pytest.warns(UserWarning, match="2 ranks with other shares of the rows"):
            resumed, history = fit(X=CONTAINERS["dask"](X))
    assert resumed["n_iter_"] == len(history) == 6


def test_another_number_of_ranks(path, interrupted):
    fit = FITS["MASGDClassifier"]
    with saving(path):
        with interrupted(3):
            fit()
        with pytest.warns(UserWarning, match="written by 2 ranks and goes on with 3"):
            _, history = fit(n_ranks=3)
    assert [record["round"] for record in history] == [1, 2, 3, 4, 5, 6]


def test_ranks_of_a_cluster(path, interrupted, inproc_client):
    """They find the checkpoint of other ranks, on the same data, and the fit it is."""
    fit = FITS["MASGDClassifier"]
    whole, _ = fit(n_ranks=4)
    with saving(path):
        with interrupted(3):
            fit(n_ranks=4)
        with inproc_client.as_current():
            resumed, _ = fit(n_ranks=4)
    check_same(resumed, whole)


def test_what_may_change_before_a_fit_goes_on(path, interrupted):
    fit = FITS["MASGDClassifier"]
    with saving(path):
        with interrupted(4):
            fit()
        _, history = fit(tol=1e-9, max_iter=9, n_iter_no_change=9)
    with saving(path.with_name("other")):
        whole, _ = fit(max_iter=9)
    assert [record["round"] for record in history] == [*range(1, 10)]
    assert whole["n_iter_"] == 9


def one_layer():
    from torch import nn

    return nn.Linear(D, 1)


NAMES = [
    ("SchMPLasso", "schedule", "dynamic", schmp.schedules.Dynamic()),
    ("SFBLogisticRegression", "communication", "auto", sfb.Exchange()),
    ("sfb.run", "communication", "auto", sfb.Exchange()),
    ("MASGDClassifier", "paradigm", "model", ma.Models()),
    ("MALDA", "paradigm", "gradient", ma.Gradients()),
    # Rounds of "mpca" come as the clock has it, and may be kept two at a time.
    ("MPCAClassifier", "strategy", "synchronous", strategies.Synchronous()),
    ("MPCARegressor", "module", one_layer, mpca.Torch(one_layer)),
]


@pytest.mark.each
@pytest.mark.parametrize("turned", [False, True], ids=["object", "name"])
@pytest.mark.parametrize(
    ("name", "parameter", "by_name", "held"),
    [pytest.param(*case, id="-".join(case[:2])) for case in NAMES],
)
def test_an_object_goes_on_where_its_name_was_left(
    path, interrupted, name, parameter, by_name, held, turned
):
    fit = FITS[name]
    if parameter == "module":  # it has its own layers
        pytest.importorskip("torch", reason="modules need torch")
        fit = functools.partial(fit, hidden_layer_sizes=(100,))
    first, second = (held, by_name) if turned else (by_name, held)
    with saving(path, on_mismatch="raise"):
        with interrupted(STOP):
            fit(**{parameter: first})
        [rounds] = saved_rounds(path).values()
        assert rounds[-1] == STOP
        _, history = fit(**{parameter: second})
        [rounds] = saved_rounds(path).values()
    numbers = [record["round"] for record in history]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert rounds[-1] > STOP


# Fits that have nothing to do with each other -----------------------------------------


# What tells fits apart is made in one place, to which these add what they have more.
@pytest.mark.parametrize(
    "name",
    [
        "MASGDClassifier",
        "MASGDRegressor",
        "MPCAClassifier",
        "SchMPLasso",
        "SchMPLassoCV",
        "SFBLogisticRegression",
        "SFBMetricLearner",
        "schmp.run",
    ],
)
def test_a_second_fit_with_other_targets(path, name):
    fit, y = FITS[name], ESTIMATORS.get(name, (None, None, TARGET))[2]
    other = 2 - y if y is CODES else -y
    plain, _ = fit(y=other)
    with saving(path):
        fit()
        check_same(fit(y=other)[0], plain)


def test_flipped_labels(path):
    params = {"max_iter": 5, "tol": None, "random_state": 0}
    with saving(path):
        MASGDClassifier(**params).fit(X, TWO)
        assert MASGDClassifier(**params).fit(X, 1 - TWO).score(X, 1 - TWO) > 0.7


@pytest.mark.parametrize("name", ["MASGDClassifier", "MALDA", "sfb.run"])
def test_more_rows(path, name):
    fit, rows = FITS[name], COUNTS if name == "MALDA" else X
    fewer = {"X": rows[:-20]}
    if name == "MASGDClassifier":
        fewer["y"] = CODES[:-20]
    plain, _ = fit()
    with saving(path):
        fit(**fewer)
        check_same(fit()[0], plain)


def test_other_labels(path):
    fit = FITS["MASGDClassifier"]
    with saving(path):
        fit(y=np.array(["a", "b", "c"])[CODES])
        other, _ = fit(y=np.array(["d", "e", "f"])[CODES])
    assert other["classes_"].tolist() == ["d", "e", "f"]


def test_other_weights(path):
    weights = [None, np.where(CODES == 0, 9.0, 1.0)]
    models = [MASGDClassifier(**LINEAR) for _ in weights]
    plain = [m.fit(X, CODES, sample_weight=w).coef_ for m, w in zip(models, weights)]
    with saving(path):
        for model, weight, coef in zip(models, weights, plain):
            model.fit(X, CODES, sample_weight=weight)
            np.testing.assert_array_equal(model.coef_, coef)


def test_cross_validation(path):
    noise = RNG.normal(size=(80, 100)), RNG.integers(0, 2, 80)
    model = MASGDClassifier(max_iter=5, tol=None, random_state=0)
    plain = cross_val_score(model, *noise, cv=4)
    with saving(path):
        for _ in range(2):
            np.testing.assert_array_equal(cross_val_score(model, *noise, cv=4), plain)
    assert len(saved_rounds(path)) == 4


def searches(folder, path=None, **tols):
    """Codes that save the scores of a search over rounds, for each tolerance."""

    def search(tol, file):
        model = MASGDClassifier(random_state=0, refine=None, tol=tol)
        found = GridSearchCV(model, {"max_iter": [20, 10]}, cv=2, refit=False)
        saved = {"dask-ma.checkpoint.path": path}
        with dask.config.set({**saved, "dask-ma.checkpoint.on-mismatch": "raise"}):
            np.save(file, found.fit(X, TWO).cv_results_["mean_test_score"])

    for name, tol in tols.items():
        call = cloudpickle.dumps(functools.partial(search, tol, folder / name))
        yield f"import cloudpickle; cloudpickle.loads({call!r})()"


def test_searches_in_other_processes(path, tmp_path):
    """Fits that run side by side do not take over from each other."""
    for code in searches(tmp_path, loose_here=1e-1, tight_here=1e-9):
        exec(code)
    codes = searches(tmp_path, str(path), loose=1e-1, tight=1e-9)
    context = get_mp_context()
    processes = [context.Process(target=exec, args=(code, {})) for code in codes]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for name in "loose", "tight":
        found, plain = (np.load(tmp_path / f"{n}.npy") for n in (name, f"{name}_here"))
        np.testing.assert_array_equal(found, plain)
    assert len(saved_rounds(path)) == 4 * 2


def test_a_search(path):
    grid = [{"alpha": [1e-2], "max_iter": [6, 3]}, {"tol": [1e-9, 0.1]}]
    model = MASGDClassifier(**LINEAR, refine=None)
    search = GridSearchCV(model, grid, cv=2, error_score="raise")
    plain = search.fit(X, CODES)
    scores, coef = plain.cv_results_["mean_test_score"], plain.best_estimator_.coef_
    with saving(path):
        for _ in range(2):
            search.fit(X, CODES)
            np.testing.assert_array_equal(search.cv_results_["mean_test_score"], scores)
            np.testing.assert_array_equal(search.best_estimator_.coef_, coef)
    rounds = saved_rounds(path).values()
    assert len(rounds) == 4 * 2 + 1
    assert max(map(len, rounds)) <= 2


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_fit_has_no_checkpoints(path, name):
    cls, params, y = ESTIMATORS[name]
    rows = COUNTS if y is None else X

    def steps():
        model = cls(**params)
        for part in np.array_split(np.arange(len(rows)), 4):
            is_named = y is CODES and name.startswith(WITH_CLASSES)
            extra = {"classes": [0, 1, 2]} if is_named else {}
            model.partial_fit(rows[part], None if y is None else y[part], **extra)
        return found(model)

    plain = steps()
    with saving(path):
        check_same(steps(), plain)
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["MASGDClassifier", "SchMPLasso", "SFBLogisticRegression", "MPCAClassifier"]
)
def test_a_warm_start(path, name):
    """The model that a fit starts from is part of what it is."""
    cls, params, y = ESTIMATORS[name]
    params = {**params, "warm_start": True, "max_iter": 3}

    rows = WIDE if y is WIDE_TARGET else X

    def fits():
        model = cls(**params).fit(rows, y)
        return found(model), found(model.fit(rows, y))

    plain = fits()
    check = check_close if name.startswith(("SchMP", "MPCA")) else check_same
    with saving(path):
        for _ in range(2):
            for ours, theirs in zip(fits(), plain, strict=True):
                check(ours, theirs)


def test_coefficients_to_start_from(path):
    starts = [None, np.ones((3, D))]
    models = [MASGDClassifier(**LINEAR) for _ in starts]
    plain = [m.fit(X, CODES, coef_init=s).coef_ for m, s in zip(models, starts)]
    with saving(path):
        for model, start, coef in zip(models, starts, plain):
            model.fit(X, CODES, coef_init=start)
            np.testing.assert_array_equal(model.coef_, coef)


def test_fits_in_threads(path):
    alphas = [1e-4, 1e-3, 1e-2]
    plain = [FITS["MASGDClassifier"](alpha=alpha)[0] for alpha in alphas]
    results = {}

    def fit(alpha):
        results[alpha] = FITS["MASGDClassifier"](alpha=alpha)[0]

    with saving(path):
        threads = [threading.Thread(target=fit, args=(alpha,)) for alpha in alphas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for alpha, expected in zip(alphas, plain, strict=True):
        check_same(results[alpha], expected)


# What was left unfinished -------------------------------------------------------------


@pytest.fixture(scope="module")
def whole():
    """What a fit finds that nothing happens to."""
    return FITS["MASGDClassifier"]()[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"X": X[:-10], "y": CODES[:-10]},
            "rows is 240 in the checkpoint and 230 here",
        ),
        ({"y": 2 - CODES}, "y is"),
        ({"y": CODES + 1}, r"classes is \[0, 1, 2\] in .* and \[1, 2, 3\] here"),
        ({"X": X + 1}, "X is"),
        ({"alpha": 0.5}, r"alpha is 0\.0001 in the checkpoint and 0\.5 here"),
    ],
    ids=["rows", "y", "classes", "X", "alpha"],
)
def test_a_fit_that_is_not_the_one_that_was_left(
    path, interrupted, whole, change, words
):
    fit = FITS["MASGDClassifier"]
    plain, _ = fit(**change)
    with saving(path):
        with interrupted(5):
            fit()
        with (
            saving(path, on_mismatch="raise"),
            pytest.raises(
                CheckpointError, match=f"starts anew.*round-00000005.*{words}"
            ),
        ):
            fit(**change)
        with pytest.warns(UserWarning, match=f"starts anew.*{words}"):
            anew, history = fit(**change)
        check_same(anew, plain)
        assert len(history) == 6
        # The other fit still goes on from where it was left.
        check_same(fit()[0], whole)


def test_a_fit_with_other_data_and_parameters_is_another_one(path, interrupted):
    with saving(path, on_mismatch="raise"):
        with interrupted(5):
            FITS["MASGDClassifier"]()
        FITS["MASGDClassifier"](y=2 - CODES, alpha=0.5)
        FITS["MASGDRegressor"]()


def test_a_fit_of_a_process_that_is_there(path, interrupted):
    """It may still be under way."""
    fit = FITS["MASGDClassifier"]
    with saving(path):
        with interrupted(5):
            fit()
        store = Store(str(path))
        [(name, [*_, number])] = store.series().items()
        saved = store.load(name, number)
        parent = psutil.Process(os.getppid())
        writer = {"pid": parent.pid, "started": parent.create_time()}
        store.save(name, saved._replace(writer={**saved.writer, **writer}), 2)
        with saving(path, on_mismatch="raise"):
            _, history = fit(y=2 - CODES)
            plain, _ = fit(tol=0.1)
    check_same(plain, fit(tol=0.1)[0])
    assert len(history) == 6


def test_to_start_anew_on_purpose(path, interrupted, whole):
    fit = FITS["MASGDClassifier"]
    with saving(path):
        fit()
        with saving(path, resume=False), interrupted(2):
            fit()
        assert [*saved_rounds(path).values()] == [[1, 2]]
        resumed, _ = fit()
    check_same(resumed, whole)


# When to save -------------------------------------------------------------------------


def test_time_between_checkpoints(path, monkeypatch):
    """Rank 0's clock counts, from one checkpoint to the next."""
    from dask_ma.engine.recovery import _saving

    now = [0.0]
    keep = RankContext.save_state

    def later(self, n_rounds, *args, **kwargs):
        if self.group.rank == 0:
            now[0] = 10.0 * n_rounds
        keep(self, n_rounds, *args, **kwargs)

    monkeypatch.setattr(_saving, "monotonic", lambda: now[0])
    monkeypatch.setattr(RankContext, "save_state", later)
    with saving(path, every_seconds=25, keep=100):
        FITS["MASGDClassifier"](max_iter=10)
    assert [*saved_rounds(path).values()] == [[3, 6, 9, 10]]
    with saving(path.with_name("rare"), every_seconds="1 h", keep=100):
        FITS["MASGDClassifier"](max_iter=10)
    assert [*saved_rounds(path.with_name("rare")).values()] == [[10]]


# What is damaged ----------------------------------------------------------------------


def edit_manifest(change):
    def tamper(store, name, number, folder):
        file = folder / f"round-{number:08d}.json"
        manifest = json.loads(file.read_bytes())
        change(manifest)
        file.write_text(json.dumps(manifest))

    return tamper


def craft(change):
    """Another state, with all checksums right."""

    def tamper(store, name, number, folder):
        saved = store.load(name, number)
        shared = {key: change(value) for key, value in saved.shared.items()}
        own = [{k: change(v) for k, v in state.items()} for state in saved.own]
        store.save(name, saved._replace(shared=shared, own=own), 2)

    return tamper


def craft_without(store, name, number, folder):
    saved = store.load(name, number)
    own = [{} for _ in saved.own]
    store.save(name, saved._replace(shared={}, own=own), 2)


def swap_rounds(store, name, number, folder):
    for suffix in ("json", "npz"):
        one, two = (folder / f"round-{n:08d}.{suffix}" for n in (number, number - 1))
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)


def arrays_only(function):
    return lambda v: function(v) if isinstance(v, np.ndarray) else v


REFUSED = {
    "round": edit_manifest(lambda m: m.update(round=10**9)),
    "history": edit_manifest(lambda m: m.update(history=[])),
    "state": edit_manifest(lambda m: m["shared"].clear()),
    "swapped": swap_rounds,
    "crafted, nothing": craft_without,
    "crafted, shapes": craft(arrays_only(lambda v: np.zeros((3, 3, 3)))),
    "crafted, texts": craft(arrays_only(lambda v: v.astype("U8"))),
}


@pytest.fixture(scope="module")
def left_folders():
    """Of each fit what it has left in three rounds, which is left once."""
    return {}


@pytest.fixture
def left(left_folders, tmp_path_factory, interrupted):
    """``left(name, path)``: a folder as a fit has left it."""

    def copy(name, path):
        if name not in left_folders:
            folder = tmp_path_factory.mktemp("left")
            with saving(folder), interrupted(3):
                FITS[name]()
            left_folders[name] = folder
        shutil.copytree(left_folders[name], path)

    return copy


@pytest.mark.each
@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("name", [n for n in FITS if n != "SchMPLasso, dynamic"])
def test_a_tampered_checkpoint_is_refused(path, left, name, how):
    left(name, path)
    with saving(path):
        store = Store(str(path))
        [(series, [*_, number])] = store.series().items()
        REFUSED[how](store, series, number, path / series)
        with pytest.raises(
            CheckpointError, match=r"remove (it|\S*\.json) to go on.*resume"
        ) as caught:
            FITS[name]()
        assert f"{series}/round-{number:08d}" in str(caught.value)


@pytest.mark.each
@pytest.mark.parametrize(
    "change", [{"name": "SVC"}, {"parameters": {"alpha": "17"}}, {"data": {"rows": 1}}]
)
@pytest.mark.parametrize("max_iter", [6, 9], ids=["its own", "of fewer rounds"])
def test_a_checkpoint_in_the_folder_of_another_fit(path, interrupted, change, max_iter):
    with saving(path):
        with interrupted(3):
            FITS["MASGDClassifier"]()
        store = Store(str(path))
        [(series, [*_, number])] = store.series().items()
        store.save(series, store.load(series, number)._replace(**change), 2)
        words = "round-00000003.json is not of the fit that its folder.*remove it"
        with pytest.raises(CheckpointError, match=words):
            FITS["MASGDClassifier"](max_iter=max_iter)


def test_errors_of_the_data_are_not_blamed_on_the_checkpoint(path, interrupted):
    rows = X.copy()
    with saving(path):
        with interrupted(3):
            FITS["MASGDClassifier"]()
        rows[131, 2] = np.nan  # not in the sample
        lazy = da.from_array(rows, chunks=(50, -1))
        with pytest.raises(ValueError, match="contains NaN in block 2") as caught:
            FITS["MASGDClassifier"](X=lazy)
    assert not isinstance(caught.value, CheckpointError)


def test_a_checkpoint_that_does_not_say_of_which_rows_it_is(path, left):
    """It has not been damaged: another version has written it."""
    left("MASGDClassifier", path)
    with saving(path):
        store = Store(str(path))
        [(series, [*_, number])] = store.series().items()
        edit_manifest(lambda m: m.update(version=2))(
            store, series, number, path / series
        )
        with pytest.raises(CheckpointError, match="another version of dask_ma"):
            FITS["MASGDClassifier"]()


def test_an_old_checkpoint_is_refused(path):
    path.mkdir()
    (path / "round-00000003.json").write_text('{"version": 1}')
    with saving(path), pytest.raises(CheckpointError, match=r"another version"):
        FITS["MASGDClassifier"]()
