"""What modules are trained on: integers, dicts, shapes, transforms, data sets, bags."""

import importlib.util
import os
import threading

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    Dataset,
    IterableDataset,
    TensorDataset,
)

from dask_ma import MPCAClassifier, MPCARegressor  # noqa: E402
from dask_ma.mpca import Torch, get_rank_info  # noqa: E402
from dask_ma.mpca.inputs._fields import pack_rows, unpack_rows  # noqa: E402
from dask_ma.mpca.torch._inputs import Loaded  # noqa: E402
from dask_ma.mpca.training._batches import Sampler  # noqa: E402
from dask_ma.mpca.training._prefetch import Prefetcher  # noqa: E402

QUICK = {"tol": None, "random_state": 0, "batch_size": 16, "max_iter": 2}
EVEN = {**QUICK, "strategy": "synchronous"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(96, 6)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def linear(n_outputs=3):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, n_outputs))


def fitted(X, y=None, cls=MPCAClassifier, module=linear, **params):
    """A model of a module; what a rank does is the same each time."""
    network = Torch(module, **{"device": "cpu", **params.pop("torch", {})})
    weight = params.pop("weight", None)
    return cls(module=network, **{**EVEN, **params}).fit(X, y, weight)


# Types --------------------------------------------------------------------------------


class Seeing(nn.Module):
    """Notes the types that it gets."""

    seen: set = set()

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, X):
        self.seen.add(X.dtype)
        return self.layer(X.float())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint8", torch.float32),
        ("bool", torch.float32),
        ("float64", torch.float32),
        ("int32", torch.int64),
        ("int64", torch.int64),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_integers_stay_integers(rows, dtype, expected, lazy):
    Seeing.seen.clear()
    X = np.abs(10 * rows[0]).astype(dtype)
    X = da.from_array(X, chunks=(48, 6)) if lazy else X
    model = fitted(X, rows[1], module=Seeing)
    np.asarray(model.predict_proba(X))
    assert Seeing.seen == {expected}


def test_small_integers_travel_as_such(rows, monkeypatch):
    """A byte for a pixel, until it is in a batch."""
    from dask_ma.mpca.training import _agent

    found, make = [], _agent.Trainer._make_sampler

    def made(trainer, random_state):
        for block in trainer._problem.shard.blocks:
            found.extend([block.X.dtype, block.y.dtype])
        return make(trainer, random_state)

    monkeypatch.setattr(_agent.Trainer, "_make_sampler", made)
    fitted(np.zeros((96, 6), np.uint8), rows[1], n_ranks=2)
    assert set(found[::2]) == {np.dtype(np.uint8)}
    # So do targets of several values.
    X = np.random.default_rng(0).integers(256, size=(64, 2, 4, 5)).astype(np.uint8)
    how = {"n_ranks": 2, "early_stopping": True, "torch": {"train_transform": bytewise}}
    how["torch"]["eval_transform"] = bytewise
    for y, cls, n_outputs in (
        (X, MPCARegressor, 2),
        (X[:, 0] // 90, MPCAClassifier, 3),
    ):
        for kind in (np.uint8, np.int64):
            found.clear()
            model = fitted(
                X, y.astype(kind), cls, lambda n=n_outputs: nn.Conv2d(2, n, 1), **how
            )
            if kind == np.uint8:
                assert set(found) == {np.dtype(np.uint8)}
                expected = model
        np.testing.assert_array_equal(model.vector_, expected.vector_)
        np.testing.assert_allclose(
            model.validation_scores_, expected.validation_scores_, rtol=1e-12
        )


def bytewise(pixels):
    return pixels.float() / 255


def test_embeddings_work():
    def embedding():
        return nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(20, 2))

    rng = np.random.default_rng(0)
    tokens = rng.integers(12, size=(80, 5))
    y = (tokens[:, 0] > 5).astype(int)
    model = fitted(
        tokens, y, module=embedding, max_iter=20, learning_rate_init=0.02, n_ranks=2
    )
    assert model.score(tokens, y) > 0.9
    lazy = da.from_array(tokens, chunks=(40, 5))
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.predict(tokens))


