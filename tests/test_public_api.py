"""What the package shows to its users: names, signatures, docstrings."""

import importlib
import inspect
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

import dask_ma
from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SchMPMatrixFactorization,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)
from dask_ma.ma import Gradients, Models
from dask_ma.mpca import Torch, strategies
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange

DOORS = [
    "dask_ma",
    "dask_ma.butterfly",
    "dask_ma.comm",
    "dask_ma.data",
    "dask_ma.datasets",
    "dask_ma.engine",
    "dask_ma.exceptions",
    "dask_ma.kernels",
    "dask_ma.ma",
    "dask_ma.mpca",
    "dask_ma.mpca.strategies",
    "dask_ma.plotting",
    "dask_ma.schmp",
    "dask_ma.losses",
    "dask_ma.schmp.schedules",
    "dask_ma.sfb",
    "dask_ma.sfb.prox",
    "dask_ma.sfb.topology",
]
# What a user calls: estimators, run_spmd and the collectives, data sets, plots.
PUBLIC = [
    getattr(importlib.import_module(door), name)
    for door, names in {
        "dask_ma": [
            "ButterflySGDClassifier",
            "ButterflySGDRegressor",
            "MALDA",
            "MASGDClassifier",
            "MASGDRegressor",
            "MPCAClassifier",
            "MPCARegressor",
            "SFBDictionaryLearning",
            "SFBLogisticRegression",
            "SFBMetricLearner",
            "SchMPLDA",
            "SchMPLasso",
            "SchMPLassoCV",
            "SchMPLogisticRegression",
            "SchMPMatrixFactorization",
            "run_spmd",
        ],
        "dask_ma.comm": [
            "allgather",
            "allreduce",
            "alltoall",
            "barrier",
            "broadcast",
            "butterfly_allreduce",
            "butterfly_depth",
            "butterfly_partners",
            "gather",
            "gather_timeline",
            "reduce_scatter",
            "sendrecv",
            "sibling",
            "weighted_mean",
        ],
        "dask_ma.datasets": [
            "load_clinc150",
            "make_dask_sparse_classification",
            "make_sparse_classification",
            "read_bag_of_words",
            "read_lda_c",
            "read_svmlight",
            "vectorize_text",
        ],
        "dask_ma.mpca": [
            "Checkpoint",
            "EpochScoring",
            "RankInfo",
            "Torch",
            "TrainingState",
            "get_rank_info",
        ],
        "dask_ma.plotting": [
            "ConvergenceDisplay",
            "GanttDisplay",
            "NetworkDisplay",
            "TopologyDisplay",
        ],
        "dask_ma.schmp": ["ColumnDescent", "CoordinateDescent", "RotationProgram"],
        "dask_ma.losses": ["Loss"],
        "dask_ma.ma": ["Gradients", "Models"],
        "dask_ma.schmp.schedules": ["Cyclic", "Dynamic", "Priority", "Random"],
        "dask_ma.sfb": [
            "Batch",
            "Exchange",
            "FactorModel",
            "ModelResult",
            "ParameterMatrix",
            "run",
        ],
        "dask_ma.sfb.prox": [
            "ColumnNormBall",
            "ColumnwiseProx",
            "L1",
            "L2",
            "NoPenalty",
            "Prox",
            "TraceNorm",
        ],
        "dask_ma.sfb.topology": ["Topology"],
    }.items()
    for name in names
]
ESTIMATORS = [
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MALDA,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SFBDictionaryLearning,
    SchMPMatrixFactorization,
    SFBLogisticRegression,
    SFBMetricLearner,
]
# Objects that are a parameter of an estimator, and have some of their own.
PARAMETERS = [Torch, *(getattr(strategies, name) for name in strategies.__all__)]
TWINS = [(MASGDClassifier, SGDClassifier), (MASGDRegressor, SGDRegressor)]
NETWORKS = [(MPCAClassifier, MLPClassifier), (MPCARegressor, MLPRegressor)]


def own_methods(cls):
    """Public functions that a class of this package defines or inherits from it."""
    found = {}
    for base in cls.__mro__:
        if base.__module__.startswith("dask_ma"):
            for name, member in vars(base).items():
                function = getattr(member, "fn", member)  # available_if keeps it there
                if not name.startswith("_") and inspect.isfunction(function):
                    found.setdefault(name, function)
    return found


