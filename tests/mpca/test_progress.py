"""What ranks have done: differences, sums over ranks, and decisions."""

import pickle
from time import sleep

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from dask_ma.comm import LocalGroup
from dask_ma.mpca import MPCAClassifier
from dask_ma.mpca.strategies._progress import _AT, N_FIELDS, FitProgress, RankCounters
from dask_ma.mpca.strategies._schedules import LearningRate
from dask_ma.supervised import StopRule

NAN = np.nan


# One rank -----------------------------------------------------------------------------


def taken(counters, tau=0.0):
    """Counts since the last call, by name."""
    counts = counters.take(tau)
    assert counts.shape == (N_FIELDS,)
    assert counts.dtype == np.float64
    return {name: counts[at] for name, at in _AT.items()} | {"score": counts[-4:]}


@pytest.fixture
def pair():
    """Two ranks that count as two processes."""
    return LocalGroup.create(2, 1)


def test_steps_are_counted_from_one_call_to_the_next(pair):
    counters = RankCounters(pair[0])
    counters.note_step(10, 2.0)
    counters.note_step(5, 4.0)
    first, second = taken(counters, 7.0), taken(counters)
    assert (first["n_steps"], first["n_samples"], first["loss"]) == (2, 15, 40)
    assert (first["tau"], first["n_reports"]) == (7, 1)
    assert (second["n_steps"], second["n_samples"], second["loss"]) == (0, 0, 0)
    assert (second["tau"], second["n_reports"]) == (0, 1)
    counters.note_step(3, 1.0)
    assert taken(counters)["n_samples"] == 3
    assert counters.n_steps == 3


@pytest.mark.parametrize("loss", [NAN, np.inf, -np.inf])
def test_divergence_is_told_once(pair, loss):
    counters = RankCounters(pair[0])
    assert not counters.has_diverged
    for value in (1.0, loss, loss, 2.0):
        counters.note_step(10, value)
    assert counters.has_diverged
    counts = taken(counters)
    assert (counts["n_diverged"], counts["loss"], counts["n_steps"]) == (1, 30, 4)
    counters.note_step(10, loss)
    assert taken(counters)["n_diverged"] == 0
    assert counters.has_diverged


def test_scores_are_added_up(pair):
    counters = RankCounters(pair[0])
    counters.note_score(np.arange(4.0))
    counters.note_score(np.ones(4))
    counts = taken(counters)
    assert counts["n_scored"] == 2
    np.testing.assert_array_equal(counts["score"], [1, 2, 3, 4])
    assert not taken(counters)["score"].any()


def test_time_of_computing_is_that_of_the_timeline(pair):
    group = pair[0]
    counters = RankCounters(group)
    with counters.computing():
        sleep(0.02)
    with pytest.raises(KeyError), counters.computing("evaluate"):
        sleep(0.01)
        raise KeyError
    assert 0.03 <= taken(counters)["seconds_computing"] < 1
    assert group.trace.spans()["kind"].tolist() == ["compute", "evaluate"]
    assert taken(counters)["seconds_computing"] == 0


def test_time_of_exchanging(pair):
    counters = RankCounters(pair[0])
    with counters.exchanging():
        sleep(0.02)
        assert taken(counters)["seconds_exchanging"] == 0  # not before it is over
    counts = taken(counters)
    assert 0.02 <= counts["seconds_exchanging"] < 1
    assert counts["seconds_computing"] == 0


def test_messages_of_the_duplicate_count_too_but_not_its_waits(pair):
    group, other = pair
    second = group.for_thread()
    counters = RankCounters(group, second)
    other.push(np.ones(2), 0, "a")
    other.push(np.ones(2), 0, "b")
    group.push(np.ones(3), 1)
    second.push(np.ones(5), 1)
    second.push(np.ones(5), 0)  # within the process
    second.recv(1, "a")
    second.counters.seconds_waiting += 100
    group.counters.seconds_waiting += 3
    counts = taken(counters)
    assert (counts["bytes_sent"], counts["messages_sent"]) == (64, 2)
    assert counts["bytes_shared"] == 40
    assert counts["seconds_waiting"] == 3
    second.push(np.ones(7), 1)
    counts = taken(counters)
    assert (counts["bytes_sent"], counts["seconds_waiting"]) == (56, 0)


