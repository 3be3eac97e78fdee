"""What belongs to the items of streams, data sets and bags, and integers among rows."""

import os

import dask.array as da
import dask.bag as db
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from torch import nn  # noqa: E402
from torch.utils.data import Dataset, IterableDataset  # noqa: E402

from dask_ma import MPCAClassifier, MPCARegressor  # noqa: E402
from dask_ma.mpca import Torch  # noqa: E402
from dask_ma.mpca.torch._random import RandomNumbers  # noqa: E402

EVEN = {"tol": None, "random_state": 0, "batch_size": 16, "strategy": "synchronous"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(96, 6)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def linear(n_outputs=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, n_outputs))


def estimator(module=linear, cls=MPCAClassifier, torch=None, **params):
    """A model of a module, with ranks that keep step."""
    network = Torch(module, device="cpu", **(torch or {}))
    return cls(module=network, **{**EVEN, "max_iter": 2, "n_ranks": 2, **params})


class Stream(IterableDataset):
    """Pairs from front to end."""

    def __init__(self, X, y):
        self.pairs = list(zip(X, y.tolist(), strict=True))

    def __iter__(self):
        return iter(self.pairs)


# Streams ------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("options", [{}, {"torch": {"prefetch": 2}}])
@pytest.mark.parametrize("strategy", ["synchronous", "gradients", "mpca"])
def test_class_weights_go_by_the_labels_of_the_items(rows, strategy, options):
    """Items come in an order of their own, whatever row the fit is at."""
    X, y = rows
    model = estimator(
        max_iter=20, learning_rate_init=0.04, strategy=strategy, batch_size=8,
        class_weight={0: 1.0, 1: 1e-6, 2: 1.0}, **options,
    ).fit(Stream(X, y))  # fmt: skip
    found = model.predict(X)
    assert (found != 1).mean() > 0.95
    assert (found == y)[y != 1].mean() > 0.8


def test_one_rank_weighs_a_stream_as_rows_in_that_order(rows):
    X, y = rows
    how = {"n_ranks": 1, "shuffle": False, "class_weight": {0: 1.0, 1: 4.0, 2: 0.5}}
    ours, theirs = (estimator(**how).fit(*g) for g in ((Stream(X, y),), (X, y)))
    np.testing.assert_allclose(ours.vector_, theirs.vector_, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("is_stream", [True, False])
def test_only_workers_see_the_files(rows, processes, is_stream):
    """Of a data set that has no `targets` either."""
    X, y = rows
    client = os.getpid()

    def read():
        if os.getpid() == client:
            raise FileNotFoundError("on the disks of workers")
        return list(zip(X, y.tolist(), strict=True))

    class Files(IterableDataset):
        def __iter__(self):
            return iter(read())

    class Numbered(Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, number):
            return read()[number]

    items = Files() if is_stream else Numbered()
    model = estimator(max_iter=15, learning_rate_init=0.06).fit(items)
    assert model.score(X, y) > 0.8


def test_what_belongs_to_no_item_of_a_stream_is_refused(rows):
    X, y = rows
    weight = np.random.default_rng(0).random(len(y))
    with pytest.raises(
        ValueError, match="sample_weight .* IterableDataset.*Dataset wi"
    ):
        estimator().fit(Stream(X, y), sample_weight=weight)
    for cls in (MPCAClassifier, MPCARegressor):
        for train in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match="sample_weight .* IterableDataset"):
                model = estimator(cls=cls)
                getattr(model, train)(Stream(X, y), sample_weight=da.from_array(weight))
    with pytest.raises(ValueError, match="y must be None for an IterableDataset"):
        estimator().fit(Stream(X, y), y)
    same = estimator().fit(Stream(X, y), sample_weight=2.0)
    np.testing.assert_array_equal(same.vector_, estimator().fit(Stream(X, y)).vector_)


# Data sets and bags -------------------------------------------------------------------


class AsTorchvision(Dataset):
    """Targets as they are in the files, and items that are transformed."""

    def __init__(self, X, y, **transforms):
        self.data, self.targets, self.n_read = X, y.tolist(), 0
        for name, transform in transforms.items():
            setattr(self, name, transform)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        self.n_read += 1
        target, change = self.targets[number], getattr(self, "target_transform", None)
        return self.data[number], target if change is None else change(target)


class Both:
    """As torchvision's StandardTransform."""

    def __init__(self, target_transform=None):
        self.target_transform = target_transform


