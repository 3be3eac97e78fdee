"""The batches of a rank, pass after pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import Block, Shard, hand_back
from dask_ma.mpca.strategies._base import Batch
from dask_ma.mpca.training._choice import FEW_STEPS

_DEFAULT, _LEAST = 200, 16  # rows, of all ranks and of one
# Of steps that all ranks make together: the shuffles are not those of one rank, and the
# fit is to be as far after as many epochs even so.
_TOGETHER = 160


def rows_of_batch(
    batch_size: int | str,
    n_ranks: int,
    *,
    together: bool = False,
    filling: float = 0.0,
    n_rows: int = 0,
) -> int:
    """Rows of a batch on each rank; those of "auto" are scikit-learn's, shared out.

    Parameters
    ----------
    batch_size : int or "auto"
        A number is taken as it is.
    n_ranks : int
        Number of ranks.
    together : bool, default=False
        Whether all ranks make their steps together.
    filling : float, default=0.0
        As :func:`filling_rows` gives it, where steps go through the weights of all
        inputs; 0 otherwise. With fewer rows such a step is hardly shorter: up to there
        batches of "auto" have twice their share, unless an epoch would have too few
        steps.
    n_rows : int, default=0
        Of all ranks.

    Returns
    -------
    n_rows : int
    """
    if not isinstance(batch_size, str):
        return batch_size
    if together:
        return max(_LEAST, _TOGETHER // n_ranks)
    share = _DEFAULT // n_ranks
    most = min(2 * share, _DEFAULT, n_rows // (n_ranks * FEW_STEPS))
    return max(_LEAST, share, min(int(filling), most))


class Position(NamedTuple):
    """Where a sampler is.

    Attributes
    ----------
    turns : list of int
        Order of the blocks in this pass.
    at : tuple of int
        Number of the turn, and of the row in its order.
    orders : list of ndarray of int
        Order of the rows of each block; none of them changes later.
    random : tuple or None
        State of the random numbers.
    """

    turns: list[int]
    at: tuple[int, int]
    orders: list[np.ndarray]
    random: Any


class Sampler:
    """Gives the batches of one pass after another, without an end.

    A pass goes over each row of the rank once. Its batches have the same size but for
    the last. Where the rows lie in several blocks, the blocks come in a random order,
    and so do the rows of each block.

    Parameters
    ----------
    shard : Shard
        The rank's rows, at least one.
    batch_size : int
        Rows of a batch; it may be more than there are.
    random_state : RandomState or None
        Shuffles the rows; None keeps their order.
    least_rows : int, default=1
        If fewer are left for the last batch of a pass, they go with the batch before.
    n_batches : int or None, default=None
        Batches of a pass, of nearly equal size, whatever `batch_size`; not more than
        there are rows.
    """

    def __init__(
        self,
        shard: Shard,
        batch_size: int,
        random_state: np.random.RandomState | None,
        least_rows: int = 1,
        n_batches: int | None = None,
    ) -> None:
        self._blocks = shard.blocks
        self._batch_size = batch_size
        self._ends: np.ndarray | None = None  # of the batches, in rows of a pass
        if n_batches is not None:
            self._ends = shard.n_rows * np.arange(1, n_batches + 1) // n_batches
        self._least_rows = least_rows
        self._random_state = random_state
        self._turn = self._row = 0
        self._turns: list[int] = []
        self._orders = [np.arange(len(block.y)) for block in shard.blocks]
        self._begin_pass()

    def next(self) -> Batch:
        """The next batch."""
        wanted, pieces = self._n_wanted(), []
        while wanted and not self._is_at_end():
            block, order = self._current()
            rows = order[self._row : self._row + wanted]
            pieces.append(_rows_of(block, rows, self._random_state is None))
            hand_back(block.X)
            wanted -= len(rows)
            self._n_left -= len(rows)
            self._row += len(rows)
            if self._row == len(order):
                self._turn, self._row = self._turn + 1, 0
        ends_pass = self._is_at_end()
        if ends_pass:
            self._begin_pass()
        return _join(pieces, ends_pass)

    def position(self) -> Position:
        """Where the sampler is now; it costs no more than a few references."""
        random = None if self._random_state is None else self._random_state.get_state()
        at = (self._turn, self._row)
        return Position(list(self._turns), at, list(self._orders), random)

    def state_dict(self, position: Position | None = None) -> dict[str, Any]:
        """What another sampler of the same rows needs to give the same batches.

        Parameters
        ----------
        position : Position, default=None
            Where to go on from; None for where the sampler is now.
        """
        turns, at, orders, random = position or self.position()
        state: dict[str, Any] = {
            "turns": np.array(turns, dtype=np.int64),
            "at": np.array(at, dtype=np.int64),
            "orders": np.concatenate(orders),
            "lengths": self._lengths(),
        }
        if random is not None:
            _, keys, place, has_normal, normal = random
            state["keys"] = keys
            state["random"] = np.array([place, has_normal, normal])
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of a sampler of the same rows."""
        is_same = np.array_equal(state["lengths"], self._lengths())
        if is_same:
            ends = np.cumsum(self._lengths())[:-1]
            self._orders = np.split(np.array(state["orders"]), ends)
            self._turns = np.asarray(state["turns"]).tolist()
            self._turn, self._row = np.asarray(state["at"]).tolist()
            self._n_left = self._count_left()
        if self._random_state is not None:
            position, has_normal, normal = np.asarray(state["random"]).tolist()
            keys = np.asarray(state["keys"], dtype=np.uint32)
            self._random_state.set_state(
                ("MT19937", keys, int(position), int(has_normal), normal)
            )
        if not is_same:  # the rows lie in other blocks now
            self._begin_pass()

    def _n_wanted(self) -> int:
        """Rows of the next batch."""
        if self._ends is not None:
            n_done = self._ends[-1] - self._n_left
            return int(self._ends[self._ends > n_done][0] - n_done)
        is_last = self._n_left - self._batch_size < self._least_rows
        return self._n_left if is_last else self._batch_size

    def _lengths(self) -> np.ndarray:
        """Rows of each block."""
        return np.array([len(order) for order in self._orders], dtype=np.int64)

    def _count_left(self) -> int:
        """Rows that the pass has still to go over."""
        turns = self._turns[self._turn :]
        return sum(len(self._orders[turn]) for turn in turns) - self._row

    def _begin_pass(self) -> None:
        """Put blocks and rows into a new order."""
        self._turn = self._row = 0
        self._turns = list(range(len(self._blocks)))
        self._n_left = self._count_left()
        if self._random_state is None:
            return
        if len(self._blocks) > 1:
            self._turns = self._random_state.permutation(len(self._blocks)).tolist()
        # As in scikit-learn, each order is made from the one before.
        for turn in self._turns:
            order = self._orders[turn]
            self._orders[turn] = order[self._random_state.permutation(len(order))]

    def _current(self) -> tuple[Block, np.ndarray]:
        """The block whose turn it is, and the order of its rows."""
        number = self._turns[self._turn]
        return self._blocks[number], self._orders[number]

    def _is_at_end(self) -> bool:
        return self._turn == len(self._turns)


def _rows_of(block: Block, rows: np.ndarray, in_order: bool) -> Batch:
    """Some rows of a block; consecutive ones are views."""
    picked: Any = slice(rows[0], rows[-1] + 1) if in_order else rows
    weight = block.sample_weight
    return Batch(
        block.X[picked],
        block.y[picked],
        None if weight is None else weight[picked],
        False,
    )


def _join(pieces: list[Batch], ends_pass: bool) -> Batch:
    """One batch from its pieces."""
    if len(pieces) == 1:
        return pieces[0]._replace(ends_pass=ends_pass)
    rows = [piece.X for piece in pieces]
    X = sparse.vstack(rows, format="csr") if sparse.issparse(rows[0]) else None
    weights = [p.sample_weight for p in pieces if p.sample_weight is not None]
    return Batch(
        np.concatenate(rows) if X is None else X,
        np.concatenate([piece.y for piece in pieces]),
        np.concatenate(weights) if weights else None,
        ends_pass,
    )
