"""Kinds of bad input, and what is to become of each."""

from bad_input._cases import GOOD, Call, Case, Expected
from bad_input._table import CASES, TOPICS
from bad_input._world import CONTAINERS, ESTIMATORS, Box, good_rows, learned

__all__ = [
    "CASES",
    "CONTAINERS",
    "ESTIMATORS",
    "GOOD",
    "TOPICS",
    "Box",
    "Call",
    "Case",
    "Expected",
    "good_rows",
    "learned",
]
