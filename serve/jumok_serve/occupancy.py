"""What a replica decodes: rows, and the padded source positions that these have together."""

from collections.abc import Iterable

from jumok_serve.batch import Batch, Sentence
from jumok_serve.memory import padded_length


class Occupancy:
    """What a replica decodes or is about to: sentences and longest source of every beam size.

    Args:
        batches: its batches, one a beam size.
    """

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._sentences: dict[int, int] = {}  # by beam size
        self._longest: dict[int, int] = {}
        for batch in batches:
            self._sentences[batch.beam_size] = len(batch.sentences)
            self._longest[batch.beam_size] = padded_length(batch.longest_source)

    @property
    def sentences(self) -> int:
        """How many sentences."""
        return sum(self._sentences.values())

    @property
    def rows(self) -> int:
        """How many rows."""
        return sum(size * sentences for size, sentences in self._sentences.items())

    @property
    def tokens(self) -> int:
        """Rows times padded source positions."""
        return sum(size * sentences * self._longest[size] for size, sentences in self._sentences.items())

    def tokens_with(self, sentence: Sentence) -> int:
        """What `tokens` would be with one more sentence."""
        size = sentence.search.beam_size
        sentences, longest = self._sentences.get(size, 0), self._longest.get(size, 0)
        wider = max(longest, padded_length(len(sentence.source_ids)))
        return self.tokens + size * ((sentences + 1) * wider - sentences * longest)

    def add(self, sentence: Sentence) -> None:
        """Counts one more sentence in."""
        size = sentence.search.beam_size
        self._sentences[size] = self._sentences.get(size, 0) + 1
        self._longest[size] = max(self._longest.get(size, 0), padded_length(len(sentence.source_ids)))
