"""Products with columns against dense NumPy, whoever has which rows and columns."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.data import Block, Shard, is_on_disk
from dask_ma.data._mapped import _mapped
from dask_ma.layouts import _design, _row_design
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._columns import to_columns
from dask_ma.layouts._design import is_among
from dask_ma.layouts._row_columns import RowColumns
from dask_ma.layouts._row_design import RowDesign

N_ROWS, N_COLUMNS, N_OUTPUTS = 23, 11, 2
LAYOUTS = ["rows", "columns"]
MAKE = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "sparse": sparse.csr_array,
    "sparse float32": lambda X: sparse.csr_matrix(X.astype(np.float32)),
}
ALIVE = [0, 2, 3, 8, 10]
SETS = [[3], [9, 2, 3, 4], [0, 10], [], [10, 0, 5], list(range(N_COLUMNS))]

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_size = pytest.mark.parametrize("n_ranks", [1, 2, 5])
every_kind = pytest.mark.parametrize("kind", MAKE)


def make_rows(kind):
    """Rows, and what they are in float64."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)) + 1
    X[rng.random(X.shape) < 0.4] = 0
    X[:, 4] = 0
    X[:, 7] = 2.5
    X = MAKE[kind](X)
    dense = X.toarray() if sparse.issparse(X) else X
    return X, dense.astype(np.float64)


def bounds_of(n_ranks):
    """Unequal numbers of rows; of five ranks one has none."""
    inner = {1: [], 2: [7], 5: [4, 4, 12, 20]}[n_ranks]
    return [0, *inner, N_ROWS]


def weight_of_rows():
    weight = np.random.default_rng(1).uniform(0.5, 2, N_ROWS)
    return weight / weight.sum()


