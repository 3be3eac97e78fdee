"""Losses of linear models by name, and those that an estimator can work with."""

from __future__ import annotations

from typing import Any

from dask_ma.kernels import LOSSES, Loss, MarginLoss, make_loss

__all__: list[str] = []


def as_named(loss: str | Loss, epsilon: float) -> dict[str, Any]:
    """Parameters `loss` and `epsilon` of a fit; what has a name goes by it.

    scikit-learn's compiled loop knows the names.
    """
    for name, kind in LOSSES.items():
        if type(loss) is kind:
            return {"loss": name, "epsilon": getattr(loss, "epsilon", epsilon)}
    return {"loss": loss, "epsilon": epsilon}


def loss_name(loss: str | Loss) -> str | Loss:
    """The name of a loss; the loss itself where it has none."""
    name: str | Loss = as_named(loss, 0.0)["loss"]
    return name


def has_optimum(loss: str | Loss) -> bool:
    """Whether a refinement can go to the optimum, which is zero for "perceptron"."""
    return make_loss(loss).is_smoothed


def check_loss(estimator: Any) -> None:
    """Refuse a loss that the estimator cannot work with.

    Parameters
    ----------
    estimator : LinearEstimator
        With the parameters `loss` and `refine`.

    Raises
    ------
    ValueError
        If the loss has several outputs, is one of classes for a regressor, or lacks
        what the refinement that is asked for needs.
    """
    from sklearn.base import is_classifier  # no rank needs it

    loss, name = estimator.loss, type(estimator).__name__
    if not isinstance(loss, Loss):
        return
    if loss.n_outputs != 1:
        raise ValueError(
            f"loss of {name} must be of one output, which each class has of its own; "
            f"got {loss!r} with {loss.n_outputs}"
        )
    if isinstance(loss, MarginLoss) and not is_classifier(estimator):
        raise ValueError(f"loss of {name} must be for numbers; {loss!r} is for classes")
    if estimator.refine == "newton" and not loss.has_curvature:
        raise ValueError(
            f"refine='newton' needs second derivatives of the loss; {loss!r} has no "
            "method curvature. Define it, or use refine='lbfgs' or refine='auto'"
        )
    if estimator.refine in ("newton", "lbfgs") and not loss.is_smoothed:
        raise ValueError(
            f"refine={estimator.refine!r} needs a loss that is smooth, or has a smooth "
            f"version; is_smoothed of {loss!r} is False. Use refine='auto' or None"
        )