# Several inputs -----------------------------------------------------------------------


def test_packed_rows_come_back():
    rng = np.random.default_rng(0)
    X = {
        "ids": rng.integers(1000, size=(7, 5)).astype(np.int32),
        "mask": rng.random((7, 5)) > 0.5,
        "image": rng.integers(255, size=(7, 2, 3)).astype(np.uint8),
        "size": rng.normal(size=7),
    }
    packed, fields = pack_rows(X)
    assert packed.dtype == np.uint8
    assert packed.shape == (7, 20 + 5 + 6 + 4)
    found = unpack_rows(packed[[4, 1]], fields)
    for name, array in X.items():
        expected = array[[4, 1]].astype(found[name].dtype)
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].shape == expected.shape
    assert found["size"].dtype == np.float32


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({}, "empty dict"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "as many rows each, got {'a': 3, 'b'"),
        ({"a": np.array(["x"])}, r"X\['a'\] must be an array of real numbers"),
        ({"a": np.array([1, np.nan])}, r"X\['a'\] contains NaN or infinity in row 1"),
    ],
)
def test_what_cannot_be_packed(X, message):
    with pytest.raises(ValueError, match=message):
        pack_rows(X)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(9, 4)
        self.layer = nn.Linear(6, 2)

    def forward(self, tokens, numbers):
        return self.layer(torch.cat([self.embedding(tokens), numbers], 1))


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_entries_of_a_dict_are_arguments(n_ranks):
    rng = np.random.default_rng(0)
    X = {"tokens": rng.integers(9, size=(80, 3)), "numbers": rng.normal(size=(80, 2))}
    y = (X["numbers"][:, 0] > 0).astype(int)
    model = fitted(
        X, y, module=TwoInputs, max_iter=15, learning_rate_init=0.05, n_ranks=n_ranks
    )
    assert model.score(X, y) > 0.9
    shown = {name: torch.tensor(value) for name, value in X.items()}
    shown["numbers"] = shown["numbers"].float()
    with torch.no_grad():
        expected = model.to_module()(**shown).softmax(1).numpy()
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-6)
    with pytest.raises(ValueError, match="X has the inputs .*, expected"):
        model.predict({"tokens": X["tokens"]})


# Outputs of any shape -----------------------------------------------------------------


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, X):
        return self.layers(X)


