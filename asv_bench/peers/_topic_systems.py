"""One function per system: topics of the same documents, and the time that they took.

All get the same priors, ``1 / n_components`` for both, the same schedule of the
learning rate, and the same end of a document's inference. Only training is timed, and
nothing is evaluated meanwhile.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file
from sklearn.decomposition import LatentDirichletAllocation

from benchmarks._data import persist
from dask_ma import MALDA

from ._solvers import local_cluster, require, spark_session

LEARNING_DECAY = 0.7
LEARNING_OFFSET = 10.0
MOST_ITERATIONS = 100
TOLERANCE = 1e-3


class Setting(NamedTuple):
    """What all systems are told.

    Attributes
    ----------
    n_components, n_passes : int
    batch_size : int
        Documents of a round of MALDA.
    local_batch_size : int
        Documents of an update of MALDA's ranks, of scikit-learn and of gensim.
    spark_batch_size : int
        Documents of an update of MLlib.
    dtype : str
        Of MALDA and gensim; scikit-learn gets float64, since in float32 its inference
        loses rare words.
    seed : int
    """

    n_components: int
    n_passes: int
    batch_size: int
    local_batch_size: int
    spark_batch_size: int
    dtype: str
    seed: int


class Result(NamedTuple):
    """What a system has learned.

    Attributes
    ----------
    name : str
    seconds : float
        Of training.
    processor : float
        Seconds of the processor, of all processes; NaN where they cannot be counted.
    topics : ndarray of shape (n_components, n_words)
        Parameters of the topics' Dirichlet distributions.
    """

    name: str
    seconds: float
    processor: float
    topics: np.ndarray


class Watch:
    """Time, and processor time of this process and of workers, since it was made."""

    def __init__(self, client: Any = None) -> None:
        self._client = client
        self._processor = self._count()
        self._start = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Seconds, and those of the processor."""
        seconds = time.perf_counter() - self._start
        return seconds, self._count() - self._processor

    def _count(self) -> float:
        """Processor time so far."""
        own = time.process_time()
        if self._client is None:
            return own
        return own + sum(self._client.run(time.process_time).values())


def malda(X: sparse.csr_matrix, setting: Setting, **params: Any) -> MALDA:
    """The estimator that is told the same as the other systems."""
    return MALDA(
        setting.n_components,
        learning_decay=LEARNING_DECAY,
        learning_offset=LEARNING_OFFSET,
        total_samples=X.shape[0],
        batch_size=setting.batch_size,
        local_batch_size=setting.local_batch_size,
        mean_change_tol=TOLERANCE,
        max_doc_update_iter=MOST_ITERATIONS,
        dtype=setting.dtype,
        random_state=setting.seed,
        **params,
    )


def run_dask_ma(X: sparse.csr_matrix, setting: Setting, n_workers: int) -> Result:
    """Call partial_fit pass by pass, on documents in the memory of the workers."""
    model = malda(X, setting)
    with local_cluster(n_workers) as client:
        client.wait_for_workers(n_workers)
        X_dask, _ = persist(X, np.zeros(X.shape[0]), client)
        clone(model).partial_fit(X[: 2 * n_workers])  # the first loads the modules
        watch = Watch(client)
        for _ in range(setting.n_passes):
            model.partial_fit(X_dask)
        spent = watch.read()
    places = f"{n_workers} process" + "es" * (n_workers > 1)
    return Result(f"MALDA, {places}", *spent, model.components_)


def run_sklearn(X: sparse.csr_matrix, setting: Setting) -> Result:
    """Call partial_fit pass by pass, which does what fit does but evaluates nothing."""
    model = LatentDirichletAllocation(
        setting.n_components,
        learning_method="online",
        learning_decay=LEARNING_DECAY,
        learning_offset=LEARNING_OFFSET,
        batch_size=setting.local_batch_size,
        total_samples=X.shape[0],
        mean_change_tol=TOLERANCE,
        max_doc_update_iter=MOST_ITERATIONS,
        random_state=setting.seed,
    )
    X = X.astype(np.float64)
    watch = Watch()
    for _ in range(setting.n_passes):
        model.partial_fit(X)
    return Result("scikit-learn, 1 process", *watch.read(), model.components_)


def run_gensim(X: sparse.csr_matrix, setting: Setting, n_workers: int) -> Result:
    """Train LdaModel, or LdaMulticore if there is more than one worker."""
    require("gensim", "pip install gensim")
    from gensim.models import LdaModel, LdaMulticore

    logging.getLogger("gensim").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "num_topics": setting.n_components,
        "id2word": {i: str(i) for i in range(X.shape[1])},
        "chunksize": setting.local_batch_size,
        "passes": setting.n_passes,
        "alpha": "symmetric",  # 1 / n_components
        "eta": "symmetric",
        "decay": LEARNING_DECAY,
        "offset": LEARNING_OFFSET,
        "eval_every": None,
        "iterations": MOST_ITERATIONS,
        "gamma_threshold": TOLERANCE,
        "dtype": np.dtype(setting.dtype).type,
        "random_state": setting.seed,
    }
    name = "gensim LdaModel, 1 process"
    if n_workers == 1:
        model = LdaModel(**options)
    else:
        model = LdaMulticore(workers=n_workers, **options)
        name = f"gensim LdaMulticore, {n_workers} processes"
    documents = as_pairs(X)
    watch = Watch()
    model.update(documents)
    seconds, processor = watch.read()
    if n_workers > 1:
        processor = np.nan  # processes of its own, which are gone
    return Result(name, seconds, processor, model.state.get_lambda())


def as_pairs(X: sparse.csr_matrix) -> list[list[tuple[int, int]]]:
    """The documents as lists of (word, count), which is what gensim reads fastest."""
    words, counts = X.indices.tolist(), X.data.tolist()
    pairs = list(zip(words, counts))
    return [pairs[start:stop] for start, stop in zip(X.indptr[:-1], X.indptr[1:])]


def run_spark(X: sparse.csr_matrix, setting: Setting, folder: Path) -> Result:
    """Train MLlib's online LDA in local[2] on documents cached in the driver."""
    with spark_session() as session:
        return fit_spark(session, X, setting, folder)


def fit_spark(
    session: Any, X: sparse.csr_matrix, setting: Setting, folder: Path
) -> Result:
    """Train in a session that is open."""
    from pyspark.ml.clustering import LDA

    n_documents, n_words = X.shape
    path = str(folder / "documents.libsvm")
    dump_svmlight_file(X, np.zeros(n_documents), path, zero_based=False)
    rows = session.read.format("libsvm").option("numFeatures", n_words).load(path)
    rows = rows.repartition(2).cache()
    if rows.count() != n_documents:
        raise RuntimeError("Spark did not read back all documents")
    batch_size = min(setting.spark_batch_size, n_documents)
    model = LDA(
        k=setting.n_components,
        optimizer="online",
        maxIter=setting.n_passes * -(-n_documents // batch_size),
        subsamplingRate=batch_size / n_documents,
        learningDecay=LEARNING_DECAY,
        learningOffset=LEARNING_OFFSET,
        optimizeDocConcentration=False,
        docConcentration=[1 / setting.n_components] * setting.n_components,
        topicConcentration=1 / setting.n_components,
        seed=setting.seed,
    )
    watch = Watch()
    fitted = model.fit(rows)
    seconds, _ = watch.read()
    # Of a model that was trained online these are the parameters, not divided.
    topics = fitted.topicsMatrix().toArray().T
    return Result("MLlib LDA, local[2]", seconds, np.nan, topics)
