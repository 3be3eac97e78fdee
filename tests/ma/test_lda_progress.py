"""History and timeline of MALDA, and what follows its fits."""

import numpy as np
import pytest
from lda_parameters import acting

from dask_ma import MALDA
from dask_ma.comm import TIMELINE_DTYPE
from dask_ma.plotting import GanttDisplay

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

N, V, K = 40, 8, 3
# A pass has 2 rounds.
PARAMS = {
    "n_components": K,
    "max_iter": 3,
    "batch_size": 20,
    "local_batch_size": 5,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "random_state": 0,
    "n_ranks": 2,
}
MIXINGS = ["allreduce", "butterfly"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


@pytest.fixture
def place(request):
    """No client, in-process workers, worker processes."""
    if request.param == "here":
        yield None
        return
    client = request.getfixturevalue(f"{request.param}_client")
    with client.as_current():
        yield client


everywhere = pytest.mark.parametrize(
    "place", ["here", "inproc", "process"], indirect=True
)
here_and_elsewhere = pytest.mark.parametrize(
    "place", ["here", "process"], indirect=True
)


def column(model, name):
    return [record[name] for record in model.history_]


# History ------------------------------------------------------------------------------


@pytest.mark.each
@everywhere
@pytest.mark.parametrize(
    ("mixing", "evaluate_every"), [("allreduce", -1), ("butterfly", 2)]
)
def test_history(place, X, mixing, evaluate_every):
    model = MALDA(**PARAMS, mixing=mixing, evaluate_every=evaluate_every).fit(X)
    assert all(
        set(record)
        == {
            "round",
            "n_iter",
            "time",
            "perplexity",
            "objective",
            "n_samples",
            "bytes_sent",
            "bytes_shared",
            "messages_sent",
            "seconds_computing",
            "seconds_waiting",
            "restarts",
        }
        for record in model.history_
    )
    assert column(model, "round") == [1, 2, 3, 4, 5, 6]
    assert column(model, "n_iter") == [0, 1, 1, 2, 2, 3]
    assert column(model, "n_samples") == [20] * 6
    times = column(model, "time")
    assert times == sorted(times)
    evaluated = np.isfinite(column(model, "perplexity"))
    expected = [evaluate_every == 2 and n == 4 or n == 6 for n in range(1, 7)]
    assert evaluated.tolist() == expected
    np.testing.assert_allclose(
        np.exp(column(model, "objective")), column(model, "perplexity"), rtol=1e-12
    )
    assert model.bound_ == column(model, "perplexity")[-1]
    assert model.bound_ == pytest.approx(model.perplexity(X), rel=1e-5)
    assert all(value > 0 for value in column(model, "seconds_computing"))
    assert all(value >= 0 for value in column(model, "seconds_waiting"))
    in_process = sum(column(model, "bytes_shared"))
    between = sum(column(model, "bytes_sent"))
    is_process = place is not None and len(set(place.run(_process_id).values())) > 1
    assert (between > 0, in_process > 0) == (is_process, not is_process)


def _process_id():
    import os

    return os.getpid()


def test_perplexities_are_those_of_shorter_fits(X):
    """Only now and then is evaluated, and an evaluation changes nothing."""
    model = MALDA(**PARAMS, evaluate_every=1, perp_tol=0.0).fit(X)
    for n in (1, 2, 3):
        short = MALDA(**{**PARAMS, "max_iter": n}).fit(X)
        assert short.bound_ == model.history_[2 * n - 1]["perplexity"]
    np.testing.assert_array_equal(short.components_, model.components_)


def test_documents_of_a_batch_step(X):
    model = MALDA(**acting(**{**PARAMS, "learning_method": "batch"})).fit(X)
    assert column(model, "n_samples") == [N] * 3
    assert column(model, "n_iter") == [1, 2, 3]


@here_and_elsewhere
def test_timeline(place, X):
    model = MALDA(**PARAMS).fit(X)
    timeline = model.timeline_
    assert timeline.dtype == TIMELINE_DTYPE
    assert set(timeline["rank"]) == {0, 1}
    assert {"compute", "evaluate", "wait"} <= set(timeline["kind"])
    assert (timeline["start"] <= timeline["stop"]).all()
    # Once, at the end.
    assert (timeline["kind"] == "evaluate").sum() == 2
    computing = timeline[timeline["kind"] == "compute"]
    for rank in (0, 1):
        # Updating, then taking over the mean.
        assert (computing["rank"] == rank).sum() >= 12
    pytest.importorskip("matplotlib", reason="plots need matplotlib").use("agg")
    assert GanttDisplay.from_estimator(model).timeline is not None


# Callbacks ----------------------------------------------------------------------------


class Recorder:
    """Notes the models of all rounds; says stop in one of the rounds, or raises."""

    def __init__(self, stop_at=None, raise_at=None):
        self.models = []
        self._stop_at = stop_at
        self._raise_at = raise_at

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        self.data = X

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if fitted_estimator is None:
            return False
        self.models.append(fitted_estimator)
        if len(self.models) == self._raise_at:
            raise RuntimeError("the callback has failed")
        return len(self.models) == self._stop_at


@pytest.fixture
def callbacks():
    return pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )


