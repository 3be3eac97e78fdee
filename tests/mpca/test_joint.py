"""The joint model: its cut, and its parts against equations 4, 5, 8 and 9."""

import numpy as np
import pytest

from dask_ma.mpca.strategies._joint import Cut, JointPart, Projection
from dask_ma.mpca.strategies._schedules import CycleSchedule

SCHEDULE = CycleSchedule(extrapolation=0.7, smoothing=0.8, penalty=0.05, blending=0.9)


# The cut ------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
@pytest.mark.parametrize("n_values", [0, 1, 2, 5, 20, 21, 104729])
def test_shards_and_parts_cover_each_value_once(n_values, n_shards, n_ranks):
    cut = Cut(n_values, n_shards, n_ranks)
    position = 0
    for number in range(n_shards):
        start, stop = cut.shard(number)
        assert start == position
        for rank in range(n_ranks):
            first, last = cut.part(number, rank)
            assert first == position <= last
            position = last
        assert stop == position
    assert position == n_values


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("n_shards", [1, 2, 3])
@pytest.mark.parametrize("n_values", [2, 20, 104729])
def test_sizes_differ_by_one_value_at_most(n_values, n_shards, n_ranks):
    cut = Cut(n_values, n_shards, n_ranks)
    sizes = [np.subtract(*cut.shard(number)) for number in range(n_shards)]
    assert max(sizes) - min(sizes) <= 1
    for number in range(n_shards):
        parts = [np.subtract(*cut.part(number, rank)) for rank in range(n_ranks)]
        assert max(parts) - min(parts) <= 1


# A part of the joint model, and its projection ----------------------------------------


class SlowJoint:
    """Equations 4, 5, 8 and 9, value by value."""

    def __init__(self, values, schedule):
        self.x = [float(value) for value in values]
        self.v = [0.0] * len(values)
        self.t = 0
        self.schedule = schedule

    def update(self, models, weights):
        s, projected = self.schedule, []
        ramp = min(self.t, 5) / 5
        beta, gamma, delta = s.blending**ramp, s.extrapolation * ramp, s.smoothing
        for i, before in enumerate(self.x):
            total, mean = 0.0, 0.0
            for model, tau in zip(models, weights, strict=True):
                total += tau
                mean += tau * model[i]
            self.x[i] = (1 - beta) * before + beta * mean / total
            self.v[i] = delta * self.v[i] + (1 - delta) * (self.x[i] - before)
            projected.append(self.x[i] + gamma * self.v[i])
        self.t += 1
        return projected


EVERY_SCHEDULE = pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULE,
        SCHEDULE._replace(extrapolation=0.0),
        SCHEDULE._replace(extrapolation=2.5, smoothing=0.0, blending=0.3),
        SCHEDULE._replace(smoothing=0.95, blending=1.0),
    ],
)