def public_functions():
    for thing in PUBLIC:
        if inspect.isclass(thing):
            methods = own_methods(thing).items()
            yield from ((f"{thing.__name__}.{name}", f) for name, f in methods)
        else:
            yield thing.__name__, thing


FUNCTIONS = dict(public_functions())


def documented(docstring, section):
    """Names in a section of a numpydoc docstring."""
    pattern = rf"^{section}\n-+\n(.*?)(?=^\w[\w ]*\n---|\Z)"
    text = re.search(pattern, inspect.cleandoc(docstring), re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: :|$)", text[1] if text else "", re.M)
    return {name.strip("* ") for head in heads for name in head.split(",")}


def documented_arguments(function):
    """Those of a method may be in the docstring of the one that it overrides."""
    owner = inspect.getmodule(function)
    for part in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, part)
    bases = owner.__mro__ if inspect.isclass(owner) else ()
    overridden = [vars(base).get(function.__name__) for base in bases]
    docstrings = [found.__doc__ or "" for found in [function, *overridden] if found]
    return set().union(*(documented(each, "Parameters") for each in docstrings))


def arguments(function):
    names = set(inspect.signature(function).parameters)
    return names - {"self", "cls"}


@pytest.mark.parametrize("name", DOORS)
def test_door(name):
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__)
    assert module.__doc__
    for member in module.__all__:
        assert hasattr(module, member)


def test_the_package_shows_its_estimators():
    assert set(dask_ma.__all__) == {
        "ButterflySGDClassifier",
        "ButterflySGDRegressor",
        "MALDA",
        "MASGDClassifier",
        "MASGDRegressor",
        "MPCAClassifier",
        "MPCARegressor",
        "SFBDictionaryLearning",
        "SFBLogisticRegression",
        "SFBMetricLearner",
        "SchMPLDA",
        "SchMPLasso",
        "SchMPLassoCV",
        "SchMPLogisticRegression",
        "SchMPMatrixFactorization",
        "__version__",
        "run_spmd",
    }
    for cls in (MALDA, MASGDClassifier, MASGDRegressor):
        assert getattr(importlib.import_module("dask_ma.ma"), cls.__name__) is cls
    butterfly = importlib.import_module("dask_ma.butterfly")
    for cls in (ButterflySGDClassifier, ButterflySGDRegressor):
        assert getattr(butterfly, cls.__name__) is cls
    mpca = importlib.import_module("dask_ma.mpca")
    for cls in (MPCAClassifier, MPCARegressor):
        assert getattr(mpca, cls.__name__) is cls
    schmp = importlib.import_module("dask_ma.schmp")
    for cls in (
        SchMPLasso,
        SchMPLassoCV,
        SchMPLDA,
        SchMPLogisticRegression,
        SchMPMatrixFactorization,
    ):
        assert getattr(schmp, cls.__name__) is cls
    sfb = importlib.import_module("dask_ma.sfb")
    for cls in (SFBDictionaryLearning, SFBLogisticRegression):
        assert getattr(sfb, cls.__name__) is cls


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_is_documented_and_annotated(name):
    function = FUNCTIONS[name]
    assert inspect.getdoc(function)
    missing = arguments(function) - documented_arguments(function)
    assert not missing, f"{name} does not document {missing}"
    unannotated = arguments(function) - set(function.__annotations__)
    assert not unannotated
    assert "return" in function.__annotations__


def fitted_attributes(model):
    """Names that scikit-learn takes for those of what was learnt."""
    return {name for name in dir(model) if re.fullmatch("[a-z][a-z0-9_]*_", name)}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:all coefficients are zero")
