"""Sizes of a round and of an update in documents: functions of sizes alone.

The topics have to be moved often enough to forget the random ones that they begin with,
and by enough documents at a time to be about something. So a rank updates its topics by
as many documents of its own as one rank alone would, as long as all passes have the
updates that their rounds are meant to bring. Several of these go from one average of
the ranks' topics to the next: held-out documents are predicted as well as with an
average after each update, or better, and an average costs as much as an update or two.
The more ranks there are, the sooner their topics are about different things.
"""

from __future__ import annotations

from math import ceil, sqrt

_FEWEST = 32  # documents of a round
_ENOUGH = 256  # documents that a round of a small corpus never exceeds
_PER_UPDATE = 384  # documents of an update of a rank; more make it little better
_ROUNDS_OF_FEW = 8  # in a pass over a small corpus
_ROUNDS_OF_MANY = 32  # in a pass over one that is not small
_PER_ROOT = 16.0  # documents of a round for the root of a document of a large corpus
_ROUNDS_OF_GRADIENTS = 256
_BETWEEN, _FEWEST_BETWEEN = 32, 4  # averages: updates of all ranks, and of each
_FEWEST_ROUNDS = 2  # of a pass of several ranks
# Documents of a rank's round times topics: some 10 s with reviews of films. A worker
# that wants to leave has to wait for the end of a round.
_MOST_BETWEEN = 16 * _PER_UPDATE * 1000
_FEWEST_LOCAL = 16  # documents of an update of a rank, where a round has several

_FEW_DOCUMENTS = 1024  # most that a pass over all of them for each update is made for


def is_few(n_documents: int) -> bool:
    """Whether ``learning_method="auto"`` updates the topics by all documents at once.

    Parameters
    ----------
    n_documents : int
        Documents of the corpus.

    Returns
    -------
    is_few : bool
    """
    return n_documents <= _FEW_DOCUMENTS


def round_size(n_documents: int, n_ranks: int = 1, n_components: int = 1) -> int:
    """Documents of a round of all ranks for ``batch_size="auto"``.

    Parameters
    ----------
    n_documents : int
        Documents of the corpus.
    n_ranks : int, default=1
        Ranks whose topics are averaged after a round.
    n_components : int, default=1
        Topics.

    Returns
    -------
    size : int
        An eighth of a small corpus, from 32 to 256; a thirty-second of a larger one,
        and from 262,144 documents on 16 times their root. Where that is 256, as from
        2,041 documents on, and leaves each of several ranks 16, it is larger: as much
        as 16 updates of each of two ranks take, 8 of four, and 4 of eight or more. It
        is half of the corpus if that is less, as for two ranks below 8,192 documents,
        whose rounds then have 4 updates or more; and it is never below that of one
        rank, which is 17 updates of each of two from some 665,000 documents on. Above
        1,000 topics there are fewer updates, but 4 or more.
    """
    small = min(max(n_documents / _ROUNDS_OF_FEW, _FEWEST), _ENOUGH)
    large = min(n_documents / _ROUNDS_OF_MANY, _PER_ROOT * sqrt(n_documents))
    size = ceil(max(small, large))
    if n_ranks == 1 or size < max(_ENOUGH, n_ranks * _FEWEST_LOCAL):
        return size
    most = _MOST_BETWEEN // (_PER_UPDATE * n_components)
    n_updates = max(_FEWEST_BETWEEN, min(_BETWEEN // n_ranks, most))
    below_another = n_ranks * ((n_updates + 1) * _PER_UPDATE - 1)
    half = ceil(n_documents / _FEWEST_ROUNDS)
    return max(size, min(n_updates * size, below_another, half))


def gradient_size(n_documents: int) -> int:
    """The same for ``paradigm="gradient"``, which updates once in a round.

    Parameters
    ----------
    n_documents : int
        Documents of the corpus.

    Returns
    -------
    size : int
        That of :func:`round_size`, but not above 256, or a 256th of the corpus.
    """
    most = max(_ENOUGH, ceil(n_documents / _ROUNDS_OF_GRADIENTS))
    return min(round_size(n_documents), most)


def count_updates(n_own: int, n_in_round: float, n_documents: int) -> int:
    """Updates of each rank in a round for ``local_batch_size="auto"``.

    Parameters
    ----------
    n_own : int
        Documents of the round on the rank that has most.
    n_in_round : float
        On all ranks.
    n_documents : int
        Documents of the corpus.

    Returns
    -------
    n_updates : int
        One for 384 documents of the rank. Where the round is larger than
        :func:`round_size` for one rank, at least one for as many documents of all
        ranks, or for 256 if that is more. In no case so many that a rank has fewer than
        16 for each.
    """
    fewest = round(n_in_round / max(_ENOUGH, round_size(n_documents)))
    return max(1, min(max(n_own // _PER_UPDATE, fewest), n_own // _FEWEST_LOCAL))