@EVERY_SCHEDULE
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("block", [4, 2**15])
def test_updates_follow_the_equations(monkeypatch, schedule, n_ranks, block):
    monkeypatch.setattr("dask_ma.kernels._optimizers.BLOCK", block)
    rng = np.random.default_rng(0)
    first = rng.normal(size=6)
    part, slow = JointPart(first, schedule), SlowJoint(first, schedule)
    projection = Projection(first, 6, schedule)
    for cycle in range(25):
        models = list(rng.normal(size=(n_ranks, 6)))
        weights = rng.integers(1, 20, n_ranks).astype(float).tolist()
        joint = part.update(models, weights)
        projected = projection.advance(0, joint, cycle)
        expected = slow.update(models, weights)
        np.testing.assert_allclose(projected, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(joint, slow.x, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(part.values, joint)
        np.testing.assert_array_equal(projection.values, joint)
        np.testing.assert_allclose(
            projection.trajectory, slow.v, rtol=1e-12, atol=1e-13
        )
        assert part.cycle == cycle + 1


def test_the_first_cycle_gives_the_mean_of_the_ranks():
    part = JointPart(np.full(3, 50.0), SCHEDULE)
    joint = part.update([np.ones(3), np.full(3, 4.0)], [2.0, 1.0])
    np.testing.assert_allclose(joint, 2.0, rtol=1e-15)
    projection = Projection(np.full(3, 50.0), 3, SCHEDULE)
    np.testing.assert_array_equal(projection.advance(0, joint, 0), joint)
    np.testing.assert_allclose(projection.trajectory, 0.2 * (2 - 50), rtol=1e-14)


def test_a_later_cycle_can_be_gone_on_from():
    part = JointPart(np.zeros(2), SCHEDULE, cycle=2)
    joint = part.update([np.ones(2)], [3.0])
    beta = 0.9**0.4
    np.testing.assert_allclose(joint, beta, rtol=1e-15)
    assert part.cycle == 3
    before = np.full(2, 0.1)
    projection = Projection(np.zeros(2), 2, SCHEDULE, before)
    projected = projection.advance(0, joint, 2)
    trajectory = 0.8 * 0.1 + 0.2 * beta
    np.testing.assert_allclose(projected, beta + 0.4 * 0.7 * trajectory, rtol=1e-15)
    np.testing.assert_array_equal(before, 0.1)


@pytest.mark.parametrize("n_parameters", range(6))
def test_only_parameters_are_projected(monkeypatch, n_parameters):
    """A running variance that falls has no less than its least value ahead."""
    monkeypatch.setattr("dask_ma.kernels._optimizers.BLOCK", 2)
    schedule = SCHEDULE._replace(extrapolation=2.5)
    projection = Projection(np.ones(5), n_parameters, schedule)
    for cycle in range(30):
        value = 0.5**cycle
        for start, stop in [(0, 2), (2, 5)]:
            joint = np.full(stop - start, value)
            projected = projection.advance(start, joint, cycle)
            is_trained = np.arange(start, stop) < n_parameters
            assert (projected[~is_trained] == value).all()
            assert (projected[is_trained] < value).all() or not cycle
            np.testing.assert_array_equal(joint, value)
    assert (projected[is_trained] < 0).all()
    np.testing.assert_array_equal(projection.values, value)
    assert projection.trajectory.shape == (n_parameters,)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rank_without_weight_may_send_anything(bad):
    models = [np.arange(3.0), np.full(3, bad), np.full(3, 2.0)]
    part, other = JointPart(np.ones(3), SCHEDULE), JointPart(np.ones(3), SCHEDULE)
    got = part.update(models, [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(got, other.update(models[::2], [1.0, 3.0]))
    assert np.isfinite(got).all()


def test_the_joint_model_stays_as_it_is_without_any_weight():
    part = JointPart(np.zeros(3), SCHEDULE, cycle=20)
    values = part.update([np.ones(3)], [1.0])
    again = part.update([np.full(3, np.nan)], [0.0])
    np.testing.assert_array_equal(again, values)
    assert part.cycle == 22


def test_arrays_are_the_part_s_own():
    first, models = np.zeros(4), [np.ones(4)]
    part, projection = JointPart(first, SCHEDULE), Projection(first, 4, SCHEDULE)
    first[:] = 9
    np.testing.assert_array_equal(part.values, 0)
    np.testing.assert_array_equal(projection.values, 0)
    for cycle in range(3):
        joint = part.update(models, [1.0])
        projected = projection.advance(0, joint, cycle)
        kept = part.values.copy()
        joint[:] = projected[:] = 7
        np.testing.assert_array_equal(part.values, kept)
        np.testing.assert_array_equal(projection.values, kept)
    np.testing.assert_array_equal(models[0], 1)
    np.testing.assert_array_equal(first, 9)


def test_values_keep_their_type():
    part = JointPart(np.zeros(4, np.float32), SCHEDULE)
    projection = Projection(np.zeros(4, np.float32), 3, SCHEDULE)
    for cycle in range(3):
        joint = part.update([np.ones(4, np.float32)] * 2, [1.0, 2.0])
        projected = projection.advance(0, joint, cycle)
    assert joint.dtype == part.values.dtype == np.float32
    assert projected.dtype == projection.trajectory.dtype == np.float32


def test_a_part_without_values():
    part = JointPart(np.empty(0), SCHEDULE)
    assert part.update([np.empty(0)] * 2, [1.0, 0.0]).shape == (0,)
    assert Projection(np.empty(0), 0, SCHEDULE).advance(0, np.empty(0), 0).size == 0
