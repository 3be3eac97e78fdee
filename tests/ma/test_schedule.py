"""How long a rank works alone: the setting acts, and "auto" is no matter of luck."""

import dask
import numpy as np
import pytest

from dask_ma import MASGDClassifier
from dask_ma.ma.sgd._steps import (
    Course,
    Sizes,
    local_epochs,
    quickest_ranks,
    relative_cost,
)

PARAMS = {
    "tol": None,
    "random_state": 0,
    "shuffle": False,
    "learning_rate": "constant",
}


def fit(data, **params):
    return MASGDClassifier(**{**PARAMS, **params}).fit(*data)


LOOPBACK, GIGABIT = 640e6, 125e6  # bytes a second


def sizes(
    n_ranks=8, n_rows=10**6, n_features=30_000, link=LOOPBACK, n_problems=1, stored=20
):
    return Sizes(n_ranks, n_rows, stored * n_rows, n_problems, n_features, link)


SIZES = [
    sizes(n_ranks, n_rows, n_features, n_problems=n_problems)
    for n_ranks in (1, 2, 64)
    for n_rows in (1, 1000, 1_000_000)
    for n_problems, n_features in ((1, 5), (1, 100_000), (20, 30_000))
]


@pytest.mark.parametrize("setting", [0.25, 1, 3.5])
def test_a_number_is_taken_as_it_is(setting):
    assert [local_epochs(setting, sizes) for sizes in SIZES] == [setting] * len(SIZES)


def choices(**changes):
    """What "auto" takes for each value of the one argument."""
    [(name, values)] = changes.items()
    return [local_epochs("auto", sizes(**{name: value})) for value in values]


def test_auto_merges_more_often_the_longer_a_pass_takes():
    found = choices(stored=[1, 20, 200, 2000])
    assert found == sorted(found, reverse=True)
    assert found[0] > 1 > found[-1]


def test_auto_merges_less_often_the_larger_the_model():
    found = choices(n_features=[100, 10**4, 10**6, 10**8])
    assert found == sorted(found)
    assert found[0] <= 1 < found[-1]


@pytest.mark.parametrize("n_rows", [1, 1000, 100_000])
def test_auto_leaves_few_rows_alone_for_one_pass_at_most(n_rows):
    """Models of few rows differ much; their mean after many passes is none of all."""
    assert local_epochs("auto", sizes(n_rows=n_rows, n_features=10**8)) <= 1


def test_auto_merges_less_often_the_slower_the_links():
    links = [100e9, 10e9, LOOPBACK, GIGABIT, 10e6]
    found = [local_epochs("auto", sizes(n_features=10**6, link=link)) for link in links]
    assert found == sorted(found)
    assert found[0] < found[-1]