# All ranks ----------------------------------------------------------------------------


def report(n_samples=0.0, score=(0, 0, 0, 0), **named):
    """Sums of counts over ranks."""
    sums = np.zeros(N_FIELDS)
    for name, value in {"n_samples": n_samples, "n_reports": 2, **named}.items():
        sums[_AT[name]] = value
    sums[-4:] = score
    return sums


def make_tally(schedule="constant", tol=None, patience=2, **changes):
    """Of two ranks with 100 rows together."""
    options = {"max_iter": 5, "by_score": False, "is_mean": True, **changes}
    rule = StopRule(tol, patience, maximize=options["by_score"])
    return FitProgress(100, 2, rule, LearningRate(schedule, 1.0, 0.5), **options)


def feed(progress, *sums):
    return [progress.add(s, float(number)) for number, s in enumerate(sums)]


def test_the_rule_looks_at_the_mean_of_some_epochs():
    """By each epoch, the best loss would be the one that was low by chance."""
    losses = [1.0, 0.8, 0.2, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3]
    stops = {}
    for n_smoothed in (1, 3):
        progress = make_tally(tol=0.01, patience=3, max_iter=9, n_smoothed=n_smoothed)
        updates = feed(progress, *[report(100, loss=100 * loss) for loss in losses])
        stops[n_smoothed] = [u.stop for u in updates].index(True)
        assert progress.loss_curve == pytest.approx(losses)
    assert stops == {1: 5, 3: 8}


def test_the_rule_does_not_end_a_fit_that_has_learned_nothing():
    """Whose loss falls more slowly than it differs by chance."""
    losses = [1.0, 1.1, 1.05, 1.02, 1.04, 0.9, 0.6, 0.62, 0.61, 0.63]
    stops = {}
    for untrained in (np.inf, 0.95):
        progress = make_tally(tol=0.01, max_iter=10, untrained=untrained)
        updates = feed(progress, *[report(100, loss=100 * loss) for loss in losses])
        stops[untrained] = [u.stop for u in updates].index(True)
        assert updates[stops[untrained]].converged
    assert stops == {np.inf: 2, 0.95: 8}


def test_epochs_end_when_all_ranks_together_have_seen_so_many_rows():
    progress = make_tally(max_iter=3)
    updates = feed(progress, *[report(40, loss=80)] * 8)
    assert [u.epoch for u in updates] == [0, 0, 1, 1, 2, 2, 2, 3]
    ends = [u.epoch_ended for u in updates]
    assert ends == [False, False, True, False, True, False, False, True]
    assert [u.stop for u in updates] == [False] * 7 + [True]
    assert [u.state is not None for u in updates] == ends
    assert not any(u.converged or u.diverged or u.to_score for u in updates)
    assert progress.loss_curve == [2.0, 2.0, 2.0]
    assert progress.n_samples == 320


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    progress = make_tally()
    feed(progress, report(60, loss=60), report(60, loss=180), report(80, loss=40))
    assert progress.loss_curve == [2.0, 0.5]


def test_many_rows_at_once_go_no_further_than_the_last_epoch():
    progress = make_tally(max_iter=3)
    (update,) = feed(progress, report(1000, loss=1000))
    assert (update.epoch, update.stop) == (3, True)
    assert update.state["epoch"] == 3


def test_a_record_says_what_has_been_done():
    progress = make_tally()
    named = {
        "n_steps": 4,
        "bytes_sent": 800,
        "bytes_shared": 80,
        "messages_sent": 6,
        "seconds_computing": 3.0,
        "seconds_exchanging": 2.0,
        "seconds_waiting": 1.0,
        "loss": 20,
        "tau": 12,
    }
    first, second = feed(progress, report(50, **named), report(50, loss=10, tau=2))
    assert first.record == {
        "round": 1,
        "time": 0.0,
        "epoch": 0.5,
        "loss": 0.4,
        "n_exchanges": 1,
        "tau": 6.0,
        "n_samples": 50,
        "n_steps": 4,
        "bytes_sent": 800,
        "bytes_shared": 80,
        "messages_sent": 6,
        "seconds_computing": 1.5,
        "seconds_exchanging": 1.0,
        "seconds_waiting": 0.5,
    }
    assert first.has_news
    assert (second.record["round"], second.record["epoch"]) == (2, 1.0)
    assert (second.record["loss"], second.record["n_steps"]) == (0.2, 0)