@pytest.fixture
def on_ranks(run_ranks):
    """``on_ranks(program, X, layout, n_ranks)``: results of ``program(design, rows)``.

    `rows` are the rows whose margins the rank keeps.
    """

    def start(program, X, layout, n_ranks):
        bounds = bounds_of(n_ranks)

        def on_rank(group):
            first, last = bounds[group.rank], bounds[group.rank + 1]
            cuts = [first, (first + last) // 2, last]
            blocks = [
                Block(X[a:b], np.zeros(b - a), None, i, a)
                for i, (a, b) in enumerate(zip(cuts[:-1], cuts[1:], strict=True))
                if b > a
            ]
            shard = Shard(blocks, N_COLUMNS, X.dtype)
            if layout == "rows":
                return program(RowDesign(group, shard), slice(first, last))
            columns = to_columns(group, shard)
            return program(ColumnDesign(group, columns), slice(0, N_ROWS))

        return run_ranks(on_rank, n_ranks)

    return start


def joined(parts):
    """Parts of all ranks, which hold each feature once."""
    features = np.concatenate([part.features for part in parts])
    values = np.concatenate([part.values for part in parts])
    assert len(np.unique(features)) == len(features)
    order = np.argsort(features)
    return features[order], values[order]


@pytest.mark.pairs
@every_layout
@every_size
@every_kind
def test_products_and_squares(on_ranks, layout, n_ranks, kind):
    """Of all columns, of some, of other ones, and of all again."""
    X, dense = make_rows(kind)
    vectors = np.random.default_rng(2).normal(size=(N_ROWS, N_OUTPUTS))
    weight = weight_of_rows()

    def program(design, rows):
        found = []
        for alive in (None, ALIVE, ALIVE[1:3], None, ALIVE[:0]):
            if alive is None:
                design.restore()
            else:
                design.restrict(np.array(alive, dtype=np.int64))
            mine = vectors[rows], weight[rows]
            found.append(
                (
                    design.alive,
                    design.n_stored,
                    design.products(mine[0])[0],
                    design.products(mine[0][:, :1])[0],
                    design.squares(mine[1], center=False),
                    design.squares(mine[1], center=True),
                )
            )
        return found

    stored = dense != 0 if "sparse" in kind else np.ones_like(dense)
    centered = dense - weight @ dense
    everything = np.arange(N_COLUMNS)
    results = on_ranks(program, X, layout, n_ranks)
    wanted = [everything, ALIVE, ALIVE[1:3], everything, ALIVE[:0]]
    for columns, *found in zip(wanted, *results, strict=True):
        columns = np.array(columns, dtype=np.int64)
        for alive, *_ in found:
            np.testing.assert_array_equal(alive, columns)
        assert sum(n for _, n, *_ in found) == stored[:, columns].sum()
        products = dense.T @ vectors
        for place, expected in [
            (2, products),
            (3, products[:, :1]),
            (4, (weight @ dense**2)[:, np.newaxis]),
            (5, (weight @ centered**2)[:, np.newaxis]),
        ]:
            features, values = joined([parts[place] for parts in found])
            np.testing.assert_array_equal(features, columns)
            np.testing.assert_allclose(values, expected[columns], atol=1e-12)


@pytest.fixture
def long_products(run_ranks, monkeypatch):
    """Products of 700 columns and sums, by four ranks, of which one has no rows."""
    rng = np.random.default_rng(3)
    X, vectors = rng.normal(size=(230, 700)), rng.normal(size=(230, N_OUTPUTS))
    bounds = [0, 50, 50, 170, 230]

    def start(part, kinds, width, per_process=1):
        monkeypatch.setattr(_row_design, "_PART", part)
        monkeypatch.setattr(_design, "_CHUNK_BYTES", 2 * 8 * 700)  # of float32 rows

        def program(group):
            first, last = bounds[group.rank], bounds[group.rank + 1]
            rows, middle = MAKE[kinds[group.rank]](X), (first + last) // 2
            blocks = [
                Block(rows[a:b], np.zeros(b - a), None, i, a)
                for i, (a, b) in enumerate([(first, middle), (middle, last)])
                if b > a
            ]
            design = RowDesign(group, Shard(blocks, 700, rows.dtype))
            own = vectors[first:last, :width], np.array([1.0, group.rank])
            found = [design.products(*own)]
            design.restrict(np.arange(0, 700, 2))
            return [*found, design.products(*own)], group.counters.messages_sent

        return run_ranks(program, 4, per_process)

    return start


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    "kinds", [["dense"] * 4, ["float32"] * 4, ["sparse"] * 4], ids=lambda k: k[0]
)
def test_products_sent_in_parts(long_products, kinds, width):
    """Each rank's part is sent by itself, with the bits of what is sent whole."""
    whole, parts = (long_products(part, kinds, width) for part in (10**6, 64))
    assert [sent for _, sent in whole] == [4] * 4  # by halves, twice
    assert [sent for _, sent in parts] == [6] * 4
    for which, n_columns in enumerate([700, 350]):
        of_whole, of_parts = (
            [found[which] for found, _ in ranks] for ranks in (whole, parts)
        )
        expected, found = (
            joined([part for part, _ in ranks]) for ranks in (of_whole, of_parts)
        )
        assert len(found[0]) == n_columns
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        for _, sums in of_parts:
            np.testing.assert_array_equal(sums, [4.0, 6.0])


def test_parts_are_the_same_wherever_ranks_are(long_products):
    """Those of one process, too, which send them whole."""
    apart, together = (long_products(64, ["dense"] * 4, 1, per) for per in (1, 4))
    for (one, _), (other, _) in zip(apart, together, strict=True):
        for (left, _), (right, _) in zip(one, other, strict=True):
            np.testing.assert_array_equal(left.features, right.features)


