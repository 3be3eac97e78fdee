"""Rules of parameters of several linear estimators that cannot act."""

from __future__ import annotations

from dask_ma._settings import Inactive, unless

L1_RATIO = Inactive(
    ("l1_ratio",), unless("penalty", "elasticnet"), "set penalty='elasticnet'"
)
EPSILON = Inactive(
    ("epsilon",),
    unless(
        "loss", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"
    ),  # the only ones that look at it
    "take a loss with a threshold, such as 'huber'",
)
HELD_OUT = Inactive(
    ("validation_fraction",),
    unless("early_stopping", True),
    "set early_stopping=True",
)