@pytest.mark.each
@here_and_elsewhere
@pytest.mark.parametrize("mixing", MIXINGS)
def test_callbacks_change_nothing(place, X, mixing, callbacks):
    params = {**PARAMS, "mixing": mixing, "doc_topic_prior": "auto"}
    plain = MALDA(**params).fit(X)
    recorder = Recorder()
    watched = MALDA(**params).set_callbacks(recorder).fit(X)
    np.testing.assert_array_equal(watched.components_, plain.components_)
    assert watched.bound_ == plain.bound_
    assert [set(r) for r in watched.history_] == [set(r) for r in plain.history_]
    np.testing.assert_array_equal(recorder.data, X)
    assert len(recorder.models) == 6
    for n, model in enumerate(recorder.models, start=1):
        assert len(model.history_) == n
        assert model.n_iter_ == n // 2
        assert model.components_.shape == (K, V)
        assert model.transform(X).shape == (N, K)
    np.testing.assert_array_equal(recorder.models[-1].components_, plain.components_)
    short = MALDA(**{**params, "max_iter": 1}).fit(X)
    np.testing.assert_array_equal(recorder.models[1].components_, short.components_)


@pytest.mark.pairs
@here_and_elsewhere
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("stop_at", [2, 3])
def test_a_callback_ends_the_fit(place, X, mixing, stop_at, callbacks):
    """With butterfly mixing at the end of the pass, when the ranks agree again."""
    params = {**PARAMS, "mixing": mixing}
    recorder = Recorder(stop_at=stop_at)
    model = MALDA(**params).set_callbacks(recorder).fit(X)
    n_rounds = stop_at if mixing == "allreduce" else 2 * -(-stop_at // 2)
    assert len(model.history_) == len(recorder.models) == n_rounds
    assert model.n_iter_ == n_rounds // 2
    assert model.n_batch_iter_ == 1 + 2 * n_rounds
    assert model.bound_ == pytest.approx(model.perplexity(X), rel=1e-5)
    np.testing.assert_array_equal(model.components_, recorder.models[-1].components_)


@everywhere
def test_error_of_a_callback(place, X, callbacks):
    model = MALDA(**PARAMS).fit(X)
    before = dict(vars(model))
    recorder = Recorder(raise_at=2)
    model.set_callbacks(recorder)
    with pytest.raises(RuntimeError, match="the callback has failed"):
        model.fit(X[:, :4])
    model.set_callbacks()
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())


def test_partial_fit_is_followed(X, callbacks):
    recorder = Recorder()
    MALDA(**PARAMS).set_callbacks(recorder).partial_fit(X).partial_fit(X)
    assert len(recorder.models) == 4


# Lines and bars -----------------------------------------------------------------------


@pytest.mark.each
@here_and_elsewhere
@pytest.mark.parametrize(("verbose", "mixing"), [(1, "allreduce"), (2, "butterfly")])
def test_lines(place, X, capsys, verbose, mixing):
    params = {**PARAMS, "mixing": mixing}
    plain = MALDA(**params).fit(X)
    assert capsys.readouterr().out == ""
    model = MALDA(**params, verbose=verbose).fit(X)
    np.testing.assert_array_equal(model.components_, plain.components_)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    for line, record in zip(lines, model.history_, strict=True):
        assert line.startswith(f"-- Round {record['round']}: ")
    assert f"objective {model.history_[-1]['objective']:.6f}" in lines[-1]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("learning_method", ["online", "batch"])
def test_bar(X, monkeypatch, lazy, learning_method):
    """With a total where the number of documents is known, and without."""
    rich = pytest.importorskip("rich", reason="the progress bar needs rich")
    import io

    import dask.array as da
    from rich.console import Console

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    file = Terminal()
    console = Console(
        file=file, force_terminal=True, width=100, color_system=None, _environ={}
    )
    monkeypatch.setattr(rich, "get_console", lambda: console)
    counts = da.from_array(X, chunks=(10, V))
    counts = counts[counts.sum(axis=1) >= 0] if lazy else X
    params = acting(**{**PARAMS, "learning_method": learning_method})
    model = MALDA(**params, verbose=1).fit(counts)
    n_rounds = 3 if learning_method == "batch" else 6
    assert len(model.history_) == n_rounds
    assert "MALDA" in file.getvalue()
    is_known = not lazy or learning_method == "batch"
    assert (f"round {n_rounds}/{n_rounds}" in file.getvalue()) == is_known
    assert f"round {n_rounds}" in file.getvalue()
    assert f"objective {model.history_[-1]['objective']:.5g}" in file.getvalue()
