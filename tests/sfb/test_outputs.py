"""Outputs shared out over ranks against the slow loop and the other ways."""

from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from traced import traced

from dask_ma import SFBLogisticRegression, SFBMetricLearner
from dask_ma.comm import LocalGroup
from dask_ma.kernels import _outer
from dask_ma.sfb import Exchange, _shared, run
from dask_ma.sfb.exchange import _choice, _outputs
from dask_ma.sfb.exchange._outputs import OutputShares, kept_every, packed, unpacked
from dask_ma.sfb.logistic._agent import join
from dask_ma.sfb.metric import _models
from dask_ma.sfb.model import _matrix, _rows
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.prox import L1, L2, NoPenalty
from dask_ma.supervised import FitResult

X, y = load_digits(return_X_y=True)
X, y = X[:300] / 16, y[:300]
TABLE = np.array([[1.0, -1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.5, 3.0]])


def slopes(self, values, sums, batch, outputs):
    """Those of least squares, which need nothing of other ranks."""
    assert len(sums) == 1
    u = values - TABLE[batch.y][:, outputs]
    if batch.sample_weight is not None:
        u *= batch.sample_weight[:, np.newaxis]
    return u


SHARING = {"shares_outputs": True, "share_slopes": slopes}


@pytest.mark.pairs
@pytest.mark.parametrize("prox", [NoPenalty(), L1(0.1), L2(0.3)], ids=repr)
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_against_the_slow_loop(
    run_engines, slow_loop, make_model, make_shards, rows, prox, kind, n_ranks
):
    model = make_model(prox=prox, fit_intercept=True, intercept_scale=0.5, **SHARING)
    shards = make_shards(n_ranks, kind(rows.X), rows.y, rows.weight)
    engines = run_engines(model, shards, content="outputs")
    expected = slow_loop(model, shards)
    n_kept = 0
    for engine in engines:
        assert engine.communication == "outputs"
        own = slice(n_kept, n_kept + len(np.asarray(engine.matrix)))
        np.testing.assert_allclose(engine.matrix, expected.W[own], 1e-10, 1e-10)
        intercept = engine.matrix.intercept
        np.testing.assert_allclose(intercept, expected.b[own], 1e-10, 1e-10)
        n_kept = own.stop
    assert n_kept == 3


@pytest.mark.parametrize("prox", [NoPenalty(), L1(0.1)], ids=repr)
@pytest.mark.parametrize("is_followed", [False, True])
def test_rows_are_sorted_once(
    monkeypatch,
    run_engines,
    slow_loop,
    make_model,
    make_shards,
    rows,
    prox,
    is_followed,
):
    """For the values and for the update; who follows the updates still gets rows."""
    for name in ("_MANY_PRODUCTS", "_LARGE", "_FEWEST_OUTPUTS"):
        monkeypatch.setattr(_outer, name, 0)
    n_sorted, formats = [], []
    plain = sparse.csr_array.tocsc

    def tocsc(self, copy=False):
        n_sorted.append(self.shape)
        return plain(self, copy=copy)

    def updated(self, matrix, factors, scale):
        formats.append(factors.v.format)

    monkeypatch.setattr(sparse.csr_array, "tocsc", tocsc)
    more = {"updated": updated} if is_followed else {}
    model = make_model(prox=prox, **SHARING, **more)
    shards = make_shards(2, sparse.csr_array(rows.X), rows.y, rows.weight)
    engines = run_engines(model, shards, content="outputs")
    n_batches = sum(engine.iteration for engine in engines)
    assert len(n_sorted) == n_batches or is_followed
    assert formats == ["csr"] * (n_batches * is_followed)
    expected = slow_loop(model, shards)
    found = np.vstack([engine.matrix for engine in engines])
    np.testing.assert_allclose(found, expected.W, 1e-10, 1e-10)


