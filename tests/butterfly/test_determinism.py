"""A seed, the blocks and the number of ranks decide the result, bit for bit."""

import dask.array as da
import numpy as np
import pytest

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly._state import RankState
from dask_ma.comm import LocalGroup
from dask_ma.engine import RankContext
from dask_ma.supervised import pass_generator

PARAMS = {"max_iter": 2, "tol": None, "random_state": 7, "batch_size": 8}
CASES = [
    ({"n_ranks": 4}, "binary"),
    ({"n_ranks": 4, "loss": "hinge", "preconditioner": None}, "multi"),
    ({"n_ranks": 4, "mixing": "periodic"}, "multi"),
    ({"n_ranks": 4, "mixing": "none"}, "binary"),
    ({"n_ranks": 3}, "binary"),
    ({"n_ranks": 7, "mixing": "allreduce"}, "multi"),
    ({"n_ranks": 4, "average": True, "eta0": 100.0}, "multi"),
    ({"n_ranks": 4, "loss": "squared_hinge", "early_stopping": True}, "multi"),
]


def digest(model):
    """All that must be the same."""
    objective = [record["objective"] for record in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.t_, objective


def fit_all(request, cases=CASES):
    models = []
    for params, name in cases:
        X, y = request.getfixturevalue(name)
        params = {**PARAMS, "batch_size": 15, **params}
        models.append(digest(ButterflySGDClassifier(**params).fit(X, y)))
    return models


def test_threads_and_clusters_agree(
    inproc_client, process_client, wide_client, request
):
    """Threads here, 4 workers here, 4 processes, and 2 processes of several ranks."""
    here = fit_all(request)
    # Half of the cases where workers share a process, all where none do.
    every, half, rest = slice(None), slice(0, None, 2), slice(1, None, 2)
    clients = (inproc_client, half), (process_client, every), (wide_client, rest)
    for client, some in clients:
        with client.as_current():
            assert fit_all(request, CASES[some]) == here[some]


def test_dask_input_agrees_with_memory(cluster, binary):
    X, y = binary
    dX, dy = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
    model = ButterflySGDClassifier(n_ranks=4, **PARAMS)
    assert digest(model.fit(dX, dy)) == digest(model.fit(X, y))


def test_seeds_matter(binary):
    params = {**PARAMS, "n_ranks": 2}
    fits = [
        digest(ButterflySGDClassifier(**{**params, "random_state": seed}).fit(*binary))
        for seed in (0, 0, 1, None, None)
    ]
    assert fits[0] == fits[1]
    assert len({coef for coef, *_ in fits}) == 4


def test_passes_and_ranks_have_orders_of_their_own():
    def order(seed, rank, n_passes):
        context = RankContext(LocalGroup.create(3)[rank], seed)
        return tuple(pass_generator(context, n_passes).permutation(50))

    keys = [(s, r, p) for s in (0, 1) for r in range(3) for p in range(3)]
    assert len({order(*key) for key in keys}) == len(keys)
    assert order(1, 2, 0) == order(1, 2, 0)


def test_a_pass_is_a_function_of_the_state(monkeypatch, binary):
    """Started again from the states after a pass, the second one is the same."""
    from dask_ma.butterfly import _agent

    states: dict[tuple[int, int], RankState] = {}
    prepare = _agent.prepare

    def resume(context, *args):
        state, plan = prepare(context, *args)
        return states.get((context.group.rank, 1), state), plan

    make_steps = _agent.make_steps

    def watched(context, problem, params, state, *args):
        state = make_steps(context, problem, params, state, *args)
        weights = state.weights.copy()
        states[context.group.rank, state.n_passes] = state._replace(weights=weights)
        return state

    monkeypatch.setattr(_agent, "make_steps", watched)
    params = {**PARAMS, "n_ranks": 4, "learning_rate": "invscaling"}
    model = ButterflySGDClassifier(**params).fit(*binary)
    monkeypatch.setattr(_agent, "prepare", resume)
    again = ButterflySGDClassifier(**params).fit(*binary)
    assert len(again.history_) == 1
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.t_ == model.t_


@pytest.mark.parametrize("n_ranks", [2, 4, 8])
def test_the_sibling_of_a_rank_has_its_state(monkeypatch, binary, n_ranks):
    """After every pass, whatever step it ends with."""
    from dask_ma.butterfly import _agent
    from dask_ma.comm import sibling

    weights = {}
    make_steps = _agent.make_steps

    def watched(context, problem, params, state, *args):
        state = make_steps(context, problem, params, state, *args)
        key = context.group.rank, state.n_passes
        weights[key] = state.t, state.weights.copy()
        return state

    monkeypatch.setattr(_agent, "make_steps", watched)
    ButterflySGDClassifier(n_ranks=n_ranks, **PARAMS).fit(*binary)
    for (rank, n_passes), (t, own) in weights.items():
        # Steps count from 0, `t` is the number of the next one, from 1.
        other = weights[sibling(rank, t - 2, n_ranks), n_passes][1]
        np.testing.assert_array_equal(own, other)
    distinct = {
        own.tobytes() for (_, n_passes), (_, own) in weights.items() if n_passes == 2
    }
    assert len(distinct) == n_ranks // 2
