"""Memory that topics by Gibbs sampling take: blocks of words, tokens, and tables."""

from __future__ import annotations

from typing import NamedTuple

from dask_ma.comm import Group
from dask_ma.kernels import TileSampler
from dask_ma.schmp.topics._exact import has_sparse_rows
from dask_ma.schmp.topics._params import GibbsParams

_PER_BLOCK = 100_000  # tokens of a rank and block that are worth a message
MOST_BLOCKS = 4  # of a rank, for the sake of overlap
_DENSE_BLOCKS = 2  # where one is drawn so soon that messages take a part of the time
_MOST_TOKENS = 2_000_000  # of a rank and block, which are laid out in memory
TABLES = 3  # of a rank's part of the words: its own, the next, and one as floats
LAYOUT = 32  # bytes for each token of the block that is being laid out
TILES = 1 / 4  # bytes for each token that tiles take as objects, however large they are
UNEVEN = 2  # words of the largest block, for those of the mean: Zipf's law leads to 1.9
MOST_COPIES = 4  # states that are kept: the last two of a rank, and its neighbour's


class Needs(NamedTuple):
    """Bytes that a rank is going to take.

    Attributes
    ----------
    tokens : int
        What disks can take over.
    states : int
        Copies of the topics of tokens, for the loss of a worker; none from disks.
    rows : int
        Rows that are not on disks; they are there already.
    others : int
        What else has to be in memory: tables of counts, and the tokens of a block.
    """

    tokens: int
    states: int
    rows: int
    others: int


def bytes_per_token(
    sampler: str,
    topic_size: int,
    n_proposals: int,
    sizes: tuple[int, int, int] = (4, 4, 2),
) -> tuple[int, int]:
    """Bytes for a token that is laid out, and those of a state that is kept of it.

    Parameters
    ----------
    sampler : {"exact", "metropolis"}
    topic_size : int
        Bytes of the number of a topic.
    n_proposals : int
    sizes : tuple of int, default=(4, 4, 2)
        Bytes of the number of a document, of a word, and of a place in a document.

    Returns
    -------
    laid_out, kept : int
        The former with the word that a token has until all are laid out.
    """
    if sampler == "exact":
        # Tokens of the same word and document take less than one of its own.
        return sum(sizes) + sizes[1] + topic_size, topic_size
    laid_out = 8 + sizes[1] + (n_proposals + 2) * topic_size
    return laid_out, (n_proposals + 1) * topic_size


def open_block_bytes(n_words: int, n_topics: int, width: int, n_filled: int) -> int:
    """Bytes for a block of sparse rows that "exact" draws while it is dense.

    Parameters
    ----------
    n_words, n_topics : int
        Its shape.
    width : int
        Numbers in a row of the sampler's weights.
    n_filled : int
        Elements that are not zero.

    Returns
    -------
    n_bytes : int
        For counts, weights, and what it takes to find the elements that are not zero.
    """
    # An int32 and a flag for each, and a float32; of those that are not zero the place,
    # the word, the topic and the count.
    return n_words * (5 * n_topics + 4 * width) + 20 * n_filled


def kept_copies(group: Group) -> int:
    """States that a rank has in memory: its last ones, and those of its neighbour."""
    return MOST_COPIES // 2 if group.size == 1 else MOST_COPIES


def blocks_of_a_rank(params: GibbsParams, n_tokens: int, n_ranks: int) -> int:
    """Blocks of each rank: few for few tokens, more where these would be large.

    Parameters
    ----------
    params : GibbsParams
        Of the fit.
    n_tokens : int
        Of all ranks.
    n_ranks : int

    Returns
    -------
    n_blocks : int
    """
    of_block = n_ranks**2
    is_exact, most = params.sampler == "exact", MOST_BLOCKS
    if n_ranks == 1 and not is_exact:
        most = 1  # none is on its way, and documents are counted for each
    elif n_ranks > 1 and is_exact and not has_sparse_rows(params.n_components):
        most = _DENSE_BLOCKS  # one travels while the other is here
    wanted = min(max(n_tokens // (of_block * _PER_BLOCK), 1), most)
    return max(wanted, -(-n_tokens // (of_block * _MOST_TOKENS)))


def others_needed(
    params: GibbsParams,
    n_documents: int,
    n_tokens: int,
    n_all_tokens: int,
    n_ranks: int,
) -> int:
    """Bytes that a rank has to have in memory beside its rows, wherever tokens are.

    Parameters
    ----------
    params : GibbsParams
        Of the fit.
    n_documents, n_tokens : int
        Of the rank.
    n_all_tokens : int
        Of all ranks.
    n_ranks : int

    Returns
    -------
    n_bytes : int
    """
    p, n_blocks = params, n_ranks * blocks_of_a_rank(params, n_all_tokens, n_ranks)
    others = LAYOUT * n_tokens // n_blocks
    n_cells = p.n_features * p.n_components
    table = 4 * n_cells
    if p.sampler == "metropolis" or has_sparse_rows(p.n_components):
        table = 8 * min(n_cells, n_all_tokens)
    others += TABLES * table // n_ranks
    if p.sampler != "exact":
        return others
    width = TileSampler(p.n_components).width
    if has_sparse_rows(p.n_components):  # a block is dense while it is here
        # Blocks have as many tokens each, and not as many words.
        n_words = min(p.n_features, UNEVEN * -(-p.n_features // n_blocks))
        n_filled = min(n_words * p.n_components, -(-n_all_tokens // n_blocks))
        others += open_block_bytes(n_words, p.n_components, width, n_filled)
    return others + 4 * n_documents * width + int(TILES * n_tokens)
