"""The examples in docstrings and pages, and the programs in examples/."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dask_ma

ROOT = Path(__file__).parent.parent
PAGES = sorted(ROOT.glob("docs/*.rst")) + sorted(ROOT.glob("docs/user_guide/*.rst"))
MODULES = sorted(
    info.name for info in pkgutil.walk_packages(dask_ma.__path__, prefix="dask_ma.")
)
GALLERY = sorted(ROOT.glob("examples/plot_*.py"))


def has_example(text):
    """Whether there is a prompt in the text."""
    return ">>> " in text


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if has_example(page.read_text())],
    ids=lambda page: page.stem,
)
def test_page(page):
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name.startswith("dask_ma.mpca._torch"):
        pytest.importorskip("torch", reason="modules need torch")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_readme_example(capsys):
    block = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(block, "README.md", "exec"), {})
    accuracy, objective = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.8
    assert 0 < objective < 1


@pytest.mark.slow
@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery(path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="plots need matplotlib")
    pyplot.switch_backend("Agg")
    names = runpy.run_path(str(path))
    assert names["figure"].axes
    pyplot.close("all")


@pytest.mark.slow
def test_demo():
    """In a process of its own, as the workers import it again."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "clinc150_intents.py")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    ours, theirs = (
        float(line.split()[-1])
        for line in result.stdout.splitlines()
        if line.startswith(("dask_ma ", "scikit-learn "))
    )
    assert ours > 0.9
    assert ours == pytest.approx(theirs, abs=0.01)
