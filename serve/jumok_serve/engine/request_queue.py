"""Sentences in the order of their arrival, and what they come to together."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from jumok_serve.engine.batch import Sentence


class Waiting:
    """Sentences that wait, the first first.

    Attributes:
        tokens: of their sources.
        rows: that they will have.
        work: source tokens times beam size.
    """

    def __init__(self) -> None:
        self._sentences: deque[Sentence] = deque()
        self.tokens = self.rows = self.work = 0

    def __len__(self) -> int:
        return len(self._sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self._sentences)

    @property
    def first(self) -> Sentence:
        """Who has waited longest."""
        return self._sentences[0]

    def extend(self, sentences: Iterable[Sentence]) -> None:
        """Has more of them wait, behind those who do."""
        for sentence in sentences:
            self._sentences.append(sentence)
            self._count(sentence, 1)

    def leave(self) -> None:
        """Takes out the first."""
        self._count(self._sentences.popleft(), -1)

    def drop(self, unwanted: Callable[[Sentence], bool]) -> None:
        """Takes out some, wherever they wait."""
        kept = [sentence for sentence in self._sentences if not unwanted(sentence)]
        self.clear()
        self.extend(kept)

    def clear(self) -> list[Sentence]:
        """Takes out all, and returns them."""
        everybody = list(self._sentences)
        self._sentences.clear()
        self.tokens = self.rows = self.work = 0
        return everybody

    def _count(self, sentence: Sentence, sign: int) -> None:
        tokens, rows = len(sentence.source_ids), sentence.search.beam_size
        self.tokens += sign * tokens
        self.rows += sign * rows
        self.work += sign * tokens * rows