@pytest.mark.each
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_targets_of_the_shape_of_rows(lazy, n_ranks):
    X = np.random.default_rng(0).normal(size=(64, 2, 4, 5)).astype(np.float32)
    given = da.from_array(X, chunks=(32, 1, 4, 5)) if lazy else X
    model = fitted(
        given, given, MPCARegressor, Autoencoder, max_iter=30, n_ranks=n_ranks,
        learning_rate_init=0.03,
    )  # fmt: skip
    predicted = model.predict(given)
    assert predicted.shape == X.shape
    with torch.no_grad():
        expected = model.to_module()(torch.tensor(X)).numpy()
    np.testing.assert_allclose(np.asarray(predicted), expected, atol=1e-5)
    assert model.score(X, X) > 0.8
    wrong = Torch(nn.Flatten, device="cpu")
    with pytest.raises(ValueError, match="no parameters to train"):
        MPCARegressor(module=wrong, **EVEN).fit(X, X)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_segmentation(n_ranks):
    """One class of several for each pixel, as 0 and 1 for each class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2, 4, 4)).astype(np.float32)
    classes = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    y = (classes[:, None] == np.arange(3)[:, None, None]).astype(int)

    def network():
        return nn.Sequential(nn.Conv2d(2, 12, 1), nn.ReLU(), nn.Conv2d(12, 3, 1))

    model = fitted(
        X, y, module=network, torch={"criterion": "CrossEntropyLoss"}, max_iter=25,
        n_ranks=n_ranks, learning_rate_init=0.03,
    )  # fmt: skip
    probabilities = model.predict_proba(X)
    assert probabilities.shape == y.shape
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (probabilities.argmax(1) == classes).mean() > 0.85
    expected = (model.predict(X) == y).reshape(60, -1).all(axis=1).mean()
    assert model.score(X, y) == pytest.approx(expected)


# Maps of class numbers ----------------------------------------------------------------


@pytest.fixture(scope="module")
def maps():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2, 4, 4)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def by_pixel():
    return nn.Sequential(nn.Conv2d(2, 12, 1), nn.ReLU(), nn.Conv2d(12, 3, 1))


LEARNING = {"max_iter": 20, "learning_rate_init": 0.03}


@pytest.mark.each
@pytest.mark.parametrize("source", ["arrays", "lazy", "items"])
@pytest.mark.parametrize(
    "criterion",
    ["auto", nn.functional.cross_entropy, nn.NLLLoss],
    ids=["auto", "function", "NLLLoss"],
)
def test_maps_of_class_numbers(maps, source, criterion):
    X, y = given, target = maps
    if source == "lazy":
        given = da.from_array(X, chunks=(20, 1, 4, 4))
        target = da.from_array(y, chunks=(20, 4, 4))
    if source == "items":
        given, target = TensorDataset(torch.tensor(X), torch.tensor(y)), None

    def network():
        last = [nn.LogSoftmax(1)] if criterion is nn.NLLLoss else []
        return nn.Sequential(by_pixel(), *last)

    model = fitted(
        given, target, module=network, torch={"criterion": criterion}, n_ranks=2,
        **LEARNING,
    )  # fmt: skip
    assert model.classes_.tolist() == [0, 1, 2]
    probabilities = np.asarray(model.predict_proba(given))
    assert probabilities.shape == (60, 3, 4, 4)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    predicted = model.predict(given)
    assert predicted.shape == y.shape
    np.testing.assert_array_equal(predicted, probabilities.argmax(1))
    right = (np.asarray(predicted) == y).mean()
    assert model.score(given, y if target is None else target) == pytest.approx(right)
    assert right > 0.9


def test_a_class_for_each_token():
    tokens = np.random.default_rng(0).integers(9, size=(80, 5))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Embedding(9, 3)

        def forward(self, X):
            return self.layer(X).transpose(1, 2)

    y = tokens % 3
    model = fitted(tokens, y, module=Tagger, max_iter=40, learning_rate_init=0.1)
    assert model.score(tokens, y) == 1
    assert model.predict_proba(tokens).shape == (80, 3, 5)


def test_places_that_do_not_count(maps):
    """Whatever is in the images there; as many as one likes, also with weights."""
    X, y = maps
    known = y.copy()
    known[:, :2] = 255
    criterion = nn.CrossEntropyLoss(ignore_index=255)
    network = {"module": by_pixel, "torch": {"criterion": criterion}, **LEARNING}
    model = fitted(X, known, **network, n_ranks=2)
    small = fitted(X[:, :, 2:], y[:, 2:], module=by_pixel, n_ranks=2, **LEARNING)
    np.testing.assert_allclose(model.vector_, small.vector_, rtol=1e-3, atol=1e-4)
    right = (model.predict(X) == y)[:, 2:].mean()
    assert model.score(X, known) == pytest.approx(right)
    weight = np.ones(60)
    weighted = fitted(X, known, **network, n_ranks=2, weight=weight)
    np.testing.assert_allclose(weighted.vector_, model.vector_, rtol=1e-3, atol=1e-4)


def test_maps_that_are_held_out(maps):
    X, y = maps
    model = fitted(X, y, module=by_pixel, n_ranks=2, early_stopping=True, **LEARNING)
    assert model.validation_scores_[-1] > 0.8
    network = Torch(by_pixel, device="cpu")
    own = MPCAClassifier(module=network, early_stopping=True, **{**EVEN, **LEARNING})
    own.fit(X[:40], y[:40], X_val=X[40:], y_val=y[40:])
    assert own.score(X[40:], y[40:]) == pytest.approx(own.best_validation_score_)


@pytest.mark.parametrize(
    ("change", "message"),
    [(1, "from 0 to 2, as the module has outputs for 3 classes, .* block .* holds 3"),
     (-1, "must hold whole numbers from 0 to 2, .* holds -1")],
)  # fmt: skip
def test_classes_that_the_module_has_not(maps, change, message):
    with pytest.raises(ValueError, match=message):
        fitted(maps[0], maps[1] + change, module=by_pixel)


# Transforms ---------------------------------------------------------------------------


def scaled(rows):
    assert rows.dtype == torch.uint8
    return rows.float() / 255


@pytest.mark.parametrize("scope", ["batch", "sample"])
def test_transforms_see_rows_as_they_are(rows, scope):
    pixels = np.random.default_rng(0).integers(255, size=(96, 6)).astype(np.uint8)
    how = {"train_transform": scaled, "eval_transform": scaled}
    model = fitted(pixels, rows[1], torch={**how, "transform_scope": scope})
    plain = fitted((pixels / 255).astype(np.float32), rows[1])
    np.testing.assert_allclose(model.vector_, plain.vector_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        model.predict_proba(pixels), plain.predict_proba(pixels / 255), atol=1e-5
    )
    trained = fitted(pixels, rows[1], torch={"train_transform": scaled})
    np.testing.assert_array_equal(trained.vector_, model.vector_)
    assert not np.allclose(trained.predict_proba(pixels), model.predict_proba(pixels))


# Data sets ----------------------------------------------------------------------------


class Pairs(Dataset):
    """A data set that is read item by item."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        return torch.from_numpy(self.X[number]), int(self.y[number])


