"""Parameters of topic models that have a part in what is tried."""

from __future__ import annotations

from typing import Any

from dask_ma.ma._paradigm import is_gradient

_OF_UPDATES = ("batch_size", "learning_decay", "learning_offset", "local_batch_size")


def acting(**params: Any) -> dict[str, Any]:
    """Parameters without those that a fit would refuse, or warn of, beside others."""
    idle: tuple[str, ...] = ()
    if params.get("learning_method") == "batch":
        idle = _OF_UPDATES
    elif is_gradient(params.get("paradigm", "model")):
        idle = ("local_batch_size",)
    if params.get("evaluate_every", -1) <= 0:
        idle += ("perp_tol",)
    return {name: value for name, value in params.items() if name not in idle}
