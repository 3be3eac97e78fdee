"""Combinations in which a parameter cannot act, and what a fit says of it then."""

from __future__ import annotations

from typing import Any, NamedTuple

from dask_ma.ma import Gradients, Models
from dask_ma.mpca import Torch
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange


class Case(NamedTuple):
    """A parameter that cannot act.

    Attributes
    ----------
    estimators : tuple of str
    name : str
        The parameter.
    value : object
        Another value than the default.
    others : dict
        The combination.
    reasons : tuple of str
        Parameters that the message has to name.
    outcome : str
        "raises", "warns" or, for what is exempt, why nothing is said.
    """

    estimators: tuple[str, ...]
    name: str
    value: Any
    others: dict[str, Any]
    reasons: tuple[str, ...]
    outcome: str


_MASGD = ("MASGDClassifier", "MASGDRegressor")
_BUTTERFLY = ("ButterflySGDClassifier", "ButterflySGDRegressor")
_SGD = _MASGD + _BUTTERFLY
_MPCA = ("MPCAClassifier", "MPCARegressor")
_SFB = ("SFBLogisticRegression",)
_METRIC = ("SFBMetricLearner",)
_SCHMP = ("SchMPLasso", "SchMPLogisticRegression")
_CV = ("SchMPLassoCV",)
_MALDA = ("MALDA",)
_ATOMS = ("SFBDictionaryLearning",)
_GIBBS = ("SchMPLDA",)
_MF = ("SchMPMatrixFactorization",)


def warns(
    estimators: tuple[str, ...], name: str, value: Any, *reasons: str, **others: Any
) -> Case:
    """A case in which scikit-learn's estimator goes on without a word."""
    return Case(estimators, name, value, others, reasons, "warns")


def raises(
    estimators: tuple[str, ...], name: str, value: Any, *reasons: str, **others: Any
) -> Case:
    """A case that only this library has."""
    return Case(estimators, name, value, others, reasons, "raises")


_ONLY_REFINED = {"max_iter": 0, "refine": "lbfgs"}
_DEFAULT_NETWORK = {"hidden_layer_sizes": (100,)}
_FACTORS = {"communication": Exchange("factors")}
_BATCH = {
    "learning_method": "batch",
    "batch_size": "auto",
    "local_batch_size": "auto",
}