class Named(Pairs):
    def __getitem__(self, number):
        return {"input": self.X[number]}, self.y[number]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_data_set_is_its_rows(rows, n_ranks):
    """Bit for bit, with what the data set says of its targets or without."""
    X, y = rows
    expected = fitted(X, y, n_ranks=n_ranks)
    tensors = TensorDataset(torch.tensor(X), torch.tensor(y))
    for dataset, target in ((Pairs(X, y), None), (Pairs(X, y), y), (tensors, None)):
        model = fitted(dataset, target, n_ranks=n_ranks)
        np.testing.assert_array_equal(model.vector_, expected.vector_)
        for given in (dataset, X):
            np.testing.assert_array_equal(model.predict(given), expected.predict(X))
    assert model.score(tensors, y) == expected.score(X, y) == model.score(tensors)
    with pytest.raises(ValueError, match="y is None, which only a Dataset or a Bag"):
        model.score(X)
    with pytest.raises(TypeError, match="trained on a Dataset"):
        model.predict(da.from_array(X))


def test_items_have_weights(rows):
    """Those of classes and of rows; numbers of items are integers, and weights not."""
    X, y = rows
    weight = np.random.default_rng(0).random(len(y))
    for options in ({"class_weight": "balanced"}, {"weight": weight}):
        ours, theirs = (fitted(g, y, n_ranks=2, **options) for g in (Pairs(X, y), X))
        np.testing.assert_array_equal(ours.vector_, theirs.vector_)
        assert not np.allclose(ours.vector_, fitted(X, y, n_ranks=2).vector_)


def test_pixels_have_weights(rows):
    pixels = np.random.default_rng(0).integers(255, size=(96, 6)).astype(np.uint8)
    weight = np.random.default_rng(0).random(96)
    how = {"train_transform": scaled, "eval_transform": scaled}
    ours = fitted(pixels, rows[1], weight=weight, torch=how)
    theirs = fitted((pixels / 255).astype(np.float32), rows[1], weight=weight)
    np.testing.assert_allclose(ours.vector_, theirs.vector_, rtol=1e-4, atol=1e-6)


