"""The examples in docstrings and pages, the programs in examples/, private names."""

from __future__ import annotations

import ast
import csv
import doctest
import importlib
import importlib.util
import pkgutil
import re
import runpy
import socket
import textwrap
from contextlib import suppress
from functools import partial
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster
from scipy import sparse

import dask_ma
from dask_ma import MASGDClassifier

ROOT = Path(__file__).parent.parent
BUILT = {"_build", "auto_examples", "generated"}
PAGES = [
    page
    for page in sorted(ROOT.glob("docs/**/*.rst"))
    if not BUILT.intersection(page.relative_to(ROOT / "docs").parts)
]
MODULES = sorted(
    info.name for info in pkgutil.walk_packages(dask_ma.__path__, prefix="dask_ma.")
)
GALLERY = sorted(ROOT.glob("examples/plot_*.py"))
# Authors of estimators call it; the page about extending has an example.
FOR_SUBCLASSES = {"DistributedEstimator._apply"}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def has_example(text):
    """Whether there is a prompt in the text."""
    return ">>> " in text


# Dask uses what the newest pandas advises against.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if has_example(page.read_text())],
    ids=lambda page: page.stem,
)
def test_page(page):
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 0
    assert failed == 0


def is_there(name):
    """Whether what a module rests on is there."""
    needs_torch = name.startswith("dask_ma.mpca.torch._solver")
    return not needs_torch or importlib.util.find_spec("torch") is not None


def source_of(name):
    """The text of a module, which is not imported for that."""
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text()


def test_all_modules_can_be_imported():
    for name in filter(is_there, MODULES):
        assert importlib.import_module(name).__name__ == name


@pytest.mark.parametrize(
    "name", [name for name in MODULES if has_example(source_of(name))]
)
def test_docstrings(name):
    if not is_there(name):
        pytest.skip("modules need torch")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0