def flipped(target):
    return 2 - target


def test_targets_are_those_of_transformed_items(rows):
    X, y = rows
    expected = estimator().fit(X, 2 - y).vector_
    both = {"target_transform": flipped, "transforms": Both(flipped)}
    model = estimator().fit(AsTorchvision(X, y, **both))
    np.testing.assert_array_equal(model.vector_, expected)


@pytest.mark.parametrize(
    ("transforms", "n_read"),
    [
        ({}, 0),
        ({"target_transform": None, "transforms": Both()}, 0),
        ({"transforms": lambda image, target: (image, target)}, 96),
    ],
)
def test_items_are_read_for_their_targets_only_if_these_may_differ(
    rows, transforms, n_read
):
    from dask_ma.mpca.inputs._sources import as_source

    dataset = AsTorchvision(*rows, **transforms)
    np.testing.assert_array_equal(as_source(dataset, None).y, rows[1])
    assert dataset.n_read == n_read


@pytest.mark.parametrize("kind", ["vectors", "images", "dicts"])
def test_partitions_of_a_bag_may_be_empty(rows, kind):
    X, y = rows
    inputs, module = list(X), linear
    if kind == "images":
        inputs, module = (
            list(X.reshape(96, 2, 3)),
            lambda: nn.Sequential(nn.Flatten(), linear()),
        )
    elif kind == "dicts":
        inputs = [{"input": row} for row in X]  # as Sequential names it
    bag = db.from_sequence(list(zip(inputs, y.tolist(), strict=True)), npartitions=4)
    is_kept = {id_: number >= 24 for number, id_ in enumerate(X[:, 0].tolist())}

    def keeps(item):
        first = item[0]["input"] if kind == "dicts" else item[0]
        return is_kept[float(np.ravel(first)[0])]

    kept = bag.filter(keeps)
    model = estimator(module).fit(kept)
    whole = db.from_sequence(
        list(zip(inputs[24:], y[24:].tolist(), strict=True)), npartitions=3
    )
    assert model.predict(kept).compute().shape == (72,)
    expected = estimator(module).fit(whole).predict(whole).compute()
    np.testing.assert_array_equal(model.predict(kept).compute(), expected)


def test_a_bag_of_nothing_is_refused(rows):
    bag = db.from_sequence(list(zip(*rows, strict=True)), npartitions=2)
    with pytest.raises(ValueError, match="the bag has no items"):
        estimator().fit(bag.filter(lambda item: False))


# Integers -----------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_predictions_take_the_type_of_the_rows_of_the_fit(rows, dtype, lazy):
    X = np.rint(3 * np.abs(rows[0]))
    model = estimator().fit(X, rows[1])
    given = X.astype(dtype)
    given = da.from_array(given, chunks=(48, 6)) if lazy else given
    np.testing.assert_array_equal(model.predict_proba(given), model.predict_proba(X))
    model.partial_fit(given, rows[1])


def test_entries_of_a_dict_take_the_type_of_those_of_the_fit(rows):
    X, y = np.rint(3 * rows[0]), rows[1]
    model = estimator().fit({"input": X}, y)
    expected = model.predict_proba({"input": X})
    found = model.predict_proba({"input": X.astype(int)})
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="X has the inputs"):
        model.predict({"input": X[:, :5].astype(int)})


def test_pixels_of_any_type_are_predicted_as_bytes_are(rows):
    pixels = np.random.default_rng(0).integers(4, size=(96, 6)).astype(np.uint8)
    model = estimator().fit(pixels, rows[1])
    expected = model.predict_proba(pixels)
    for dtype in ("int64", "float32"):
        np.testing.assert_array_equal(
            model.predict_proba(pixels.astype(dtype)), expected
        )


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten())


@pytest.mark.parametrize("module", [linear, convolution])
def test_integers_for_layers_of_floats_are_named(rows, module):
    X = np.rint(3 * rows[0]).astype(int)
    with pytest.raises(ValueError, match=r"integers of X stay .*astype\('float32'\)"):
        estimator(module).fit(X, rows[1])
    # Where the module is tried before the fit.
    with pytest.raises(ValueError, match=r"integers of X stay .*astype\('float32'\)"):
        estimator(lambda: linear(2)).fit(X, np.stack([rows[1] > 0, rows[1] > 1], 1))