def test_a_loader_of_batches_is_refused(rows):
    loader = torch.utils.data.DataLoader(Pairs(*rows))
    with pytest.raises(TypeError, match="DataLoader, expected .* give its `dataset`"):
        fitted(loader)


def test_items_may_be_dicts_and_be_held_out(rows):
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, input):
            return self.layer(input)

    model = fitted(
        Named(*rows), module=ByName, early_stopping=True, n_ranks=2, max_iter=15,
        learning_rate_init=0.03,
    )  # fmt: skip
    assert len(model.validation_scores_) == 15
    assert model.score(Named(*rows), rows[1]) > 0.7


@pytest.mark.slow
def test_a_data_set_travels_to_processes(rows, process_client):
    X, y = rows
    expected = fitted(X, y, n_ranks=4)
    with process_client.as_current():
        model = fitted(Pairs(X, y), y)
    np.testing.assert_array_equal(model.vector_, expected.vector_)


class Files(Dataset):
    """Each item in a file of its own; notes which process has opened it."""

    def __init__(self, folder, targets):
        self.folder, self.targets = folder, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        with (self.folder / f"read-by-{os.getpid()}").open("a") as file:
            file.write(f"{number} ")
        return np.load(self.folder / f"{number}.npy"), self.targets[number]


@pytest.mark.usefixtures("processes")
def test_each_worker_opens_the_files_of_its_own_items(rows, tmp_path):
    X, y = rows
    for number, row in enumerate(X):
        np.save(tmp_path / f"{number}.npy", row)
    model = fitted(Files(tmp_path, y))
    np.testing.assert_array_equal(model.vector_, fitted(X, y).vector_)
    readers = {path.name: path.read_text() for path in tmp_path.glob("read-by-*")}
    # Here one item is looked at, to know what there is.
    here = readers.pop(f"read-by-{os.getpid()}", "")
    assert len(here.split()) < 8
    found = [set(map(int, numbers.split())) for numbers in readers.values()]
    assert len(found) == 4
    assert sorted(number for own in found for number in own) == list(range(len(y)))


def test_items_without_targets_are_refused(rows):
    with pytest.raises(ValueError, match="y is None, so each item must be a pair"):
        fitted(TensorDataset(torch.tensor(rows[0])))


class SecondInput(nn.Module):
    """The first one tells nothing."""

    def __init__(self):
        super().__init__()
        self.layers = linear()

    def forward(self, noise, X):
        assert noise.shape == X.shape
        return self.layers(X)


