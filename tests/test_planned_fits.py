"""Fits whose rounds depend on how many there may be, with checkpoints and without."""

import dask
import numpy as np
import pytest

from dask_ma import (
    MPCAClassifier,
    SchMPLDA,
    SFBDictionaryLearning,
    SFBMetricLearner,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 6))
CODES = (X[:, 0] > X[:, 1]).astype(int)
COUNTS = rng.poisson(0.5, size=(60, 20))
ALIKE = {"random_state": 0, "n_ranks": 2}
NETWORK = {"hidden_layer_sizes": (4,), "solver": "sgd", "tol": None, **ALIKE}
TOPICS = {"n_components": 3, "n_samples": 1, **ALIKE}
PLANNED = {
    "cosine": (MPCAClassifier, {**NETWORK, "learning_rate": "cosine"}, X),
    "atoms": (SFBDictionaryLearning, {"n_components": 3, "solver": "sgd"} | ALIKE, X),
    "distances": (SFBMetricLearner, {"n_components": 2, **ALIKE}, X),
    "samples": (SchMPLDA, {**TOPICS, "n_samples": 2, "thin": 2}, COUNTS),
}
FREE = {
    "constant": (MPCAClassifier, NETWORK, X),
    "online": (SFBDictionaryLearning, {"n_components": 3, **ALIKE}, X),
    "sample": (SchMPLDA, TOPICS, COUNTS),
}


def fitted(case, max_iter, path=None):
    """A fit of so many rounds, with checkpoints in a folder."""
    kind, params, rows = case
    settings = {"dask-ma.checkpoint.path": path and str(path)}
    with dask.config.set(settings | {"dask-ma.checkpoint.every": 1}):
        model = kind(**params, max_iter=max_iter)
        return model.fit(rows, CODES) if len(rows) == len(CODES) else model.fit(rows)


def arrays(model):
    """What the fit has found."""
    found = model.coefs_ if hasattr(model, "coefs_") else [model.components_]
    return [np.asarray(each) for each in found]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", PLANNED)
def test_more_rounds_are_another_fit(name, tmp_path):
    fitted(PLANNED[name], 4, tmp_path)
    with_path, without = fitted(PLANNED[name], 8, tmp_path), fitted(PLANNED[name], 8)
    for one, other in zip(arrays(with_path), arrays(without), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", PLANNED)
def test_what_depends_on_the_number_of_rounds(name):
    kind, params, _ = PLANNED[name]
    model = kind(**params)
    assert "max_iter" not in model._free_to_change or model._is_planned


@pytest.mark.parametrize("name", FREE)
def test_what_does_not(name):
    kind, params, _ = FREE[name]
    model = kind(**params)
    assert "max_iter" in model._free_to_change and not model._is_planned


@pytest.mark.parametrize("value, expected", [("auto", True), (5, False)])
def test_schedulers(value, expected):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from dask_ma.mpca import Torch

    chosen = {"lr_scheduler": "CosineAnnealingLR", "lr_scheduler_params": {}}
    chosen["lr_scheduler_params"]["T_max"] = value
    # It takes the place of the estimator's own rate.
    model = MPCAClassifier(module=Torch("Linear", **chosen), learning_rate="cosine")
    assert model._is_planned is expected


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_cure_of_damaged_arrays_is_one(tmp_path):
    """What the error says to remove is what has to be."""
    case = FREE["constant"]
    fitted(case, 4, tmp_path)
    path = max(tmp_path.rglob("round-00000004*.npz"))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.warns(UserWarning, match="is damaged") as told_of:
        fitted(case, 6, tmp_path)
    (told,) = (str(w.message) for w in told_of if "is damaged" in str(w.message))
    told = told.split("; remove ")[1].split(" to go on")[0]
    assert told.endswith("round-00000004.json")
    (found,) = tmp_path.rglob("round-00000004.json")
    assert str(found) in told
    found.unlink()
    assert fitted(case, 6, tmp_path).n_iter_ == 6


@pytest.mark.parametrize("value", ["", True, 5, b"/tmp/fits"])
def test_a_path_that_is_none(value):
    with dask.config.set({"dask-ma.checkpoint.path": value}):
        with pytest.raises(ValueError, match=r"dask-ma\.checkpoint\.path is"):
            MPCAClassifier(**NETWORK, max_iter=1).fit(X, CODES)