INACTIVE = [
    # Linear models by SGD
    warns(_MASGD + _SFB, "l1_ratio", 0.7, "penalty"),
    warns(_MASGD + _SFB, "l1_ratio", 0.7, "penalty", penalty="l1"),
    warns(_MASGD, "l1_ratio", 0.7, "penalty", penalty=None),
    warns(_MASGD + _SFB, "alpha", 0.1, "penalty", penalty=None),
    warns(_MASGD, "alpha", 0.1, "penalty", penalty=None, **_ONLY_REFINED),
    warns(_SGD, "epsilon", 0.7, "loss"),
    warns(_SGD + _SFB + _MPCA, "validation_fraction", 0.4, "early_stopping"),
    warns(_MASGD, "eta0", 0.3, "learning_rate"),
    warns(_MASGD, "eta0", 0.3, "learning_rate", learning_rate="optimal"),
    raises(
        ("MASGDClassifier",),
        "eta0",
        0.3,
        "learning_rate",
        "paradigm",
        paradigm="gradient",
    ),
    warns(_MASGD, "eta0", 0.3, "max_iter", learning_rate="constant", **_ONLY_REFINED),
    warns(_MASGD, "power_t", 0.2, "learning_rate"),
    *(
        warns(_MASGD, "power_t", 0.2, "learning_rate", learning_rate=rate)
        for rate in ("constant", "optimal", "adaptive")
    ),
    raises(
        ("MASGDClassifier",),
        "power_t",
        0.2,
        "learning_rate",
        "paradigm",
        paradigm="gradient",
    ),
    warns(
        _MASGD,
        "power_t",
        0.2,
        "max_iter",
        learning_rate="invscaling",
        **_ONLY_REFINED,
    ),
    raises(_BUTTERFLY, "mixing_period", 2, "mixing", mixing="none"),
    warns(_SGD, "n_iter_no_change", 1, "tol"),
    warns(_SGD, "n_iter_no_change", 1, "tol", early_stopping=True),
    warns(_BUTTERFLY, "n_iter_no_change", 1, "tol", refine="newton"),
    warns(_MASGD, "n_iter_no_change", 1, "max_iter", tol=1e-3, **_ONLY_REFINED),
    raises(_MASGD, "shuffle", False, "paradigm", paradigm="gradient"),
    warns(_MASGD, "shuffle", False, "max_iter", **_ONLY_REFINED),
    raises(_MASGD, "local_epochs", 2, "paradigm", paradigm="gradient"),
    warns(_MASGD, "learning_rate", "constant", "max_iter", **_ONLY_REFINED),
    warns(_MASGD, "tol", 0.1, "max_iter", **_ONLY_REFINED),
    warns(_MASGD, "average", True, "max_iter", **_ONLY_REFINED),
    raises(_MASGD, "local_epochs", 2, "max_iter", **_ONLY_REFINED),
    raises(_MASGD, "paradigm", "gradient", "max_iter", **_ONLY_REFINED),
    raises(
        _MASGD,
        "paradigm__evaluate_every",
        2,
        "max_iter",
        paradigm=Models(),
        **_ONLY_REFINED,
    ),
    *(
        raises(classes, name, value, "refine", *reasons, **others)
        for name, value in (("refine_max_iter", 2), ("refine_tol", 1e-9))
        for classes, reasons, others in (
            (_SGD, (), {"refine": None}),
            (_SGD, ("tol",), {}),
            (_SGD, ("early_stopping",), {"early_stopping": True, "tol": 1e-3}),
            (_MASGD, ("paradigm",), {"paradigm": "gradient", "tol": 1e-3}),
            (_BUTTERFLY, ("mixing",), {"mixing": "none", "tol": 1e-3}),
            (
                ("MASGDClassifier",),
                ("learning_rate",),
                {"learning_rate": "pa1", "loss": "hinge", "tol": 1e-3},
            ),
            (
                ("MASGDClassifier",),
                ("loss",),
                {"loss": "perceptron", "tol": 1e-3},
            ),
        )
    ),
    # Factors
    *(
        raises(_SFB, name, value, "solver", solver="sdca")
        for name, value in (
            ("eta0", 0.3),
            ("learning_rate", "constant"),
            ("power_t", 0.2),
        )
    ),
    raises(_ATOMS, "eta0", 0.1, "solver"),
    raises(_ATOMS, "merge_every", 2, "communication", communication="factors"),
    raises(_ATOMS, "staleness", 1, "communication"),
    warns(_ATOMS, "transform_n_nonzero_coefs", 2, "transform_algorithm"),
    warns(
        _ATOMS,
        "transform_alpha",
        0.5,
        "transform_algorithm",
        transform_algorithm="omp",
    ),
    *(
        warns(
            _ATOMS,
            "transform_max_iter",
            7,
            "transform_algorithm",
            transform_algorithm=name,
        )
        for name in ("omp", "threshold")
    ),
    raises(
        _ATOMS,
        "merge_every",
        2,
        "communication",
        communication="outputs",
        solver="sgd",
    ),
    warns(_SFB, "power_t", 0.2, "learning_rate"),
    warns(_SFB, "power_t", 0.2, "learning_rate", learning_rate="constant"),
    warns(_SFB, "power_t", 0.2, "learning_rate", "penalty", learning_rate="optimal"),
    raises(
        _SFB, "n_iter_no_change", 1, "solver", "early_stopping", solver="sdca", tol=0.1
    ),
    warns(_SFB, "n_iter_no_change", 1, "tol", early_stopping=True),
    warns(
        _SFB, "n_iter_no_change", 1, "learning_rate", "tol", learning_rate="constant"
    ),
    raises(
        _SFB,
        "n_iter_no_change",
        1,
        "learning_rate",
        "penalty",
        "refine",
        learning_rate="constant",
        solver="sgd",
        tol=1e-3,
    ),
    raises(
        _SFB,
        "communication__relay",
        False,
        "communication__broadcast",
        solver="sgd",
        n_ranks=3,
        **_FACTORS,
    ),
    raises(
        _SFB,
        "communication__averaging",
        False,
        "communication__staleness",
        "communication__broadcast",
        solver="sgd",
        n_ranks=3,
        **_FACTORS,
    ),
    # Learnt distances
    raises(_METRIC, "n_components", 2, "metric_form", metric_form="diagonal"),
    raises(_METRIC, "margin", 2.0, "loss"),
    raises(_METRIC, "push_weight", 2.0, "loss", loss="logistic"),
    raises(_METRIC, "penalty", "l1", "alpha", optimizer="sgd"),
    raises(_METRIC, "validation_fraction", 0.4, "early_stopping"),
    raises(_METRIC, "n_iter_no_change", 1, "tol"),
    raises(
        _METRIC,
        "communication__relay",
        False,
        "communication__broadcast",
        n_ranks=3,
        optimizer="sgd",
        **_FACTORS,
    ),
    raises(
        _METRIC,
        "communication__averaging",
        False,
        "communication__staleness",
        "communication__broadcast",
        n_ranks=3,
        optimizer="sgd",
        **_FACTORS,
    ),
    # Scheduled model parallelism
    raises(_SCHMP, "polish", False, "schedule"),
    raises(
        _SCHMP,
        "schedule__n_schedulers",
        2,
        "layout",
        layout="columns",
        n_ranks=2,
        schedule=schedules.Random(),
        max_iter=2,
    ),
    warns(_CV, "eps", 0.1, "alphas", alphas=[0.5, 0.1]),
    raises(_MF, "eta0", 0.3, "solver"),
    raises(_MF, "batch_size", 9, "solver"),
    raises(_MF, "confidence", 3.0, "feedback"),
    raises(_MF, "als_solver", "cg", "solver", solver="sgd"),
    raises(_MF, "cg_steps", 2, "solver", solver="sgd"),
    raises(_MF, "cg_steps", 2, "positive", positive=True),
    raises(_MF, "cg_steps", 2, "als_solver", als_solver="cholesky"),
    raises(_MF, "validation_fraction", 0.4, "early_stopping"),
    raises(_MF, "n_iter_no_change", 1, "early_stopping"),
    raises(_MF, "fit_bias", False, "feedback", feedback="implicit"),
    raises(_MF, "clip", False, "feedback", feedback="implicit"),
    raises(_MF, "standardize", False, "feedback", feedback="implicit"),
    # Topics
    *(
        warns(_MALDA, name, value, "learning_method", **_BATCH)
        for name, value in (
            ("batch_size", 6),
            ("learning_decay", 0.6),
            ("learning_offset", 2.0),
        )
    ),
    raises(_MALDA, "local_batch_size", 6, "learning_method", **_BATCH),
    raises(_MALDA, "paradigm", "gradient", "learning_method", **_BATCH),
    raises(_MALDA, "local_batch_size", 6, "paradigm", paradigm="gradient"),
    raises(
        _MALDA,
        "paradigm__batch_fraction",
        0.5,
        "batch_size",
        paradigm=Gradients(),
        local_batch_size="auto",
    ),
    raises(_MALDA, "paradigm__evaluate_every", 2, "evaluate_every", paradigm=Models()),
    warns(_MALDA, "perp_tol", 5.0, "evaluate_every"),
    raises(_GIBBS, "n_proposals", 3, "sampler", sampler="exact"),
    raises(_GIBBS, "burn_in", 2, "n_samples"),
    raises(_GIBBS, "thin", 2, "n_samples"),
    raises(_GIBBS, "learn_every", 2, "doc_topic_prior", "topic_word_prior"),
    # Networks
    warns(_MPCA, "momentum", 0.2, "solver"),
    warns(_MPCA, "nesterovs_momentum", False, "solver"),
    warns(_MPCA, "beta_1", 0.2, "solver", solver="sgd"),
    warns(_MPCA, "beta_2", 0.2, "solver", solver="sgd"),
    warns(_MPCA, "epsilon", 0.2, "solver", solver="sgd"),
    warns(_MPCA, "power_t", 0.2, "learning_rate"),
    warns(_MPCA, "power_t", 0.2, "learning_rate", learning_rate="cosine"),
    warns(_MPCA, "learning_rate", "adaptive", "tol", solver="sgd", max_iter=20),
    warns(_MPCA, "n_iter_no_change", 1, "tol", max_iter=20),
    warns(_MPCA, "activation", "tanh", "hidden_layer_sizes", hidden_layer_sizes=()),
]