@pytest.mark.parametrize("cls", ESTIMATORS)
def test_parameters_and_attributes_are_documented(cls):
    names = arguments(cls.__init__)
    assert documented(cls.__doc__, "Parameters") == names
    rng = np.random.default_rng(0)
    X, y = rng.poisson(1.0, size=(20, 2)), np.arange(20) % 2
    is_sgd = "tol" in names and not cls.__name__.startswith("SchMP")
    params = {"tol": None} if is_sgd else {}
    if cls is SFBDictionaryLearning:
        params = {"alpha": 0.1}
    if cls.__name__.startswith("SchMP"):
        params = {"cv": 2, "alphas": [9.0]} if cls is SchMPLassoCV else {"alpha": 9.0}
    if cls is SchMPLDA:
        params = {"keep_tokens": True}
    model = cls(max_iter=1, **params).fit(X, y)
    fitted = fitted_attributes(model)
    if cls is SFBLogisticRegression:  # each solver has an attribute of its own
        for solver in ("sgd", "sdca"):
            fitted |= fitted_attributes(cls(solver=solver, tol=None).fit(X, y))
    fitted |= {"feature_names_in_"}  # of a frame
    if cls in dict(NETWORKS):
        fitted |= {"vector_"}  # of a module
    if cls is SFBMetricLearner:
        fitted |= fitted_attributes(model.set_threshold(1.0))
    assert documented(cls.__doc__, "Attributes") == fitted
    assert set(cls._parameter_constraints) == names


@pytest.mark.parametrize("cls", PARAMETERS)
def test_parameters_of_parameters_are_documented(cls):
    names = set(inspect.signature(cls).parameters)
    assert documented(cls.__doc__, "Parameters") == names
    assert set(cls._parameter_constraints) == names


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_constructors_name_their_parameters(cls):
    """Those of an object that is a parameter are its own."""
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert {p.kind for p in inspect.signature(cls).parameters.values()} <= named


@pytest.mark.parametrize(("cls", "twin"), TWINS)
def test_parameters_are_those_of_scikit_learn(cls, twin):
    ours, theirs = (inspect.signature(c).parameters for c in (cls, twin))
    assert set(ours) - set(theirs) == {
        "local_epochs",
        "n_ranks",
        "paradigm",
        "refine",
        "refine_max_iter",
        "refine_tol",
    }
    assert set(theirs) - set(ours) <= {"n_jobs"}
    chosen = "learning_rate", "n_iter_no_change"  # "auto", which scikit-learn has not
    assert all(ours[name].default == "auto" for name in chosen)
    for name in set(ours) & set(theirs):
        assert ours[name].kind == theirs[name].kind, name
        # Before scikit-learn 1.8 SGDClassifier's was 0, which no step size can be.
        if name not in ("eta0", *chosen):
            assert ours[name].default == theirs[name].default, name


@pytest.mark.parametrize(("cls", "twin"), TWINS)
def test_methods_are_those_of_scikit_learn(cls, twin):
    ours, theirs = (
        {name for name in dir(c) if not name.startswith("_")} for c in (cls, twin)
    )
    assert theirs - ours <= {"loss_functions"}  # a table of scikit-learn's classes
    assert ours - theirs <= {"to_sklearn", "set_callbacks"}
    for name in ("fit", "partial_fit", "score", "predict"):
        parameters = [
            list(inspect.signature(getattr(c, name)).parameters) for c in (cls, twin)
        ]
        assert parameters[0] == parameters[1]


@pytest.mark.parametrize(
    ("cls", "twin"),
    [(ButterflySGDClassifier, SGDClassifier), (ButterflySGDRegressor, SGDRegressor)],
)
def test_parameters_of_butterfly_mixing_are_those_of_scikit_learn(cls, twin):
    """Those that both have, but for the loss of classifiers and the steps."""
    ours, theirs = (inspect.signature(c).parameters for c in (cls, twin))
    assert set(ours) - set(theirs) == {
        "batch_size",
        "mixing",
        "mixing_period",
        "n_ranks",
        "preconditioner",
        "refine",
        "refine_max_iter",
        "refine_tol",
    }
    others = {"penalty", "l1_ratio", "power_t"}
    assert set(theirs) - set(ours) - {"n_jobs"} == others
    for name in set(ours) & set(theirs):
        assert ours[name].kind == theirs[name].kind, name
        # "auto" is scikit-learn's number where no refinement goes on.
        if name not in ("eta0", "learning_rate", "loss", "n_iter_no_change"):
            assert ours[name].default == theirs[name].default, name
    for method in ("fit", "partial_fit", "score", "predict"):
        parameters = [
            list(inspect.signature(getattr(c, method)).parameters) for c in (cls, twin)
        ]
        assert parameters[0] == parameters[1]


