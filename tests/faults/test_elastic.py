"""Fits that workers join, and what each estimator makes of it."""

import functools
import importlib
import os
import signal
import threading
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_ma
from dask_ma.data import scheduler_workers
from dask_ma.engine._liveness import is_running
from dask_ma.mpca import strategies
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange

pytestmark = pytest.mark.slow

_AT_ROUND = 3
_BOUND = 30  # seconds
LINEAR = {"loss": "log_loss", "alpha": 0.01, "tol": None, "random_state": 0}
# The modules that hold what an estimator has its ranks run.
TRAINED_BY = {
    "ButterflySGDClassifier": "butterfly._linear",
    "MALDA": "ma.lda._base",
    "MASGDClassifier": "ma.sgd._linear",
    "MPCAClassifier": "mpca._estimator",
    "SFBLogisticRegression": "sfb.logistic._estimator",
    "SchMPLasso": "schmp.l1._estimator",
}


@pytest.fixture(scope="module")
def cluster_client():
    """A cluster without workers, and its client."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield cluster, client


@pytest.fixture
def scale(cluster_client, assert_clean):
    """``scale(n)`` waits until there are `n` workers."""
    cluster, client = cluster_client

    def scale_to(n_workers):
        cluster.scale(n_workers)
        deadline = time.monotonic() + _BOUND
        # One that is about to go is still among them.
        while [*map(is_running, scheduler_workers(client).values())] != (
            [True] * n_workers
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with client.as_current():
        yield scale_to
        assert_clean(client)


@pytest.fixture
def grow(scale, monkeypatch, tmp_path):
    """``grow(estimator, rows, before, after, ...)`` fits while workers join.

    Rank 0 waits in its third round until they have; the others may be `late` then. The
    number of ranks of each launch is returned, too.
    """

    def run(estimator, rows, before, after, **agent):
        module = TRAINED_BY[type(estimator).__name__]
        monkeypatch.setattr(
            f"dask_ma.{module}.train", growing_agent(module, tmp_path, **agent)
        )
        scale(before)

        def add_workers():
            wait_for(lambda: (tmp_path / "reached").exists())
            scale(after)
            (tmp_path / "go").touch()

        thread = threading.Thread(target=add_workers)
        thread.start()
        with dask.config.set(
            {
                "dask-ma.elastic": True,
                "dask-ma.launch.heartbeat-interval": "100 ms",
                "dask-ma.recovery.wait": 20,
            }
        ):
            model = estimator.fit(*rows)
        thread.join()
        return model, [int(n) for n in (tmp_path / "sizes").read_text().split()]

    return run


@pytest.fixture
def alone(here):
    """``alone(estimator, rows, n_ranks)``: a fit that nothing happens to."""

    def fit(estimator, rows, n_ranks):
        with usual_agent(estimator):
            return here(estimator.set_params(n_ranks=n_ranks).fit, *rows)

    return fit


@contextmanager
def usual_agent(estimator):
    """Ranks that are not late."""
    module = importlib.import_module(f"dask_ma.{TRAINED_BY[type(estimator).__name__]}")
    agents = f"dask_ma.{agents_of(module.__name__.removeprefix('dask_ma.'))}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", importlib.import_module(agents).train)
        yield


def agents_of(module):
    """The module of the agent, below the package, of an estimator's module."""
    package = module.rpartition(".")[0]
    return f"{package}.training._agent" if package == "mpca" else f"{package}._agent"


