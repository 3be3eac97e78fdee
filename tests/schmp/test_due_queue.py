"""The queue of parameters in the order in which they are due."""

import numpy as np
import pytest

from dask_ma.schmp.schedules._sampling import DueQueue


@pytest.mark.parametrize("size", [7, 200, 1003])
def test_the_queue_is_a_sorted_list(size):
    rng = np.random.default_rng(0)
    queue, changed = DueQueue(size, 4), None
    due, sizes = np.full(size, np.inf), np.full(size, np.inf)
    for _ in range(20):
        queue.update(due, sizes, changed)
        keys = np.where(np.isinf(sizes), np.inf, due - np.minimum(sizes, 9) ** 2)
        order = np.argsort(keys, kind="stable")
        for n, until in [(1, np.inf), (6, np.inf), (6, 1.0), (size, np.inf)]:
            expected = order[:n][
                (keys[order[:n]] < np.inf) & (keys[order[:n]] <= until)
            ]
            assert queue.first(n, until).tolist() == expected.tolist()
        new = queue.new(5, rng)
        assert np.isinf(sizes[new]).all() and len(set(new.tolist())) == len(new)
        assert (len(new) > 0) == bool(np.isinf(sizes).any())
        changed = rng.choice(size, size // 4, replace=False)
        due[changed] = rng.exponential(size=len(changed))
        sizes[changed] = rng.random(len(changed))
        due[changed[0]] = np.inf