def test_parameters_of_topics_are_those_of_scikit_learn():
    """But for the way to learn, and the documents of a round of all ranks."""
    ours, theirs = (
        inspect.signature(c).parameters for c in (MALDA, LatentDirichletAllocation)
    )
    assert set(ours) - set(theirs) == {
        "components_init",
        "dtype",
        "local_batch_size",
        "mixing",
        "n_ranks",
        "paradigm",
        "validation_fraction",
        "word_weights",
    }
    assert set(theirs) - set(ours) == {"n_jobs"}
    for name in set(ours) & set(theirs):
        assert ours[name].kind == theirs[name].kind, name
        if name not in ("learning_method", "batch_size"):
            assert ours[name].default == theirs[name].default, name


def test_methods_of_topics_are_those_of_scikit_learn():
    ours, theirs = (
        {name for name in dir(c) if not name.startswith("_")}
        for c in (MALDA, LatentDirichletAllocation)
    )
    assert theirs <= ours
    assert ours - theirs <= {
        "coherence",
        "exp_dirichlet_component_",  # set by fit there
        "log_likelihood",
        "merge",
        "set_callbacks",
        "to_sklearn",
        "top_words",
    }
    for name in ("fit", "partial_fit", "score", "perplexity", "transform"):
        ours, theirs = (
            list(inspect.signature(getattr(c, name)).parameters)
            for c in (MALDA, LatentDirichletAllocation)
        )
        ours = [n for n in ours if (name, n) != ("perplexity", "method")]
        assert ours == theirs


@pytest.mark.parametrize(("cls", "twin"), NETWORKS)
def test_networks_are_those_of_scikit_learn(cls, twin):
    """But for the way to share what is learnt, for modules, and for L-BFGS."""
    ours, theirs = (inspect.signature(c).parameters for c in (cls, twin))
    assert set(ours) - set(theirs) - {"class_weight"} == {
        "module",
        "n_ranks",
        "strategy",
    }
    assert ("class_weight" in ours) == (cls is MPCAClassifier)
    # scikit-learn 1.7 brought losses for regression; `max_fun` is for L-BFGS.
    assert set(theirs) - set(ours) <= {"loss", "max_fun"}
    for name in set(ours) & set(theirs):
        assert ours[name].default == theirs[name].default, name
    ours, theirs = (
        {name for name in dir(c) if not name.startswith("_")} for c in (cls, twin)
    )
    assert theirs <= ours
    assert ours - theirs <= {
        "save_onnx",
        "save_safetensors",
        "set_callbacks",
        "state_dict",
        "to_module",
        "to_sklearn",
    }
    for method in ("fit", "partial_fit", "score", "predict"):
        parameters = [
            list(inspect.signature(getattr(c, method)).parameters) for c in (cls, twin)
        ]
        if method == "fit":  # named as in scikit-learn's gradient boosting
            assert parameters[0][-3:] == ["X_val", "y_val", "sample_weight_val"]
            del parameters[0][-3:]
        assert parameters[0] == parameters[1], method


OBJECTS = [Exchange, Gradients, Models]
OBJECTS += [schedules.Cyclic, schedules.Dynamic, schedules.Priority, schedules.Random]


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_for_parameters_are_like_estimators(kind):
    """Documented, with a range for each parameter, and nothing but stored."""
    names = arguments(kind.__init__)
    assert documented(kind.__doc__, "Parameters") == names
    assert set(kind._parameter_constraints) == names
    kind().check()  # the defaults are in their ranges
    assert repr(kind()) == f"{kind.__name__}()"
    markers = {name: object() for name in names}
    held = kind(**markers)
    assert held.get_params() == markers
    held.set_params(**dict.fromkeys(names, 1))
    assert clone(held).get_params() == dict.fromkeys(names, 1)


def test_signatures_stay_short():
    lengths = {cls.__name__: len(arguments(cls.__init__)) for cls in ESTIMATORS}
    assert max(lengths.values()) <= 26, lengths


def test_constructor_only_stores():
    marker = object()
    for cls in [*ESTIMATORS, *PARAMETERS]:
        names = set(inspect.signature(cls).parameters)
        model = cls(**dict.fromkeys(names, marker))
        assert vars(model) == dict.fromkeys(names, marker)
