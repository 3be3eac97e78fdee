"""Several fits of the dynamic engine on the same workers at a time."""

import threading

import numpy as np

from dask_ma import SchMPLasso
from dask_ma.schmp import schedules

_BOUND = 120  # seconds


def test_fits_at_once(processes):
    """They end, each with what it gives by itself."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 24)) + rng.normal(size=(200, 1))
    y = X @ rng.normal(size=24) + rng.normal(size=200)

    def make():
        return SchMPLasso(
            0.02, schedule=schedules.Dynamic(24), tol=1e-2, random_state=0
        )

    alone = make().fit(X, y)
    models = [make() for _ in range(3)]

    def fit(model):
        with processes.as_current():
            model.fit(X, y)

    threads = [
        threading.Thread(target=fit, args=(model,), daemon=True) for model in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_BOUND)
    assert not any(thread.is_alive() for thread in threads)
    for model in models:
        np.testing.assert_array_equal(model.coef_, alone.coef_)
