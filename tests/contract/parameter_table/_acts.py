"""Two settings of every parameter under which fits differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.ma import Gradients, Models
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange


class Acts(NamedTuple):
    """What to set a parameter to, and where the difference is to be seen.

    Attributes
    ----------
    value : object
        Another value than the default, or than that in `BASE`.
    others : dict
        What other parameters have to be for it to act.
    sees : str
        Field of `Seen` that differs; "error" for a value that a fit refuses.
    n_fits : int
        How often to fit.
    method : str
        "fit" or "partial_fit".
    """

    value: Any
    others: dict[str, Any]
    sees: str = "model"
    n_fits: int = 1
    method: str = "fit"


def acts(
    value: Any,
    sees: str = "model",
    *,
    n_fits: int = 1,
    method: str = "fit",
    **others: Any,
) -> Acts:
    """An entry of the table."""
    return Acts(value, others, sees, n_fits, method)


_LONG = {"max_iter": 60}
_SHARED = {
    "alpha": acts(0.1),
    "fit_intercept": acts(False),
    "max_iter": acts(5),
    "verbose": acts(2, "output"),
    "random_state": acts(1),
    "shuffle": acts(False),
    "early_stopping": acts(True),
    "validation_fraction": acts(0.4, early_stopping=True),
    "warm_start": acts(True, n_fits=2),
}
_SGD = {
    **_SHARED,
    "tol": acts(0.2, "n_iter", **_LONG),
    "epsilon": acts(0.5, loss="huber"),
    "n_iter_no_change": acts(2, "n_iter", tol=1e-2, refine=None, **_LONG),
    "average": acts(True),
    "refine": acts("newton", "n_iter"),
    "refine_max_iter": acts(2, "n_iter", refine="lbfgs", loss="huber"),
    "refine_tol": acts(1e-9, "n_iter", refine="lbfgs", loss="huber"),
    "eta0": acts(0.3, learning_rate="invscaling"),
}
_MASGD = {
    **_SGD,
    "penalty": acts("l1"),
    "l1_ratio": acts(0.9, penalty="elasticnet"),
    "learning_rate": acts("constant"),
    "power_t": acts(0.1, learning_rate="invscaling"),
    "local_epochs": acts(2),
    "paradigm": acts("gradient"),
    "paradigm__batch_fraction": acts(0.5, paradigm=Gradients()),
    "paradigm__aggregation": acts("driver", "messages", n_ranks=3, paradigm=Models()),
    "paradigm__evaluate_every": acts(2, "history", local_epochs=1, paradigm=Models()),
    "n_ranks": acts(3),
}
_BUTTERFLY = {
    **_SGD,
    "batch_size": acts(5),
    "mixing": acts("allreduce", n_ranks=4),
    "mixing_period": acts(3, n_ranks=2, batch_size=5),
    "learning_rate": acts("invscaling"),
    "preconditioner": acts(None),
    "n_ranks": acts(2),
}
_CLASSIFIER = {"loss": acts("squared_hinge"), "class_weight": acts({0: 3.0})}
_REGRESSOR = {"loss": acts("huber")}
_TWO = {"n_ranks": 2}
_FREE = {**_TWO, "strategy": "mpca"}  # ranks that train without waiting
_BY_SGD = {"solver": "sgd"}
_DEFAULT_NETWORK = {"hidden_layer_sizes": (100,)}
_MPCA = {
    **{name: entry for name, entry in _SHARED.items() if name != "fit_intercept"},
    "hidden_layer_sizes": acts((4,)),
    "activation": acts("tanh"),
    "solver": acts("sgd"),
    "alpha": acts(1.0),
    "batch_size": acts(7),
    "learning_rate": acts("cosine"),
    "learning_rate_init": acts(0.01),
    "power_t": acts(0.1, learning_rate="invscaling", **_BY_SGD),
    "tol": acts(1.0, "n_iter", **_LONG),
    "shuffle": acts(False, batch_size=8),
    "momentum": acts(0.2, **_BY_SGD),
    "nesterovs_momentum": acts(False, **_BY_SGD),
    "beta_1": acts(0.2),
    "beta_2": acts(0.5),
    "epsilon": acts(0.1),
    "n_iter_no_change": acts(2, "n_iter", tol=1.0, **_LONG),
    "strategy": acts("easgd", "strategy", **_TWO),
    "strategy__n_phases": acts(2, "strategy", **_FREE),
    "strategy__extrapolation": acts(1.0, "strategy", **_FREE),
    "strategy__smoothing": acts(0.2, "strategy", **_FREE),
    "strategy__penalty": acts(0.3, "strategy", **_FREE),
    "strategy__penalty_form": acts("loss", "strategy", **_FREE),
    "strategy__blending": acts(0.5, "strategy", **_FREE),
    "strategy__weighting": acts("uniform", "strategy", **_FREE),
    "strategy__compression": acts("int8", strategy="synchronous", batch_size=4, **_TWO),
    "strategy__period": acts(2, strategy="synchronous", batch_size=4, **_TWO),
    "strategy__elasticity": acts(0.2, "strategy", strategy="easgd", **_TWO),
    "n_ranks": acts(2, strategy="synchronous"),
}
_FEW_ROUNDS = {"max_iter": 2, "tol": 0}
_SCHEDULED = {"schedule": schedules.Dynamic(16), **_FEW_ROUNDS}
_DEPENDENT = {
    "schedule": schedules.Dynamic(16, 0.2, pipeline_depth=3),
    **_FEW_ROUNDS,
}
_BY_CHANGE = {
    "schedule": schedules.Dynamic(16, priority="change", pipeline_depth=3),
    **_FEW_ROUNDS,
}
_PATH = {
    "l1_ratio": acts(0.5),
    "fit_intercept": acts(False),
    "positive": acts(True),
    "feature_weights": acts(np.linspace(0.5, 2, 60)),
    "layout": acts("columns", "messages", layout="rows", n_ranks=3),
    "verbose": acts(2, "output"),
    "n_ranks": acts(3, "messages"),
}
_SCHMP = {
    **_PATH,
    "alpha": acts(0.05),
    "max_iter": acts(1, "n_iter", tol=1e-12),
    "tol": acts(1.0, "n_iter"),
    "warm_start": acts(True, "n_iter", n_fits=2),
    "schedule": acts("cyclic", max_iter=2),
    "schedule__pipeline_depth": acts(3, "history", **_SCHEDULED),
    "schedule__n_candidates": acts(4, "history", **_SCHEDULED),
    "schedule__dependency_threshold": acts(0.1, "history", **_SCHEDULED),
    "schedule__priority": acts("change", "history", **_SCHEDULED),
    "schedule__n_schedulers": acts(2, "history", n_ranks=2, **_SCHEDULED),
    "schedule__floor": acts(0.9, "history", **_BY_CHANGE),
    "schedule__new": acts(0.1, "history", **_SCHEDULED),
    "schedule__n_rows": acts(10, "history", **_DEPENDENT),
    "schedule__centered": acts(False, "history", **_DEPENDENT),
    "schedule__check_pending": acts(False, "history", **_DEPENDENT),
    "polish": acts(False, "history", **_SCHEDULED),
    "random_state": acts(1, "history", **_SCHEDULED),
}
_FACTORS = {"communication": Exchange("factors")}
_SFB = {
    **_SHARED,
    "penalty": acts("l1"),
    "l1_ratio": acts(0.9, penalty="elasticnet"),
    "solver": acts("sgd"),
    "tol": acts(0.5, "n_iter", **_LONG),
    "refine": acts(False, penalty="l1", tol=1e-6, **_LONG),
    "batch_size": acts(5, solver="sgd"),
    "eta0": acts(0.3),
    "learning_rate": acts("invscaling", solver="sgd"),
    "power_t": acts(0.9, learning_rate="invscaling"),
    # Updates are applied as they arrive: no two fits are alike.
    "communication__staleness": acts(
        2, solver="sgd", batch_size=4, n_ranks=3, **_FACTORS
    ),
    "communication__broadcast": acts(1, "messages", n_ranks=4, **_FACTORS),
    "communication__relay": acts(
        False,
        "messages",
        communication=Exchange("factors", broadcast=1),
        solver="sgd",
        n_ranks=4,
    ),
    "communication__averaging": acts(
        False,
        "messages",
        communication=Exchange("factors", broadcast=1),
        solver="sgd",
        n_ranks=4,
    ),
    "communication__content": acts("server", "messages", n_ranks=3, **_FACTORS),
    "communication": acts("server", "messages", communication="factors", n_ranks=3),
    "communication__compression": acts(0.5, solver="sgd", n_ranks=2, **_FACTORS),
    "communication__wire_dtype": acts("float32", solver="sgd", n_ranks=2, **_FACTORS),
    "class_weight": acts("balanced"),
    "n_iter_no_change": acts(1, "n_iter", early_stopping=True, tol=0.5, **_LONG),
    "n_ranks": acts(3),
}
_MALDA = {
    "n_components": acts(4),
    "doc_topic_prior": acts(0.9),
    "topic_word_prior": acts(0.9),
    "learning_method": acts("batch", batch_size="auto", local_batch_size="auto"),
    "word_weights": acts("variational"),
    "learning_decay": acts(0.6),
    "learning_offset": acts(2.0),
    "max_iter": acts(4),
    "batch_size": acts(6),
    "local_batch_size": acts(20),
    "evaluate_every": acts(1, "history"),
    "total_samples": acts(500, method="partial_fit"),
    "perp_tol": acts(0.05, "n_iter", evaluate_every=1, max_iter=20),
    "validation_fraction": acts(0.2),
    "mean_change_tol": acts(0.1),
    "max_doc_update_iter": acts(2),
    "paradigm": acts("gradient", local_batch_size="auto"),
    "paradigm__aggregation": acts("driver", "messages", n_ranks=3, paradigm=Models()),
    "mixing": acts("butterfly", n_ranks=4),
    "dtype": acts("float64"),
    "components_init": acts(np.random.default_rng(0).gamma(2.0, 1.0, (3, 8))),
    "verbose": acts(2, "output"),
    "random_state": acts(1),
    "n_ranks": acts(3),
}
_ATOMS = {
    "n_components": acts(4),
    "alpha": acts(0.3),
    "max_iter": acts(2),
    "batch_size": acts(20),
    "solver": acts("sgd"),
    "eta0": acts(0.1, solver="sgd"),
    "fit_algorithm": acts("lars"),
    "positive_code": acts(True),
    "positive_dict": acts(True),
    "resample_unused": acts(False, n_components=20, alpha=4.0),
    "dict_init": acts(np.eye(3, 6)),
    "transform_algorithm": acts("fista"),
    "transform_alpha": acts(1.0),
    "transform_n_nonzero_coefs": acts(2, transform_algorithm="omp"),
    "transform_max_iter": acts(1, n_components=12, transform_alpha=1e-4),
    "split_sign": acts(True),
    "communication": acts("factors", "messages", n_ranks=3),
    "merge_every": acts(2, n_ranks=2, batch_size=5),
    "staleness": acts(1, n_ranks=2, batch_size=5, communication="factors"),
    "shuffle": acts(False),
    "tol": acts(0.5, "n_iter", max_iter=20),
    "max_no_improvement": acts(1, "n_iter", max_iter=30),
    "verbose": acts(2, "output"),
    "random_state": acts(1),
    "n_ranks": acts(3),
}

_GIBBS = {
    "n_components": acts(4),
    "doc_topic_prior": acts(0.9),
    "topic_word_prior": acts(0.9),
    "sampler": acts("exact"),
    "n_proposals": acts(3),
    "max_iter": acts(5),
    "burn_in": acts(2, doc_topic_prior="auto", learn_every=1),
    "n_samples": acts(2, max_iter=14),
    "thin": acts(4, n_samples=2, max_iter=14),
    "learn_every": acts(2, doc_topic_prior="auto"),
    "evaluate_every": acts(1, "history"),
    "fractions": acts("raise", "error"),
    "synchronize": acts("iteration", n_ranks=3),
    "keep_tokens": acts(True),
    "mean_change_tol": acts(0.1),
    "max_doc_update_iter": acts(2),
    "init": acts("random", n_components=2, sampler="exact"),
    "components_init": acts(np.random.default_rng(0).gamma(2.0, 1.0, (3, 8))),
    "warm_start": acts(True, n_fits=2),
    "verbose": acts(2, "output"),
    "random_state": acts(1),
    "n_ranks": acts(3),
}

_STEPS = {"solver": "sgd"}
_FACTORIZATION = {
    "n_components": acts(3),
    "feedback": acts("implicit"),
    "solver": acts("sgd"),
    "alpha": acts(0.5),
    "weighted_alpha": acts(False),
    "standardize": acts(False),
    "confidence": acts(3.0, feedback="implicit"),
    "fit_bias": acts(False),
    "eta0": acts(0.3, **_STEPS),
    "batch_size": acts(9, **_STEPS),
    "max_iter": acts(4),
    "tol": acts(0.1, "n_iter", max_iter=60),
    "als_solver": acts("cholesky", als_solver="cg"),
    "cg_steps": acts(1),
    "positive": acts(True),
    "early_stopping": acts(True),
    "validation_fraction": acts(0.4, early_stopping=True),
    "n_iter_no_change": acts(1, "n_iter", early_stopping=True, max_iter=60),
    "cold_start": acts("nan"),
    "clip": acts(False, n_components=5, alpha=1e-4),
    "dtype": acts("float64"),
    "warm_start": acts(True, n_fits=2),
    "verbose": acts(2, "output"),
    "random_state": acts(1),
    "n_ranks": acts(3, **_STEPS),
}


_METRIC = {
    "n_components": acts(2),
    "metric_form": acts("diagonal", n_components=None),
    "loss": acts("logistic"),
    "margin": acts(2.0, loss="hinge"),
    "push_weight": acts(1.0, loss="hinge"),
    "init": acts("random"),
    "penalty": acts("l1", optimizer="sgd", alpha=0.01),
    "alpha": acts(0.1),
    "max_iter": acts(5),
    "tol": acts(0.2, "n_iter", max_iter=60),
    "batch_size": acts(16),
    "optimizer": acts("sgd"),
    "eta0": acts(0.3),
    "learning_rate": acts("constant"),
    "early_stopping": acts(True),
    "validation_fraction": acts(0.4, early_stopping=True),
    "n_iter_no_change": acts(1, "n_iter", tol=0.2, max_iter=60),
    "communication": acts("server", "messages", communication="factors", n_ranks=3),
    "communication__content": acts("server", "messages", n_ranks=3, **_FACTORS),
    "communication__staleness": acts(
        2, optimizer="sgd", batch_size=8, n_ranks=3, **_FACTORS
    ),
    "communication__broadcast": acts(
        1, "messages", optimizer="sgd", n_ranks=4, **_FACTORS
    ),
    "communication__relay": acts(
        False,
        "messages",
        optimizer="sgd",
        n_ranks=4,
        communication=Exchange("factors", broadcast=1),
    ),
    "communication__averaging": acts(
        False,
        "messages",
        optimizer="sgd",
        n_ranks=4,
        communication=Exchange("factors", broadcast=1),
    ),
    "communication__compression": acts(0.5, n_ranks=2, **_FACTORS),
    "communication__wire_dtype": acts("float64", "messages", n_ranks=2, **_FACTORS),
    "warm_start": acts(True, n_fits=2),
    "random_state": acts(1, batch_size=16),
    "verbose": acts(2, "output"),
    "n_ranks": acts(3, "messages"),
}


class Spoiler:
    """A callback that changes the module."""

    def on_batch_end(self, state: Any) -> None:
        for parameter in state.module.parameters():
            parameter.data.mul_(0.5)


def negated(rows: Any) -> Any:
    """A transform of which it is all the same how many rows it gets."""
    return -rows


def centred(rows: Any) -> Any:
    """A transform of which it is not."""
    return rows - rows.mean(0)


def doubled(graph: Any, inputs: Any) -> Any:
    """A compiler whose modules return twice what they should."""
    return lambda *values: [2 * value for value in graph.forward(*values)]


def _of_module(n_outputs: int, criterion: str) -> dict[str, Acts]:
    """Parameters of modules; without torch there are none to try."""
    try:
        from torch import manual_seed, nn
    except ModuleNotFoundError:
        return {}

    def make(bias: bool = True) -> Any:
        return nn.Linear(6, n_outputs, bias)

    manual_seed(0)
    chosen = {"module": nn.Linear(6, n_outputs), **_DEFAULT_NETWORK}
    scheduled = {"module__lr_scheduler": "ConstantLR", "batch_size": 7, **chosen}
    plain = {"module__optimizer": "SGD", **chosen}
    normalised = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, n_outputs))
    return {
        "module": acts(chosen["module"], **_DEFAULT_NETWORK),
        "module__module": acts(nn.Linear(6, n_outputs), **chosen),
        "module__module_params": acts({"bias": False}, **{**chosen, "module": make}),
        "module__criterion": acts(criterion, **chosen),
        "module__criterion_params": acts({"reduction": "sum"}, **chosen),
        "module__optimizer": acts("SGD", **chosen),
        "module__optimizer_params": acts({"lr": 0.5}, **chosen),
        "module__lr_scheduler": acts("ConstantLR", **chosen),
        "module__lr_scheduler_params": acts({"factor": 0.1}, **scheduled),
        "module__lr_scheduler_step": acts("batch", **scheduled),
        "module__clip_grad_norm": acts(0.1, **plain),
        "module__clip_grad_value": acts(0.01, **plain),
        "module__precision": acts("bf16", **chosen),
        "module__microbatch_size": acts(3, **{**chosen, "module": normalised}),
        "module__compile": acts({"backend": doubled}, **chosen),
        "module__callbacks": acts([Spoiler()], **chosen),
        "module__train_transform": acts(negated, **chosen),
        "module__eval_transform": acts(
            negated, "history", early_stopping=True, **chosen
        ),
        "module__transform_scope": acts(
            "sample", module__train_transform=centred, **chosen
        ),
        "module__prefetch": acts(2, "threads", **chosen),
        # This machine need not have a second device to see a difference on.
        "module__device": acts("nowhere", "error", **chosen),
        "module__ranks_per_gpu": acts(2, "gpus", **chosen),
    }


#: By the name of the estimator, and then of the parameter. That of an object which is
#: a parameter itself comes after two underscores.
ACTS: dict[str, dict[str, Acts]] = {
    "ButterflySGDClassifier": {**_BUTTERFLY, **_CLASSIFIER},
    "ButterflySGDRegressor": {**_BUTTERFLY, **_REGRESSOR},
    "MALDA": _MALDA,
    "MASGDClassifier": {**_MASGD, **_CLASSIFIER},
    "MASGDRegressor": {**_MASGD, **_REGRESSOR},
    "MPCAClassifier": {
        **_MPCA,
        **_of_module(3, "MultiMarginLoss"),
        "class_weight": acts("balanced"),
    },
    "MPCARegressor": {**_MPCA, **_of_module(1, "L1Loss")},
    "SFBDictionaryLearning": _ATOMS,
    "SFBLogisticRegression": _SFB,
    "SFBMetricLearner": _METRIC,
    "SchMPLDA": _GIBBS,
    "SchMPLasso": _SCHMP,
    "SchMPLassoCV": {
        **_PATH,
        "max_iter": acts(1, tol=1e-12),
        "tol": acts(0.3),
        "eps": acts(0.1),
        "alphas": acts(5),
        "cv": acts(4, "history"),
    },
    "SchMPMatrixFactorization": _FACTORIZATION,
    "SchMPLogisticRegression": {
        **{name: entry for name, entry in _SCHMP.items() if name != "positive"},
        "class_weight": acts({0: 3.0}),
        "polish": acts(
            False, "history", **{**_SCHEDULED, "schedule": schedules.Dynamic(4)}
        ),
    },
}