@pytest.mark.pairs
@every_layout
@every_size
@every_kind
def test_chosen_columns(on_ranks, layout, n_ranks, kind):
    """Sets of columns, one after the other, also while others are ruled out."""
    X, dense = make_rows(kind)
    vectors = np.random.default_rng(2).normal(size=(N_ROWS, N_OUTPUTS))
    values = np.random.default_rng(3).normal(size=(N_COLUMNS, N_OUTPUTS))

    def program(design, rows):
        design.restrict(np.array(ALIVE))
        found = []
        for features in map(np.array, SETS):
            features = features.astype(np.int64)
            design.fetch(features)
            own = design.transposed_dot(features, vectors[rows])
            dot = design.dot(features, values[features])
            found.append((dot, design.sum(own)))
        return found

    results = on_ranks(program, X, layout, n_ranks)
    for features, *found in zip(SETS, *results, strict=True):
        dots = [dot for dot, _ in found]
        dot = np.concatenate(dots) if layout == "rows" else dots[-1]
        expected = dense[:, features] @ values[features]
        np.testing.assert_allclose(dot, expected, atol=1e-12)
        for dot, products in found:
            assert dot.dtype == products.dtype == np.float64
            np.testing.assert_allclose(
                products, dense[:, features].T @ vectors, atol=1e-12
            )


@pytest.mark.pairs
@every_layout
@every_size
@every_kind
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    ("left", "right"), [([1, 5, 7], [7, 1]), ([8, 2], []), ([], [2]), ([4], [4, 0, 9])]
)
def test_cross_products(on_ranks, layout, n_ranks, kind, center, left, right):
    X, dense = make_rows(kind)
    weight = weight_of_rows()
    means = weight @ dense if center else None

    def program(design, rows):
        design.fetch(np.union1d(left, right).astype(np.int64))
        places = (np.array(side, dtype=np.int64) for side in (left, right))
        return design.cross(*places, weight[rows], means)

    total = sum(on_ranks(program, X, layout, n_ranks))
    moved = dense - means if center else dense
    expected = moved[:, left].T @ (moved[:, right] * weight[:, np.newaxis])
    np.testing.assert_allclose(total, expected, atol=1e-12)


@every_layout
@every_size
@every_kind
def test_what_travels_together(on_ranks, layout, n_ranks, kind):
    """Sums with products, sums of all columns, and cross products with a word each."""
    X, dense = make_rows(kind)
    weight = weight_of_rows()
    means = weight @ dense
    left, right = np.array([1, 5, 7, 9]), np.array([5, 0])

    def program(design, rows):
        design.restrict(np.array(ALIVE))
        sums = design.column_sums(weight[rows])
        own = np.array([weight[rows].sum(), float(len(weight[rows]))])
        _, totals = design.products(np.ones((len(weight[rows]), 1)), own)
        design.fetch(np.union1d(left, right))
        before = design.group.counters.bytes_sent
        found = design.cross_on_root(
            left, right, weight[rows], means, ("from", design.group.rank)
        )
        return sums, totals, found, design.group.counters.bytes_sent - before

    results = on_ranks(program, X, layout, n_ranks)
    for sums, totals, *_ in results:
        np.testing.assert_allclose(sums, means, atol=1e-12)
        np.testing.assert_allclose(totals, [weight.sum(), N_ROWS], rtol=1e-12)
    moved = dense - means
    expected = moved[:, left].T @ (moved[:, right] * weight[:, np.newaxis])
    (*_, (cross, words), _), *others = results
    np.testing.assert_allclose(cross, expected, atol=1e-12)
    assert words == [("from", rank) for rank in range(n_ranks)]
    assert all(found is None for *_, found, _ in others)
    # By columns each product is worked out, and sent, by one rank.
    if layout == "columns":
        assert sum(sent for *_, sent in results) <= 8 * len(left) * len(right)


@every_layout
@every_kind
def test_the_input_stays_as_it_is(on_ranks, layout, kind):
    """Centering works on copies, also where chunks are columns of a block."""
    X, dense = make_rows(kind)
    weight = weight_of_rows()
    everything = np.arange(N_COLUMNS)

    def program(design, rows):
        design.fetch(everything)
        for _ in range(2):
            cross = design.cross(everything, everything, weight[rows], weight @ dense)
        return cross

    total = sum(on_ranks(program, X, layout, 2))
    centered = dense - weight @ dense
    expected = centered.T @ (centered * weight[:, np.newaxis])
    np.testing.assert_allclose(total, expected, atol=1e-12)
    np.testing.assert_array_equal(X.toarray() if "sparse" in kind else X, dense)


