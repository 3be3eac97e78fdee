"""Estimators with a module of PyTorch on several ranks."""

import dask
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch modules need torch")

from torch import nn  # noqa: E402

from dask_ma import MPCAClassifier, MPCARegressor  # noqa: E402
from dask_ma.engine import as_text  # noqa: E402
from dask_ma.mpca import Torch, strategies  # noqa: E402

QUICK = {"tol": None, "random_state": 0}


def normalised(n_features, n_outputs):
    """Two layers with a batch normalisation before each, on the processor."""

    def make():
        return nn.Sequential(
            nn.BatchNorm1d(n_features),
            nn.Linear(n_features, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Linear(32, n_outputs),
        )

    return Torch(make, device="cpu")


@pytest.fixture(scope="module")
def shifted(digits):
    """Digits whose features are far from a mean of 0 and a variance of 1."""
    X_train, y_train = digits.train
    X_test, y_test = digits.test
    return (0.1 * X_train + 5, y_train), (0.1 * X_test + 5, y_test)


# Batch normalisation ------------------------------------------------------------------


def test_running_values_are_those_of_the_rows(shifted, strategy):
    """The first normalisation sees the rows themselves."""
    (X, y), test = shifted
    # Where ranks keep step, so do the means; an elastic average is slow to forget the
    # variance of 1 that modules begin with.
    max_iter = {"easgd": 12, "mpca": 7, "parameter_server": 7}.get(strategy, 5)
    model = MPCAClassifier(
        module=normalised(64, 10), strategy=strategy, n_ranks=2, max_iter=max_iter,
        batch_size=32, learning_rate_init=0.005, **QUICK,
    ).fit(X, y)  # fmt: skip
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    np.testing.assert_allclose(state["0.running_mean"], X.mean(0), atol=0.05)
    # They are means over the last batches, so they differ from those of all rows.
    varying = X.var(0) > 1e-4
    ratio = state["0.running_var"][varying] / X.var(0)[varying]
    assert 0.5 < np.median(ratio) < 2
    assert (state["0.running_var"] > -1e-12).all()
    assert (state["2.running_var"] > 0).all()
    assert model.score(*test) > 0.85


@pytest.mark.parametrize("extrapolation", [0.7, 2.5])
def test_no_variance_is_projected_below_zero(extrapolation):
    """Their start at 1 is far above what the rows have, so they fall for long."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 20))
    y = (X @ rng.normal(size=(20, 5))).argmax(1)
    seen = []

    class Watched(nn.BatchNorm1d):
        def forward(self, rows):
            if not self.training:
                seen.append(float(self.running_var.min()))
            return super().forward(rows)

    def make():
        return nn.Sequential(
            Watched(20), nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)
        )

    model = MPCAClassifier(
        module=Torch(make, device="cpu"), n_ranks=2, batch_size=16, max_iter=6,
        learning_rate_init=0.005, early_stopping=True,
        strategy=strategies.MPCA(extrapolation=extrapolation), **QUICK,
    ).fit(0.01 * X, y)  # fmt: skip
    assert len(seen) >= 6
    assert min(seen) > 0
    assert model.best_validation_score_ > 0.6
    assert np.isfinite(model.predict_proba(0.01 * X)).all()


# Batches of one row -------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_last_batch_of_one_row_does_no_harm(strategy, n_ranks):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(65 * n_ranks, 8))
    y = (X[:, 0] > 0).astype(int)
    model = MPCAClassifier(
        module=normalised(8, 2), strategy=strategy, n_ranks=n_ranks, batch_size=64,
        max_iter=3, **QUICK,
    ).fit(X, y)  # fmt: skip
    n_samples = sum(record["n_samples"] for record in model.history_)
    n_steps = sum(record["n_steps"] for record in model.history_)
    # Batches of all ranks have nearly equal sizes: the row is never the last one.
    n_batches = 2 if strategy == "gradients" and n_ranks == 2 else 1
    assert n_batches * n_samples == 65 * n_steps


def test_a_rank_of_one_row_is_named():
    """No other batch can take in its row."""
    X = np.random.default_rng(0).normal(size=(5, 3))
    model = MPCARegressor(module=normalised(3, 1), n_ranks=2, max_iter=2, **QUICK)
    with pytest.raises(ValueError, match="a batch of one row.*fewer ranks or blocks"):
        model.fit(X[:2], X[:2, 0])
    with pytest.raises(ValueError, match="a batch of one row.*batch_size=1"):
        model.set_params(n_ranks=1, batch_size=1).fit(X, X[:, 0])


# Checkpoints --------------------------------------------------------------------------


def test_a_finished_fit_that_is_resumed_is_the_same(shifted, strategy, tmp_path):
    (X, y), _ = shifted
    X, y = X[:200], y[:200]
    params = {"module": normalised(64, 10), "strategy": strategy, "n_ranks": 2}
    params |= {"max_iter": 3, "batch_size": 32, **QUICK}
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = MPCAClassifier(**params).fit(X, y)
        again = MPCAClassifier(**params).fit(X, y)
    np.testing.assert_array_equal(again.vector_, first.vector_)
    assert len(again.history_) == len(first.history_)


# Steps that all ranks make together ---------------------------------------------------


EDITED = """
class Layer(nn.Module):
    def forward(self, x):
        return torch.{activation}(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 10)
        self.between = Layer()

    def forward(self, x):
        return self.second(self.between(self.first(x)))
"""


@pytest.mark.parametrize("is_made", [False, True], ids=["class", "module"])
def test_a_class_that_was_edited_is_another_module(digits, tmp_path, is_made):
    """Not the one whose fit is saved under its name."""

    def fit(activation):
        cell = {"nn": nn, "torch": torch, "__name__": "__main__"}
        exec(EDITED.format(activation=activation), cell)
        torch.manual_seed(0)
        module = cell["Net"]() if is_made else cell["Net"]
        params = {"max_iter": 2, "tol": None, "n_ranks": 1, "random_state": 0}
        return MPCAClassifier(module=module, **params).fit(*digits.train)

    expected = fit("relu").loss_curve_
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        assert fit("cos").loss_curve_ != expected
        assert fit("relu").loss_curve_ == expected


CRITERION = """
weight = torch.tensor([{weight}] + [1.0] * 9)
smooth = nn.CrossEntropyLoss(label_smoothing={smoothing})
squash = torch.{squash}

def criterion(outputs, y):
    found = smooth(squash(outputs), y)
    return found + nn.functional.cross_entropy(outputs, y, weight=weight)
"""


def test_what_a_criterion_reads_of_its_module_counts(digits, tmp_path):
    def fit(**values):
        cell = {"nn": nn, "torch": torch, "__name__": "__main__"}
        given = {"weight": 1.0, "smoothing": 0.0, "squash": "tanh"} | values
        exec(CRITERION.format(**given), cell)
        module = Torch(lambda: nn.Linear(64, 10), criterion=cell["criterion"])
        params = {"max_iter": 1, "tol": None, "n_ranks": 1, "random_state": 0}
        return MPCAClassifier(module=module, **params).fit(*digits.train).loss_curve_

    edits = {}, {"weight": 5.0}, {"smoothing": 0.3}, {"squash": "sin"}
    expected = [fit(**values) for values in edits]
    assert len({tuple(curve) for curve in expected}) == len(edits)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        assert [fit(**values) for values in edits] == expected


class Stretched(nn.Module):
    """Digits times a number that is no parameter."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor = nn.Linear(64, 10), factor

    def forward(self, x):
        return self.layer(self.factor * x)


def test_numbers_that_a_module_holds_tell_it_from_others(digits, tmp_path):
    def fit(factor):
        params = {"max_iter": 2, "tol": None, "n_ranks": 1, "random_state": 0}
        return MPCAClassifier(module=Stretched(factor), **params).fit(*digits.train)

    expected = fit(5.0).loss_curve_
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        assert fit(1.0).loss_curve_ != expected
        assert fit(5.0).loss_curve_ == expected


def test_the_mode_of_a_module_makes_no_other_fit():
    """A fit sets it by itself."""
    module = Stretched(1.0)
    assert as_text(Torch(module)) == as_text(Torch(module.eval()))


def one_layer():
    return nn.Sequential(nn.Linear(6, 4))


def by_gradients(data, weight=None, **params):
    network = params.pop("module", Torch(one_layer, device="cpu"))
    given = {**QUICK, "strategy": "gradients", "max_iter": 4, "batch_size": 120}
    given |= {"module": network, "learning_rate_init": 0.05, **params}
    return MPCAClassifier(**given).fit(*data, sample_weight=weight)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"criterion_params": {"weight": torch.tensor([1.0, 5.0, 0.2, 2.0])}},
        {"criterion_params": {"reduction": "sum"}, "clip_grad_norm": 1e-3},
        {"clip_grad_norm": 0.01, "optimizer": "SGD"},
        {"clip_grad_value": 0.005, "optimizer": "SGD", "microbatch_size": 7},
        {"lr_scheduler": "ExponentialLR", "lr_scheduler_params": {"gamma": 0.5}},
        {"optimizer_params": {"param_groups": [("*.bias", {"lr": 0.0})]}},
    ],
    ids=lambda params: ", ".join(params) or "defaults",
)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_all_ranks_is_that_of_one(multi, weights, params, weighted):
    """What limits or weighs a gradient does so with that of all rows."""
    X, y = multi
    order = np.argsort(y, kind="stable")
    data, weight = (X[order], y[order]), weights[order] if weighted else None
    network = Torch(one_layer, device="cpu", **params)
    one = by_gradients(data, weight, module=network, n_ranks=1)
    many = by_gradients(data, weight, module=network, n_ranks=4, shuffle=False)
    np.testing.assert_allclose(many.vector_, one.vector_, rtol=1e-3, atol=2e-5)


def test_callbacks_are_called_once_for_each_step_of_all_ranks(multi):
    class Counter:
        seen: list = []

        def on_batch_end(self, state):
            self.seen.append((state.rank, state.n_steps))

    network = Torch(one_layer, device="cpu", callbacks=[Counter()])
    by_gradients(multi, module=network, n_ranks=2, batch_size=30, max_iter=3)
    assert sorted(Counter.seen) == [(r, n) for r in range(2) for n in range(1, 7)]
