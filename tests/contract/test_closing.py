"""Worker processes that end after fits, as quickly as Dask's own."""

from __future__ import annotations

import logging

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLasso,
    SFBDictionaryLearning,
    SFBLogisticRegression,
)

FAMILIES = [
    ButterflySGDClassifier(max_iter=2),
    MALDA(n_components=2, max_iter=2),
    MASGDClassifier(max_iter=2),
    MPCAClassifier((4,), max_iter=2),
    SFBDictionaryLearning(3, alpha=0.1, max_iter=2),
    SFBLogisticRegression(max_iter=2),
    SchMPLasso(alpha=0.01),
]


@pytest.fixture
def nanny_log():
    """What nannies have to say in this process, from warnings upwards."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("distributed.nanny")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_processes_end_in_good_order_after_a_fit_of_each_family(tmp_path, nanny_log):
    """A handler from before the first fit is the last one to run."""
    X = np.random.default_rng(0).poisson(1.0, (200, 10)).astype(float)
    y = (X[:, 0] > X[:, 1]).astype(int)

    def note_the_end(folder):
        import atexit
        import gc
        import os

        file = folder / str(os.getpid())
        atexit.register(lambda: file.write_text(str(gc.get_freeze_count())))

    # A process that is forked leaves without any of this.
    spawned = {"distributed.worker.multiprocessing-method": "spawn"}
    with (
        dask.config.set(spawned),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(note_the_end, tmp_path)
        for estimator in FAMILIES:
            estimator.fit(X, y)
    assert nanny_log == []
    frozen = [int(file.read_text()) for file in tmp_path.iterdir()]
    # Nothing that has been imported is looked through for garbage.
    assert len(frozen) == 2 and min(frozen) > 10_000
