"""Fits of topics that go on after a worker process is killed."""

import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest
from lda_parameters import acting

from dask_ma import MALDA

pytestmark = pytest.mark.slow

N, V, K = 80, 12, 3
PARAMS = {
    "n_components": K,
    "max_iter": 4,
    "batch_size": 20,
    "local_batch_size": 5,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "doc_topic_prior": "auto",
    "random_state": 0,
}
N_ROUNDS = 16


@pytest.fixture
def client(killable_client, assert_clean):
    with killable_client.as_current(), dask.config.set({"dask-ma.recovery.wait": 20}):
        yield killable_client
    killable_client.wait_for_workers(2, timeout=60)
    assert_clean(killable_client)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


@pytest.fixture
def strike(monkeypatch, tmp_path):
    """``strike(n)``: the process of the second shard dies in its n-th round, once."""

    def arm(n):
        mark = tmp_path / "struck"

        def agent(context, arguments, params):
            from dask_ma.ma.lda import _agent, _rounds

            if context.group.rank != 1 or mark.exists():
                return _agent.train(context, arguments, params)
            done = []

            def striking(run):
                def run_and_die(self, *args):
                    run(self, *args)
                    done.append(1)
                    if len(done) == n:
                        mark.touch()
                        os.kill(os.getpid(), signal.SIGKILL)

                return run_and_die

            # This process dies of it, so nothing needs to be put back.
            for kind in (_rounds.SendModel, _rounds.SendGradient):
                kind.run = striking(kind.run)
            return _agent.train(context, arguments, params)

        monkeypatch.setattr("dask_ma.ma.lda._base.train", agent)
        return mark

    return arm


MODEL, BUTTERFLY, GRADIENT = {}, {"mixing": "butterfly"}, {"paradigm": "gradient"}


@pytest.mark.parametrize(
    ("params", "at_round"),
    [(MODEL, 1), (MODEL, 7), (MODEL, 16), (BUTTERFLY, 7), (GRADIENT, 6)],
    ids=str,
)
def test_a_killed_worker_does_not_change_the_topics(
    client, X, strike, params, at_round
):
    """With two ranks no sum depends on which of them is the first."""
    counts = da.from_array(X, chunks=(10, V)) if at_round == 7 else X
    undisturbed = MALDA(**acting(**PARAMS, **params), n_ranks=2).fit(counts)
    mark = strike(at_round)
    model = MALDA(**acting(**PARAMS, **params)).fit(counts)
    assert mark.exists()
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    np.testing.assert_array_equal(model.doc_topic_prior_, undisturbed.doc_topic_prior_)
    assert model.bound_ == pytest.approx(undisturbed.bound_, rel=1e-12)
    assert (model.n_iter_, model.n_batch_iter_) == (4, undisturbed.n_batch_iter_)
    # The history has all rounds, also those of a pass that was broken off.
    rounds = [record["round"] for record in model.history_]
    assert rounds == list(range(1, N_ROUNDS + 1))
    assert [record["n_samples"] for record in model.history_] == [20] * N_ROUNDS
    times = [record["time"] for record in model.history_]
    assert times == sorted(times)
