"""Where names of other libraries are documented, for builds without a network.

Sphinx fetches the inventories of other projects when the pages are built. Where it
cannot, it takes the ones that are written here, which hold the names that these pages
refer to. A name that is missing here fails a build without a network; a name that is
here does not fail any, even if a project has moved it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

PROJECTS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "pandas": "https://pandas.pydata.org/docs/",
    "sklearn": "https://scikit-learn.org/stable/",
    "dask": "https://docs.dask.org/en/stable/",
    "distributed": "https://distributed.dask.org/en/stable/",
}

# Project: {name: (role, page)}; "$" stands for the name.
SKLEARN = "modules/generated/$.html#$"
NAMES: dict[str, dict[str, tuple[str, str]]] = {
    "python": dict.fromkeys(
        ("TypeError", "ValueError"), ("py:exception", "library/exceptions.html#$")
    ),
    "numpy": {},
    "scipy": {},
    "pandas": {},
    "sklearn": {
        f"sklearn.{name}": ("py:class", SKLEARN)
        for name in (
            "decomposition.LatentDirichletAllocation",
            "decomposition.MiniBatchDictionaryLearning",
            "feature_extraction.text.CountVectorizer",
            "linear_model.ElasticNet",
            "linear_model.ElasticNetCV",
            "linear_model.Lasso",
            "linear_model.LassoCV",
            "linear_model.LinearRegression",
            "linear_model.LogisticRegression",
            "linear_model.LogisticRegressionCV",
            "linear_model.Ridge",
            "linear_model.SGDClassifier",
            "linear_model.SGDRegressor",
            "model_selection.GridSearchCV",
            "neighbors.NeighborhoodComponentsAnalysis",
            "neural_network.MLPClassifier",
            "neural_network.MLPRegressor",
            "preprocessing.Normalizer",
            "svm.LinearSVC",
        )
    }
    | {
        f"sklearn.datasets.{name}_svmlight_file": ("py:function", SKLEARN)
        for name in ("dump", "load")
    },
    "dask": {
        "dask.config.set": ("py:class", "configuration.html#$"),
    },
    "distributed": {
        "distributed.secede": ("py:function", "api.html#$"),
    },
}


def write_inventory(project: str, folder: Path) -> str:
    """Write the fallback of one project in the format of Sphinx; return its path."""
    lines = [
        f"{name} {role} 1 {page} -" for name, (role, page) in NAMES[project].items()
    ]
    head = [
        "# Sphinx inventory version 2",
        f"# Project: {project}",
        "# Version: ",
        "# The remainder of this file is compressed using zlib.",
    ]
    path = folder / f"{project}.inv"
    path.write_bytes(
        "".join(f"{line}\n" for line in head).encode()
        + zlib.compress("".join(f"{line}\n" for line in lines).encode())
    )
    return str(path)


def known_names() -> list[tuple[str, str]]:
    """The names as Sphinx warns of them, in any role."""
    return [
        (f"py:{role}", name)
        for names in NAMES.values()
        for name in names
        for role in ("class", "exc", "func", "meth", "obj")
    ]


def intersphinx_mapping(folder: Path) -> dict[str, tuple[str, tuple[str | None, str]]]:
    """Projects, with the inventory of the network first and the fallback second."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        project: (address, (None, write_inventory(project, folder)))
        for project, address in PROJECTS.items()
    }