def _of_module() -> list[Case]:
    """Cases of modules; without torch there are none to try."""
    try:
        from torch import manual_seed, nn
    except ModuleNotFoundError:
        return []
    manual_seed(0)
    chosen = {"module": nn.Linear(6, 3), **_DEFAULT_NETWORK}
    values = {
        "hidden_layer_sizes": (4,),
        "activation": "tanh",
        "alpha": 0.1,
        "momentum": 0.2,
        "nesterovs_momentum": False,
        "beta_1": 0.2,
        "beta_2": 0.2,
        "epsilon": 0.2,
        "power_t": 0.2,
        "solver": "sgd",
    }
    found = [
        raises(("MPCAClassifier",), name, value, "module", **chosen)
        for name, value in values.items()
    ]
    chosen["module"] = nn.Linear(6, 1)
    found += [
        raises(("MPCARegressor",), name, value, "module", **chosen)
        for name, value in values.items()
    ]
    own_step = {"module__optimizer__lr": 0.1, **chosen}
    rate = "learning_rate_init", 0.1, "module__optimizer__lr"
    found.append(raises(("MPCARegressor",), *rate, **own_step))
    own_step["module"] = nn.Linear(6, 3)
    found.append(raises(("MPCAClassifier",), *rate, **own_step))
    for name, n_outputs in (("MPCAClassifier", 3), ("MPCARegressor", 1)):
        chosen = {"module": nn.Linear(6, n_outputs), **_DEFAULT_NETWORK}
        found += _of_training((name,), chosen)
    return found