@pytest.mark.each
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_softmax(kind, penalty, n_ranks):
    """The same models, but for rounding, in every pass."""
    params = {"penalty": penalty, "solver": "sgd", "alpha": 1e-3, "max_iter": 4}
    params |= {"tol": None, "random_state": 0, "n_ranks": n_ranks, "batch_size": 16}
    weights = {"class_weight": {0: 2.0}}
    factors, outputs = (
        SFBLogisticRegression(communication=c, **params, **weights).fit(kind(X), y)
        for c in ("factors", "outputs")
    )
    assert outputs.communication_ == "outputs"
    np.testing.assert_allclose(outputs.coef_, factors.coef_, atol=1e-9)
    np.testing.assert_allclose(outputs.intercept_, factors.intercept_, atol=1e-9)
    for one, other in zip(outputs.history_, factors.history_, strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)


@pytest.mark.each
@pytest.mark.parametrize(("n_ranks", "is_halved"), [(2, True), (4, True), (5, False)])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_halves_of_large_batches(monkeypatch, kind, n_ranks, is_halved):
    """Sums of one are under way while the other is worked on; for few ranks."""
    cut, plain = [], _shared.halves

    def halves(batch):
        cut.append(batch.n_rows)
        return plain(batch)

    monkeypatch.setattr(_shared, "halves", halves)
    params = {"solver": "sgd", "alpha": 1e-3, "max_iter": 2, "tol": None}
    params |= {"random_state": 0, "n_ranks": n_ranks, "batch_size": 15}
    factors, whole = (
        SFBLogisticRegression(communication=c, **params).fit(kind(X), y)
        for c in ("factors", "outputs")
    )
    assert not cut
    monkeypatch.setattr(_shared, "_MUCH", 0)
    halved = SFBLogisticRegression(communication="outputs", **params).fit(kind(X), y)
    # Each rank has the rows of all, once in a pass.
    assert sum(cut) == (2 * 300 * n_ranks if is_halved else 0)
    for other in (factors, whole):
        np.testing.assert_allclose(halved.coef_, other.coef_, atol=1e-9)
        np.testing.assert_allclose(halved.intercept_, other.intercept_, atol=1e-9)
    assert halved.t_ == whole.t_
    # Sorted by features, halves of sparse rows would read as much as the whole.
    del cut[:]
    monkeypatch.setattr(_outer, "_MANY_PRODUCTS", 0)
    monkeypatch.setattr(_outer, "_LARGE", 0)
    monkeypatch.setattr(_outer, "_FEWEST_OUTPUTS", 0)
    again = SFBLogisticRegression(communication="outputs", **params).fit(kind(X), y)
    assert bool(cut) == (is_halved and kind is np.asarray)
    np.testing.assert_allclose(again.coef_, halved.coef_, atol=1e-9)


