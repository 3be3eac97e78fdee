"""Runs of rotation programs that are saved: a file for each rank, and a manifest."""

import json
import os
import threading
import time

import numpy as np
import pytest

from dask_ma.engine import RankContext
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._saving import Saver
from dask_ma.exceptions import CheckpointError
from dask_ma.schmp import RotationProgram, run, schedules

RNG = np.random.default_rng(0)
X = np.where(RNG.random((40, 17)) < 0.5, RNG.normal(size=(40, 17)), 0)


class Wandering(RotationProgram):
    """Its parameters remember the order in which they have met the rows."""

    def __init__(self, blocks_per_rank=2):
        self.rotation = schedules.Rotation(blocks_per_rank)

    def prepare(self, shard, group):
        return np.vstack(
            [np.empty((0, shard.n_features)), *(b.X for b in shard.blocks)]
        )

    def weights(self, local):
        return np.count_nonzero(local, axis=0)

    def initial_block(self, parameters, local, rng):
        return {"w": parameters.astype(float), "rare": np.zeros((len(parameters), 400))}

    def initial_shared(self, local, group):
        return {"total": np.zeros(())}

    def update(self, block, local, shared, turn):
        w, rare = block.values["w"], block.values["rare"]
        w += local[:, block.parameters].sum(axis=0) + 0.1 * shared["total"]
        w *= 0.9 + 0.1 * turn.rng.random()
        rare[:, turn.rotation] += w
        return {"total": w.mean()}

    def aggregate(self, change, shared):
        return {"total": shared["total"] / 2 + change["total"]}

    def report(self, sums, shared):
        return {"total": float(shared["total"])}


OPTIONS = {"random_state": 0, "n_ranks": 3}


@pytest.fixture
def saving(tmp_path, configured):
    """``with saving():`` saves fits in a folder."""
    return lambda **more: configured({"dask-ma.checkpoint.path": str(tmp_path), **more})


def files(tmp_path):
    [series] = tmp_path.iterdir()
    return sorted(path.name for path in series.iterdir())


def assert_same(a, b):
    for name, value in b.model.items():
        np.testing.assert_array_equal(a.model[name], value)
    pairs = zip(a.history, b.history, strict=True)
    assert all(x["total"] == y["total"] for x, y in pairs)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_run_that_goes_on_equals_an_uninterrupted_one(saving, tmp_path, n_ranks):
    options = {**OPTIONS, "n_ranks": n_ranks}
    whole = run(Wandering(), X, n_iterations=6, **options)
    with saving():
        run(Wandering(), X, n_iterations=3, **options)
        rest = run(Wandering(), X, n_iterations=6, **options)
    assert_same(rest, whole)


def test_each_rank_has_a_file(saving, tmp_path):
    with saving(**{"dask-ma.checkpoint.keep": 2}):
        run(Wandering(), X, n_iterations=4, **OPTIONS)
    found = files(tmp_path)
    manifests = [name for name in found if name.endswith(".json")]
    assert manifests == ["round-00000003.json", "round-00000004.json"]
    # The arrays of rank 0, and one file for each rank.
    assert len(found) == 2 * (1 + 1 + 3)
    [series] = tmp_path.iterdir()
    manifest = json.loads((series / manifests[-1]).read_text())
    own = {entry["file"].rpartition("/")[2] for entry in manifest["own"]}
    assert own == {n for n in found if n.startswith("round-00000004-")}
    assert len(own) == 3
    for name in own:  # of 17 parameters with 400 numbers, of which few are not zero
        assert (series / name).stat().st_size < 17 * 400 * 8 / 3


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 5), (1, 4), (4, 1)])
def test_another_number_of_ranks(saving, before, after):
    """Blocks are cut anew, of the same values."""
    with saving():
        first = run(Wandering(), X, n_iterations=3, random_state=0, n_ranks=before)
        with pytest.warns(UserWarning, match=f"written by {before} ranks and goes on"):
            rest = run(Wandering(), X, n_iterations=4, random_state=0, n_ranks=after)
    np.testing.assert_array_equal(rest.model["rare"][:, :3], first.model["rare"][:, :3])
    assert (rest.model["rare"][:, 3] != 0).any()
    assert [r["total"] for r in rest.history[:3]] == [r["total"] for r in first.history]


