"""CLINC150: short queries to an assistant, 150 intents."""

from __future__ import annotations

import gzip
import json
from importlib import resources
from typing import Literal

import numpy as np

_KEYS = {"train": "train", "validation": "val", "test": "test"}


def load_clinc150(
    subset: Literal["train", "validation", "test"] = "train",
    *,
    out_of_scope: bool = False,
) -> tuple[list[str], np.ndarray]:
    """Queries and their intents, shipped with the package.

    Larson et al., "An Evaluation Dataset for Intent Classification and Out-of-Scope
    Prediction", EMNLP-IJCNLP 2019; CC BY 3.0. All 150 intents are equally frequent.
    The queries come sorted by intent: shuffle them before cutting them into blocks.

    Parameters
    ----------
    subset : {"train", "validation", "test"}, default="train"
        15,000, 3,000 or 4,500 queries.
    out_of_scope : bool, default=False
        Whether to append the queries that belong to no intent (100, 100 or 1,000),
        with the label "oos".

    Returns
    -------
    texts : list of str
        The queries.
    labels : ndarray of str, shape (n_queries,)
        The name of the intent of each query.

    Raises
    ------
    ValueError
        If `subset` is not one of the three.

    Examples
    --------
    >>> from dask_ma.datasets import load_clinc150
    >>> texts, labels = load_clinc150("test")
    >>> texts[0], str(labels[0])
    ('how would you say fly in italian', 'translate')
    """
    if subset not in _KEYS:
        raise ValueError(f"subset must be one of {sorted(_KEYS)}, got {subset!r}")
    content = _read()
    pairs = content[_KEYS[subset]]
    if out_of_scope:
        pairs = pairs + content[f"oos_{_KEYS[subset]}"]
    texts, labels = zip(*pairs, strict=True)
    return list(texts), np.array(labels)


def _read() -> dict[str, list[list[str]]]:
    """The whole file: lists of [text, label] by split."""
    path = resources.files("dask_ma.datasets").joinpath("data", "clinc150.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))
