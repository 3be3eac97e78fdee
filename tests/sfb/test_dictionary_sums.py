"""What ranks send of a batch: both ways give the sums over all rows."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb.dictionary._sums import FactorsSender, StatisticsSender

SIZES = [[7], [4, 9], [3, 0, 5, 8]]  # rows of each rank; one has none
N_ATOMS, N_FEATURES = 6, 5


def make_rows(sizes, dtype, is_sparse, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        codes = rng.normal(size=(n, N_ATOMS)) * (rng.random((n, N_ATOMS)) < 0.4)
        X = rng.normal(size=(n, N_FEATURES)) * (rng.random((n, N_FEATURES)) < 0.5)
        X = X.astype(dtype)
        rows = sparse.csr_array(X) if is_sparse else X
        found.append((rows, codes.astype(dtype), float(n)))
    return found


def make_sender(kind, group, is_sparse):
    if kind == "factors":
        return FactorsSender(group, is_sparse=is_sparse)
    return StatisticsSender(group)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["statistics", "factors"])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_over_ranks(run_ranks, sizes, kind, is_sparse, dtype):
    ranks = make_rows(sizes, dtype, is_sparse)

    def program(group):
        sender = make_sender(kind, group, is_sparse)
        return [sender.add_up(*ranks[group.rank]) for _ in range(2)]

    found = run_ranks(program, len(sizes), 1)
    parts = [X.toarray() if is_sparse else X for X, _, _ in ranks]
    X, codes = np.vstack(parts), np.vstack([codes for _, codes, _ in ranks])
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for sums in (each for own in found for each in own):
        assert sums.codes.dtype == sums.rows.dtype == dtype
        np.testing.assert_allclose(sums.codes, codes.T @ codes, atol=tolerance)
        np.testing.assert_allclose(sums.rows, codes.T @ X, atol=tolerance)
        assert (sums.n_rows, sums.objective) == (sum(sizes), sum(sizes))
        # All ranks go on with the same bits.
        assert sums.rows.tobytes() == found[0][0].rows.tobytes()
        assert sums.codes.tobytes() == found[0][0].codes.tobytes()


@pytest.mark.parametrize("staleness", [1, 3])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_sums_that_are_behind(run_ranks, staleness, is_sparse):
    """Each batch once, in order, when so many others have been sent."""
    batches = [
        make_rows([4 + number, 3], np.float64, is_sparse, seed=number)
        for number in range(5)
    ]

    def program(group):
        prompt = FactorsSender(group, is_sparse=is_sparse)
        late = FactorsSender(group, is_sparse=is_sparse, staleness=staleness)
        expected = [prompt.add_up(*ranks[group.rank]) for ranks in batches]
        found = [late.add_up(*ranks[group.rank]) for ranks in batches]
        assert late.n_under_way == staleness and not prompt.n_under_way
        found += [late.take_next() for _ in range(staleness)]
        assert not late.n_under_way
        return expected, found

    for expected, found in run_ranks(program, 2, 1):
        assert found[:staleness] == [None] * staleness
        for one, other in zip(expected, found[staleness:], strict=True):
            for name in one._fields:
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_bytes(run_ranks):
    """Sums take the same whatever the batch; factors grow with it."""
    n_bytes = {}
    for n in (10, 100):
        ranks = make_rows([n, n], np.float64, False)
        for kind in ("statistics", "factors"):

            def program(group, kind=kind, ranks=ranks):
                make_sender(kind, group, False).add_up(*ranks[group.rank])
                return group.counters.bytes_sent

            n_bytes[kind, n] = sum(run_ranks(program, 2, 1))
    sums = 8 * N_ATOMS * (N_ATOMS + N_FEATURES)
    assert n_bytes["statistics", 10] == n_bytes["statistics", 100]
    assert n_bytes["statistics", 10] == pytest.approx(2 * sums, abs=100)
    nnz = [np.count_nonzero(codes) for _, codes, _ in ranks]
    rows = 8 * 2 * 100 * N_FEATURES + sum(nnz) * 12 + 2 * 101 * 4
    assert n_bytes["factors", 100] == pytest.approx(rows, abs=200)
    assert n_bytes["factors", 10] < n_bytes["factors", 100] / 8