def test_small_reports_share_a_record():
    """A fiftieth of an epoch is two rows here."""
    progress = make_tally()
    updates = feed(progress, *[report(1, loss=n, tau=2) for n in range(4)])
    assert [u.record is not None for u in updates] == [False, True, False, True]
    assert not updates[0].has_news
    last = updates[-1].record
    assert (last["n_samples"], last["loss"], last["n_exchanges"]) == (2, 2.5, 2)
    assert last["tau"] == 1.0


def test_a_report_without_rows_is_no_record():
    progress = make_tally()
    assert not any(u.has_news for u in feed(progress, *[report()] * 5))


def test_divergence_ends_the_fit():
    progress = make_tally()
    good, bad = feed(
        progress, report(50, loss=50), report(60, loss=30, n_diverged=1, n_steps=3)
    )
    assert (good.is_good, good.stop) == (True, False)
    assert (bad.diverged, bad.stop, bad.converged) == (True, True, False)
    assert not (bad.is_good or bad.epoch_ended)
    assert np.isnan(bad.record["loss"])
    assert bad.epoch == bad.state["epoch"] == 0


def test_a_model_is_good_while_the_loss_is_about_the_least():
    progress = make_tally()
    losses = [4.0, 2.0, 3.9, 4.1, 1.0, 2.1]
    updates = feed(progress, *[report(10, loss=10 * loss) for loss in losses])
    assert [u.is_good for u in updates] == [True, True, True, False, True, False]


def test_a_model_is_good_while_a_loss_below_zero_is_about_the_least():
    """Criteria of modules, such as the likelihood of a density, can be negative."""
    progress = make_tally()
    losses = [1.0, -1.0, -2.0, -1.9]
    updates = feed(progress, *[report(10, loss=10 * loss) for loss in losses])
    assert all(update.is_good for update in updates)


# The end ------------------------------------------------------------------------------


def test_the_rule_ends_the_fit():
    progress = make_tally(tol=0.1, patience=2, max_iter=50)
    losses = [3.0, 2.0, 1.95, 1.96, 1.0]
    updates = feed(progress, *[report(100, loss=100 * loss) for loss in losses[:4]])
    assert [u.stop for u in updates] == [False, False, False, True]
    assert updates[-1].converged


def test_an_adaptive_rate_goes_on_at_first():
    progress = make_tally("adaptive", tol=0.1, patience=2, max_iter=500)
    rates = []
    for number in range(200):
        update = progress.add(report(100, loss=100), 0.0)
        rates.append(update.learning_rate)
        if update.stop:
            break
    assert update.converged
    # The first loss is lower than none; two more are not, and so on.
    assert rates[:6] == [1.0, 1.0, 0.2, 0.2, 0.04, 0.04]
    assert number + 1 == 1 + 2 * 10  # 5^-9 is the first rate below 1e-6
    assert rates[-1] == pytest.approx(5.0**-9)


def test_the_rate_follows_the_rows_seen():
    progress = make_tally("invscaling")
    first, second = feed(progress, report(120), report(90))
    assert first.learning_rate == pytest.approx(121**-0.5)
    assert second.learning_rate == pytest.approx(211**-0.5)
    assert second.state["rate"] == second.learning_rate