class Several(IterableDataset):
    """Several inputs and a target, as a script that calls model(a, b) reads them."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __iter__(self):
        for row, label in zip(self.X, self.y, strict=True):
            yield 0 * row, row, int(label)


def test_all_but_the_last_part_of_an_item_are_inputs(rows):
    X, y = rows
    items = TensorDataset(torch.zeros(X.shape), *map(torch.tensor, rows))
    known = {"n_ranks": 2, "max_iter": 20, "learning_rate_init": 0.03}
    model = fitted(items, module=SecondInput, **known)
    assert model.score(items) > 0.9
    assert model.predict(items).shape == y.shape
    model.set_params(early_stopping=True).fit(items, X_val=items)
    assert model.validation_scores_[-1] > 0.9
    assert fitted(Several(X, y), module=SecondInput, **known).score(items) > 0.9


def test_inputs_without_names_need_a_data_set(rows):
    stream = Several(*rows)
    model = MPCAClassifier(module=SecondInput, early_stopping=True, **QUICK)
    with pytest.raises(ValueError, match="several inputs of an item have no names"):
        model.fit(stream, X_val=stream)
    bag = db.from_sequence([(row, row, int(label)) for row, label in zip(*rows)])
    with pytest.raises(ValueError, match="several inputs are entries of a dict"):
        fitted(bag, module=SecondInput)


class Stream(IterableDataset):
    """Pairs from front to end; a rank takes some of them, or shares them out."""

    def __init__(self, X, y, shares=False):
        self.X, self.y, self.shares = X, y, shares

    def __iter__(self):
        info = get_rank_info() if self.shares else None
        start, step = (0, 1) if info is None else info
        for number in range(start, len(self.y), step):
            yield self.X[number], int(self.y[number])


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_each_rank_has_its_share_of_a_stream(n_ranks, shares):
    X = np.arange(48, dtype=np.float32)[:, None].repeat(6, 1) / 48
    y = np.arange(48) % 3
    seen = {}

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, rows):
            numbers = (48 * rows[:, 0]).round().int().tolist()
            seen.setdefault(threading.get_ident(), []).extend(numbers)
            return self.layer(rows)

    fitted(Stream(X, y, shares), module=Watched, n_ranks=n_ranks, batch_size=8)
    found = sorted(sorted(set(numbers)) for numbers in seen.values())
    assert found == [list(range(rank, 48, n_ranks)) for rank in range(n_ranks)]


def test_a_stream_is_learnt_from(rows):
    """Its targets come with its items."""
    model = fitted(Stream(*rows), n_ranks=2, max_iter=30, learning_rate_init=0.03)
    assert model.score(rows[0], rows[1]) > 0.8


def scored_on(rows, given, X_val, y_val=None):
    """Scores of a fit to something, on something else."""
    network = Torch(linear, device="cpu")
    model = MPCAClassifier(module=network, early_stopping=True, n_ranks=2, **EVEN)
    return model.fit(*given, X_val=X_val, y_val=y_val).validation_scores_


def test_validation_rows_in_any_form(rows):
    """Whatever the fit is to, and whatever the rows are in: the scores are the same."""
    X, y = rows
    train, rest = (X[:64], y[:64]), (X[64:], y[64:])
    expected = scored_on(rows, train, *rest)
    assert len(expected) == 2
    forms = [
        (Pairs(*rest), None),
        (TensorDataset(torch.tensor(rest[0])), rest[1]),
        (Stream(*rest), None),
        (db.from_sequence(list(zip(*rest, strict=True)), npartitions=2), None),
        (da.from_array(rest[0], chunks=(20, 6)), da.from_array(rest[1], chunks=9)),
    ]
    # Bags are computed by processes of their own where nothing else is asked for.
    with dask.config.set(scheduler="threads"):
        for form in (*forms, rest):
            assert scored_on(rows, train, *form) == expected
            assert scored_on(rows, (Pairs(*train),), *form) == expected
    of_stream = scored_on(rows, (Stream(*train),), *forms[0])
    assert of_stream == scored_on(rows, (Stream(*train),), *rest)


def test_another_set_of_validation_items_is_another_fit(rows, tmp_path):
    X, y = rows
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = scored_on(rows, (Pairs(X, y),), Pairs(X, y))
        second = scored_on(rows, (Pairs(X, y),), Pairs(X, (y + 1) % 3))
    assert first != second
    assert second == scored_on(rows, (Pairs(X, y),), Pairs(X, (y + 1) % 3))


def test_what_a_stream_cannot_do(rows):
    X, y = rows
    with pytest.raises(ValueError, match="IterableDataset has none of"):
        fitted(Stream(X, y), early_stopping=True)
    with pytest.raises(ValueError, match="numbered from 0 without gaps, found"):
        fitted(Stream(X, y + 1))
    with pytest.raises(ValueError, match="has no items"):
        fitted(Stream(X[:0], y[:0]))
    with pytest.raises(TypeError, match="no order to give predictions in"):
        fitted(Stream(X, y)).predict(Stream(X, y))


# Bags ---------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
def test_a_bag_of_pairs(rows, named):
    X, y = rows

    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = linear()

        def forward(self, input):
            return self.layer(input)

    inputs = [{"input": row} for row in X] if named else list(X)
    bag = db.from_sequence(zip(inputs, y.tolist(), strict=True), npartitions=3)
    module = ByName if named else linear
    model = fitted(bag, module=module, n_ranks=2, max_iter=15, learning_rate_init=0.03)
    given = {"input": X} if named else X
    assert model.score(given, y) > 0.7
    lazy = model.predict(bag)
    np.testing.assert_array_equal(lazy.compute(), model.predict(given))
    with pytest.raises(ValueError, match="each item of the bag must be a pair"):
        fitted(db.from_sequence(list(X)))


# DataFrames ---------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_a_frame_is_its_rows(rows):
    X, y = rows
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(label=y)
    whole = dd.from_pandas(frame, npartitions=4, sort=False)
    given = whole[list("abcdef")]
    model = fitted(given, whole["label"], n_ranks=2)
    arrays = da.from_array(X, chunks=(24, 6)), da.from_array(y, chunks=24)
    expected = fitted(*arrays, n_ranks=2)
    np.testing.assert_array_equal(model.vector_, expected.vector_)
    np.testing.assert_array_equal(model.predict(given).compute(), expected.predict(X))


# Prefetch -----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mpca", "parameter_server", "synchronous"])
def test_what_is_prefetched_is_the_same(rows, strategy):
    X, y = rows
    n_ranks = 2 if strategy == "synchronous" else 1
    dataset = Pairs(X, y)
    plain, ahead = (
        fitted(dataset, strategy=strategy, n_ranks=n_ranks, torch={"prefetch": depth})
        for depth in (0, 2)
    )
    np.testing.assert_array_equal(ahead.vector_, plain.vector_)
    assert not [t for t in threading.enumerate() if t.name == "dask_ma-prefetch"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_for_a_gpu_lie_in_pinned_memory(rows, monkeypatch, prefetch):
    found = []
    given_to = Loaded.on

    def on(self, device):
        found.append((device.type, self.value.is_pinned()))
        return given_to(self, device)

    monkeypatch.setattr(Loaded, "on", on)
    fitted(*rows, max_iter=1, torch={"device": "cuda", "prefetch": prefetch})
    assert ("cuda", True) in found


def sampler_of(rows, seed=0):
    from dask_ma.data import Block, Shard

    X, y = rows
    blocks = [Block(X[:40], y[:40], None, 0, 0), Block(X[40:], y[40:], None, 1, 40)]
    random_state = np.random.RandomState(seed)
    return Sampler(Shard(blocks, 6, np.dtype(np.float32)), 16, random_state)


def test_no_more_than_asked_is_ready_and_states_are_those_of_the_last_batch(rows):
    prepared = []
    sampler = Prefetcher(sampler_of(rows), lambda X: prepared.append(0) or X, 2)
    plain = sampler_of(rows)
    try:
        for n_given in range(1, 20):
            ours, theirs = sampler.next(), plain.next()
            np.testing.assert_array_equal(ours.X, theirs.X)
            # Two in the queue, and one that waits to get in.
            assert len(prepared) <= n_given + 3
            for name, value in plain.state_dict().items():
                np.testing.assert_array_equal(sampler.state_dict()[name], value)
    finally:
        sampler.close()
    other = Prefetcher(sampler_of(rows, seed=5), lambda X: X, 1)
    other.load_state_dict(plain.state_dict())
    try:
        np.testing.assert_array_equal(other.next().X, plain.next().X)
    finally:
        other.close()


def test_an_error_of_the_thread_is_that_of_the_fit(rows):
    class Broken(Pairs):
        def __getitem__(self, number):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        fitted(Broken(*rows), rows[1], torch={"prefetch": 2}, n_ranks=2)


class Counted(Pairs):
    """Counts how often an item is read."""

    n_read = 0

    def __getitem__(self, number):
        Counted.n_read += 1
        return super().__getitem__(number)


def test_a_fit_with_prefetch_is_resumed(rows, tmp_path):
    X, y = rows
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fitted(Counted(X, y), y, max_iter=2, torch={"prefetch": 3})
        Counted.n_read = 0
        ours = fitted(Counted(X, y), y, max_iter=4, torch={"prefetch": 3})
        # Two epochs, and what the thread has made ready beyond their end.
        assert 2 * len(y) <= Counted.n_read <= 2 * len(y) + 4 * 16
        other = fitted(Counted(-X, y), y, max_iter=4, torch={"prefetch": 3})
    expected = fitted(X, y, max_iter=4)
    np.testing.assert_allclose(ours.vector_, expected.vector_, rtol=1e-5, atol=1e-6)
    expected = fitted(-X, y, max_iter=4)
    np.testing.assert_allclose(other.vector_, expected.vector_, rtol=1e-5, atol=1e-6)


def test_whatever_ends_the_reading_thread_reaches_the_rank(rows):
    """Not errors alone: the rank would wait for ever."""

    def leave(X):
        raise SystemExit(3)

    ahead = Prefetcher(sampler_of(rows), leave, 2)
    with pytest.raises(SystemExit):
        ahead.next()
    with pytest.raises(RuntimeError, match="the thread that reads batches is gone"):
        ahead.next()


def test_a_fit_ends_while_a_data_set_hangs(rows, monkeypatch):
    monkeypatch.setattr("dask_ma.mpca.training._prefetch._PATIENCE", 0.01)
    begun, goes_on = threading.Event(), threading.Event()

    def hang(X):
        if not begun.is_set():
            begun.set()
            return X
        goes_on.wait(60)
        return X

    ahead = Prefetcher(sampler_of(rows), hang, 2)
    ahead.next()
    ahead.close()
    assert ahead._thread.is_alive()
    goes_on.set()
    ahead._thread.join(60)


def test_a_data_set_that_cannot_travel_is_refused(rows):
    class Locked(Pairs):
        def __init__(self, *pair):
            super().__init__(*pair)
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match="dataset=.* cannot be pickled"):
        fitted(Locked(*rows))


# Files for other runtimes -------------------------------------------------------------


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_files_need_their_packages(rows, monkeypatch, tmp_path, missing):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == missing else find("math")
    )
    model = fitted(*rows)
    with pytest.raises(ImportError, match=f"format needs {missing}, which is not"):
        model.save_onnx(tmp_path / "network.onnx", rows[0][:2])


def test_what_is_exported_takes_any_number_of_rows(rows, monkeypatch, tmp_path):
    """What torch is asked for; the file itself needs packages besides."""
    asked = {}

    def export(module, args, path, **options):
        program = torch.export.export(
            module, args, options["kwargs"], dynamic_shapes=options["dynamic_shapes"]
        )
        asked.update(program=program.module(), path=path, dynamo=options["dynamo"])

    monkeypatch.setattr(torch.onnx, "export", export)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    model = fitted(*rows)
    model.save_onnx(tmp_path / "network.onnx", rows[0][:3])
    assert asked["path"] == str(tmp_path / "network.onnx")
    output = asked["program"](torch.tensor(rows[0]))
    with torch.no_grad():
        expected = model.to_module()(torch.tensor(rows[0]))
    torch.testing.assert_close(output, expected)


# The exporter of torch warns of what it uses of its own.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_file_for_other_runtimes(rows, tmp_path):
    pytest.importorskip("onnx", reason="files for other runtimes need onnx")
    pytest.importorskip("onnxscript", reason="files for other runtimes need onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="the file is read by it")
    model, path = fitted(*rows), tmp_path / "network.onnx"
    model.save_onnx(path, rows[0][:3])
    assert list(tmp_path.iterdir()) == [path]
    session = runtime.InferenceSession(path)
    (output,) = session.run(None, {session.get_inputs()[0].name: rows[0]})
    with torch.no_grad():
        expected = model.to_module()(torch.tensor(rows[0])).numpy()
    np.testing.assert_allclose(output, expected, atol=1e-5)