@every_layout
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_go_in_chunks(on_ranks, monkeypatch, layout, kind):
    """A few rows at a time give what all at once do."""
    from dask_ma.layouts import _design

    monkeypatch.setattr(_design, "_CHUNK_BYTES", 8 * 2 * 3)
    X, dense = make_rows(kind)
    weight = weight_of_rows()
    left, right = np.array([1, 2, 5]), np.array([8, 1])

    def program(design, rows):
        design.fetch(np.union1d(left, right))
        cross = design.cross(left, right, weight[rows], weight @ dense)
        ones = np.ones((len(weight[rows]), 1))
        design.fetch(left)
        return cross, design.products(ones)[0], design.transposed_dot(left, ones)

    results = on_ranks(program, X, layout, 2)
    centered = dense - weight @ dense
    expected = centered[:, left].T @ (centered[:, right] * weight[:, np.newaxis])
    np.testing.assert_allclose(sum(r[0] for r in results), expected, atol=1e-12)
    _, values = joined([r[1] for r in results])
    np.testing.assert_allclose(values[:, 0], dense.sum(axis=0), atol=1e-12)


@every_layout
def test_more_ranks_than_columns(on_ranks, layout):
    X, dense = make_rows("dense")
    vectors = np.ones((N_ROWS, 1))

    def program(design, rows):
        design.restrict(np.array([6]))
        return design.products(vectors[rows])[0]

    features, values = joined(on_ranks(program, X, layout, 5))
    assert features.tolist() == [6]
    assert values[0, 0] == pytest.approx(dense[:, 6].sum())


@pytest.mark.parametrize("weighted", [False, True])
@every_layout
@every_kind
def test_the_store_of_columns(run_ranks, layout, kind, weighted):
    """What coordinate descent asks of the columns of a rank, and of its rows."""
    X, dense = make_rows(kind)
    y, weight = np.arange(1.0, N_ROWS + 1), weight_of_rows() if weighted else None
    ones = np.ones(N_ROWS) if weight is None else weight
    center, means = np.linspace(0, 1, N_COLUMNS), ones @ dense / ones.sum()

    def on_rank(group):
        bounds = [0, 9, 9 + 14 * (group.size == 2), N_ROWS]
        blocks = [
            Block(X[a:b], y[a:b], None if weight is None else weight[a:b], i, a)
            for i, (a, b) in enumerate(zip(bounds[:-1], bounds[1:], strict=True))
            if i % group.size == group.rank and b > a
        ]
        shard = Shard(blocks, N_COLUMNS, X.dtype)
        design = RowDesign(group, shard)
        if layout == "columns":
            design = ColumnDesign(group, to_columns(group, shard))
        rows = design.targets().astype(int) - 1
        store, own = design.store, design.weights()
        assert (own is None) == (not weighted)
        if weighted:
            np.testing.assert_allclose(own, weight[rows])
        sums = design.whole_columns(store.sums(own))
        squares = design.whole_columns(store.squares(own, center))
        first, stop = 0, N_COLUMNS
        if layout == "columns":
            first, stop = design.shard.start, design.shard.stop
        index = np.arange(first, stop)[::-2]
        np.testing.assert_array_equal(store.places(index), index - first)
        before = store.n_touched
        values = np.column_stack([y[rows], y[rows] ** 2])
        products = store.products(index, values)
        np.testing.assert_allclose(products, dense[np.ix_(rows, index)].T @ values)
        out = np.ones(len(rows))
        store.add(out, np.arange(1.0, len(index) + 1), index, own)
        effect = dense[np.ix_(rows, index)] @ np.arange(1.0, len(index) + 1)
        np.testing.assert_allclose(out, 1 + effect * ones[rows])
        stored = dense != 0 if "sparse" in kind else np.ones_like(dense, dtype=bool)
        n_stored = np.count_nonzero(stored[np.ix_(rows, index)])
        assert store.n_stored(index) == n_stored
        assert store.n_touched - before == 2 * n_stored
        is_few = "sparse" in kind and n_stored < len(rows)
        assert store.has_few(index) == is_few
        return sums, squares, design.sum(np.array(float(len(rows))))

    for sums, squares, n_rows in run_ranks(on_rank, 2):
        np.testing.assert_allclose(sums, means * ones.sum(), rtol=1e-6)
        expected = ones @ (dense - center) ** 2
        np.testing.assert_allclose(squares, expected, rtol=1e-6)
        assert n_rows == N_ROWS


