"""States of a fit in files."""

import json
import math
from dataclasses import replace

import dask
import fsspec
import numpy as np
import pytest

from dask_ma.engine._checkpoint import (
    CheckpointSettings,
    Saved,
    check_identity,
    load,
    save,
)
from dask_ma.exceptions import CheckpointError


@pytest.fixture
def settings(tmp_path):
    return CheckpointSettings(str(tmp_path / "fit"), every=1, keep=2, resume=True)


def saved_after(number):
    """A checkpoint with a bit of everything."""
    return Saved(
        name="Estimator",
        parameters={"alpha": "0.1"},
        round=number,
        elapsed=1.5,
        shared={
            "coef": np.arange(6, dtype=np.float32).reshape(2, 3) * number,
            "classes": np.array(["no", "yes"], dtype=object),
            "names": np.array(["a", "bc"]),
            "nothing": None,
            "t": np.float64(0.1),
            "stop": False,
        },
        own=[{"n_rows": rank, "w": np.full(rank, 1.5)} for rank in range(3)],
        history=[{"round": number, "objective": math.nan, "bytes_sent": np.int64(3)}],
    )


def files(settings):
    fs, root = fsspec.core.url_to_fs(settings.path)
    return sorted(name.rpartition("/")[2] for name in fs.ls(root, detail=False))


@pytest.mark.parametrize("where", ["directory", "memory://fits/one"])
def test_what_is_saved_is_loaded(settings, where):
    if where != "directory":
        settings = replace(settings, path=where)
    wanted = saved_after(3)
    save(settings, wanted)
    found = load(settings)
    assert found._replace(shared={}, own=[], history=[]) == wanted._replace(
        shared={}, own=[], history=[]
    )
    for name, value in wanted.shared.items():
        np.testing.assert_array_equal(found.shared[name], value)
        if isinstance(value, np.ndarray):
            assert found.shared[name].dtype == value.dtype
    for ours, theirs in zip(found.own, wanted.own, strict=True):
        assert ours["n_rows"] == theirs["n_rows"]
        np.testing.assert_array_equal(ours["w"], theirs["w"])
    assert math.isnan(found.history[0].pop("objective"))
    assert found.history == [{"round": 3, "bytes_sent": 3}]


def test_nothing_there(settings):
    assert load(settings) is None


def test_the_newest_is_loaded_and_old_ones_go(settings):
    for number in (1, 2, 10):
        save(settings, saved_after(number))
    assert load(settings).round == 10
    assert files(settings) == [
        f"round-{number:08d}.{suffix}"
        for number in (2, 10)
        for suffix in ("json", "npz")
    ]


def test_a_checkpoint_without_its_manifest_does_not_exist(settings):
    for number in (1, 2):
        save(settings, saved_after(number))
    fs, root = fsspec.core.url_to_fs(settings.path)
    fs.rm_file(f"{root}/round-00000002.json")
    assert load(settings).round == 1


def test_a_write_that_fails_leaves_the_old_one(settings, monkeypatch):
    save(settings, saved_after(1))

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    local = type(fsspec.filesystem("file"))
    monkeypatch.setattr(local, "open", fail)
    with pytest.raises(CheckpointError, match="no space left"):
        save(settings, saved_after(2))
    monkeypatch.undo()
    assert load(settings).round == 1
    assert files(settings) == ["round-00000001.json", "round-00000001.npz"]


def test_no_pickle_is_read(settings):
    """An array of objects that somebody smuggled in is refused, not unpickled."""
    save(settings, saved_after(1))
    fs, root = fsspec.core.url_to_fs(settings.path)
    path = f"{root}/round-00000001"
    with fs.open(f"{path}.npz", "wb") as file:
        np.savez(file, a0=np.array([print], dtype=object), allow_pickle=True)
    manifest = json.loads(fs.cat_file(f"{path}.json"))
    import hashlib

    manifest["sha256"] = hashlib.sha256(fs.cat_file(f"{path}.npz")).hexdigest()
    fs.pipe_file(f"{path}.json", json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match="damaged.*allow_pickle"):
        load(settings)


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("npz", b"", "checksum"),
        ("npz", b"PK\x03\x04", "checksum"),
        ("json", b"", "damaged"),
        ("json", b"[]", "no checkpoint of dask_ma"),
        ("json", b'{"format": "another"}', "no checkpoint of dask_ma"),
        ("json", b'{"format": "dask_ma checkpoint", "version": 7}', "version 7"),
        ("json", b'{"format": "dask_ma checkpoint", "version": 1}', "damaged"),
    ],
)
def test_damaged_and_foreign_files(settings, suffix, content, message):
    save(settings, saved_after(1))
    fs, root = fsspec.core.url_to_fs(settings.path)
    fs.pipe_file(f"{root}/round-00000001.{suffix}", content)
    with pytest.raises(CheckpointError, match=message):
        load(settings)


def test_a_missing_array_file(settings):
    save(settings, saved_after(1))
    fs, root = fsspec.core.url_to_fs(settings.path)
    fs.rm_file(f"{root}/round-00000001.npz")
    with pytest.raises(CheckpointError, match="damaged.*FileNotFound"):
        load(settings)


def test_other_files_do_not_matter(settings):
    save(settings, saved_after(1))
    fs, root = fsspec.core.url_to_fs(settings.path)
    fs.pipe_file(f"{root}/notes.json", b"mine")
    assert load(settings).round == 1


def test_identity():
    saved = saved_after(1)
    check_identity(saved, "Estimator", {"alpha": "0.1"})
    with pytest.raises(CheckpointError, match="of a Estimator, expected one of a Oth"):
        check_identity(saved, "Other", {"alpha": "0.1"})
    with pytest.raises(CheckpointError, match=r"alpha is 0\.1 in .* and 0\.2 here"):
        check_identity(saved, "Estimator", {"alpha": "0.2"})


def test_what_cannot_be_saved(settings):
    saved = saved_after(1)
    with pytest.raises(TypeError, match="a set cannot be saved"):
        save(settings, saved._replace(shared={"labels": {1, 2}}))
    assert load(settings) is None


def test_settings():
    assert CheckpointSettings.from_config() is None
    with dask.config.set({"dask-ma.checkpoint.path": "memory://x"}):
        found = CheckpointSettings.from_config()
        assert found == CheckpointSettings("memory://x", every=1, keep=2, resume=True)
        for key in ("every", "keep"):
            for value in (0, 1.5, True, "two"):
                with (
                    dask.config.set({f"dask-ma.checkpoint.{key}": value}),
                    pytest.raises(ValueError, match=rf"checkpoint\.{key} is {value!r}"),
                ):
                    CheckpointSettings.from_config()
