"""Batches of single ranks, and means of what they have found."""

import dask
import numpy as np
import pytest

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary._atoms import Statistics, descend_on_atoms
from dask_ma.sfb.dictionary._codes import ROUGH, lasso_codes
from dask_ma.sfb.dictionary._merging import batches_apart, merge
from dask_ma.sfb.dictionary._progress import Progress
from dask_ma.sfb.dictionary._sums import BatchSums, own_sums

PARAMS = {
    "n_components": 5,
    "alpha": 0.1,
    "tol": 0,
    "max_no_improvement": None,
    "random_state": 3,
}


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(240, 5)) @ rng.normal(size=(5, 8))


def fit(X, **params):
    return SFBDictionaryLearning(**{**PARAMS, **params}).fit(X)


@pytest.mark.parametrize(
    ("wanted", "sizes", "expected"),
    [
        ("auto", (20_000, 256, 1), 1),
        ("auto", (20_000, 256, 2), 9),
        ("auto", (1_000_000, 256, 4), 16),
        ("auto", (1_800, 256, 2), 1),
        (5, (20_000, 256, 2), 5),
        (5, (1_800, 256, 2), 3),
        (5, (100, 256, 2), 1),
        (5, (20_000, 256, 1), 1),
    ],
)
def test_batches_between_exchanges(wanted, sizes, expected):
    n_rows, batch_size, n_ranks = sizes
    found = batches_apart(wanted, n_rows=n_rows, batch_size=batch_size, n_ranks=n_ranks)
    assert found == expected


def test_means_are_those_of_batches_of_all_ranks(run_ranks):
    """The statistics, if codes are the same."""
    rng = np.random.default_rng(0)
    codes, rows = rng.normal(size=(3, 2, 20, 4)), rng.normal(size=(3, 2, 20, 6))

    def program(group):
        known = Statistics.empty(4, 6, np.dtype(float))
        for step in range(2):
            c, x = codes[group.rank, step], rows[group.rank, step]
            known = known.added(own_sums(x, c, 1.0), 60)
        atoms = np.full((4, 6), float(group.rank))
        totals = np.array([[20, group.rank], [20, 2 * group.rank]])
        return merge(group, atoms, (known.codes, known.rows), totals)

    expected = Statistics.empty(4, 6, np.dtype(float))
    for step in range(2):
        c, x = (each[:, step].reshape(60, -1) for each in (codes, rows))
        expected = expected.added(BatchSums(c.T @ c, c.T @ x, 60, 0.0))
    for merged in run_ranks(program, 3):
        np.testing.assert_allclose(merged.codes, expected.codes)
        np.testing.assert_allclose(merged.rows, expected.rows)
        np.testing.assert_allclose(merged.atoms, 1)
        np.testing.assert_array_equal(merged.totals, [[60, 3], [60, 6]])


def test_ranks_without_rows_do_not_count(run_ranks):
    def program(group):
        atoms = np.full((2, 3), float(1 + group.rank))
        statistics = np.ones((2, 2)), np.ones((2, 3))
        return merge(group, atoms, statistics, np.array([[10 * group.rank, 0]]))

    for merged in run_ranks(program, 2):
        np.testing.assert_array_equal(merged.atoms, 2)
        assert merged.totals[0, 0] == 10


def test_one_round_against_a_slow_loop(X):
    """Two ranks, each with the rows of one block and two batches of them."""
    start = np.random.default_rng(1).normal(size=(5, 8))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    model = fit(
        X,
        n_ranks=2,
        merge_every=2,
        batch_size=60,
        max_iter=1,
        shuffle=False,
        dict_init=start,
    )
    ends = []
    for rows in (X[:120], X[120:]):
        atoms, known = start, Statistics.empty(5, 8, X.dtype)
        for batch in (rows[:60], rows[60:]):
            codes = lasso_codes(batch, atoms, 0.1, ROUGH).values
            known = known.added(own_sums(batch, codes, 0.0), 120)
            atoms = descend_on_atoms(atoms, known)
        ends.append((atoms, known.codes, known.rows))
    atoms, A, B = (sum(each) / 2 for each in zip(*ends, strict=True))
    expected = descend_on_atoms(atoms, Statistics(A, B, 240))
    np.testing.assert_allclose(model.components_, expected, atol=1e-10)
    assert (model.n_iter_, model.n_steps_, len(model.history_)) == (1, 2, 1)
    assert model.n_samples_seen_ == 240


@pytest.mark.each
@pytest.mark.parametrize("solver", ["online", "sgd"])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_as_good_as_batches_of_all_ranks(X, solver, n_ranks):
    params = {"solver": solver, "n_ranks": n_ranks, "max_iter": 6, "batch_size": 12}
    apart, together = (fit(X, merge_every=m, **params) for m in ("auto", 1))
    if n_ranks == 2:
        assert len(apart.history_) < len(together.history_) / 2
    assert apart.n_samples_seen_ == together.n_samples_seen_ == 6 * 240
    ends = [
        np.mean([record["objective"] for record in model.history_[-3:]])
        for model in (apart, together)
    ]
    assert ends[0] < 1.03 * ends[1]
    lengths = np.linalg.norm(apart.components_, axis=1)
    assert (lengths <= 1 + 1e-12).all()


@pytest.mark.parametrize("solver", ["online", "sgd"])
def test_a_resumed_fit(X, tmp_path, interrupted, solver):
    params = {"solver": solver, "n_ranks": 2, "batch_size": 12, "merge_every": 3}
    whole = fit(X, max_iter=3, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(5):  # within the second pass
            fit(X, max_iter=3, **params)
        resumed = fit(X, max_iter=3, **params)
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert resumed.n_steps_ == whole.n_steps_


def test_patience_counts_batches_within_rounds():
    """As one rank would count them, from the same batch on."""
    one, two = Progress(), Progress()
    for objective in [5.0, 4.0, 3.0, *([3.5] * 4)]:
        limits = {"tol": 0, "patience": 8}
        two = two.after(objective, 1.0, share=0.5, n_ranks=2, **limits)
        for _ in range(2):
            one = one.after(objective, 1.0, share=0.25, **limits)
        assert one.is_settled == two.is_settled == (two.n_worse >= 8)
        assert one.n_batches == two.n_batches
    assert one.is_settled


@pytest.mark.parametrize("patience", [4, 40])
def test_a_fit_ends_with_the_round_of_the_last_batch(X, patience):
    """A round has 8 batches here, so that 4 without gain are less than one."""
    params = {"n_ranks": 2, "batch_size": 10, "merge_every": 4, "max_iter": 400}
    model = fit(X, max_no_improvement=patience, **params)
    # A pass comes first, and another may end before there is any progress to be seen.
    assert 3 < len(model.history_) < 1200
    if patience == 4:
        longer = fit(X, max_no_improvement=400, **params)
        assert len(model.history_) < len(longer.history_)