def test_other_errors_of_a_module_are_its_own(rows):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, X):
            raise RuntimeError("as long as it is not ready")

    with pytest.raises(RuntimeError, match="^as long as it is not ready$"):
        estimator(Wrong).fit(*rows)


def test_errors_about_integers_that_are_missing_or_none_are_as_they_were(rows):
    class Wrong(nn.Module):
        def __init__(self, words):
            super().__init__()
            self.layer, self.words = nn.Linear(6, 3), words

        def forward(self, X):
            if self.words:
                raise RuntimeError(self.words)
            return self.layer(nn.functional.embedding(X.float(), torch.ones(9, 3)))

    X = np.rint(3 * rows[0]).astype(int)
    for words, match in [("it does not belong here", "^it"), ("", "^Expected ten")]:
        with pytest.raises(RuntimeError, match=match):
            estimator(Wrong(words)).fit(X, rows[1])


# Random numbers -----------------------------------------------------------------------


def test_a_fit_that_cannot_begin_gives_numbers_back(rows):
    class Raising:
        def on_fit_begin(self, network):
            raise RuntimeError("not now")

    torch.manual_seed(7)
    before = torch.get_rng_state()
    model = estimator(dropping, torch={"callbacks": [Raising()]}, n_ranks=1)
    with pytest.raises(RuntimeError, match="not now"):
        model.fit(*rows)
    assert torch.equal(torch.get_rng_state(), before)


def dropping():
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3))


