"""What replicas decode: rows, and the padded source positions that these have together."""

from collections.abc import Iterable
from dataclasses import dataclass

from jumok_serve.engine.batch import Batch, Sentence
from jumok_serve.runtime.slot_buffers import padded_length


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
        self._parts = {batch.beam_size: (batch.size, padded_length(batch.longest_source)) for batch in batches}
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


class Elsewhere:
    """What other replicas decode.

    Args:
        others: all of them.
    """

    def __init__(self, others: Iterable[Occupancy]) -> None:
        each = [(other.rows, other.tokens) for other in others]
        self.rows = sum(rows for rows, _ in each)
        self.tokens = sum(tokens for _, tokens in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine has to do at one moment; all zero when it is idle."""

    queued_requests: int
    queued_tokens: int
    running_sentences: int
    rows: int

    def __add__(self, other: "Load") -> "Load":
        """What two engines have to do."""
        return Load(
            queued_requests=self.queued_requests + other.queued_requests,
            queued_tokens=self.queued_tokens + other.queued_tokens,
            running_sentences=self.running_sentences + other.running_sentences,
            rows=self.rows + other.rows,
        )