@pytest.mark.parametrize(("n_ranks", "is_ahead"), [(2, True), (4, True), (5, False)])
def test_rows_of_the_next_batch_while_sums_are_under_way(
    monkeypatch, n_ranks, is_ahead
):
    """They are put together before the sums of others are waited for; for few ranks."""
    seen = {rank: "" for rank in range(n_ranks)}

    def noted(name, mark):
        plain = getattr(OutputShares, name)

        def method(self, sums):
            seen[self._group.rank] += mark
            return plain(self, sums)

        monkeypatch.setattr(OutputShares, name, method)

    plain = OutputShares.stream

    def stream(self, batches):
        for batch in plain(self, batches):
            seen[self._group.rank] += "n"
            yield batch
        seen[self._group.rank] += "."

    noted("post", "p")
    noted("take", "t")
    monkeypatch.setattr(OutputShares, "stream", stream)
    # One at a time for the objective, too, of 64 rows of a rank.
    monkeypatch.setattr(_shared, "_MOST_VALUES", 0)
    monkeypatch.setattr(_rows, "_CHUNK", 0)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "random_state": 0}
    params |= {"n_ranks": n_ranks, "batch_size": 30, "communication": "outputs"}
    model = SFBLogisticRegression(**params, refine=False).fit(X[:240], y[:240])
    factors = model.__class__(**{**params, "communication": "factors"}, refine=False)
    factors.fit(X[:240], y[:240])
    for one, other in zip(model.history_, factors.history_, strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)
    n_batches = -(-240 // (30 * n_ranks))
    expected = "n" + (n_batches - 1) * "pnt" + "p.t"
    of_objective = "np" + (-(-240 // (64 * n_ranks)) - 1) * "npt" + ".t"
    if not is_ahead:
        expected, of_objective = "nn.", "n."
    for marks in seen.values():
        assert marks == expected + of_objective


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_losses_of_as_many_values_on_any_number_of_ranks(monkeypatch, n_ranks):
    """A large matrix is read once for four times as many as where it is whole."""
    sizes, plain = [], _shared.SharedOutputs._losses

    def losses(self, some, found, sums):
        sizes.extend(values.size for values, _ in found)
        return plain(self, some, found, sums)

    monkeypatch.setattr(_shared.SharedOutputs, "_losses", losses)
    labels, n_values = np.arange(9600) % 240, 240 * 100
    rows = sparse.random_array((9600, 20), density=0.1, format="csr", rng=0)
    monkeypatch.setattr(_rows, "_CHUNK", n_values)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "communication": "outputs"}
    SFBLogisticRegression(refine=False, n_ranks=n_ranks, **params).fit(rows, labels)
    assert max(sizes) == 4 * n_values
    assert sum(sizes) == 9600 * 240


@pytest.mark.parametrize("content", ["factors", "outputs"])
def test_zeros_need_not_be_transposed(monkeypatch, content):
    """They lie as a rank keeps them, and so do some outputs of them."""
    monkeypatch.setattr(_matrix, "transposed_copy", None)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "random_state": 0}
    SFBLogisticRegression(communication=content, n_ranks=2, **params).fit(X, y)


@pytest.mark.parametrize("n_rows", [1, 199, 200])
def test_arrays_put_together_some_rows_at_a_time(monkeypatch, n_rows):
    """Rank 0 gets no more at once; of a row it may be that no more fits."""
    monkeypatch.setattr(_outputs, "_PART_BYTES", 50 * 3 * 8)
    whole, sizes = np.arange(7.0 * n_rows).reshape(n_rows, 7), []

    def program(group):
        plain = group.recv

        def recv(*place):
            part = plain(*place)
            sizes.append(len(part))
            return part

        group.recv = recv
        shares = OutputShares(group, 7)
        return shares.collect(shares.cut(whole), "whole")

    with ThreadPoolExecutor(2) as pool:
        first, _ = pool.map(program, LocalGroup.create(2, ranks_per_node=1))
    np.testing.assert_array_equal(first, whole)
    assert sizes[:-1] == [37] * (n_rows // 37)
    assert sum(sizes) == n_rows


def test_models_that_keep_something_for_their_slopes(
    monkeypatch, run_engines, make_model, make_shards, rows
):
    """They are not asked for two halves at a time."""
    monkeypatch.setattr(_shared, "_MUCH", 0)
    monkeypatch.setattr(OutputShares, "post", None)
    run_engines(
        make_model(**SHARING), make_shards(2, rows.X, rows.y), content="outputs"
    )


def test_on_a_cluster(inproc_client):
    params = {"communication": "outputs", "solver": "sgd", "max_iter": 3, "tol": None}
    params |= {"random_state": 0, "n_ranks": 2}
    here = SFBLogisticRegression(**params).fit(X, y)
    with inproc_client.as_current():
        there = SFBLogisticRegression(**params).fit(X, y)
    np.testing.assert_array_equal(here.coef_, there.coef_)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_arrays_put_together(n_ranks):
    """As they are asked for, in memory, too."""
    whole = np.arange(5 * 200.0).reshape(200, 5)

    def program(group):
        shares = OutputShares(group, 5)
        part, row = shares.cut(whole), shares.cut(whole[0])
        return shares.collect(part, "some"), shares.collect(row, "row")

    with ThreadPoolExecutor(n_ranks) as pool:
        found = list(pool.map(program, LocalGroup.create(n_ranks)))
    together, row = found[0]
    np.testing.assert_array_equal(together, whole)
    np.testing.assert_array_equal(row, whole[0])
    assert together.flags.c_contiguous


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_outputs_come_straight_from_the_ranks(monkeypatch, inproc_client, n_ranks):
    """None goes by way of rank 0, and the client has all in one array."""
    params = {"solver": "sgd", "alpha": 1e-3, "max_iter": 2, "tol": None}
    params |= {"random_state": 0, "n_ranks": n_ranks}
    expected = SFBLogisticRegression(communication="factors", **params).fit(X, y)
    monkeypatch.setattr(OutputShares, "collect", None)
    model = SFBLogisticRegression(communication="outputs", **params).fit(X, y)
    assert model.coef_.flags.writeable and model.coef_.dtype == X.dtype
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, atol=1e-9)
    with inproc_client.as_current():
        there = SFBLogisticRegression(communication="outputs", **params).fit(X, y)
    np.testing.assert_array_equal(there.coef_, model.coef_)
    np.testing.assert_array_equal(there.intercept_, model.intercept_)


def test_no_part_of_a_rank_outlives_the_whole():
    """Each goes when it has been put where it belongs."""
    n_features = 50_000
    with traced() as memory:
        models = [
            {"coef": np.full((10, n_features), r), "intercept": np.full(10, r)}
            for r in np.arange(4.0)
        ]
        results = [FitResult(model, True, []) for model in models]
        found = join([*results, None], None)
    np.testing.assert_array_equal(found.fitted["coef"][:, -1], np.repeat(range(4), 10))
    assert memory.left <= 1.1 * found.fitted["coef"].nbytes


@pytest.mark.each
@pytest.mark.parametrize("weight", [None, {0: 2.0, 3: 0.5}])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("n_ranks", "batch_size"), [(1, 7), (2, 7), (3, 20)])
def test_rows_stay_for_the_losses(monkeypatch, kind, n_ranks, batch_size, weight):
    """Where they are few against the matrix; else they are sent once more."""
    n_streams, sizes = [], []
    plain, losses = OutputShares.stream, _shared.SharedOutputs._losses

    def stream(self, batches):
        n_streams.append(self._group.rank)
        return plain(self, batches)

    def counted(self, some, found, sums):
        sizes.extend(batch.n_rows for batch in some)
        return losses(self, some, found, sums)

    monkeypatch.setattr(OutputShares, "stream", stream)
    monkeypatch.setattr(_shared.SharedOutputs, "_losses", counted)
    monkeypatch.setattr(_rows, "_CHUNK", 64)
    labels = np.arange(200) % 100
    rows = np.random.default_rng(0).normal(size=(200, 9))
    rows[np.abs(rows) < 1] = 0
    params = {"solver": "sgd", "max_iter": 2, "tol": None, "batch_size": batch_size}
    params |= {"n_ranks": n_ranks, "random_state": 0, "refine": False}
    params |= {"communication": "outputs", "class_weight": weight}
    found = []
    for most in (100, 0):
        monkeypatch.setattr(_shared, "_MOST_KEPT", most)
        found.append(SFBLogisticRegression(**params).fit(kind(rows), labels))
        assert len(n_streams) == 2 * n_ranks * (2 - bool(most))
        assert sum(sizes) == 2 * 200 * n_ranks
        # Several batches together, where that is not too much.
        assert max(sizes) <= 64 * n_ranks
        assert max(sizes) > 0.7 * min(64 * n_ranks, 200)
        n_streams.clear()
        sizes.clear()
    np.testing.assert_array_equal(found[0].coef_, found[1].coef_)
    for one, other in zip(*(model.history_ for model in found), strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-12)
        if n_ranks > 1:
            assert one["bytes_sent"] + one["bytes_shared"] < 0.9 * (
                other["bytes_sent"] + other["bytes_shared"]
            )