def wait_for(condition):
    deadline = time.monotonic() + _BOUND
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def growing_agent(module, directory, late=None, holds=False, dies_in=None):
    """The agent, whose ranks start again on more workers after the third round.

    Parameters
    ----------
    late : str
        What ranks other than 0 do late then: "save_state", or a method of a class, as
        in "mpca.strategies._server.Central._share". What they have to do before they
        get to the end of their round then comes when rank 0 has long been there.
    holds : bool
        Whether they wait with it until rank 0 is there. For strategies whose ranks get
        to the end of a round one without the other.
    dies_in : int
        Round of the second launch in which its last rank dies.
    """

    agents = agents_of(module)

    def agent(context, arguments, params):
        import importlib

        from dask_ma.engine.recovery import _states

        train = importlib.import_module(f"dask_ma.{agents}").train
        rank, size = context.group.rank, context.group.size
        attempt = context._states._fit_info.attempt
        keep = context.save_state
        reached, go = directory / "reached", directory / "go"
        was_late = directory / "late"

        now = {"round": 0}

        def be_late():
            if rank and holds and now["round"] == _AT_ROUND - 1:
                wait(reached.exists)  # rank 0 gets there by itself
            if reached.exists() and not was_late.exists():
                was_late.touch()
                time.sleep(0.5)

        def wait(condition):
            deadline = time.monotonic() + _BOUND
            while not condition():
                assert time.monotonic() < deadline
                time.sleep(0.01)

        def first_keep(n_rounds, *args, **kwargs):
            if rank == 0 and n_rounds >= _AT_ROUND:
                reached.touch()
                wait(lambda: go.exists() and _states._regroup_wanted)
                wait(lambda: late is None or was_late.exists())
            elif rank and n_rounds >= _AT_ROUND:
                wait(reached.exists)
                be_late()
            keep(n_rounds, *args, **kwargs)
            now["round"] = n_rounds

        def second_keep(n_rounds, *args, **kwargs):
            if rank == size - 1 and n_rounds == dies_in and attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            keep(n_rounds, *args, **kwargs)

        context.save_state = first_keep if attempt == 0 else second_keep
        if rank == 0:
            with (directory / "sizes").open("a") as file:
                print(size, file=file)
        if late in (None, "save_state") or attempt or rank == 0:
            return train(context, arguments, params)
        path, _, method = late.rpartition(".")
        path, _, owner = path.rpartition(".")
        owner = getattr(importlib.import_module(f"dask_ma.{path}"), owner)
        usual = getattr(owner, method)

        @functools.wraps(usual)
        def late_method(*args, **kwargs):
            be_late()
            return usual(*args, **kwargs)

        setattr(owner, method, late_method)
        try:
            return train(context, arguments, params)
        finally:
            setattr(owner, method, usual)

    return agent


@pytest.fixture(scope="module")
def two_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 10))
    return X, (X @ np.arange(10) + rng.normal(size=1500) > 0).astype(int)


@pytest.fixture(scope="module")
def four_classes():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 600)
    return rng.normal(size=(600, 8)) + rng.normal(size=(4, 8))[y], y


# Butterfly mixing --------------------------------------------------------------------


def mixing(how):
    return dask_ma.ButterflySGDClassifier(
        max_iter=10, batch_size=25, mixing=how, **LINEAR
    )


def assert_same_course(model, undisturbed):
    rounds = [record["round"] for record in model.history_]
    assert rounds == [record["round"] for record in undisturbed.history_]
    wanted = undisturbed.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.02)
    assert model.history_[-1]["n_samples"] == undisturbed.history_[-1]["n_samples"]


def test_ranks_that_join_begin_with_the_mean(grow, alone, two_classes):
    """Other numbers of ranks begin so before a loss; see below."""
    model, sizes = grow(mixing("butterfly"), two_classes, 2, 3)
    assert sizes == [2, 3]
    undisturbed = alone(mixing("butterfly"), two_classes, 2)
    # Up to there it is the same fit.
    for old, new in zip(undisturbed.history_[:3], model.history_, strict=False):
        assert new["objective"] == old["objective"]
    assert_same_course(model, undisturbed)


@pytest.mark.parametrize("how", ["allreduce", "none"])
def test_other_ways_to_mix(grow, alone, two_classes, how):
    model, sizes = grow(mixing(how), two_classes, 2, 3)
    assert sizes == [2, 3]
    assert_same_course(model, alone(mixing(how), two_classes, 2))


@pytest.mark.parametrize(
    ("before", "after", "dies_in"),
    [(2, 4, 4), (3, 4, 5)],
    ids=["before keeping", "later"],
)
def test_a_loss_after_a_join(grow, alone, two_classes, before, after, dies_in):
    model, sizes = grow(
        mixing("butterfly"), two_classes, before, after, dies_in=dies_in
    )
    assert sizes == [before, after, after]
    assert_same_course(model, alone(mixing("butterfly"), two_classes, before))


