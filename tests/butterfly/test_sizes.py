"""Sizes of ranks, which each of them knows without a message of its own."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly import _plan


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_sizes_of_the_largest_ranks(monkeypatch, binary, kind, early_stopping):
    """Known from what ranks have agreed on, but for rows held out since."""
    X, y = binary
    X = np.where(np.arange(len(X))[:, np.newaxis] % 7 == 0, X, 0.0)
    X[: len(X) // 3] = 1.0  # a rank with more elements than others
    known, largest_rank = [], _plan.largest_rank

    def compared(group, problem):
        before = group.counters.messages_sent, group.counters.bytes_shared
        found = largest_rank(group, problem)
        if problem.most is not None:
            after = group.counters.messages_sent, group.counters.bytes_shared
            assert after == before
        assert found == largest_rank(group, replace(problem, most=None))
        assert np.isinf(found[1]) == (kind == "dense")
        known.append(problem.most is not None)
        return found

    monkeypatch.setattr(_plan, "largest_rank", compared)
    rows = X if kind == "dense" else sparse.csr_array(X)
    params = {
        "max_iter": 1,
        "tol": None,
        "refine": None,
        "early_stopping": early_stopping,
    }
    ButterflySGDClassifier(n_ranks=3, random_state=0, **params).fit(rows, y)
    assert known == [not early_stopping] * 3
