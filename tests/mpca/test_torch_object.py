"""A module with its loss and optimiser as one parameter: copies, searches, identity."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.engine import as_text
from dask_ma.mpca import Torch

QUICK = {"max_iter": 2, "tol": None, "random_state": 0, "batch_size": 16}
ESTIMATORS = pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])


def two_layers(n_hidden=5, n_outputs=4):
    from torch import nn

    return nn.Sequential(
        nn.Linear(6, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_outputs)
    )


def chosen(**params):
    return Torch(
        two_layers,
        module_params={"n_hidden": 3},
        optimizer="SGD",
        optimizer_params={"lr": 0.1},
        device="cpu",
        **params,
    )


# What needs no torch ------------------------------------------------------------------


def test_copies_are_alike():
    torch = chosen()
    for copy in (clone(torch), pickle.loads(pickle.dumps(torch))):
        assert copy is not torch
        assert copy.get_params() == torch.get_params()
        assert copy.module is two_layers
        copy.set_params(module__n_hidden=7)
        assert torch.module_params == {"n_hidden": 3}


def test_entries_of_the_dicts_are_parameters():
    torch = chosen()
    params = torch.get_params()
    assert params["module__n_hidden"] == 3
    assert params["optimizer__lr"] == 0.1
    assert set(params) - set(torch.get_params(deep=False)) == {
        "module__n_hidden",
        "optimizer__lr",
    }
    given = torch.optimizer_params
    torch.set_params(optimizer__momentum=0.9, criterion__reduction="sum")
    assert torch.optimizer_params == {"lr": 0.1, "momentum": 0.9}
    assert torch.criterion_params == {"reduction": "sum"}
    assert given == {"lr": 0.1}  # it may be another one's, too
    torch.set_params(optimizer_params={"lr": 0.2}, optimizer__nesterov=True)
    assert torch.optimizer_params == {"lr": 0.2, "nesterov": True}
    for wrong in ("optimzer__lr", "loss"):
        with pytest.raises(ValueError, match="Invalid parameter '.*' for estimator To"):
            torch.set_params(**{wrong: 1})


def test_methods_of_a_module_are_its_own():
    """`get_params` of a module is no list of parameters as estimators have them."""
    nn = pytest.importorskip("torch.nn", reason="PyTorch is not installed")

    class Odd(nn.Linear):
        def get_params(self):
            return [self.weight]

    torch = Torch(Odd(6, 4))
    assert as_text(torch) == as_text(torch) != as_text(Torch(Odd(6, 5)))
    assert set(torch.get_params()) == set(torch.get_params(deep=False))


def test_a_repr_has_no_addresses():
    text = (
        "Torch(device='cpu', module=<function two_layers>, "
        "module_params={'n_hidden': 3}, optimizer='SGD', optimizer_params={'lr': 0.1})"
    )
    assert repr(chosen()) == text
    for model, inner in (
        (MPCAClassifier(module=chosen()), text),
        (MPCARegressor(module=two_layers), "<function two_layers>"),
    ):
        shown = "".join(repr(model).split())
        expected = "".join(f"{type(model).__name__}(module={inner})".split())
        assert shown == expected


@ESTIMATORS
def test_parameters_of_a_module_are_the_estimators_too(cls):
    model = cls(module=chosen(), alpha=0.5)
    params = model.get_params()
    assert params["module__optimizer"] == "SGD"
    assert params["module__optimizer__lr"] == 0.1
    assert params["module__module__n_hidden"] == 3
    copy = clone(model)
    assert copy.module.get_params() == model.module.get_params()
    copy.set_params(module__optimizer__lr=0.2, module__criterion__reduction="sum")
    assert copy.module.optimizer_params == {"lr": 0.2}
    assert copy.module.criterion_params == {"reduction": "sum"}
    assert model.module.optimizer_params == {"lr": 0.1}
    again = pickle.loads(pickle.dumps(model))
    assert again.module.get_params() == model.module.get_params()
    with pytest.raises(
        ValueError, match="Invalid parameter 'n_hidden' for estimator T"
    ):
        model.set_params(module__n_hidden=3, module=two_layers)
    with pytest.raises(TypeError, match="unexpected keyword argument 'module__n_hid"):
        cls(module=two_layers, module__n_hidden=3)


@ESTIMATORS
def test_a_bare_module_is_wrapped_where_its_parameters_are_set(cls):
    model = cls(module=two_layers).set_params(module__optimizer="SGD")
    assert isinstance(model.module, Torch)
    assert model.module.module is two_layers
    assert model.module.optimizer == "SGD"
    with pytest.raises(ValueError, match="module=None has no parameters; give an obj"):
        cls().set_params(module__device="cpu")
    model.set_params(module=len, module__device="cpu")
    assert model.module.get_params() == Torch(len, device="cpu").get_params()


# Fits ---------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="modules need torch")


@pytest.mark.usefixtures("torch")
def test_a_bare_module_has_the_defaults(multi):
    bare = MPCAClassifier(module=two_layers, **QUICK).fit(*multi)
    wrapped = MPCAClassifier(module=Torch(two_layers), **QUICK).fit(*multi)
    np.testing.assert_array_equal(bare.vector_, wrapped.vector_)
    assert bare.to_module()[0].out_features == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("module__n_hidden", 4),
        ("criterion", "MultiMarginLoss"),
        ("criterion__label_smoothing", 0.2),
        ("optimizer", "RMSprop"),
        ("optimizer__lr", 0.3),
        ("optimizer__momentum", 0.9),
    ],
)
@pytest.mark.usefixtures("torch")
def test_every_parameter_acts(multi, name, value):
    model = MPCAClassifier(module=chosen(), **QUICK).fit(*multi)
    before = model.vector_
    after = model.set_params(**{f"module__{name}": value}).fit(*multi).vector_
    assert not np.array_equal(before, after)


@pytest.mark.usefixtures("torch")
def test_a_search_over_optimisers_and_arguments(multi):
    X, y = multi
    half = [(np.arange(0, 120, 2), np.arange(1, 120, 2))]
    grid = [
        {"module__optimizer": ["SGD", "Adagrad"], "module__optimizer__lr": [0.01, 0.3]},
        {"module__module__n_hidden": [2, 8], "module__criterion": ["MultiMarginLoss"]},
        {"module": [two_layers, Torch(two_layers, optimizer="AdamW")]},
    ]
    model = MPCAClassifier(module=chosen(), **QUICK)
    search = GridSearchCV(model, grid, cv=half, refit=False, error_score="raise")
    found = search.fit(X, y).cv_results_
    assert len(found["params"]) == 8
    pairs = zip(found["params"], found["split0_test_score"], strict=True)
    for params, score in pairs:
        again = clone(model).set_params(**params).fit(X[::2], y[::2])
        assert score == again.score(X[1::2], y[1::2])
    assert model.module.get_params() == chosen().get_params()


@pytest.mark.usefixtures("torch")
def test_arguments_need_a_class(multi):
    model = MPCAClassifier(module=Torch(two_layers(), module_params={"n_hidden": 3}))
    with pytest.raises(ValueError, match="module_params need a class, not an instance"):
        model.fit(*multi)


def test_a_wrapped_nothing_is_no_network(multi, torch):
    for module in (None, len, "Linear"):
        with pytest.raises(
            Exception, match=r"must be a torch\.nn\.Module|one argument"
        ):
            MPCAClassifier(module=Torch(module)).fit(*multi)


# Identities ---------------------------------------------------------------------------


def identity_of(module):
    return str(MPCAClassifier(module=module)._identity(None, seed=0).parameters)


def test_equal_modules_have_equal_identities(torch):
    nn = torch.nn
    kinds = [
        two_layers,
        chosen(),
        chosen().set_params(module__n_hidden=4),
        chosen().set_params(optimizer__lr=0.2),
        chosen(criterion="MultiMarginLoss"),
        chosen(criterion=nn.CrossEntropyLoss),
        chosen(criterion=nn.CrossEntropyLoss(weight=torch.ones(4))),
        chosen(criterion=nn.CrossEntropyLoss(weight=torch.arange(4.0))),
        nn.Linear(6, 4),
        nn.Linear(6, 4),  # begins at other values
    ]
    texts = [identity_of(kind) for kind in kinds]
    assert len(set(texts)) == len(kinds)
    for kind, text in zip(kinds, texts, strict=True):
        assert identity_of(clone(kind, safe=False)) == text
        assert " at 0x" not in text
    in_order = chosen().set_params(module__n_outputs=4, module__n_hidden=3)
    turned = Torch(**{**chosen().get_params(deep=False), "module_params": {}})
    turned.set_params(module__n_outputs=4).set_params(module__n_hidden=3)
    assert identity_of(in_order) == identity_of(turned)
