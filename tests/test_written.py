"""How often parameters are written: once in each place where they have to be."""

from __future__ import annotations

import pytest
from written import ESTIMATORS, places

# Signature, docstring, assignment, range, and a field of what ranks are sent.
MOST = 5


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_parameters_are_written_at_most_five_times(estimator):
    found = places(estimator)
    # Four of the places are those of any estimator of scikit-learn.
    assert {name: there for name, there in found.items() if len(there) < 4} == {}
    assert {name: there for name, there in found.items() if len(there) > MOST} == {}