@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
def test_a_rank_alone_in_its_process_draws_from_the_seed(rows, cls, monkeypatch):
    module = (
        dropping
        if cls is MPCAClassifier
        else lambda: nn.Sequential(dropping(), nn.Linear(3, 1))
    )
    closed, close = [], RandomNumbers.close
    monkeypatch.setattr(
        RandomNumbers, "close", lambda numbers: closed.append(close(numbers))
    )
    torch.manual_seed(7)
    before = torch.get_rng_state()
    fits = [
        estimator(module, cls, n_ranks=1, random_state=seed).fit(*rows).vector_
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.allclose(fits[0], fits[2])
    # Code of others goes on as if nothing had been drawn.
    assert len(closed) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_calls_of_partial_fit_draw_other_numbers(rows):
    drawn = []

    class Note(nn.Dropout):
        def forward(self, X):
            drawn.append(torch.get_rng_state().sum().item())
            return super().forward(X)

    model = estimator(lambda: nn.Sequential(Note(0.5), linear()), n_ranks=1)
    for _ in range(2):
        model.partial_fit(*rows, classes=[0, 1, 2])
    half = len(drawn) // 2
    assert drawn[:half] != drawn[half:]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_ranks_of_processes_repeat_with_random_parts(rows):
    fits = [estimator(dropping).fit(*rows).vector_ for _ in range(2)]
    np.testing.assert_array_equal(*fits)


# Criteria of one's own ----------------------------------------------------------------


def gaussian(output, target):
    mean, variance = output[:, 0], output[:, 1].exp()
    return nn.functional.gaussian_nll_loss(mean, target, variance)


class Quantiles(nn.Module):
    """The pinball loss of three quantiles."""

    def forward(self, output, target):
        levels = torch.tensor([0.1, 0.5, 0.9])
        distance = target[:, None] - output
        return torch.maximum(levels * distance, (levels - 1) * distance).mean()


@pytest.mark.parametrize(("criterion", "width"), [(gaussian, 2), (Quantiles, 3)])
def test_outputs_may_be_others_than_the_targets(rows, criterion, width):
    X = rows[0]
    model = estimator(
        lambda: linear(width), MPCARegressor, {"criterion": criterion},
        max_iter=20, learning_rate_init=0.04,
    ).fit(X, 2 * X[:, 0])  # fmt: skip
    predicted = model.predict(X)
    assert predicted.shape == (96, width)
    with torch.no_grad():
        expected = model.to_module()(torch.tensor(X)).numpy()
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)
    assert np.corrcoef(predicted[:, width // 3], X[:, 0])[0, 1] > 0.9
    with pytest.raises(ValueError, match="shape .*, which is what Dask is told"):
        model.predict(da.from_array(X, chunks=(48, 6))).compute()


class Heads(nn.Module):
    def __init__(self, n_first):
        super().__init__()
        self.body, self.first = nn.Linear(6, 8), nn.Linear(8, n_first)
        self.second = nn.Linear(8, 1)

    def forward(self, X):
        hidden = torch.relu(self.body(X))
        return self.first(hidden), self.second(hidden)


def test_two_heads_of_a_regression(rows):
    X = rows[0]
    y = np.stack([X[:, 0] - X[:, 1], X[:, 0]], 1)

    def both(output, target):
        losses = [(output[i][:, 0] - target[:, i]) ** 2 for i in (0, 1)]
        return (losses[0] + losses[1]).mean()

    model = estimator(
        lambda: Heads(1), MPCARegressor, {"criterion": both},
        max_iter=40, learning_rate_init=0.02,
    ).fit(X, y)  # fmt: skip
    assert model.predict(X).shape == (96, 1)
    assert np.corrcoef(model.predict(X)[:, 0], y[:, 0])[0, 1] > 0.9


def test_two_heads_of_a_classifier(rows):
    X, y = rows

    def both(output, target):
        first = nn.functional.cross_entropy(output[0], target)
        return first + 0.1 * output[1].square().mean()

    model = estimator(
        lambda: Heads(3), torch={"criterion": both}, early_stopping=True,
        max_iter=30, learning_rate_init=0.03,
    ).fit(X, y)  # fmt: skip
    assert model.score(X, y) > 0.75
    with pytest.raises(ValueError, match="the module has 4 outputs for each row"):
        estimator(lambda: Heads(4), torch={"criterion": both}).fit(X, y)


def test_a_function_gets_targets_in_the_shape_of_as_many_outputs(rows):
    """As classes of torch do; (n, 1) less (n,) would be (n, n)."""
    X, y = rows[0], rows[0][:, 0]
    fits = [
        estimator(lambda: linear(1), MPCARegressor, {"criterion": criterion}).fit(X, y)
        for criterion in (
            lambda output, target: (output - target).square().mean(),
            "MSELoss",
        )
    ]
    np.testing.assert_allclose(fits[0].vector_, fits[1].vector_, rtol=1e-6)
    assert fits[0].predict(X).shape == (96,)


def test_what_has_another_shape_than_y_needs_a_score_of_ones_own(rows):
    X, y = rows[0], rows[0][:, 0]

    def score(estimator, X, y):
        return -float(np.abs(estimator.predict(X)[:, 0] - y).mean())

    model = estimator(lambda: linear(2), MPCARegressor, {"criterion": gaussian})
    with pytest.raises(ValueError, match="another shape than y, which early_stopping"):
        model.set_params(early_stopping=True).fit(X, y)
    assert len(model.set_params(early_stopping=score).fit(X, y).validation_scores_) == 2
    # A criterion of torch compares values one by one.
    with pytest.raises(ValueError, match=r"has shape \(16, 2\), not \(16,\)"):
        estimator(lambda: linear(2), MPCARegressor).fit(X, y)


def test_partial_fit_takes_the_targets_of_items(rows):
    X, y = rows
    fits = [
        estimator().partial_fit(*given, classes=[0, 1, 2]).vector_
        for given in ((AsTorchvision(X, y),), (X, y))
    ]
    np.testing.assert_array_equal(*fits)
    estimator().partial_fit(Stream(X, y), classes=[0, 1, 2])
    values = X[:, 0].astype(np.float64)
    model = estimator(lambda: linear(1), MPCARegressor)
    model.partial_fit(AsTorchvision(X, values))
    with pytest.raises(ValueError, match="requires y to be passed"):
        estimator(lambda: linear(1), MPCARegressor).partial_fit(X)


@pytest.mark.parametrize(
    "criterion",
    [
        nn.functional.mse_loss,
        lambda output, target: (output - target).square().mean(),
    ],
)
def test_outputs_that_would_be_repeated_are_refused(rows, criterion):
    Y = rows[0][:, :2]
    model = estimator(lambda: linear(1), MPCARegressor, {"criterion": criterion})
    with pytest.raises(ValueError, match=r"shape \(\d+, 1\), not \(\d+, 2\)"):
        model.fit(rows[0], Y)


def test_a_score_of_ones_own_gets_numbers_that_do_not_wrap(rows):
    y = (3 * rows[1] + 100).astype(np.uint8)
    found = []

    def score(estimator, X, y):
        found.append(float(np.abs(np.diff(y)).sum()) / len(y))
        return 0.0

    estimator(
        lambda: linear(1), MPCARegressor, early_stopping=score, n_ranks=1
    ).fit(rows[0], y)  # fmt: skip
    assert found and max(found) < 7
