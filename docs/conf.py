"""Configuration of the documentation."""

from __future__ import annotations

import os
import warnings

import dask_ma

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
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
nitpicky = False

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"clinc150_intents\.py",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "within_subsection_order": "ExampleTitleSortKey",
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