def test_rows_stay_for_nothing_once(monkeypatch):
    """Where gaps are looked at, and no losses, the next pass keeps none."""
    n_kept, plain = [], _shared.SharedOutputs.factors

    def factors(self, *args):
        yield from plain(self, *args)
        n_kept.append(len(self._kept))

    monkeypatch.setattr(_shared, "_MOST_KEPT", 100)
    monkeypatch.setattr(_shared.SharedOutputs, "factors", factors)
    params = {"solver": "sgd", "max_iter": 3, "tol": 1e-9, "n_ranks": 2}
    model = SFBLogisticRegression(communication="outputs", batch_size=64, **params)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert n_kept == [3, 3, 0, 0, 0, 0]


def test_no_factor_is_sent():
    """Rows, two sums for each row and rank, and the matrix at the end of a pass."""
    labels = np.arange(256) % 128
    rows = sparse.random_array((256, 10), density=0.3, format="csr", rng=0)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "batch_size": 8}
    params |= {"n_ranks": 2, "random_state": 0, "refine": False}
    found = {}
    for way in ("factors", "outputs"):
        model = SFBLogisticRegression(communication=way, **params).fit(rows, labels)
        [record] = model.history_
        found[way] = record["bytes_sent"] + record["bytes_shared"]
    assert found["factors"] > 256 * 128 * 8
    assert found["outputs"] < found["factors"] / 3


