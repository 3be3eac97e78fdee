"""What an installation contains, and what importing it loads."""

from __future__ import annotations

import configparser
import importlib
import json
import logging.config
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata, resources
from pathlib import Path

import grimp
import numpy as np
import pytest
import yaml
from importlinter import cli
from scipy import sparse

import dask_ma

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setup_cfg():
    """setup.cfg of the sources."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


AGENTS = [
    "butterfly._agent",
    "ma.lda._agent",
    "ma.sgd._agent",
    "mpca.training._agent",
    "schmp.factorization._agent",
    "schmp.l1._agent",
    "schmp.topics._agent",
    "sfb.dictionary._agent",
    "sfb.logistic._agent",
    "sfb.metric._agent",
]
# Copies of a process that has loaded what all of them need: first nothing, then
# distributed, then what all agents rest on.
LOAD = """
import json, os, sys, warnings

def in_a_copy(function):
    read, write = os.pipe()
    if os.fork() == 0:
        with os.fdopen(write, "w") as end:
            json.dump(function(), end)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        result = json.load(end)
    assert os.wait()[1] == 0
    return result

def modules_after(*imports):
    def load():
        found, names = [], {}
        for line in imports:
            exec(line, names)
            found.append(list(sys.modules))
        return found

    return in_a_copy(load)

def in_any_order():
    import numpy, sklearn.linear_model
    assert "dask" not in sys.modules
    lines = "import dask.array, dask_ma.base", "import dask_ma.base, dask.array"
    return [modules_after(line)[0] for line in lines]

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def fitted_without_pandas():
    assert "pandas" not in sys.modules
    sys.meta_path.insert(0, NotInstalled())
    import dask.array as da, numpy as np, dask_ma
    rng = np.random.default_rng(0)
    counts, y = rng.integers(0, 4, (60, 6)).astype(float), np.arange(60) % 2
    targets = y.astype(float)
    pairs = rng.integers(0, 9, (60, 2))
    options = {"SchMPLassoCV": {"cv": 2}, "SFBDictionaryLearning": {"n_components": 2}}
    warnings.simplefilter("ignore")
    fitted = []
    for name in dask_ma.__all__:
        kind = getattr(dask_ma, name)
        if not isinstance(kind, type):
            continue
        X = pairs if "Factorization" in name else counts
        values = targets if "Factorization" in name else y
        model = kind(**options.get(name, {})).set_params(max_iter=2)
        model.fit(X, values)
        model.fit(da.from_array(X, chunks=(20, -1)), da.from_array(values, chunks=20))
        fitted.append(name)
    return fitted

[dask] = modules_after("import dask.sizeof")
found = {"dask": dask, "any order": in_a_copy(in_any_order)}
import distributed
found["before"] = list(sys.modules)
found["method"] = modules_after(
    "import dask_ma",
    "dask_ma.topics",
    "import sklearn.linear_model",
    "from dask_ma import MASGDClassifier",
    "from dask_ma import *",
    "import dask_ma.plotting",
)
import dask_ma.comm, dask_ma.data, dask_ma.engine, dask_ma.kernels
for agent in AGENTS:
    [found[agent]] = modules_after("import dask_ma." + agent)
found["without pandas"] = in_a_copy(fitted_without_pandas)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded_by():
    """What a fresh interpreter has loaded after some imports, and the like."""
    code = f"AGENTS = {AGENTS}\n{LOAD}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_rank_loads_what_its_fit_needs(loaded_by, agent):
    """New workers import it at the beginning of their first fit."""
    loaded = loaded_by[agent]
    assert f"dask_ma.{agent}" in loaded
    folders = {name.split(".")[1] for name in loaded if name.startswith("dask_ma.")}
    systems = {"ma", "butterfly", "sfb", "schmp", "mpca"}
    assert folders & systems == {agent.split(".")[0]}
    parts = ("lda", "sgd", "topics", "factorization", "l1", "metric", "dictionary")
    method, _, part = agent.partition("._agent")[0].partition(".")
    others = [f"dask_ma.{method}.{name}" for name in parts if name != part]
    unused = ["dask.array", "dask_ma.base", "pandas", "scipy.optimize", "sklearn"]
    not_needed = (*others, *unused)
    assert not {name for name in loaded if name.startswith(not_needed)}


@pytest.mark.parametrize(
    "folder", ["butterfly", "linear", "ma", "mpca", "schmp", "sfb"]
)
def test_names_of_a_folder_come_when_they_are_asked_for(folder):
    module = importlib.import_module(f"dask_ma.{folder}")
    assert {*module.__all__} <= {*dir(module)}
    for name in module.__all__:
        assert getattr(module, name) is vars(module)[name]
    with pytest.raises(AttributeError, match=f"'dask_ma.{folder}' has no .* 'nothing'"):
        module.nothing  # noqa: B018


def test_version_is_that_of_the_distribution():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", dask_ma.__version__)
    assert metadata.version("dask_ma") == dask_ma.__version__


def test_release_is_that_of_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert dask_ma.__version__.startswith(citation["version"])


@pytest.mark.parametrize(
    "name", ["py.typed", "dask_ma.yaml", "datasets/data/clinc150.json.gz"]
)
def test_data_files_lie_in_the_package(name):
    assert resources.files("dask_ma").joinpath(name).is_file()


