"""Scores of distances on rows or pairs that are held out, and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.kernels import neighbour_hits, square_lengths
from dask_ma.sfb.metric._plan import LabelSource, PlannedPairs, chunks, gather_batch

#: Rows between which Euclidean distances are the learnt ones.
Project = Callable[[Any], Any]

_MOST_ROWS = 4096  # of which neighbours are looked for


def label_score(group: Group, source: LabelSource, project: Project) -> float:
    """Part of the held-out rows whose neighbours among them name their class.

    A collective call. Of many rows, those in front are taken.
    """
    places = source.plan.own(source.plan.validation[:_MOST_ROWS])
    batch = source.take(places)
    own = batch._replace(X=project(batch.X), sample_weight=None)
    (Z, codes, *_), first = gather_batch(group, own)
    numbers = np.arange(first, first + own.n_rows)
    hits = neighbour_hits(Z[numbers], codes[numbers], Z, codes, numbers)
    return float(allreduce(group, np.array(float(hits)))) / len(codes)


def pair_score(group: Group, source: PlannedPairs, project: Project) -> float:
    """How well distances tell held-out pairs apart; a collective call.

    The area under the receiver operating characteristic, or of triplets the part that
    is in the right order.
    """
    distances, labels = own_distances(source, project, source.plan.validation)
    parts = allgather(group, [distances, labels])
    distances = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    if distances.shape[1] == 2:
        return float((distances[:, 0] < distances[:, 1]).mean())
    return area_under_curve(-distances[:, 0], labels > 0)


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """Part of the pairs of a positive and another one that scores put in order."""
    from scipy.stats import rankdata  # few fits need it, and it takes a while to load

    n_positive = int(positive.sum())
    ranks = rankdata(scores)[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(ranks / (n_positive * (len(scores) - n_positive)))


def own_distances(
    source: PlannedPairs, project: Project, units: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Squared distances of this rank's pairs or triplets, and their labels."""
    width = source.n_distances
    distances, labels = [np.zeros((0, width), np.float32)], [np.zeros(0)]
    for places in chunks(source.plan.own(units)):
        batch = source.take(places)
        found = [project(batch.X - other) for other in batch.others]
        distances.append(np.stack([square_lengths(part) for part in found], axis=1))
        labels.append(np.zeros(len(places)) if batch.y is None else batch.y)
    return np.concatenate(distances), np.concatenate(labels)


def find_threshold(group: Group, source: PlannedPairs, project: Project) -> float:
    """Distance that tells most of the pairs apart; a collective call."""
    parts = allgather(group, list(own_distances(source, project, source.plan.train)))
    distances = np.sqrt(np.concatenate([part[0][:, 0] for part in parts]))
    labels = np.concatenate([part[1] for part in parts])
    return best_threshold(distances, labels > 0)


def best_threshold(distances: np.ndarray, similar: np.ndarray) -> float:
    """Distance up to which pairs are best called similar.

    Parameters
    ----------
    distances : ndarray of shape (n_pairs,)
    similar : ndarray of bool of shape (n_pairs,)

    Returns
    -------
    threshold : float
        Half-way between two distances; the least of those that make fewest errors.
    """
    cuts, hits, misses = cut_counts(distances, similar)
    return float(cuts[np.argmax(hits - misses)])


def cut_counts(
    distances: np.ndarray, similar: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thresholds between distances, and what is called similar with each.

    Returns
    -------
    cuts : ndarray of shape (n_cuts,)
        Rising; the first calls nothing similar, the last all.
    hits, misses : ndarray of int of shape (n_cuts,)
        Pairs called similar that are, and that are not.
    """
    order = np.argsort(distances, kind="stable")
    values = distances[order].astype(np.float64)
    ends = np.flatnonzero(np.append(np.diff(values) > 0, True))
    hits = np.cumsum(similar[order])[ends]
    upper = np.append(values[ends[:-1] + 1], 2 * values[-1] + 1)
    cuts = np.concatenate([[values[0] / 2], (values[ends] + upper) / 2])
    hits = np.concatenate([[0], hits])
    return cuts, hits, np.concatenate([[0], ends + 1]) - hits


def check_validation(source: Any) -> None:
    """Refuse held-out rows or pairs that say nothing."""
    codes = source.plan.held_out_codes
    counts = np.bincount(codes) if len(codes) else np.zeros(1)
    if isinstance(source, LabelSource):
        is_enough = counts.max() >= 2
    else:
        is_enough = source.n_distances == 2 or (len(counts) == 2 and counts.min() > 0)
    if not is_enough:
        raise ValueError(
            f"early_stopping holds out {len(codes)} rows or pairs, of which no two can "
            "be compared; give more, or a larger validation_fraction"
        )
