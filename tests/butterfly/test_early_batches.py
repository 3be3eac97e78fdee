"""Rows of the next pass, picked while the last weights of a pass are under way."""

import numpy as np
import pytest

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly import _agent, _steps
from dask_ma.butterfly._rows import EarlyBatches


def passes(made):
    """Makes passes of two batches each, and notes which ones are begun."""

    def make(number):
        made.append(number)
        yield [f"{number}, first"]
        yield [f"{number}, second"]

    return make


@pytest.mark.parametrize("is_early", [True, False])
def test_the_next_pass_is_begun_at_the_end_of_one(is_early):
    made = []
    early = EarlyBatches(3, is_early=is_early)
    for number in range(3):
        batches = early.of_pass(number, passes(made))
        assert [next(batches), next(batches)] == [
            [f"{number}, first"],
            [f"{number}, second"],
        ]
        assert made == list(range(number + 1))
        assert next(batches, None) is None
        # No pass comes after the last one.
        n_begun = number + 2 if is_early and number < 2 else number + 1
        assert made == list(range(n_begun))


def test_another_pass_than_the_next_one_begins_anew():
    made = []
    early = EarlyBatches(9, is_early=True)
    list(early.of_pass(0, passes(made)))
    assert list(early.of_pass(4, passes(made))) == [["4, first"], ["4, second"]]
    assert made == [0, 1, 4, 5]


def test_a_pass_without_batches():
    early = EarlyBatches(9, is_early=True)
    assert list(early.of_pass(0, lambda number: iter(()))) == []
    assert list(early.of_pass(1, passes([]))) == [["1, first"], ["1, second"]]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_rows_are_picked_while_the_last_weights_travel(monkeypatch, binary, n_ranks):
    """Ranks that have to wait pick the first rows of the next pass before they do."""
    events = {rank: [] for rank in range(n_ranks)}
    start_mixing, pass_generator = _steps.start_mixing, _agent.pass_generator

    def started(group, *args):
        finish = start_mixing(group, *args)

        def finished():
            events[group.rank].append("mixed")
            return finish()

        return finished

    def generator(context, n_passes):
        events[context.group.rank].append(n_passes)
        return pass_generator(context, n_passes)

    monkeypatch.setattr(_steps, "start_mixing", started)
    monkeypatch.setattr(_agent, "pass_generator", generator)
    params = {"max_iter": 3, "tol": None, "refine": None, "mixing_period": 1000}
    ButterflySGDClassifier(n_ranks=n_ranks, random_state=0, **params).fit(*binary)
    for noted in events.values():
        passes = [event for event in noted if event != "mixed"]
        assert passes == [0, 1, 2]
        last = len(noted) - 1 - noted[::-1].index("mixed")
        assert last == len(noted) - 1
        # The last exchange of the first pass is finished after or before the second.
        begins = noted.index(1)
        n_of_first = noted[:begins].count("mixed")
        n_steps = noted.count("mixed") // 3
        assert n_of_first == (n_steps if n_ranks == 1 else n_steps - 1)


@pytest.mark.parametrize("mixing", ["butterfly", "allreduce", "periodic"])
def test_early_rows_change_nothing(monkeypatch, binary, mixing):
    params = {"max_iter": 4, "tol": None, "refine": None, "mixing": mixing}
    model = ButterflySGDClassifier(n_ranks=3, random_state=0, **params)
    coef = model.fit(*binary).coef_.copy()
    monkeypatch.setattr(
        _agent, "EarlyBatches", lambda n, is_early: EarlyBatches(n, is_early=False)
    )
    np.testing.assert_array_equal(model.fit(*binary).coef_, coef)
