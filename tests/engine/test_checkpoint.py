"""Checkpoints in files: what is written is read, what is damaged is refused."""

import builtins
import hashlib
import io
import json
import math
import os
import pickle
import re
import shutil
import signal
import struct
import zipfile
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
from distributed.utils import get_mp_context

from dask_ma.data._spec import pack_pieces
from dask_ma.engine import RankContext
from dask_ma.engine.recovery import _manifest
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._identity import CheckpointSettings, FitInfo, Identity
from dask_ma.engine.recovery._manifest import Saved
from dask_ma.exceptions import CheckpointError

SERIES = "Estimator-01234567-89abcdef-00000000"


@pytest.fixture(params=["directory", "memory"])
def any_path(request, tmp_path):
    if request.param == "directory":
        return str(tmp_path / "fits")
    return f"memory://{tmp_path.name}"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fits"


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory):
    """Directory of a series of two checkpoints."""
    path = tmp_path_factory.mktemp("whole")
    save(path, 1, 2)
    return path


def saved_after(number):
    """A checkpoint with a bit of everything."""
    return Saved(
        name="Estimator",
        parameters={"alpha": "0.1"},
        options={"max_iter": 10, "tol": None},
        data={"rows": 20, "classes": ["no", "yes"], "y": "00ff"},
        fit_id="abc",
        writer={"host": "here", "pid": 1, "started": 1.5},
        seed=7,
        done=False,
        round=number,
        elapsed=1.5,
        shared={
            "coef": np.arange(6, dtype=np.float32).reshape(2, 3) * number,
            "classes": np.array(["no", "yes"], dtype=object),
            "counts": np.arange(4),
            "names": np.array(["a", "bc"]),
            "nothing": None,
            "t": np.float64(0.1),
            "gap": math.inf,
            "stop": False,
        },
        own=[{"n_rows": rank, "w": np.full(rank, 1.5)} for rank in range(3)],
        shares=[[[0, 5]], [[5, 8], [10, 12]], []],
        history=[
            {"round": r, "objective": math.nan, "bytes_sent": np.int64(3)}
            for r in range(1, number + 1)
        ],
    )


def save(path, *numbers, keep=2):
    for number in numbers:
        Store(str(path)).save(SERIES, saved_after(number), keep)


def load(path):
    """The newest checkpoint."""
    store = Store(str(path))
    return store.load(SERIES, store.series()[SERIES][-1])


def files(path):
    fs, root = fsspec.core.url_to_fs(str(path))
    return sorted(name.rpartition("/")[2] for name in fs.find(root))


# What is written ----------------------------------------------------------------------


def test_what_is_saved_is_loaded(any_path):
    wanted = saved_after(3)
    save(any_path, 3)
    found = load(any_path)
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
    assert all(math.isnan(record.pop("objective")) for record in found.history)
    assert found.history == [{"round": r, "bytes_sent": 3} for r in (1, 2, 3)]


def test_a_state_may_hold_named_values(path):
    """Also by the names that stand for something else in the file."""
    wanted = {"array": np.arange(3), "named": {"float": math.inf, "n": 2}, "none": {}}
    saved = saved_after(1)._replace(shared={"more": wanted}, own=[{"x": wanted}] * 3)
    Store(str(path)).save(SERIES, saved, 2)
    loaded = load(path)
    for found in (loaded.shared["more"], *(own["x"] for own in loaded.own)):
        np.testing.assert_array_equal(found.pop("array"), np.arange(3))
        assert found == {"named": {"float": math.inf, "n": 2}, "none": {}}


def test_a_state_says_what_it_lacks(path):
    save(path, 1)
    with pytest.raises(CheckpointError, match=r"round-00000001.*'more' is missing"):
        load(path).shared["more"]


def test_nothing_there(any_path):
    assert Store(any_path).series() == {}


def test_several_series(any_path):
    store = Store(any_path)
    for number, name in enumerate(("one", "two"), start=1):
        store.save(name, saved_after(number), 2)
        store.save(name, saved_after(number + 2), 2)
    assert store.series() == {"one": [1, 3], "two": [2, 4]}


