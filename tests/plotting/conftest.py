"""Pictures that are drawn without a screen, and closed after the test."""

import pytest

from dask_ma import MASGDClassifier
from dask_ma.ma import Models


@pytest.fixture(autouse=True)
def pyplot():
    """matplotlib without a screen."""
    module = pytest.importorskip("matplotlib.pyplot", reason="plots need matplotlib")
    module.switch_backend("Agg")
    yield module
    module.close("all")


@pytest.fixture(scope="session")
def fitted(binary):
    """Fits on three ranks, with allreduce and with a driver."""
    return {
        aggregation: MASGDClassifier(
            max_iter=5,
            tol=None,
            random_state=0,
            n_ranks=3,
            paradigm=Models(aggregation),
        ).fit(*binary)
        for aggregation in ("allreduce", "driver")
    }
