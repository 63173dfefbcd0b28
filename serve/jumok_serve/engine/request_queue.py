"""First-in-first-out queue of sentences, with their totals."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from jumok_serve.engine.sentence import Sentence


class Totals(NamedTuple):
    """Sums over sentences that the queue's bounds apply to: number, source tokens, estimated memory."""

    sentences: int
    tokens: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, sentences: Sequence[Sentence]) -> "Totals":
        """Add up sentences."""
        tokens = sum(len(sentence.source_ids) for sentence in sentences)
        return cls(len(sentences), tokens, sum(sentence.waiting_bytes for sentence in sentences))


class RequestQueue:
    """Waiting sentences in the order of arrival.

    Attributes:
        tokens: source tokens of all sentences.
        rows: rows that they will have.
        work: sum of source tokens times beam size.
        bytes: memory that they take, estimated.
    """

    def __init__(self) -> None:
        self._sentences: deque[Sentence] = deque()
        self.tokens = self.rows = self.work = self.bytes = 0

    def __len__(self) -> int:
        return len(self._sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self._sentences)

    @property
    def totals(self) -> Totals:
        """Sums that the queue's bounds apply to."""
        return Totals(len(self._sentences), self.tokens, self.bytes)

    @property
    def first(self) -> Sentence:
        """The sentence that has waited longest."""
        return self._sentences[0]

    def extend(self, sentences: Iterable[Sentence]) -> None:
        """Append sentences."""
        for sentence in sentences:
            self._sentences.append(sentence)
            self._count(sentence, 1)

    def pop_first(self) -> None:
        """Remove the first sentence."""
        self._count(self._sentences.popleft(), -1)

    def remove_if(self, unwanted: Callable[[Sentence], bool]) -> None:
        """Remove the sentences for which `unwanted` is true."""
        kept = [sentence for sentence in self._sentences if not unwanted(sentence)]
        self.clear()
        self.extend(kept)

    def clear(self) -> list[Sentence]:
        """Remove and return all sentences."""
        sentences = list(self._sentences)
        self._sentences.clear()
        self.tokens = self.rows = self.work = self.bytes = 0
        return sentences

    def _count(self, sentence: Sentence, sign: int) -> None:
        tokens, rows = len(sentence.source_ids), sentence.rows
        self.tokens += sign * tokens
        self.rows += sign * rows
        self.work += sign * tokens * rows
        self.bytes += sign * sentence.waiting_bytes