# Exchanges that go on in the background ---------------------------------------------


def network(strategy):
    # Ranks that do not wait for each other may pass several epochs at a time.
    many = isinstance(strategy, strategies.MPCA)
    return dask_ma.MPCAClassifier(
        (6,),
        max_iter=100 if many else 8,
        batch_size=100 if many else 50,
        tol=None,
        random_state=0,
        strategy=strategy,
        learning_rate_init=0.01,
    )


def broadcasting(solver="auto", **params):
    return dask_ma.SFBLogisticRegression(
        solver=solver,
        max_iter=8,
        tol=None,
        random_state=0,
        communication=Exchange("factors", **params),
    )


IN_BACKGROUND = {
    "parameter server": (
        network(strategies.ParameterServer()),
        {"late": "mpca.strategies._server.Central._share", "holds": True},
    ),
    "easgd": (
        network(strategies.ElasticAveraging(period=1)),
        {"late": "mpca.strategies._server.Elastic._share", "holds": True},
    ),
    "one phase": (
        network(strategies.MPCA()),
        {"late": "mpca.strategies._coordinated.Coordinated.exchange"},
    ),
    "three phases": (
        network(strategies.MPCA(n_phases=3)),
        {"late": "mpca.strategies._coordinated.Coordinated.exchange"},
    ),
    "synchronous": (network(strategies.Synchronous()), {"late": "save_state"}),
    "stale": (broadcasting(staleness=2), {"late": "save_state"}),
    "partial": (
        broadcasting(broadcast=1),
        {"late": "sfb.exchange._exchange.FactorExchange.finish"},
    ),
    "dual": (broadcasting(solver="sdca", staleness=1), {"late": "save_state"}),
}


@pytest.mark.parametrize("name", IN_BACKGROUND)
def test_ranks_that_are_late(grow, four_classes, name):
    """None leaves before all have done what they do with each other."""
    estimator, agent = IN_BACKGROUND[name]
    model, sizes = grow(estimator, four_classes, 2, 3, **agent)
    assert sizes == [2, 3]
    assert model.score(*four_classes) > 0.6
    assert model.n_iter_ == estimator.max_iter


def test_topics(grow):
    rng = np.random.default_rng(2)
    topics = rng.dirichlet(np.full(40, 0.1), 4)
    X = rng.multinomial(50, rng.dirichlet(np.full(4, 0.3), 200) @ topics)
    estimator = dask_ma.MALDA(
        4, max_iter=8, batch_size=50, total_samples=200, random_state=0,
        mixing="butterfly",
    )  # fmt: skip
    model, sizes = grow(estimator, (X,), 2, 3, late="save_state")
    assert sizes == [2, 3]
    assert model.n_iter_ == 8


def test_the_dynamic_engine(grow, alone):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 60)) + rng.normal(size=(200, 1))
    y = X[:, :20].sum(axis=1) + rng.normal(size=200)
    estimator = dask_ma.SchMPLasso(
        alpha=0.01, schedule=schedules.Dynamic(8), tol=1e-4, random_state=0
    )
    model, sizes = grow(estimator, (X, y), 2, 3, late="save_state")
    assert sizes == [2, 3]
    whole = alone(estimator, (X, y), 2)
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-2)


def test_as_many_ranks_with_other_rows(grow, alone, four_classes):
    """Dual variables of a rank's rows are not taken for those of its new rows."""
    estimator = broadcasting("sdca").set_params(alpha=0.01, max_iter=10)
    model, sizes = grow(estimator, four_classes, 3, 4, dies_in=4)
    assert sizes == [3, 4, 4]
    whole = alone(estimator, four_classes, 3)
    objectives = [fit.history_[-1]["objective"] for fit in (model, whole)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)
    # What it says of itself holds for the model: the rows' variables belong to it.
    assert model.dual_gap_ < 10 * whole.dual_gap_ + 1e-3