@pytest.fixture(params=[0, 2**26], ids=["read from rows", "copied"])
def most_copied(request, monkeypatch):
    """Elements up to which sparse rows are copied by column."""
    monkeypatch.setattr("dask_ma.layouts._row_design._SMALL", request.param)
    return request.param


def test_few_sparse_rows_are_laid_out_by_column(run_ranks, most_copied):
    X, _ = make_rows("sparse")
    shard = Shard([Block(X, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)

    def on_rank(group):
        return RowDesign(group, shard)._blocks[0].format

    [found] = run_ranks(on_rank, 1)
    assert found == ("csc" if most_copied else "csr")


def test_sparse_rows_are_not_copied(run_ranks, monkeypatch):
    monkeypatch.setattr("dask_ma.layouts._row_design._SMALL", 0)
    X, _ = make_rows("sparse")
    shard = Shard([Block(X, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)

    def on_rank(group):
        design = RowDesign(group, shard)
        design.fetch(np.array([1, 2]))
        [living] = design._living
        return living is X, design._by_column._places.nbytes

    assert run_ranks(on_rank, 1) == [(True, 4 * X.nnz)]


@pytest.mark.parametrize("little", [0, 30])
def test_copies_of_sparse_columns_are_few(run_ranks, monkeypatch, little):
    monkeypatch.setattr("dask_ma.layouts._row_design._SMALL", 0)
    X, dense = make_rows("sparse")
    shard = Shard([Block(X, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)
    weight = weight_of_rows()
    monkeypatch.setattr("dask_ma.layouts._row_design._LITTLE", little)
    many, few = np.array(ALIVE), np.array([5])

    def on_rank(group):
        design, found = RowDesign(group, shard), []
        for alive in (many, few):
            design.restrict(alive)
            design.fetch(alive)
            n_stored = design.n_stored
            part, _ = design.products(weight[:, np.newaxis])
            squares = design.squares(weight, center=False).values
            [(_, columns)] = design.chunks(alive)
            found.append((n_stored, part.values, squares, columns.toarray()))
        return found

    [found] = run_ranks(on_rank, 1)
    for alive, (n_stored, products, squares, columns) in zip(
        (many, few), found, strict=True
    ):
        own = dense[:, alive]
        n_own = np.count_nonzero(own)
        is_copied = n_own <= max(little, X.nnz // 8)
        assert n_stored == (n_own if is_copied else X.nnz)
        np.testing.assert_allclose(products[:, 0], own.T @ weight)
        np.testing.assert_allclose(squares[:, 0], own.T**2 @ weight)
        np.testing.assert_array_equal(columns, own)


def test_rows_that_name_a_column_twice(run_ranks):
    X, dense = make_rows("sparse")
    doubled = sparse.csr_array(
        (np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr), X.shape
    )
    shard = Shard([Block(doubled, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)
    weight = weight_of_rows()

    def on_rank(group):
        return RowDesign(group, shard).squares(weight, center=False).values[:, 0]

    [squares] = run_ranks(on_rank, 1)
    np.testing.assert_allclose(squares, dense.T**2 @ weight, rtol=1e-12)


def test_rows_on_disk_are_read_once(run_ranks, tmp_path):
    X, _ = make_rows("sparse")
    arrays = []
    for name in ("data", "indices", "indptr"):
        np.save(tmp_path / name, array := getattr(X, name))
        like = array.shape, array.dtype
        arrays.append(_mapped(tmp_path / f"{name}.npy", like)[0])
    on_disk = sparse.csr_array(tuple(arrays), X.shape)
    assert is_on_disk(on_disk) and not is_on_disk(X)
    shard = Shard([Block(on_disk, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)

    in_memory = Shard([Block(X, np.zeros(N_ROWS), None, 0, 0)], N_COLUMNS, X.dtype)
    weight = weight_of_rows()

    def on_rank(group):
        designs = [RowDesign(group, rows) for rows in (shard, in_memory)]
        assert not is_on_disk(designs[0]._living[0])
        for vectors in (weight[:, np.newaxis], np.stack([weight, weight**2], axis=1)):
            products = [design.products(vectors)[0].values for design in designs]
            np.testing.assert_array_equal(*products)
        for center in (False, True):
            np.testing.assert_array_equal(
                *[design.squares(weight, center).values for design in designs]
            )

    run_ranks(on_rank, 1)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("n_blocks", [1, 5])
def test_columns_of_sparse_rows(kind, n_blocks):
    blocks = [
        sparse.random(n, 37, density=0.2, format="csr", random_state=n)
        for n in (50, 1, 4, 7, 200)
    ]
    blocks[2].data[:] = 0
    blocks[2].eliminate_zeros()  # rows without an element
    whole = kind(sparse.vstack(blocks))
    given = [whole] if n_blocks == 1 else [kind(block) for block in blocks]
    columns = RowColumns(given)
    for index in (np.arange(37), np.array([3, 30, 4]), np.array([], dtype=np.int64)):
        taken, expected = columns.take(index), whole.tocsc()[:, index]
        assert taken.format == "csc" and type(taken) is type(expected)
        assert columns.n_stored(index) == expected.nnz
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(taken, name), getattr(expected, name))


@pytest.mark.parametrize("among", [[], [3], [1, 3, 4, 9]])
def test_membership_in_sorted_integers_is_that_of_numpy(among: list[int]) -> None:
    values = np.array([4, 0, 3, 10, 9, 4])
    others = np.array(among, dtype=np.int64)
    np.testing.assert_array_equal(is_among(values, others), np.isin(values, others))


def test_products_go_by_the_columns_that_have_less(monkeypatch):
    """Of words, few are frequent, and each of two has the same product."""
    rng = np.random.default_rng(0)
    n_rows, n_columns, n_at_once = 400, 60, 6
    X = rng.normal(size=(n_rows, n_columns))
    X[rng.random(X.shape) > 2.0 / np.arange(2, n_columns + 2)] = 0
    X = X[:, rng.permutation(n_columns)]
    weight = rng.uniform(0.5, 2, n_rows)
    monkeypatch.setattr(_design, "at_once", lambda length: n_at_once)
    inner, worked = _design._times_dense, []

    def counted(columns, right, weight):
        worked.append(columns.nnz * right.shape[1])
        return inner(columns, right, weight)

    monkeypatch.setattr(_design, "_times_dense", counted)
    columns, everything = sparse.csc_array(X), np.arange(n_columns)
    some = rng.permutation(n_columns)[:40]
    for left, right in (
        (everything, everything),
        (everything, some),
        (some[::2], some),
    ):
        found = _design._sparse_cross(columns, left, right, weight)
        expected = X[:, left].T @ (X[:, right] * weight[:, np.newaxis])
        np.testing.assert_allclose(found, expected, atol=1e-10)
    whole = columns.nnz * n_columns
    assert 0 < sum(worked[: n_columns // n_at_once]) < 0.3 * whole