def _of_training(estimators: tuple[str, ...], chosen: dict[str, Any]) -> list[Case]:
    """Cases of parameters that say how a module is trained."""
    scheduler = "module__lr_scheduler"
    bare = chosen["module"]
    chosen = {**chosen, "module": Torch(bare)}
    by_torch = {**chosen, "module": Torch(bare, lr_scheduler="ConstantLR")}
    placed = {**chosen, "module": Torch(bare, device="cpu")}
    return [
        raises(estimators, "module__ranks_per_gpu", 2, "module__device", **placed),
        raises(estimators, "learning_rate", "cosine", scheduler, **by_torch),
        raises(estimators, f"{scheduler}_params", {"factor": 1.0}, scheduler, **chosen),
        raises(estimators, f"{scheduler}_step", "batch", scheduler, **chosen),
        raises(
            estimators,
            "module__transform_scope",
            "sample",
            "module__train_transform",
            "module__eval_transform",
            **chosen,
        ),
    ]


INACTIVE += _of_module()


def exempt(
    estimators: tuple[str, ...], name: str, value: Any, why: str, **others: Any
) -> Case:
    """A case in which nothing is said."""
    return Case(estimators, name, value, others, (), why)


_SEED = "scripts set every random_state, whether something is drawn or not"
_TWICE = "it asks for what takes place anyway"
_RANKS = "the same program runs on one rank and on many"
_LATER = "the same estimator may be used with another method"
_WEIGHT = "0 is a weight like others: the term is there, and counts nothing"

EXEMPT = [
    exempt(_SCHMP, "random_state", 1, _SEED),
    exempt(_SCHMP, "random_state", 1, _SEED, schedule="cyclic", max_iter=2),
    exempt(_MASGD, "random_state", 1, _SEED, paradigm="gradient"),
    exempt(_MASGD, "random_state", 1, _SEED, **_ONLY_REFINED),
    exempt(_SGD, "refine", None, _TWICE),
    exempt(_SGD, "refine", None, _TWICE, early_stopping=True, tol=1e-3),
    exempt(_SFB, "refine", False, _TWICE),
    exempt(_MASGD, "alpha", 0, _TWICE, penalty=None),
    exempt(
        ("MASGDClassifier",), "learning_rate", "optimal", _TWICE, paradigm="gradient"
    ),
    exempt(_MASGD, "paradigm__aggregation", "driver", _RANKS, paradigm=Models()),
    exempt(_MASGD, "paradigm", Models("driver"), _RANKS, **_ONLY_REFINED),
    exempt(_BUTTERFLY, "mixing", "allreduce", _RANKS),
    exempt(_BUTTERFLY, "mixing_period", 2, _RANKS, batch_size=5),
    exempt(_MPCA, "strategy", "synchronous", _RANKS),
    exempt(_MPCA, "strategy__n_phases", 2, _RANKS, strategy="mpca"),
    exempt(_SCHMP + _CV, "layout", "rows", _RANKS),
    exempt(_MALDA, "mixing", "butterfly", _RANKS),
    exempt(_MALDA, "total_samples", 500, _LATER),
    exempt(_GIBBS, "synchronize", "iteration", _RANKS),
    exempt(_GIBBS, "warm_start", True, _LATER),
    exempt(_MASGD, "penalty", "l1", _WEIGHT, alpha=0, learning_rate="constant"),
    exempt(
        _MASGD,
        "l1_ratio",
        0.7,
        _WEIGHT,
        alpha=0,
        learning_rate="constant",
        penalty="elasticnet",
    ),
    exempt(_MPCA, "nesterovs_momentum", False, _WEIGHT, solver="sgd", momentum=0),
    exempt(_MALDA, "learning_offset", 2.0, _WEIGHT, learning_decay=0),
]