def test_outputs_are_shared_out_where_that_is_quickest(monkeypatch):
    """If the model can."""
    monkeypatch.setattr(_choice.Iteration, "seconds_of_outputs", lambda *_: 0.0)
    params = {"solver": "sgd", "max_iter": 1, "tol": None, "n_ranks": 2}
    model = SFBLogisticRegression(penalty="l1", **params).fit(X, y)
    assert model.communication_ == "outputs"
    model = SFBLogisticRegression(penalty="trace", **params).fit(X, y)
    assert model.communication_ == "full_matrix"


def assert_same(one, other):
    for name in ("X", "y", "sample_weight", "rows"):
        left, right = getattr(one, name), getattr(other, name)
        if left is None:
            assert right is None
            continue
        assert sparse.issparse(left) == sparse.issparse(right)
        if sparse.issparse(left):
            left, right = left.toarray(), right.toarray()
        np.testing.assert_array_equal(left, right)


def make_batches(n_rows, kind, targets, weight):
    rng = np.random.default_rng(0)
    for first, size in zip(np.cumsum([0, *n_rows]), n_rows, strict=False):
        yield Batch(
            kind(rng.normal(size=(size, 3))),
            None if targets is None else rng.normal(size=(size, *targets)),
            rng.random(size) if weight else None,
            np.arange(first, first + size),
        )


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("targets", [None, (), (2,)])
@pytest.mark.parametrize("weight", [False, True])
def test_batches_as_messages(kind, targets, weight):
    batches = list(make_batches((4, 1, 3), kind, targets, weight))
    again = unpacked(packed(batches))
    assert len(again) == 3
    for one, other in zip(batches, again, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_messages_of_batches_without_rows(kind):
    """A rank with few rows makes empty batches, which are never sparse."""
    empty = Batch(np.zeros((0, 3)), None, None, np.zeros(0, dtype=np.int64))
    full = next(make_batches((2,), kind, (), True))
    again = unpacked(packed([empty, full, empty]))
    assert [batch.n_rows for batch in again] == [0, 2, 0]
    assert_same(again[1], full)
    assert [batch.n_rows for batch in unpacked(packed([empty, empty]))] == [0, 0]


@pytest.mark.parametrize("most", [1, 3, 16])
def test_streams_of_ranks_with_unequal_batches(monkeypatch, most):
    """Step by step and by rank, however many travel together, until all have ended."""
    monkeypatch.setattr(_outputs, "_MOST_TOGETHER", most)
    sizes = [(1, 2, 3, 4, 5, 1, 1), (2, 2), (3, 1, 1, 1)]
    groups = LocalGroup.create(3, ranks_per_node=1)

    def rows(group):
        batches = make_batches(sizes[group.rank], sparse.csr_array, (), False)
        batches = (b._replace(rows=b.rows + 100 * group.rank) for b in batches)
        found = OutputShares(group, 3).stream(batches)
        return [batch.rows.tolist() for batch in found]

    with ThreadPoolExecutor(3) as pool:
        all_found = list(pool.map(rows, groups))
    starts = [np.cumsum([0, *each]) + 100 * rank for rank, each in enumerate(sizes)]
    expected = [
        [row for s in starts if k + 1 < len(s) for row in range(s[k], s[k + 1])]
        for k in range(7)
    ]
    assert all_found == [expected] * 3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"penalty": "trace"}, "content='outputs' needs a model that shares outputs"),
        ({"n_ranks": 11}, "there are 10 for 11 ranks; set n_ranks=10, or"),
        ({"solver": "sdca"}, "solver='sdca' needs factors on all ranks"),
        ({"communication__staleness": 1}, "staleness concerns factors"),
    ],
)
def test_what_cannot_be_shared_out(params, message):
    model = SFBLogisticRegression(
        **{"solver": "sgd", "n_ranks": 2, "max_iter": 1, "tol": None},
        communication=Exchange("outputs"),
    ).set_params(**params)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_models_that_do_not_share(make_model, rows):
    with pytest.raises(ValueError, match="LeastSquares has 3 outputs"):
        run(make_model(), rows.X, rows.y, n_passes=1, communication="outputs")
    with pytest.raises(ValueError, match="TraceNorm"):
        params = {"penalty": "trace", "alpha": 0.1, "optimizer": "sgd"}
        SFBMetricLearner(communication="outputs", **params).fit(X, y)
    with pytest.raises(ValueError, match="2 outputs|1 outputs"):
        SFBLogisticRegression(solver="sgd", communication="outputs").fit(X, y > 4)