def test_files_are_written_while_the_run_goes_on(saving, tmp_path, monkeypatch):
    """The next rotation does not wait for a disk that is slow."""
    gate, save_part, rounds_while_writing = threading.Event(), Store.save_part, []

    def slow(self, name, own):
        if "round-00000003" in name:
            assert gate.wait(30)
        return save_part(self, name, own)

    def save_state(self, n_rounds, *args, **options):
        if n_rounds == 5:
            rounds_while_writing.append(
                files(tmp_path) if self.group.rank == 0 else None
            )
            gate.set()
        return original(self, n_rounds, *args, **options)

    original = RankContext.save_state
    monkeypatch.setattr(Store, "save_part", slow)
    monkeypatch.setattr(RankContext, "save_state", save_state)
    with saving(**{"dask-ma.checkpoint.every": 3}):
        run(Wandering(), X, n_iterations=7, **OPTIONS)
    [seen] = [names for names in rounds_while_writing if names is not None]
    assert not any(name.endswith(".json") for name in seen)
    assert "round-00000007.json" in files(tmp_path)


def test_files_of_the_next_checkpoint_stay_while_one_is_completed(
    saving, tmp_path, monkeypatch
):
    """Rank 0 tidies up when others may be at their next files."""
    rename, begin, save = os.replace, Saver.begin_parts, Store.save
    second, waiting = threading.Event(), threading.Event()

    def late(source, target):
        if "-1.npz" in target and "round-00000001" in target:
            assert second.wait(30)  # the first is not complete before
        if "-1.npz" in target and "round-00000002" in target:
            assert waiting.wait(30)  # its part of the file is there
        rename(source, target)

    def beginning(self, series, rows, n_rounds, *args, **kwargs):
        if n_rounds == 2:
            second.set()
        begin(self, series, rows, n_rounds, *args, **kwargs)

    def saving_late(self, series, saved, keep):
        if saved.round == 1:
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob("*/.round-00000002-*-1.npz-*")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        save(self, series, saved, keep)
        if saved.round == 1:
            waiting.set()

    monkeypatch.setattr("dask_ma.engine.recovery._checkpoint.os.replace", late)
    monkeypatch.setattr(Saver, "begin_parts", beginning)
    monkeypatch.setattr(Store, "save", saving_late)
    with saving():
        run(Wandering(), X, n_iterations=2, **OPTIONS)
    assert "round-00000002.json" in files(tmp_path)


def test_a_disk_that_is_full(saving, monkeypatch):
    def full(self, path, data):
        if "-1.npz" in path:
            raise OSError("no space left")
        return write(self, path, data)

    write = Store._write
    monkeypatch.setattr(Store, "_write", full)
    with saving(), pytest.raises(CheckpointError, match="cannot write .*no space left"):
        run(Wandering(), X, n_iterations=4, **OPTIONS)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_file_that_is_not_the_one_written(saving, tmp_path, harm):
    with saving():
        run(Wandering(), X, n_iterations=2, **OPTIONS)
        [series] = tmp_path.iterdir()
        [part] = series.glob("round-00000002-*-1.npz")
        if harm == "missing":
            part.unlink()
        else:
            data = bytearray(part.read_bytes())
            data[len(data) // 2] ^= 1
            part.write_bytes(bytes(data))
        with pytest.raises(CheckpointError, match=r"-1\.npz is damaged"):
            run(Wandering(), X, n_iterations=4, **OPTIONS)


def test_files_of_a_writer_that_was_killed_go(saving, tmp_path, interrupted):
    with saving():
        with interrupted(2):
            run(Wandering(), X, n_iterations=6, **OPTIONS)
        [series] = tmp_path.iterdir()
        orphan = series / "round-00000002-00000000dead0000-7.npz"
        orphan.write_bytes(b"half")
        whole = run(Wandering(), X, n_iterations=6, **OPTIONS)
    assert not orphan.exists()
    assert_same(whole, run(Wandering(), X, n_iterations=6, **OPTIONS))


def test_another_program_does_not_go_on(saving, tmp_path):
    with saving():
        run(Wandering(), X, n_iterations=2, **OPTIONS)
        other = run(Wandering(3), X, n_iterations=2, **OPTIONS)
    assert_same(other, run(Wandering(3), X, n_iterations=2, **OPTIONS))
