"""Greedy search, beam search and sampling for one sentence: candidate tokens and scores go in, hypotheses come out.

A search knows no model, no tensor and no other sentence, so that any batch can be made of any searches: each says what
its rows are fed and what is asked for, the scheduler runs the decoder once for all of them, finds the best candidates
of every row or draws one, and a table of searches hands each what these come to (``advance``).

The semantics are those of Hugging Face's ``generate``. A sum of token scores at or below -1e9 marks a row as dead: it
takes up a place in the batch and can neither finish nor come back to life.
"""

from collections.abc import Sequence

from jumok_serve.search.batch_search import SearchTable, Shared
from jumok_serve.search.beam import BeamSearch
from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries, joined
from jumok_serve.search.greedy_sampling import RowSearch
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import DEAD_SCORE, Draw, FinishedHypothesis, Search
from jumok_serve.search.topk import Continuations, best_continuations, each_rows_best

__all__ = [
    "DEAD_SCORE",
    "NO_CONSTRAINTS",
    "NO_ENTRIES",
    "BeamSearch",
    "Constraints",
    "Continuations",
    "Draw",
    "Entries",
    "FinishedHypothesis",
    "RowSearch",
    "Search",
    "SearchTable",
    "Shared",
    "best_continuations",
    "each_rows_best",
    "joined",
    "make_search",
]


def make_search(
    options: SearchOptions, start_token: int, prefix: Sequence[int] = (), source_ids: Sequence[int] = ()
) -> Search:
    """Start the search for one sentence: row by row with a beam of one, beam search with more.

    Args:
        options: all that it runs by.
        start_token: what the decoder is fed first.
        prefix: target tokens that every hypothesis continues; they count for nothing but the constraints.
        source_ids: what is translated; with the same seed, samples of different texts have nothing in common.
    """
    prompt = (start_token, *prefix)
    return RowSearch(options, prompt, source_ids) if options.beam_size == 1 else BeamSearch(options, prompt)