@pytest.mark.parametrize("communication", ["outputs", "auto"])
@pytest.mark.parametrize(
    ("sums", "message"),
    [
        (lambda values: values.sum(axis=1), r"shape \(\d,\), expected \(\d, n_sums\)"),
        (lambda values: values[:2], r"shape \(2, \d\), expected \([47], n_sums\)"),
    ],
)
def test_sums_of_another_shape(make_model, rows, sums, message, communication):
    model = make_model(share_sums=lambda self, values: sums(values), **SHARING)
    params = {"communication": communication, "batch_size": 4, "n_ranks": 2}
    with pytest.raises(ValueError, match=r"\.share_sums returned sums of " + message):
        run(model, rows.X, rows.y, n_passes=1, **params)


@pytest.mark.parametrize("weight", [None, {0: 2.0, 3: 0.5}])
def test_nobody_has_the_whole_matrix(monkeypatch, weight):
    """Passes, objectives and penalties go by the outputs of each rank."""

    def gather(self, arrays):
        raise AssertionError("the matrix is put together")

    params = {"solver": "sgd", "alpha": 1e-3, "max_iter": 3, "tol": None}
    params |= {"random_state": 0, "n_ranks": 3, "class_weight": weight}
    expected = SFBLogisticRegression(communication="factors", **params).fit(X, y)
    monkeypatch.setattr(OutputShares, "gather", gather)
    model = SFBLogisticRegression(communication="outputs", **params).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-9)
    for one, other in zip(model.history_, expected.history_, strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)


def test_losses_of_a_model_that_knows_no_shares(make_model, rows):
    """The whole matrix is put together for them."""
    params = {"n_passes": 3, "batch_size": 4, "random_state": 0, "n_ranks": 3}
    params["dtype"] = "float64"
    found = [
        run(make_model(**SHARING), rows.X, rows.y, communication=c, **params)
        for c in ("factors", "outputs")
    ]
    np.testing.assert_allclose(found[0].matrix, found[1].matrix, atol=1e-12)
    for one, other in zip(*(result.history for result in found), strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)