def no_improvement_end(values, tol, n_iter_no_change, *, maximize):
    """Epochs that scikit-learn makes with these values, None for all."""
    best, count = (-np.inf if maximize else np.inf), 0
    for number, value in enumerate(values):
        is_idle = value < best + tol if maximize else value > best - tol
        count = count + 1 if is_idle else 0
        best = max(best, value) if maximize else min(best, value)
        if count > n_iter_no_change:
            return number + 1
    return None


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("n_iter_no_change", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_rule_is_that_of_sklearn(seed, n_iter_no_change, maximize):
    rng = np.random.default_rng(seed)
    values = (1 / np.arange(1, 60) + 0.05 * rng.normal(size=59)).round(2)
    values = (-values if maximize else values).tolist()
    rule = StopRule(0.02, n_iter_no_change + 1, maximize=maximize)
    ends = [number for number, v in enumerate(values, 1) if rule.update(v)]
    expected = no_improvement_end(values, 0.02, n_iter_no_change, maximize=maximize)
    assert expected is not None
    assert ends[0] == expected


# Scores -------------------------------------------------------------------------------


def test_a_score_is_complete_when_all_ranks_have_sent_theirs():
    progress = make_tally(by_score=True)
    updates = feed(
        progress,
        report(100, loss=100),
        report(10, n_scored=1, score=(4, 3, 0, 0)),
        report(10, n_scored=1, score=(6, 5, 0, 0)),
    )
    assert [u.to_score for u in updates] == [True, False, False]
    assert [u.scored for u in updates] == [False, False, True]
    assert updates[-1].is_best
    assert progress.scores == [0.8]
    assert progress.add(report(10), 0.0).record["validation_score"] == 0.8


def test_scores_of_a_regressor_are_coefficients_of_determination():
    y, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
    sums = (3, ((y - predicted) ** 2).sum(), y.sum(), (y**2).sum())
    progress = make_tally(by_score=True, is_mean=False)
    feed(progress, report(100), report(n_scored=2, score=sums))
    expected = 1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert progress.scores == [pytest.approx(expected)]


def test_the_next_score_waits_for_the_one_under_way():
    progress = make_tally(by_score=True, max_iter=50)
    one = {"n_scored": 2, "score": (10, 5, 0, 0)}
    updates = feed(
        progress,
        report(100),
        report(100),
        report(100),
        report(5, **one),
        report(5, **one),
    )
    assert [u.to_score for u in updates] == [True, False, False, True, False]
    assert [u.scored for u in updates] == [False, False, False, True, True]
    assert [u.is_best for u in updates] == [False, False, False, True, False]


def test_the_last_epoch_is_scored_before_the_end():
    progress = make_tally(by_score=True, max_iter=1)
    first, between, last = feed(
        progress, report(100), report(10), report(n_scored=2, score=(4, 1, 0, 0))
    )
    assert (first.epoch_ended, first.to_score, first.stop) == (True, True, False)
    assert not between.stop
    assert (last.scored, last.stop, last.converged) == (True, True, False)
    assert last.state["scores"].tolist() == [0.25]


def test_scores_end_the_fit_and_losses_do_not():
    progress = make_tally(by_score=True, tol=0.01, patience=2, max_iter=50)
    values, updates = [5, 6, 6, 6, 7], []
    for value in values:
        updates.append(progress.add(report(100, loss=100), 0.0))
        if updates[-1].stop:
            break
        scored = report(n_scored=2, score=(10, value, 0, 0))
        updates.append(progress.add(scored, 0.0))
        if updates[-1].stop:
            break
    assert progress.scores == [0.5, 0.6, 0.6, 0.6]
    assert updates[-1].converged
    assert [u.is_best for u in updates if u.scored] == [True, True, False, False]


# The same on every rank, and later ----------------------------------------------------


def random_reports(by_score, seed=0):
    """Counts of a fit of some epochs."""
    rng = np.random.default_rng(seed)
    reports = []
    for number in range(100):
        n_samples = int(rng.integers(0, 30))
        named = {"loss": n_samples * rng.random() / (number + 1), "tau": number}
        if by_score:
            named |= {"n_scored": 2, "score": (10, rng.integers(11), 0, 0)}
        reports.append(report(n_samples, **named))
    return reports


@pytest.mark.each
@pytest.mark.parametrize("by_score", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "adaptive", "invscaling", "cosine"])
def test_two_tallies_decide_alike(schedule, by_score):
    options = {"tol": 0.05, "max_iter": 12, "by_score": by_score}
    one, two = make_tally(schedule, **options), make_tally(schedule, **options)
    for sums in random_reports(by_score):
        got, expected = one.add(sums, 1.0), two.add(sums.copy(), 1.0)
        np.testing.assert_equal(got._asdict(), expected._asdict())
    assert expected.stop


