"""`SearchPlan`: a search that has not begun, and its work."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jumok_serve.search.greedy_sampling import GreedySampling
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import BeamSearch, Search
from jumok_serve.search.term_search import TermSearch
from jumok_serve.search.terms import NO_TERMS, Terms

HISTORY_WORK, DRAW_WORK, TOP_P_WORK = 0.25, 3, 9
"""Additional work of a row whose constraints depend on its tokens, of one that draws, and of a draw with ``top_p``.

In row steps. Measured with a model of 6 MiB and 6,000 tokens: 0.15 to 0.35, 3.2 and 9.4."""
TERM_WORK, MOST_WEIGHED_TERMS, ALTERNATIVE_WORK = 0.2, 20, 0.025
"""Additional work of a row for each term of its sentence and for each further alternative, in row steps.

More terms share the largest beam. Measured with the same model, in processor time of two cores (2026-11-28): 2 with 7
terms of one or of 8 alternatives, 2 and 6 with 15, 4 and 10 with 30."""
WIDE_BEAM, WIDE_WORK = 16, 1 / 170
"""Additional work of a row for each hypothesis by which its beam is larger than `WIDE_BEAM`, in row steps.

Each row has twice as many candidates as its beam has hypotheses. Measured with the same model, in processor time: none
with 16 hypotheses, 0.1 with 32 and 0.2 to 0.35 with 64. `TERM_WORK` was measured in the larger beams of terms and has
this work already, so only the larger of the two counts."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchPlan:
    """A search that has not begun: light, as long as its sentence waits.

    Args:
        options: complete options, shared by the sentences of a request; with terms those of `options_with_terms`.
        start_token: first token fed to the decoder.
        prefix: target tokens that every hypothesis continues; only constraints count them.
        source_ids: source token ids; they make samples of different texts independent under one seed.
        terms: terms that every hypothesis contains.
    """

    options: SearchOptions
    start_token: int
    prefix: Sequence[int] = ()
    source_ids: Sequence[int] = ()
    terms: Terms = NO_TERMS

    @property
    def rows(self) -> int:
        """Rows of the sentence at every step: the beam size, or the number of samples."""
        options = self.options
        return options.beam_size if options.sampling is None else options.num_hypotheses

    @property
    def step_work(self) -> int:
        """Work of a step in row steps, rounded up; one is the time of a row without constraints."""
        further = [len(of_term) - 1 for of_term in self.terms.alternatives if of_term]
        terms = TERM_WORK * min(len(further), MOST_WEIGHED_TERMS) + ALTERNATIVE_WORK * sum(further)
        wider = max(0, self.options.beam_size - WIDE_BEAM)
        return math.ceil(self.rows * (self._row_work + max(terms, WIDE_WORK * wider)))

    @property
    def _row_work(self) -> float:
        """Work of a row's step, in row steps, without that of terms and wide beams."""
        options = self.options
        remembers = options.no_repeat_ngram_size > 0 or options.repetition_penalty != 1.0
        drawing = 0.0
        if options.sampling is not None:
            drawing = DRAW_WORK + TOP_P_WORK * (options.sampling.top_p < 1)
        return 1 + HISTORY_WORK * remembers + drawing

    def expected_steps(self, source_tokens: int) -> int:
        """Estimate the steps of a sentence; few translations are twice as long as their source."""
        options = self.options
        expected = max(options.min_length, 2 * source_tokens + 16)
        return len(self.prefix) + min(options.max_length, expected)

    @property
    def most_work(self) -> int:
        """Most work of the search for the bound of a request, in row steps: without that of terms and wide beams."""
        return math.ceil(self.rows * self._row_work) * (len(self.prefix) + self.options.max_length)

    def begin(self) -> Search:
        """Start the search: with terms, greedy or sampling, or beam search."""
        prompt = (self.start_token, *self.prefix)
        if self.terms.alternatives:
            return TermSearch(self.options, prompt, self.terms)
        if self.options.beam_size == 1:
            return GreedySampling(self.options, prompt, self.source_ids)
        return BeamSearch(self.options, prompt)