def test_steps_on_the_whole_objective_follow():
    """Outputs that were shared out are put together for them."""
    params = {"solver": "sgd", "alpha": 1e-3, "tol": 1e-6, "random_state": 0}
    found = [
        SFBLogisticRegression(communication=c, n_ranks=2, **params).fit(X, y)
        for c in ("factors", "outputs")
    ]
    assert len(found[1].history_) > 4
    np.testing.assert_allclose(found[0].coef_, found[1].coef_, atol=1e-3)
    assert found[1].dual_gap_ <= 1e-6 * found[1].history_[-1]["objective"]


def test_early_stopping_takes_the_best_pass():
    params = {"solver": "sgd", "early_stopping": True, "max_iter": 8, "n_ranks": 2}
    found = [
        SFBLogisticRegression(communication=c, random_state=0, **params).fit(X, y)
        for c in ("factors", "outputs")
    ]
    np.testing.assert_allclose(found[0].coef_, found[1].coef_, atol=1e-9)


@pytest.mark.each
@pytest.mark.parametrize("most", [0, 2**30])
@pytest.mark.parametrize("loss", ["nca", "hinge", "triplet"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_distances_of_labels(monkeypatch, most, loss, n_ranks):
    """With slopes that each rank finds for itself, and with those of all."""
    monkeypatch.setattr(_models, "_SHARED_PAIRS", most)
    params = {"loss": loss, "max_iter": 3, "batch_size": 64, "tol": None}
    params |= {"alpha": 1e-3, "random_state": 0}
    # Adam makes as long steps along gradients that are nothing but rounding.
    rows = X[:, X.std(axis=0) > 0.1]
    expected = SFBMetricLearner(4, communication="factors", **params).fit(rows, y)
    params |= {"communication": "outputs", "n_ranks": n_ranks}
    learner = SFBMetricLearner(4, **params).fit(rows, y)
    assert learner.communication_ == "outputs"
    np.testing.assert_allclose(learner.components_, expected.components_, atol=1e-5)
    for one, other in zip(learner.history_, expected.history_, strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-4)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("loss", ["logistic", "triplet"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_distances_of_pairs(kind, loss, optimizer):
    rng, rows = np.random.default_rng(0), X[:, X.std(axis=0) > 0.1]
    pairs = rng.integers(0, 100, size=(200, 3)) + [0, 100, 200]
    data = {"pairs": pairs}
    if loss == "logistic":
        same = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
        data = {"pairs": pairs[:, :2], "pair_labels": same}
    params = {"loss": loss, "optimizer": optimizer, "max_iter": 3, "tol": None}
    params |= {"random_state": 0, "batch_size": 64, "early_stopping": True}
    found = [
        SFBMetricLearner(4, communication=c, n_ranks=3, **params).fit(
            kind(rows), **data
        )
        for c in ("factors", "outputs")
    ]
    components = [learner.components_ for learner in found]
    np.testing.assert_allclose(*components, atol=1e-5)
    if loss == "logistic":
        assert found[0].threshold_ == pytest.approx(found[1].threshold_, rel=1e-4)


def test_auto_takes_steps_for_outputs():
    model = SFBLogisticRegression(communication="outputs", max_iter=1, tol=None)
    assert model.fit(X, y).solver_ == "sgd"


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:the checkpoint in .* was written by 2 ranks")
@pytest.mark.parametrize("kind", ["logistic", "metric", "run"])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_resumed_fit(make_model, tmp_path, interrupted, kind, n_ranks):
    """Each rank saves its outputs, and other ranks share them out anew."""
    rows = X[:, X.std(axis=0) > 0.1]
    params = {"random_state": 0, "communication": "outputs"}

    def fit(n_ranks):
        if kind == "run":
            model = make_model(**SHARING, fit_intercept=True)
            more = {"n_passes": 4, "batch_size": 30, "n_ranks": n_ranks}
            return run(model, rows[:, :7], y % 3, **params, **more).matrix
        if kind == "metric":
            learner = SFBMetricLearner(4, early_stopping=True, max_iter=4)
            learner.set_params(n_ranks=n_ranks, **params)
            return learner.fit(rows, y).components_
        model = SFBLogisticRegression(solver="sgd", max_iter=4, tol=None)
        return model.set_params(n_ranks=n_ranks, **params).fit(rows, y).coef_

    whole = fit(2)
    # Parts are written while the fit goes on, so the last may be missing.
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(3):
            fit(2)
        assert list(tmp_path.iterdir())
        resumed = fit(n_ranks)
        again = fit(n_ranks)
    np.testing.assert_array_equal(again, resumed)
    if n_ranks == 2:
        np.testing.assert_array_equal(resumed, whole)
    elif kind == "metric":  # batches do not depend on the ranks
        np.testing.assert_allclose(resumed, whole, atol=1e-4)
    else:
        assert np.isfinite(resumed).all()
        assert not np.array_equal(resumed, whole)


@pytest.mark.parametrize(
    ("n_features", "n_rows", "expected"),
    [(10, 1000, 1), (1000, 1000, 4), (20_000, 20_000, 4), (10**6, 100, 16), (5, 0, 16)],
)
def test_passes_between_states_of_all_outputs(n_features, n_rows, expected):
    assert kept_every(n_features, n_rows) == expected


@pytest.mark.parametrize(("n_rows", "n_gathered"), [(60, 3), (12, 0)])
def test_a_matrix_that_is_large_is_not_put_together_after_each_pass(
    inproc_client, monkeypatch, n_rows, n_gathered
):
    """Where ranks have chosen to share outputs out, and may lose one of them."""
    gather, ranks = OutputShares.gather, []

    def counted(self, arrays):
        ranks.append(self._group.rank)
        return gather(self, arrays)

    monkeypatch.setattr(OutputShares, "gather", counted)
    monkeypatch.setattr(
        "dask_ma.sfb._engine.choose_communication", lambda *_, **__: "outputs"
    )
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(n_rows, 15)), np.arange(n_rows) % 3
    params = {"solver": "sgd", "max_iter": 3, "tol": None, "random_state": 0}
    params |= {"alpha": 1e-2, "n_ranks": 3, "batch_size": 2}
    with inproc_client.as_current():
        # Rank 0 may not make all steps, however few rows there are.
        with dask.config.set({"dask-ma.sfb.moved-rows": 0}):
            model = SFBLogisticRegression(**params).fit(rows, labels)
    assert model.communication_ == "outputs"
    assert [ranks.count(rank) for rank in range(3)] == [n_gathered] * 3


def test_a_matrix_that_is_large_goes_along_with_ranks_that_start_again(
    inproc_client, monkeypatch, regrouped
):
    """Though it would not have been put together after the pass."""
    monkeypatch.setattr(
        "dask_ma.sfb._engine.choose_communication", lambda *_, **__: "outputs"
    )
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(12, 15)), np.arange(12) % 3
    params = {"solver": "sgd", "max_iter": 4, "tol": None, "random_state": 0}
    params |= {"alpha": 1e-2, "n_ranks": 3, "batch_size": 2}
    moved = dask.config.set({"dask-ma.sfb.moved-rows": 0})
    with inproc_client.as_current(), moved:
        whole = SFBLogisticRegression(**params).fit(rows, labels)
        model = regrouped(SFBLogisticRegression(**params), 2, rows, labels)
    assert model.communication_ == "outputs"
    assert [record["round"] for record in model.history_] == [1, 2, 3, 4]
    assert [record["restarts"] for record in model.history_] == [0, 0, 1, 1]
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-10)