def long_private_docstrings(node, owner="", *, is_private=False):
    """Names with an underscore, or inside of one, with more than a line."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, DEFINITIONS):
            yield from long_private_docstrings(child, owner, is_private=is_private)
            continue
        name = f"{owner}.{child.name}".strip(".")
        own = child.name.startswith("_") and not child.name.endswith("__")
        if (is_private or own) and "\n" in (ast.get_docstring(child) or ""):
            yield name
        yield from long_private_docstrings(child, name, is_private=is_private or own)


@pytest.fixture(scope="module")
def trees():
    """Each module of the package, parsed."""
    paths = (ROOT / "dask_ma").rglob("*.py")
    return {path: ast.parse(path.read_text()) for path in paths}


def test_private_names_have_one_line(trees):
    found = {name for tree in trees.values() for name in long_private_docstrings(tree)}
    assert found == FOR_SUBCLASSES


def test_modules_are_described_by_nouns(trees):
    """A list of them is a list of things, not of questions."""
    questions = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
    first_words = {
        path.relative_to(ROOT).as_posix(): ast.get_docstring(tree).split()[0]
        for path, tree in trees.items()
    }
    assert not {path for path, word in first_words.items() if word in questions}


def test_each_folder_is_in_the_table_of_rooms():
    table = (ROOT / "docs/extending.rst").read_text().partition("Which room?")[2]
    rooms = set(re.findall(r"``([\w/]+)``", table))
    package = ROOT / "dask_ma"
    missing = {room for room in rooms if not (package / room).is_dir()}
    assert not {room for room in missing if not (package / f"{room}.py").is_file()}
    folders = {
        path.parent.relative_to(package).as_posix()
        for path in package.glob("*/**/__init__.py")
    }
    assert folders <= {
        parent.as_posix()
        for room in rooms
        for parent in (Path(room), *Path(room).parents)
    }


def test_the_glossary_says_what_each_estimator_counts():
    page = (ROOT / "docs/glossary.rst").read_text()
    table = page.partition("``max_iter`` and")[2].partition("\nData\n")[0]
    estimators = {n for n in dask_ma.__all__ if hasattr(getattr(dask_ma, n), "fit")}
    assert estimators == set(re.findall(r"~dask_ma\.(\w+)`\s*(?:,|\n)", table))


def test_scaling_on_the_page_about_files():
    """The one block there that needs a package of its own."""
    pytest.importorskip("dask_ml", reason="the block uses dask-ml")
    page = (ROOT / "docs" / "user_guide" / "files.rst").read_text()
    [block] = re.findall(r".. code-block:: python\n\n((?:   .*\n|\n)+)", page)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(100, 2)) * [1000, 1] + [2000, 14])
    table.columns = ["distance", "hour"]
    flights = dd.from_pandas(table, npartitions=3)
    y = flights["hour"] > 14
    names = {"MASGDClassifier": MASGDClassifier, "flights": flights, "y": y}
    exec(compile(textwrap.dedent(block), "files.rst", "exec"), names)
    assert names["pipeline"].predict(table).tolist() == pytest.approx(
        names["pipeline"].predict(names["X"]).compute().tolist()
    )
    assert names["pipeline"].score(table, table["hour"] > 14) > 0.9


def test_readme_example(capsys):
    block = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(block, "README.md", "exec"), {})
    accuracy, objective = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.8
    assert 0 < objective < 1


def test_readme_has_the_measured_figures():
    """Those that the comparison of ranks has written."""
    with (ROOT / "docs" / "measured" / "ranks_within.csv").open() as file:
        fits = {row["fit"]: row for row in csv.DictReader(file)}
    ours, theirs = fits["2 processes"], fits["SGDClassifier"]
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"in {ours['seconds']} s, where" in said
    assert f"takes {theirs['seconds']} s: {ours['ratio']} of its time" in said


def test_rows_are_brought_to_workers_as_the_page_says(inproc_client):
    page = (ROOT / "docs" / "user_guide" / "ranks_and_memory.rst").read_text()
    code = page.split("   import dask\n", 1)[1].split("\n   X_there", 1)[0]
    names = {}
    exec("import dask\n" + code.replace("\n   ", "\n").lstrip(), names)
    X = sparse.random(100, 6, density=0.5, format="csr", random_state=0)
    with inproc_client.as_current():
        there = names["to_workers"](inproc_client, X, 30)
        assert there.chunks == ((30, 30, 30, 10), (6,))
        assert sparse.issparse(there.blocks[0].compute())
        np.testing.assert_array_equal(there.compute().toarray(), X.toarray())
        labels = names["to_workers"](inproc_client, np.arange(100), 30)
        np.testing.assert_array_equal(labels.compute(), np.arange(100))


def test_examples_have_a_place_in_the_gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    order = importlib.import_module("gallery_order").ORDER
    assert sorted(order) == [path.name for path in GALLERY]


def test_names_of_other_libraries_exist(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    names = importlib.import_module("inventories").NAMES
    for name in [name for project in names.values() for name in project]:
        module, _, attribute = name.rpartition(".")
        owner = importlib.import_module(module or "builtins")
        assert getattr(owner, attribute) is not None


# What takes seconds in programs that are to run, and is as well tried by less.
SMALLER = {
    "plot_butterfly": {"(10_000, 5_000,": "(2_000, 1_000,", "max_iter=8": "max_iter=2"},
    "plot_convergence": {
        "50_000, 5_000,": "2_000, 300,",
        "unique(labels)[:20]": "unique(labels)[:5]",
        "max_iter=10": "max_iter=2",
    },
    "plot_dask_arrays": {
        "40_000, 5_000": "4_000, 500",
        "chunk_rows=5_000": "chunk_rows=500",
        "30_000": "3_000",
        "max_iter=10": "max_iter=2",
    },
    "plot_denoising": {
        'load_sample_image("china.jpg")': 'load_sample_image("china.jpg")[::2, ::2]',
        "100, alpha=0.2, max_iter=4": "100, alpha=0.2, max_iter=1",
    },
    "plot_factor_broadcast": {
        "X[::3] / 16, y[::3]": "X[::12] / 16, y[::12]",
        "max_iter=5": "max_iter=2",
    },
    "plot_factor_model": {
        "2000, 60, 40": "500, 30, 20",
        '"n_passes": 10': '"n_passes": 2',
    },
    "plot_gantt": {"(20_000, 200_000,": "(2_000, 20_000,"},
    "plot_gibbs_topics": {
        "size=300": "size=75",
        "240": "60",
        "max_iter=50": "max_iter=5",
        "range(1, 51)": "range(1, 6)",
    },
    "plot_metric_learning": {
        "early_stopping=True,": "max_iter=5,",
        "max_iter=60": "max_iter=5",
    },
    "plot_mpca_images": {"(512, 256)": "(64, 32)", "max_iter=8": "max_iter=2"},
    "plot_scheduled_program": {"n_iterations=800": "n_iterations=200"},
    "plot_sparse_regression": {
        "alphas=50": "alphas=26",
        "KFold(5,": "KFold(2,",
        "(500, 200)": "(500, 40)",
        "2000": "400",
    },
    "plot_topics": {"max_iter=20": "max_iter=4"},
    "plot_torch_module": {"max_iter=15": "max_iter=3"},
}


@pytest.fixture
def taken_port():
    """Another cluster has the port on which Dask serves its pages by default."""
    with socket.socket() as other:
        with suppress(OSError):  # another one has it indeed
            other.bind(("", 8787))
            other.listen()
        yield


# The tests of rotation run it, and look at its curves, too.
ELSEWHERE = {"plot_rotation_program"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in GALLERY if path.stem not in ELSEWHERE],
    ids=lambda path: path.stem,
)
def test_gallery(path, taken_port, monkeypatch, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="plots need matplotlib")
    if path.stem.startswith("plot_torch_"):
        pytest.importorskip("torch", reason="modules need torch")
    pyplot.switch_backend("Agg")
    # Processes like those that it starts, but which need not import all anew.
    forked = partial(LocalCluster, processes=True)
    monkeypatch.setattr("dask.distributed.SubprocessCluster", forked)
    monkeypatch.delenv("DASK_MA_DATA", raising=False)  # pages are built with it
    source = path.read_text()
    for words, others in SMALLER.get(path.stem, {}).items():
        assert words in source
        source = source.replace(words, others)
    (tmp_path / path.name).write_text(source)
    names = runpy.run_path(str(tmp_path / path.name))
    assert names["figure"].axes
    pyplot.close("all")


# A sixth of the matters that queries are on.
ONE_SIXTH = """
def load_clinc150(part):
    from dask_ma import datasets

    texts, labels = datasets.load_clinc150(part)
    chosen = np.isin(labels, np.unique(labels)[::6])
    return [text for text, is_in in zip(texts, chosen) if is_in], labels[chosen]
"""


@pytest.mark.slow
def test_demo(tmp_path, capsys):
    """Its workers, which are forked from where all modules are, import it again."""
    source = (ROOT / "examples" / "clinc150_intents.py").read_text()
    line = "from dask_ma.datasets import load_clinc150\n"
    assert line in source
    path = tmp_path / "clinc150_intents.py"
    path.write_text(source.replace(line, ONE_SIXTH))
    runpy.run_path(str(path), run_name="__main__")
    ours, theirs = (
        float(line.split()[-1])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("dask_ma ", "scikit-learn "))
    )
    assert ours > 0.9
    assert ours == pytest.approx(theirs, abs=0.01)
