"""Configuration of the documentation."""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import dask_ma

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import inventories  # noqa: E402

# The examples run one after the other on few cores; one thread each is fastest.
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

project = "dask_ma"
author = "dask_ma developers"
copyright = f"2026, {author}"
version = release = dask_ma.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "_templates", "measured"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["custom.css"]

# Every reference has to lead somewhere. Without a network the inventories of other
# libraries are those of _ext/inventories.py.
nitpicky = True
intersphinx_mapping = inventories.intersphinx_mapping(DOCS / "_build" / "inventories")
intersphinx_timeout = 5
nitpick_ignore = inventories.known_names()

# The figures of speed on the start page and in the user guide, from one file, which
# asv_bench/peers/ranks.py writes.
with (DOCS / "measured" / "ranks.csv").open() as file:
    _fits = {row["fit"]: row for row in csv.DictReader(file)}
rst_epilog = "\n".join(
    f".. |{name}| replace:: {value}"
    for name, value in {
        "sgd_seconds": _fits["SGDClassifier"]["seconds"],
        "processes_seconds": _fits["2 processes"]["seconds"],
        "processes_ratio": _fits["2 processes"]["ratio"],
        "threads_ratio": _fits["2 threads"]["ratio"],
        "rank_ratio": _fits["1 rank"]["ratio"],
    }.items()
)

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# PyTorch is no requirement of the pages: without it, its example is shown and not run.
_has_torch = importlib.util.find_spec("torch") is not None

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_" if _has_torch else r"/plot_(?!torch_)",
    "ignore_pattern": r"clinc150_intents\.py",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "within_subsection_order": "gallery_order.TeachingOrder",
}

html_theme = "pydata_sphinx_theme"
html_title = "dask_ma"
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"getting_started": [], "architecture": [], "references": []}