@pytest.mark.parametrize(
    ("epochs", "cost"), [(1, 2 * (1.1 + 1)), (4, 3 * (1.1 + 1 / 4)), (1 / 4, 1.5 * 5.1)]
)
def test_cost_of_a_pass_by_hand(epochs, cost):
    """Ranks lose a pass by one alone; a merge takes as long as a pass over their rows.

    At 7 ns for an element, 600,000 elements of each rank take 4.2 ms: half of it for
    the merge itself, half for 16 bytes of 3/4 of the weights over the link.
    """
    n_features = round(0.0021 * GIGABIT / (16 * 3 / 4))
    found = relative_cost(epochs, Sizes(4, 96_000, 2_400_000, 1, n_features, GIGABIT))
    assert found == pytest.approx(cost, rel=1e-9)
    # As many weights, and as much work, for more problems.
    several = Sizes(4, 96_000, 480_000, 5, n_features // 5, GIGABIT)
    assert relative_cost(epochs, several) == pytest.approx(cost, rel=1e-9)


def course_of(**params):
    return Course.of(MASGDClassifier(**params)._make_params(None))


def quickest(n_rows, per_row, n_features, most, moved=0, bandwidth=LOOPBACK, **params):
    sizes = Sizes(1, n_rows, n_rows * per_row, 1, n_features, bandwidth)
    course = course_of(**params)
    return quickest_ranks("auto", sizes, most, course, lambda n: moved * (n < most))


def test_ranks_that_are_worth_while():
    """Two took 1.05 of the time of one on imdb, half of it on 16 times the rows."""
    assert [quickest(25_000, 137, 37_171, most) for most in (1, 2, 64)] == [1] * 3
    assert [quickest(400_000, 75, 47_236, most) for most in (1, 2, 3)] == [1, 2, 3]
    # A thousand ranks, each with 400 rows of its own, would gain nothing.
    assert 8 < quickest(400_000, 75, 47_236, 1000) < 256
    assert quickest(400_000, 75, 47_236, 64, bandwidth=10e6) < 16


def test_rows_move_only_where_that_is_made_up_for():
    imdb = 25_000, 137, 37_171
    assert quickest(*imdb, 2, moved=2**20) == 1
    assert quickest(*imdb, 2, moved=2**30) == 2


def test_ranks_that_only_average_models():
    """A refinement is shared out without a loss, the passes of SGD are not."""
    assert quickest(50_000, 137, 37_171, 2) == 2
    assert quickest(50_000, 137, 37_171, 2, refine=None) == 1
    assert quickest(25_000, 137, 37_171, 2, max_iter=0, refine="lbfgs") == 2


def test_fits_are_taken_to_make_the_passes_that_they_will():
    """6 if the refinement takes over at once; `max_iter` if nothing else ends them."""
    assert course_of() == (6, 32)
    assert course_of(max_iter=4, refine_max_iter=80) == (4, 32)
    for params in ({"penalty": "l1"}, {"n_iter_no_change": 5}):
        assert course_of(**params) == (16, 32)
    assert course_of(refine_max_iter=20) == (16, 20)
    assert course_of(refine=None) == course_of(early_stopping=True) == (16, 0)
    assert course_of(tol=None, max_iter=100) == (100, 0)


def test_auto_takes_several_passes_where_exchange_is_dear():
    """kdd12 on 8 machines: 149.6 million rows of 11 elements, 54.7 million columns."""
    kdd12 = Sizes(8, 149_600_000, 11 * 149_600_000, 1, 54_700_000, GIGABIT)
    assert local_epochs("auto", kdd12) > 1


def test_link_bandwidth_is_taken_from_the_configuration():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((70_000, 50), dtype=np.float32), np.arange(70_000) % 2

    def choice(bandwidth):
        with dask.config.set({"dask-ma.comm.link-bandwidth": bandwidth}):
            model = fit(data, max_iter=1, n_ranks=2)
        return model.history_[0]["local_epochs"]

    assert choice("1 kB") > choice("100 TB")


def test_auto_does_not_look_at_the_clock(binary, inproc_client):
    """Ranks on a cluster wait longer for each other than ranks in one process."""
    here = fit(binary, max_iter=4, n_ranks=4)
    with inproc_client.as_current():
        there = fit(binary, max_iter=4, n_ranks=4)
    histories = [
        [(record["local_epochs"], record["n_samples"]) for record in model.history_]
        for model in (here, there)
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    ("setting", "n_samples"), [(1, 120), (2.0, 240), (0.5, 60), (1.5, 180)]
)
def test_setting_is_rows_per_round(binary, setting, n_samples, n_ranks):
    model = fit(binary, local_epochs=setting, max_iter=3, n_ranks=n_ranks)
    assert [record["n_samples"] for record in model.history_] == [n_samples] * 3
    assert [record["local_epochs"] for record in model.history_] == [setting] * 3


@pytest.mark.parametrize(
    ("setting", "n_rounds"), [(0.5, 4), (0.25, 8), (2, 1), (1 / 3, 6)]
)
def test_one_rank_goes_on_where_it_stopped(binary, setting, n_rounds):
    """Two passes are two passes, however they are cut into rounds."""
    cut = fit(binary, local_epochs=setting, max_iter=n_rounds, n_ranks=1)
    whole = fit(binary, local_epochs=1, max_iter=2, n_ranks=1)
    np.testing.assert_allclose(cut.coef_, whole.coef_, rtol=1e-10)
    np.testing.assert_allclose(cut.intercept_, whole.intercept_, rtol=1e-10)


def test_a_round_is_one_row_at_least(binary):
    model = fit(binary, local_epochs=1e-9, max_iter=2, n_ranks=3)
    assert [record["n_samples"] for record in model.history_] == [3, 3]
    assert model.coef_.any()