def test_the_newest_is_loaded_and_old_ones_go(any_path):
    save(any_path, 1, 2, 10)
    assert load(any_path).round == 10
    assert files(any_path) == [
        f"round-{number:08d}.{suffix}"
        for number in (2, 10)
        for suffix in ("json", "npz")
    ]


def test_a_fit_that_starts_anew_removes_what_is_ahead_of_it(path):
    save(path, 8, 9)
    save(path, 1)
    assert load(path).round == 1
    assert len(files(path)) == 2


def test_removed_by_another_process_at_the_same_time(path, monkeypatch):
    save(path, 1, 2)
    remove = type(fsspec.filesystem("file")).rm_file

    def twice(self, name):
        remove(self, name)
        remove(self, name)

    monkeypatch.setattr(type(fsspec.filesystem("file")), "rm_file", twice)
    save(path, 3)
    assert load(path).round == 3


def test_a_checkpoint_without_its_manifest_does_not_exist(path):
    save(path, 1, 2)
    (path / SERIES / "round-00000002.json").unlink()
    assert load(path).round == 1


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_write_that_fails_leaves_the_old_one(path, monkeypatch, step):
    save(path, 1)

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(builtins if step == "open" else os, step, fail)
    with pytest.raises(CheckpointError, match="no space left"):
        save(path, 2)
    monkeypatch.undo()
    assert load(path).round == 1
    assert files(path) == ["round-00000001.json", "round-00000001.npz"]


def test_a_write_to_a_remote_directory_that_fails(tmp_path, monkeypatch):
    path = f"memory://{tmp_path.name}"
    save(path, 1)

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "open", fail)
    with pytest.raises(CheckpointError, match="no space left"):
        save(path, 2)
    monkeypatch.undo()
    assert load(path).round == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, here)
from test_checkpoint import save
replace = os.replace
def kill(*args):
    if not n_left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    n_left[0] -= 1
    replace(*args)
os.replace = kill
save(path, 2)
"""


@pytest.mark.parametrize("n_files", [0, 1])
def test_a_writer_that_is_killed(path, n_files):
    """What it was writing lies beside the others, and goes with the next save."""
    save(path, 1)
    names = {"path": path, "here": str(Path(__file__).parent), "n_left": [n_files]}
    process = get_mp_context().Process(target=exec, args=(KILLED, names))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    [left] = (path / SERIES).glob(".*")
    assert left.name.endswith(".part")
    assert load(path).round == 1
    save(path, 2)
    assert load(path).round == 2
    assert not list((path / SERIES).glob(".*"))


def test_who_may_read_a_checkpoint(path):
    """As for any other file, the process's mask says so."""
    save(path, 1)
    (path / "other").write_text("")
    modes = {file.stat().st_mode for file in (path / SERIES).iterdir()}
    assert modes == {(path / "other").stat().st_mode}


def test_other_files_do_not_matter(path):
    save(path, 1)
    (path / "notes.json").write_text("mine")
    (path / SERIES / "round-1.json").write_text("mine")
    assert load(path).round == 1


def test_what_cannot_be_saved(path):
    saved = saved_after(1)._replace(shared={"labels": {1, 2}})
    with pytest.raises(TypeError, match="a set cannot be saved"):
        Store(str(path)).save(SERIES, saved, 2)
    assert Store(str(path)).series() == {}


def test_an_old_format_is_refused(path):
    path.mkdir()
    file = path / "round-00000004.json"
    file.write_text('{"format": "dask_ma checkpoint", "version": 1}')
    with pytest.raises(
        CheckpointError, match=r"round-00000004\.json has the version 1.*remove it"
    ):
        Store(str(path)).series()


# What is damaged ----------------------------------------------------------------------


class Evil:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