@pytest.mark.slow
def test_wheel_contains_everything(tmp_path):
    """Built from a copy, so that nothing is left in the sources."""
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "docs")
    )
    # As pip has it built, which takes another second to start.
    build = "import sys; from setuptools.build_meta import build_wheel as build; "
    subprocess.run(
        [sys.executable, "-c", f"{build}build(sys.argv[1])", str(tmp_path)],
        cwd=copy,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dask_ma").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources | {"_dask_ma_sizeof.py"} <= shipped
    assert not any(name.startswith(("tests/", "asv_bench/")) for name in shipped)


def test_requirements_are_what_the_package_imports(setup_cfg):
    required = {
        re.match(r"[\w-]+", line).group().lower()
        for line in setup_cfg["options"]["install_requires"].split("\n")
        if line
    }
    names = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
    imported = {names.get(name, name) for name in external_imports("dask_ma")}
    optional = {
        re.match(r"[\w-]+", line).group().lower()
        for extra in ("plot", "progress", "torch")
        for line in setup_cfg["options.extras_require"][extra].split("\n")
        if line
    }
    assert optional == {"matplotlib", "rich", "safetensors", "torch"}
    # Users bring DataFrames and arrays of `sparse`; the package does not make them.
    assert imported - {"pandas"} - optional <= required
    assert required - {"sparse"} <= imported
    assert optional <= imported


def external_imports(package):
    """Top-level names outside the standard library that a package imports."""
    graph = grimp.build_graph("dask_ma", include_external_packages=True, cache_dir=None)
    importers = {package, *graph.find_descendants(package)}
    imported = {
        name.partition(".")[0]
        for importer in importers
        for name in graph.find_modules_directly_imported_by(importer)
    }
    return imported - {"dask_ma", *sys.stdlib_module_names}


def test_layers(monkeypatch):
    monkeypatch.chdir(ROOT)
    # Else it turns off all loggers that there are, for the tests that come later, too.
    configure = logging.config.dictConfig
    monkeypatch.setattr(
        "logging.config.dictConfig",
        lambda config: configure({**config, "disable_existing_loggers": False}),
    )
    assert cli.lint_imports(no_cache=True) == cli.EXIT_STATUS_SUCCESS


def test_kernels_need_numpy_and_scipy_only():
    assert external_imports("dask_ma.kernels") == {"numpy", "scipy"}


def test_import_loads_nothing_heavy_besides_what_it_rests_on(loaded_by):
    """dask.array loads sparse, and that numba: half a second for nothing."""
    before, (_, family, peers, _, every, _) = loaded_by["before"], loaded_by["method"]
    added = {*family} - {*before} | {*every} - {*peers}
    heavy = {"dask.array", "dask.dataframe", "matplotlib", "numba", "pandas", "sparse"}
    assert not added & (heavy | {"rich"})


def test_import_of_plots_does_not_load_matplotlib(loaded_by):
    """It is optional."""
    assert "dask_ma.plotting" in loaded_by["method"][-1]
    assert "matplotlib" not in loaded_by["method"][-1]


def test_estimators_are_fitted_without_pandas(loaded_by):
    """It is no requirement: who has frames has it."""
    estimators = [each for each in dask_ma.__all__ if each[0].isupper()]
    assert loaded_by["without pandas"] == estimators


def test_import_in_any_order(loaded_by):
    """The entry point is loaded while Dask is half imported."""
    for modules in loaded_by["any order"]:
        assert {"dask.array", "dask_ma.base"} <= set(modules)


def test_a_method_is_imported_when_it_is_asked_for(loaded_by):
    methods = {
        f"dask_ma.{name}" for name in ("butterfly", "ma", "mpca", "schmp", "sfb")
    }
    none, family, _, one, *_ = map(set, loaded_by["method"])
    assert not none & {*methods, "dask_ma.topics", "sklearn", "scipy"}
    assert "dask_ma.topics" in family and not family & methods
    assert one & methods == {"dask_ma.ma"}


def test_names_of_the_package_are_those_of_its_folders():
    assert {*dask_ma._FOLDER_OF, "__version__"} == set(dask_ma.__all__)
    assert set(dask_ma.__all__) | set(dask_ma._FOLDERS) <= set(dir(dask_ma))
    with pytest.raises(AttributeError, match="no attribute 'MASGDRanker'"):
        dask_ma.MASGDRanker  # noqa: B018


def test_importing_dask_does_not_import_the_package(loaded_by):
    modules = set(loaded_by["dask"])
    assert "_dask_ma_sizeof" in modules
    assert not modules & {"dask_ma", "sklearn"}


def test_entry_point_gives_dask_the_size_of_sparse_arrays():
    from dask.sizeof import sizeof

    array = sparse.csr_array(np.ones((100, 100)))
    assert sizeof(array) >= array.data.nbytes + array.indices.nbytes
    assert sizeof(array) == pytest.approx(sizeof(sparse.csr_matrix(array)), rel=0.01)


def test_all_names_exist():
    for name in dask_ma.__all__:
        assert getattr(dask_ma, name) is not None


def test_loggers_stay_on():
    """The one before has not turned them off."""
    assert not logging.getLogger("dask_ma.engine").disabled
