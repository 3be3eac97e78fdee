"""One function per peer: train on the common problem, return objective against time.

Only training is timed. Objectives are computed between the timed parts, except for
MASGDClassifier, whose own history holds both: there the cost of computing the
objective counts against it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import SGDClassifier

from benchmarks._data import persist

from ._problem import Curve, Problem


class PeerAbsentError(Exception):
    """A library or program that a peer needs is not installed."""


def require(module: str, hint: str) -> None:
    """Raise PeerAbsentError if `module` cannot be imported."""
    if importlib.util.find_spec(module) is None:
        raise PeerAbsentError(f"{module} is not installed ({hint})")


@contextlib.contextmanager
def local_cluster(n_workers: int) -> Iterator[Client]:
    """Client of a cluster of `n_workers` processes with one thread each."""
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def run_sklearn(problem: Problem, epochs: int, seed: int, until: float = 0.0) -> Curve:
    """Call partial_fit of one SGDClassifier in this process, epoch by epoch.

    It ends after `epochs` or once the objective is at or below `until`.
    """
    # An integer would give every epoch the same order of rows.
    model = SGDClassifier(alpha=problem.alpha, random_state=np.random.RandomState(seed))
    curve = Curve("SGDClassifier, 1 process", "epoch", [], [], [])
    elapsed = 0.0
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        model.partial_fit(problem.features, problem.labels, classes=[-1.0, 1.0])
        elapsed += time.perf_counter() - start
        observe(curve, epoch, elapsed, problem.objective_of(model))
        if curve.objectives[-1] <= until:
            break
    return curve


def run_dask_ma(problem: Problem, n_workers: int, rounds: int, seed: int) -> Curve:
    """Fit MASGDClassifier once, on data that lie in the memory of the workers."""
    with local_cluster(n_workers) as client:
        X, y = persist(problem.features, problem.labels, client)
        model = fit_dask_ma(problem, X, y, 1, seed)  # the first fit loads the modules
        model = fit_dask_ma(problem, X, y, rounds, seed)
    places = f"{n_workers} process" + "es" * (n_workers > 1)
    curve = Curve(f"MASGDClassifier, {places}", "round", [], [], [])
    for record in model.history_:
        if np.isnan(record["objective"]):
            continue  # a round within a pass
        observe(curve, record["round"], record["time"], record["objective"])
    own, common = curve.objectives[-1], problem.objective_of(model)
    if not np.isclose(own, common, rtol=1e-6):
        raise RuntimeError(
            f"history_ ends with the objective {own}, the common definition gives "
            f"{common}: the curves cannot be compared"
        )
    return curve


def fit_dask_ma(
    problem: Problem, X: da.Array, y: da.Array, rounds: int, seed: int, **settings: Any
) -> Any:
    """Fitted MASGDClassifier after exactly `rounds` rounds."""
    from dask_ma import MASGDClassifier

    model = MASGDClassifier(
        loss="hinge",
        alpha=problem.alpha,
        max_iter=rounds,
        tol=None,
        random_state=seed,
        **settings,
    )
    return model.fit(X, y)


def run_dask_ml(problem: Problem, epochs: int, seed: int) -> Curve:
    """Train SGDClassifier through dask_ml's Incremental, on two worker processes.

    Incremental passes one model from block to block: it trains where the data lie,
    but never on two blocks at once. dask_ml's own linear models refuse SciPy blocks.
    """
    require("dask_ml", "pip install dask-ml")
    from dask_ml.wrappers import Incremental

    with local_cluster(2) as client:
        X, y = persist(problem.features, problem.labels, client)
        model = Incremental(
            SGDClassifier(
                alpha=problem.alpha, random_state=np.random.RandomState(seed)
            ),
            shuffle_blocks=False,
        )
        curve = Curve("dask-ml Incremental, 2 processes", "epoch", [], [], [])
        elapsed = 0.0
        for epoch in range(1, epochs + 1):
            start = time.perf_counter()
            model.partial_fit(X, y, classes=[-1.0, 1.0])
            elapsed += time.perf_counter() - start
            observe(curve, epoch, elapsed, problem.objective_of(model.estimator_))
    return curve


def run_spark(
    problem: Problem, iterations: list[int], steps: list[float], folder: Path
) -> Curve:
    """Train MLlib's SVMWithSGD in local[2] on data cached in the driver.

    Its step size decays with the iteration, so a run cannot be continued: every entry
    of `iterations` is a run of its own from zero. The initial step size is the one of
    `steps` that is best after 20 iterations; that search is not timed. Everything
    stays inside the Java process, so that no time is spent on Python objects.
    """
    with spark_session() as session:
        rows = load_spark(session, problem, folder)
        tried = {step: fit_spark(session, problem, rows, 20, step)[1] for step in steps}
        step = min(tried, key=tried.__getitem__)
        curve = Curve(
            f"MLlib SVMWithSGD, local[2], step {step:g}", "iteration", [], [], []
        )
        for count in iterations:
            elapsed, objective = fit_spark(session, problem, rows, count, step)
            observe(curve, count, elapsed, objective)
    return curve


@contextlib.contextmanager
def spark_session() -> Iterator[Any]:
    """Spark session with two threads and 8 GB in this machine's driver."""
    require("pyspark", "pip install pyspark")
    java_home = os.environ.get("JAVA_HOME")
    if not (java_home or shutil.which("java")):
        raise PeerAbsentError("pyspark needs Java 17 (Debian: openjdk-17-jre-headless)")
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("dask_ma peers")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


def load_spark(session: Any, problem: Problem, folder: Path) -> Any:
    """Write the data as libsvm text, read it back, cache it: a Java RDD of points."""
    path = str(folder / "train.libsvm")
    dump_svmlight_file(
        problem.features, (problem.labels > 0).astype(int), path, zero_based=False
    )
    context = session.sparkContext
    util = context._jvm.org.apache.spark.mllib.util.MLUtils
    rows = util.loadLibSVMFile(
        context._jsc.sc(), path, problem.features.shape[1], 2
    ).cache()
    if rows.count() != len(problem.labels):
        raise RuntimeError("Spark did not read back all rows")
    return rows


def fit_spark(
    session: Any, problem: Problem, rows: Any, iterations: int, step: float
) -> tuple[float, float]:
    """Seconds and objective of one MLlib run."""
    from pyspark.mllib.common import _java2py

    context = session.sparkContext
    trainer = context._jvm.org.apache.spark.mllib.classification.SVMWithSGD(
        step, iterations, problem.alpha, 1.0
    )
    trainer.optimizer().setConvergenceTol(0.0)
    trainer.setIntercept(True)
    trainer.setValidateData(False)
    start = time.perf_counter()
    model = trainer.run(rows)
    elapsed = time.perf_counter() - start
    weights = _java2py(context, model.weights()).toArray()
    return elapsed, problem.objective(weights, model.intercept())


def observe(curve: Curve, step: int, seconds: float, objective: float) -> None:
    """Append one observation."""
    curve.steps.append(step)
    curve.seconds.append(seconds)
    curve.objectives.append(objective)