class Files:
    """The newest checkpoint of a series, to be tampered with."""

    def __init__(self, folder, *, is_crafted):
        self.folder = Path(folder)
        self.is_crafted = is_crafted  # with checksums that are right
        numbers = sorted(file.stem for file in self.folder.glob("*.json"))
        self.stem, self.before = numbers[-1], numbers[-2]
        self.mark = self.folder / "mark"
        self.json = self.folder / f"{self.stem}.json"
        self.npz = self.folder / f"{self.stem}.npz"

    def edit(self, change):
        """Change the manifest."""
        manifest = json.loads(self.json.read_bytes())
        changed = change(manifest)
        manifest = manifest if changed is None else changed
        if self.is_crafted:
            manifest.pop("checksum", None)
            manifest["checksum"] = _manifest._checksum(manifest)
        self.json.write_text(json.dumps(manifest))

    def put(self, data):
        """Replace the arrays, and their checksum with them."""
        self.npz.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        self.edit(lambda manifest: manifest.update(sha256=digest))

    def arrays(self):
        return dict(np.load(self.npz))

    def swap(self, *suffixes):
        """Let two rounds change their files."""
        for suffix in suffixes:
            one, two = (
                self.folder / f"{stem}.{suffix}" for stem in (self.stem, self.before)
            )
            content = one.read_bytes()
            one.write_bytes(two.read_bytes())
            two.write_bytes(content)

    def replace(self, convert):
        """Convert each array."""
        changed = {name: convert(array) for name, array in self.arrays().items()}
        self.put(packed(**changed))


