"""What a replica decodes: rows, and the padded source positions that these have together."""

from collections.abc import Iterable

from jumok_serve.batch import Batch, Sentence
from jumok_serve.memory import padded_length


class Occupancy:
    """What a replica decodes or is about to: sentences and longest source of every beam size.

    Args:
        batches: its batches, one a beam size.

    Attributes:
        sentences: how many there are.
        rows: how many these have.
        tokens: rows times padded source positions.
    """

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._parts = {
            batch.beam_size: (len(batch.sentences), padded_length(batch.longest_source)) for batch in batches
        }
        self._count()

    def _count(self) -> None:
        self.sentences = self.rows = self.tokens = 0
        for size, (sentences, longest) in self._parts.items():
            self.sentences += sentences
            self.rows += size * sentences
            self.tokens += size * sentences * longest

    def tokens_with(self, sentence: Sentence) -> int:
        """What `tokens` would be with one more sentence."""
        size = sentence.search.beam_size
        sentences, longest = self._parts.get(size, (0, 0))
        wider = max(longest, padded_length(len(sentence.source_ids)))
        return self.tokens + size * ((sentences + 1) * wider - sentences * longest)

    def add(self, sentence: Sentence) -> None:
        """Counts one more sentence in."""
        size = sentence.search.beam_size
        sentences, longest = self._parts.get(size, (0, 0))
        self._parts[size] = sentences + 1, max(longest, padded_length(len(sentence.source_ids)))
        self._count()