@pytest.mark.parametrize("schedule", ["constant", "adaptive", "invscaling", "cosine"])
def test_another_tally_goes_on_from_the_end_of_an_epoch(schedule):
    options = {"tol": 0.02, "max_iter": 12, "patience": 3}
    one = make_tally(schedule, **options)
    losses = [5.0, 4.0, 3.0, 3.0, 2.99, 2.98, 2.97, 1.0, 1.0, 1.0, 1.0, 1.0]
    for loss in losses[:5]:
        update = one.add(report(100, loss=100 * loss), 0.0)
    two = make_tally(schedule, **options)
    two.load_state_dict(pickle.loads(pickle.dumps(update.state)))
    np.testing.assert_equal(two.state_dict(), one.state_dict())
    for loss in losses[5:]:
        got, expected = (t.add(report(100, loss=100 * loss), 0.0) for t in (two, one))
        np.testing.assert_equal(got._asdict(), expected._asdict())


def test_rows_of_an_epoch_that_was_cut_off_come_again():
    one = make_tally()
    feed(one, report(100, loss=100), report(70, loss=70))
    two = make_tally()
    two.load_state_dict(one.state_dict())
    assert two.epoch == 1
    assert [u.epoch_ended for u in feed(two, report(70), report(30))] == [False, True]


@pytest.mark.parametrize("converged", [False, True])
def test_an_update_that_only_ends_the_fit(converged):
    progress = make_tally()
    feed(progress, report(100, loss=100))
    update = progress.last(converged=converged)
    assert (update.stop, update.converged, update.epoch) == (True, converged, 1)
    assert update.record is None
    np.testing.assert_equal(update.state, progress.state_dict())


# Against scikit-learn -----------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:300] / 16, y[:300]


COMMON = {
    "hidden_layer_sizes": (20,),
    "batch_size": 50,
    "max_iter": 150,
    "random_state": 3,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"tol": 1e-2, "n_iter_no_change": 3, "learning_rate_init": 0.01},
        {"tol": 1e-2, "n_iter_no_change": 1, "learning_rate_init": 0.3},
        {
            "solver": "sgd",
            "learning_rate": "adaptive",
            "learning_rate_init": 0.2,
            "tol": 1e-2,
            "n_iter_no_change": 2,
        },
        {
            "solver": "sgd",
            "learning_rate": "invscaling",
            "learning_rate_init": 1.0,
            "power_t": 0.6,
            "tol": 1e-2,
            "n_iter_no_change": 3,
        },
    ],
    ids=["adam", "large steps", "adaptive", "invscaling"],
)
def test_a_fit_ends_where_that_of_sklearn_does(digits, changes):
    second = MLPClassifier(**COMMON, **changes).fit(*digits)
    model = MPCAClassifier(n_ranks=1, **COMMON, **changes).fit(*digits)
    assert 3 < second.n_iter_ < 150
    assert model.n_iter_ == second.n_iter_
    np.testing.assert_allclose(model.loss_curve_, second.loss_curve_, rtol=1e-9)
    assert model.best_loss_ == pytest.approx(second.best_loss_)


def test_early_stopping_ends_by_the_rule_of_sklearn(digits):
    """The rows held out are others, so the scores are taken from the fit."""
    changes = {"tol": 1e-3, "n_iter_no_change": 4, "learning_rate_init": 0.02}
    model = MPCAClassifier(n_ranks=1, early_stopping=True, **COMMON, **changes)
    scores = model.fit(*digits).validation_scores_
    assert 5 < model.n_iter_ == len(scores) == len(model.loss_curve_) < 150
    assert no_improvement_end(scores, 1e-3, 4, maximize=True) == model.n_iter_
    assert model.best_validation_score_ == max(scores) > 0.7


def test_a_report_of_several_epochs_has_a_loss_for_each():
    progress = make_tally(max_iter=5)
    [update] = feed(progress, report(250, loss=500))
    assert update.epoch == 2
    assert progress.loss_curve == [2.0, 2.0]