def packed(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def pickled_array(mark):
    buffer = io.BytesIO()
    array = np.array([Evil(mark)], dtype=object)
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def zipped(files, names, header, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", header)
    files.put(buffer.getvalue())


def huge(files):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
    header += b" " * (117 - len(header)) + b"\n"
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
    zipped(files, files.arrays(), start + header + b"0" * 64)


def patched(place, value):
    """Change a byte of the first entry in the directory of the archive."""

    def change(files):
        data = bytearray(files.npz.read_bytes())
        data[data.find(b"PK\x01\x02") + place] = value
        files.put(bytes(data))

    return change


def flipped(files):
    data = bytearray(files.npz.read_bytes())
    data[len(data) // 2] ^= 1
    files.npz.write_bytes(bytes(data))


def within(files):
    data = bytearray(files.npz.read_bytes())
    data[200] ^= 0xFF
    files.put(bytes(data))


def halved(name):
    def change(files):
        file = getattr(files, name)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return change


def written(name, content):
    return lambda files: getattr(files, name).write_bytes(content)


def entry(key, value):
    return lambda files: files.edit(lambda manifest: manifest.update({key: value}))


def without(key):
    return lambda files: files.edit(lambda manifest: manifest.pop(key) and None)


def edited(change):
    return lambda files: files.edit(change)


def deep(files):
    text = json.dumps(json.loads(files.json.read_bytes()))
    nested = "[" * 50_000 + "]" * 50_000
    files.json.write_text(text.replace('"shared": {', f'"shared": {{"z": {nested},', 1))


def in_the_way(files):
    files.json.unlink()
    (files.folder / "round-00000099.json").mkdir()


def linked(files):
    files.npz.unlink()
    files.npz.symlink_to("/etc/passwd")


def rotated(manifest):
    tables = [k for k, v in manifest["shared"].items() if isinstance(v, dict)]
    values = [manifest["shared"][k] for k in tables]
    manifest["shared"].update(zip(tables, values[1:] + values[:1], strict=True))


def scalars(manifest):
    for key, value in manifest["shared"].items():
        if not isinstance(value, dict):
            manifest["shared"][key] = "boo"


def first_shared(manifest):
    del manifest["shared"][min(manifest["shared"])]


def to_float32(array):
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def to_nan(array):
    return np.full_like(array, np.nan) if array.dtype.kind == "f" else array


def to_large(array):
    return np.full_like(array, 2**31 - 5) if array.dtype.kind in "iu" else array


def shorter(array):
    return array[..., :-1] if array.ndim and array.shape[-1] > 1 else array


TAMPERED = {
    "flipped": flipped,
    "half npz": halved("npz"),
    "half json": halved("json"),
    "empty json": written("json", b""),
    "empty npz": written("npz", b""),
    "no npz": lambda files: files.npz.unlink(),
    "list": written("json", b"[1]"),
    "random": written("json", bytes(range(256))),
    "deep": written("json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep shared": deep,
    "folder": in_the_way,
    "npz of two rounds": lambda files: files.swap("npz"),
    "json of two rounds": lambda files: files.swap("json"),
    "both of two rounds": lambda files: files.swap("npz", "json"),
    "pickle in npz": lambda files: files.put(
        packed(**files.arrays(), z=np.array([Evil(files.mark)], dtype=object))
    ),
    "pickle for npz": lambda files: files.put(pickle.dumps(Evil(files.mark))),
    "pickle in npy": lambda files: files.put(pickled_array(files.mark)),
    "npy for npz": lambda files: files.put(b"\x93NUMPY\x01\x00v\x00"),
    "no arrays": lambda files: files.put(packed(z=np.arange(3))),
    "other shapes": lambda files: files.replace(lambda _: np.zeros((3, 3, 3))),
    "shorter": lambda files: files.replace(shorter),
    "texts": lambda files: files.replace(lambda array: array.astype("U8")),
    "complex": lambda files: files.replace(
        lambda array: array.astype(complex) if array.dtype.kind in "fiu" else array
    ),
    "nan": lambda files: files.replace(to_nan),
    "float32": lambda files: files.replace(to_float32),
    "large integers": lambda files: files.replace(to_large),
    "huge": huge,
    "method": patched(10, 99),
    "encrypted": patched(8, 1),
    "byte within": within,
    "deflated": lambda files: zipped(
        files, files.arrays(), b"0" * 5000, zipfile.ZIP_DEFLATED
    ),
    "shared dropped": edited(first_shared),
    "shared rotated": edited(rotated),
    "shared scalars": edited(scalars),
    "own reversed": edited(lambda m: m.update(own=m["own"][::-1])),
    "own empty": edited(lambda m: m.update(own=[{} for _ in m["own"]])),
    "own objects": edited(
        lambda m: m.update(own=[{k: {"objects": ["x"]} for k in o} for o in m["own"]])
    ),
    "other records": edited(
        lambda m: m.update(history=[{"objective": "x"} for _ in m["history"]])
    ),
    "fewer records": edited(lambda m: m.update(history=m["history"][:1])),
    "other parameters": edited(lambda m: m["parameters"].update(alpha="17")),
    "other rows": edited(lambda m: m["data"].update(rows=17)),
    "stray": lambda files: (files.folder / "round-00000050.json").write_text("{}"),
    "linked": linked,
    **{
        f"{key}={value!r}": entry(key, value)
        for key, values in {
            "round": ["abc", -5, 10**9, 1.5, None, True],
            "elapsed": ["x", None, 1e300, -1],
            "own": [[], {}, [1, 2]],
            "shared": [{}, [], "abc"],
            "history": [[1, 2], "abc", []],
            "parameters": [[1], None],
            "name": [5, "SVC"],
            "sha256": [5],
            "version": [1, 2, 4],
            "seed": [-1, None],
            "done": [1],
            "data": [[]],
        }.items()
        for value in values
    },
    **{
        f"without {key}": without(key)
        for key in ("version", "own", "history", "sha256", "checksum", "data")
    },
}
#: What changes nothing that is read.
HARMLESS = {"folder"}


@pytest.mark.each
@pytest.mark.parametrize("name", TAMPERED)
@pytest.mark.parametrize("is_crafted", [False, True], ids=["", "crafted"])
def test_tampered(two_rounds, path, name, is_crafted):
    """Refused in words that help, or read; never anything else, and nothing is run."""
    shutil.copytree(two_rounds, path)
    files = Files(path / SERIES, is_crafted=is_crafted)
    TAMPERED[name](files)
    try:
        load(path)
        assert is_crafted or name in HARMLESS
    except CheckpointError as error:
        assert str(path / SERIES) in str(error)
        assert re.search(r"remove (it\b|\S*\.json)", str(error))
    assert not files.mark.exists()


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_any_byte_may_be_damaged(path, suffix):
    save(path, 1, 2)
    file = path / SERIES / f"round-00000002.{suffix}"
    original, wanted = file.read_bytes(), _manifest.encode(saved_after(2))
    rng = np.random.default_rng(0)
    n_refused = 0
    for _ in range(100):
        data = bytearray(original)
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        file.write_bytes(bytes(data))
        try:
            # White space has no meaning: what is read is what was saved.
            assert _manifest.encode(load(path))[0] == wanted[0]
        except CheckpointError as error:
            assert str(file.with_suffix("")) in str(error)
            n_refused += 1
    assert n_refused > 60


# Settings -----------------------------------------------------------------------------


def test_settings():
    assert CheckpointSettings.from_config() is None
    with dask.config.set({"dask-ma.checkpoint.path": "memory://x"}):
        found = CheckpointSettings.from_config()
        assert found == CheckpointSettings("memory://x", every=1, keep=2, resume=True)
        for key, values in {
            "every": (0, 1.5, True, "two"),
            "keep": (0, 1.5, True, "two"),
            "every-seconds": (-1, "soon", None, math.inf),
            "on-mismatch": ("warn", None),
        }.items():
            for value in values:
                with (
                    dask.config.set({f"dask-ma.checkpoint.{key}": value}),
                    pytest.raises(ValueError, match=rf"checkpoint\.{key} is {value!r}"),
                ):
                    CheckpointSettings.from_config()
        with dask.config.set({"dask-ma.checkpoint.every-seconds": "10 minutes"}):
            assert CheckpointSettings.from_config().every_seconds == 600


# Whose rows they were -----------------------------------------------------------------


def shard_of(*ranges):
    """Arguments of a rank that has some of 12 rows."""
    X, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    pieces = [
        ((X[a:b], y[a:b], None), 0, b - a, b - a, number, a)
        for number, (a, b) in enumerate(ranges)
    ]
    return {**pack_pieces(pieces), "aligned": None, "n_features": 2, "dtype": X.dtype}


@pytest.mark.parametrize(
    ("shares", "own", "words"),
    [
        ([[(0, 6)], [(6, 12)]], [0, 1], None),
        ([[(0, 3), (3, 6)], [(6, 12)]], [0, 1], None),
        ([[(0, 4)], [(4, 12)]], [None, None], "2 ranks with other shares of the rows"),
        ([[(6, 12)], [(0, 6)]], [None, None], "2 ranks with other shares of the rows"),
        ([[(0, 12)]], [None], "2 ranks and goes on with 1"),
    ],
    ids=str,
)
def test_what_a_rank_had_of_its_own_goes_with_its_rows(
    run_ranks, path, shares, own, words
):
    settings = CheckpointSettings(str(path), every=1, keep=2, resume=True)
    identity = Identity("Estimator", {"alpha": "1"})
    fit_info = FitInfo("Estimator", "fit", checkpoint=settings, identity=identity)

    def save_one(group):
        rows = shard_of([(0, 6), (6, 12)][group.rank])
        context = RankContext(group, 0, fit_info=fit_info, arguments=rows)
        assert context.restore_state() is None
        context.save_state(1, {"w": np.zeros(1)}, {"w": np.full(1, group.rank)})

    def go_on(group):
        rows = shard_of(*shares[group.rank])
        context = RankContext(group, 0, fit_info=fit_info, arguments=rows)
        found = context.restore_state()
        return None if found.own is None else int(found.own["w"][0]), context.notes

    run_ranks(save_one, 2)
    results = run_ranks(go_on, len(shares))
    assert [mine for mine, _ in results] == own
    notes = results[0][1]
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]
